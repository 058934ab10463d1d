//! Waiting for locks: a place in a line of the store, and somebody here who is told when it is its turn.
//!
//! Who wants a lock asks for it once itself, which is fastest if it is free. From then on, or from the first turn that comes
//! for it, the hall's own thread asks: a future that nobody polls must not hold up the line. What is got for it there is not
//! extended before it is picked up, so it ends by itself if that never happens.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::error::{Error, Result};
use crate::lock::backoff_delay;
use crate::lock::renewal::HeldLock;
use crate::peers::{Peers, PeersInner};
use crate::store::{LOCK_WAITS_MAX, LockOwner, LockReply, LockRequest};

/// A hold that ends at a moment has ended a little later.
const EXPIRY_MARGIN: Duration = Duration::from_millis(1);
/// How long at most until the first in line looks, however long the hold may last.
const RECHECK_DELAY_MAX: Duration = Duration::from_secs(30);
/// How long the answer to an ask may be under way: whoever gives up before it has come must say so once more after it.
const LATE_REPLY_MAX: Duration = Duration::from_secs(10);

/// Somebody here who wants a lock.
struct LockWait {
    request: LockRequest,
    /// What was got for it, until it is picked up.
    result: Mutex<Option<Result<Arc<HeldLock>>>>,
    result_ready: Notify,
    /// It may be its turn.
    recheck: Notify,
    /// The first in line will look by itself when the hold ends.
    has_timer: AtomicBool,
    /// The store has answered that it stands in line.
    is_queued: AtomicBool,
    /// The hall's thread asks for it from now on, or nobody needs to any more.
    is_handed_over: AtomicBool,
    /// It is in the hands of who wanted it.
    is_taken: AtomicBool,
    /// Why the store has not answered, if it did not the last time.
    last_error: Mutex<Option<String>>,
    /// Nobody waits any more.
    ended: CancellationToken,
}

impl LockWait {
    fn result(&self) -> MutexGuard<'_, Option<Result<Arc<HeldLock>>>> {
        self.result.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn last_error(&self) -> MutexGuard<'_, Option<String>> {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When to look although nobody says so: only the first in line does, when the hold ends.
    fn schedule_recheck(&self, taken: &LockReply) -> Option<Duration> {
        let after = taken.expires_in.map(|ends| ends + EXPIRY_MARGIN).filter(|_| taken.waiters_ahead == 0);
        self.has_timer.store(after.is_some(), Ordering::SeqCst);
        self.is_queued.store(true, Ordering::SeqCst);
        after
    }
}

/// All who wait here.
#[derive(Default)]
pub(crate) struct LockWaiters {
    waits: Mutex<HashMap<LockOwner, Arc<LockWait>>>,
}

impl LockWaiters {
    fn waits(&self) -> MutexGuard<'_, HashMap<LockOwner, Arc<LockWait>>> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The locks that are waited for; if they are too many to ask after at once, some of them.
    pub(crate) fn lock_names(&self) -> Vec<String> {
        let waiting = self.waits();
        let names: BTreeSet<&str> = waiting.values().map(|waiting| waiting.request.name.as_str()).collect();
        let skip = if names.len() > LOCK_WAITS_MAX { fastrand::usize(..names.len()) } else { 0 };
        names.iter().cycle().skip(skip).take(names.len().min(LOCK_WAITS_MAX)).map(|name| (*name).to_owned()).collect()
    }

    /// Who should have a place in which line; if they are too many to ask after at once, some of them.
    pub(crate) fn queued_waits(&self) -> Vec<(String, LockOwner)> {
        let waiting = self.waits();
        let skip = if waiting.len() > LOCK_WAITS_MAX { fastrand::usize(..waiting.len()) } else { 0 };
        // In one order, so that each has its turn.
        let all: BTreeMap<LockOwner, &Arc<LockWait>> = waiting
            .iter()
            .filter(|(_, one)| one.is_queued.load(Ordering::SeqCst))
            .map(|(owner, one)| (*owner, one))
            .collect();
        let some = all.iter().cycle().skip(skip).take(all.len().min(LOCK_WAITS_MAX));
        some.map(|(owner, one)| (one.request.name.clone(), *owner)).collect()
    }

    /// Something may have been missed: all look.
    pub(crate) fn recheck_all(&self) {
        self.waits().values().for_each(|waiting| waiting.recheck.notify_one());
    }

    /// All who wait for this lock look.
    pub(crate) fn recheck_lock(&self, name: &str) {
        let waiting = self.waits();
        waiting
            .values()
            .filter(|waiting| waiting.request.name == name)
            .for_each(|waiting| waiting.recheck.notify_one());
    }

    /// It may be this owner's turn, or will be in so long. Answers who waits here, if it is one of ours.
    fn recheck_owner(&self, owner: LockOwner, ends: Duration) -> Option<Arc<LockWait>> {
        let waiting = self.waits().get(&owner).cloned()?;
        if ends.is_zero() || !waiting.has_timer.load(Ordering::SeqCst) {
            waiting.recheck.notify_one();
        }
        Some(waiting)
    }
}

