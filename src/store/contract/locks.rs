//! Locks, their holders and their waiters.

use super::capability;
use crate::error::Result;
use crate::store::*;

capability! {
    /// Keeps named locks with an expiry time, and their waiters in order.
    pub trait LockStore(locks: "locks") {
        /// Acquires a free slot of a lock for the owner until `ttl` from now. If none is free and `wait` is set, adds
        /// the owner to the end of the waiter queue.
        ///
        /// First come, first served: a free slot goes to the waiters of live nodes first, even before a request that
        /// does not wait. The call is idempotent. An owner that already holds the lock keeps its fence and holds it
        /// until `ttl` from now; an owner that already waits keeps its position. The fence is greater than every fence
        /// ever returned for a lock of this store. A hold ends when its time is over, or when its node's process is
        /// known to have exited (SQLite only). A missed heartbeat alone never ends a hold.
        async fn lock(&self, request: &LockRequest) -> Result<LockReply>;

        /// Extends holds until `ttl` from now, each only if its owner still has it, in any slot. Returns for each
        /// request whether that is so, in order. At most [`LOCK_EXTENDS_MAX`]. A hold extended in the name of another
        /// node than the one that acquired it ends only by its time from then on.
        async fn extend_locks(&self, requests: &[LockRequest]) -> Result<Vec<bool>>;

        /// Releases the owner's slot of a lock, or removes it from the waiters. Returns whether it held a slot.
        ///
        /// If slots are free afterwards, notifies as many of the first live waiters that it is their turn.
        async fn unlock(&self, request: &LockRequest) -> Result<bool>;

        /// Removes the owner from the waiters of a lock, if it waits. A slot it holds stays held.
        ///
        /// If slots are free afterwards, notifies as many of the first live waiters that it is their turn.
        async fn cancel_wait(&self, request: &LockRequest) -> Result<()>;

        /// Returns a page of holds by lock name, only those of one lock if `name` is given.
        async fn locks(&self, name: Option<&str>, cursor: Option<&str>) -> Result<LockPage>;

        /// Ends all holds of a lock, or only that of `owner`. Notifies their owners, and as many of the first waiters
        /// as slots are free to request it again. Returns how many holds it ended. On ActionHero's keys a lock has one
        /// slot, and `owner` is ignored.
        async fn break_lock(&self, name: &str, owner: Option<LockOwner>) -> Result<u64>;
    }
}
