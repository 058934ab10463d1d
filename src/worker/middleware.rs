//! Middleware: what a program wants done before, around and after every push and every attempt.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::error::Result;
use crate::job::Outcome;
use crate::job::push::{Push, PushResult};
use crate::worker::handler::{Ctx, HandlerResult, JobHandler};

/// How an attempt's handler ends: with an outcome of its own choice, or with an error.
pub type AttemptFuture<'a> = Pin<Box<dyn Future<Output = Result<Outcome, String>> + Send + 'a>>;

/// Something to be done before, around and after every push and every attempt.
///
/// Given to [`Builder::middleware`](crate::Builder::middleware) it sees pushes and attempts, given to
/// [`Worker::middleware`](crate::Worker::middleware) it sees the attempts of that worker.
/// The first that was given is the outermost, those of the builder around those of the worker.
/// A panic in it counts as one of the handler, and so does the time that it takes.
pub trait Middleware: Send + Sync + 'static {
    /// Before a job is pushed: changes it, or refuses it with an error, and with it everything that is pushed in the same step.
    fn before_push(&self, job: Push) -> Result<Push> {
        Ok(job)
    }

    /// After jobs were pushed, in the order in which they were given.
    fn after_push(&self, _jobs: &[PushResult]) {}

    /// Around an attempt: `next` runs the handler, and whatever stands between. It may be left out.
    fn around_attempt<'a>(&'a self, ctx: &'a Ctx, next: Next<'a>) -> AttemptFuture<'a> {
        next.run(ctx)
    }
}

/// All middleware of a door or a worker, outermost first.
pub(crate) type Layers = Vec<Arc<dyn Middleware>>;

/// The rest of an attempt.
pub struct Next<'a> {
    layers: &'a [Arc<dyn Middleware>],
    handler: &'a JobHandler,
}

impl<'a> Next<'a> {
    pub(crate) fn new(layers: &'a [Arc<dyn Middleware>], handler: &'a JobHandler) -> Self {
        Next { layers, handler }
    }

    /// Runs it.
    pub fn run(self, ctx: &'a Ctx) -> AttemptFuture<'a> {
        match self.layers.split_first() {
            Some((first, rest)) => first.around_attempt(ctx, Next { layers: rest, handler: self.handler }),
            None => {
                let ending = (self.handler)(ctx.clone());
                Box::pin(async move { ending.await.into_result() })
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
