//! Cancellation of an attempt: set once, and seen by current and later waiters.

use std::pin::pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::job::Outcome;
use crate::store::Store;
use crate::worker::end_reason::EndReason;

/// Levels of cancellation. The level only rises: a cancelled job includes a cancelled attempt.
const ATTEMPT_CANCELLED: u8 = 1;
const JOB_CANCELLED: u8 = 2;

/// Returns whether a store can mark jobs as cancelled, and has the state cancelled.
pub(crate) fn has_cancelled_jobs(store: &dyn Store) -> bool {
    store.capabilities().admin.is_some()
}

/// Returns the outcome of an attempt that did not succeed and gave no error, at a job that was cancelled.
///
/// A store with cancelled jobs has marked the job, and any outcome but an ack ends it. A release is not counted as a
/// failure. Other stores bury the job.
pub(crate) fn cancelled_outcome(store: &dyn Store) -> Outcome {
    match has_cancelled_jobs(store) {
        true => Outcome::release(Duration::ZERO),
        false => Outcome::bury(EndReason::Cancelled.as_str()),
    }
}

/// Returns how an attempt ends at a job that was cancelled; `own` is its own outcome, and `cancelled` that of an attempt
/// without an error. An error of the handler is kept: the store records it as a failure of the job.
pub(crate) fn end_cancelled(cancelled: &Outcome, own: Outcome) -> Outcome {
    match (own, cancelled) {
        (Outcome::Ack, _) => Outcome::Ack,
        (own @ (Outcome::Retry { .. } | Outcome::Bury { .. }), Outcome::Release { .. }) => own,
        (Outcome::Retry { error, .. } | Outcome::Bury { error }, _) => {
            Outcome::bury(format!("{}: {error}", EndReason::Cancelled.as_str()))
        }
        (Outcome::Release { .. }, cancelled) => cancelled.clone(),
    }
}

/// Signals an attempt that it should end.
#[derive(Default)]
pub(crate) struct Cancellation {
    level: AtomicU8,
    changed: Notify,
}

impl Cancellation {
    /// Cancels the attempt: another node has the job, or it was cancelled. Returns `false` if it was cancelled before.
    pub(crate) fn cancel_attempt(&self) -> bool {
        self.raise_level(ATTEMPT_CANCELLED) == 0
    }

    /// Cancels the job: unless the attempt succeeds, it is not retried.
    pub(crate) fn cancel_job(&self) {
        self.raise_level(JOB_CANCELLED);
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.level.load(Ordering::SeqCst) >= ATTEMPT_CANCELLED
    }

    pub(crate) fn is_job_cancelled(&self) -> bool {
        self.level.load(Ordering::SeqCst) >= JOB_CANCELLED
    }

    pub(crate) async fn cancelled(&self) {
        self.wait_for_level(ATTEMPT_CANCELLED).await;
    }

    pub(crate) async fn job_cancelled(&self) {
        self.wait_for_level(JOB_CANCELLED).await;
    }

    /// Raises the level and returns the previous one.
    fn raise_level(&self, to: u8) -> u8 {
        let before = self.level.fetch_max(to, Ordering::SeqCst);
        self.changed.notify_waiters();
        before
    }

    async fn wait_for_level(&self, level: u8) {
        let mut changed = pin!(self.changed.notified());
        loop {
            // Registers before it checks, so that no change is missed.
            changed.as_mut().enable();
            if self.level.load(Ordering::SeqCst) >= level {
                return;
            }
            changed.as_mut().await;
            changed.set(self.changed.notified());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn error_of_cancelled_handler_is_kept() {
        let (marked, foreign) = (Outcome::release(Duration::ZERO), Outcome::bury(EndReason::Cancelled.as_str()));
        let retried = Outcome::retry(Duration::ZERO, "row 9");
        assert_eq!(end_cancelled(&marked, Outcome::Ack), Outcome::Ack);
        assert_eq!(end_cancelled(&marked, retried.clone()), retried);
        assert_eq!(end_cancelled(&marked, Outcome::release(Duration::from_secs(9))), marked);
        assert_eq!(end_cancelled(&foreign, retried), Outcome::bury("cancelled: row 9"));
        assert_eq!(end_cancelled(&foreign, Outcome::release(Duration::ZERO)), foreign);
    }

    #[tokio::test]
    async fn cancellation_reaches_current_and_later_waiters() {
        let cancel = Arc::new(Cancellation::default());
        let waiting = [(); 3].map(|()| {
            let cancel = cancel.clone();
            tokio::spawn(async move { cancel.job_cancelled().await })
        });
        tokio::task::yield_now().await;
        assert!(cancel.cancel_attempt() && !cancel.cancel_attempt(), "reported once");
        assert!(cancel.is_cancelled() && !cancel.is_job_cancelled());
        cancel.cancel_job();
        for waiter in waiting {
            waiter.await.expect("is woken");
        }
        cancel.cancelled().await;
        cancel.job_cancelled().await;
    }
}