/// The wish for a lock; dropped, whatever it has got so far is given up.
pub(crate) struct LockWaitHandle {
    peers: Arc<Peers>,
    wait: Arc<LockWait>,
    /// The store has answered what was asked here: nothing of it is under way.
    is_answered: AtomicBool,
}

impl Peers {
    pub(crate) fn start_lock_wait(self: &Arc<Self>, ask: LockRequest) -> LockWaitHandle {
        let waiting = Arc::new(LockWait {
            request: ask,
            result: Mutex::default(),
            result_ready: Notify::new(),
            recheck: Notify::new(),
            has_timer: AtomicBool::new(false),
            is_queued: AtomicBool::new(false),
            is_handed_over: AtomicBool::new(false),
            is_taken: AtomicBool::new(false),
            last_error: Mutex::default(),
            ended: CancellationToken::new(),
        });
        if waiting.request.wait {
            // Before it is asked for, so that a turn that comes at once is not missed.
            self.inner.lock_waiters.waits().insert(waiting.request.owner, waiting.clone());
        }
        LockWaitHandle { peers: self.clone(), wait: waiting, is_answered: AtomicBool::new(false) }
    }
}

impl LockWaitHandle {
    /// Asks for the first time, and again if the answer was lost or the store did not answer.
    pub(crate) async fn request_first(&self) -> Result<Option<Arc<HeldLock>>> {
        let (inner, waiting) = (&self.peers.inner, &self.wait);
        let mut failures = 0;
        loop {
            let asked = inner.clock.since_boot();
            match inner.store.lock(&waiting.request).await {
                Ok(taken) => {
                    let held =
                        taken.hold.map(|hold| HeldLock::new(waiting.request.clone(), hold, inner.clock.clone(), asked));
                    // The answer took longer than the hold lasts: somebody else may have it by now.
                    if held.as_ref().is_some_and(|held| held.is_expired()) {
                        if !waiting.request.wait {
                            return Err(late_reply_error(&waiting.request));
                        }
                        failures += 1;
                        tokio::time::sleep(backoff_delay(failures)).await;
                        continue;
                    }
                    self.is_answered.store(true, Ordering::SeqCst);
                    *waiting.last_error() = None;
                    return Ok(self.handle_first_reply(held, &taken));
                }
                // Who does not want to wait for the lock does not wait for the store either.
                Err(error) if !error.is_retryable() || !waiting.request.wait => return Err(error),
                Err(error) => {
                    tracing::warn!(lock = waiting.request.name, %error, "not answered; asked again");
                    *waiting.last_error() = Some(error.to_string());
                    failures += 1;
                    tokio::time::sleep(backoff_delay(failures)).await;
                }
            }
        }
    }

    /// Why nobody knows how the lock stands, if the store did not answer when it was last asked.
    pub(crate) fn last_error(&self) -> Option<String> {
        let asked_once = self.is_answered.load(Ordering::SeqCst) || self.wait.is_handed_over.load(Ordering::SeqCst);
        let never = (!asked_once).then(|| "it has not said anything yet".to_owned());
        self.wait.last_error().clone().or(never)
    }

    /// Resolves when it is held, or will never be.
    pub(crate) async fn wait_for_turn(&self) -> Result<Arc<HeldLock>> {
        loop {
            let got_it = self.wait.result_ready.notified();
            // One that nobody picked up in time stays: it is given up and asked for anew by who got it.
            let got = self.wait.result().take_if(|got| !got.as_ref().is_ok_and(|held| held.is_expired()));
            match got {
                Some(Ok(held)) => return Ok(self.take_hold(held)),
                Some(Err(error)) => return Err(error),
                None => {}
            }
            got_it.await;
        }
    }

    /// What follows from the first answer. From here on one asks: who wanted it has it, or the hall's thread asks for it.
    fn handle_first_reply(&self, held: Option<Arc<HeldLock>>, taken: &LockReply) -> Option<Arc<HeldLock>> {
        let waiting = &self.wait;
        if waiting.is_handed_over.swap(true, Ordering::SeqCst) {
            // A turn came before the answer, and the hall's thread asks: it finds the same hold if it looks once more.
            if held.is_some() {
                waiting.recheck.notify_one();
            }
            return None;
        }
        match held {
            Some(held) => return Some(self.take_hold(held)),
            None if waiting.request.wait => self.peers.inner.spawn_lock_wait(waiting, waiting.schedule_recheck(taken)),
            None => self.finish(),
        }
        None
    }

    /// It is held. It is guarded before it leaves the line: a turn that comes late must find somebody who wants it,
    /// or it would be given up as nobody's.
    fn take_hold(&self, held: Arc<HeldLock>) -> Arc<HeldLock> {
        self.peers.add_held_lock(held.clone());
        self.finish();
        held
    }

