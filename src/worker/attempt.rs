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
use crate::job::{Failure, Held, Outcome};
use crate::worker::handler::{Answer, Ctx, Handlers};
use crate::worker::middleware::Next;

/// A job that so many processes have died with may be the cause; after one death it may as well be bad luck.
pub(crate) const SUSPECT_CRASHES: u32 = 2;
/// How long such a job waits for its turn, while another one runs: as long as that has taken so far, within these bounds, so that
/// it is not claimed in vain again and again.
pub(crate) const QUARANTINE_MIN: Duration = Duration::from_millis(250);
pub(crate) const QUARANTINE_MAX: Duration = Duration::from_secs(10);
/// For how long a job is put off, at least and at most, of a kind that nobody here knows.
const UNKNOWN_MIN: Duration = Duration::from_secs(1);
pub(crate) const UNKNOWN_MAX: Duration = Duration::from_secs(60);
/// Why: others may know what to do with it.
pub(crate) const UNKNOWN_KIND: &str = "no handler here knows its kind";

/// How long a handler that was told to stop may take to do so: then it is dropped where it stands.
const CANCEL_GRACE: Duration = Duration::from_secs(5);
/// The error of a job that was cancelled.
pub(crate) const CANCELLED: &str = "cancelled";

/// One run of a job.
pub(crate) struct Attempt {
    pub(crate) ctx: Ctx,
    pub(crate) retry: Retry,
    pub(crate) max_crashes: u32,
    /// How long ago the job was pushed, when this attempt began.
    pub(crate) age: Duration,
}

/// How an attempt ended, and why where neither its handler nor the outcome says it.
pub(crate) type Ended = (Outcome, Option<&'static str>);

/// What the call of the handler came to, before it is judged.
enum Called {
    Answered(Answer),
    TimedOut,
    Panicked(String),
    UnknownKind,
    /// Somebody wants the job to end for good.
    Cancelled,
}

impl Called {
    fn of(ran: std::thread::Result<Answer>) -> Self {
        match ran {
            Ok(answer) => Called::Answered(answer),
            Err(panic) => Called::Panicked(told(&*panic)),
        }
    }
}

impl Attempt {
    /// Runs the handler, if the job has not used up its chances, and says how it ended.
    pub(crate) async fn run(self, handlers: Arc<Handlers>) -> Ended {
        let span = self.span();
        async {
            let (outcome, why) = match self.exhausted() {
                Some(outcome) => (outcome, None),
                None => self.judge(self.call(&handlers).await),
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

    fn held(&self) -> &Held {
        &self.ctx.own.held
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
        crate::otel::go_on(&span, held.job.traceparent.as_deref());
        span
    }

    pub(crate) fn exhausted(&self) -> Option<Outcome> {
        exhausted(self.held(), self.max_crashes)
    }

    async fn call(&self, handlers: &Handlers) -> Called {
        let Some(handler) = handlers.get(&self.held().job.kind) else {
            return Called::UnknownKind;
        };
        let began = clock::tick();
        // Also the call itself may panic, before it gives a future. Each step holds the one within by reference: a future
        // that is moved into another one leaves room for itself behind, and one is made for every attempt.
        let mut handled = pin!(async {
            // Where nothing stands around the handler, it is called as it is.
            match handlers.layers.is_empty() {
                true => handler(self.ctx.clone()).await,
                false => Answer::from_result(Next::new(&handlers.layers, handler).run(&self.ctx).await),
            }
        });
        let watched = async {
            match &self.ctx.shared.crash {
                Some(crash) => Box::pin(crash.through(handled.as_mut())).await,
                None => handled.as_mut().await,
            }
        };
        let mut run = pin!(AssertUnwindSafe(watched).catch_unwind());
        // Most handlers end at their first turn: nothing is set up to end them before one waits.
        let called = match futures_util::poll!(run.as_mut()) {
            Poll::Ready(ran) => Called::of(ran),
            Poll::Pending => Box::pin(self.bounded(began, run)).await,
        };
        if self.ctx.is_unwanted() { Called::Cancelled } else { called }
    }

    /// Lets a handler run on until its time is over, or somebody has cancelled it.
    async fn bounded(&self, began: Instant, run: impl Future<Output = std::thread::Result<Answer>>) -> Called {
        let left = self.held().job.timeout.saturating_sub(clock::tick() - began);
        // It has just had a turn, and will wake us for the next.
        let (mut run, mut turned) = (pin!(run), true);
        let run = poll_fn(|cx| if std::mem::take(&mut turned) { Poll::Pending } else { run.as_mut().poll(cx) });
        tokio::select! {
            biased;
            ran = tokio::time::timeout(left, run) => ran.map_or(Called::TimedOut, Called::of),
            () = self.cancelled() => Called::Cancelled,
        }
    }

    /// Resolves when a handler that was told to stop has had its time to do so.
    async fn cancelled(&self) {
        self.ctx.own.cancel.said_for_good().await;
        tokio::time::sleep(CANCEL_GRACE).await;
    }

    fn judge(&self, called: Called) -> Ended {
        let outcome = match called {
            Called::Answered(Answer::Outcome(Outcome::Retry { after, error })) => self.again(Some(after), error),
            Called::Answered(Answer::Outcome(outcome)) => outcome,
            Called::Answered(Answer::Failed(error)) => self.again(None, error),
            Called::Panicked(message) => self.again(None, format!("panicked: {message}")),
            Called::Cancelled => Outcome::bury(CANCELLED),
            Called::TimedOut => self.again(None, format!("timed out after {:?}", self.held().job.timeout)),
            Called::UnknownKind => return (unknown_kind(self.age), Some(UNKNOWN_KIND)),
        };
        (shortened(outcome), None)
    }

    fn again(&self, after: Option<Duration>, error: String) -> Outcome {
        again(self.held(), self.retry, after, error)
    }
}

/// With no more of its error than a store keeps: a worker remembers many of them.
fn shortened(outcome: Outcome) -> Outcome {
    let cut = |error: String| match Failure::cut(&error) {
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
pub(crate) fn exhausted(held: &Held, max_crashes: u32) -> Option<Outcome> {
    let crashes = held.crashes;
    (crashes > max_crashes).then(|| {
        Outcome::bury(format!(
            "its process died {crashes} times while it ran (at most {max_crashes} are allowed): not started again"
        ))
    })
}

/// Another version of the program may know it. It waits as long as it has waited so far, within bounds.
pub(crate) fn unknown_kind(age: Duration) -> Outcome {
    Outcome::release(age.clamp(UNKNOWN_MIN, UNKNOWN_MAX))
}

/// Another attempt later, unless this was the last one.
pub(crate) fn again(held: &Held, retry: Retry, after: Option<Duration>, error: String) -> Outcome {
    let failed = held.attempt();
    if failed >= held.job.max_attempts {
        return Outcome::Bury { error };
    }
    let after = after.unwrap_or_else(|| retry.delay(failed, fastrand::f64()));
    Outcome::Retry { after, error }
}

/// What a panic said.
pub(crate) fn told(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message").to_owned()
}
