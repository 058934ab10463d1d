//! Locks: creating, listing and breaking them.

use crate::client::Duly;
use crate::error::Result;
use crate::job::push::check_text;
use crate::lock::{LOCK_NAME_BYTES_MAX, Lock};
use crate::store::{LockOwner, LockPage, LockStore};

impl Duly {
    /// Returns a named lock, to acquire with [`Lock::acquire`] or [`Lock::try_acquire`].
    ///
    /// **Pass the fence of the lock to the resource that it protects**: a holder that was paused for too long may have
    /// lost the lock.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let guard = duly.lock("deploy").acquire().await?;
    /// println!("the resource must reject fences older than {}", guard.fence());
    /// guard.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn lock(&self, name: impl Into<String>) -> Lock {
        Lock::new(self.clone(), name.into())
    }

    /// Returns a handle to the locks of the store: list them, break them.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let broken = duly.locks().break_lock("deploy").await?;
    /// println!("{broken} processes have lost the lock");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn locks(&self) -> Locks<'_> {
        Locks { duly: self }
    }
}

/// The locks of a store, from [`Duly::locks`].
///
/// See [`Locks::list`], [`Locks::break_lock`] and [`Locks::break_hold`] for examples.
#[derive(Clone, Copy, Debug)]
pub struct Locks<'d> {
    duly: &'d Duly,
}

impl Locks<'_> {
    /// Returns a page of all held locks, by name.
    ///
    /// # Errors
    ///
    /// - [`Error::Store`](crate::Error::Store): the store cannot be reached.
    /// - [`Error::Unsupported`](crate::Error::Unsupported): the store has no locks.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let _guard = duly.lock("deploy").note("release 1.2").acquire().await?;
    /// let page = duly.locks().list(None).await?;
    /// assert_eq!((page.locks[0].name.as_str(), page.locks[0].note.as_str()), ("deploy", "release 1.2"));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn list(self, cursor: Option<&str>) -> Result<LockPage> {
        self.duly.store.locks(None, cursor).await
    }

    /// Ends all holds of a lock; their guards report it as lost. Returns how many holds there were.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Invalid`](crate::Error::Invalid) if the name is invalid.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let _guard = duly.lock("deploy").acquire().await?;
    /// assert_eq!(duly.locks().break_lock("deploy").await?, 1);
    /// assert!(duly.lock("deploy").try_acquire().await?.is_some());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn break_lock(self, name: &str) -> Result<u64> {
        check_text("lock", name, LOCK_NAME_BYTES_MAX)?;
        self.duly.store.break_lock(name, None).await
    }

    /// Ends one hold of a lock with several slots; its guard reports it as lost. Returns whether the owner held a slot.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Invalid`](crate::Error::Invalid) if the name is invalid.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let _first = duly.lock("gpu").slots(2).acquire().await?;
    /// let _second = duly.lock("gpu").slots(2).acquire().await?;
    /// let holders = duly.lock("gpu").holders().await?;
    /// assert!(duly.locks().break_hold("gpu", holders[0].owner).await?);
    /// assert_eq!(duly.lock("gpu").holders().await?.len(), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn break_hold(self, name: &str, owner: LockOwner) -> Result<bool> {
        check_text("lock", name, LOCK_NAME_BYTES_MAX)?;
        Ok(self.duly.store.break_lock(name, Some(owner)).await? > 0)
    }
}
