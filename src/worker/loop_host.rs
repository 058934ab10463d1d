//! Keeps the run loop going while a handler blocks its thread.
//!
//! The loop runs as a task next to its attempts: starting an attempt then costs no switch between threads. A handler
//! that blocks its thread (a long calculation, a synchronous call) can hold up that task. The heartbeat thread notices
//! that the loop does not turn, and drives it from there until the runtime polls the task again.
//!
//! ```text
//!   task of the runtime ── does not answer a heartbeat reply ──▶ heartbeat thread drives the loop
//!          ▲                                                              │
//!          └────────────── the runtime polls the task again ◀─────────────┘
//! ```
//!
//! Both poll under one lock, so the loop is never polled twice at a time. The last poller is the one that is woken.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use tokio::runtime::Handle;

use crate::error::Result;
use crate::sync::LockExt;
use crate::worker::event::RunSummary;

type LoopFuture = Pin<Box<dyn Future<Output = Result<RunSummary>> + Send>>;

/// Holds the run loop, and lets two threads drive it by turns.
pub(super) struct LoopHost {
    /// The runtime of the attempts.
    runtime: Handle,
    /// The heartbeat thread drives the loop.
    is_rescued: AtomicBool,
    state: Mutex<HostState>,
}

struct HostState {
    /// `None` once the loop has ended or was dropped.
    run: Option<LoopFuture>,
    summary: Option<Result<RunSummary>>,
    /// Wakes the task of the runtime.
    task_waker: Option<Waker>,
    /// Wakes the heartbeat thread; set while it drives the loop, and cleared when the task is polled.
    rescuer_waker: Option<Waker>,
}

impl LoopHost {
    /// Returns a host for a loop with attempts on the current runtime.
    pub(super) fn new() -> Arc<Self> {
        let state = HostState { run: None, summary: None, task_waker: None, rescuer_waker: None };
        Arc::new(LoopHost { runtime: Handle::current(), is_rescued: AtomicBool::new(false), state: Mutex::new(state) })
    }

    /// Drives the loop to its end. Dropping the future drops the loop.
    pub(super) async fn run(
        self: Arc<Self>,
        run: impl Future<Output = Result<RunSummary>> + Send + 'static,
    ) -> Result<RunSummary> {
        self.lock().run = Some(Box::pin(run));
        let _drop_loop = DropLoop(self.clone());
        poll_fn(|cx| self.poll_as_task(cx)).await
    }

    /// Drives the loop until the task of the runtime does it again, or the loop has ended.
    pub(super) async fn rescue(&self) {
        let mut is_first_poll = true;
        poll_fn(|cx| self.poll_as_rescuer(std::mem::take(&mut is_first_poll), cx)).await;
    }

    /// Returns whether the heartbeat thread drives the loop, because a handler blocks the runtime.
    pub(super) fn is_rescued(&self) -> bool {
        self.is_rescued.load(Ordering::Relaxed)
    }

    fn poll_as_task(&self, cx: &mut Context<'_>) -> Poll<Result<RunSummary>> {
        let mut state = self.lock();
        self.is_rescued.store(false, Ordering::Relaxed);
        state.rescuer_waker.take().into_iter().for_each(Waker::wake);
        if state.poll_loop(cx).is_ready()
            && let Some(summary) = state.summary.take()
        {
            return Poll::Ready(summary);
        }
        // The rescuer needs it if the loop ends there.
        if !state.task_waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            state.task_waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }

    fn poll_as_rescuer(&self, is_first_poll: bool, cx: &mut Context<'_>) -> Poll<()> {
        // Attempts and other tasks of the loop start on the runtime of the worker.
        let _guard = self.runtime.enter();
        // If another thread has the lock, the task is being polled: the loop is not held up.
        let Ok(mut state) = self.state.try_lock() else { return Poll::Ready(()) };
        let task_is_back = !is_first_poll && state.rescuer_waker.is_none();
        if task_is_back {
            return Poll::Ready(());
        }
        self.is_rescued.store(true, Ordering::Relaxed);
        if is_first_poll {
            // From now on events wake this thread. The task takes over as soon as the runtime can poll it.
            state.task_waker.take().into_iter().for_each(Waker::wake);
        }
        if state.poll_loop(cx).is_ready() {
            state.rescuer_waker = None;
            state.task_waker.take().into_iter().for_each(Waker::wake);
            return Poll::Ready(());
        }
        state.rescuer_waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn lock(&self) -> MutexGuard<'_, HostState> {
        self.state.lock_unpoisoned()
    }
}

impl HostState {
    /// Polls the loop, unless it has ended.
    fn poll_loop(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(run) = &mut self.run {
            let Poll::Ready(summary) = run.as_mut().poll(cx) else { return Poll::Pending };
            self.run = None;
            self.summary = Some(summary);
        }
        Poll::Ready(())
    }
}

/// Drops the loop with the future that runs it.
struct DropLoop(Arc<LoopHost>);

impl Drop for DropLoop {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        let (run, rescuer) = (state.run.take(), state.rescuer_waker.take());
        drop(state);
        rescuer.into_iter().for_each(Waker::wake);
        drop(run);
    }
}
