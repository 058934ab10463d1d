//! Waiting for locks: an entry among the store's waiters, and a local task that is notified when it is its turn.
//!
//! The caller sends the first request itself, which is fastest if the lock is free. After that, or from the first
//! notification on, the peer thread sends the requests, so that a future that is not polled does not block other
//! waiters.
//! A hold acquired by the thread is not extended until the caller takes it, so it expires if the caller never does.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::error::{Error, Result};
use crate::lock::backoff_delay;
use crate::lock::renewal::HeldLock;
use crate::peers::{Peers, PeersInner};
use crate::store::{LOCK_WAITS_MAX, LockOwner, LockReply, LockRequest, LockStore};
use crate::sync::LockExt;

/// Wait this much longer than a hold lasts, so that it has surely expired.
const EXPIRY_MARGIN: Duration = Duration::from_millis(1);
/// Longest delay until the first waiter requests the lock again, however long the hold lasts.
const RECHECK_DELAY_MAX: Duration = Duration::from_secs(30);
/// Longest delay of a reply. A caller that gives up earlier must release the lock again after this time.
const LATE_REPLY_MAX: Duration = Duration::from_secs(10);

/// A local wait for a lock.
struct LockWait {
    request: LockRequest,
    /// The result, until the caller takes it.
    result: Mutex<Option<Result<Arc<HeldLock>>>>,
    result_ready: Notify,
    /// Notified when it may be its turn.
    recheck: Notify,
    /// Whether a timer requests the lock again when the hold expires; only the first waiter has one.
    has_timer: AtomicBool,
    /// Whether the store has confirmed the wait.
    is_queued: AtomicBool,
    /// Whether the peer thread sends the requests from now on, or none are needed any more.
    is_handed_over: AtomicBool,
    /// Whether the caller has taken the result.
    is_taken: AtomicBool,
    /// The error of the last request, if it failed.
    last_error: Mutex<Option<String>>,
    /// Cancelled when the caller no longer waits.
    ended: CancellationToken,
}

impl LockWait {
    fn result(&self) -> MutexGuard<'_, Option<Result<Arc<HeldLock>>>> {
        self.result.lock_unpoisoned()
    }

    fn last_error(&self) -> MutexGuard<'_, Option<String>> {
        self.last_error.lock_unpoisoned()
    }

    /// Returns when to request the lock without a notification: only for the first waiter, when the hold expires.
    fn schedule_recheck(&self, reply: &LockReply) -> Option<Duration> {
        let delay = reply.expires_in.map(|expires| expires + EXPIRY_MARGIN).filter(|_| reply.waiters_ahead == 0);
        self.has_timer.store(delay.is_some(), Ordering::SeqCst);
        self.is_queued.store(true, Ordering::SeqCst);
        delay
    }
}

/// All local waits.
#[derive(Default)]
pub(crate) struct LockWaiters {
    waits: Mutex<HashMap<LockOwner, Arc<LockWait>>>,
}

impl LockWaiters {
    fn waits(&self) -> MutexGuard<'_, HashMap<LockOwner, Arc<LockWait>>> {
        self.waits.lock_unpoisoned()
    }

    /// Returns the awaited locks, or a random part of them if there are too many for one announcement.
    pub(crate) fn lock_names(&self) -> Vec<String> {
        let waits = self.waits();
        let names: BTreeSet<&str> = waits.values().map(|wait| wait.request.name.as_str()).collect();
        let skip = if names.len() > LOCK_WAITS_MAX { fastrand::usize(..names.len()) } else { 0 };
        names.iter().cycle().skip(skip).take(names.len().min(LOCK_WAITS_MAX)).map(|name| (*name).to_owned()).collect()
    }

    /// Returns the confirmed waits, or a random part of them if there are too many for one announcement.
    pub(crate) fn queued_waits(&self) -> Vec<(String, LockOwner)> {
        let waits = self.waits();
        let skip = if waits.len() > LOCK_WAITS_MAX { fastrand::usize(..waits.len()) } else { 0 };
        // Sorted, so that every wait is announced equally often.
        let all: BTreeMap<LockOwner, &Arc<LockWait>> = waits
            .iter()
            .filter(|(_, wait)| wait.is_queued.load(Ordering::SeqCst))
            .map(|(owner, wait)| (*owner, wait))
            .collect();
        let selected = all.iter().cycle().skip(skip).take(all.len().min(LOCK_WAITS_MAX));
        selected.map(|(owner, wait)| (wait.request.name.clone(), *owner)).collect()
    }

    /// Makes all waits request their lock, after notifications may have been lost.
    pub(crate) fn recheck_all(&self) {
        self.waits().values().for_each(|wait| wait.recheck.notify_one());
    }

    /// Makes all waits for this lock request it.
    pub(crate) fn recheck_lock(&self, name: &str) {
        let waits = self.waits();
        waits.values().filter(|wait| wait.request.name == name).for_each(|wait| wait.recheck.notify_one());
    }

    /// Requests the lock for this owner if it is free or no timer will. Returns the local wait, if there is one.
    fn recheck_owner(&self, owner: LockOwner, expires_in: Duration) -> Option<Arc<LockWait>> {
        let wait = self.waits().get(&owner).cloned()?;
        if expires_in.is_zero() || !wait.has_timer.load(Ordering::SeqCst) {
            wait.recheck.notify_one();
        }
        Some(wait)
    }
}

