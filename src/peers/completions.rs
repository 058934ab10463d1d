//! Waiting for jobs to end: all who wait in this process share one subscription to what the store tells, and one slow look
//! behind it for what was lost on the way. However many wait, nobody asks the store for a job again and again.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock;
use crate::error::{Error, Result};
use crate::job::{JobId, Record};
use crate::peers::{Hall, Inner};
use crate::store::{ENDED_MAX, ENDS_LAST, ENDS_QUEUES_MAX};

/// Most jobs of this process that are waited for at a time.
pub const WAITED_MAX: usize = 100_000;
/// How often the store is asked to go on telling, and looked at for what was lost.
const LOOK: Duration = Duration::from_secs(ENDS_LAST.as_secs() / 3);
/// The same after a failure.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// The same on a store that tells nothing, or not of all queues.
const LOOK_UNTOLD: Duration = Duration::from_millis(250);
/// Between two looks lies at least so many times what the first has taken.
const REST: u32 = 4;
/// Between two looks because something may have been missed.
const LOOK_MISSED: Duration = Duration::from_millis(100);

/// Jobs that somebody here waits for.
#[derive(Default)]
pub(crate) struct Ends {
    waited: Mutex<Waited>,
    /// Look now: a queue is new, or something may have been missed.
    look: Notify,
    /// One at a time asks the store to tell: those who come meanwhile need not.
    asking: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Waited {
    jobs: HashMap<JobId, Awaited>,
    /// Which of them are in each queue, and whether the store tells of it.
    queues: BTreeMap<String, Watched>,
    /// Somebody looks after them.
    kept: bool,
}

/// A job, and those who wait for it.
struct Awaited {
    queue: String,
    waiters: usize,
    told: Arc<Notify>,
}

#[derive(Default)]
struct Watched {
    jobs: HashSet<JobId>,
    watched: bool,
}

impl Ends {
    fn waited(&self) -> MutexGuard<'_, Waited> {
        self.waited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The store says that these have ended; if it names none, it does not know which.
    pub(crate) fn tell(&self, ids: &[JobId]) {
        if ids.is_empty() {
            return self.missed();
        }
        let waited = self.waited();
        ids.iter().filter_map(|id| waited.jobs.get(id)).for_each(|job| job.told.notify_waiters());
    }

    /// Something may have been missed.
    pub(crate) fn missed(&self) {
        let mut waited = self.waited();
        waited.queues.values_mut().for_each(|queue| queue.watched = false);
        if waited.kept {
            self.look.notify_one();
        }
    }

    /// The queues in which somebody waits.
    fn queues(&self) -> Vec<String> {
        self.waited().queues.keys().cloned().collect()
    }

    /// Those of which the store should tell: as many as it can, first those of which it does.
    fn to_watch(&self) -> Vec<String> {
        let waited = self.waited();
        let of = |watched: bool| waited.queues.iter().filter(move |(_, queue)| queue.watched == watched);
        of(true).chain(of(false)).take(ENDS_QUEUES_MAX).map(|(name, _)| name.clone()).collect()
    }

    /// Whether the store tells of this queue.
    fn is_watched(&self, queue: &str) -> bool {
        self.waited().queues.get(queue).is_some_and(|queue| queue.watched)
    }

    fn are_all_watched(&self) -> bool {
        self.waited().queues.values().all(|queue| queue.watched)
    }

    fn now_watched(&self, queues: &[String]) {
        let mut waited = self.waited();
        for queue in queues {
            if let Some(queue) = waited.queues.get_mut(queue) {
                queue.watched = true;
            }
        }
    }

