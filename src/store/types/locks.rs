//! Locks: the requests of clients, the replies of the store, and locks as listed.

use std::time::{Duration, SystemTime};

use serde::Serialize;
use uuid::Uuid;

use crate::job::Fence;
use crate::node::NodeId;
use crate::uuid_id::uuid_id;

/// Most slots of a lock.
pub const LOCK_SLOTS_MAX: u32 = 1_000;
/// Most holds extended in one operation.
pub const LOCK_EXTENDS_MAX: usize = 500;
/// Most lock waits in one announcement; a node with more rotates through them.
pub const LOCK_WAITS_MAX: usize = 200;
/// Most waiters that one operation checks.
pub const LOCK_WAITERS_CHECKED_MAX: usize = 100;
/// Locks on one page of a list.
pub const LOCK_PAGE_SIZE: usize = 500;

/// The owner of one acquisition; never a whole process or task.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct LockOwner(Uuid);
uuid_id!(LockOwner);

/// A request to acquire, extend or release a lock.
#[derive(Clone, Debug)]
pub struct LockRequest {
    /// The lock's name: any text without control characters.
    pub name: String,
    /// The owner. A request repeated after a lost reply has the same owner and is idempotent.
    pub owner: LockOwner,
    /// The owner's node. If it dies, the owner no longer waits.
    pub node: NodeId,
    /// How long the owner keeps waiting without an announcement of its node.
    pub lease: Duration,
    /// How many owners may hold the lock at a time; 1 is a plain lock.
    pub slots: u32,
    /// How long the hold lasts unless it is extended.
    pub ttl: Duration,
    /// Whether to wait if the lock is taken.
    pub wait: bool,
    /// Describes the owner to people.
    pub note: String,
}

/// The reply to a lock request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockReply {
    /// The fence and the slot (from 1) if the owner holds the lock now; unchanged if it already did.
    pub hold: Option<(Fence, u32)>,
    /// The number of live waiters ahead of the owner.
    pub waiters_ahead: u32,
    /// Time until the first hold ends unless it is extended; `None` if the lock is free or held by this owner.
    pub expires_in: Option<Duration>,
}

/// A hold of a lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LockRecord {
    /// The lock.
    pub name: String,
    /// Which of its slots, from 1.
    pub slot: u32,
    /// The owner that holds it.
    pub owner: LockOwner,
    /// The owner's node.
    pub node: NodeId,
    /// Describes the owner to people.
    pub note: String,
    /// Increases with every acquisition.
    pub fence: Fence,
    /// Since when it is held; `None` if the lock is another system's, which does not record it.
    #[serde(serialize_with = "crate::clock::as_micros_option")]
    pub since: Option<SystemTime>,
    /// When the hold ends, unless it is extended.
    #[serde(serialize_with = "crate::clock::as_micros")]
    pub expires: SystemTime,
    /// The number of waiters for any slot of the lock.
    pub waiters: u64,
}

/// A page of locks.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct LockPage {
    /// Holds that have not ended.
    pub locks: Vec<LockRecord>,
    /// The start of the next page, if there may be one.
    pub next_cursor: Option<String>,
}

/// State of a lock for a node that waits for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockTurn {
    /// The lock.
    pub name: String,
    /// The first live waiter, if it belongs to this node.
    pub first_waiter: Option<LockOwner>,
    /// Time until the first hold ends unless it is extended; zero if a slot is free.
    pub expires_in: Duration,
}