/// A caller's wait for a lock. Dropping it cancels the wait and releases what it acquired.
pub(crate) struct LockWaitHandle {
    peers: Arc<Peers>,
    wait: Arc<LockWait>,
    /// Whether the store has replied to the caller's own request, so that none is pending.
    has_reply: AtomicBool,
}

impl Peers {
    pub(crate) fn start_lock_wait(self: &Arc<Self>, request: LockRequest) -> LockWaitHandle {
        let wait = Arc::new(LockWait {
            request,
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
        if wait.request.wait {
            // Registered before the request, so that an immediate turn is not missed.
            self.inner.lock_waiters.waits().insert(wait.request.owner, wait.clone());
        }
        LockWaitHandle { peers: self.clone(), wait, has_reply: AtomicBool::new(false) }
    }
}

impl LockWaitHandle {
    /// Sends the first request, and repeats it if it failed or its reply was lost.
    pub(crate) async fn request_first(&self) -> Result<Option<Arc<HeldLock>>> {
        let (inner, wait) = (&self.peers.inner, &self.wait);
        let mut failures = 0;
        loop {
            let requested = inner.clock.since_boot();
            match inner.store.lock(&wait.request).await {
                Ok(reply) => {
                    let held = reply
                        .hold
                        .map(|hold| HeldLock::new(wait.request.clone(), hold, inner.clock.clone(), requested));
                    // The reply took longer than the hold lasts: another owner may have the lock by now.
                    if held.as_ref().is_some_and(|held| held.is_expired()) {
                        if !wait.request.wait {
                            return Err(late_reply_error(&wait.request));
                        }
                        failures += 1;
                        tokio::time::sleep(backoff_delay(failures)).await;
                        continue;
                    }
                    self.has_reply.store(true, Ordering::SeqCst);
                    *wait.last_error() = None;
                    return Ok(self.handle_first_reply(held, &reply));
                }
                // A caller that does not wait for the lock does not wait for the store either.
                Err(error) if !error.is_retryable() || !wait.request.wait => return Err(error),
                Err(error) => {
                    tracing::warn!(lock = wait.request.name, %error, "the lock request failed; retrying");
                    *wait.last_error() = Some(error.to_string());
                    failures += 1;
                    tokio::time::sleep(backoff_delay(failures)).await;
                }
            }
        }
    }

    /// Returns the store error if the last request failed or no reply has arrived yet.
    pub(crate) fn last_error(&self) -> Option<String> {
        let is_pending = !self.has_reply.load(Ordering::SeqCst) && !self.wait.is_handed_over.load(Ordering::SeqCst);
        let no_reply = is_pending.then(|| "no reply yet".to_owned());
        self.wait.last_error().clone().or(no_reply)
    }

    /// Waits until the lock is held, or can never be.
    pub(crate) async fn wait_for_turn(&self) -> Result<Arc<HeldLock>> {
        loop {
            let ready = self.wait.result_ready.notified();
            // An expired hold stays: the peer thread releases it and requests the lock again.
            let result = self.wait.result().take_if(|result| !result.as_ref().is_ok_and(|held| held.is_expired()));
            match result {
                Some(Ok(held)) => return Ok(self.take_hold(held)),
                Some(Err(error)) => return Err(error),
                None => {}
            }
            ready.await;
        }
    }

    /// Handles the first reply. From here on, either the caller has the lock or the peer thread requests it.
    fn handle_first_reply(&self, held: Option<Arc<HeldLock>>, reply: &LockReply) -> Option<Arc<HeldLock>> {
        let wait = &self.wait;
        if wait.is_handed_over.swap(true, Ordering::SeqCst) {
            // A turn came before the reply, so the peer thread requests the lock; it finds the same hold.
            if held.is_some() {
                wait.recheck.notify_one();
            }
            return None;
        }
        match held {
            Some(held) => return Some(self.take_hold(held)),
            None if wait.request.wait => self.peers.inner.spawn_lock_wait(wait, wait.schedule_recheck(reply)),
            None => self.finish(),
        }
        None
    }

    /// Registers the hold before it removes the wait: a late turn must find an owner, or the lock would be released.
    fn take_hold(&self, held: Arc<HeldLock>) -> Arc<HeldLock> {
        self.peers.add_held_lock(held.clone());
        self.finish();
        held
    }

    /// Ends the wait: the lock is held, or the caller does not wait for it.
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
        // If the peer thread requests the lock, it releases it too, so that its own request is not overtaken.
        self.wait.ended.cancel();
        if self.has_reply.load(Ordering::SeqCst) {
            return;
        }
        let (inner, request) = (self.peers.inner.clone(), self.wait.request.clone());
        self.peers.spawn(async move {
            inner.abandon_lock(&request).await;
            if inner.stop.run_until_cancelled(tokio::time::sleep(LATE_REPLY_MAX)).await.is_some() {
                inner.abandon_lock(&request).await;
            }
        });
    }
}

impl PeersInner {
    /// Checks this owner's turn, with the time until the hold expires. Returns whether it waits here.
    pub(crate) fn recheck_waiter(self: &Arc<Self>, owner: LockOwner, expires_in: Duration) -> bool {
        let Some(wait) = self.lock_waiters.recheck_owner(owner, expires_in) else {
            return false;
        };
        // The caller may not be polled for a long time, and the waiters behind it must not wait for that.
        if !wait.is_handed_over.swap(true, Ordering::SeqCst) {
            self.spawn_lock_wait(&wait, Some(Duration::ZERO));
        }
        true
    }

