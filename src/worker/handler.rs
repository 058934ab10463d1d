//! Handlers: typed for the user, type-erased inside. The only place with generics.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::error::{BoxError, Error, Result};
use crate::job::Outcome;
use crate::job::args::Args;
use crate::job::push::RESERVED_KIND_PREFIX;
use crate::worker::ctx::Ctx;
use crate::worker::into_outcome::IntoOutcome;
use crate::worker::middleware::Layers;

/// How a handler ended: with an outcome, or with an error.
#[derive(Debug)]
pub(crate) enum HandlerResult {
    Outcome(Outcome),
    Failed(BoxError),
}

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
    /// Describes the first handler that was added twice.
    duplicate: Option<String>,
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
            let args = serde_json::from_str::<A>(&ctx.job().args);
            let handler = handler.clone();
            Box::pin(async move {
                match args {
                    Ok(args) => {
                        let result_ctx = R::HAS_RESULT.then(|| ctx.clone());
                        handler(args, ctx).await.into_handler_result(result_ctx.as_ref()).0
                    }
                    Err(error) => {
                        let kind = std::any::type_name::<A>();
                        let advice = "fix the pusher or the type, then reschedule the job";
                        HandlerResult::Failed(format!("the args do not decode as {kind}: {error}; {advice}").into())
                    }
                }
            })
        };
        self.insert(Some(A::KIND.to_owned()), Arc::new(erased));
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
            Box::pin(async move {
                let result_ctx = R::HAS_RESULT.then(|| ctx.clone());
                handler(ctx).await.into_handler_result(result_ctx.as_ref()).0
            })
        };
        self.insert(kind, Arc::new(erased));
    }

    fn insert(&mut self, kind: Option<String>, handler: JobHandler) {
        let duplicate = match kind {
            Some(kind) => self.by_kind.insert(kind.clone(), handler).map(|_| format!("the kind {kind}")),
            None => self.fallback.replace(handler).map(|_| "all other kinds".to_owned()),
        };
        self.duplicate = self.duplicate.take().or(duplicate);
    }

    /// Returns an error if one of two handlers would never run.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_empty() {
            return Err(Error::invalid("worker", "has no handler; add one with `on`"));
        }
        match &self.duplicate {
            Some(duplicate) => {
                Err(Error::invalid("worker", format!("has two handlers for {duplicate}; remove one of them")))
            }
            None => Ok(()),
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

    fn is_empty(&self) -> bool {
        self.by_kind.is_empty() && self.fallback.is_none()
    }
}
