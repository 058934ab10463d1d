//! Middleware: code that runs around every push and every attempt.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::error::{BoxError, Result};
use crate::job::Outcome;
use crate::job::push::{Push, PushResult};
use crate::metrics::PushMetrics;
use crate::worker::ctx::Ctx;
use crate::worker::handler::{HandlerResult, JobHandler};

/// The future of a handler: its outcome, or its error, as the handler returned it.
pub type AttemptFuture<'a> = Pin<Box<dyn Future<Output = Result<Outcome, BoxError>> + Send + 'a>>;

/// Code that runs before and after every push, and around every attempt.
///
/// Middleware added with [`Builder::middleware`](crate::Builder::middleware) sees pushes and attempts; middleware added
/// with [`Worker::middleware`](crate::Worker::middleware) sees the attempts of that worker.
/// The first one added is the outermost, and middleware of the builder is outside middleware of the worker.
/// A panic in middleware counts as a panic of the handler, and its time counts towards the timeout.
///
/// Pushes include those of cron rules and those inside a transaction, but not rows of the inbox, which any process may
/// take.
///
/// # Examples
///
/// ```
/// use duly::worker::{AttemptFuture, Next};
/// use duly::{Ctx, Duly, Middleware, Push};
///
/// struct Tenant(&'static str);
///
/// impl Middleware for Tenant {
///     fn before_push(&self, job: Push) -> duly::Result<Push> {
///         Ok(job.tag(self.0))
///     }
///
///     fn around_attempt<'a>(&'a self, ctx: &'a Ctx, next: Next<'a>) -> AttemptFuture<'a> {
///         Box::pin(async move {
///             println!("{} starts", ctx.job().kind);
///             let outcome = next.run(ctx).await;
///             println!("{} ended: {outcome:?}", ctx.job().kind);
///             outcome
///         })
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> duly::Result<()> {
/// let duly = Duly::builder(":memory:").middleware(Tenant("acme")).open().await?;
/// let id = duly.push(Push::new("mail", "{}")).await?.id();
/// let record = duly.jobs().get(id).await?.expect("is in the store");
/// assert_eq!(record.job.tags, ["acme"]);
/// # Ok(())
/// # }
/// ```
pub trait Middleware: Send + Sync + 'static {
    /// Called before a job is pushed. Returns the job, possibly changed, or an error that rejects the whole push.
    ///
    /// `job_kind`, `job_args` and the other methods with this prefix read the job.
    ///
    /// Workers push the jobs of cron rules. Several nodes may try to push a tick; the first one succeeds. Its job keeps
    /// the id, the queue and the unique key of the rule. An error skips the tick.
    ///
    /// # Errors
    ///
    /// An error rejects the push, which returns it to its caller. Use
    /// [`Error::Conflict`](crate::Error::Conflict) or [`Error::Invalid`](crate::Error::Invalid).
    ///
    /// # Examples
    ///
    /// ```
    /// use duly::{Error, Middleware, Push};
    ///
    /// struct OnlyKnownKinds;
    ///
    /// impl Middleware for OnlyKnownKinds {
    ///     fn before_push(&self, job: Push) -> duly::Result<Push> {
    ///         if ["mail", "report"].contains(&job.job_kind()) {
    ///             return Ok(job);
    ///         }
    ///         Err(Error::invalid("kind", "this program pushes only mail and report"))
    ///     }
    /// }
    /// ```
    fn before_push(&self, job: Push) -> Result<Push> {
        Ok(job)
    }

    /// Called after jobs were pushed, with their results in the order of the jobs. For
    /// [`Duly::push_in`](crate::Duly::push_in), [`AfterCommit::wake`](crate::AfterCommit::wake) calls it.
    ///
    /// # Examples
    ///
    /// ```
    /// use duly::{Middleware, PushResult};
    ///
    /// struct PrintIds;
    ///
    /// impl Middleware for PrintIds {
    ///     fn after_push(&self, jobs: &[PushResult]) {
    ///         jobs.iter().for_each(|pushed| println!("pushed {}", pushed.id()));
    ///     }
    /// }
    /// ```
    fn after_push(&self, _jobs: &[PushResult]) {}

    /// Called for each attempt. Call `next` to run the inner middleware and the handler, or skip them by not calling it.
    ///
    /// [`Ctx::with_args`] passes other args to them.
    ///
    /// # Examples
    ///
    /// ```
    /// use duly::worker::{AttemptFuture, Next};
    /// use duly::{Ctx, Middleware, Outcome};
    ///
    /// /// Runs no job while the service is under maintenance.
    /// struct Maintenance(std::sync::atomic::AtomicBool);
    ///
    /// impl Middleware for Maintenance {
    ///     fn around_attempt<'a>(&'a self, ctx: &'a Ctx, next: Next<'a>) -> AttemptFuture<'a> {
    ///         if self.0.load(std::sync::atomic::Ordering::Relaxed) {
    ///             return Box::pin(async { Ok(Outcome::release(std::time::Duration::from_secs(60))) });
    ///         }
    ///         next.run(ctx)
    ///     }
    /// }
    /// ```
    fn around_attempt<'a>(&'a self, ctx: &'a Ctx, next: Next<'a>) -> AttemptFuture<'a> {
        next.run(ctx)
    }
}

/// All middleware of a client or a worker, outermost first.
pub(crate) type Layers = Vec<Arc<dyn Middleware>>;

/// Runs the middleware of a client before a push.
pub(crate) fn before_push(layers: &Layers, mut job: Push) -> Result<Push> {
    for layer in layers {
        job = layer.before_push(job)?;
    }
    Ok(job)
}

/// Jobs on their way into the store: counts them and runs the middleware once they are pushed.
pub(crate) struct AfterPush {
    metrics: PushMetrics,
    layers: Arc<Layers>,
}

impl AfterPush {
    pub(crate) fn new(layers: &Arc<Layers>, jobs: &[Push]) -> Self {
        AfterPush { metrics: PushMetrics::for_jobs(jobs), layers: layers.clone() }
    }

    pub(crate) fn run(self, results: &[PushResult]) {
        if results.is_empty() {
            return;
        }
        self.metrics.record(results);
        self.layers.iter().for_each(|layer| layer.after_push(results));
    }
}

/// The inner middleware and the handler of an attempt.
pub struct Next<'a> {
    layers: &'a [Arc<dyn Middleware>],
    handler: &'a JobHandler,
}

impl std::fmt::Debug for Next<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Next").field("layers", &self.layers.len()).finish_non_exhaustive()
    }
}

impl<'a> Next<'a> {
    pub(crate) fn new(layers: &'a [Arc<dyn Middleware>], handler: &'a JobHandler) -> Self {
        Next { layers, handler }
    }

    /// Runs the inner middleware and the handler.
    ///
    /// See [`Middleware`] for an example.
    pub fn run(self, ctx: &'a Ctx) -> AttemptFuture<'a> {
        match self.layers.split_first() {
            Some((first, rest)) => first.around_attempt(ctx, Next { layers: rest, handler: self.handler }),
            None => {
                let handler_run = (self.handler)(ctx.clone());
                Box::pin(async move { handler_run.await.into_result() })
            }
        }
    }
}

impl HandlerResult {
    fn into_result(self) -> Result<Outcome, BoxError> {
        match self {
            HandlerResult::Outcome(outcome) => Ok(outcome),
            HandlerResult::Failed(error) => Err(error),
        }
    }

    pub(crate) fn from_result(result: Result<Outcome, BoxError>) -> Self {
        match result {
            Ok(outcome) => HandlerResult::Outcome(outcome),
            Err(error) => HandlerResult::Failed(error),
        }
    }
}