    /// The jobs of a queue that are waited for.
    fn jobs_of(&self, queue: &str) -> Vec<JobId> {
        self.waited().queues.get(queue).map_or_else(Vec::new, |queue| queue.jobs.iter().copied().collect())
    }
}

/// One who waits; ends when dropped.
struct Waiter {
    inner: Arc<Inner>,
    id: JobId,
    told: Arc<Notify>,
}

impl Waiter {
    fn new(inner: &Arc<Inner>, id: JobId, queue: &str) -> Result<Self> {
        let mut waited = inner.ends.waited();
        if !waited.jobs.contains_key(&id) {
            if waited.jobs.len() >= WAITED_MAX {
                let why = format!("{WAITED_MAX} jobs are waited for in this process already; wait for some of them");
                return Err(Error::store("wait", why));
            }
            waited.queues.entry(queue.to_owned()).or_default().jobs.insert(id);
        }
        let new = || Awaited { queue: queue.to_owned(), waiters: 0, told: Arc::default() };
        let job = waited.jobs.entry(id).or_insert_with(new);
        job.waiters += 1;
        Ok(Waiter { inner: inner.clone(), id, told: job.told.clone() })
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut waited = self.inner.ends.waited();
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

impl Hall {
    /// The job once it is done or dead; `None` if it is not in the store, or not any more.
    pub(crate) async fn ended(&self, id: JobId) -> Result<Option<Record>> {
        let store = &self.inner.store;
        let Some(record) = store.get(id).await? else {
            return Ok(None);
        };
        if record.state.is_final() {
            return Ok(Some(record));
        }
        self.attended().await?;
        let waiter = Waiter::new(&self.inner, id, &record.job.queue)?;
        let mut told = std::pin::pin!(waiter.told.notified());
        told.as_mut().enable();
        self.keep_ends();
        self.watched(&record.job.queue).await;
        loop {
            // After the store has begun to tell: what ended before is seen here, what ends after is told.
            match store.get(id).await? {
                Some(record) if !record.state.is_final() => {}
                ended => return Ok(ended),
            }
            told.as_mut().await;
            told.set(waiter.told.notified());
            told.as_mut().enable();
        }
    }

    /// Asks the store to tell of this queue, unless it does. If it cannot, the looks must do.
    async fn watched(&self, queue: &str) {
        let (inner, about) = (self.inner.clone(), queue.to_owned());
        // There: one who waits may not be polled for long, and others would wait for the same.
        let watched = self.inner.there("watch_ends", async move { inner.watch_ends(Some(&about)).await }).await;
        if let Err(error) = watched {
            tracing::debug!(%error, "the store tells nothing of ends; looking instead");
        }
        if !self.inner.ends.is_watched(queue) {
            self.inner.ends.look.notify_one();
        }
    }

    /// Somebody waits: from now on somebody looks after that.
    fn keep_ends(&self) {
        if !std::mem::replace(&mut self.inner.ends.waited().kept, true) {
            self.spawn(keep(self.inner.clone()));
        }
    }
}

impl Inner {
    /// Asks the store to tell of what is waited for, unless this is about a queue of which it does.
    async fn watch_ends(&self, about: Option<&str>) -> Result<()> {
        // What is waited for is read under it: an older list must not come after a newer one.
        let _asking = self.ends.asking.lock().await;
        if about.is_some_and(|queue| self.ends.is_watched(queue)) {
            return Ok(());
        }
        let queues = self.ends.to_watch();
        self.store.watch_ends(self.node, &queues).await?;
        self.ends.now_watched(&queues);
        Ok(())
    }

    /// Looks once through everything that is waited for here, in bounded steps.
    async fn look_for_ends(&self) -> Result<()> {
        for queue in self.ends.queues() {
            for some in self.ends.jobs_of(&queue).chunks(ENDED_MAX) {
                let ended = self.store.ended(&queue, some.to_vec()).await?;
                if !ended.is_empty() {
                    self.ends.tell(&ended);
                }
            }
        }
        Ok(())
    }

    /// Asks the store to go on telling, and looks for what was lost; answers when to do it again.
    async fn mind_ends(&self) -> Duration {
        let watched = self.watch_ends(None).await;
        let looked = self.look_for_ends().await;
        match (watched, looked) {
            (Ok(()), Ok(())) if self.ends.are_all_watched() => LOOK,
            (Ok(()) | Err(Error::Unsupported { .. }), Ok(())) => LOOK_UNTOLD,
            (_, Err(error)) | (Err(error), _) => {
                tracing::debug!(%error, "the store does not say which jobs have ended");
                LOOK_AGAIN
            }
        }
    }
}

/// Looks after those who wait, until nobody does.
async fn keep(inner: Arc<Inner>) {
    let mut next = LOOK;
    loop {
        tokio::select! {
            () = tokio::time::sleep(next) => {}
            () = inner.ends.look.notified() => {}
            () = inner.stop.cancelled() => return,
        }
        {
            let mut waited = inner.ends.waited();
            if waited.jobs.is_empty() {
                waited.kept = false;
                break;
            }
        }
        let began = clock::tick();
        next = inner.mind_ends().await;
        // Not more often than this, however often something is missed, and however many wait.
        let rest = tokio::time::sleep(LOOK_MISSED.max((clock::tick() - began) * REST));
        if inner.stop.run_until_cancelled(rest).await.is_none() {
            return;
        }
    }
    // Nobody need tell us any more; who waits anew says so anew.
    if let Err(error) = inner.watch_ends(None).await {
        tracing::debug!(%error, "the store tells of ends a little longer");
    }
}
