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
use crate::peers::{Hall, Inner};
use crate::store::{EXTEND_MAX, LockAsk, Owner};

/// A hold is extended when so much of its time is over.
const EXTEND_AFTER: f64 = 1.0 / 3.0;
/// After a failed extension the next one is tried after this part of the time.
const AGAIN_AFTER: f64 = 1.0 / 10.0;
/// The same where it may be lost already, at most.
const DOUBTED_AGAIN: Duration = Duration::from_secs(1);
/// Holds that are due so soon are extended together.
const TOGETHER: f64 = 1.0 / 20.0;
/// Our clock may run a little slower than the store's: by our own count a hold ends so much sooner.
const DRIFT: f64 = 0.01;
/// How long the thread sleeps at most, so that a clock that a test moves is seen.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// A hold of a lock, shared by its guard and the thread that extends it.
pub(crate) struct HeldLock {
    pub(crate) ask: LockAsk,
    pub(crate) fence: Fence,
    pub(crate) slot: u32,
    clock: Clock,
    /// From this moment on somebody else may hold it, by our own clock.
    deadline: AtomicI64,
    extend_at: AtomicI64,
    /// Something may have happened to it since it was last asked for.
    doubted: AtomicBool,
    /// Released, or about to be: nobody extends it any more.
    stopped: AtomicBool,
    released: AtomicBool,
    lost: CancellationToken,
}

impl HeldLock {
    /// A hold that was asked for at this moment.
    pub(crate) fn new(ask: LockAsk, (fence, slot): (Fence, u32), clock: Clock, asked: Micros) -> Arc<Self> {
        let held = HeldLock {
            ask,
            fence,
            slot,
            clock,
            deadline: AtomicI64::new(0),
            extend_at: AtomicI64::new(0),
            doubted: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            released: AtomicBool::new(false),
            lost: CancellationToken::new(),
        };
        held.lasts_from(asked);
        Arc::new(held)
    }

    /// The store has let it last for its time from some moment after this one.
    fn lasts_from(&self, asked: Micros) {
        let ttl = micros(self.ask.ttl);
        self.deadline.store(asked + ttl - part(ttl, DRIFT), Ordering::SeqCst);
        // What was doubted since that was asked is asked again.
        let again = if self.doubted.load(Ordering::SeqCst) { 0 } else { asked + part(ttl, EXTEND_AFTER) };
        self.extend_at.store(again, Ordering::SeqCst);
    }

    fn doubt(&self) {
        self.doubted.store(true, Ordering::SeqCst);
        self.extend_at.store(0, Ordering::SeqCst);
    }

    /// When to try again, if an extension that is tried now fails.
    fn again_at(&self, now: Micros) -> Micros {
        let after = part(micros(self.ask.ttl), AGAIN_AFTER);
        now + if self.doubted.load(Ordering::SeqCst) { after.min(micros(DOUBTED_AGAIN)) } else { after }
    }

    /// By our own clock its time is over.
    pub(crate) fn is_over(&self) -> bool {
        self.clock.since_boot() >= self.deadline.load(Ordering::SeqCst)
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost.is_cancelled() || self.is_over()
    }

    pub(crate) async fn lost(&self) {
        self.lost.cancelled().await;
    }

    pub(crate) fn left(&self) -> Duration {
        let left = self.deadline.load(Ordering::SeqCst) - self.clock.since_boot();
        if self.lost.is_cancelled() { Duration::ZERO } else { Duration::from_micros(u64::try_from(left).unwrap_or(0)) }
    }

