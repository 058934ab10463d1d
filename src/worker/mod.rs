//! The worker: claims jobs, runs attempts, settles their outcomes, and sleeps until a job is due or a push wakes it.
//!
//! This file is the public API. `run_loop` is the main loop. It has a `phase`, a `queue_state` per queue (`claim_state`,
//! `outcomes`, `deliveries`, `cron_ticks`, `suspects`), the `attempts` (`in_flight`, `attempt`, `handler`) and the
//! `requests` to the store. `heartbeat` and `timer` are its threads, and `loop_host` keeps it going if a handler blocks.

pub(crate) mod attempt;
mod attempts;
mod backoff;
pub(crate) mod cancel;
mod claim_state;
mod cron_ticks;
mod deliveries;
pub(crate) mod event;
pub(crate) mod handler;
mod heartbeat;
mod held_count_check;
mod in_flight;
pub(crate) mod kind_stats;
mod lease_history;
mod loop_event;
mod loop_host;
pub(crate) mod middleware;
mod outcomes;
mod phase;
pub(crate) mod progress;
mod progress_sender;
mod prune_schedule;
mod queue_state;
mod queues;
mod recent_outcomes;
pub mod remote;
mod requests;
mod run_loop;
mod run_record;
mod settle_pace;
mod shutdown;
mod slots;
mod suspects;
mod timer;

use std::any::TypeId;
use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::cron_ticks::fire_all_due_ticks;
pub use self::event::{Event, RunSummary};
pub use self::handler::{Ctx, IntoOutcome};
use self::held_count_check::HeldCountCheck;
use self::loop_host::LoopHost;
pub use self::middleware::{AttemptFuture, Middleware, Next};
use self::queue_state::QueueState;
use self::run_loop::{RunMode, WorkerLoop};
pub use self::shutdown::ShutdownSignals;
use crate::client::Duly;
use crate::error::{Error, Result};
use crate::job::args::Args;
use crate::job::push::{DEFAULT_QUEUE, check_name};
use crate::job::retry::Retry;
use crate::node::{NODE_KINDS_MAX, NodeProfile};
use crate::testing::{Crash, CrashAt};
use crate::worker::handler::{Handlers, StateMap};

/// Default number of jobs that run at once; see [`Worker::queue`] and [`Worker::concurrency`].
pub const DEFAULT_CONCURRENCY: usize = 10;
/// Maximum jobs that one worker runs at once.
const CONCURRENCY_MAX: usize = 100_000;
/// Maximum queues of one worker.
const QUEUES_MAX: usize = 1_024;
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
#[must_use = "a worker does nothing until `run`, `run_until` or `drain` is awaited"]
pub struct Worker {
    duly: Duly,
    queues: Vec<QueueState>,
    weights: Vec<(String, u32)>,
    concurrency: Option<usize>,
    handlers: Handlers,
    retries: HashMap<String, Retry>,
    default_retry: Retry,
    state: StateMap,
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
    retries: HashMap<String, Retry>,
    default_retry: Retry,
    state: Arc<StateMap>,
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
            quiet: false,
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
            retries: HashMap::new(),
            default_retry: if fourth_power { Retry::fourth_power() } else { Retry::default() },
            state: StateMap::new(),
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
    /// If queues compete for slots (see [`Worker::concurrency`]), the first queue wins unless [`Worker::weight`] is
    /// set.
    /// A worker without queues works on the queue `default`.
    pub fn queue(mut self, queue: impl Into<String>, limit: usize) -> Self {
        self.queues.push(QueueState::new(queue.into(), limit));
        self
    }

    /// Sets the weight of a queue (default 1). With weights, free slots are divided in proportion instead of by order.
    pub fn weight(mut self, queue: impl Into<String>, weight: u32) -> Self {
        self.weights.push((queue.into(), weight));
        self
    }

