//! The answers that a connection owes: what does not come is given up.
//!
//! One timer for all requests that are under way: one for each would cost more than the request itself, since a runtime
//! that sleeps must be woken to learn of it. A server answers a connection in order, so if nothing at all is answered,
//! the oldest request is not.
//!
//! A Cluster takes leave of who listens to a slot that it gives away, unasked; the client takes that for the answer to the
//! oldest request, and each answer from then on for that to the next. So nothing is believed that comes after it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use redis::RedisError;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::store::redis::conn::connector::ANSWER;

/// How often a look is taken while something is under way.
const LOOK: Duration = Duration::from_secs(1);
/// After so many looks at the same unanswered requests they are given up.
const LOOKS_MAX: u64 = ANSWER.as_secs();
/// One look more for each so many bytes that are to be sent: a slow network is not a dead server.
const LOOK_BYTES: u64 = 256 * 1024;
/// But no more than so many.
const MORE_LOOKS_MAX: u64 = 60;

/// The requests of one connection.
#[derive(Default)]
pub(crate) struct Answers {
    sent: AtomicU64,
    /// What the requests under way have to say.
    bytes: AtomicU64,
    /// Answered, or given up by who asked.
    ended: AtomicU64,
    /// Only this shows that the server lives.
    answered: AtomicU64,
    /// Somebody takes looks.
    watched: AtomicBool,
    /// Farewells that were asked for.
    farewells: AtomicU64,
    /// One came unasked.
    mixed_up: AtomicBool,
    /// No answer will come that can be believed.
    over: CancellationToken,
    /// The connection has ended.
    closed: AtomicBool,
}

/// A request under way; ends when dropped.
struct UnderWay<'w>(&'w Answers, u64);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.bytes.fetch_sub(self.1, Ordering::SeqCst);
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
    /// The answer to a request of so many bytes, or an error once none has come for too long. Looks are taken where the
    /// connection is driven.
    pub(crate) async fn answer<T>(
        self: &Arc<Self>,
        home: Option<&Handle>,
        bytes: u64,
        request: impl Future<Output = Result<T, RedisError>>,
    ) -> Result<T, RedisError> {
        self.sent.fetch_add(1, Ordering::SeqCst);
        self.bytes.fetch_add(bytes, Ordering::SeqCst);
        let _under_way = UnderWay(self, bytes);
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
                if self.mixed_up.load(Ordering::SeqCst) { Err(self.why()) } else { answer }
            }
            () = self.over.cancelled() => Err(self.why()),
        }
    }

    /// The next request asks the server to take leave.
    pub(crate) fn expect_farewell(&self) {
        self.farewells.fetch_add(1, Ordering::SeqCst);
    }

    /// It has not been carried out: no farewell will come.
    pub(crate) fn no_farewell(&self) {
        let _ = self.farewells.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |asked| asked.checked_sub(1));
    }

    /// The server has taken leave. To be told before the client takes it for an answer.
    pub(crate) fn take_leave(&self) {
        let asked = self.farewells.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |asked| asked.checked_sub(1));
        if asked.is_err() {
            self.mixed_up.store(true, Ordering::SeqCst);
            self.over.cancel();
        }
    }

    /// The connection has ended. Whoever waits is told by the client, and nothing more is to be sent.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    fn why(&self) -> RedisError {
        match self.mixed_up.load(Ordering::SeqCst) {
            true => std::io::Error::new(std::io::ErrorKind::ConnectionAborted, "the server gave the slot away").into(),
            false => std::io::Error::from(std::io::ErrorKind::TimedOut).into(),
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
            let more = (self.0.bytes.load(Ordering::SeqCst) / LOOK_BYTES).min(MORE_LOOKS_MAX);
            if looks >= LOOKS_MAX + more {
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
        let waiting = answers.answer(None, 0, never());
        let coming_and_going = async {
            loop {
                let _ = tokio::time::timeout(LOOK / 3, answers.answer(None, 0, never())).await;
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
        let late = answers.answer(None, 0, async {
            tokio::time::sleep(10 * ANSWER).await;
            Ok(())
        });
        let others = async {
            loop {
                tokio::time::sleep(LOOK / 2).await;
                assert!(answers.answer(None, 0, async { Ok(()) }).await.is_ok());
            }
        };
        tokio::select! {
            answer = late => assert!(answer.is_ok()),
            () = others => {}
        }
    }

    #[tokio::test]
    async fn nothing_is_believed_after_a_farewell_that_nobody_asked_for() {
        let answers = Arc::new(Answers::default());
        answers.expect_farewell();
        let asked_for = answers.answer(None, 0, async {
            answers.take_leave();
            Ok(())
        });
        assert!(asked_for.await.is_ok());
        let taken_for_it = answers.answer(None, 0, async {
            answers.take_leave();
            Ok(())
        });
        assert!(taken_for_it.await.expect_err("is not its answer").is_io_error());
        assert!(answers.answer(None, 0, async { Ok(()) }).await.expect_err("nor is this").is_io_error());
    }

    #[tokio::test(start_paused = true)]
    async fn much_that_is_to_be_sent_has_more_time() {
        let answers = Arc::new(Answers::default());
        let slow = answers.answer(None, 10 * LOOK_BYTES, async {
            tokio::time::sleep(2 * ANSWER).await;
            Ok(())
        });
        assert!(slow.await.is_ok());
        let begin = tokio::time::Instant::now();
        assert!(answers.answer(None, 10 * LOOK_BYTES, never()).await.is_err(), "but not for ever");
        assert!(begin.elapsed() < 4 * ANSWER);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_comes_after_a_rest_is_watched_too() {
        let answers = Arc::new(Answers::default());
        assert!(answers.answer(None, 0, async { Ok(()) }).await.is_ok());
        tokio::time::sleep(3 * LOOK).await;
        assert!(answers.answer(None, 0, never()).await.is_err());
    }
}
