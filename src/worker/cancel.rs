//! Whether an attempt should end, and why: said once, heard by everybody who waits for it.

use std::pin::pin;
use std::sync::atomic::{AtomicU8, Ordering};

use tokio::sync::Notify;

/// How far it goes: the one for good stands above the other, and none is taken back.
const NOW: u8 = 1;
const FOR_GOOD: u8 = 2;

/// Tells an attempt that it should end.
#[derive(Default)]
pub(crate) struct Cancel {
    said: AtomicU8,
    news: Notify,
}

impl Cancel {
    /// The attempt should end: another node has the job, or it was cancelled. Answers whether that is news.
    pub(crate) fn say(&self) -> bool {
        self.raise(NOW) == 0
    }

    /// Nobody wants the job any more.
    pub(crate) fn say_for_good(&self) {
        self.raise(FOR_GOOD);
    }

    pub(crate) fn is_said(&self) -> bool {
        self.said.load(Ordering::SeqCst) >= NOW
    }

    pub(crate) fn is_for_good(&self) -> bool {
        self.said.load(Ordering::SeqCst) >= FOR_GOOD
    }

    pub(crate) async fn said(&self) {
        self.heard(NOW).await;
    }

    pub(crate) async fn said_for_good(&self) {
        self.heard(FOR_GOOD).await;
    }

    /// What was said before.
    fn raise(&self, to: u8) -> u8 {
        let before = self.said.fetch_max(to, Ordering::SeqCst);
        self.news.notify_waiters();
        before
    }

    async fn heard(&self, least: u8) {
        let mut news = pin!(self.news.notified());
        loop {
            // First in line, then a look: what is said in between is not missed.
            news.as_mut().enable();
            if self.said.load(Ordering::SeqCst) >= least {
                return;
            }
            news.as_mut().await;
            news.set(self.news.notified());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn is_heard_by_all_who_wait_and_by_those_who_come_later() {
        let cancel = Arc::new(Cancel::default());
        let waiting = [(); 3].map(|()| {
            let cancel = cancel.clone();
            tokio::spawn(async move { cancel.said_for_good().await })
        });
        tokio::task::yield_now().await;
        assert!(cancel.say() && !cancel.say(), "news once");
        assert!(cancel.is_said() && !cancel.is_for_good());
        cancel.say_for_good();
        for waiter in waiting {
            waiter.await.expect("heard");
        }
        cancel.said().await;
        cancel.said_for_good().await;
    }
}
