//! Waiting for jobs to complete. All callers in this process share one subscription, and one slow check that finds
//! completions whose notification was lost. The number of callers does not add polling.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock;
use crate::error::{Error, Result};
use crate::job::{JobId, JobRecord};
use crate::peers::{Peers, PeersInner};
use crate::store::{COMPLETION_CHECK_MAX, COMPLETION_QUEUES_MAX, COMPLETION_WATCH_DURATION, CompletionStore, JobStore};
use crate::sync::LockExt;

/// Most jobs that this process waits for at a time.
pub const WAITED_JOBS_MAX: usize = 100_000;
/// How often the watch is renewed and lost completions are checked for.
const CHECK_INTERVAL: Duration = Duration::from_secs(COMPLETION_WATCH_DURATION.as_secs() / 3);
/// The interval after an error.
const CHECK_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// The interval on a store that cannot watch all queues.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// The pause after a check is at least this many times its duration.
const CHECK_REST_FACTOR: u32 = 4;
/// Shortest pause after a check.
const CHECK_INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Jobs that callers in this process wait for.
#[derive(Default)]
pub(crate) struct Completions {
    waits: Mutex<CompletionWaits>,
    /// Triggers a check: a queue is new, or notifications may have been lost.
    check_now: Notify,
    /// Held while the watch is renewed: callers that arrive meanwhile need not renew it.
    subscribing: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct CompletionWaits {
    jobs: HashMap<JobId, WaitedJob>,
    /// The jobs of each queue, and whether the store watches it.
    queues: BTreeMap<String, WatchedQueue>,
    /// Whether the check task is running.
    is_checker_running: bool,
}

/// A job that callers wait for.
struct WaitedJob {
    queue: String,
    waiters: usize,
    completed: Arc<Notify>,
}

#[derive(Default)]
struct WatchedQueue {
    jobs: HashSet<JobId>,
    is_watched: bool,
}

impl Completions {
    fn waits(&self) -> MutexGuard<'_, CompletionWaits> {
        self.waits.lock_unpoisoned()
    }

    /// Handles completed jobs; an empty list means that some jobs have completed, but it is unknown which.
    pub(crate) fn notify_completed(&self, ids: &[JobId]) {
        if ids.is_empty() {
            return self.handle_gap();
        }
        let waits = self.waits();
        ids.iter().filter_map(|id| waits.jobs.get(id)).for_each(|job| job.completed.notify_waiters());
    }

    /// Handles a gap: notifications may have been lost.
    pub(crate) fn handle_gap(&self) {
        let mut waits = self.waits();
        waits.queues.values_mut().for_each(|queue| queue.is_watched = false);
        if waits.is_checker_running {
            self.check_now.notify_one();
        }
    }

    /// Returns the queues with awaited jobs.
    fn waited_queues(&self) -> Vec<String> {
        self.waits().queues.keys().cloned().collect()
    }

    /// Returns the queues to watch, at most the maximum, those already watched first.
    fn queues_to_watch(&self) -> Vec<String> {
        let waits = self.waits();
        let watched_queues = |watched: bool| waits.queues.iter().filter(move |(_, queue)| queue.is_watched == watched);
        watched_queues(true)
            .chain(watched_queues(false))
            .take(COMPLETION_QUEUES_MAX)
            .map(|(name, _)| name.clone())
            .collect()
    }

    /// Returns whether the store watches this queue.
    fn is_watched(&self, queue: &str) -> bool {
        self.waits().queues.get(queue).is_some_and(|queue| queue.is_watched)
    }

    fn are_all_watched(&self) -> bool {
        self.waits().queues.values().all(|queue| queue.is_watched)
    }

    fn mark_watched(&self, queues: &[String]) {
        let mut waits = self.waits();
        for queue in queues {
            if let Some(queue) = waits.queues.get_mut(queue) {
                queue.is_watched = true;
            }
        }
    }

    /// Returns the awaited jobs of a queue.
    fn waited_jobs_in(&self, queue: &str) -> Vec<JobId> {
        self.waits().queues.get(queue).map_or_else(Vec::new, |queue| queue.jobs.iter().copied().collect())
    }
}

/// A caller's wait; ends when dropped.
struct CompletionWaiter {
    inner: Arc<PeersInner>,
    id: JobId,
    completed: Arc<Notify>,
}

impl CompletionWaiter {
    fn new(inner: &Arc<PeersInner>, id: JobId, queue: &str) -> Result<Self> {
        let mut waits = inner.completions.waits();
        if !waits.jobs.contains_key(&id) {
            if waits.jobs.len() >= WAITED_JOBS_MAX {
                let reason = format!("this process already waits for {WAITED_JOBS_MAX} jobs; wait for some first");
                return Err(Error::store("wait", reason));
            }
            waits.queues.entry(queue.to_owned()).or_default().jobs.insert(id);
        }
        let new_job = || WaitedJob { queue: queue.to_owned(), waiters: 0, completed: Arc::default() };
        let job = waits.jobs.entry(id).or_insert_with(new_job);
        job.waiters += 1;
        Ok(CompletionWaiter { inner: inner.clone(), id, completed: job.completed.clone() })
    }
}

