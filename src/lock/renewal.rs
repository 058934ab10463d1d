//! Renewal of held locks: extended well before they expire, and lost at their deadline at the latest.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::clock::{Clock, Micros, micros};
use crate::error::Result;
use crate::job::Fence;
use crate::peers::{Peers, PeersInner};
use crate::store::{LOCK_EXTENDS_MAX, LockOwner, LockRequest, LockStore};
use crate::sync::LockExt;

/// A hold is extended after this part of its duration.
const EXTEND_AFTER_FRACTION: f64 = 1.0 / 3.0;
/// A failed extension is retried after this part of the duration.
const RETRY_AFTER_FRACTION: f64 = 1.0 / 10.0;
/// Longest delay of that retry for a hold that may already be lost.
const CHECK_RETRY_MAX: Duration = Duration::from_secs(1);
/// Holds due within this part of their duration are extended in one batch.
const BATCH_WINDOW_FRACTION: f64 = 1.0 / 20.0;
/// The local clock may run slower than the store's, so locally a hold ends earlier by this part of its duration.
const CLOCK_DRIFT_FRACTION: f64 = 0.01;
/// Longest sleep of the thread, so that it notices a clock changed by a test.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// A hold of a lock, shared by its guard and the thread that extends it.
pub(crate) struct HeldLock {
    pub(crate) request: LockRequest,
    pub(crate) fence: Fence,
    pub(crate) slot: u32,
    clock: Clock,
    /// From this time on another owner may hold it, by the local clock.
    deadline: AtomicI64,
    extend_at: AtomicI64,
    /// Whether the hold may have been lost since the last request.
    needs_check: AtomicBool,
    /// Released or about to be: it is not extended any more.
    stopped: AtomicBool,
    released: AtomicBool,
    lost: CancellationToken,
}

impl HeldLock {
    /// Creates a hold that was requested at this time.
    pub(crate) fn new(request: LockRequest, (fence, slot): (Fence, u32), clock: Clock, requested: Micros) -> Arc<Self> {
        let held = HeldLock {
            request,
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
        held.set_deadline_from(requested);
        Arc::new(held)
    }

    /// Sets the deadline after the store granted the full duration from some time after `requested`.
    fn set_deadline_from(&self, requested: Micros) {
        let ttl = micros(self.request.ttl);
        self.deadline.store(requested + ttl - fraction_of(ttl, CLOCK_DRIFT_FRACTION), Ordering::SeqCst);
        // A hold marked for a check since that request is checked again.
        let scheduled = requested + fraction_of(ttl, EXTEND_AFTER_FRACTION);
        let extend_at = if self.needs_check.load(Ordering::SeqCst) { 0 } else { scheduled };
        self.extend_at.store(extend_at, Ordering::SeqCst);
    }

    fn mark_for_check(&self) {
        self.needs_check.store(true, Ordering::SeqCst);
        self.extend_at.store(0, Ordering::SeqCst);
    }

    /// Returns when to retry if an extension tried now fails.
    fn retry_at(&self, now: Micros) -> Micros {
        let delay = fraction_of(micros(self.request.ttl), RETRY_AFTER_FRACTION);
        now + if self.needs_check.load(Ordering::SeqCst) { delay.min(micros(CHECK_RETRY_MAX)) } else { delay }
    }

    /// Returns whether the hold has expired by the local clock.
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
        let remaining = self.deadline.load(Ordering::SeqCst) - self.clock.since_boot();
        if self.lost.is_cancelled() {
            Duration::ZERO
        } else {
            Duration::from_micros(u64::try_from(remaining).unwrap_or(0))
        }
    }

    /// Stops extending the hold.
    pub(crate) fn stop_renewal(&self) {
        self.stopped.store(true, Ordering::SeqCst);
    }

    /// Records that the store has released the hold.
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

/// All locks held by this process.
pub(crate) struct HeldLocks {
    held: Mutex<HashMap<LockOwner, Arc<HeldLock>>>,
    clock: Clock,
    /// When the thread wakes; written under the mutex of `held`.
    asleep_until: AtomicI64,
    /// Notified if a hold is due before the thread wakes.
    wake: Notify,
}

impl HeldLocks {
    pub(crate) fn new(clock: Clock) -> Self {
        HeldLocks { held: Mutex::default(), clock, asleep_until: AtomicI64::new(Micros::MAX), wake: Notify::new() }
    }

    fn held(&self) -> MutexGuard<'_, HashMap<LockOwner, Arc<HeldLock>>> {
        self.held.lock_unpoisoned()
    }

    pub(crate) fn len(&self) -> usize {
        self.held().len()
    }

