//! How long a draining worker waits for jobs that nodes with an expired lease may still hold.

use std::collections::HashSet;
use std::time::Duration;

use tokio::time::Instant;

use crate::clock;
use crate::node::NodeId;

/// How much longer than a lease to wait: one heartbeat that lists the nodes as suspects, and the claim after it.
const TAKE_BACK_WAIT: Duration = Duration::from_secs(3);

/// The suspects that a draining worker waits for.
#[derive(Debug)]
pub(super) struct TakeBackWait {
    /// Nodes with an expired lease that the last heartbeat listed, until their jobs are taken back.
    suspects: HashSet<NodeId>,
    joined_at: Instant,
}

impl TakeBackWait {
    pub(super) fn new() -> Self {
        TakeBackWait { suspects: HashSet::new(), joined_at: clock::monotonic_now() }
    }

    /// Replaces the suspects with those of the last heartbeat.
    pub(super) fn set_suspects(&mut self, suspects: impl Iterator<Item = NodeId>) {
        self.suspects = suspects.collect();
    }

    /// Removes a node that holds no more jobs.
    pub(super) fn remove(&mut self, node: NodeId) {
        self.suspects.remove(&node);
    }

    /// Returns whether jobs may still be taken back. Only a node that has been connected for a whole lease may do that.
    pub(super) fn is_pending(&self, now: Instant, lease: Duration) -> bool {
        !self.suspects.is_empty() && now < self.joined_at + lease + TAKE_BACK_WAIT
    }
}
