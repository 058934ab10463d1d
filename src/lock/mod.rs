//! Distributed locks: each has a name and a time limit, and one acquisition (or at most n) holds it at a time.
//!
//! **A lock alone protects nothing**: its holder may be paused for longer than the lock lasts, wake up, and continue.
//! Every hold therefore has a fence, and the protected resource must reject a fence smaller than one it has seen.

mod guard;
mod hold;
pub(crate) mod renewal;
pub(crate) mod waiters;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

pub use self::guard::Guard;
pub use self::hold::LockHold;
use crate::client::Duly;
pub use crate::client::Locks;
use crate::clock;
use crate::error::{Error, Result};
use crate::job::push::check_text;
use crate::peers::Peers;
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
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use duly::Duly;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> duly::Result<()> {
/// # let duly = Duly::open(":memory:").await?;
/// let guard = duly.lock("account:7").ttl(Duration::from_secs(30)).wait(Duration::from_secs(10)).acquire().await?;
/// println!("write with fence {}", guard.fence()); // the account rejects an older one
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
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

    /// Sets how long the lock stays held without an extension (default 30 s). The guard extends it after a third of that.
    ///
    /// If the holder is killed, waiters get the lock after this time. In a file, they get it at once.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn example(duly: duly::Duly) -> duly::lock::Lock {
    /// duly.lock("deploy").ttl(std::time::Duration::from_secs(10))
    /// # }
    /// ```
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Sets how long to wait for the lock (default: no limit). Zero acts as [`Lock::try_acquire`].
    ///
    /// # Examples
    ///
    /// ```
    /// # fn example(duly: duly::Duly) -> duly::lock::Lock {
    /// duly.lock("deploy").wait(std::time::Duration::from_secs(10))
    /// # }
    /// ```
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// Sets how many owners may hold the lock at a time (default 1), each with its own slot and fence.
    ///
    /// All callers should use the same number: each request applies its own.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let gpu = || duly.lock("gpu").slots(2).try_acquire();
    /// let (one, two) = (gpu().await?.expect("is free"), gpu().await?.expect("is free"));
    /// assert_ne!(one.slot(), two.slot());
    /// assert!(gpu().await?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    pub fn slots(mut self, slots: u32) -> Self {
        self.slots = slots;
        self
    }

    /// Sets a note that tells people which program holds the lock (default: host and process).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn example(duly: duly::Duly) -> duly::lock::Lock {
    /// duly.lock("deploy").note("release 1.2")
    /// # }
    /// ```
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = Some(note.into());
        self
    }

    /// Acquires the lock, waiting for it first come, first served.
    ///
    /// Dropping the future cancels the wait.
    ///
    /// # Errors
    ///
    /// - [`Error::Timeout`]: the lock was not free in time; [`Lock::holder`] returns its holder.
    /// - [`Error::Invalid`]: the name or a setting is invalid.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use duly::{Duly, Error};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let _held = duly.lock("deploy").acquire().await?;
    /// let second = duly.lock("deploy").wait(Duration::from_millis(5)).acquire().await;
    /// assert!(matches!(second, Err(Error::Timeout { .. })));
    /// # Ok(())
    /// # }
    /// ```
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
    ///
    /// # Errors
    ///
    /// Returns [`Error::Invalid`] if the name or a setting is invalid.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// match duly.lock("deploy").try_acquire().await? {
    ///     Some(guard) => guard.release().await?,
    ///     None => println!("another process deploys"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn try_acquire(self) -> Result<Option<Guard>> {
        let (peers, request) = self.build_request(false)?;
        peers.ensure_announced().await?;
        let waiter = peers.start_lock_wait(request);
        let held = waiter.request_first().await?;
        Ok(held.map(|held| Guard::new(peers, held)))
    }

    /// Returns the holder and when its hold expires; `None` if the lock is free. With several slots, the first hold.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Invalid`] if the name is invalid.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let _guard = duly.lock("deploy").note("release 1.2").acquire().await?;
    /// let holder = duly.lock("deploy").holder().await?.expect("is held");
    /// assert_eq!(holder.note, "release 1.2");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn holder(&self) -> Result<Option<LockRecord>> {
        Ok(self.holders().await?.into_iter().next())
    }

    /// Returns all holds.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Invalid`] if the name is invalid.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let _guard = duly.lock("gpu").slots(4).acquire().await?;
    /// assert_eq!(duly.lock("gpu").holders().await?.len(), 1);
    /// # Ok(())
    /// # }
    /// ```
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

    /// Checks whether `name` can be the name of a lock.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Invalid`] if the name is empty, is too long, or has a control character.
    ///
    /// # Examples
    ///
    /// ```
    /// assert!(duly::lock::Lock::check_name("").is_err());
    /// ```
    pub fn check_name(name: &str) -> Result<()> {
        check_text("lock", name, LOCK_NAME_BYTES_MAX)
    }

    /// Returns an error if `ttl` is out of range.
    pub(crate) fn check_ttl(ttl: Duration) -> Result<()> {
        if (TTL_MIN..=TTL_MAX).contains(&ttl) {
            return Ok(());
        }
        Err(Error::invalid("ttl", format!("must be from {TTL_MIN:?} to {TTL_MAX:?}, not {ttl:?}")))
    }

    /// Returns the error for a lock that was not acquired in time, with the store error if there was one.
    fn timeout_error(&self, store_error: Option<String>) -> Error {
        let (name, wait) = (&self.name, self.wait.unwrap_or_default());
        let advice = match store_error {
            None => format!("`duly lock get {name}` shows its holder"),
            Some(error) => format!("the store does not respond: {error}"),
        };
        Error::Timeout { op: "lock", reason: format!("timed out after {wait:?} waiting for lock {name:?}; {advice}") }
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
