//! The answers that a connection owes: what does not come is given up.
//!
//! One timer for all requests that are under way: one for each would cost more than the request itself, since a runtime
//! that sleeps must be woken to learn of it. A server answers a connection in order, so if nothing at all is answered,
//! the oldest request is not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use redis::RedisError;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use super::connector::ANSWER;

/// How often a look is taken while something is under way.
const LOOK: Duration = Duration::from_secs(1);
/// After so many looks at the same unanswered requests they are given up.
const LOOKS_MAX: u64 = ANSWER.as_secs();

/// The requests of one connection.
#[derive(Default)]
pub(super) struct Answers {
    sent: AtomicU64,
    /// Answered, or given up by who asked.
    ended: AtomicU64,
    /// Only this shows that the server lives.
    answered: AtomicU64,
    /// Somebody takes looks.
    watched: AtomicBool,
    /// No answer will come.
    over: CancellationToken,
}

/// A request under way; ends when dropped.
struct UnderWay<'w>(&'w Answers);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::SeqCst);
    }
}

/// Somebody who takes looks, until it is dropped, also with its runtime.
struct Looking(Arc<Answers>);

impl Drop for Looking {
    fn drop(&mut self) {
        self.0.watched.store(false, Ordering::SeqCst);
    }
}

impl Answers {
    /// The answer, or an error once none has come for too long. Looks are taken where the connection is driven.
    pub(super) async fn answer<T>(
        self: &Arc<Self>,
        home: Option<&Handle>,
        request: impl Future<Output = Result<T, RedisError>>,
    ) -> Result<T, RedisError> {
        self.sent.fetch_add(1, Ordering::SeqCst);
        let _under_way = UnderWay(self);
        if !self.watched.swap(true, Ordering::SeqCst) {
            let looking = Looking(self.clone());
            match home {
                Some(home) => home.spawn(looking.look()),
                None => tokio::spawn(looking.look()),
            };
        }
        tokio::select! {
            biased;
            answer = request => {
                self.answered.fetch_add(1, Ordering::SeqCst);
                answer
            }
            () = self.over.cancelled() => Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
        }
    }

    /// How many were answered, and whether anybody waits.
    fn state(&self) -> (u64, bool) {
        let ended = self.ended.load(Ordering::SeqCst);
        (self.answered.load(Ordering::SeqCst), self.sent.load(Ordering::SeqCst) != ended)
    }
}

impl Looking {
    async fn look(self) {
        let (mut before, mut looks) = (self.0.state().0, 0);
        loop {
            tokio::time::sleep(LOOK).await;
            let (answered, under_way) = self.0.state();
            if !under_way {
                return self.rest();
            }
            looks = if answered == before { looks + 1 } else { 0 };
            before = answered;
            if looks >= LOOKS_MAX {
                return self.0.over.cancel();
            }
        }
    }

    /// Nothing is under way; something that begins just now has seen somebody look, and must not be left unwatched.
    fn rest(self) {
        let answers = self.0.clone();
        drop(self);
        if answers.state().1 && !answers.watched.swap(true, Ordering::SeqCst) {
            tokio::spawn(Looking(answers).look());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn never() -> Result<(), RedisError> {
        std::future::pending().await
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_never_answered_is_given_up_although_others_come_and_go() {
        let answers = Arc::new(Answers::default());
        let waiting = answers.answer(None, never());
        let coming_and_going = async {
            loop {
                let _ = tokio::time::timeout(LOOK / 3, answers.answer(None, never())).await;
                tokio::time::sleep(LOOK / 100).await;
            }
        };
        let error = tokio::select! {
            answer = waiting => answer.expect_err("nobody answers"),
            () = coming_and_going => return,
        };
        assert!(error.is_timeout());
    }

    #[tokio::test(start_paused = true)]
    async fn while_others_are_answered_nothing_is_given_up() {
        let answers = Arc::new(Answers::default());
        let late = answers.answer(None, async {
            tokio::time::sleep(10 * ANSWER).await;
            Ok(())
        });
        let others = async {
            loop {
                tokio::time::sleep(LOOK / 2).await;
                assert!(answers.answer(None, async { Ok(()) }).await.is_ok());
            }
        };
        tokio::select! {
            answer = late => assert!(answer.is_ok()),
            () = others => {}
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_comes_after_a_rest_is_watched_too() {
        let answers = Arc::new(Answers::default());
        assert!(answers.answer(None, async { Ok(()) }).await.is_ok());
        tokio::time::sleep(3 * LOOK).await;
        assert!(answers.answer(None, never()).await.is_err());
    }
}
