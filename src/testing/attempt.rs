//! One run of a handler on given args, without pushing a job and starting a worker.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use crate::client::Duly;
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::job::args::Args;
use crate::job::push::Push;
use crate::job::retry::Retry;
use crate::job::{Fence, HeldJob, Job, JobProgress, Locator, Outcome};
use crate::worker::DEFAULT_CRASHES_MAX;
use crate::worker::attempt::{Attempt, AttemptResult};
use crate::worker::attempt_state::AttemptState;
use crate::worker::cancel::cancelled_outcome;
use crate::worker::ctx::{Ctx, WorkerContext};
use crate::worker::end_reason::EndReason;
use crate::worker::handler::Handlers;
use crate::worker::into_outcome::IntoOutcome;
use crate::worker::middleware::{Layers, Middleware};

/// One attempt at a job that was never pushed, for unit tests of handlers.
///
/// The timeout of the job applies, and a panic of the handler is caught, as in a worker. Its clock, retry, middleware
/// and cancellation can be set. For everything that involves a store and several attempts (leases, crashes, backoff,
/// cron), use `Duly::open(":memory:")` with [`Clock::manual`] and [`Worker::drain`](crate::Worker::drain) instead.
///
/// # Examples
///
/// ```
/// # use duly::{Args, Ctx, JobResult, Outcome};
/// use duly::testing::TestAttempt;
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct Double { number: u32 }
/// # impl Args for Double { const KIND: &'static str = "double"; }
///
/// async fn double(job: Double, ctx: Ctx) -> Result<JobResult<u32>, String> {
///     ctx.log("doubling");
///     Ok(JobResult(job.number.checked_mul(2).ok_or("too large")?))
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> duly::Result<()> {
/// let report = TestAttempt::new(Double { number: 21 }).run(double).await?;
/// assert_eq!(report.outcome, Outcome::Ack);
/// assert_eq!(report.result::<u32>()?, Some(42));
/// assert_eq!(report.log, ["doubling"]);
///
/// let last = TestAttempt::new(Double { number: u32::MAX }).number(25).run(double).await?;
/// assert_eq!(last.outcome, Outcome::bury("too large"));
/// # Ok(())
/// # }
/// ```
#[must_use = "call `run`"]
pub struct TestAttempt {
    push: Push,
    number: u32,
    stopping: CancellationToken,
    cancel: CancellationToken,
    clock: Clock,
    retry: Retry,
    layers: Layers,
}

impl std::fmt::Debug for TestAttempt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TestAttempt").field("push", &self.push).field("number", &self.number).finish_non_exhaustive()
    }
}

/// How a [`TestAttempt`] ended.
///
/// See [`TestAttempt`] for an example.
#[derive(Debug)]
#[non_exhaustive]
pub struct AttemptReport {
    /// The outcome that a worker would record. A retry has the delay of [`TestAttempt::retry`], unless the handler chose
    /// one.
    pub outcome: Outcome,
    /// Whether the job ends as cancelled: it was cancelled and the handler did not succeed. The outcome then has no effect.
    pub cancelled: bool,
    /// The result that the handler set, as JSON text.
    pub result: Option<String>,
    /// The last progress that the handler reported.
    pub progress: Option<JobProgress>,
    /// The lines that the handler logged, oldest first.
    pub log: Vec<String>,
    /// The store in memory that [`Ctx::duly`](crate::Ctx::duly) gave the handler; it has the jobs that it pushed.
    pub duly: Duly,
}

impl AttemptReport {
    /// Returns the result that the handler set, decoded; `None` if there is none. See [`TestAttempt`] for an example.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Invalid`] if the result does not decode as `T`.
    pub fn result<T: DeserializeOwned>(&self) -> Result<Option<T>> {
        let decode = |json| serde_json::from_str(json).map_err(|error| Error::invalid("result", error.to_string()));
        self.result.as_deref().map(decode).transpose()
    }
}

impl TestAttempt {
    /// Returns the first attempt at this job: args, or a push with options.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Ctx, Outcome, Push, testing::TestAttempt};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// let attempt = TestAttempt::new(Push::new("mail", r#"{"to":"ada"}"#).max_attempts(1));
    /// let report = attempt.run_untyped(async |_: Ctx| Err::<(), _>("no route")).await?;
    /// assert_eq!(report.outcome, Outcome::bury("no route"), "there is no second attempt");
    /// # Ok(())
    /// # }
    /// ```
    pub fn new(job: impl Into<Push>) -> Self {
        TestAttempt {
            push: job.into(),
            number: 1,
            stopping: CancellationToken::new(),
            cancel: CancellationToken::new(),
            clock: Clock::default(),
            retry: Retry::default(),
            layers: Layers::new(),
        }
    }

