//! The user's functions: typed at the edge, erased inside. The one place with generics.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use crate::client::Duly;
use crate::error::{BoxError, Error, Result};
use crate::job::push::{Push, PushResult, RESERVED_KIND_PREFIX, UniqueConflict};
use crate::job::{Fence, HeldJob, Job, JobId, JobProgress, Outcome, Priority};
use crate::store::RESULT_BYTES_MAX;
use crate::testing::{Crash, CrashAt};
use crate::worker::cancel::Cancellation;
use crate::worker::middleware::Layers;
use crate::worker::progress::ProgressBuffer;

/// The args of one kind of job: any type that serde can write and read, and the kind's name.
///
/// The methods turn a value into a [`Push`] with one option set, so that they can be chained.
pub trait Args: Serialize + DeserializeOwned + Send + 'static {
    /// The kind of job that these are the args of.
    const KIND: &'static str;

    /// So long from now.
    fn after(self, delay: Duration) -> Push {
        Push::from(self).after(delay)
    }
    /// At this moment.
    fn at(self, moment: SystemTime) -> Push {
        Push::from(self).at(moment)
    }
    /// Into this queue.
    fn queue(self, queue: impl Into<String>) -> Push {
        Push::from(self).queue(queue)
    }
    /// Before or after other ready jobs.
    fn priority(self, priority: Priority) -> Push {
        Push::from(self).priority(priority)
    }
    /// Only if no unfinished job of the queue has this key.
    fn unique(self, key: impl Into<String>) -> Push {
        Push::from(self).unique(key)
    }
    /// In place of a waiting job with the same unique key.
    fn replace(self, key: impl Into<String>) -> Push {
        Push::from(self).unique(key).on_conflict(UniqueConflict::Replace)
    }
    /// Under this id.
    fn id(self, id: JobId) -> Push {
        Push::from(self).id(id)
    }
    /// So many attempts may fail.
    fn max_attempts(self, attempts: u32) -> Push {
        Push::from(self).max_attempts(attempts)
    }
    /// One attempt may run so long.
    fn timeout(self, timeout: Duration) -> Push {
        Push::from(self).timeout(timeout)
    }
    /// Kept so long once it is done.
    fn keep(self, keep: Duration) -> Push {
        Push::from(self).keep(keep)
    }
    /// With a word to find it by.
    fn tag(self, tag: impl Into<String>) -> Push {
        Push::from(self).tag(tag)
    }
}

impl<A: Args> From<A> for Push {
    fn from(args: A) -> Push {
        let json = serde_json::to_string(&args).map_err(|why| format!("cannot be written as JSON: {why}"));
        Push::with_args(A::KIND.to_owned(), json)
    }
}

/// What a handler gets beside its args.
///
/// It is cloned for every attempt: two counts, whatever there is in it.
#[derive(Clone)]
pub struct Ctx {
    pub(crate) attempt_state: Arc<AttemptState>,
    pub(crate) worker: Arc<WorkerContext>,
}

/// What belongs to one attempt.
pub(crate) struct AttemptState {
    pub(crate) held: Arc<HeldJob>,
    pub(crate) deadline: SystemTime,
    /// That it should end.
    pub(crate) cancellation: Cancellation,
    /// How far it has come, as bits; not a number if it has not said.
    pub(crate) progress: AtomicU64,
    /// Its outcome is known: whatever a part of it that was left behind says from now on, nobody asks for any more.
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

/// What all attempts of a worker share.
pub(crate) struct WorkerContext {
    /// What attempts say, until the worker sends it.
    pub(crate) progress: Arc<ProgressBuffer>,
    pub(crate) stopping: CancellationToken,
    pub(crate) duly: Duly,
    pub(crate) state: Arc<StateMap>,
    /// A test wants this worker to die at some step.
    pub(crate) crash: Option<Arc<Crash>>,
}

pub(crate) type StateMap = HashMap<TypeId, Arc<dyn Any + Send + Sync>>;

impl Ctx {
    /// The job that runs.
    #[must_use]
    pub fn job(&self) -> &Job {
        &self.attempt_state.held.job
    }

    /// Which attempt this is, from 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt_state.held.attempt()
    }

    /// Pass it on to whatever the handler writes to: an older attempt has a smaller one.
    #[must_use]
    pub fn fence(&self) -> Fence {
        self.attempt_state.held.fence
    }

    /// When the job fell due; by how much the attempt is late, once you compare it with the present.
    #[must_use]
    pub fn due(&self) -> SystemTime {
        self.attempt_state.held.due
    }

    /// When this attempt will be timed out.
    #[must_use]
    pub fn deadline(&self) -> SystemTime {
        self.attempt_state.deadline
    }

    /// Resolves when this attempt should end: somebody has cancelled the job, or another node has it and whatever is done
    /// now is done twice.
    pub async fn cancelled(&self) {
        self.attempt_state.cancellation.cancelled().await;
    }

