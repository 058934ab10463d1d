//! Nodes that may be dead and hold jobs of one queue.

use tokio::time::Instant;

use crate::node::NodeId;

/// The suspects of one queue. A claim names one of them; the store takes its jobs back if it is dead.
#[derive(Debug, Default)]
pub(super) struct Suspects {
    nodes: Vec<NodeId>,
    /// Nodes that become suspects at the given time, unless a heartbeat reply corrects that.
    expiring: Vec<(NodeId, Instant)>,
}

impl Suspects {
    pub(super) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    pub(super) fn add(&mut self, node: NodeId) {
        if !self.nodes.contains(&node) {
            self.nodes.push(node);
        }
    }

    /// Takes the suspect to name in the next claim.
    pub(super) fn take(&mut self) -> Option<NodeId> {
        self.nodes.pop()
    }

    /// Replaces the nodes that will become suspects.
    pub(super) fn set_expiring(&mut self, expiring: Vec<(NodeId, Instant)>) {
        self.expiring = expiring;
    }

    /// Turns nodes with an expired lease into suspects. Returns whether there was one.
    pub(super) fn suspect_expired(&mut self, now: Instant) -> bool {
        let (expired, expiring): (Vec<_>, Vec<_>) = self.expiring.drain(..).partition(|(_, at)| *at <= now);
        self.expiring = expiring;
        expired.iter().for_each(|(node, _)| self.add(*node));
        !expired.is_empty()
    }

    /// Returns when the next node becomes a suspect.
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.expiring.iter().map(|(_, at)| *at).min()
    }
}
