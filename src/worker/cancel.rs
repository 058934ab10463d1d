//! Whether an attempt should end, and why: said once, heard by everybody who waits for it.

use std::pin::pin;
use std::sync::atomic::{AtomicU8, Ordering};

use tokio::sync::Notify;

/// How far it goes: the one for good stands above the other, and none is taken back.
const ATTEMPT_CANCELLED: u8 = 1;
const JOB_CANCELLED: u8 = 2;

/// Tells an attempt that it should end.
#[derive(Default)]
pub(crate) struct Cancellation {
    level: AtomicU8,
    changed: Notify,
}

impl Cancellation {
    /// The attempt should end: another node has the job, or it was cancelled. Answers whether that is news.
    pub(crate) fn cancel_attempt(&self) -> bool {
        self.raise_level(ATTEMPT_CANCELLED) == 0
    }

    /// Nobody wants the job any more.
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

    /// What was said before.
    fn raise_level(&self, to: u8) -> u8 {
        let before = self.level.fetch_max(to, Ordering::SeqCst);
        self.changed.notify_waiters();
        before
    }

    async fn wait_for_level(&self, least: u8) {
        let mut news = pin!(self.changed.notified());
        loop {
            // First in line, then a look: what is said in between is not missed.
            news.as_mut().enable();
            if self.level.load(Ordering::SeqCst) >= least {
                return;
            }
            news.as_mut().await;
            news.set(self.changed.notified());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn cancellation_reaches_current_and_later_waiters() {
        let cancel = Arc::new(Cancellation::default());
        let waiting = [(); 3].map(|()| {
            let cancel = cancel.clone();
            tokio::spawn(async move { cancel.job_cancelled().await })
        });
        tokio::task::yield_now().await;
        assert!(cancel.cancel_attempt() && !cancel.cancel_attempt(), "news once");
        assert!(cancel.is_cancelled() && !cancel.is_job_cancelled());
        cancel.cancel_job();
        for waiter in waiting {
            waiter.await.expect("heard");
        }
        cancel.cancelled().await;
        cancel.job_cancelled().await;
    }
}
