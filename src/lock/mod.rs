//! Distributed locks: each has a name and a time limit, and one acquisition (or at most n) holds it at a time.
//!
//! **A lock alone protects nothing**: its holder may be paused for longer than the lock lasts, wake up, and continue.
//! So every hold has a fence, and the protected resource must reject a fence smaller than one it has seen.

pub(crate) mod renewal;
pub(crate) mod waiters;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use crate::client::Duly;
use crate::clock;
use crate::error::{Error, Result};
use crate::job::Fence;
use crate::job::push::check_text;
use crate::peers::{HeldLock, Peers};
use crate::store::{LOCK_SLOTS_MAX, LockRequest, LockStore};
pub use crate::store::{LockOwner, LockPage, LockRecord};

/// Default duration of a hold without an extension; see [`Lock::ttl`].
pub const DEFAULT_LOCK_TTL: Duration = Duration::from_secs(30);
/// Longest name of a lock, in bytes.
pub const LOCK_NAME_BYTES_MAX: usize = 256;
/// Shortest and longest duration of a hold.
const TTL_MIN: Duration = Duration::from_millis(10);
const TTL_MAX: Duration = Duration::from_secs(24 * 3600);
/// First delay after a store error; doubles up to the longest.
const BACKOFF_MIN: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// A lock to acquire, created by [`Duly::lock`].
#[must_use = "a lock is not held until `acquire` or `try_acquire` is awaited"]
#[derive(Clone, Debug)]
pub struct Lock {
    duly: Duly,
    name: String,
    ttl: Duration,
    wait: Option<Duration>,
    slots: u32,
    note: Option<String>,
}

impl Lock {
    pub(crate) fn new(duly: Duly, name: String) -> Self {
        Lock { duly, name, ttl: DEFAULT_LOCK_TTL, wait: None, slots: 1, note: None }
    }

    /// Sets how long a hold outlives its holder (default 30 s). The guard extends the hold well before.
    ///
    /// If a holder is killed, waiters get the lock only after this time.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Sets how long to wait for the lock (default: no limit). Zero acts as [`Lock::try_acquire`].
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// Sets how many owners may hold the lock at a time (default 1), each with its own slot and fence.
    ///
    /// All callers should use the same number: each request applies its own.
    pub fn slots(mut self, slots: u32) -> Self {
        self.slots = slots;
        self
    }

