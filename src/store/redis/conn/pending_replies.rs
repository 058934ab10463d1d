//! The requests in flight on a connection, with one timeout for all of them.
//!
//! A timer per request would cost more than the request: a sleeping runtime must be woken to register it. A server
//! replies in order, so the oldest request is unanswered if and only if no reply arrives at all. One watchdog therefore
//! checks once a second whether any reply has arrived.
//!
//! A Cluster unsubscribes clients from a slot that it migrates, without a request. The client crate takes that push for
//! the reply to the oldest request, and every later reply is off by one. No reply after such a push is therefore
//! trusted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use redis::RedisError;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::store::redis::conn::connector::REPLY_TIMEOUT;

/// Interval of the watchdog while requests are in flight.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Number of checks without a reply after which the requests fail.
const CHECKS_MAX: u64 = REPLY_TIMEOUT.as_secs();
/// One extra check per this many bytes to send: a slow network is not a dead server.
const BYTES_PER_EXTRA_CHECK: u64 = 256 * 1024;
/// Maximum number of extra checks.
const EXTRA_CHECKS_MAX: u64 = 60;

/// The requests in flight on one connection.
#[derive(Default)]
pub(crate) struct PendingReplies {
    sent: AtomicU64,
    /// Total size of the requests in flight.
    pending_bytes: AtomicU64,
    /// Answered requests and cancelled ones.
    finished: AtomicU64,
    /// Answered requests only: the sign that the server is alive.
    replied: AtomicU64,
    /// A watchdog runs.
    has_watchdog: AtomicBool,
    /// Number of unsubscribe pushes that a request has caused.
    expected_unsubscribes: AtomicU64,
    /// An unsubscribe push arrived without a request.
    is_out_of_sync: AtomicBool,
    /// No reply that could still arrive is trusted.
    failed: CancellationToken,
    /// The connection has closed.
    is_closed: AtomicBool,
}

/// Counts a request in flight until it is dropped.
struct PendingRequest<'w>(&'w PendingReplies, u64);

impl Drop for PendingRequest<'_> {
    fn drop(&mut self) {
        self.0.pending_bytes.fetch_sub(self.1, Ordering::SeqCst);
        self.0.finished.fetch_add(1, Ordering::SeqCst);
    }
}

/// The watchdog of a connection. Dropped when it stops, or with its runtime.
struct ReplyWatchdog(Arc<PendingReplies>);

impl Drop for ReplyWatchdog {
    fn drop(&mut self) {
        self.0.has_watchdog.store(false, Ordering::SeqCst);
    }
}

impl PendingReplies {
    /// Waits for the reply to a request of this size; fails if the server has not replied for too long. The watchdog
    /// runs on the runtime that drives the connection.
    pub(crate) async fn wait_for_reply<T>(
        self: &Arc<Self>,
        runtime: Option<&Handle>,
        bytes: u64,
        request: impl Future<Output = Result<T, RedisError>>,
    ) -> Result<T, RedisError> {
        self.sent.fetch_add(1, Ordering::SeqCst);
        self.pending_bytes.fetch_add(bytes, Ordering::SeqCst);
        let _pending = PendingRequest(self, bytes);
        if !self.has_watchdog.swap(true, Ordering::SeqCst) {
            let watchdog = ReplyWatchdog(self.clone());
            match runtime {
                Some(runtime) => runtime.spawn(watchdog.run()),
                None => tokio::spawn(watchdog.run()),
            };
        }
        tokio::select! {
            biased;
            reply = request => {
                self.replied.fetch_add(1, Ordering::SeqCst);
                if self.is_out_of_sync.load(Ordering::SeqCst) { Err(self.failure_error()) } else { reply }
            }
            () = self.failed.cancelled() => Err(self.failure_error()),
        }
    }

    /// Announces that the next request causes an unsubscribe push.
    pub(crate) fn expect_unsubscribe(&self) {
        self.expected_unsubscribes.fetch_add(1, Ordering::SeqCst);
    }

    /// Takes the announcement back: the request failed, so no push follows.
    pub(crate) fn cancel_expected_unsubscribe(&self) {
        let _ = self
            .expected_unsubscribes
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |expected| expected.checked_sub(1));
    }

    /// Records an unsubscribe push. Must run before the client crate takes it for a reply.
    pub(crate) fn note_unsubscribe(&self) {
        let expected = self
            .expected_unsubscribes
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |expected| expected.checked_sub(1));
        if expected.is_err() {
            self.is_out_of_sync.store(true, Ordering::SeqCst);
            self.failed.cancel();
        }
    }

    /// Records that the connection has closed. The client crate fails the waiting requests; no more may be sent.
    pub(crate) fn mark_closed(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    fn failure_error(&self) -> RedisError {
        match self.is_out_of_sync.load(Ordering::SeqCst) {
            true => std::io::Error::new(std::io::ErrorKind::ConnectionAborted, "the server moved the slot away").into(),
            false => std::io::Error::from(std::io::ErrorKind::TimedOut).into(),
        }
    }

    /// Returns the number of answered requests, and whether any request waits.
    fn progress(&self) -> (u64, bool) {
        let finished = self.finished.load(Ordering::SeqCst);
        (self.replied.load(Ordering::SeqCst), self.sent.load(Ordering::SeqCst) != finished)
    }
}

