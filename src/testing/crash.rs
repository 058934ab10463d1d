//! Attempts that end as if the process had been killed, at a step of the test's choice.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Mutex;
use std::task::{Context, Poll};

use tokio_util::sync::CancellationToken;

/// Where an attempt ends as if its process had been killed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CrashAt {
    /// The job is claimed, its handler has not begun.
    BeforeHandler,
    /// The handler waits for the nth time, from 1: at its nth `.await` that does not go on at once.
    Await(u32),
    /// The handler comes to [`Ctx::step`](crate::Ctx::step) of this name.
    Point(String),
    /// The handler has ended, and nothing of that is recorded.
    BeforeSettle,
    /// The outcome is recorded, and the process dies before it learns of it.
    AfterSettle,
}

impl CrashAt {
    /// At the step of this name.
    pub fn point(name: impl Into<String>) -> Self {
        CrashAt::Point(name.into())
    }
}

/// A crash that is to come: once, in one worker.
pub(crate) struct Crash {
    at: CrashAt,
    /// Waits so far.
    awaits: Mutex<u32>,
    pub(crate) crashed: CancellationToken,
}

impl Crash {
    pub(crate) fn new(at: CrashAt) -> Self {
        Crash { at, awaits: Mutex::default(), crashed: CancellationToken::new() }
    }

    pub(crate) fn is_at(&self, point: &CrashAt) -> bool {
        self.at == *point
    }

    /// Never comes back if this is the place.
    pub(crate) async fn crash_if_at(&self, point: CrashAt) {
        if self.at == point {
            self.crashed.cancel();
            std::future::pending().await
        }
    }

    /// Runs a handler up to the place at which it ends.
    pub(crate) async fn run_handler<T>(&self, handler: impl Future<Output = T>) -> T {
        self.crash_if_at(CrashAt::BeforeHandler).await;
        let ended = AwaitCounter { handler: pin!(handler), crash: self }.await;
        self.crash_if_at(CrashAt::BeforeSettle).await;
        ended
    }

    /// The handler waits once more; answers whether that is the place.
    fn count_await(&self) -> bool {
        let CrashAt::Await(nth) = self.at else {
            return false;
        };
        let mut waits = self.awaits.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        *waits += 1;
        *waits == nth
    }
}

/// A handler whose waits are counted.
struct AwaitCounter<'c, F> {
    handler: Pin<&'c mut F>,
    crash: &'c Crash,
}

impl<F: Future> Future for AwaitCounter<'_, F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        if self.crash.crashed.is_cancelled() {
            return Poll::Pending;
        }
        let polled = self.handler.as_mut().poll(cx);
        if polled.is_pending() && self.crash.count_await() {
            self.crash.crashed.cancel();
        }
        polled
    }
}
