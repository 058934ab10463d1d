//! Waiting for jobs to end: all who wait in this process share one subscription to what the store tells, and one slow look
//! behind it for what was lost on the way. However many wait, nobody asks the store for a job again and again.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock;
use crate::error::{Error, Result};
use crate::job::{JobId, JobRecord};
use crate::peers::{Peers, PeersInner};
use crate::store::{COMPLETION_CHECK_MAX, COMPLETION_QUEUES_MAX, COMPLETION_WATCH_DURATION};

/// Most jobs of this process that are waited for at a time.
pub const WAITED_JOBS_MAX: usize = 100_000;
/// How often the store is asked to go on telling, and looked at for what was lost.
const CHECK_INTERVAL: Duration = Duration::from_secs(COMPLETION_WATCH_DURATION.as_secs() / 3);
/// The same after a failure.
const CHECK_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// The same on a store that tells nothing, or not of all queues.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Between two looks lies at least so many times what the first has taken.
const CHECK_REST_FACTOR: u32 = 4;
/// Between two looks because something may have been missed.
const CHECK_INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Jobs that somebody here waits for.
#[derive(Default)]
pub(crate) struct Completions {
    waits: Mutex<CompletionWaits>,
    /// Look now: a queue is new, or something may have been missed.
    check_now: Notify,
    /// One at a time asks the store to tell: those who come meanwhile need not.
    subscribing: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct CompletionWaits {
    jobs: HashMap<JobId, WaitedJob>,
    /// Which of them are in each queue, and whether the store tells of it.
    queues: BTreeMap<String, WatchedQueue>,
    /// Somebody looks after them.
    is_checker_running: bool,
}

/// A job, and those who wait for it.
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
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The store says that these have ended; if it names none, it does not know which.
    pub(crate) fn notify_completed(&self, ids: &[JobId]) {
        if ids.is_empty() {
            return self.handle_gap();
        }
        let waited = self.waits();
        ids.iter().filter_map(|id| waited.jobs.get(id)).for_each(|job| job.completed.notify_waiters());
    }

    /// Something may have been missed.
    pub(crate) fn handle_gap(&self) {
        let mut waited = self.waits();
        waited.queues.values_mut().for_each(|queue| queue.is_watched = false);
        if waited.is_checker_running {
            self.check_now.notify_one();
        }
    }

    /// The queues in which somebody waits.
    fn waited_queues(&self) -> Vec<String> {
        self.waits().queues.keys().cloned().collect()
    }

    /// Those of which the store should tell: as many as it can, first those of which it does.
    fn queues_to_watch(&self) -> Vec<String> {
        let waited = self.waits();
        let of = |watched: bool| waited.queues.iter().filter(move |(_, queue)| queue.is_watched == watched);
        of(true).chain(of(false)).take(COMPLETION_QUEUES_MAX).map(|(name, _)| name.clone()).collect()
    }

    /// Whether the store tells of this queue.
    fn is_watched(&self, queue: &str) -> bool {
        self.waits().queues.get(queue).is_some_and(|queue| queue.is_watched)
    }

    fn are_all_watched(&self) -> bool {
        self.waits().queues.values().all(|queue| queue.is_watched)
    }

    fn mark_watched(&self, queues: &[String]) {
        let mut waited = self.waits();
        for queue in queues {
            if let Some(queue) = waited.queues.get_mut(queue) {
                queue.is_watched = true;
            }
        }
    }

    /// The jobs of a queue that are waited for.
    fn waited_jobs_in(&self, queue: &str) -> Vec<JobId> {
        self.waits().queues.get(queue).map_or_else(Vec::new, |queue| queue.jobs.iter().copied().collect())
    }
}

/// One who waits; ends when dropped.
struct CompletionWaiter {
    inner: Arc<PeersInner>,
    id: JobId,
    completed: Arc<Notify>,
}

impl CompletionWaiter {
    fn new(inner: &Arc<PeersInner>, id: JobId, queue: &str) -> Result<Self> {
        let mut waited = inner.completions.waits();
        if !waited.jobs.contains_key(&id) {
            if waited.jobs.len() >= WAITED_JOBS_MAX {
                let why =
                    format!("{WAITED_JOBS_MAX} jobs are waited for in this process already; wait for some of them");
                return Err(Error::store("wait", why));
            }
            waited.queues.entry(queue.to_owned()).or_default().jobs.insert(id);
        }
        let new = || WaitedJob { queue: queue.to_owned(), waiters: 0, completed: Arc::default() };
        let job = waited.jobs.entry(id).or_insert_with(new);
        job.waiters += 1;
        Ok(CompletionWaiter { inner: inner.clone(), id, completed: job.completed.clone() })
    }
}

