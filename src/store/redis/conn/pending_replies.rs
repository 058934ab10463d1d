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

use crate::store::redis::conn::connector::REPLY_TIMEOUT;

/// How often a look is taken while something is under way.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// After so many looks at the same unanswered requests they are given up.
const CHECKS_MAX: u64 = REPLY_TIMEOUT.as_secs();
/// One look more for each so many bytes that are to be sent: a slow network is not a dead server.
const BYTES_PER_EXTRA_CHECK: u64 = 256 * 1024;
/// But no more than so many.
const EXTRA_CHECKS_MAX: u64 = 60;

/// The requests of one connection.
#[derive(Default)]
pub(crate) struct PendingReplies {
    sent: AtomicU64,
    /// What the requests under way have to say.
    pending_bytes: AtomicU64,
    /// Answered, or given up by who asked.
    finished: AtomicU64,
    /// Only this shows that the server lives.
    replied: AtomicU64,
    /// Somebody takes looks.
    has_watchdog: AtomicBool,
    /// Farewells that were asked for.
    expected_unsubscribes: AtomicU64,
    /// One came unasked.
    is_out_of_sync: AtomicBool,
    /// No answer will come that can be believed.
    failed: CancellationToken,
    /// The connection has ended.
    is_closed: AtomicBool,
}

/// A request under way; ends when dropped.
struct PendingRequest<'w>(&'w PendingReplies, u64);

impl Drop for PendingRequest<'_> {
    fn drop(&mut self) {
        self.0.pending_bytes.fetch_sub(self.1, Ordering::SeqCst);
        self.0.finished.fetch_add(1, Ordering::SeqCst);
    }
}

/// Somebody who takes looks, until it is dropped, also with its runtime.
struct ReplyWatchdog(Arc<PendingReplies>);

impl Drop for ReplyWatchdog {
    fn drop(&mut self) {
        self.0.has_watchdog.store(false, Ordering::SeqCst);
    }
}

impl PendingReplies {
    /// The answer to a request of so many bytes, or an error once none has come for too long. Looks are taken where the
    /// connection is driven.
    pub(crate) async fn wait_for_reply<T>(
        self: &Arc<Self>,
        home: Option<&Handle>,
        bytes: u64,
        request: impl Future<Output = Result<T, RedisError>>,
    ) -> Result<T, RedisError> {
        self.sent.fetch_add(1, Ordering::SeqCst);
        self.pending_bytes.fetch_add(bytes, Ordering::SeqCst);
        let _under_way = PendingRequest(self, bytes);
        if !self.has_watchdog.swap(true, Ordering::SeqCst) {
            let looking = ReplyWatchdog(self.clone());
            match home {
                Some(home) => home.spawn(looking.run()),
                None => tokio::spawn(looking.run()),
            };
        }
        tokio::select! {
            biased;
            answer = request => {
                self.replied.fetch_add(1, Ordering::SeqCst);
                if self.is_out_of_sync.load(Ordering::SeqCst) { Err(self.failure_error()) } else { answer }
            }
            () = self.failed.cancelled() => Err(self.failure_error()),
        }
    }

    /// The next request asks the server to take leave.
    pub(crate) fn expect_unsubscribe(&self) {
        self.expected_unsubscribes.fetch_add(1, Ordering::SeqCst);
    }

    /// It has not been carried out: no farewell will come.
    pub(crate) fn cancel_expected_unsubscribe(&self) {
        let _ =
            self.expected_unsubscribes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |asked| asked.checked_sub(1));
    }

    /// The server has taken leave. To be told before the client takes it for an answer.
    pub(crate) fn note_unsubscribe(&self) {
        let asked =
            self.expected_unsubscribes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |asked| asked.checked_sub(1));
        if asked.is_err() {
            self.is_out_of_sync.store(true, Ordering::SeqCst);
            self.failed.cancel();
        }
    }

    /// The connection has ended. Whoever waits is told by the client, and nothing more is to be sent.
    pub(crate) fn mark_closed(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    fn failure_error(&self) -> RedisError {
        match self.is_out_of_sync.load(Ordering::SeqCst) {
            true => std::io::Error::new(std::io::ErrorKind::ConnectionAborted, "the server gave the slot away").into(),
            false => std::io::Error::from(std::io::ErrorKind::TimedOut).into(),
        }
    }

    /// How many were answered, and whether anybody waits.
    fn progress(&self) -> (u64, bool) {
        let ended = self.finished.load(Ordering::SeqCst);
        (self.replied.load(Ordering::SeqCst), self.sent.load(Ordering::SeqCst) != ended)
    }
}