    /// Sets the number of the attempt, from 1. The attempts before it have failed.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Ctx, Outcome, Push};
    /// use duly::testing::TestAttempt;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// let second = |ctx: Ctx| async move { if ctx.attempt() == 1 { Err("not yet") } else { Ok(()) } };
    /// let report = TestAttempt::new(Push::new("mail", "{}")).number(2).run_untyped(second).await?;
    /// assert_eq!(report.outcome, Outcome::Ack);
    /// # Ok(())
    /// # }
    /// ```
    pub fn number(mut self, number: u32) -> Self {
        self.number = number.max(1);
        self
    }

    /// Runs the attempt in a worker that is stopping: [`Ctx::is_stopping`](crate::Ctx::is_stopping) returns true.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use duly::{Ctx, Outcome, Push};
    /// use duly::testing::TestAttempt;
    ///
    /// async fn import(ctx: Ctx) -> Outcome {
    ///     if ctx.is_stopping() { Outcome::release(Duration::ZERO) } else { Outcome::Ack }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// let report = TestAttempt::new(Push::new("import", "{}")).stopping().run_untyped(import).await?;
    /// assert_eq!(report.outcome, Outcome::release(Duration::ZERO));
    /// # Ok(())
    /// # }
    /// ```
    pub fn stopping(self) -> Self {
        self.stopping.cancel();
        self
    }

    /// Cancels the job when this token is cancelled: [`Ctx::cancelled`](crate::Ctx::cancelled) resolves, and a handler that
    /// does not end within its grace is dropped. A token that is cancelled already cancels before the handler starts.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Ctx, Outcome, Push};
    /// use duly::testing::TestAttempt;
    /// use tokio_util::sync::CancellationToken;
    ///
    /// async fn import(ctx: Ctx) -> Result<(), String> {
    ///     ctx.cancelled().await;
    ///     Err("the import was interrupted".into())
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// let token = CancellationToken::new();
    /// token.cancel();
    /// let report = TestAttempt::new(Push::new("import", "{}")).cancel_on(token).run_untyped(import).await?;
    /// assert!(report.cancelled);
    /// # Ok(())
    /// # }
    /// ```
    pub fn cancel_on(mut self, token: CancellationToken) -> Self {
        self.cancel = token;
        self
    }

    /// Sets the clock of the store: the handler sees it in [`Duly::now`] and its deadline, and it makes pushed jobs due.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use duly::{Clock, Ctx, Push};
    /// use duly::testing::TestAttempt;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// const DAY: Duration = Duration::from_secs(86_400);
    /// let remind = |ctx: Ctx| async move { ctx.push(Push::new("remind", "{}").after(DAY)).await.map(drop) };
    /// let clock = Clock::manual();
    /// let report = TestAttempt::new(Push::new("sign-up", "{}")).clock(clock.clone()).run_untyped(remind).await?;
    /// clock.advance(DAY);
    /// assert_eq!(report.duly.worker().on_any_kind(|_: Ctx| async {}).drain().await?.acked, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Sets how a failed attempt is retried, as [`Worker::retry`](crate::Worker::retry) does.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use duly::{Ctx, Outcome, Push, Retry};
    /// use duly::testing::TestAttempt;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// let minute = Duration::from_secs(60);
    /// let failing = |_: Ctx| async { Err::<(), _>("no route") };
    /// let report = TestAttempt::new(Push::new("mail", "{}")).retry(Retry::fixed(minute)).run_untyped(failing).await?;
    /// assert_eq!(report.outcome, Outcome::retry(minute, "no route"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// Adds middleware around the attempt. The first one added is the outermost.
    ///
    /// See [`Middleware`] for an example.
    pub fn middleware(mut self, middleware: impl Middleware) -> Self {
        self.layers.push(Arc::new(middleware));
        self
    }

