//! Handlers: typed for the user, type-erased inside. The only place with generics.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::SystemTime;

use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::client::Duly;
use crate::error::{BoxError, Error, Result};
use crate::job::args::Args;
use crate::job::push::{Push, PushResult, RESERVED_KIND_PREFIX};
use crate::job::{Fence, HeldJob, Job, JobProgress, Outcome};
use crate::store::RESULT_BYTES_MAX;
use crate::testing::{Crash, CrashAt};
use crate::worker::cancel::Cancellation;
use crate::worker::middleware::Layers;
use crate::worker::progress::ProgressBuffer;

/// The context of an attempt, passed to its handler.
///
/// Cheap to clone: a clone only increments two reference counts.
#[derive(Clone)]
pub struct Ctx {
    pub(crate) attempt_state: Arc<AttemptState>,
    pub(crate) worker: Arc<WorkerContext>,
}

/// The state of one attempt.
pub(crate) struct AttemptState {
    pub(crate) held: Arc<HeldJob>,
    pub(crate) deadline: SystemTime,
    /// Signals that the attempt should end.
    pub(crate) cancellation: Cancellation,
    /// The reported progress as the bits of an `f64`; NaN if there is none.
    pub(crate) progress: AtomicU64,
    /// The outcome is known: later reports from leftover parts of the handler are dropped.
    pub(crate) finished: AtomicBool,
}

impl AttemptState {
    pub(crate) fn new(held: HeldJob, deadline: SystemTime) -> Self {
        let progress = AtomicU64::new(f64::NAN.to_bits());
        AttemptState {
            held: Arc::new(held),
            deadline,
            cancellation: Cancellation::default(),
            progress,
            finished: AtomicBool::new(false),
        }
    }
}

/// State shared by all attempts of a worker.
pub(crate) struct WorkerContext {
    /// Reported progress, until the worker sends it.
    pub(crate) progress: Arc<ProgressBuffer>,
    pub(crate) stopping: CancellationToken,
    pub(crate) duly: Duly,
    pub(crate) state: Arc<StateMap>,
    /// A simulated crash, for tests.
    pub(crate) crash: Option<Arc<Crash>>,
}

pub(crate) type StateMap = HashMap<TypeId, Arc<dyn Any + Send + Sync>>;

impl Ctx {
    /// Returns the running job.
    #[must_use]
    pub fn job(&self) -> &Job {
        &self.attempt_state.held.job
    }

    /// Returns the number of this attempt, from 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt_state.held.attempt()
    }

    /// Returns the fence of this attempt. Pass it to systems that the handler writes to: older attempts have smaller
    /// ones.
    #[must_use]
    pub fn fence(&self) -> Fence {
        self.attempt_state.held.fence
    }

    /// Returns when the job became due. The difference to the current time is the attempt's lateness.
    #[must_use]
    pub fn due(&self) -> SystemTime {
        self.attempt_state.held.due
    }

    /// Returns when this attempt times out.
    #[must_use]
    pub fn deadline(&self) -> SystemTime {
        self.attempt_state.deadline
    }

    /// Waits until this attempt should end: the job was cancelled, or another node has it and would do the work twice.
    pub async fn cancelled(&self) {
        self.attempt_state.cancellation.cancelled().await;
    }

    /// Returns whether this attempt should end; see [`Ctx::cancelled`].
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.attempt_state.cancellation.is_cancelled()
    }

    /// Returns whether the job was cancelled. It is buried whatever the handler returns; the handler has a few seconds
    /// to clean up. If the attempt is cancelled but the job is not, another node has the job.
    #[must_use]
    pub fn is_job_cancelled(&self) -> bool {
        self.attempt_state.cancellation.is_job_cancelled()
    }

    /// Waits until the worker begins to stop. A long handler can save its state and return [`Outcome::release`].
    pub async fn stopping(&self) {
        self.worker.stopping.cancelled().await;
    }

    /// Returns whether the worker is stopping.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.worker.stopping.is_cancelled()
    }

    /// Records progress from 0 to 1, with a message. Sent a few times a second; only the latest is kept.
    pub fn set_progress(&self, fraction: f64, message: &str) {
        self.attempt_state.progress.store(fraction.clamp(0.0, 1.0).to_bits(), Ordering::Relaxed);
        self.worker.progress.set_progress(&self.attempt_state, JobProgress::new(fraction, message, self.now()));
    }

    /// Adds a line to the job's log, which keeps the newest lines. Sent a few times a second.
    pub fn log(&self, line: impl AsRef<str>) {
        self.worker.progress.add_line(&self.attempt_state, self.now(), line.as_ref());
    }

    /// Sets the result of the job. It is stored if this attempt ends in an ack, and kept as long as the job.
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

    /// Returns the value that was shared with [`Worker::with_state`](crate::Worker::with_state).
    #[must_use]
    pub fn state<T: Send + Sync + 'static>(&self) -> Option<&T> {
        self.worker.state.get(&TypeId::of::<T>())?.downcast_ref()
    }

    /// Marks a named point of the handler at which a test can simulate a crash; see
    /// [`CrashAt::Point`](crate::testing::CrashAt::Point). Does nothing otherwise.
    pub async fn crash_point(&self, name: &str) {
        if let Some(crash) = &self.worker.crash {
            crash.crash_if_at(CrashAt::point(name)).await;
        }
    }

    /// Returns the client.
    #[must_use]
    pub fn duly(&self) -> &Duly {
        &self.worker.duly
    }

    /// Pushes another job. It inherits the trace context of this job unless it has its own.
    pub async fn push(&self, job: impl Into<Push>) -> Result<PushResult> {
        let mut push: Push = job.into();
        if push.traceparent.is_none() {
            push.traceparent.clone_from(&self.attempt_state.held.job.traceparent);
        }
        self.worker.duly.push(push).await
    }
}

