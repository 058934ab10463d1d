//! Locks: a named right with an end, held by one acquisition at a time (or by at most n).
//!
//! **A lock alone protects nothing**: whoever holds it may be paused for longer than it lasts, wake up, and go on.
//! So every hold has a fence, and what the lock protects must refuse a smaller one than it has seen.

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
use crate::store::{LOCK_SLOTS_MAX, LockOwner, LockRecord, LockRequest};

/// How long a hold lasts without being extended, unless [`Lock::ttl`] says otherwise.
pub const DEFAULT_LOCK_TTL: Duration = Duration::from_secs(30);
/// Longest name of a lock, in bytes.
pub const LOCK_NAME_BYTES_MAX: usize = 256;
/// Shortest and longest time that a hold can be asked to last.
const TTL_MIN: Duration = Duration::from_millis(10);
const TTL_MAX: Duration = Duration::from_secs(24 * 3600);
/// The first wait after the store has failed; doubles up to the longest.
const BACKOFF_MIN: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// A lock to be taken. Made by [`Duly::lock`].
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

    /// How long a hold outlives its holder (default 30 s): while the guard lives it is extended long before.
    ///
    /// Whoever waits gets the lock of a holder that was killed only after this time.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Waits at most so long for its turn (default: as long as it takes). Zero takes it if it is free, as
    /// [`Lock::try_acquire`] does.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// At most so many may hold it at a time (default 1), each with a slot and a fence of its own.
    ///
    /// Everybody should ask with the same number: each ask goes by its own.
    pub fn slots(mut self, slots: u32) -> Self {
        self.slots = slots;
        self
    }

    /// Who this is, for those who look at who holds the lock (default: machine and process).
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = Some(note.into());
        self
    }

    /// Takes the lock; waits for it in line, first come first served.
    ///
    /// [`Error::Timeout`] if the time to wait was over first. Dropping the future gives up the place in the line.
    pub async fn acquire(self) -> Result<Guard> {
        if self.wait.is_some_and(|wait| wait.is_zero()) {
            return self.clone().try_acquire().await?.ok_or_else(|| self.timeout_error(None));
        }
        let until = self.wait.and_then(|wait| clock::monotonic_now().checked_add(wait));
        let (hall, ask) = self.build_request(true)?;
        let waiter = hall.start_lock_wait(ask);
        let take = async {
            announce_with_retries(&hall).await?;
            match waiter.request_first().await? {
                Some(held) => Ok(held),
                None => waiter.wait_for_turn().await,
            }
        };
        match with_deadline(until, take).await {
            Some(held) => Ok(Guard::new(hall.clone(), held?)),
            // What was asked for is given up in the background, and nobody waits for that here.
            None => Err(self.timeout_error(waiter.last_error())),
        }
    }

    /// Takes the lock if it is free and nobody stands in line for it.
    pub async fn try_acquire(self) -> Result<Option<Guard>> {
        let (hall, ask) = self.build_request(false)?;
        hall.ensure_announced().await?;
        let waiter = hall.start_lock_wait(ask);
        let held = waiter.request_first().await?;
        Ok(held.map(|held| Guard::new(hall, held)))
    }

    /// Who holds it, and until when; `None` if nobody does. Of a lock with several slots the first hold.
    pub async fn holder(&self) -> Result<Option<LockRecord>> {
        Ok(self.holders().await?.into_iter().next())
    }

    /// All who hold it.
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
        let hall = self.duly.peers()?;
        let ask = LockRequest {
            name: self.name.clone(),
            owner: LockOwner::fresh(),
            node: hall.node_id(),
            lease: self.duly.options.lease,
            slots: self.slots,
            ttl: self.ttl,
            wait,
            note: self.note.clone().unwrap_or_else(|| hall.note().to_owned()),
        };
        Ok((hall, ask))
    }

    /// Returns an error if `name` cannot be the name of a lock: it is empty, too long, or has a control character.
    pub fn check_name(name: &str) -> Result<()> {
        check_text("lock", name, LOCK_NAME_BYTES_MAX)
    }

    /// A hold lasts neither for nothing nor for ever.
    pub(crate) fn check_ttl(ttl: Duration) -> Result<()> {
        if (TTL_MIN..=TTL_MAX).contains(&ttl) {
            return Ok(());
        }
        Err(Error::invalid("ttl", format!("{ttl:?} is not between {TTL_MIN:?} and {TTL_MAX:?}")))
    }

    /// It was not free in time; or nobody knows, if the store had trouble.
    fn timeout_error(&self, trouble: Option<String>) -> Error {
        let (name, wait) = (&self.name, self.wait.unwrap_or_default());
        let reason = match trouble {
            None => format!("{name} was not free within {wait:?}"),
            Some(trouble) => format!("{name} was not got within {wait:?}, and the store does not answer: {trouble}"),
        };
        Error::Timeout { op: "lock", reason }
    }
}

