//! One attempt: a pipeline of named stages that decides the outcome. It never accesses the store.

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
use crate::worker::attempt_poll::PollState;
use crate::worker::cancel::end_cancelled;
use crate::worker::ctx::Ctx;
use crate::worker::end_reason::EndReason;
use crate::worker::handler::{HandlerResult, Handlers, format_error_chain};
use crate::worker::middleware::Next;

/// Bounds of the delay of a job without a handler on this node.
const UNKNOWN_KIND_DELAY_MIN: Duration = Duration::from_secs(1);
pub(crate) const UNKNOWN_KIND_DELAY_MAX: Duration = Duration::from_secs(60);

/// How long a cancelled handler may take to return before it is dropped.
const CANCEL_GRACE: Duration = Duration::from_secs(5);

/// One run of a job.
pub(crate) struct Attempt {
    pub(crate) ctx: Ctx,
    pub(crate) retry: Retry,
    pub(crate) max_crashes: u32,
    /// The age of the job when this attempt began.
    pub(crate) job_age: Duration,
}

/// The return value of an attempt. The worker turns it into the [`AttemptEnd`](crate::store::AttemptEnd) that the store
/// records, and keeps that in an [`UnsettledEnd`](crate::worker::outcomes::UnsettledEnd) until then.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct AttemptResult {
    pub(crate) outcome: Outcome,
    /// Why the job was released, if its handler did not decide that.
    pub(crate) reason: Option<EndReason>,
}

impl From<Outcome> for AttemptResult {
    fn from(outcome: Outcome) -> Self {
        AttemptResult { outcome, reason: None }
    }
}

impl AttemptResult {
    /// Returns the result of an attempt that was cut short or never started.
    pub(crate) fn released(after: Duration, reason: EndReason) -> Self {
        AttemptResult { outcome: Outcome::release(after), reason: Some(reason) }
    }

    /// Returns the result of an attempt at a job that was cancelled.
    pub(crate) fn cancelled(outcome: Outcome) -> Self {
        AttemptResult { outcome, reason: Some(EndReason::Cancelled) }
    }

    /// Returns whether the node has no handler for the kind of the job.
    pub(crate) fn is_unknown_kind(&self) -> bool {
        self.reason == Some(EndReason::UnknownKind)
    }
}

/// How a handler call ended.
enum HandlerExit {
    Returned(HandlerResult),
    TimedOut,
    Panicked(String),
    NoHandler,
    /// The job was cancelled, and the handler has used up its grace.
    Cancelled,
}

impl HandlerExit {
    fn from_unwind_result(result: std::thread::Result<HandlerResult>) -> Self {
        match result {
            Ok(result) => HandlerExit::Returned(result),
            Err(panic) => HandlerExit::Panicked(panic_message(&*panic)),
        }
    }
}

impl Attempt {
    /// Runs the handler, unless the job has crashed too often, and returns the outcome.
    pub(crate) async fn run(self, handlers: Arc<Handlers>) -> AttemptResult {
        let span = self.span();
        async {
            let result = match self.check_crash_limit() {
                Some(outcome) => outcome.into(),
                None => self.decide_outcome(self.call_handler(&handlers).await),
            };
            match &result.outcome {
                Outcome::Ack => tracing::debug!("done"),
                outcome if result.reason == Some(EndReason::Cancelled) => tracing::info!(?outcome, "cancelled"),
                Outcome::Release { after } => {
                    tracing::debug!(?after, reason = result.reason.map(EndReason::as_str), "released");
                }
                Outcome::Retry { after, error } => {
                    record_failure(error);
                    tracing::warn!(?after, error, "failed, will be retried");
                }
                Outcome::Bury { error } => {
                    record_failure(error);
                    tracing::error!(error, "buried");
                }
            }
            result
        }
        .instrument(span)
        .await
    }

    fn held(&self) -> &HeldJob {
        &self.ctx.attempt_state.held
    }

    #[cfg(not(feature = "otel"))]
    fn span(&self) -> tracing::Span {
        let held = self.held();
        tracing::info_span!(
            "duly.job",
            id = %held.job.id,
            kind = held.job.kind,
            queue = held.job.queue,
            attempt = held.attempt(),
            fence = held.fence.0,
            traceparent = held.job.traceparent,
        )
    }

    #[cfg(feature = "otel")]
    fn span(&self) -> tracing::Span {
        crate::otel::attempt_span(self.held())
    }

    pub(crate) fn check_crash_limit(&self) -> Option<Outcome> {
        check_crash_limit(self.held(), self.max_crashes)
    }

    async fn call_handler(&self, handlers: &Handlers) -> HandlerExit {
        let Some(handler) = handlers.get(&self.held().job.kind) else {
            return HandlerExit::NoHandler;
        };
        let started = clock::monotonic_now();
        // The call may panic before it returns a future. Every stage holds the inner future by reference: moving it
        // would reserve its space twice, and every attempt allocates one.
        let mut handler_run = pin!(async {
            // Without middleware, the handler is called directly.
            match handlers.layers.is_empty() {
                true => handler(self.ctx.clone()).await,
                false => HandlerResult::from_result(Next::new(&handlers.layers, handler).run(&self.ctx).await),
            }
        });
        let watched = async {
            match &self.ctx.worker.crash {
                Some(crash) => Box::pin(crash.run_handler(handler_run.as_mut())).await,
                None => handler_run.as_mut().await,
            }
        };
        let mut run = pin!(AssertUnwindSafe(watched).catch_unwind());
        // Most handlers return at their first poll: timeout and cancellation are only set up for one that does not.
        self.ctx.attempt_state.poll.set(PollState::Polling);
        let first_poll = futures_util::poll!(run.as_mut());
        self.ctx.attempt_state.poll.set(PollState::Pending);
        let exit = match first_poll {
            Poll::Ready(result) => HandlerExit::from_unwind_result(result),
            Poll::Pending => Box::pin(self.run_until_deadline(started, run)).await,
        };
        match exit {
            HandlerExit::Returned(HandlerResult::Outcome(Outcome::Ack)) => exit,
            _ if self.ctx.attempt_state.ack_in.was_called() && Box::pin(self.ctx.has_committed_ack()).await => {
                HandlerExit::Returned(HandlerResult::Outcome(Outcome::Ack))
            }
            _ => exit,
        }
    }

