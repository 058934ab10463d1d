//! The guard of a held lock: its fence, its loss, its extension and its release.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::error::{ConflictKind, Error, Result};
use crate::job::Fence;
use crate::lock::backoff_delay;
use crate::peers::{HeldLock, Peers};
use crate::store::{LockOwner, LockStore};

/// A held lock. A background thread extends it while the guard exists; dropping the guard releases the lock.
///
/// If the program exits right after the drop, the release may not reach the store: await [`Guard::release`] instead.
///
/// # Examples
///
/// ```
/// # use duly::Duly;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> duly::Result<()> {
/// # let duly = Duly::open(":memory:").await?;
/// let guard = duly.lock("report").acquire().await?;
/// tokio::select! {
///     () = write_report(guard.fence()) => guard.release().await?,
///     () = guard.lost() => eprintln!("another holder may continue"),
/// }
/// # async fn write_report(_: duly::Fence) {}
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping the guard releases the lock"]
pub struct Guard {
    peers: Arc<Peers>,
    held: Arc<HeldLock>,
}

impl Guard {
    /// Creates the guard of a hold that is already being extended.
    pub(super) fn new(peers: Arc<Peers>, held: Arc<HeldLock>) -> Self {
        crate::metrics::record_lock_acquired();
        Guard { peers, held }
    }

    /// Returns the name of the lock.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let guards = [duly.lock("disk:a").acquire().await?, duly.lock("disk:b").acquire().await?];
    /// let lost: Vec<&str> = guards.iter().filter(|guard| guard.is_lost()).map(|guard| guard.name()).collect();
    /// assert!(lost.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        &self.held.request.name
    }

    /// Returns the fence, which increases with every acquisition, across crashes and failovers.
    /// Pass it to the protected resource, which rejects older ones.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let first = duly.lock("account:7").acquire().await?;
    /// let fence = first.fence();
    /// first.release().await?;
    /// assert!(duly.lock("account:7").acquire().await?.fence() > fence);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn fence(&self) -> Fence {
        self.held.fence
    }

    /// Returns the slot of the lock, from 1.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let guard = duly.lock("gpu").slots(4).acquire().await?;
    /// assert_eq!(guard.name(), "gpu");
    /// assert!((1..=4).contains(&guard.slot()));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn slot(&self) -> u32 {
        self.held.slot
    }

    /// Returns the owner, unique to this acquisition.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let guard = duly.lock("deploy").acquire().await?;
    /// let held = &duly.locks().list(None).await?.locks[0];
    /// assert_eq!(held.owner, guard.owner());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn owner(&self) -> LockOwner {
        self.held.request.owner
    }

    /// Waits until the lock is lost: it was taken over or broken, or could not be extended in time.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let guard = duly.lock("report").acquire().await?;
    /// let watched = tokio::select! {
    ///     () = guard.lost() => Err("the lock is lost: stop writing"),
    ///     () = async { /* the work */ } => Ok(()),
    /// };
    /// assert!(watched.is_ok());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn lost(&self) {
        self.held.lost().await;
    }

    /// Returns whether the lock is lost. This also checks the local clock: the result is true from the moment at which
    /// the store could give the lock to another owner.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let guard = duly.lock("report").acquire().await?;
    /// for page in 0..3 {
    ///     if guard.is_lost() {
    ///         return Ok(());
    ///     }
    ///     println!("page {page} with fence {}", guard.fence());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.held.is_lost()
    }

    /// Returns the minimum time for which the lock stays held without another extension.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let guard = duly.lock("report").ttl(Duration::from_secs(30)).acquire().await?;
    /// assert!(guard.remaining() <= Duration::from_secs(30));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.held.remaining()
    }

    /// Returns the time, by the local clock, until which the lock stays held at least without another extension.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let guard = duly.lock("report").acquire().await?;
    /// println!("no other process can hold the lock before {:?}", guard.deadline());
    /// # Ok(())
    /// # }
    /// ```
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
    /// # Errors
    ///
    /// Returns [`Error::Conflict`] if the lock is no longer held.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let guard = duly.lock("report").acquire().await?;
    /// guard.extend().await?; // just before a step that must not be interrupted
    /// # Ok(())
    /// # }
    /// ```
    pub async fn extend(&self) -> Result<()> {
        match self.peers.extend_lock_now(&self.held).await? {
            true => Ok(()),
            false => Err(not_held_error(self.name())),
        }
    }

    /// Releases the lock and returns once the store has confirmed it and notified the next waiter.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Conflict`] if the lock was no longer held: two owners may have worked at the same time.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let guard = duly.lock("report").acquire().await?;
    /// guard.release().await?;
    /// assert!(guard.release().await.is_err(), "it is no longer held");
    /// # Ok(())
    /// # }
    /// ```
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
    Error::conflict(
        ConflictKind::LockLost,
        format!(
            "lock {name} is not held: it was released or broken, or it expired, and another owner may hold it now; acquire it again"
        ),
    )
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
