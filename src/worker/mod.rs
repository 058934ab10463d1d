//! The worker: claims for its node, runs attempts, settles their outcomes, sleeps until something is due or it is woken.
//!
//! This file is what users see; `shift` is the loop, `ask` what it asks of the store, `lane` what it knows of each queue, `crew` the
//! attempts under way, `beat` the sign of life, `agree` whether the store counts what we count, `alarm` the sleep until a due moment,
//! `tick` what fires cron rules, `signals` what stops a service.

pub(crate) mod attempt;
pub(crate) mod cancel;
mod claims;
mod cron_ticks;
pub(crate) mod event;
pub(crate) mod handler;
mod heartbeat;
mod in_flight;
pub(crate) mod kind_stats;
pub(crate) mod middleware;
mod outcomes;
pub(crate) mod progress;
mod progress_sender;
mod queue_state;
mod recent_outcomes;
mod reconcile;
pub mod remote;
mod run_loop;
mod shutdown;
mod timer;

use std::any::TypeId;
use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::cron_ticks::fire_all_due_ticks;
use self::queue_state::QueueState;
use self::reconcile::HeldCountCheck;
use self::run_loop::{RunMode, WorkerLoop};
pub use self::shutdown::ShutdownSignals;
use crate::client::Duly;
use crate::error::{Error, Result};
use crate::job::push::{DEFAULT_QUEUE, check_name};
use crate::job::retry::Retry;
use crate::testing::{Crash, CrashAt};
use crate::worker::event::{Event, RunSummary};
use crate::worker::handler::{Args, Ctx, Handlers, IntoOutcome, StateMap};
use crate::worker::middleware::Middleware;

/// How many jobs run at once, unless queues or [`Worker::concurrency`] say otherwise.
pub const CONCURRENCY: usize = 10;
/// Most jobs that one worker runs at once.
const CONCURRENCY_MAX: usize = 100_000;
/// Most queues of one worker.
const QUEUES_MAX: usize = 1_024;
/// How long running jobs may go on once the worker stops, unless [`Worker::grace`] says otherwise.
pub const GRACE_PERIOD: Duration = Duration::from_secs(25);
/// How often a job may take its process down before it is buried.
pub(crate) const MAX_CRASHES: u32 = 3;
/// Shortest and longest time between two signs that the loop turns.
const ALIVE_INTERVAL_MIN: Duration = Duration::from_millis(1);
const ALIVE_INTERVAL_MAX: Duration = Duration::from_secs(3600);
/// How many done jobs of a queue are kept at most.
pub(crate) const KEEP_DONE_MAX: usize = 10_000;

