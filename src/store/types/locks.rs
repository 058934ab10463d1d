//! Locks: what a client requests, what the store replies, and a lock as it is listed.

use std::fmt;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use uuid::Uuid;

use crate::job::Fence;
use crate::node::NodeId;

/// Most holders that a lock can be asked to have at a time.
pub const LOCK_SLOTS_MAX: u32 = 1_000;
/// Most holds extended in one step.
pub const LOCK_EXTENDS_MAX: usize = 500;
/// Most locks that one sign of life asks after; a node with more takes turns.
pub const LOCK_WAITS_MAX: usize = 200;
/// Most places in a line that one step looks at.
pub const LOCK_WAITERS_CHECKED_MAX: usize = 100;
/// Locks on one page of a list.
pub const LOCK_PAGE_SIZE: usize = 500;

/// Who asks for a lock: one acquisition, never a process or a task.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct LockOwner(Uuid);

impl LockOwner {
    /// An owner that nobody has been before.
    #[must_use]
    pub fn fresh() -> Self {
        LockOwner(Uuid::now_v7())
    }

    /// The owner as its 16 bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }

    /// The owner with these 16 bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        LockOwner(Uuid::from_bytes(bytes))
    }
}

impl fmt::Display for LockOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

impl fmt::Debug for LockOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What somebody asks of a lock.
#[derive(Clone, Debug)]
pub struct LockRequest {
    /// The lock. Any text without control characters.
    pub name: String,
    /// Who asks: the same ask may be sent again after an answer was lost, and means the same.
    pub owner: LockOwner,
    /// For which node, whose death ends its place in the line.
    pub node: NodeId,
    /// How long the node's place lasts without a sign of life in the hall.
    pub lease: Duration,
    /// At most so many may hold it at a time; 1 is a plain lock.
    pub slots: u32,
    /// How long the hold lasts unless it is extended.
    pub ttl: Duration,
    /// If it is taken: stand in line.
    pub wait: bool,
    /// Who that is, for people.
    pub note: String,
}

/// What became of an ask.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockReply {
    /// The fence and the slot (from 1), if the owner holds the lock now; the same ones if it did before.
    pub hold: Option<(Fence, u32)>,
    /// How many that live stand in line before it.
    pub waiters_ahead: u32,
    /// How long until the first hold of the lock ends, unless it is extended; `None` if it is free, or ours.
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
    /// Who holds it.
    pub owner: LockOwner,
    /// On which node.
    pub node: NodeId,
    /// Who that is, for people.
    pub note: String,
    /// Grows with every acquisition.
    pub fence: Fence,
    /// Since when it is held.
    #[serde(serialize_with = "crate::clock::as_micros")]
    pub since: SystemTime,
    /// When the hold ends, unless it is extended.
    #[serde(serialize_with = "crate::clock::as_micros")]
    pub expires: SystemTime,
    /// How many wait for the lock, this slot or another.
    pub waiters: u64,
}

/// A page of locks.
#[derive(Debug, Default)]
pub struct LockPage {
    /// Holds that have not ended.
    pub locks: Vec<LockRecord>,
    /// Where the next page starts, if there may be one.
    pub next_cursor: Option<String>,
}

/// How a lock stands, in the eyes of a node that waits for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockTurn {
    /// The lock.
    pub name: String,
    /// The first in line that lives, if it is of this node.
    pub first_waiter: Option<LockOwner>,
    /// How long until the first hold ends, unless it is extended; zero if a slot is free.
    pub expires_in: Duration,
}
