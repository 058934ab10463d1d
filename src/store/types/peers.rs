//! Peers: nodes that can be called, hold connections or wait for locks, and the notifications that reach them.

use std::time::Duration;

use super::locks::{LockOwner, LockTurn};
use crate::job::JobId;
use crate::node::NodeId;

/// Most connections told of in one step.
pub const CONNECTIONS_BATCH_MAX: usize = 1_000;

/// A node as it shows itself in the hall.
#[derive(Clone, Debug)]
pub struct PeerInfo {
    /// Who it is.
    pub node: NodeId,
    /// How long it counts as there without another sign of life.
    pub lease: Duration,
    /// What it can be asked to do, sorted.
    pub methods: Vec<String>,
    /// Locks that somebody here waits for: at most [`WAITS_MAX`].
    pub waited_locks: Vec<String>,
    /// Who here should have a place in the line of which lock: at most [`WAITS_MAX`].
    pub waiters: Vec<(String, LockOwner)>,
    /// It only listens: it need not be found by others, holds no place in a line and no connection.
    /// Then a sign of life costs a server nothing.
    pub listen_only: bool,
}

/// What a sign of life in the hall answers.
#[derive(Clone, Debug, Default)]
pub struct AnnounceReply {
    /// For each lock that was asked after and has a line.
    pub turns: Vec<LockTurn>,
    /// Of those whose place was asked after, who has none: it was given up, or has ended with the lease of the node, or the
    /// store has lost it. Who waits must ask again.
    pub lost_waits: Vec<LockOwner>,
}

/// Whom a message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recipient {
    /// Every node that listens, the sender too.
    All,
    /// This one.
    Node(NodeId),
}

/// What a node hears.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notification {
    /// This owner is next in line, and the lock is free; or it had the lock, and somebody has broken it.
    LockTurn {
        /// The lock.
        name: String,
        /// Who should ask again.
        owner: LockOwner,
    },
    /// A message from a node.
    Message(Vec<u8>),
    /// These jobs are done, dead or removed; if none is named, some are, and it is not known which.
    Completed(Vec<JobId>),
    /// Somebody may have died: see whose turn it is.
    CheckTurns,
    /// Something may have been missed: ask again for what is waited for, and say again which connections are held.
    Gap,
}
