//! Runs a worker: until a signal, until a token is cancelled, or until its queues are empty.

use std::sync::Arc;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::loop_host::LoopHost;
use super::queue_state::QueueState;
use super::run_loop::{RunMode, WorkerLoop};
use super::{DEFAULT_CONCURRENCY, RunSummary, ShutdownSignals, Worker, WorkerSettings};
use crate::error::{Error, Result};
use crate::job::push::{DEFAULT_QUEUE, check_name};
use crate::testing::Crash;

/// Maximum jobs that one worker runs at once.
const CONCURRENCY_MAX: usize = 100_000;
/// Maximum queues of one worker.
const QUEUES_MAX: usize = 1_024;

impl Worker {
    /// Runs until SIGTERM or SIGINT. Then it claims no more, gives running jobs the grace period and releases the rest.
    /// A second signal ends the grace period at once.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Invalid`] if a setting is invalid, and [`Error::Store`] if the worker cannot join the store.
    /// Later errors of the store do not end the worker: it repeats its requests, and reports each error as
    /// [`Event::StoreFailed`](crate::worker::Event::StoreFailed).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use duly::{Ctx, Duly};
    /// # #[tokio::main]
    /// # async fn main() -> duly::Result<()> {
    /// let duly = Duly::open("duly.db").await?;
    /// duly.worker().on_kind("mail", async |_: Ctx| println!("sent")).run().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run(self) -> Result<RunSummary> {
        let (stop, stop_now) = (CancellationToken::new(), CancellationToken::new());
        let _signals = ShutdownSignals::listen(stop.clone(), stop_now.clone())?;
        self.run_with_shutdown(stop, stop_now).await
    }

    /// Runs until the token is cancelled, then stops as [`Worker::run`] does.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Worker::run`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Ctx, Duly};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let stop = duly::CancellationToken::new();
    /// let worker = tokio::spawn(duly.worker().on_kind("mail", async |_: Ctx| ()).run_until(stop.clone()));
    /// stop.cancel();
    /// let summary = worker.await.expect("does not panic")?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run_until(self, stop: CancellationToken) -> Result<RunSummary> {
        self.run_with_shutdown(stop, CancellationToken::new()).await
    }

    /// Runs until `stop` is cancelled. `stop_now` ends the grace period at once.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Worker::run`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{CancellationToken, Ctx, Duly};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let (stop, stop_now) = (CancellationToken::new(), CancellationToken::new());
    /// let worker = duly.worker().on_kind("mail", async |_: Ctx| ());
    /// let running = tokio::spawn(worker.run_with_shutdown(stop.clone(), stop_now.clone()));
    /// stop.cancel();     // claims no more jobs
    /// stop_now.cancel(); // releases the jobs that are still running
    /// running.await.expect("does not panic")?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run_with_shutdown(self, stop: CancellationToken, stop_now: CancellationToken) -> Result<RunSummary> {
        run_as_task(self.into_loop(RunMode::Serve, stop, stop_now)?).await
    }

    /// Runs until no job is ready in its queues and none of its attempts is running. It does not wait for jobs that are
    /// due later or run on other nodes.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Worker::run`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Ctx, Duly, Push};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// duly.push(Push::new("mail", "{}")).await?;
    /// let summary = duly.worker().on_kind("mail", async |_: Ctx| ()).drain().await?;
    /// assert_eq!(summary.acked, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn drain(self) -> Result<RunSummary> {
        self.drain_with_shutdown(CancellationToken::new(), CancellationToken::new()).await
    }

    /// Like [`Worker::drain`], but also stops if `stop` is cancelled. `stop_now` ends the grace period at once.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Worker::run`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use duly::{CancellationToken, Ctx, Duly};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// // From a timer of the system: run what is there, for at most a minute.
    /// let (stop, stop_now) = (CancellationToken::new(), CancellationToken::new());
    /// let worker = duly.worker().on_kind("mail", async |_: Ctx| ()).drain_with_shutdown(stop.clone(), stop_now);
    /// tokio::pin!(worker);
    /// let summary = tokio::select! {
    ///     summary = &mut worker => summary?,
    ///     () = tokio::time::sleep(Duration::from_secs(60)) => { stop.cancel(); worker.await? }
    /// };
    /// println!("{} jobs done", summary.acked);
    /// # Ok(())
    /// # }
    /// ```
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
        self.handlers.check()?;
        self.retries.check(&self.handlers)?;
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
        Some(Err(error)) => Err(Error::store(
            "run",
            format!("the worker's loop ended unexpectedly: {error}; please report this as a bug"),
        )),
        None => Err(Error::store("run", "the worker's loop did not start; start it on a running tokio runtime")),
    }
}
