//! The context of an attempt: the view of its job, worker and client that a handler gets.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use crate::client::{Duly, has_current_trace};
use crate::error::{Error, Result};
use crate::job::depth::check_depth;
use crate::job::push::{Push, PushResult};
use crate::job::{Fence, Job, JobProgress, Outcome};
use crate::store::RESULT_BYTES_MAX;
use crate::testing::{Crash, CrashAt};
use crate::worker::attempt_state::AttemptState;
use crate::worker::progress::ProgressBuffer;

/// The context of an attempt, passed to its handler.
///
/// Cheap to clone: a clone only increments two reference counts.
///
/// # Examples
///
/// ```
/// use duly::{BoxError, Ctx, Outcome};
///
/// async fn import(ctx: Ctx) -> Result<Outcome, BoxError> {
///     if ctx.attempt() > 3 {
///         return Ok(Outcome::bury("the file is still not there"));
///     }
///     ctx.log(format!("fence {}", ctx.fence()));
///     ctx.set_progress(0.5, "half of the rows");
///     ctx.set_result(&42)?;
///     Ok(Outcome::Ack)
/// }
/// ```
#[derive(Clone)]
pub struct Ctx {
    pub(crate) attempt_state: Arc<AttemptState>,
    pub(crate) worker: Arc<WorkerContext>,
    /// The job with the args that middleware replaced.
    pub(crate) replaced_job: Option<Arc<Job>>,
}

/// State shared by all attempts of a worker.
pub(crate) struct WorkerContext {
    /// Reported progress, until the worker sends it.
    pub(crate) progress: Arc<ProgressBuffer>,
    pub(crate) stopping: CancellationToken,
    pub(crate) duly: Duly,
    /// The outcome of an attempt that does not succeed, at a job that was cancelled.
    pub(crate) cancelled_outcome: Outcome,
    /// A simulated crash, for tests.
    pub(crate) crash: Option<Arc<Crash>>,
}

impl Ctx {
    /// Returns the running job.
    ///
    /// # Examples
    ///
    /// ```
    /// async fn import(ctx: duly::Ctx) {
    ///     let job = ctx.job();
    ///     println!("{} from queue {}, tags {:?}", job.id, job.queue, job.tags);
    /// }
    /// ```
    #[must_use]
    pub fn job(&self) -> &Job {
        self.replaced_job.as_deref().unwrap_or(&self.attempt_state.held.job)
    }

    /// Returns this context with other args, as JSON text, for the inner middleware and the handler of this attempt.
    ///
    /// The job in the store keeps its args: a later attempt starts from those.
    ///
    /// # Examples
    ///
    /// ```
    /// use duly::worker::{AttemptFuture, Next};
    /// use duly::{Ctx, Middleware};
    ///
    /// /// Turns the args of old jobs into those that the handler expects.
    /// struct UpgradeArgs;
    ///
    /// impl Middleware for UpgradeArgs {
    ///     fn around_attempt<'a>(&'a self, ctx: &'a Ctx, next: Next<'a>) -> AttemptFuture<'a> {
    ///         Box::pin(async move {
    ///             let args = ctx.job().args.replace("\"mail\":", "\"to\":");
    ///             next.run(&ctx.with_args(args)).await
    ///         })
    ///     }
    /// }
    /// ```
    #[must_use]
    pub fn with_args(&self, args: impl Into<String>) -> Ctx {
        let job = Job { args: args.into(), ..self.job().clone() };
        Ctx { replaced_job: Some(Arc::new(job)), ..self.clone() }
    }