/// Checks that a result, as JSON text, is not too long.
pub(crate) fn check_result(json: &str) -> Result<()> {
    if json.len() > RESULT_BYTES_MAX {
        let reason = format!("{} bytes of JSON, at most {RESULT_BYTES_MAX} are stored; store it elsewhere", json.len());
        return Err(Error::invalid("result", reason));
    }
    Ok(())
}

impl std::fmt::Debug for Ctx {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ctx").field("held", &self.attempt_state.held).finish_non_exhaustive()
    }
}

/// How a handler ended: with an outcome, or with an error.
#[derive(Debug)]
pub(crate) enum HandlerResult {
    Outcome(Outcome),
    Failed(String),
}

/// The return value of a handler: `()`, an [`Outcome`], or a `Result` of either with any error.
pub trait IntoOutcome: sealed::IntoHandlerResult {}

mod sealed {
    use super::{BoxError, HandlerResult, Outcome, format_error_chain};

    pub trait IntoHandlerResult {
        #[doc(hidden)]
        fn into_handler_result(self) -> super::HandlerResultBox;
    }
    impl IntoHandlerResult for () {
        fn into_handler_result(self) -> super::HandlerResultBox {
            super::HandlerResultBox(HandlerResult::Outcome(Outcome::Ack))
        }
    }
    impl IntoHandlerResult for Outcome {
        fn into_handler_result(self) -> super::HandlerResultBox {
            super::HandlerResultBox(HandlerResult::Outcome(self))
        }
    }
    impl<T: IntoHandlerResult, E: Into<BoxError>> IntoHandlerResult for Result<T, E> {
        fn into_handler_result(self) -> super::HandlerResultBox {
            match self {
                Ok(value) => value.into_handler_result(),
                Err(error) => super::HandlerResultBox(HandlerResult::Failed(format_error_chain(&error.into()))),
            }
        }
    }
}

/// Keeps [`HandlerResult`] out of the public API.
#[doc(hidden)]
#[derive(Debug)]
pub struct HandlerResultBox(HandlerResult);

impl IntoOutcome for () {}
impl IntoOutcome for Outcome {}
impl<T: IntoOutcome, E: Into<BoxError>> IntoOutcome for Result<T, E> {}

/// Formats an error and its causes in one line.
pub(crate) fn format_error_chain(error: &BoxError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let next_text = next.to_string();
        // Many errors already contain the text of their cause.
        if !text.contains(&next_text) {
            text.push_str(": ");
            text.push_str(&next_text);
        }
        cause = next.source();
    }
    text
}

type HandlerFuture = Pin<Box<dyn Future<Output = HandlerResult> + Send>>;
pub(crate) type JobHandler = Arc<dyn Fn(Ctx) -> HandlerFuture + Send + Sync>;

/// The handlers by kind.
#[derive(Clone, Default)]
pub(crate) struct Handlers {
    by_kind: HashMap<String, JobHandler>,
    /// Runs all kinds without a handler of their own.
    fallback: Option<JobHandler>,
    /// Middleware around every handler, outermost first.
    pub(crate) layers: Layers,
}

impl Handlers {
    pub(crate) fn insert_typed<A, F, Fut, R>(&mut self, handler: F)
    where
        A: Args,
        F: Fn(A, Ctx) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = R> + Send + 'static,
        R: IntoOutcome,
    {
        let handler = Arc::new(handler);
        let erased = move |ctx: Ctx| -> HandlerFuture {
            let args = serde_json::from_str::<A>(&ctx.attempt_state.held.job.args);
            let handler = handler.clone();
            Box::pin(async move {
                match args {
                    Ok(args) => handler(args, ctx).await.into_handler_result().0,
                    Err(error) => HandlerResult::Failed(format!(
                        "the args do not decode as {}: {error}; fix the pusher or the type, then reschedule the job",
                        std::any::type_name::<A>()
                    )),
                }
            })
        };
        self.by_kind.insert(A::KIND.to_owned(), Arc::new(erased));
    }

    pub(crate) fn insert_untyped<F, Fut, R>(&mut self, kind: Option<String>, handler: F)
    where
        F: Fn(Ctx) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = R> + Send + 'static,
        R: IntoOutcome,
    {
        let handler = Arc::new(handler);
        let erased = move |ctx: Ctx| -> HandlerFuture {
            let handler = handler.clone();
            Box::pin(async move { handler(ctx).await.into_handler_result().0 })
        };
        match kind {
            Some(kind) => drop(self.by_kind.insert(kind, Arc::new(erased))),
            None => self.fallback = Some(Arc::new(erased)),
        }
    }

    pub(crate) fn get(&self, kind: &str) -> Option<&JobHandler> {
        // Kinds reserved by duly never go to the fallback.
        let fallback = self.fallback.as_ref().filter(|_| !kind.starts_with(RESERVED_KIND_PREFIX));
        self.by_kind.get(kind).or(fallback)
    }

    /// Returns the kinds with a handler, sorted; `None` if any kind can run.
    pub(crate) fn kinds(&self) -> Option<Arc<[String]>> {
        let mut kinds: Vec<String> = self.by_kind.keys().cloned().collect();
        kinds.sort();
        self.fallback.is_none().then(|| kinds.into())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_kind.is_empty() && self.fallback.is_none()
    }
}
