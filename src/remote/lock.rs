//! Locks for those who cannot keep a guard: a hold lasts for its time, and whoever has it extends it by asking again.

use std::time::Duration;

use crate::client::Duly;
use crate::error::{Error, Result};
use crate::job::Fence;
use crate::job::push::check_text;
use crate::lock::{LOCK_NAME_BYTES_MAX, Lock};
use crate::node::NodeId;
use crate::store::{LockAsk, Owner};

/// A hold that nobody here extends.
#[derive(Clone, Debug)]
pub(crate) struct Hold {
    pub(crate) name: String,
    pub(crate) owner: Owner,
    pub(crate) fence: Fence,
    pub(crate) slot: u32,
    pub(crate) ttl: Duration,
}

impl Duly {
    /// Takes a lock, and leaves it to whoever asked to extend and to release it.
    ///
    /// `None` if it was not free in time. Its holder lives elsewhere: only its time ends it, whatever becomes of this process.
    pub(crate) async fn take_lock(&self, lock: Lock, ttl: Duration, wait: Duration) -> Result<Option<Hold>> {
        let lock = lock.ttl(ttl);
        let guard = match wait.is_zero() {
            true => lock.try_acquire().await?,
            false => match lock.wait(wait).acquire().await {
                Err(Error::Timeout { .. }) => None,
                got => Some(got?),
            },
        };
        let Some(guard) = guard else {
            return Ok(None);
        };
        let hold =
            Hold { name: guard.name().to_owned(), owner: guard.owner(), fence: guard.fence(), slot: guard.slot(), ttl };
        // It lasts for its whole time from now. Before this it is released if whoever asked has gone meanwhile.
        if !self.extend_hold(&hold.name, hold.owner, ttl).await? {
            return Err(Error::Conflict(format!("lock {} was lost as soon as it was taken; ask again", hold.name)));
        }
        guard.detach();
        Ok(Some(hold))
    }

    /// Lets a hold last for so long from now. Answers false if its owner does not have it any more.
    pub(crate) async fn extend_hold(&self, name: &str, owner: Owner, ttl: Duration) -> Result<bool> {
        let ask = self.hold_ask(name, owner, ttl)?;
        Ok(self.store.extend_locks(&[ask]).await?.first().copied().unwrap_or(false))
    }

    /// Gives a hold up. Answers false if its owner did not have it any more.
    pub(crate) async fn release_hold(&self, name: &str, owner: Owner) -> Result<bool> {
        let ask = self.hold_ask(name, owner, Duration::from_secs(1))?;
        self.store.unlock(&ask).await
    }

    fn hold_ask(&self, name: &str, owner: Owner, ttl: Duration) -> Result<LockAsk> {
        check_text("lock", name, LOCK_NAME_BYTES_MAX)?;
        Lock::check_ttl(ttl)?;
        // In nobody's name: a hold that a node extends may end with that node's process.
        let (node, lease) = (NodeId::fresh(), self.options.lease);
        // However many it has: the owner is looked for among all of them.
        Ok(LockAsk { name: name.to_owned(), owner, node, lease, slots: 1, ttl, wait: false, note: String::new() })
    }
}