    /// Sets a note that describes the owner to people (default: host and process).
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = Some(note.into());
        self
    }

    /// Acquires the lock, waiting for it first come, first served.
    ///
    /// Fails with [`Error::Timeout`] if the lock was not free in time. Dropping the future cancels the wait.
    pub async fn acquire(self) -> Result<Guard> {
        if self.wait.is_some_and(|wait| wait.is_zero()) {
            return self.clone().try_acquire().await?.ok_or_else(|| self.timeout_error(None));
        }
        let deadline = self.wait.and_then(|wait| clock::monotonic_now().checked_add(wait));
        let (peers, request) = self.build_request(true)?;
        let waiter = peers.start_lock_wait(request);
        let acquire = async {
            announce_with_retries(&peers).await?;
            match waiter.request_first().await? {
                Some(held) => Ok(held),
                None => waiter.wait_for_turn().await,
            }
        };
        match with_deadline(deadline, acquire).await {
            Some(held) => Ok(Guard::new(peers.clone(), held?)),
            // The request is cancelled in the background; the caller does not wait for that.
            None => Err(self.timeout_error(waiter.last_error())),
        }
    }

    /// Acquires the lock if it is free and has no waiters.
    pub async fn try_acquire(self) -> Result<Option<Guard>> {
        let (peers, request) = self.build_request(false)?;
        peers.ensure_announced().await?;
        let waiter = peers.start_lock_wait(request);
        let held = waiter.request_first().await?;
        Ok(held.map(|held| Guard::new(peers, held)))
    }

    /// Returns the holder and when its hold expires; `None` if the lock is free. With several slots, the first hold.
    pub async fn holder(&self) -> Result<Option<LockRecord>> {
        Ok(self.holders().await?.into_iter().next())
    }

    /// Returns all holds.
    pub async fn holders(&self) -> Result<Vec<LockRecord>> {
        Lock::check_name(&self.name)?;
        let (mut all, mut cursor) = (Vec::new(), None);
        loop {
            let page = self.duly.store.locks(Some(&self.name), cursor.as_deref()).await?;
            all.extend(page.locks);
            cursor = page.next_cursor;
            if cursor.is_none() || all.len() >= LOCK_SLOTS_MAX as usize {
                return Ok(all);
            }
        }
    }

    fn build_request(&self, wait: bool) -> Result<(Arc<Peers>, LockRequest)> {
        Lock::check_name(&self.name)?;
        Lock::check_ttl(self.ttl)?;
        if !(1..=LOCK_SLOTS_MAX).contains(&self.slots) {
            return Err(Error::invalid("slots", format!("must be from 1 to {LOCK_SLOTS_MAX}")));
        }
        if let Some(note) = &self.note {
            check_text("note", note, LOCK_NAME_BYTES_MAX)?;
        }
        let peers = self.duly.peers()?;
        let request = LockRequest {
            name: self.name.clone(),
            owner: LockOwner::fresh(),
            node: peers.node_id(),
            lease: self.duly.options.lease,
            slots: self.slots,
            ttl: self.ttl,
            wait,
            note: self.note.clone().unwrap_or_else(|| peers.note().to_owned()),
        };
        Ok((peers, request))
    }

    /// Returns an error if `name` cannot be the name of a lock: it is empty, too long, or has a control character.
    pub fn check_name(name: &str) -> Result<()> {
        check_text("lock", name, LOCK_NAME_BYTES_MAX)
    }

    /// Returns an error if `ttl` is out of range.
    pub(crate) fn check_ttl(ttl: Duration) -> Result<()> {
        if (TTL_MIN..=TTL_MAX).contains(&ttl) {
            return Ok(());
        }
        Err(Error::invalid("ttl", format!("{ttl:?} must be between {TTL_MIN:?} and {TTL_MAX:?}")))
    }

    /// Returns the error for a lock that was not acquired in time, with the store error if there was one.
    fn timeout_error(&self, store_error: Option<String>) -> Error {
        let (name, wait) = (&self.name, self.wait.unwrap_or_default());
        let reason = match store_error {
            None => format!("lock {name} was not free within {wait:?}"),
            Some(error) => {
                format!("could not acquire lock {name} within {wait:?}; the store does not respond: {error}")
            }
        };
        Error::Timeout { op: "lock", reason }
    }
}

/// Announces this process, retrying while the store fails.
async fn announce_with_retries(peers: &Peers) -> Result<()> {
    let mut failures = 0;
    loop {
        match peers.ensure_announced().await {
            Err(error) if error.is_retryable() => {
                tracing::warn!(%error, "the store does not respond; retrying");
                failures += 1;
                tokio::time::sleep(backoff_delay(failures)).await;
            }
            result => return result,
        }
    }
}

/// Returns the output, or `None` if the deadline passes first.
async fn with_deadline<T>(deadline: Option<Instant>, work: impl Future<Output = T>) -> Option<T> {
    match deadline {
        None => Some(work.await),
        Some(deadline) => tokio::time::timeout_at(deadline, work).await.ok(),
    }
}

/// Returns the delay after this many consecutive store errors.
pub(crate) fn backoff_delay(failures: u32) -> Duration {
    let ceiling = BACKOFF_MIN.saturating_mul(1 << failures.min(10)).min(BACKOFF_MAX);
    ceiling.mul_f64(0.5 + fastrand::f64() / 2.0)
}

/// A held lock. A background thread extends it while the guard exists; dropping the guard releases the lock.
///
/// If the program exits right after the drop, the lock may not be released in time: await [`Guard::release`] instead.
#[must_use = "dropping the guard releases the lock"]
pub struct Guard {
    peers: Arc<Peers>,
    held: Arc<HeldLock>,
}

