//! The worker: claims jobs, runs attempts, settles their outcomes, and sleeps until a job is due or a push wakes it.
//!
//! This file, `registration`, `run` and `ctx` are the public API. `run_loop` is the main loop. It has a `phase`, a `queue_state` per
//! queue (`claim_state`, `outcomes`, `deliveries`, `cron_ticks`, `suspects`), the `attempts` (`in_flight`, `attempt`,
//! `handler`, `into_outcome`) and the `requests` to the store. `heartbeat` and `timer` are its threads, and `loop_host`
//! keeps it going if a handler blocks.

pub(crate) mod ack_in;
pub(crate) mod attempt;
mod attempt_poll;
pub(crate) mod attempt_state;
mod attempts;
mod backoff;
pub(crate) mod cancel;
mod claim_state;
mod cron_ticks;
pub(crate) mod ctx;
mod deliveries;
mod delivery;
pub(crate) mod end_reason;
pub(crate) mod event;
mod finished_collector;
pub(crate) mod handler;
mod heartbeat;
mod held_count_check;
mod in_flight;
pub(crate) mod into_outcome;
pub(crate) mod kind_stats;
mod lease_history;
mod loop_event;
mod loop_host;
pub(crate) mod middleware;
mod outcomes;
mod phase;
mod process;
pub(crate) mod progress;
mod progress_sender;
mod prune_schedule;
pub(crate) mod quarantine;
mod queue_state;
mod queues;
mod recent_outcomes;
mod registration;
pub mod remote;
mod requests;
mod run;
mod run_loop;
mod run_record;
mod settle_pace;
mod shutdown;
mod slots;
mod suspects;
mod take_back_wait;
mod timer;

use std::sync::Arc;
use std::time::Duration;

use self::cron_ticks::fire_all_due_ticks;
pub use self::ctx::Ctx;
pub use self::event::{Event, RunSummary};
use self::held_count_check::HeldCountCheck;
pub use self::into_outcome::{IntoOutcome, JobResult};
pub use self::middleware::{AttemptFuture, Middleware, Next};
use self::queue_state::QueueState;
pub use self::shutdown::ShutdownSignals;
use crate::client::Duly;
use crate::job::retry::Retry;
use crate::node::{NODE_KINDS_MAX, NodeProfile};
use crate::testing::{Crash, CrashAt};
use crate::worker::handler::Handlers;
use crate::worker::registration::Retries;

/// Default number of jobs that run at once; see [`Worker::queue`] and [`Worker::concurrency`].
pub const DEFAULT_CONCURRENCY: usize = 10;
/// Default grace period of running jobs once the worker stops; see [`Worker::grace`].
pub const DEFAULT_GRACE_PERIOD: Duration = Duration::from_secs(25);
/// How often a job may crash its process before it is buried by default; see [`Worker::max_crashes`].
pub const DEFAULT_CRASHES_MAX: u32 = 3;
/// Bounds of the interval between two [`Event::Alive`].
const ALIVE_INTERVAL_MIN: Duration = Duration::from_millis(1);
const ALIVE_INTERVAL_MAX: Duration = Duration::from_secs(3600);
/// Maximum done jobs kept per queue by default; see [`Worker::keep_done_max`].
pub const DEFAULT_KEEP_DONE_MAX: usize = 10_000;