type EventCallback = Arc<dyn Fn(&Event<'_>) + Send + Sync>;

/// Claims and runs jobs in one process. Made by [`Duly::worker`].
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

/// What a shift needs to know of its worker.
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
            grace: GRACE_PERIOD,
            max_crashes: MAX_CRASHES,
            keep_done_max: KEEP_DONE_MAX,
            alive_interval: None,
            on_event: None,
            crash_at: None,
        }
    }

    /// Works this queue, with at most `limit` of its jobs at once.
    ///
    /// Where queues compete (see [`Worker::concurrency`]), those named first come first, unless [`Worker::weight`] is used.
    /// A worker without any works the queue `default`.
    pub fn queue(mut self, queue: impl Into<String>, limit: usize) -> Self {
        self.queues.push(QueueState::new(queue.into(), limit));
        self
    }

    /// Gives a queue a share instead of a rank: free slots are divided among queues by their weights (1 unless set).
    pub fn weight(mut self, queue: impl Into<String>, weight: u32) -> Self {
        self.weights.push((queue.into(), weight));
        self
    }

    /// At most so many jobs at once over all queues (default: the sum of the queues' limits).
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.concurrency = Some(concurrency);
        self
    }

    /// Runs jobs of the kind `A::KIND` with this function.
    ///
    /// It may return nothing, an [`Outcome`](crate::Outcome), or a `Result` of either with any error type:
    /// an error means that the attempt has failed and is retried later.
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

    /// Runs jobs of this kind with a function that reads the args itself, from [`Ctx::job`].
    pub fn on_kind<F, Fut, R>(mut self, kind: impl Into<String>, handler: F) -> Self
    where
        F: Fn(Ctx) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = R> + Send + 'static,
        R: IntoOutcome,
    {
        self.handlers.insert_untyped(Some(kind.into()), handler);
        self
    }

    /// Runs jobs of every kind that has no handler of its own.
    pub fn on_any_kind<F, Fut, R>(mut self, handler: F) -> Self
    where
        F: Fn(Ctx) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = R> + Send + 'static,
        R: IntoOutcome,
    {
        self.handlers.insert_untyped(None, handler);
        self
    }

    /// Something for handlers to share, found again by its type with [`Ctx::state`].
    pub fn with_state<T: Send + Sync + 'static>(mut self, state: T) -> Self {
        self.state.insert(TypeId::of::<T>(), Arc::new(state));
        self
    }

    /// How failed attempts of one kind are retried.
    pub fn retry(mut self, kind: impl Into<String>, retry: Retry) -> Self {
        self.retries.insert(kind.into(), retry);
        self
    }

    /// How failed attempts of all other kinds are retried.
    pub fn default_retry(mut self, retry: Retry) -> Self {
        self.default_retry = retry;
        self
    }

    /// How long running jobs may go on once the worker stops (default 25 s); then they are released.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// How often a job may take its process down before it is buried (default 3). Does not use up attempts.
    pub fn max_crashes(mut self, crashes: u32) -> Self {
        self.max_crashes = crashes;
        self
    }

    /// How many done jobs of each queue are kept at most (default 10,000).
    pub fn keep_done_max(mut self, jobs: usize) -> Self {
        self.keep_done_max = jobs;
        self
    }

    /// Something to be done around every attempt of this worker, within what the door has. The first that is given is the outermost.
    pub fn middleware(mut self, middleware: impl Middleware) -> Self {
        self.handlers.layers.push(Arc::new(middleware));
        self
    }

    /// For tests: the worker ends at this step as if its process had been killed, and says so in its tally.
    /// Nothing more is recorded; what it held is taken back by the next worker, at once, and counts as a crash.
    pub fn crash_at(mut self, at: CrashAt) -> Self {
        self.crash_at = Some(at);
        self
    }

    /// Calls this for everything that happens. It runs on the worker's own task and must be quick.
    pub fn on_event(mut self, on_event: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Self {
        self.on_event = Some(Arc::new(on_event));
        self
    }

    /// Tells [`Event::Alive`] so often (1 ms to 1 h), from the loop itself and also while there is nothing to do.
    /// For watchdogs: silence means that the loop is stuck.
    pub fn alive_interval(mut self, every: Duration) -> Self {
        self.alive_interval = Some(every.clamp(ALIVE_INTERVAL_MIN, ALIVE_INTERVAL_MAX));
        self
    }

    /// Works until SIGTERM or SIGINT: then claims no more, lets running jobs go on for the grace time, releases the rest.
    /// A second signal ends the grace time at once.
    pub async fn run(self) -> Result<RunSummary> {
        let (stop, at_once) = (CancellationToken::new(), CancellationToken::new());
        let _signals = ShutdownSignals::listen(stop.clone(), at_once.clone())?;
        self.run_with_shutdown(stop, at_once).await
    }

    /// Works until the token is cancelled, then stops as [`Worker::run`] does.
    pub async fn run_until(self, stop: CancellationToken) -> Result<RunSummary> {
        self.run_with_shutdown(stop, CancellationToken::new()).await
    }

    /// Works until the first token is cancelled; the second ends the grace time at once.
    pub async fn run_with_shutdown(self, stop: CancellationToken, at_once: CancellationToken) -> Result<RunSummary> {
        run_as_task(self.into_loop(RunMode::Serve, stop, at_once)?).await
    }

    /// Works until it finds nothing ready in its queues and runs nothing itself. Jobs that are due later stay where they
    /// are, and so do those that another node runs.
    pub async fn drain(self) -> Result<RunSummary> {
        self.drain_with_shutdown(CancellationToken::new(), CancellationToken::new()).await
    }

    /// Works until nothing is ready or running, or the first token is cancelled; the second ends the grace time at once.
    pub async fn drain_with_shutdown(self, stop: CancellationToken, at_once: CancellationToken) -> Result<RunSummary> {
        run_as_task(self.into_loop(RunMode::Drain, stop, at_once)?).await
    }

    fn into_loop(mut self, mode: RunMode, stop: CancellationToken, at_once: CancellationToken) -> Result<WorkerLoop> {
        if self.queues.is_empty() {
            let limit = self.concurrency.unwrap_or(CONCURRENCY);
            self.queues.push(QueueState::new(DEFAULT_QUEUE.to_owned(), limit));
        }
        self.validate()?;
        for (queue, weight) in std::mem::take(&mut self.weights) {
            let lane = self.queues.iter_mut().find(|lane| lane.name == queue);
            let unknown = || Error::invalid("weight", format!("{queue} is not a queue of this worker; name it first"));
            lane.ok_or_else(unknown)?.weight = Some(weight.max(1));
        }
        let layers = self.duly.middleware.iter().cloned().chain(std::mem::take(&mut self.handlers.layers));
        self.handlers.layers = layers.collect();
        let sum: usize = self.queues.iter().map(|lane| lane.limit).sum();
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
        let hall = settings.duly.peers()?;
        // Another node may stop this worker, but nothing else that goes by the same token.
        Ok(WorkerLoop::new(settings, self.queues, mode, stop.child_token(), at_once, hall))
    }

    fn validate(&self) -> Result<()> {
        if self.handlers.is_empty() {
            return Err(Error::invalid("worker", "has no handler; give it one with `on`"));
        }
        if self.concurrency == Some(0) {
            return Err(Error::invalid("concurrency", "must be at least 1"));
        }
        if self.queues.len() > QUEUES_MAX {
            return Err(Error::invalid("queue", format!("at most {QUEUES_MAX} queues per worker")));
        }
        for (at, lane) in self.queues.iter().enumerate() {
            check_name("queue", &lane.name)?;
            if !(1..=CONCURRENCY_MAX).contains(&lane.limit) {
                return Err(Error::invalid(
                    "queue",
                    format!("{}: its limit must be from 1 to {CONCURRENCY_MAX}", lane.name),
                ));
            }
            if self.queues[..at].iter().any(|other| other.name == lane.name) {
                return Err(Error::invalid("queue", format!("{} is named twice", lane.name)));
            }
        }
        Ok(())
    }
}

/// Runs the loop as a task, beside the attempts that it starts: awaited from `main` it would have a thread of its own,
/// and every attempt would cross from one to the other. Dropping this ends it.
async fn run_as_task(shift: WorkerLoop) -> Result<RunSummary> {
    let mut task = JoinSet::new();
    task.spawn(shift.run());
    match task.join_next().await {
        Some(Ok(tally)) => tally,
        Some(Err(error)) => Err(Error::store("run", format!("the worker's loop has ended: {error}"))),
        None => Err(Error::store("run", "the worker's loop has not begun")),
    }
}

#[cfg(test)]
mod tests;