impl Drop for CompletionWaiter {
    fn drop(&mut self) {
        let mut waited = self.inner.completions.waits();
        let Some(job) = waited.jobs.get_mut(&self.id) else {
            return;
        };
        job.waiters -= 1;
        if job.waiters > 0 {
            return;
        }
        let Some(job) = waited.jobs.remove(&self.id) else {
            return;
        };
        if let Some(queue) = waited.queues.get_mut(&job.queue) {
            queue.jobs.remove(&self.id);
            if queue.jobs.is_empty() {
                waited.queues.remove(&job.queue);
            }
        }
    }
}

impl Peers {
    /// The job once it is done or dead; `None` if it is not in the store, or not any more.
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
        let mut told = std::pin::pin!(waiter.completed.notified());
        told.as_mut().enable();
        self.start_completion_checks();
        self.watch_queue(&record.job.queue).await;
        loop {
            // After the store has begun to tell: what ended before is seen here, what ends after is told.
            match store.get(id).await? {
                Some(record) if !record.state.is_final() => {}
                ended => return Ok(ended),
            }
            told.as_mut().await;
            told.set(waiter.completed.notified());
            told.as_mut().enable();
        }
    }

    /// Asks the store to tell of this queue, unless it does. If it cannot, the looks must do.
    async fn watch_queue(&self, queue: &str) {
        let (inner, about) = (self.inner.clone(), queue.to_owned());
        // There: one who waits may not be polled for long, and others would wait for the same.
        let watched =
            self.inner.run_on_thread("watch_ends", async move { inner.watch_completions(Some(&about)).await }).await;
        if let Err(error) = watched {
            tracing::debug!(%error, "the store tells nothing of ends; looking instead");
        }
        if !self.inner.completions.is_watched(queue) {
            self.inner.completions.check_now.notify_one();
        }
    }

    /// Somebody waits: from now on somebody looks after that.
    fn start_completion_checks(&self) {
        if !std::mem::replace(&mut self.inner.completions.waits().is_checker_running, true) {
            self.spawn(run_completion_checks(self.inner.clone()));
        }
    }
}

impl PeersInner {
    /// Asks the store to tell of what is waited for, unless this is about a queue of which it does.
    async fn watch_completions(&self, about: Option<&str>) -> Result<()> {
        // What is waited for is read under it: an older list must not come after a newer one.
        let _asking = self.completions.subscribing.lock().await;
        if about.is_some_and(|queue| self.completions.is_watched(queue)) {
            return Ok(());
        }
        let queues = self.completions.queues_to_watch();
        self.store.watch_completions(self.node, &queues).await?;
        self.completions.mark_watched(&queues);
        Ok(())
    }

    /// Looks once through everything that is waited for here, in bounded steps.
    async fn check_completions(&self) -> Result<()> {
        for queue in self.completions.waited_queues() {
            for some in self.completions.waited_jobs_in(&queue).chunks(COMPLETION_CHECK_MAX) {
                let ended = self.store.completed_among(&queue, some.to_vec()).await?;
                if !ended.is_empty() {
                    self.completions.notify_completed(&ended);
                }
            }
        }
        Ok(())
    }

    /// Asks the store to go on telling, and looks for what was lost; answers when to do it again.
    async fn refresh_completions(&self) -> Duration {
        let watched = self.watch_completions(None).await;
        let looked = self.check_completions().await;
        match (watched, looked) {
            (Ok(()), Ok(())) if self.completions.are_all_watched() => CHECK_INTERVAL,
            (Ok(()) | Err(Error::Unsupported { .. }), Ok(())) => POLL_INTERVAL,
            (_, Err(error)) | (Err(error), _) => {
                tracing::debug!(%error, "the store does not say which jobs have ended");
                CHECK_RETRY_INTERVAL
            }
        }
    }
}

/// Looks after those who wait, until nobody does.
async fn run_completion_checks(inner: Arc<PeersInner>) {
    let mut next = CHECK_INTERVAL;
    loop {
        tokio::select! {
            () = tokio::time::sleep(next) => {}
            () = inner.completions.check_now.notified() => {}
            () = inner.stop.cancelled() => return,
        }
        {
            let mut waited = inner.completions.waits();
            if waited.jobs.is_empty() {
                waited.is_checker_running = false;
                break;
            }
        }
        let began = clock::monotonic_now();
        next = inner.refresh_completions().await;
        // Not more often than this, however often something is missed, and however many wait.
        let rest = tokio::time::sleep(CHECK_INTERVAL_MIN.max((clock::monotonic_now() - began) * CHECK_REST_FACTOR));
        if inner.stop.run_until_cancelled(rest).await.is_none() {
            return;
        }
    }
    // Nobody need tell us any more; who waits anew says so anew.
    if let Err(error) = inner.watch_completions(None).await {
        tracing::debug!(%error, "the store tells of ends a little longer");
    }
}