    /// Marks the owner's hold for an immediate check that extends it or finds it lost. Returns whether there is one.
    pub(crate) fn check_soon(&self, owner: LockOwner) -> bool {
        let held = self.held().get(&owner).cloned();
        if let Some(held) = &held {
            held.mark_for_check();
            self.wake.notify_one();
        }
        held.is_some()
    }

    /// Marks all holds for an immediate check, after notifications may have been lost.
    pub(crate) fn check_all_soon(&self) {
        let held = self.held();
        held.values().for_each(|held| held.mark_for_check());
        if !held.is_empty() {
            self.wake.notify_one();
        }
    }

    /// Returns the time until the next hold is due.
    fn next_delay(&self) -> Duration {
        let now = self.clock.since_boot();
        let held = self.held();
        let due =
            |held: &Arc<HeldLock>| held.extend_at.load(Ordering::SeqCst).min(held.deadline.load(Ordering::SeqCst));
        let until = held.values().map(due).min().unwrap_or(Micros::MAX).min(now + micros(SLEEP_MAX));
        self.asleep_until.store(until, Ordering::SeqCst);
        Duration::from_micros(u64::try_from(until - now).unwrap_or(0))
    }

    /// Removes expired holds and returns those to extend now, with their retry scheduled.
    fn take_due(&self) -> Vec<Arc<HeldLock>> {
        let now = self.clock.since_boot();
        let mut all = self.held();
        all.retain(|_, held| {
            let is_expired = held.is_expired();
            if is_expired {
                held.lost.cancel();
                crate::metrics::record_lock_lost();
            }
            !is_expired
        });
        let is_due_soon = |held: &&Arc<HeldLock>| {
            let ttl = micros(held.request.ttl);
            held.extend_at.load(Ordering::SeqCst) <= now + fraction_of(ttl, BATCH_WINDOW_FRACTION)
        };
        let none_due = !all.values().any(|held| held.extend_at.load(Ordering::SeqCst) <= now);
        if none_due {
            return Vec::new();
        }
        let due: Vec<_> = all.values().filter(is_due_soon).take(LOCK_EXTENDS_MAX).cloned().collect();
        for held in &due {
            held.extend_at.store(held.retry_at(now), Ordering::SeqCst);
        }
        due
    }
}

fn fraction_of(time: Micros, fraction: f64) -> Micros {
    (time as f64 * fraction) as Micros
}

/// Extends locks until the process stops.
pub(crate) async fn run_renewal(inner: &Arc<PeersInner>) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(inner.held_locks.next_delay()) => {}
            () = inner.held_locks.wake.notified() => {}
            () = inner.stop.cancelled() => return,
        }
        let due = inner.held_locks.take_due();
        if !due.is_empty() {
            // In a separate task: a late reply must not delay the detection of another lost lock.
            let task = inner.clone();
            inner.spawn(async move {
                if let Err(error) = task.extend_locks(&due).await {
                    tracing::warn!(locks = due.len(), %error, "failed to extend locks; retrying until they expire");
                }
            });
        }
    }
}

impl PeersInner {
    /// Extends holds in one request. Holds that this process no longer has are lost.
    async fn extend_locks(&self, due: &[Arc<HeldLock>]) -> Result<Vec<bool>> {
        let requested = self.clock.since_boot();
        let requests: Vec<LockRequest> =
            due.iter().filter(|held| !held.is_stopped()).map(|held| held.request.clone()).collect();
        if requests.is_empty() {
            return Ok(vec![false; due.len()]);
        }
        let to_check: Vec<_> = due.iter().filter(|held| held.needs_check.swap(false, Ordering::SeqCst)).collect();
        let results = self.store.extend_locks(&requests).await.inspect_err(|_| {
            to_check.iter().for_each(|held| held.needs_check.store(true, Ordering::SeqCst));
        })?;
        let extended_by_owner: HashMap<LockOwner, bool> =
            requests.iter().map(|request| request.owner).zip(results).collect();
        let mut extended = Vec::with_capacity(due.len());
        for held in due {
            let is_extended = extended_by_owner.get(&held.request.owner).copied().unwrap_or(false);
            extended.push(is_extended);
            if is_extended && !held.is_expired() {
                held.set_deadline_from(requested);
            } else if !held.is_stopped() {
                tracing::info!(lock = held.request.name, fence = held.fence.0, "the lock is lost");
                held.lost.cancel();
                // A hold that is no longer registered was counted when it expired.
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
        let locks = &self.inner.held_locks;
        let mut all = locks.held();
        let extend_at = held.extend_at.load(Ordering::SeqCst);
        all.insert(held.request.owner, held);
        // Most holds are due long after the thread wakes anyway; waking it for each would cost more than the lock.
        if extend_at < locks.asleep_until.load(Ordering::SeqCst) {
            locks.wake.notify_one();
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