type EventCallback = Arc<dyn Fn(&Event<'_>) + Send + Sync>;

/// Claims and runs jobs in one process. Created by [`Duly::worker`].
///
/// # Examples
///
/// ```
/// # use duly::{Ctx, Duly};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> duly::Result<()> {
/// # let duly = Duly::open(":memory:").await?;
/// let worker = duly.worker()
///     .queue("mail", 20)                  // at most 20 jobs of this queue at once
///     .queue("bulk", 5)
///     .concurrency(22)                    // over all queues
///     .weight("mail", 3).weight("bulk", 1) // both get slots; without weights, `mail` comes first
///     .on_kind("welcome", async |_: Ctx| println!("sent"));
/// assert_eq!(worker.drain().await?.settled(), 0); // a service calls `run`
/// # Ok(())
/// # }
/// ```
#[must_use = "a worker does nothing until `run`, `run_until` or `drain` is awaited"]
pub struct Worker {
    duly: Duly,
    queues: Vec<QueueState>,
    weights: Vec<(String, u32)>,
    concurrency: Option<usize>,
    handlers: Handlers,
    retries: Retries,
    grace: Duration,
    max_crashes: u32,
    keep_done_max: usize,
    alive_interval: Option<Duration>,
    on_event: Option<EventCallback>,
    crash_at: Option<CrashAt>,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker")
            .field("duly", &self.duly)
            .field("concurrency", &self.concurrency)
            .finish_non_exhaustive()
    }
}

/// The settings of a worker, as its run loop uses them.
pub(crate) struct WorkerSettings {
    duly: Duly,
    concurrency: usize,
    handlers: Arc<Handlers>,
    retries: Retries,
    grace: Duration,
    max_crashes: u32,
    keep_done_max: usize,
    alive_interval: Option<Duration>,
    on_event: Option<EventCallback>,
    crash: Option<Arc<Crash>>,
}

impl WorkerSettings {
    /// Returns the capabilities that this worker publishes.
    fn profile(&self, queues: &[QueueState]) -> NodeProfile {
        NodeProfile {
            kinds: self.handlers.kinds().filter(|kinds| kinds.len() <= NODE_KINDS_MAX).map(|kinds| kinds.to_vec()),
            slots: Some(self.concurrency as u64),
            limits: queues.iter().map(|queue| (queue.name().to_owned(), queue.limit() as u64)).collect(),
            ..NodeProfile::default()
        }
    }

    fn emit(&self, event: &Event<'_>) {
        if let Some(on_event) = &self.on_event {
            on_event(event);
        }
    }
}

impl Worker {
    pub(crate) fn new(duly: Duly) -> Self {
        let fourth_power = duly.options.fourth_power_backoff;
        Worker {
            duly,
            queues: Vec::new(),
            weights: Vec::new(),
            concurrency: None,
            handlers: Handlers::default(),
            retries: Retries::new(if fourth_power { Retry::fourth_power() } else { Retry::default() }),
            grace: DEFAULT_GRACE_PERIOD,
            max_crashes: DEFAULT_CRASHES_MAX,
            keep_done_max: DEFAULT_KEEP_DONE_MAX,
            alive_interval: None,
            on_event: None,
            crash_at: None,
        }
    }

    /// Works on this queue and runs at most `limit` of its jobs at once.
    ///
    /// If queues compete for slots (see [`Worker::concurrency`]), queues added first come first, unless
    /// [`Worker::weight`] is set. A worker without queues works on the queue `default`.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn example(duly: duly::Duly) -> duly::Worker {
    /// duly.worker().queue("mail", 20).queue("bulk", 5)
    /// # }
    /// ```
    pub fn queue(mut self, queue: impl Into<String>, limit: usize) -> Self {
        self.queues.push(QueueState::new(queue.into(), limit));
        self
    }

    /// Sets the weight of a queue (default 1). With weights, free slots are divided in proportion instead of by order.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn example(duly: duly::Duly) -> duly::Worker {
    /// duly.worker().queue("mail", 20).queue("bulk", 20).concurrency(20).weight("mail", 3)
    /// # }
    /// ```
    pub fn weight(mut self, queue: impl Into<String>, weight: u32) -> Self {
        self.weights.push((queue.into(), weight));
        self
    }

