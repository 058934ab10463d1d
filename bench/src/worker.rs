//! A worker of this process, and how many jobs it has settled.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};
use duly::{Event, Tally, Worker};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// A worker at work on a task of its own.
pub(crate) struct Working {
    stop: CancellationToken,
    ended: JoinHandle<duly::Result<Tally>>,
    count: Arc<Count>,
}

/// What a worker has done so far.
struct Count {
    settled: AtomicUsize,
    /// One permit for each settled job.
    permits: Semaphore,
    /// Somebody waits for this many to be settled.
    wanted: AtomicUsize,
    reached: Notify,
}

impl Working {
    /// Starts it, and waits until it has joined: what it costs to begin is not what is measured.
    pub(crate) async fn start(worker: Worker) -> Result<Self> {
        let joined = Arc::new(Notify::new());
        let count = Arc::new(Count {
            settled: AtomicUsize::new(0),
            permits: Semaphore::new(0),
            wanted: AtomicUsize::new(usize::MAX),
            reached: Notify::new(),
        });
        let (tell, counted) = (joined.clone(), count.clone());
        let worker = worker.on_event(move |event| match event {
            Event::Joined { .. } => tell.notify_one(),
            Event::Settled { .. } => counted.one(),
            _ => {}
        });
        let stop = CancellationToken::new();
        let ended = tokio::spawn(worker.run_until(stop.clone()));
        joined.notified().await;
        Ok(Working { stop, ended, count })
    }

    /// Waits until so many jobs are settled, counted from the start.
    pub(crate) async fn settled(&self, jobs: usize) {
        self.count.wanted.store(jobs, Ordering::SeqCst);
        while self.count.settled.load(Ordering::SeqCst) < jobs {
            self.count.reached.notified().await;
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.count.settled.load(Ordering::SeqCst)
    }

    /// Waits until so many more jobs are settled than were waited for by earlier calls.
    pub(crate) async fn settled_more(&self, jobs: u32) -> Result<()> {
        self.count.permits.acquire_many(jobs).await.context("the semaphore is never closed")?.forget();
        Ok(())
    }

    pub(crate) async fn stop(self) -> Result<Tally> {
        self.stop.cancel();
        Ok(self.ended.await??)
    }
}

impl Count {
    fn one(&self) {
        self.permits.add_permits(1);
        let settled = self.settled.fetch_add(1, Ordering::SeqCst) + 1;
        // The worker's loop should not pay for waking somebody at each job.
        if settled >= self.wanted.load(Ordering::SeqCst) {
            self.reached.notify_one();
        }
    }
}