    /// Lets the peer thread request the lock from now on.
    fn spawn_lock_wait(self: &Arc<Self>, wait: &Arc<LockWait>, recheck_after: Option<Duration>) {
        let (inner, wait) = (self.clone(), wait.clone());
        self.spawn(async move { inner.run_lock_wait(&wait, recheck_after).await });
    }

    /// Requests the lock whenever it may be its turn, until the caller no longer waits.
    async fn run_lock_wait(&self, wait: &LockWait, mut recheck_after: Option<Duration>) {
        let mut failures = 0;
        loop {
            tokio::select! {
                () = wait.recheck.notified() => {}
                () = sleep_or_pend(recheck_after) => {}
                () = wait.ended.cancelled() => return self.abandon_unless_taken(wait).await,
            }
            let requested = self.clock.since_boot();
            match self.store.lock(&wait.request).await {
                Ok(LockReply { hold: Some(hold), .. }) => {
                    let held = HeldLock::new(wait.request.clone(), hold, self.clock.clone(), requested);
                    let remaining = held.remaining();
                    wait.is_queued.store(false, Ordering::SeqCst);
                    *wait.result() = Some(Ok(held));
                    wait.result_ready.notify_one();
                    tokio::select! {
                        () = wait.ended.cancelled() => return self.abandon_unless_taken(wait).await,
                        () = tokio::time::sleep(remaining) => {}
                    }
                    // The caller took it at the last moment, and a guard has it now.
                    if wait.result().take().is_none() {
                        return;
                    }
                    // The caller did not take it: the next waiter gets the lock, and this one goes to the end.
                    self.abandon_lock(&wait.request).await;
                    recheck_after = Some(Duration::ZERO);
                }
                Ok(reply) => {
                    failures = 0;
                    *wait.last_error() = None;
                    recheck_after = wait.schedule_recheck(&reply);
                }
                Err(error) if !error.is_retryable() => {
                    *wait.result() = Some(Err(error));
                    wait.result_ready.notify_one();
                    wait.ended.cancelled().await;
                    return self.abandon_unless_taken(wait).await;
                }
                Err(error) => {
                    tracing::debug!(lock = wait.request.name, %error, "the lock request failed; retrying");
                    *wait.last_error() = Some(error.to_string());
                    failures += 1;
                    recheck_after = Some(backoff_delay(failures));
                }
            }
        }
    }

    /// Releases the lock unless the caller has taken it.
    async fn abandon_unless_taken(&self, wait: &LockWait) {
        if !wait.is_taken.load(Ordering::SeqCst) {
            self.abandon_lock(&wait.request).await;
        }
    }
}

fn late_reply_error(request: &LockRequest) -> Error {
    let (name, ttl) = (&request.name, request.ttl);
    let reason = format!("timed out: the store took longer to reply than lock {name:?} lasts ({ttl:?}); try again");
    Error::Timeout { op: "lock", reason }
}

/// Sleeps for this time, or forever if `None`: then a notification wakes the wait, and announcements find a lost one.
/// So most waits need no timer.
async fn sleep_or_pend(time: Option<Duration>) {
    match time {
        Some(time) => tokio::time::sleep(time.min(RECHECK_DELAY_MAX)).await,
        None => std::future::pending().await,
    }
}