impl Guard {
    /// Creates the guard of a hold that is already being extended.
    fn new(peers: Arc<Peers>, held: Arc<HeldLock>) -> Self {
        crate::metrics::record_lock_acquired();
        Guard { peers, held }
    }

    /// Returns the name of the lock.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.held.request.name
    }

    /// Returns the fence, which increases with every acquisition, across crashes and failovers.
    /// Pass it to the protected resource, which rejects older ones.
    #[must_use]
    pub fn fence(&self) -> Fence {
        self.held.fence
    }

    /// Returns the slot of the lock, from 1.
    #[must_use]
    pub fn slot(&self) -> u32 {
        self.held.slot
    }

    /// Returns the owner, unique to this acquisition.
    #[must_use]
    pub fn owner(&self) -> LockOwner {
        self.held.request.owner
    }

    /// Waits until the lock is lost: it was taken over or broken, or could not be extended in time.
    pub async fn lost(&self) {
        self.held.lost().await;
    }

    /// Returns whether the lock is lost. By the local clock, a hold ends no later than in the store.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.held.is_lost()
    }

    /// Returns how long the hold lasts at least without another extension.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.held.remaining()
    }

    /// Returns until when the hold lasts at least without another extension, by the local clock.
    #[must_use]
    pub fn deadline(&self) -> SystemTime {
        self.peers.now() + self.held.remaining()
    }

    /// Drops the guard but keeps the lock: from now on, a remote client with its owner extends and releases it.
    pub(crate) fn detach(self) {
        // Marked as released, so that the drop does not release the lock.
        self.held.stop_renewal();
        self.held.mark_released();
    }

    /// Extends the hold now, to its full duration.
    ///
    /// Fails with [`Error::Conflict`] if the lock is no longer held.
    pub async fn extend(&self) -> Result<()> {
        match self.peers.extend_lock_now(&self.held).await? {
            true => Ok(()),
            false => Err(not_held_error(self.name())),
        }
    }

    /// Releases the lock and returns once the store has confirmed it and notified the next waiter.
    ///
    /// Fails with [`Error::Conflict`] if the lock was no longer held: two owners may have worked at the same time.
    pub async fn release(&self) -> Result<()> {
        // It stays registered until the store replies: a late turn for it must not be released as if it had no owner.
        self.held.stop_renewal();
        if self.held.is_released() {
            return Err(not_held_error(self.name()));
        }
        let (was_lost, mut failures, mut is_unknown) = (self.held.is_lost(), 0, false);
        loop {
            match self.peers.store().unlock(&self.held.request).await {
                Ok(held) => {
                    self.held.mark_released();
                    self.peers.remove_held_lock(&self.held);
                    // If a reply was lost, that request may have released the lock, unless the lock was lost before.
                    let released = held || (is_unknown && !was_lost);
                    return if released { Ok(()) } else { Err(not_held_error(self.name())) };
                }
                Err(error) if !error.is_retryable() || self.held.is_expired() => return Err(error),
                Err(error) => {
                    is_unknown |= matches!(error, Error::Unknown { .. });
                    failures += 1;
                    tokio::time::sleep(backoff_delay(failures)).await;
                }
            }
        }
    }
}

fn not_held_error(name: &str) -> Error {
    Error::Conflict(format!("lock {name} is not held: it was released, taken over or broken, or its time expired"))
}

impl Drop for Guard {
    /// Stops extending first: an extension after the release could block the next owner.
    fn drop(&mut self) {
        self.held.stop_renewal();
        self.peers.remove_held_lock(&self.held);
        // This includes a release whose future was dropped before it completed.
        if !self.held.is_released() {
            self.peers.abandon_lock(self.held.request.clone());
        }
    }
}

impl std::fmt::Debug for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let held = &self.held;
        f.debug_struct("Guard")
            .field("name", &held.request.name)
            .field("fence", &held.fence)
            .field("slot", &held.slot)
            .finish()
    }
}
