//! Jobs of one queue that pushes have delivered to this node and that have not started yet.

use tokio::time::Instant;

use crate::job::{Fence, HeldJob};
use crate::worker::outcomes::{ClaimKey, claim_key};

/// A delivered job.
#[derive(Debug)]
pub(super) struct DeliveredJob {
    pub(super) held: HeldJob,
    pub(super) received: Instant,
}

/// Delivered jobs of one queue.
#[derive(Debug)]
pub(super) struct Deliveries {
    waiting: Vec<DeliveredJob>,
    /// The highest fence that a resync or a delivery has reported.
    highest_fence: Fence,
}

impl Deliveries {
    pub(super) fn new() -> Self {
        Deliveries { waiting: Vec::new(), highest_fence: Fence(0) }
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn add(&mut self, delivered: DeliveredJob) {
        self.waiting.push(delivered);
    }

    pub(super) fn take_all(&mut self) -> Vec<DeliveredJob> {
        std::mem::take(&mut self.waiting)
    }

    pub(super) fn contains(&self, key: ClaimKey) -> bool {
        self.waiting.iter().any(|delivered| claim_key(&delivered.held) == key)
    }

    /// Returns whether a resync or another delivery may have reported this job before: a connection and its successor
    /// may both deliver it. Fences grow, so a higher one is new.
    pub(super) fn may_be_duplicate(&self, held: &HeldJob) -> bool {
        held.fence <= self.highest_fence
    }

    /// Records the fence of a job that a resync or a delivery has reported.
    pub(super) fn record_fence(&mut self, fence: Fence) {
        self.highest_fence = self.highest_fence.max(fence);
    }
}
