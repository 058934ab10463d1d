//! A worker in this process, with a count of its settled jobs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};
use duly::Worker;
use duly::worker::{Event, RunSummary};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// A running worker.
pub(crate) struct MeasuredWorker {
    stop: CancellationToken,
    task: JoinHandle<duly::Result<RunSummary>>,
    counter: Arc<SettleCounter>,
}

/// The settled jobs of a worker.
struct SettleCounter {
    settled: AtomicUsize,
    /// One permit for each settled job.
    permits: Semaphore,
    /// `wait_settled` waits for this many settled jobs.
    target: AtomicUsize,
    target_reached: Notify,
}

impl MeasuredWorker {
    /// Starts the worker and waits until it has joined: the start is not part of the measurement.
    pub(crate) async fn start(worker: Worker) -> Result<Self> {
        let joined = Arc::new(Notify::new());
        let counter = Arc::new(SettleCounter {
            settled: AtomicUsize::new(0),
            permits: Semaphore::new(0),
            target: AtomicUsize::new(usize::MAX),
            target_reached: Notify::new(),
        });
        let (event_joined, event_counter) = (joined.clone(), counter.clone());
        let worker = worker.on_event(move |event| match event {
            Event::Joined { .. } => event_joined.notify_one(),
            Event::Settled { .. } => event_counter.record_settled(),
            _ => {}
        });
        let stop = CancellationToken::new();
        let task = tokio::spawn(worker.run_until(stop.clone()));
        joined.notified().await;
        Ok(MeasuredWorker { stop, task, counter })
    }

    /// Waits until this many jobs are settled since the start.
    pub(crate) async fn wait_settled(&self, jobs: usize) {
        self.counter.target.store(jobs, Ordering::SeqCst);
        while self.counter.settled.load(Ordering::SeqCst) < jobs {
            self.counter.target_reached.notified().await;
        }
    }

    pub(crate) fn settled_count(&self) -> usize {
        self.counter.settled.load(Ordering::SeqCst)
    }

    /// Waits until this many more jobs are settled than earlier calls waited for.
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
        // Only wakes the waiter at its target, to keep the cost for the worker's run loop low.
        if settled >= self.target.load(Ordering::SeqCst) {
            self.target_reached.notify_one();
        }
    }
}