    /// Returns the args of the job, decoded. For handlers and middleware that do not get them as an argument.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Invalid`] if the args do not decode as `T`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Ctx, Duly, Push};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// async fn add(ctx: Ctx) -> duly::Result<()> {
    ///     let (left, right): (u32, u32) = ctx.args()?;
    ///     ctx.set_result(&(left + right))
    /// }
    /// duly.push(Push::new("add", "[1, 2]")).await?;
    /// assert_eq!(duly.worker().on_kind("add", add).drain().await?.acked, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn args<T: DeserializeOwned>(&self) -> Result<T> {
        self.job().decode_args()
    }

    /// Returns the number of this attempt, from 1.
    ///
    /// # Examples
    ///
    /// ```
    /// async fn fetch(ctx: duly::Ctx) -> Result<(), &'static str> {
    ///     let mirror = if ctx.attempt() == 1 { "https://a.example" } else { "https://b.example" };
    ///     download(mirror).await
    /// }
    /// # async fn download(_: &str) -> Result<(), &'static str> { Ok(()) }
    /// ```
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt_state.held.attempt()
    }

    /// Returns the fence of this attempt. Pass it to systems that the handler writes to: older attempts have smaller
    /// ones.
    ///
    /// # Examples
    ///
    /// ```
    /// async fn price(ctx: duly::Ctx) {
    ///     let update = "UPDATE price SET cents = 999, fence = ?1 WHERE id = 7 AND fence <= ?1";
    ///     println!("{update} with {}", ctx.fence());
    /// }
    /// ```
    #[must_use]
    pub fn fence(&self) -> Fence {
        self.attempt_state.held.fence
    }

    /// Returns when the job became due. The difference to the current time is the attempt's lateness.
    ///
    /// # Examples
    ///
    /// ```
    /// async fn remind(ctx: duly::Ctx) {
    ///     let lateness = ctx.duly().now().duration_since(ctx.due()).unwrap_or_default();
    ///     if lateness.as_secs() > 3600 {
    ///         ctx.log(format!("{lateness:?} late"));
    ///     }
    /// }
    /// ```
    #[must_use]
    pub fn due(&self) -> SystemTime {
        self.attempt_state.held.due
    }

    /// Returns when this attempt times out.
    ///
    /// # Examples
    ///
    /// ```
    /// fn time_left(ctx: &duly::Ctx) -> std::time::Duration {
    ///     ctx.deadline().duration_since(ctx.duly().now()).unwrap_or_default()
    /// }
    /// ```
    #[must_use]
    pub fn deadline(&self) -> SystemTime {
        self.attempt_state.deadline
    }

    /// Waits until this attempt should end: the job was cancelled, or another node has it and would do the work twice.
    /// A handler that stops early returns an error or [`Outcome::release`]; an ack means that the work is done.
    ///
    /// # Examples
    ///
    /// ```
    /// async fn import(ctx: duly::Ctx) -> Result<(), &'static str> {
    ///     tokio::select! {
    ///         () = download() => Ok(()),
    ///         () = ctx.cancelled() => Err("cancelled"),
    ///     }
    /// }
    /// # async fn download() {}
    /// ```
    pub async fn cancelled(&self) {
        self.attempt_state.cancellation.cancelled().await;
    }

    /// Returns whether this attempt should end; see [`Ctx::cancelled`].
    ///
    /// # Examples
    ///
    /// ```
    /// async fn import(ctx: duly::Ctx) -> Result<(), &'static str> {
    ///     for _file in 0..10 {
    ///         if ctx.is_cancelled() { return Err("cancelled"); }
    ///     }
    ///     Ok(())
    /// }
    /// ```
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.attempt_state.cancellation.is_cancelled()
    }

    /// Returns whether the job was cancelled. Unless the handler returns an ack, the job ends cancelled; the handler has
    /// a few seconds to clean up. If the attempt is cancelled but the job is not, another node has the job.
    ///
    /// # Examples
    ///
    /// ```
    /// async fn render(ctx: duly::Ctx) -> Result<(), &'static str> {
    ///     ctx.cancelled().await;
    ///     if ctx.is_job_cancelled() {
    ///         remove_partial_file().await; // otherwise another node is writing it
    ///     }
    ///     Err("cancelled")
    /// }
    /// # async fn remove_partial_file() {}
    /// ```
    #[must_use]
    pub fn is_job_cancelled(&self) -> bool {
        self.attempt_state.cancellation.is_job_cancelled()
    }

    /// Waits until the worker begins to stop. A long handler can save its state and return [`Outcome::release`].
    ///
    /// # Examples
    ///
    /// ```
    /// use duly::{Ctx, Outcome};
    ///
    /// async fn import(ctx: Ctx) -> Outcome {
    ///     tokio::select! {
    ///         () = download() => Outcome::Ack,
    ///         () = ctx.stopping() => Outcome::release(std::time::Duration::ZERO), // runs again elsewhere
    ///     }
    /// }
    /// # async fn download() {}
    /// ```
    pub async fn stopping(&self) {
        self.worker.stopping.cancelled().await;
    }

    /// Returns whether the worker is stopping.
    ///
    /// # Examples
    ///
    /// ```
    /// use duly::{Ctx, Outcome};
    ///
    /// async fn import(ctx: Ctx) -> Outcome {
    ///     for _row in 0..1_000_000 {
    ///         if ctx.is_stopping() {
    ///             return Outcome::release(std::time::Duration::ZERO); // runs again elsewhere
    ///         }
    ///     }
    ///     Outcome::Ack
    /// }
    /// ```
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.worker.stopping.is_cancelled()
    }

    /// Records progress from 0 to 1, with a message. Sent a few times a second; only the latest is kept.
    ///
    /// # Examples
    ///
    /// ```
    /// async fn import(ctx: duly::Ctx) {
    ///     for done in 0..10 {
    ///         ctx.set_progress(f64::from(done) / 10.0, &format!("{done} of 10 files"));
    ///     }
    /// }
    /// ```
    pub fn set_progress(&self, fraction: f64, message: &str) {
        self.attempt_state.progress.store(fraction.clamp(0.0, 1.0).to_bits(), Ordering::Relaxed);
        self.worker.progress.set_progress(&self.attempt_state, JobProgress::new(fraction, message, self.now()));
    }

    /// Adds a line to the job's log, which keeps the newest lines. Sent a few times a second.
    ///
    /// # Examples
    ///
    /// ```
    /// async fn import(ctx: duly::Ctx) {
    ///     ctx.log("the header has 7 columns");
    /// }
    /// ```
    pub fn log(&self, line: impl AsRef<str>) {
        self.worker.progress.add_line(&self.attempt_state, self.now(), line.as_ref());
    }

    /// Sets the result of the job. It is stored if this attempt ends in an ack, and kept as long as the job.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Invalid`](crate::Error::Invalid) if the value cannot be written as JSON, or if its JSON is longer than
    /// [`RESULT_BYTES_MAX`](crate::bounds::RESULT_BYTES_MAX).
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Ctx, Duly, Push};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let id = duly.push(Push::new("count", "{}")).await?.id();
    /// duly.worker().on_kind("count", async |ctx: Ctx| ctx.set_result(&42)).drain().await?;
    /// let record = duly.jobs().get(id).await?.expect("is kept for a day");
    /// assert_eq!(record.result.as_deref(), Some("42"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_result(&self, value: &impl Serialize) -> Result<()> {
        let json = serde_json::to_string(value)
            .map_err(|error| Error::invalid("result", format!("cannot be written as JSON: {error}")))?;
        check_result(&json)?;
        self.worker.progress.set_result(&self.attempt_state, json);
        Ok(())
    }

    fn now(&self) -> SystemTime {
        self.worker.duly.options.clock.now()
    }

    /// Marks a named point of the handler at which a test can simulate a crash; see
    /// [`CrashAt::Point`](crate::testing::CrashAt::Point). Does nothing otherwise.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Ctx, Duly, Push, testing::CrashAt};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// async fn charge(ctx: Ctx) {
    ///     ctx.crash_point("charged").await; // the card is charged, but the job is not done
    /// }
    /// duly.push(Push::new("charge", "7")).await?;
    /// let worker = || duly.worker().on_kind("charge", charge);
    /// assert!(worker().crash_at(CrashAt::point("charged")).drain().await?.crashed);
    /// assert_eq!(worker().drain().await?.acked, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn crash_point(&self, name: &str) {
        if let Some(crash) = &self.worker.crash {
            crash.crash_if_at(CrashAt::point(name)).await;
        }
    }

    /// Returns the client.
    ///
    /// # Examples
    ///
    /// ```
    /// async fn report(ctx: duly::Ctx) -> duly::Result<()> {
    ///     let dead = ctx.duly().jobs().count(&"state:dead".parse()?).await?;
    ///     ctx.set_result(&dead.matching)
    /// }
    /// ```
    #[must_use]
    pub fn duly(&self) -> &Duly {
        &self.worker.duly
    }

    /// Pushes another job. It inherits the trace context of this job unless it has its own.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Duly::push`].
    ///
    /// # Examples
    ///
    /// ```
    /// async fn order(ctx: duly::Ctx) -> duly::Result<()> {
    ///     // The same id in every attempt, so the receipt is pushed once.
    ///     let id = duly::JobId::from_name(&format!("receipt:{}", ctx.job().id));
    ///     ctx.push(duly::Push::new("receipt", "{}").id(id)).await.map(drop)
    /// }
    /// ```
    pub async fn push(&self, job: impl Into<Push>) -> Result<PushResult> {
        let mut push: Push = job.into();
        // With OpenTelemetry, the push continues the current span, which belongs to the same trace.
        if push.traceparent.is_none() && !has_current_trace() {
            push.traceparent.clone_from(&self.attempt_state.held.job.traceparent);
        }
        self.worker.duly.push(push).await
    }
}

/// Checks that a result, as JSON text, is not too long or too deep.
pub(crate) fn check_result(json: &str) -> Result<()> {
    if json.len() > RESULT_BYTES_MAX {
        let reason = format!("{} bytes of JSON, at most {RESULT_BYTES_MAX} are stored; store it elsewhere", json.len());
        return Err(Error::invalid("result", reason));
    }
    check_depth("result", json)
}

impl std::fmt::Debug for Ctx {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ctx").field("held", &self.attempt_state.held).finish_non_exhaustive()
    }
}
