//! One attempt: a pipeline of named steps that decides the outcome. Never touches the store.

use std::any::Any;
use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::Instant;
use tracing::Instrument;

use crate::clock;
use crate::job::retry::Retry;
use crate::job::{Failure, HeldJob, Outcome};
use crate::worker::handler::{Ctx, HandlerResult, Handlers};
use crate::worker::middleware::Next;

/// A job that so many processes have died with may be the cause; after one death it may as well be bad luck.
pub(crate) const CRASH_SUSPECT_MIN: u32 = 2;
/// How long such a job waits for its turn, while another one runs: as long as that has taken so far, within these bounds, so that
/// it is not claimed in vain again and again.
pub(crate) const QUARANTINE_DELAY_MIN: Duration = Duration::from_millis(250);
pub(crate) const QUARANTINE_DELAY_MAX: Duration = Duration::from_secs(10);
/// For how long a job is put off, at least and at most, of a kind that nobody here knows.
const UNKNOWN_KIND_DELAY_MIN: Duration = Duration::from_secs(1);
pub(crate) const UNKNOWN_KIND_DELAY_MAX: Duration = Duration::from_secs(60);
/// Why: others may know what to do with it.
pub(crate) const UNKNOWN_KIND_REASON: &str = "no handler here knows its kind";

/// How long a handler that was told to stop may take to do so: then it is dropped where it stands.
const CANCEL_GRACE: Duration = Duration::from_secs(5);
/// The error of a job that was cancelled.
pub(crate) const CANCELLED_ERROR: &str = "cancelled";

/// One run of a job.
pub(crate) struct Attempt {
    pub(crate) ctx: Ctx,
    pub(crate) retry: Retry,
    pub(crate) max_crashes: u32,
    /// How long ago the job was pushed, when this attempt began.
    pub(crate) job_age: Duration,
}

