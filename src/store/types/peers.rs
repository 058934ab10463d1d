//! Peers: nodes that can be called, hold connections or wait for locks, and the notifications that reach them.

use std::time::Duration;

use super::locks::{LockOwner, LockTurn};
use crate::job::JobId;
use crate::node::NodeId;

/// Most connections in one operation.
pub const CONNECTIONS_BATCH_MAX: usize = 1_000;

/// A node as it announces itself to its peers.
#[derive(Clone, Debug)]
pub struct PeerInfo {
    /// The node.
    pub node: NodeId,
    /// How long it counts as alive without another announcement.
    pub lease: Duration,
    /// The methods it offers, sorted.
    pub methods: Vec<String>,
    /// Locks that its owners wait for: at most [`LOCK_WAITS_MAX`](super::locks::LOCK_WAITS_MAX).
    pub waited_locks: Vec<String>,
    /// The lock and the owner of each wait: at most [`LOCK_WAITS_MAX`](super::locks::LOCK_WAITS_MAX).
    pub waiters: Vec<(String, LockOwner)>,
    /// It only listens: it offers no methods, waits for no lock and holds no connection.
    /// Announcing such a peer costs a server nothing.
    pub listen_only: bool,
}

impl PeerInfo {
    /// Returns the announcement of a node that others can find, without methods and waits.
    #[must_use]
    pub fn new(node: NodeId, lease: Duration) -> Self {
        let (methods, waited_locks, waiters) = (Vec::new(), Vec::new(), Vec::new());
        PeerInfo { node, lease, methods, waited_locks, waiters, listen_only: false }
    }
}

/// The reply to an announcement.
#[derive(Clone, Debug, Default)]
pub struct AnnounceReply {
    /// The state of each announced lock that has waiters.
    pub turns: Vec<LockTurn>,
    /// Announced owners that do not wait any more: the wait was cancelled, ended with the node's lease, or the store
    /// lost it. They must request the lock again.
    pub lost_waits: Vec<LockOwner>,
}

/// The recipient of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recipient {
    /// Every listening node, including the sender.
    All,
    /// This node.
    Node(NodeId),
}

/// A notification to a subscribed node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notification {
    /// This owner is the first waiter and the lock is free, or its hold was broken.
    LockTurn {
        /// The lock.
        name: String,
        /// The owner that should request the lock again.
        owner: LockOwner,
    },
    /// A message from a node.
    Message(Vec<u8>),
    /// These jobs are done, dead or removed. If the list is empty, some jobs are, but it is unknown which.
    Completed(Vec<JobId>),
    /// A node may have died: check which waiters have their turn.
    CheckTurns,
    /// Notifications may have been lost: check everything waited for again, and register the connections again.
    Gap,
}
