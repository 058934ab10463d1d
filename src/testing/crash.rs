//! Simulated crashes: attempts that end at a chosen point as if the process had been killed.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Mutex;
use std::task::{Context, Poll};

use tokio_util::sync::CancellationToken;

use crate::sync::LockExt;

/// The point at which an attempt ends as if its process had been killed.
///
/// # Examples
///
/// ```
/// # use duly::{Ctx, Duly, Push, testing::CrashAt};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> duly::Result<()> {
/// # let duly = Duly::open(":memory:").await?;
/// duly.push(Push::new("charge", "7")).await?;
/// let worker = || duly.worker().on_kind("charge", async |_: Ctx| ());
/// assert!(worker().crash_at(CrashAt::BeforeSettle).drain().await?.crashed);
/// assert_eq!(worker().drain().await?.acked, 1, "it runs again");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CrashAt {
    /// The job is claimed, but its handler has not started.
    BeforeHandler,
    /// The handler waits for the nth time, from 1: at its nth `.await` that is not ready at once.
    Await(u32),
    /// The handler reaches the [`Ctx::crash_point`](crate::Ctx::crash_point) with this name.
    Point(String),
    /// The handler has returned, but its outcome is not recorded.
    BeforeSettle,
    /// The outcome is recorded, but the worker has not received the reply.
    AfterSettle,
}

impl CrashAt {
    /// Returns the named crash point.
    ///
    /// # Examples
    ///
    /// ```
    /// use duly::testing::CrashAt;
    ///
    /// assert_eq!(CrashAt::point("charged"), CrashAt::Point("charged".to_owned()));
    /// ```
    pub fn point(name: impl Into<String>) -> Self {
        CrashAt::Point(name.into())
    }
}

/// A simulated crash, once in one worker.
pub(crate) struct Crash {
    at: CrashAt,
    /// The number of waits so far.
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

    /// Never returns if this is the crash point.
    pub(crate) async fn crash_if_at(&self, point: CrashAt) {
        if self.at == point {
            self.crashed.cancel();
            std::future::pending().await
        }
    }

    /// Runs a handler up to the crash point.
    pub(crate) async fn run_handler<T>(&self, handler: impl Future<Output = T>) -> T {
        self.crash_if_at(CrashAt::BeforeHandler).await;
        let output = AwaitCounter { handler: pin!(handler), crash: self }.await;
        self.crash_if_at(CrashAt::BeforeSettle).await;
        output
    }

    /// Counts a wait of the handler. Returns whether it is the crash point.
    fn count_await(&self) -> bool {
        let CrashAt::Await(nth) = self.at else {
            return false;
        };
        let mut waits = self.awaits.lock_unpoisoned();
        *waits += 1;
        *waits == nth
    }
}

/// A handler that counts its waits.
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