    /// Limits the jobs that run at once over all queues (default: the sum of the limits of the queues).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn example(duly: duly::Duly) -> duly::Worker {
    /// // At most 20 jobs of a queue at once, and at most 25 in total: for example, one database connection for each.
    /// duly.worker().queue("mail", 20).queue("bulk", 20).concurrency(25)
    /// # }
    /// ```
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.concurrency = Some(concurrency);
        self
    }

    /// Sets how long running jobs may continue once the worker stops (default 25 s). Then they are released.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn example(duly: duly::Duly) -> duly::Worker {
    /// duly.worker().grace(std::time::Duration::from_secs(60))
    /// # }
    /// ```
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Sets how often a job may crash its process before it is buried (default 3). Crashes do not count as attempts.
    ///
    /// A job that was running during two crashes runs alone for a while. From then on, only crashes while it runs alone
    /// count. With 0 or 1, a job is buried after its first or second crash, even if another job caused the crash.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn example(duly: duly::Duly) -> duly::Worker {
    /// duly.worker().max_crashes(5)
    /// # }
    /// ```
    pub fn max_crashes(mut self, crashes: u32) -> Self {
        self.max_crashes = crashes;
        self
    }

    /// Sets how many done jobs are kept per queue (default 10,000).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn example(duly: duly::Duly) -> duly::Worker {
    /// duly.worker().keep_done_max(100_000)
    /// # }
    /// ```
    pub fn keep_done_max(mut self, jobs: usize) -> Self {
        self.keep_done_max = jobs;
        self
    }

    /// Adds middleware around every attempt, inside the middleware of the client. The first one added is the outermost.
    ///
    /// # Examples
    ///
    /// ```
    /// use duly::worker::{AttemptFuture, Next};
    /// use duly::{Ctx, Middleware};
    ///
    /// struct LogKind;
    ///
    /// impl Middleware for LogKind {
    ///     fn around_attempt<'a>(&'a self, ctx: &'a Ctx, next: Next<'a>) -> AttemptFuture<'a> {
    ///         println!("{} starts", ctx.job().kind);
    ///         next.run(ctx)
    ///     }
    /// }
    /// # fn example(duly: duly::Duly) -> duly::Worker {
    /// duly.worker().middleware(LogKind)
    /// # }
    /// ```
    pub fn middleware(mut self, middleware: impl Middleware) -> Self {
        self.handlers.layers.push(Arc::new(middleware));
        self
    }

    /// Stops the worker at this point as if its process had been killed, and sets [`RunSummary::crashed`]. For tests.
    ///
    /// Nothing more is recorded. The next worker takes the held jobs back at once and counts a crash.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Ctx, Duly, Push, testing::CrashAt};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// duly.push(Push::new("charge", "7")).await?;
    /// let worker = || duly.worker().on_kind("charge", async |_: Ctx| ());
    /// let crashed = worker().crash_at(CrashAt::AfterSettle).drain().await?;
    /// assert!(crashed.crashed);
    /// assert_eq!(worker().drain().await?.settled(), 0, "the outcome was recorded, so the job does not run again");
    /// # Ok(())
    /// # }
    /// ```
    pub fn crash_at(mut self, at: CrashAt) -> Self {
        self.crash_at = Some(at);
        self
    }

    /// Calls this function for every event. It runs on the worker's own task and must return quickly.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::worker::Event;
    /// # fn example(duly: duly::Duly) -> duly::Worker {
    /// duly.worker().on_event(|event| if let Event::Settled { outcome, duration, .. } = event {
    ///     println!("{} after {duration:?}", outcome.as_str());
    /// })
    /// # }
    /// ```
    pub fn on_event(mut self, on_event: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Self {
        self.on_event = Some(Arc::new(on_event));
        self
    }

    /// Emits [`Event::Alive`] from the run loop at this interval (1 ms to 1 h), even while the worker is idle.
    /// For watchdogs: no event means that the loop is stuck.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::worker::Event;
    /// # fn example(duly: duly::Duly) -> duly::Worker {
    /// duly.worker().alive_interval(std::time::Duration::from_secs(10)).on_event(|event| if let Event::Alive = event {
    ///     println!("the loop is running");
    /// })
    /// # }
    /// ```
    pub fn alive_interval(mut self, every: Duration) -> Self {
        self.alive_interval = Some(every.clamp(ALIVE_INTERVAL_MIN, ALIVE_INTERVAL_MAX));
        self
    }
}

#[cfg(test)]
mod tests;