impl Drop for CompletionWaiter {
    fn drop(&mut self) {
        let mut waits = self.inner.completions.waits();
        let Some(job) = waits.jobs.get_mut(&self.id) else {
            return;
        };
        job.waiters -= 1;
        if job.waiters > 0 {
            return;
        }
        let Some(job) = waits.jobs.remove(&self.id) else {
            return;
        };
        if let Some(queue) = waits.queues.get_mut(&job.queue) {
            queue.jobs.remove(&self.id);
            if queue.jobs.is_empty() {
                waits.queues.remove(&job.queue);
            }
        }
    }
}

impl Peers {
    /// Waits until a job is done, dead or cancelled, and returns it; `None` if it is not in the store or no longer.
    pub(crate) async fn wait_for_completion(&self, id: JobId) -> Result<Option<JobRecord>> {
        let store = &self.inner.store;
        let Some(record) = store.get(id).await? else {
            return Ok(None);
        };
        if record.state.is_final() {
            return Ok(Some(record));
        }
        self.ensure_announced().await?;
        let waiter = CompletionWaiter::new(&self.inner, id, &record.job.queue)?;
        let mut notified = std::pin::pin!(waiter.completed.notified());
        notified.as_mut().enable();
        self.start_completion_checks();
        self.watch_queue(&record.job.queue).await;
        loop {
            // Read after the watch began: finds a job that completed before; later completions are notified.
            match store.get(id).await? {
                Some(record) if !record.state.is_final() => {}
                completed => return Ok(completed),
            }
            notified.as_mut().await;
            notified.set(waiter.completed.notified());
            notified.as_mut().enable();
        }
    }

    /// Makes the store watch this queue. If it cannot, polling replaces the notifications.
    async fn watch_queue(&self, queue: &str) {
        let (inner, name) = (self.inner.clone(), queue.to_owned());
        // On the peer thread: a caller may not be polled for long, and others would wait for the same watch.
        let watch = async move { inner.watch_completions(Some(&name)).await };
        let watched = self.inner.run_on_thread("watch_completions", watch).await;
        if let Err(error) = watched {
            tracing::debug!(%error, "the store cannot watch completions; polling instead");
        }
        if !self.inner.completions.is_watched(queue) {
            self.inner.completions.check_now.notify_one();
        }
    }

    /// Starts the check task, unless it is running.
    fn start_completion_checks(&self) {
        if !std::mem::replace(&mut self.inner.completions.waits().is_checker_running, true) {
            self.spawn(run_completion_checks(self.inner.clone()));
        }
    }
}

impl PeersInner {
    /// Renews the watch of all queues, unless `queue` is already watched or the store cannot watch.
    async fn watch_completions(&self, queue: Option<&str>) -> Result<()> {
        if self.store.capabilities().completions.is_none() {
            // Nothing is marked as watched, so the checks poll.
            return Ok(());
        }
        // The queues are read under this lock: an older list must not overwrite a newer one.
        let _subscribing = self.completions.subscribing.lock().await;
        if queue.is_some_and(|queue| self.completions.is_watched(queue)) {
            return Ok(());
        }
        let queues = self.completions.queues_to_watch();
        self.store.watch_completions(self.node, &queues).await?;
        self.completions.mark_watched(&queues);
        Ok(())
    }

    /// Checks all awaited jobs once, in bounded batches.
    async fn check_completions(&self) -> Result<()> {
        for queue in self.completions.waited_queues() {
            for batch in self.completions.waited_jobs_in(&queue).chunks(COMPLETION_CHECK_MAX) {
                let completed = self.store.completed_among(&queue, batch.to_vec()).await?;
                if !completed.is_empty() {
                    self.completions.notify_completed(&completed);
                }
            }
        }
        Ok(())
    }

    /// Renews the watch and checks for lost completions. Returns when to do so again.
    async fn refresh_completions(&self) -> Duration {
        let watched = self.watch_completions(None).await;
        let checked = self.check_completions().await;
        match (watched, checked) {
            (Ok(()), Ok(())) if self.completions.are_all_watched() => CHECK_INTERVAL,
            (Ok(()), Ok(())) => POLL_INTERVAL,
            (_, Err(error)) | (Err(error), _) => {
                tracing::debug!(%error, "failed to check for completed jobs; retrying");
                CHECK_RETRY_INTERVAL
            }
        }
    }
}

/// Renews the watch and checks periodically, until no caller waits.
async fn run_completion_checks(inner: Arc<PeersInner>) {
    let mut next = CHECK_INTERVAL;
    loop {
        tokio::select! {
            () = tokio::time::sleep(next) => {}
            () = inner.completions.check_now.notified() => {}
            () = inner.stop.cancelled() => return,
        }
        {
            let mut waits = inner.completions.waits();
            if waits.jobs.is_empty() {
                waits.is_checker_running = false;
                break;
            }
        }
        let started = clock::monotonic_now();
        next = inner.refresh_completions().await;
        // Limits the rate of checks, however many gaps and callers there are.
        let rest = tokio::time::sleep(CHECK_INTERVAL_MIN.max((clock::monotonic_now() - started) * CHECK_REST_FACTOR));
        if inner.stop.run_until_cancelled(rest).await.is_none() {
            return;
        }
    }
    // No caller waits any more: ends the watch. The next caller starts it again.
    if let Err(error) = inner.watch_completions(None).await {
        tracing::debug!(%error, "failed to end the watch of completions; it expires on its own");
    }
}
