//! A worker of this process, and how many jobs it has settled.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};
use duly::{Event, RunSummary, Worker};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// A worker at work on a task of its own.
pub(crate) struct MeasuredWorker {
    stop: CancellationToken,
    task: JoinHandle<duly::Result<RunSummary>>,
    counter: Arc<SettleCounter>,
}

/// What a worker has done so far.
struct SettleCounter {
    settled: AtomicUsize,
    /// One permit for each settled job.
    permits: Semaphore,
    /// Somebody waits for this many to be settled.
    target: AtomicUsize,
    target_reached: Notify,
}

impl MeasuredWorker {
    /// Starts it, and waits until it has joined: what it costs to begin is not what is measured.
    pub(crate) async fn start(worker: Worker) -> Result<Self> {
        let joined = Arc::new(Notify::new());
        let count = Arc::new(SettleCounter {
            settled: AtomicUsize::new(0),
            permits: Semaphore::new(0),
            target: AtomicUsize::new(usize::MAX),
            target_reached: Notify::new(),
        });
        let (tell, counted) = (joined.clone(), count.clone());
        let worker = worker.on_event(move |event| match event {
            Event::Joined { .. } => tell.notify_one(),
            Event::Settled { .. } => counted.record_settled(),
            _ => {}
        });
        let stop = CancellationToken::new();
        let ended = tokio::spawn(worker.run_until(stop.clone()));
        joined.notified().await;
        Ok(MeasuredWorker { stop, task: ended, counter: count })
    }

    /// Waits until so many jobs are settled, counted from the start.
    pub(crate) async fn wait_settled(&self, jobs: usize) {
        self.counter.target.store(jobs, Ordering::SeqCst);
        while self.counter.settled.load(Ordering::SeqCst) < jobs {
            self.counter.target_reached.notified().await;
        }
    }

    pub(crate) fn settled_count(&self) -> usize {
        self.counter.settled.load(Ordering::SeqCst)
    }

    /// Waits until so many more jobs are settled than were waited for by earlier calls.
    pub(crate) async fn wait_settled_more(&self, jobs: u32) -> Result<()> {
        self.counter.permits.acquire_many(jobs).await.context("the semaphore is never closed")?.forget();
        Ok(())
    }

    pub(crate) async fn stop(self) -> Result<RunSummary> {
        self.stop.cancel();
        Ok(self.task.await??)
    }
}

impl SettleCounter {
    fn record_settled(&self) {
        self.permits.add_permits(1);
        let settled = self.settled.fetch_add(1, Ordering::SeqCst) + 1;
        // The worker's loop should not pay for waking somebody at each job.
        if settled >= self.target.load(Ordering::SeqCst) {
            self.target_reached.notify_one();
        }
    }
}