    /// Runs a handler as [`Worker::on`](crate::Worker::on) does.
    ///
    /// A handler that takes state is called in a closure: `run(|job, ctx| send(job, ctx, mailer.clone()))`.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Invalid`] if the job could not be pushed, or has another kind than the handler.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Args, Ctx, Outcome, testing::TestAttempt};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Mail { to: String }
    /// # impl Args for Mail { const KIND: &'static str = "mail"; }
    /// async fn mail(job: Mail, _: Ctx) -> Outcome {
    ///     if job.to.contains('@') { Outcome::Ack } else { Outcome::bury("not an address") }
    /// }
    /// let report = TestAttempt::new(Mail { to: "ada".into() }).run(mail).await?;
    /// assert_eq!(report.outcome, Outcome::bury("not an address"));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run<A, F, Fut, R>(self, handler: F) -> Result<AttemptReport>
    where
        A: Args,
        F: Fn(A, Ctx) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = R> + Send + 'static,
        R: IntoOutcome,
    {
        if self.push.kind != A::KIND {
            let reason = format!("is {}, but the handler is for {}", self.push.kind, A::KIND);
            return Err(Error::invalid("kind", reason));
        }
        let mut handlers = Handlers::default();
        handlers.insert_typed(handler);
        self.run_with(handlers).await
    }

    /// Runs a handler as [`Worker::on_kind`](crate::Worker::on_kind) does.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Invalid`] if the job could not be pushed.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Ctx, Push, testing::TestAttempt};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// async fn double(ctx: Ctx) -> duly::Result<()> {
    ///     let number: u32 = ctx.args()?;
    ///     ctx.set_result(&(2 * number))
    /// }
    /// let report = TestAttempt::new(Push::new("double", "21")).run_untyped(double).await?;
    /// assert_eq!(report.result::<u32>()?, Some(42));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run_untyped<F, Fut, R>(self, handler: F) -> Result<AttemptReport>
    where
        F: Fn(Ctx) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = R> + Send + 'static,
        R: IntoOutcome,
    {
        let mut handlers = Handlers::default();
        handlers.insert_untyped(None, handler);
        self.run_with(handlers).await
    }

    async fn run_with(self, mut handlers: Handlers) -> Result<AttemptReport> {
        let duly = Duly::builder(":memory:").clock(self.clock.clone()).open().await?;
        handlers.layers.clone_from(&self.layers);
        let held = self.hold(&duly)?;
        let deadline = duly.now() + held.job.timeout;
        let worker = Arc::new(WorkerContext {
            progress: Arc::default(),
            stopping: self.stopping,
            duly: duly.clone(),
            cancelled_outcome: cancelled_outcome(&*duly.store),
            crash: None,
        });
        let state = Arc::new(AttemptState::new(held, deadline));
        let attempt = Attempt {
            ctx: Ctx { attempt_state: state.clone(), worker: worker.clone(), replaced_job: None },
            retry: self.retry,
            max_crashes: DEFAULT_CRASHES_MAX,
            job_age: Duration::ZERO,
        };
        let cancellation = async {
            self.cancel.cancelled().await;
            state.cancellation.cancel_job();
            std::future::pending::<Infallible>().await
        };
        let AttemptResult { outcome, reason } = tokio::select! {
            // A job that is cancelled already is so before its handler starts.
            biased;
            never = cancellation => match never {},
            result = attempt.run(Arc::new(handlers)) => result,
        };
        state.finished.store(true, Ordering::SeqCst);
        let report = worker.progress.finish_attempt(&state.held);
        let result = report.result;
        let (progress, lines) = report.update.map_or((None, Vec::new()), |update| (update.progress, update.lines));
        let log = lines.into_iter().map(|(_, line)| line).collect();
        let cancelled = reason == Some(EndReason::Cancelled);
        Ok(AttemptReport { outcome, cancelled, result, progress, log, duly })
    }

    /// Returns the job as if this node had claimed it.
    fn hold(&self, duly: &Duly) -> Result<HeldJob> {
        let push = &self.push;
        push.check()?;
        let job = Job {
            id: push.id,
            queue: push.queue.clone(),
            kind: push.kind.clone(),
            args: push.args.clone().map_err(|reason| Error::invalid("args", reason))?,
            priority: push.priority,
            pushed: duly.now(),
            max_attempts: push.max_attempts,
            timeout: push.timeout,
            keep: push.keep.unwrap_or(duly.options.keep),
            unique: push.unique_key(),
            tags: push.tags.clone(),
            traceparent: push.traceparent.clone(),
        };
        let (due, attempts) = (job.pushed, self.number - 1);
        let args_bytes = job.args.len();
        Ok(HeldJob { job, fence: Fence(1), due, attempts, crashes: 0, locator: Locator::new(0), args_bytes })
    }
}