impl ReplyWatchdog {
    async fn run(self) {
        let (mut before, mut looks) = (self.0.progress().0, 0);
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            let (answered, under_way) = self.0.progress();
            if !under_way {
                return self.stop_if_idle();
            }
            looks = if answered == before { looks + 1 } else { 0 };
            before = answered;
            let more = (self.0.pending_bytes.load(Ordering::SeqCst) / BYTES_PER_EXTRA_CHECK).min(EXTRA_CHECKS_MAX);
            if looks >= CHECKS_MAX + more {
                return self.0.failed.cancel();
            }
        }
    }

    /// Nothing is under way; something that begins just now has seen somebody look, and must not be left unwatched.
    fn stop_if_idle(self) {
        let answers = self.0.clone();
        drop(self);
        if answers.progress().1 && !answers.has_watchdog.swap(true, Ordering::SeqCst) {
            tokio::spawn(ReplyWatchdog(answers).run());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn never_reply() -> Result<(), RedisError> {
        std::future::pending().await
    }

    #[tokio::test(start_paused = true)]
    async fn unanswered_request_times_out_while_others_are_cancelled() {
        let answers = Arc::new(PendingReplies::default());
        let waiting = answers.wait_for_reply(None, 0, never_reply());
        let coming_and_going = async {
            loop {
                let _ = tokio::time::timeout(CHECK_INTERVAL / 3, answers.wait_for_reply(None, 0, never_reply())).await;
                tokio::time::sleep(CHECK_INTERVAL / 100).await;
            }
        };
        let error = tokio::select! {
            answer = waiting => answer.expect_err("nobody answers"),
            () = coming_and_going => return,
        };
        assert!(error.is_timeout());
    }

    #[tokio::test(start_paused = true)]
    async fn slow_request_survives_while_others_are_answered() {
        let answers = Arc::new(PendingReplies::default());
        let late = answers.wait_for_reply(None, 0, async {
            tokio::time::sleep(10 * REPLY_TIMEOUT).await;
            Ok(())
        });
        let others = async {
            loop {
                tokio::time::sleep(CHECK_INTERVAL / 2).await;
                assert!(answers.wait_for_reply(None, 0, async { Ok(()) }).await.is_ok());
            }
        };
        tokio::select! {
            answer = late => assert!(answer.is_ok()),
            () = others => {}
        }
    }

    #[tokio::test]
    async fn replies_after_unsolicited_unsubscribe_are_rejected() {
        let answers = Arc::new(PendingReplies::default());
        answers.expect_unsubscribe();
        let asked_for = answers.wait_for_reply(None, 0, async {
            answers.note_unsubscribe();
            Ok(())
        });
        assert!(asked_for.await.is_ok());
        let taken_for_it = answers.wait_for_reply(None, 0, async {
            answers.note_unsubscribe();
            Ok(())
        });
        assert!(taken_for_it.await.expect_err("is not its answer").is_io_error());
        assert!(answers.wait_for_reply(None, 0, async { Ok(()) }).await.expect_err("nor is this").is_io_error());
    }

    #[tokio::test(start_paused = true)]
    async fn large_request_gets_longer_timeout() {
        let answers = Arc::new(PendingReplies::default());
        let slow = answers.wait_for_reply(None, 10 * BYTES_PER_EXTRA_CHECK, async {
            tokio::time::sleep(2 * REPLY_TIMEOUT).await;
            Ok(())
        });
        assert!(slow.await.is_ok());
        let begin = tokio::time::Instant::now();
        assert!(
            answers.wait_for_reply(None, 10 * BYTES_PER_EXTRA_CHECK, never_reply()).await.is_err(),
            "but not for ever"
        );
        assert!(begin.elapsed() < 4 * REPLY_TIMEOUT);
    }

    #[tokio::test(start_paused = true)]
    async fn request_after_idle_period_times_out() {
        let answers = Arc::new(PendingReplies::default());
        assert!(answers.wait_for_reply(None, 0, async { Ok(()) }).await.is_ok());
        tokio::time::sleep(3 * CHECK_INTERVAL).await;
        assert!(answers.wait_for_reply(None, 0, never_reply()).await.is_err());
    }
}