    /// Limits the jobs that run at once over all queues (default: the sum of the limits of the queues).
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.concurrency = Some(concurrency);
        self
    }

    /// Runs jobs of the kind `A::KIND` with this function.
    ///
    /// The handler may return `()`, an [`Outcome`](crate::Outcome), or a `Result` of either with any error type.
    /// An error means that the attempt has failed; it is retried later.
    pub fn on<A, F, Fut, R>(mut self, handler: F) -> Self
    where
        A: Args,
        F: Fn(A, Ctx) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = R> + Send + 'static,
        R: IntoOutcome,
    {
        self.handlers.insert_typed(handler);
        self
    }

    /// Runs jobs of this kind with a function that decodes the args from [`Ctx::job`] itself.
    pub fn on_kind<F, Fut, R>(mut self, kind: impl Into<String>, handler: F) -> Self
    where
        F: Fn(Ctx) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = R> + Send + 'static,
        R: IntoOutcome,
    {
        self.handlers.insert_untyped(Some(kind.into()), handler);
        self
    }

    /// Runs jobs of all kinds without a handler of their own.
    pub fn on_any_kind<F, Fut, R>(mut self, handler: F) -> Self
    where
        F: Fn(Ctx) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = R> + Send + 'static,
        R: IntoOutcome,
    {
        self.handlers.insert_untyped(None, handler);
        self
    }

    /// Shares a value with all handlers, which get it by its type with [`Ctx::state`].
    pub fn with_state<T: Send + Sync + 'static>(mut self, state: T) -> Self {
        self.state.insert(TypeId::of::<T>(), Arc::new(state));
        self
    }

    /// Sets how failed attempts of one kind are retried.
    pub fn retry(mut self, kind: impl Into<String>, retry: Retry) -> Self {
        self.retries.insert(kind.into(), retry);
        self
    }

    /// Sets how failed attempts of all other kinds are retried.
    pub fn default_retry(mut self, retry: Retry) -> Self {
        self.default_retry = retry;
        self
    }

    /// Sets how long running jobs may continue once the worker stops (default 25 s). Then they are released.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Sets how often a job may crash its process before it is buried (default 3). Crashes do not count as attempts.
    pub fn max_crashes(mut self, crashes: u32) -> Self {
        self.max_crashes = crashes;
        self
    }

    /// Sets how many done jobs are kept per queue (default 10,000).
    pub fn keep_done_max(mut self, jobs: usize) -> Self {
        self.keep_done_max = jobs;
        self
    }

    /// Adds middleware around every attempt, inside that of the client. The first one added is the outermost.
    pub fn middleware(mut self, middleware: impl Middleware) -> Self {
        self.handlers.layers.push(Arc::new(middleware));
        self
    }

    /// Stops the worker at this point as if its process had been killed, and sets [`RunSummary::crashed`]. For tests.
    ///
    /// Nothing more is recorded. The next worker takes the held jobs back at once and counts a crash.
    pub fn crash_at(mut self, at: CrashAt) -> Self {
        self.crash_at = Some(at);
        self
    }

    /// Calls this function for every event. It runs on the worker's own task and must return quickly.
    pub fn on_event(mut self, on_event: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Self {
        self.on_event = Some(Arc::new(on_event));
        self
    }

    /// Emits [`Event::Alive`] from the run loop at this interval (1 ms to 1 h), even while the worker is idle.
    /// For watchdogs: no event means that the loop is stuck.
    pub fn alive_interval(mut self, every: Duration) -> Self {
        self.alive_interval = Some(every.clamp(ALIVE_INTERVAL_MIN, ALIVE_INTERVAL_MAX));
        self
    }

    /// Runs until SIGTERM or SIGINT. Then it claims no more, gives running jobs the grace period and releases the rest.
    /// A second signal ends the grace period at once.
    pub async fn run(self) -> Result<RunSummary> {
        let (stop, stop_now) = (CancellationToken::new(), CancellationToken::new());
        let _signals = ShutdownSignals::listen(stop.clone(), stop_now.clone())?;
        self.run_with_shutdown(stop, stop_now).await
    }

    /// Runs until the token is cancelled, then stops as [`Worker::run`] does.
    pub async fn run_until(self, stop: CancellationToken) -> Result<RunSummary> {
        self.run_with_shutdown(stop, CancellationToken::new()).await
    }

    /// Runs until `stop` is cancelled. `stop_now` ends the grace period at once.
    pub async fn run_with_shutdown(self, stop: CancellationToken, stop_now: CancellationToken) -> Result<RunSummary> {
        run_as_task(self.into_loop(RunMode::Serve, stop, stop_now)?).await
    }

    /// Runs until no job is ready in its queues and none of its attempts is running. It does not wait for jobs that are
    /// due later or run on other nodes.
    pub async fn drain(self) -> Result<RunSummary> {
        self.drain_with_shutdown(CancellationToken::new(), CancellationToken::new()).await
    }

    /// Like [`Worker::drain`], but also stops if `stop` is cancelled. `stop_now` ends the grace period at once.
    pub async fn drain_with_shutdown(self, stop: CancellationToken, stop_now: CancellationToken) -> Result<RunSummary> {
        run_as_task(self.into_loop(RunMode::Drain, stop, stop_now)?).await
    }

    fn into_loop(mut self, mode: RunMode, stop: CancellationToken, stop_now: CancellationToken) -> Result<WorkerLoop> {
        if self.queues.is_empty() {
            let limit = self.concurrency.unwrap_or(DEFAULT_CONCURRENCY);
            self.queues.push(QueueState::new(DEFAULT_QUEUE.to_owned(), limit));
        }
        self.validate()?;
        for (name, weight) in std::mem::take(&mut self.weights) {
            let queue = self.queues.iter_mut().find(|queue| queue.name() == name);
            let unknown =
                || Error::invalid("weight", format!("{name} is not a queue of this worker; add it with `queue`"));
            queue.ok_or_else(unknown)?.set_weight(weight.max(1));
        }
        let layers = self.duly.middleware.iter().cloned().chain(std::mem::take(&mut self.handlers.layers));
        self.handlers.layers = layers.collect();
        let sum: usize = self.queues.iter().map(QueueState::limit).sum();
        let settings = WorkerSettings {
            duly: self.duly,
            concurrency: self.concurrency.unwrap_or(sum).min(CONCURRENCY_MAX),
            handlers: Arc::new(self.handlers),
            retries: self.retries,
            default_retry: self.default_retry,
            state: Arc::new(self.state),
            grace: self.grace,
            max_crashes: self.max_crashes,
            keep_done_max: self.keep_done_max,
            alive_interval: self.alive_interval,
            on_event: self.on_event,
            crash: self.crash_at.map(|at| Arc::new(Crash::new(at))),
        };
        let peers = settings.duly.peers()?;
        // Another node may stop this worker, but not others that share the caller's token.
        Ok(WorkerLoop::new(settings, self.queues, mode, stop.child_token(), stop_now, peers))
    }

    fn validate(&self) -> Result<()> {
        if self.handlers.is_empty() {
            return Err(Error::invalid("worker", "has no handler; add one with `on`"));
        }
        if self.concurrency == Some(0) {
            return Err(Error::invalid("concurrency", "must be at least 1"));
        }
        if self.queues.len() > QUEUES_MAX {
            return Err(Error::invalid("queue", format!("at most {QUEUES_MAX} queues per worker")));
        }
        for (index, queue) in self.queues.iter().enumerate() {
            check_name("queue", queue.name())?;
            if !(1..=CONCURRENCY_MAX).contains(&queue.limit()) {
                return Err(Error::invalid(
                    "queue",
                    format!("{}: its limit must be from 1 to {CONCURRENCY_MAX}", queue.name()),
                ));
            }
            if self.queues[..index].iter().any(|other| other.name() == queue.name()) {
                return Err(Error::invalid("queue", format!("{} was added twice", queue.name())));
            }
        }
        Ok(())
    }
}

/// Runs the loop as a task on the same threads as its attempts. Awaited from `main` it would have a thread of its own,
/// and every attempt would cross threads. Dropping the future ends the task.
async fn run_as_task(mut worker_loop: WorkerLoop) -> Result<RunSummary> {
    let mut task = JoinSet::new();
    let host = LoopHost::new();
    worker_loop.set_host(&host);
    task.spawn(host.run(worker_loop.run()));
    match task.join_next().await {
        Some(Ok(summary)) => summary,
        Some(Err(error)) => Err(Error::store("run", format!("the worker's loop ended unexpectedly: {error}"))),
        None => Err(Error::store("run", "the worker's loop did not start")),
    }
}

#[cfg(test)]
mod tests;
