//! Middleware: code that runs around every push and every attempt.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::error::Result;
use crate::job::Outcome;
use crate::job::push::{Push, PushResult};
use crate::worker::handler::{Ctx, HandlerResult, JobHandler};

/// The future of a handler: its outcome, or an error.
pub type AttemptFuture<'a> = Pin<Box<dyn Future<Output = Result<Outcome, String>> + Send + 'a>>;

/// Code that runs before and after every push, and around every attempt.
///
/// Middleware added with [`Builder::middleware`](crate::Builder::middleware) sees pushes and attempts; middleware added
/// with [`Worker::middleware`](crate::Worker::middleware) sees the attempts of that worker.
/// The first one added is the outermost, and that of the builder is outside that of the worker.
/// A panic in middleware counts as a panic of the handler, and its time counts towards the timeout.
pub trait Middleware: Send + Sync + 'static {
    /// Called before a job is pushed. Returns the job, possibly changed, or an error that rejects the whole push.
    fn before_push(&self, job: Push) -> Result<Push> {
        Ok(job)
    }

    /// Called after jobs were pushed, in the order in which they were given.
    fn after_push(&self, _jobs: &[PushResult]) {}

    /// Called around an attempt: `next` runs the inner middleware and the handler. It need not be called.
    fn around_attempt<'a>(&'a self, ctx: &'a Ctx, next: Next<'a>) -> AttemptFuture<'a> {
        next.run(ctx)
    }
}

/// All middleware of a client or a worker, outermost first.
pub(crate) type Layers = Vec<Arc<dyn Middleware>>;

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
    fn into_result(self) -> Result<Outcome, String> {
        match self {
            HandlerResult::Outcome(outcome) => Ok(outcome),
            HandlerResult::Failed(error) => Err(error),
        }
    }

    pub(crate) fn from_result(result: Result<Outcome, String>) -> Self {
        match result {
            Ok(outcome) => HandlerResult::Outcome(outcome),
            Err(error) => HandlerResult::Failed(error),
        }
    }
}