    /// Runs a handler until it returns, times out or has used up its grace after a cancellation.
    async fn run_until_deadline(
        &self,
        started: Instant,
        run: impl Future<Output = std::thread::Result<HandlerResult>>,
    ) -> HandlerExit {
        let remaining = self.held().job.timeout.saturating_sub(clock::monotonic_now() - started);
        // It has just been polled and will wake this task for the next poll.
        let (mut run, mut just_polled) = (pin!(run), true);
        let run = poll_fn(|cx| {
            if std::mem::take(&mut just_polled) {
                return Poll::Pending;
            }
            self.ctx.attempt_state.poll.set(PollState::Polling);
            let polled = run.as_mut().poll(cx);
            self.ctx.attempt_state.poll.set(PollState::Pending);
            polled
        });
        tokio::select! {
            biased;
            result = tokio::time::timeout(remaining, run) => {
                result.map_or(HandlerExit::TimedOut, HandlerExit::from_unwind_result)
            }
            () = self.wait_for_cancel_grace() => HandlerExit::Cancelled,
        }
    }

    /// Waits until a cancelled handler has used up its grace.
    async fn wait_for_cancel_grace(&self) {
        self.ctx.attempt_state.cancellation.job_cancelled().await;
        tokio::time::sleep(CANCEL_GRACE).await;
    }

    fn decide_outcome(&self, exit: HandlerExit) -> AttemptResult {
        let outcome = match exit {
            HandlerExit::Returned(HandlerResult::Outcome(Outcome::Retry { after, error })) => {
                self.retry_or_bury(Some(after), error)
            }
            HandlerExit::Returned(HandlerResult::Outcome(outcome)) => outcome,
            HandlerExit::Returned(HandlerResult::Failed(error)) => self.retry_or_bury(None, format_error_chain(&error)),
            HandlerExit::Panicked(message) => self.retry_or_bury(None, format!("panicked: {message}")),
            HandlerExit::Cancelled => {
                return AttemptResult::cancelled(self.ctx.worker.cancelled_outcome.clone());
            }
            HandlerExit::TimedOut => self.retry_or_bury(None, format!("timed out after {:?}", self.held().job.timeout)),
            HandlerExit::NoHandler => {
                return AttemptResult {
                    outcome: defer_unknown_kind(self.job_age),
                    reason: Some(EndReason::UnknownKind),
                };
            }
        };
        let outcome = truncate_error(outcome);
        match outcome != Outcome::Ack && self.ctx.is_job_cancelled() {
            true => AttemptResult::cancelled(end_cancelled(&self.ctx.worker.cancelled_outcome, outcome)),
            false => outcome.into(),
        }
    }

    fn retry_or_bury(&self, after: Option<Duration>, error: String) -> Outcome {
        retry_or_bury(self.held(), self.retry, after, error)
    }
}

/// Marks the span of the attempt as failed, if it has the fields of OpenTelemetry.
fn record_failure(error: &str) {
    tracing::Span::current().record("otel.status_code", "ERROR").record("otel.status_description", error);
}

/// Truncates the error of an outcome to the length that a store keeps, since the worker remembers many outcomes.
fn truncate_error(outcome: Outcome) -> Outcome {
    let truncate = |error: String| match Failure::truncate_error(&error) {
        short if short.len() < error.len() => short.to_owned(),
        _ => error,
    };
    match outcome {
        Outcome::Retry { after, error } => Outcome::Retry { after, error: truncate(error) },
        Outcome::Bury { error } => Outcome::Bury { error: truncate(error) },
        other => other,
    }
}

/// Buries a job that has crashed its process too often.
pub(crate) fn check_crash_limit(held: &HeldJob, max_crashes: u32) -> Option<Outcome> {
    let crashes = held.crashes;
    (crashes > max_crashes).then(|| {
        Outcome::bury(format!(
            "its process died {crashes} times while it ran (at most {max_crashes} crashes are allowed)"
        ))
    })
}

/// Releases a job without a handler: another version of the program may have one. The delay equals the job's age,
/// within bounds.
pub(crate) fn defer_unknown_kind(age: Duration) -> Outcome {
    Outcome::release(age.clamp(UNKNOWN_KIND_DELAY_MIN, UNKNOWN_KIND_DELAY_MAX))
}

/// Retries the job, or buries it after its last attempt.
pub(crate) fn retry_or_bury(held: &HeldJob, retry: Retry, after: Option<Duration>, error: String) -> Outcome {
    let failed = held.attempt();
    if failed >= held.job.max_attempts {
        return Outcome::Bury { error };
    }
    let after = after.unwrap_or_else(|| retry.delay(failed, fastrand::f64()));
    Outcome::Retry { after, error }
}

/// Returns the message of a panic.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message").to_owned()
}