    /// From now on nobody extends it.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
    }

    /// The store knows that it is not held any more.
    pub(crate) fn released(&self) {
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
pub(crate) struct Guards {
    held: Mutex<HashMap<Owner, Arc<HeldLock>>>,
    clock: Clock,
    /// Until when the thread sleeps; written under the mutex of `held`.
    asleep_until: AtomicI64,
    /// There is one that is due sooner.
    stir: Notify,
}

impl Guards {
    pub(crate) fn new(clock: Clock) -> Self {
        Guards { held: Mutex::default(), clock, asleep_until: AtomicI64::new(Micros::MAX), stir: Notify::new() }
    }

    fn held(&self) -> MutexGuard<'_, HashMap<Owner, Arc<HeldLock>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn len(&self) -> usize {
        self.held().len()
    }

    /// Something may have happened to the lock of this owner: it is extended at once, or found lost.
    /// Answers whether there is such a lock here.
    pub(crate) fn doubt(&self, owner: Owner) -> bool {
        let held = self.held().get(&owner).cloned();
        if let Some(held) = &held {
            held.doubt();
            self.stir.notify_one();
        }
        held.is_some()
    }

    /// Something may have happened to any of them, and nobody was told.
    pub(crate) fn doubt_all(&self) {
        let held = self.held();
        held.values().for_each(|held| held.doubt());
        if !held.is_empty() {
            self.stir.notify_one();
        }
    }

    /// How long until something is to be done.
    fn next(&self) -> Duration {
        let now = self.clock.since_boot();
        let held = self.held();
        let at = |held: &Arc<HeldLock>| held.extend_at.load(Ordering::SeqCst).min(held.deadline.load(Ordering::SeqCst));
        let until = held.values().map(at).min().unwrap_or(Micros::MAX).min(now + micros(SLEEP_MAX));
        self.asleep_until.store(until, Ordering::SeqCst);
        Duration::from_micros(u64::try_from(until - now).unwrap_or(0))
    }

    /// Lets go of what is over, and takes out what is to be extended now, its next turn put off.
    fn due(&self) -> Vec<Arc<HeldLock>> {
        let now = self.clock.since_boot();
        let mut all = self.held();
        all.retain(|_, held| {
            let over = held.is_over();
            if over {
                held.lost.cancel();
                crate::metrics::lock_lost();
            }
            !over
        });
        let soon = |held: &&Arc<HeldLock>| {
            let ttl = micros(held.ask.ttl);
            held.extend_at.load(Ordering::SeqCst) <= now + part(ttl, TOGETHER)
        };
        let none_due = !all.values().any(|held| held.extend_at.load(Ordering::SeqCst) <= now);
        if none_due {
            return Vec::new();
        }
        let due: Vec<_> = all.values().filter(soon).take(EXTEND_MAX).cloned().collect();
        for held in &due {
            held.extend_at.store(held.again_at(now), Ordering::SeqCst);
        }
        due
    }
}

fn part(time: Micros, part: f64) -> Micros {
    (time as f64 * part) as Micros
}

/// Extends locks until the process goes.
pub(crate) async fn extend(inner: &Arc<Inner>) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(inner.guards.next()) => {}
            () = inner.guards.stir.notified() => {}
            () = inner.stop.cancelled() => return,
        }
        let due = inner.guards.due();
        if !due.is_empty() {
            // Beside the loop: an answer that is late must not keep another lock from being given up for lost in time.
            let task = inner.clone();
            inner.spawn(async move {
                if let Err(error) = task.extend(&due).await {
                    tracing::warn!(locks = due.len(), %error, "locks could not be extended; tried again while they last");
                }
            });
        }
    }
}

impl Inner {
    /// Extends holds together. Those that are not ours any more are lost.
    async fn extend(&self, due: &[Arc<HeldLock>]) -> Result<Vec<bool>> {
        let asked = self.clock.since_boot();
        let asks: Vec<LockAsk> = due.iter().filter(|held| !held.is_stopped()).map(|held| held.ask.clone()).collect();
        if asks.is_empty() {
            return Ok(vec![false; due.len()]);
        }
        let doubted: Vec<_> = due.iter().filter(|held| held.doubted.swap(false, Ordering::SeqCst)).collect();
        let answers = self.store.extend_locks(&asks).await.inspect_err(|_| {
            doubted.iter().for_each(|held| held.doubted.store(true, Ordering::SeqCst));
        })?;
        let ours: HashMap<Owner, bool> = asks.iter().map(|ask| ask.owner).zip(answers).collect();
        let mut extended = Vec::with_capacity(due.len());
        for held in due {
            let ours = ours.get(&held.ask.owner).copied().unwrap_or(false);
            extended.push(ours);
            if ours && !held.is_over() {
                held.lasts_from(asked);
            } else if !held.is_stopped() {
                tracing::info!(lock = held.ask.name, fence = held.fence.0, "the lock is lost");
                held.lost.cancel();
                // One that is not there any more was counted when its time was over.
                if self.guards.held().remove(&held.ask.owner).is_some() {
                    crate::metrics::lock_lost();
                }
            }
        }
        Ok(extended)
    }
}

impl Hall {
    /// Extends this hold from now on, until it is stopped.
    pub(crate) fn guard(&self, held: Arc<HeldLock>) {
        let guards = &self.inner.guards;
        let mut all = guards.held();
        let at = held.extend_at.load(Ordering::SeqCst);
        all.insert(held.ask.owner, held);
        // Most are due long after the thread wakes up anyway: to wake it for each would cost more than the lock.
        if at < guards.asleep_until.load(Ordering::SeqCst) {
            guards.stir.notify_one();
        }
    }

    pub(crate) fn unguard(&self, held: &HeldLock) {
        self.inner.guards.held().remove(&held.ask.owner);
    }

    pub(crate) async fn extend_now(&self, held: &Arc<HeldLock>) -> Result<bool> {
        if held.is_lost() || held.is_stopped() {
            return Ok(false);
        }
        let extended = self.inner.extend(std::slice::from_ref(held)).await?;
        Ok(extended.first().copied().unwrap_or(false))
    }
}