/// Enters the hall, however long the store takes to answer.
async fn announce_with_retries(hall: &Peers) -> Result<()> {
    let mut failures = 0;
    loop {
        match hall.ensure_announced().await {
            Err(error) if error.is_retryable() => {
                tracing::warn!(%error, "the store does not answer; asked again");
                failures += 1;
                tokio::time::sleep(backoff_delay(failures)).await;
            }
            entered => return entered,
        }
    }
}

/// The output, unless that takes too long.
async fn with_deadline<T>(until: Option<Instant>, work: impl Future<Output = T>) -> Option<T> {
    match until {
        None => Some(work.await),
        Some(until) => tokio::time::timeout_at(until, work).await.ok(),
    }
}

/// How long to wait after so many failures of the store in a row.
pub(crate) fn backoff_delay(failures: u32) -> Duration {
    let ceiling = BACKOFF_MIN.saturating_mul(1 << failures.min(10)).min(BACKOFF_MAX);
    ceiling.mul_f64(0.5 + fastrand::f64() / 2.0)
}

/// A lock that is held. It is extended by itself while this lives, on a thread of its own; dropping it releases the lock.
///
/// A program that ends right after dropping it may end before the lock is released: await [`Guard::release`] there.
#[must_use = "dropping the guard releases the lock"]
pub struct Guard {
    peers: Arc<Peers>,
    held: Arc<HeldLock>,
}

impl Guard {
    /// Of a hold that the hall extends already.
    fn new(hall: Arc<Peers>, held: Arc<HeldLock>) -> Self {
        crate::metrics::record_lock_acquired();
        Guard { peers: hall, held }
    }

    /// The name of the lock.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.held.request.name
    }

    /// Grows with every acquisition of the lock, over crashes and failovers.
    /// Hand it to whatever the lock protects, to refuse an older one.
    #[must_use]
    pub fn fence(&self) -> Fence {
        self.held.fence
    }

    /// Which of the lock's slots this is, from 1.
    #[must_use]
    pub fn slot(&self) -> u32 {
        self.held.slot
    }

    /// Whoever it is that holds the lock: unique to this acquisition.
    #[must_use]
    pub fn owner(&self) -> LockOwner {
        self.held.request.owner
    }

    /// Resolves when the lock is lost: it was taken over or broken, or could not be extended in time.
    pub async fn lost(&self) {
        self.held.lost().await;
    }

    /// Whether the lock is lost, also if nobody could tell us: by our own clock it lasts no longer than the store says.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.held.is_lost()
    }

    /// How long it lasts at least, if it is never extended again.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.held.remaining()
    }

    /// Until when it lasts at least, if it is never extended again, by our own clock.
    #[must_use]
    pub fn deadline(&self) -> SystemTime {
        self.peers.now() + self.held.remaining()
    }

    /// Drops the guard without a release, and stops extending the hold: a client that knows its owner does both from now on.
    pub(crate) fn detach(self) {
        // Dropped like one that was released: nothing is given up.
        self.held.stop_renewal();
        self.held.mark_released();
    }

    /// Extends it now, by its whole time.
    ///
    /// [`Error::Conflict`] if it is not held any more.
    pub async fn extend(&self) -> Result<()> {
        match self.peers.extend_lock_now(&self.held).await? {
            true => Ok(()),
            false => Err(not_held_error(self.name())),
        }
    }

    /// Releases the lock, and answers once that is done: the next in line has been told.
    ///
    /// [`Error::Conflict`] if it was not held any more: then something may have been done by two at a time.
    pub async fn release(&self) -> Result<()> {
        // It stays among the guarded until the store has answered: a turn that comes late must not be taken for nobody's.
        self.held.stop_renewal();
        if self.held.is_released() {
            return Err(not_held_error(self.name()));
        }
        let (was_lost, mut failures, mut in_doubt) = (self.held.is_lost(), 0, false);
        loop {
            match self.peers.store().unlock(&self.held.request).await {
                Ok(held) => {
                    self.held.mark_released();
                    self.peers.remove_held_lock(&self.held);
                    // If an answer was lost, that may well have been the one that counted; but not if the lock was lost before.
                    let released = held || (in_doubt && !was_lost);
                    return if released { Ok(()) } else { Err(not_held_error(self.name())) };
                }
                Err(error) if !error.is_retryable() || self.held.is_expired() => return Err(error),
                Err(error) => {
                    in_doubt |= matches!(error, Error::Unknown { .. });
                    failures += 1;
                    tokio::time::sleep(backoff_delay(failures)).await;
                }
            }
        }
    }
}

fn not_held_error(name: &str) -> Error {
    Error::Conflict(format!("lock {name} is not held: it was released, taken over or broken, or its time was over"))
}

impl Drop for Guard {
    /// Stops extending first: an extension that came after the release could hold up the next owner.
    fn drop(&mut self) {
        self.held.stop_renewal();
        self.peers.remove_held_lock(&self.held);
        // Also a release that was dropped half-way.
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