/// How an attempt ended, and why where neither its handler nor the outcome says it.
pub(crate) type AttemptResult = (Outcome, Option<&'static str>);

/// What the call of the handler came to, before it is judged.
enum HandlerExit {
    Returned(HandlerResult),
    TimedOut,
    Panicked(String),
    NoHandler,
    /// Somebody wants the job to end for good.
    Cancelled,
}

impl HandlerExit {
    fn from_unwind_result(ran: std::thread::Result<HandlerResult>) -> Self {
        match ran {
            Ok(answer) => HandlerExit::Returned(answer),
            Err(panic) => HandlerExit::Panicked(panic_message(&*panic)),
        }
    }
}

impl Attempt {
    /// Runs the handler, if the job has not used up its chances, and says how it ended.
    pub(crate) async fn run(self, handlers: Arc<Handlers>) -> AttemptResult {
        let span = self.span();
        async {
            let (outcome, why) = match self.check_crash_limit() {
                Some(outcome) => (outcome, None),
                None => self.decide_outcome(self.call_handler(&handlers).await),
            };
            match &outcome {
                Outcome::Ack => tracing::debug!("done"),
                Outcome::Release { after } => tracing::debug!(?after, why, "released"),
                Outcome::Retry { after, error } => tracing::warn!(?after, error, "failed, will be retried"),
                Outcome::Bury { error } => tracing::error!(error, "buried"),
            }
            (outcome, why)
        }
        .instrument(span)
        .await
    }

    fn held(&self) -> &HeldJob {
        &self.ctx.attempt_state.held
    }

    fn span(&self) -> tracing::Span {
        let held = self.held();
        let span = tracing::info_span!(
            "duly.job",
            id = %held.job.id,
            kind = held.job.kind,
            queue = held.job.queue,
            attempt = held.attempt(),
            fence = held.fence.0,
            traceparent = held.job.traceparent,
        );
        #[cfg(feature = "otel")]
        crate::otel::set_remote_parent(&span, held.job.traceparent.as_deref());
        span
    }

    pub(crate) fn check_crash_limit(&self) -> Option<Outcome> {
        check_crash_limit(self.held(), self.max_crashes)
    }

    async fn call_handler(&self, handlers: &Handlers) -> HandlerExit {
        let Some(handler) = handlers.get(&self.held().job.kind) else {
            return HandlerExit::NoHandler;
        };
        let began = clock::monotonic_now();
        // Also the call itself may panic, before it gives a future. Each step holds the one within by reference: a future
        // that is moved into another one leaves room for itself behind, and one is made for every attempt.
        let mut handled = pin!(async {
            // Where nothing stands around the handler, it is called as it is.
            match handlers.layers.is_empty() {
                true => handler(self.ctx.clone()).await,
                false => HandlerResult::from_result(Next::new(&handlers.layers, handler).run(&self.ctx).await),
            }
        });
        let watched = async {
            match &self.ctx.worker.crash {
                Some(crash) => Box::pin(crash.run_handler(handled.as_mut())).await,
                None => handled.as_mut().await,
            }
        };
        let mut run = pin!(AssertUnwindSafe(watched).catch_unwind());
        // Most handlers end at their first turn: nothing is set up to end them before one waits.
        let called = match futures_util::poll!(run.as_mut()) {
            Poll::Ready(ran) => HandlerExit::from_unwind_result(ran),
            Poll::Pending => Box::pin(self.run_until_deadline(began, run)).await,
        };
        if self.ctx.is_job_cancelled() { HandlerExit::Cancelled } else { called }
    }

    /// Lets a handler run on until its time is over, or somebody has cancelled it.
    async fn run_until_deadline(
        &self,
        began: Instant,
        run: impl Future<Output = std::thread::Result<HandlerResult>>,
    ) -> HandlerExit {
        let left = self.held().job.timeout.saturating_sub(clock::monotonic_now() - began);
        // It has just had a turn, and will wake us for the next.
        let (mut run, mut turned) = (pin!(run), true);
        let run = poll_fn(|cx| if std::mem::take(&mut turned) { Poll::Pending } else { run.as_mut().poll(cx) });
        tokio::select! {
            biased;
            ran = tokio::time::timeout(left, run) => ran.map_or(HandlerExit::TimedOut, HandlerExit::from_unwind_result),
            () = self.wait_for_cancel_grace() => HandlerExit::Cancelled,
        }
    }

    /// Resolves when a handler that was told to stop has had its time to do so.
    async fn wait_for_cancel_grace(&self) {
        self.ctx.attempt_state.cancellation.job_cancelled().await;
        tokio::time::sleep(CANCEL_GRACE).await;
    }

    fn decide_outcome(&self, called: HandlerExit) -> AttemptResult {
        let outcome = match called {
            HandlerExit::Returned(HandlerResult::Outcome(Outcome::Retry { after, error })) => {
                self.retry_or_bury(Some(after), error)
            }
            HandlerExit::Returned(HandlerResult::Outcome(outcome)) => outcome,
            HandlerExit::Returned(HandlerResult::Failed(error)) => self.retry_or_bury(None, error),
            HandlerExit::Panicked(message) => self.retry_or_bury(None, format!("panicked: {message}")),
            HandlerExit::Cancelled => Outcome::bury(CANCELLED_ERROR),
            HandlerExit::TimedOut => self.retry_or_bury(None, format!("timed out after {:?}", self.held().job.timeout)),
            HandlerExit::NoHandler => return (defer_unknown_kind(self.job_age), Some(UNKNOWN_KIND_REASON)),
        };
        (truncate_error(outcome), None)
    }

    fn retry_or_bury(&self, after: Option<Duration>, error: String) -> Outcome {
        retry_or_bury(self.held(), self.retry, after, error)
    }
}

/// With no more of its error than a store keeps: a worker remembers many of them.
fn truncate_error(outcome: Outcome) -> Outcome {
    let cut = |error: String| match Failure::truncate_error(&error) {
        short if short.len() < error.len() => short.to_owned(),
        _ => error,
    };
    match outcome {
        Outcome::Retry { after, error } => Outcome::Retry { after, error: cut(error) },
        Outcome::Bury { error } => Outcome::Bury { error: cut(error) },
        other => other,
    }
}

/// A job that keeps taking its process down is not given another one.
pub(crate) fn check_crash_limit(held: &HeldJob, max_crashes: u32) -> Option<Outcome> {
    let crashes = held.crashes;
    (crashes > max_crashes).then(|| {
        Outcome::bury(format!(
            "its process died {crashes} times while it ran (at most {max_crashes} are allowed): not started again"
        ))
    })
}

/// Another version of the program may know it. It waits as long as it has waited so far, within bounds.
pub(crate) fn defer_unknown_kind(age: Duration) -> Outcome {
    Outcome::release(age.clamp(UNKNOWN_KIND_DELAY_MIN, UNKNOWN_KIND_DELAY_MAX))
}

/// Another attempt later, unless this was the last one.
pub(crate) fn retry_or_bury(held: &HeldJob, retry: Retry, after: Option<Duration>, error: String) -> Outcome {
    let failed = held.attempt();
    if failed >= held.job.max_attempts {
        return Outcome::Bury { error };
    }
    let after = after.unwrap_or_else(|| retry.delay(failed, fastrand::f64()));
    Outcome::Retry { after, error }
}

/// What a panic said.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message").to_owned()
}