    /// It is held, or was only asked for once.
    fn finish(&self) {
        self.wait.is_taken.store(true, Ordering::SeqCst);
        self.peers.inner.lock_waiters.waits().remove(&self.wait.request.owner);
        self.wait.ended.cancel();
    }
}

impl Drop for LockWaitHandle {
    fn drop(&mut self) {
        if self.wait.is_taken.load(Ordering::SeqCst) {
            return;
        }
        self.peers.inner.lock_waiters.waits().remove(&self.wait.request.owner);
        // If the hall's thread asks for it, it gives it up: an ask of its own must not be overtaken.
        self.wait.ended.cancel();
        if self.is_answered.load(Ordering::SeqCst) {
            return;
        }
        let (inner, ask) = (self.peers.inner.clone(), self.wait.request.clone());
        self.peers.spawn(async move {
            inner.abandon_lock(&ask).await;
            if inner.stop.run_until_cancelled(tokio::time::sleep(LATE_REPLY_MAX)).await.is_some() {
                inner.abandon_lock(&ask).await;
            }
        });
    }
}

impl PeersInner {
    /// It may be this owner's turn, or will be in so long. Answers whether it waits here.
    pub(crate) fn recheck_waiter(self: &Arc<Self>, owner: LockOwner, ends: Duration) -> bool {
        let Some(waiting) = self.lock_waiters.recheck_owner(owner, ends) else {
            return false;
        };
        // Who wants it has asked, and may not be polled for long: those behind it do not wait for that.
        if !waiting.is_handed_over.swap(true, Ordering::SeqCst) {
            self.spawn_lock_wait(&waiting, Some(Duration::ZERO));
        }
        true
    }

    /// From now on the hall's thread asks.
    fn spawn_lock_wait(self: &Arc<Self>, waiting: &Arc<LockWait>, look_after: Option<Duration>) {
        let (inner, waiting) = (self.clone(), waiting.clone());
        self.spawn(async move { inner.run_lock_wait(&waiting, look_after).await });
    }

    /// Asks for a lock whenever it may be its turn, until nobody waits for it any more.
    async fn run_lock_wait(&self, waiting: &LockWait, mut look_after: Option<Duration>) {
        let mut failures = 0;
        loop {
            tokio::select! {
                () = waiting.recheck.notified() => {}
                () = sleep_or_pend(look_after) => {}
                () = waiting.ended.cancelled() => return self.abandon_unless_taken(waiting).await,
            }
            let asked = self.clock.since_boot();
            match self.store.lock(&waiting.request).await {
                Ok(LockReply { hold: Some(hold), .. }) => {
                    let held = HeldLock::new(waiting.request.clone(), hold, self.clock.clone(), asked);
                    let left = held.remaining();
                    waiting.is_queued.store(false, Ordering::SeqCst);
                    *waiting.result() = Some(Ok(held));
                    waiting.result_ready.notify_one();
                    tokio::select! {
                        () = waiting.ended.cancelled() => return self.abandon_unless_taken(waiting).await,
                        () = tokio::time::sleep(left) => {}
                    }
                    // Picked up in the last moment, and a guard's by now.
                    if waiting.result().take().is_none() {
                        return;
                    }
                    // Nobody has picked it up: the next in line gets it, and this one goes to the end.
                    self.abandon_lock(&waiting.request).await;
                    look_after = Some(Duration::ZERO);
                }
                Ok(taken) => {
                    failures = 0;
                    *waiting.last_error() = None;
                    look_after = waiting.schedule_recheck(&taken);
                }
                Err(error) if !error.is_retryable() => {
                    *waiting.result() = Some(Err(error));
                    waiting.result_ready.notify_one();
                    waiting.ended.cancelled().await;
                    return self.abandon_unless_taken(waiting).await;
                }
                Err(error) => {
                    tracing::debug!(lock = waiting.request.name, %error, "not answered; asked again");
                    *waiting.last_error() = Some(error.to_string());
                    failures += 1;
                    look_after = Some(backoff_delay(failures));
                }
            }
        }
    }

    /// Nobody waits any more: because it was picked up, or because it was given up.
    async fn abandon_unless_taken(&self, waiting: &LockWait) {
        if !waiting.is_taken.load(Ordering::SeqCst) {
            self.abandon_lock(&waiting.request).await;
        }
    }
}

fn late_reply_error(ask: &LockRequest) -> Error {
    let reason = format!("the store took longer to answer than {} lasts ({:?})", ask.name, ask.ttl);
    Error::Timeout { op: "lock", reason }
}

/// Until it is time to look; for ever if nobody knows when: then it is told, and signs of life find a place that is gone.
/// So most of those who wait hold no timer.
async fn sleep_or_pend(time: Option<Duration>) {
    match time {
        Some(time) => tokio::time::sleep(time.min(RECHECK_DELAY_MAX)).await,
        None => std::future::pending().await,
    }
}
