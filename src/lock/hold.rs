//! Locks for clients that cannot keep a guard: a hold expires after its time unless the client extends it.

use std::str::FromStr;
use std::time::Duration;

use crate::client::Duly;
use crate::error::{ConflictKind, Error, Result};
use crate::job::Fence;
use crate::lock::Lock;
use crate::node::NodeId;
use crate::store::{LockOwner, LockRequest, LockStore};

/// A held lock that this process does not extend.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LockHold {
    /// The lock.
    pub name: String,
    /// The id of this acquisition: [`Duly::extend_hold`] and [`Duly::release_hold`] need it.
    pub owner: LockOwner,
    /// Grows with every acquisition of the lock.
    pub fence: Fence,
    /// The slot, from 1.
    pub slot: u32,
    /// The time after which the hold expires unless it is extended.
    pub ttl: Duration,
}

impl FromStr for LockOwner {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let id = uuid::Uuid::parse_str(text).map_err(|_| Error::invalid("owner", format!("{text:?} is not a UUID")))?;
        Ok(LockOwner::from_bytes(*id.as_bytes()))
    }
}

impl Duly {
    /// Acquires a lock for a client outside this process, which then extends and releases it.
    ///
    /// Returns `None` if the lock is not free within `wait`. The hold continues if this process ends. It ends when it
    /// expires, is released or is broken.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Conflict`] if the lock was broken before this returned.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let hold = duly.acquire_hold(duly.lock("deploy"), Duration::from_secs(30), Duration::ZERO).await?.expect("is free");
    /// println!("send to the client: owner {}, fence {}", hold.owner, hold.fence);
    /// assert!(duly.acquire_hold(duly.lock("deploy"), hold.ttl, Duration::ZERO).await?.is_none(), "it is held");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn acquire_hold(&self, lock: Lock, ttl: Duration, wait: Duration) -> Result<Option<LockHold>> {
        let lock = lock.ttl(ttl);
        let guard = match wait.is_zero() {
            true => lock.try_acquire().await?,
            false => match lock.wait(wait).acquire().await {
                Err(Error::Timeout { .. }) => None,
                acquired => Some(acquired?),
            },
        };
        let Some(guard) = guard else {
            return Ok(None);
        };
        let (name, owner, fence, slot) = (guard.name().to_owned(), guard.owner(), guard.fence(), guard.slot());
        let hold = LockHold { name, owner, fence, slot, ttl };
        // From here on the hold lasts for its whole time. If the caller goes away earlier, the guard releases it.
        if !self.extend_hold(&hold.name, hold.owner, ttl).await? {
            return Err(Error::conflict(
                ConflictKind::LockLost,
                format!("lock {} was lost as soon as it was acquired; try again", hold.name),
            ));
        }
        guard.detach();
        Ok(Some(hold))
    }

    /// Makes a hold last for `ttl` from now. Returns `false` if `owner` no longer holds the lock.
    ///
    /// # Errors
    ///
    /// - [`Error::Invalid`]: the name or `ttl` is invalid.
    /// - [`Error::Store`]: the store cannot be reached. The hold keeps its previous time.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let hold = duly.acquire_hold(duly.lock("deploy"), Duration::from_secs(30), Duration::ZERO).await?.expect("is free");
    /// assert!(duly.extend_hold("deploy", hold.owner, Duration::from_secs(60)).await?);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn extend_hold(&self, name: &str, owner: LockOwner, ttl: Duration) -> Result<bool> {
        let request = self.hold_request(name, owner, ttl)?;
        Ok(self.store.extend_locks(&[request]).await?.first().copied().unwrap_or(false))
    }

    /// Releases a hold. Returns `false` if `owner` no longer holds the lock.
    ///
    /// # Errors
    ///
    /// - [`Error::Invalid`]: the name is invalid.
    /// - [`Error::Store`]: the store cannot be reached. The hold then ends with its time.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let hold = duly.acquire_hold(duly.lock("deploy"), Duration::from_secs(30), Duration::ZERO).await?.expect("is free");
    /// assert!(duly.release_hold("deploy", hold.owner).await?);
    /// assert!(!duly.release_hold("deploy", hold.owner).await?, "it is released already");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn release_hold(&self, name: &str, owner: LockOwner) -> Result<bool> {
        let request = self.hold_request(name, owner, Duration::from_secs(1))?;
        self.store.unlock(&request).await
    }

    fn hold_request(&self, name: &str, owner: LockOwner, ttl: Duration) -> Result<LockRequest> {
        Lock::check_name(name)?;
        Lock::check_ttl(ttl)?;
        // A fresh node id: a hold that belongs to a node may end with that node's process.
        let (node, lease) = (NodeId::fresh(), self.options.lease);
        // The store looks for the owner in all slots, so one is enough here.
        Ok(LockRequest { name: name.to_owned(), owner, node, lease, slots: 1, ttl, wait: false, note: String::new() })
    }
}