    /// Whether this attempt should end: see [`Ctx::cancelled`].
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.attempt_state.cancellation.is_cancelled()
    }

    /// Whether somebody has cancelled the job: it ends dead whatever the handler returns, and a few seconds are left to end well.
    /// If it is cancelled and this is not so, another node has the job.
    #[must_use]
    pub fn is_job_cancelled(&self) -> bool {
        self.attempt_state.cancellation.is_job_cancelled()
    }

    /// Resolves when the worker begins to stop: a long handler may save its place and return [`Outcome::release`].
    pub async fn stopping(&self) {
        self.worker.stopping.cancelled().await;
    }

    /// Whether the worker is stopping.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.worker.stopping.is_cancelled()
    }

    /// Keeps with the job how far the attempt has come, from 0 to 1, and a word on it. Sent a few times a second: the last counts.
    pub fn set_progress(&self, done: f64, note: &str) {
        self.attempt_state.progress.store(done.clamp(0.0, 1.0).to_bits(), Ordering::Relaxed);
        self.worker.progress.set_progress(&self.attempt_state, JobProgress::new(done, note, self.now()));
    }

    /// Adds a line to the job's log, of which the newest lines are kept. Sent a few times a second.
    pub fn log(&self, line: impl AsRef<str>) {
        self.worker.progress.add_line(&self.attempt_state, self.now(), line.as_ref());
    }

    /// What the job gives: kept with it when this attempt ends in an ack, as long as the job is kept.
    pub fn set_result(&self, value: &impl Serialize) -> Result<()> {
        let json = serde_json::to_string(value)
            .map_err(|why| Error::invalid("result", format!("cannot be written as JSON: {why}")))?;
        check_result(&json)?;
        self.worker.progress.set_result(&self.attempt_state, json);
        Ok(())
    }

    fn now(&self) -> SystemTime {
        self.worker.duly.options.clock.now()
    }

    /// What was given to the worker with [`Worker::with`](crate::Worker::with).
    #[must_use]
    pub fn state<T: Send + Sync + 'static>(&self) -> Option<&T> {
        self.worker.state.get(&TypeId::of::<T>())?.downcast_ref()
    }

    /// A step of the handler by its name, for tests that end it there: see [`CrashAt::Step`](crate::testing::CrashAt).
    /// Does nothing otherwise.
    pub async fn crash_point(&self, name: &str) {
        if let Some(crash) = &self.worker.crash {
            crash.crash_if_at(CrashAt::point(name)).await;
        }
    }

    /// The door, for everything else.
    #[must_use]
    pub fn duly(&self) -> &Duly {
        &self.worker.duly
    }

    /// Pushes another job, which carries this one's trace context unless it has its own.
    pub async fn push(&self, job: impl Into<Push>) -> Result<PushResult> {
        let mut push: Push = job.into();
        if push.traceparent.is_none() {
            push.traceparent.clone_from(&self.attempt_state.held.job.traceparent);
        }
        self.worker.duly.push(push).await
    }
}

/// What a job gives, as JSON text: not too long, whoever runs it.
pub(crate) fn check_result(json: &str) -> Result<()> {
    if json.len() > RESULT_BYTES_MAX {
        let why = format!("{} bytes of JSON, of which {RESULT_BYTES_MAX} are kept: keep it elsewhere", json.len());
        return Err(Error::invalid("result", why));
    }
    Ok(())
}

impl std::fmt::Debug for Ctx {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ctx").field("held", &self.attempt_state.held).finish_non_exhaustive()
    }
}

/// How a handler's function ended: with an outcome of its own choice, or with an error.
#[derive(Debug)]
pub(crate) enum HandlerResult {
    Outcome(Outcome),
    Failed(String),
}

/// What a handler may return: nothing, an [`Outcome`], or a `Result` of either with any error.
pub trait IntoOutcome: sealed::Sealed {}

mod sealed {
    use super::{BoxError, HandlerResult, Outcome, format_error_chain};

    pub trait Sealed {
        #[doc(hidden)]
        fn into_handler_result(self) -> super::HandlerResultBox;
    }
    impl Sealed for () {
        fn into_handler_result(self) -> super::HandlerResultBox {
            super::HandlerResultBox(HandlerResult::Outcome(Outcome::Ack))
        }
    }
    impl Sealed for Outcome {
        fn into_handler_result(self) -> super::HandlerResultBox {
            super::HandlerResultBox(HandlerResult::Outcome(self))
        }
    }
    impl<T: Sealed, E: Into<BoxError>> Sealed for Result<T, E> {
        fn into_handler_result(self) -> super::HandlerResultBox {
            match self {
                Ok(value) => value.into_handler_result(),
                Err(error) => super::HandlerResultBox(HandlerResult::Failed(format_error_chain(&error.into()))),
            }
        }
    }
}

/// Keeps [`Answer`] out of the public interface.
#[doc(hidden)]
pub struct HandlerResultBox(HandlerResult);

impl IntoOutcome for () {}
impl IntoOutcome for Outcome {}
impl<T: IntoOutcome, E: Into<BoxError>> IntoOutcome for Result<T, E> {}

/// An error and its causes in one line.
pub(crate) fn format_error_chain(error: &BoxError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let next_text = next.to_string();
        // Many errors repeat their cause in their own text.
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

/// Which function runs which kind.
#[derive(Clone, Default)]
pub(crate) struct Handlers {
    by_kind: HashMap<String, JobHandler>,
    /// Runs every kind that has no handler of its own.
    fallback: Option<JobHandler>,
    /// What stands around every handler, outermost first.
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
                    Err(why) => HandlerResult::Failed(format!(
                        "the args do not decode as {}: {why}; fix the pusher or the type, then reschedule the job",
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
        // What duly has made for itself is nobody's, however little a handler asks of a kind.
        let any = self.fallback.as_ref().filter(|_| !kind.starts_with(RESERVED_KIND_PREFIX));
        self.by_kind.get(kind).or(any)
    }

    /// The kinds that have a handler, sorted; `None` if any has.
    pub(crate) fn kinds(&self) -> Option<Arc<[String]>> {
        let mut kinds: Vec<String> = self.by_kind.keys().cloned().collect();
        kinds.sort();
        self.fallback.is_none().then(|| kinds.into())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_kind.is_empty() && self.fallback.is_none()
    }
}
