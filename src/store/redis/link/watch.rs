//! Watches a connection for answers that do not come.
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
pub(super) struct Watch {
    sent: AtomicU64,
    /// Answered, or given up by who asked.
    ended: AtomicU64,
    /// Somebody takes looks.
    watched: AtomicBool,
    /// No answer will come.
    over: CancellationToken,
}

/// A request under way; ends when dropped.
struct UnderWay<'w>(&'w Watch);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::SeqCst);
    }
}

/// Somebody who takes looks, until it is dropped, also with its runtime.
struct Looking(Arc<Watch>);

impl Drop for Looking {
    fn drop(&mut self) {
        self.0.watched.store(false, Ordering::SeqCst);
    }
}

impl Watch {
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
            answer = request => answer,
            () = self.over.cancelled() => Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
        }
    }

    /// How many have ended, and whether more are under way.
    fn state(&self) -> (u64, bool) {
        let ended = self.ended.load(Ordering::SeqCst);
        (ended, self.sent.load(Ordering::SeqCst) != ended)
    }
}

impl Looking {
    async fn look(self) {
        let (mut before, mut looks) = (self.0.state().0, 0);
        loop {
            tokio::time::sleep(LOOK).await;
            let (ended, under_way) = self.0.state();
            if !under_way {
                return self.rest();
            }
            looks = if ended == before { looks + 1 } else { 0 };
            before = ended;
            if looks >= LOOKS_MAX {
                return self.0.over.cancel();
            }
        }
    }

    /// Nothing is under way; something that begins just now has seen somebody look, and must not be left unwatched.
    fn rest(self) {
        let watch = self.0.clone();
        drop(self);
        if watch.state().1 && !watch.watched.swap(true, Ordering::SeqCst) {
            tokio::spawn(Looking(watch).look());
        }
    }
}