impl ReplyWatchdog {
    async fn run(self) {
        let (mut replied_before, mut checks) = (self.0.progress().0, 0);
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            let (replied, has_pending) = self.0.progress();
            if !has_pending {
                return self.stop_if_idle();
            }
            checks = if replied == replied_before { checks + 1 } else { 0 };
            replied_before = replied;
            let extra_checks =
                (self.0.pending_bytes.load(Ordering::SeqCst) / BYTES_PER_EXTRA_CHECK).min(EXTRA_CHECKS_MAX);
            if checks >= CHECKS_MAX + extra_checks {
                return self.0.failed.cancel();
            }
        }
    }

    /// Stops the watchdog. A request that starts right now saw it running, so it is replaced if any request waits.
    fn stop_if_idle(self) {
        let pending_replies = self.0.clone();
        drop(self);
        if pending_replies.progress().1 && !pending_replies.has_watchdog.swap(true, Ordering::SeqCst) {
            tokio::spawn(ReplyWatchdog(pending_replies).run());
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
        let pending_replies = Arc::new(PendingReplies::default());
        let waits = pending_replies.wait_for_reply(None, 0, never_reply());
        let cancelled_requests = async {
            loop {
                let _ =
                    tokio::time::timeout(CHECK_INTERVAL / 3, pending_replies.wait_for_reply(None, 0, never_reply()))
                        .await;
                tokio::time::sleep(CHECK_INTERVAL / 100).await;
            }
        };
        let error = tokio::select! {
            reply = waits => reply.expect_err("no reply arrives"),
            () = cancelled_requests => return,
        };
        assert!(error.is_timeout());
    }

    #[tokio::test(start_paused = true)]
    async fn slow_request_survives_while_others_are_answered() {
        let pending_replies = Arc::new(PendingReplies::default());
        let slow = pending_replies.wait_for_reply(None, 0, async {
            tokio::time::sleep(10 * REPLY_TIMEOUT).await;
            Ok(())
        });
        let others = async {
            loop {
                tokio::time::sleep(CHECK_INTERVAL / 2).await;
                assert!(pending_replies.wait_for_reply(None, 0, async { Ok(()) }).await.is_ok());
            }
        };
        tokio::select! {
            reply = slow => assert!(reply.is_ok()),
            () = others => {}
        }
    }

    #[tokio::test]
    async fn replies_after_unsolicited_unsubscribe_are_rejected() {
        let pending_replies = Arc::new(PendingReplies::default());
        pending_replies.expect_unsubscribe();
        let expected_push = pending_replies.wait_for_reply(None, 0, async {
            pending_replies.note_unsubscribe();
            Ok(())
        });
        assert!(expected_push.await.is_ok());
        let unexpected_push = pending_replies.wait_for_reply(None, 0, async {
            pending_replies.note_unsubscribe();
            Ok(())
        });
        assert!(unexpected_push.await.expect_err("is not its reply").is_io_error());
        assert!(
            pending_replies.wait_for_reply(None, 0, async { Ok(()) }).await.expect_err("nor is this").is_io_error()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn large_request_gets_longer_timeout() {
        let pending_replies = Arc::new(PendingReplies::default());
        let slow = pending_replies.wait_for_reply(None, 10 * BYTES_PER_EXTRA_CHECK, async {
            tokio::time::sleep(2 * REPLY_TIMEOUT).await;
            Ok(())
        });
        assert!(slow.await.is_ok());
        let start = tokio::time::Instant::now();
        assert!(
            pending_replies.wait_for_reply(None, 10 * BYTES_PER_EXTRA_CHECK, never_reply()).await.is_err(),
            "but not for ever"
        );
        assert!(start.elapsed() < 4 * REPLY_TIMEOUT);
    }

    #[tokio::test(start_paused = true)]
    async fn request_after_idle_period_times_out() {
        let pending_replies = Arc::new(PendingReplies::default());
        assert!(pending_replies.wait_for_reply(None, 0, async { Ok(()) }).await.is_ok());
        tokio::time::sleep(3 * CHECK_INTERVAL).await;
        assert!(pending_replies.wait_for_reply(None, 0, never_reply()).await.is_err());
    }
}
