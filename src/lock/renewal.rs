//! Locks that are held here: extended long before they end, lost at their end whatever the store says.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::clock::{Clock, Micros, micros};
use crate::error::Result;
use crate::job::Fence;
use crate::peers::{Peers, PeersInner};
use crate::store::{LOCK_EXTENDS_MAX, LockOwner, LockRequest};

/// A hold is extended when so much of its time is over.
const EXTEND_AFTER_FRACTION: f64 = 1.0 / 3.0;
/// After a failed extension the next one is tried after this part of the time.
const RETRY_AFTER_FRACTION: f64 = 1.0 / 10.0;
/// The same where it may be lost already, at most.
const CHECK_RETRY_MAX: Duration = Duration::from_secs(1);
/// Holds that are due so soon are extended together.
const BATCH_WINDOW_FRACTION: f64 = 1.0 / 20.0;
/// Our clock may run a little slower than the store's: by our own count a hold ends so much sooner.
const CLOCK_DRIFT_FRACTION: f64 = 0.01;
/// How long the thread sleeps at most, so that a clock that a test moves is seen.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// A hold of a lock, shared by its guard and the thread that extends it.
pub(crate) struct HeldLock {
    pub(crate) request: LockRequest,
    pub(crate) fence: Fence,
    pub(crate) slot: u32,
    clock: Clock,
    /// From this moment on somebody else may hold it, by our own clock.
    deadline: AtomicI64,
    extend_at: AtomicI64,
    /// Something may have happened to it since it was last asked for.
    needs_check: AtomicBool,
    /// Released, or about to be: nobody extends it any more.
    stopped: AtomicBool,
    released: AtomicBool,
    lost: CancellationToken,
}

impl HeldLock {
    /// A hold that was asked for at this moment.
    pub(crate) fn new(ask: LockRequest, (fence, slot): (Fence, u32), clock: Clock, asked: Micros) -> Arc<Self> {
        let held = HeldLock {
            request: ask,
            fence,
            slot,
            clock,
            deadline: AtomicI64::new(0),
            extend_at: AtomicI64::new(0),
            needs_check: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            released: AtomicBool::new(false),
            lost: CancellationToken::new(),
        };
        held.set_deadline_from(asked);
        Arc::new(held)
    }

    /// The store has let it last for its time from some moment after this one.
    fn set_deadline_from(&self, asked: Micros) {
        let ttl = micros(self.request.ttl);
        self.deadline.store(asked + ttl - fraction_of(ttl, CLOCK_DRIFT_FRACTION), Ordering::SeqCst);
        // What was doubted since that was asked is asked again.
        let again =
            if self.needs_check.load(Ordering::SeqCst) { 0 } else { asked + fraction_of(ttl, EXTEND_AFTER_FRACTION) };
        self.extend_at.store(again, Ordering::SeqCst);
    }

    fn mark_for_check(&self) {
        self.needs_check.store(true, Ordering::SeqCst);
        self.extend_at.store(0, Ordering::SeqCst);
    }

    /// When to try again, if an extension that is tried now fails.
    fn retry_at(&self, now: Micros) -> Micros {
        let after = fraction_of(micros(self.request.ttl), RETRY_AFTER_FRACTION);
        now + if self.needs_check.load(Ordering::SeqCst) { after.min(micros(CHECK_RETRY_MAX)) } else { after }
    }

    /// By our own clock its time is over.
    pub(crate) fn is_expired(&self) -> bool {
        self.clock.since_boot() >= self.deadline.load(Ordering::SeqCst)
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost.is_cancelled() || self.is_expired()
    }

    pub(crate) async fn lost(&self) {
        self.lost.cancelled().await;
    }

    pub(crate) fn remaining(&self) -> Duration {
        let left = self.deadline.load(Ordering::SeqCst) - self.clock.since_boot();
        if self.lost.is_cancelled() { Duration::ZERO } else { Duration::from_micros(u64::try_from(left).unwrap_or(0)) }
    }

    /// From now on nobody extends it.
    pub(crate) fn stop_renewal(&self) {
        self.stopped.store(true, Ordering::SeqCst);
    }

    /// The store knows that it is not held any more.
    pub(crate) fn mark_released(&self) {
        self.released.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_released(&self) -> bool {
        self.released.load(Ordering::SeqCst)
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }
}

/// All locks that are held here.
pub(crate) struct HeldLocks {
    held: Mutex<HashMap<LockOwner, Arc<HeldLock>>>,
    clock: Clock,
    /// Until when the thread sleeps; written under the mutex of `held`.
    asleep_until: AtomicI64,
    /// There is one that is due sooner.
    wake: Notify,
}

impl HeldLocks {
    pub(crate) fn new(clock: Clock) -> Self {
        HeldLocks { held: Mutex::default(), clock, asleep_until: AtomicI64::new(Micros::MAX), wake: Notify::new() }
    }

    fn held(&self) -> MutexGuard<'_, HashMap<LockOwner, Arc<HeldLock>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn len(&self) -> usize {
        self.held().len()
    }

    /// Something may have happened to the lock of this owner: it is extended at once, or found lost.
    /// Answers whether there is such a lock here.
    pub(crate) fn check_soon(&self, owner: LockOwner) -> bool {
        let held = self.held().get(&owner).cloned();
        if let Some(held) = &held {
            held.mark_for_check();
            self.wake.notify_one();
        }
        held.is_some()
    }

