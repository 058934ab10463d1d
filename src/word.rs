//! Whether an attempt should end, and why: said once, heard by everybody who waits for it.

use std::pin::pin;
use std::sync::atomic::{AtomicU8, Ordering};

use tokio::sync::Notify;

/// How bad it is: a worse word stands above a milder one, and none is taken back.
const CANCELLED: u8 = 1;
const UNWANTED: u8 = 2;

/// The word to an attempt that it should end.
#[derive(Default)]
pub(crate) struct Word {
    said: AtomicU8,
    news: Notify,
}

impl Word {
    /// The attempt should end: another node has the job, or it was cancelled. Answers whether that is news.
    pub(crate) fn cancel(&self) -> bool {
        self.say(CANCELLED) == 0
    }

    /// Nobody wants the job any more.
    pub(crate) fn cancel_for_good(&self) {
        self.say(UNWANTED);
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.said.load(Ordering::SeqCst) >= CANCELLED
    }

    pub(crate) fn is_unwanted(&self) -> bool {
        self.said.load(Ordering::SeqCst) >= UNWANTED
    }

    pub(crate) async fn cancelled(&self) {
        self.heard(CANCELLED).await;
    }

    pub(crate) async fn unwanted(&self) {
        self.heard(UNWANTED).await;
    }

    /// What was said before.
    fn say(&self, word: u8) -> u8 {
        let before = self.said.fetch_max(word, Ordering::SeqCst);
        self.news.notify_waiters();
        before
    }

    async fn heard(&self, word: u8) {
        let mut news = pin!(self.news.notified());
        loop {
            // First in line, then a look: what is said in between is not missed.
            news.as_mut().enable();
            if self.said.load(Ordering::SeqCst) >= word {
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
        let word = Arc::new(Word::default());
        let waiting = [(); 3].map(|()| {
            let word = word.clone();
            tokio::spawn(async move { word.unwanted().await })
        });
        tokio::task::yield_now().await;
        assert!(word.cancel() && !word.cancel(), "news once");
        assert!(word.is_cancelled() && !word.is_unwanted());
        word.cancel_for_good();
        for waiter in waiting {
            waiter.await.expect("heard");
        }
        word.cancelled().await;
        word.unwanted().await;
    }
}