    /// Something may have happened to any of them, and nobody was told.
    pub(crate) fn check_all_soon(&self) {
        let held = self.held();
        held.values().for_each(|held| held.mark_for_check());
        if !held.is_empty() {
            self.wake.notify_one();
        }
    }

    /// How long until something is to be done.
    fn next_delay(&self) -> Duration {
        let now = self.clock.since_boot();
        let held = self.held();
        let at = |held: &Arc<HeldLock>| held.extend_at.load(Ordering::SeqCst).min(held.deadline.load(Ordering::SeqCst));
        let until = held.values().map(at).min().unwrap_or(Micros::MAX).min(now + micros(SLEEP_MAX));
        self.asleep_until.store(until, Ordering::SeqCst);
        Duration::from_micros(u64::try_from(until - now).unwrap_or(0))
    }

    /// Lets go of what is over, and takes out what is to be extended now, its next turn put off.
    fn take_due(&self) -> Vec<Arc<HeldLock>> {
        let now = self.clock.since_boot();
        let mut all = self.held();
        all.retain(|_, held| {
            let over = held.is_expired();
            if over {
                held.lost.cancel();
                crate::metrics::record_lock_lost();
            }
            !over
        });
        let soon = |held: &&Arc<HeldLock>| {
            let ttl = micros(held.request.ttl);
            held.extend_at.load(Ordering::SeqCst) <= now + fraction_of(ttl, BATCH_WINDOW_FRACTION)
        };
        let none_due = !all.values().any(|held| held.extend_at.load(Ordering::SeqCst) <= now);
        if none_due {
            return Vec::new();
        }
        let due: Vec<_> = all.values().filter(soon).take(LOCK_EXTENDS_MAX).cloned().collect();
        for held in &due {
            held.extend_at.store(held.retry_at(now), Ordering::SeqCst);
        }
        due
    }
}

fn fraction_of(time: Micros, part: f64) -> Micros {
    (time as f64 * part) as Micros
}

/// Extends locks until the process goes.
pub(crate) async fn run_renewal(inner: &Arc<PeersInner>) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(inner.held_locks.next_delay()) => {}
            () = inner.held_locks.wake.notified() => {}
            () = inner.stop.cancelled() => return,
        }
        let due = inner.held_locks.take_due();
        if !due.is_empty() {
            // Beside the loop: an answer that is late must not keep another lock from being given up for lost in time.
            let task = inner.clone();
            inner.spawn(async move {
                if let Err(error) = task.extend_locks(&due).await {
                    tracing::warn!(locks = due.len(), %error, "locks could not be extended; tried again while they last");
                }
            });
        }
    }
}

impl PeersInner {
    /// Extends holds together. Those that are not ours any more are lost.
    async fn extend_locks(&self, due: &[Arc<HeldLock>]) -> Result<Vec<bool>> {
        let asked = self.clock.since_boot();
        let asks: Vec<LockRequest> =
            due.iter().filter(|held| !held.is_stopped()).map(|held| held.request.clone()).collect();
        if asks.is_empty() {
            return Ok(vec![false; due.len()]);
        }
        let doubted: Vec<_> = due.iter().filter(|held| held.needs_check.swap(false, Ordering::SeqCst)).collect();
        let answers = self.store.extend_locks(&asks).await.inspect_err(|_| {
            doubted.iter().for_each(|held| held.needs_check.store(true, Ordering::SeqCst));
        })?;
        let ours: HashMap<LockOwner, bool> = asks.iter().map(|ask| ask.owner).zip(answers).collect();
        let mut extended = Vec::with_capacity(due.len());
        for held in due {
            let ours = ours.get(&held.request.owner).copied().unwrap_or(false);
            extended.push(ours);
            if ours && !held.is_expired() {
                held.set_deadline_from(asked);
            } else if !held.is_stopped() {
                tracing::info!(lock = held.request.name, fence = held.fence.0, "the lock is lost");
                held.lost.cancel();
                // One that is not there any more was counted when its time was over.
                if self.held_locks.held().remove(&held.request.owner).is_some() {
                    crate::metrics::record_lock_lost();
                }
            }
        }
        Ok(extended)
    }
}

impl Peers {
    /// Extends this hold from now on, until it is stopped.
    pub(crate) fn add_held_lock(&self, held: Arc<HeldLock>) {
        let guards = &self.inner.held_locks;
        let mut all = guards.held();
        let at = held.extend_at.load(Ordering::SeqCst);
        all.insert(held.request.owner, held);
        // Most are due long after the thread wakes up anyway: to wake it for each would cost more than the lock.
        if at < guards.asleep_until.load(Ordering::SeqCst) {
            guards.wake.notify_one();
        }
    }

    pub(crate) fn remove_held_lock(&self, held: &HeldLock) {
        self.inner.held_locks.held().remove(&held.request.owner);
    }

    pub(crate) async fn extend_lock_now(&self, held: &Arc<HeldLock>) -> Result<bool> {
        if held.is_lost() || held.is_stopped() {
            return Ok(false);
        }
        let extended = self.inner.extend_locks(std::slice::from_ref(held)).await?;
        Ok(extended.first().copied().unwrap_or(false))
    }
}
