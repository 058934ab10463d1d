//! The claims of a remote node from one queue.

use tokio::time::Instant;

use crate::node::NodeId;
use crate::store::ClaimReply;
use crate::worker::HeldCountCheck;
use crate::worker::claim_state::{IDLE_RANK_STAGGER, NextRequest};
use crate::worker::suspects::Suspects;

/// The options of a claim, besides the number of jobs.
#[derive(Clone, Copy)]
pub(super) struct RemoteClaim {
    /// The claim lists all jobs that the node holds.
    pub(super) resync: bool,
    pub(super) suspect: Option<NodeId>,
}

/// The state of one queue of a remote node.
pub(super) struct RemoteQueue {
    name: String,
    next: NextRequest,
    suspects: Suspects,
    /// Compares the number of held jobs here with the store's.
    count_check: HeldCountCheck,
}

impl RemoteQueue {
    pub(super) fn new(name: &str) -> Self {
        RemoteQueue {
            name: name.to_owned(),
            next: NextRequest::Claim,
            suspects: Suspects::default(),
            count_check: HeldCountCheck::default(),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The queue may have a ready job.
    pub(super) fn request_claim(&mut self) {
        self.next.request_claim();
    }

    /// The node may hold jobs that it does not know.
    pub(super) fn request_resync(&mut self) {
        self.next = NextRequest::Resync;
    }

    /// Returns when to claim even without a wake.
    pub(super) fn check_at(&self) -> Option<Instant> {
        self.next.check_at()
    }

    /// Returns the claim to send, if one is wanted. Without `can_take`, it can return no jobs.
    pub(super) fn next_claim(&mut self, closed: bool, can_take: bool, now: Instant) -> Option<RemoteClaim> {
        self.next.expire(now);
        match self.next {
            NextRequest::Resync => {
                // A resync that is requested from now on is a new one.
                self.next = NextRequest::Wait(None);
                Some(RemoteClaim { resync: true, suspect: None })
            }
            NextRequest::Claim if !closed && (can_take || !self.suspects.is_empty()) => {
                self.next = NextRequest::Wait(None);
                Some(RemoteClaim { resync: false, suspect: self.suspects.take() })
            }
            NextRequest::Claim | NextRequest::Wait(_) => None,
        }
    }

    /// Records the reply to a claim. Returns whether to claim again at once.
    pub(super) fn record_reply(&mut self, claim: RemoteClaim, reply: &ClaimReply, jobs: u64, now: Instant) -> bool {
        self.count_check.record_changes(jobs);
        if reply.suspect_has_more {
            claim.suspect.into_iter().for_each(|suspect| self.suspects.add(suspect));
        }
        if claim.resync || reply.has_more || reply.suspect_has_more {
            self.request_claim();
        } else {
            self.next.wait_until(reply.next_due.map(|due| now + due + IDLE_RANK_STAGGER * reply.idle_rank));
        }
        self.check_wanted()
    }

    /// Records a reply that arrived so late that other nodes may have taken its jobs.
    pub(super) fn record_late_reply(&mut self, claim: RemoteClaim) {
        claim.suspect.into_iter().for_each(|suspect| self.suspects.add(suspect));
        self.request_resync();
    }

    /// Records a failed claim. If it may have been applied, the node may hold jobs that it does not know.
    pub(super) fn record_failure(&mut self, claim: RemoteClaim, may_be_applied: bool) {
        if claim.resync || may_be_applied {
            self.request_resync();
        } else {
            self.request_claim();
        }
    }

    /// Applies the store's reply to a heartbeat: whether to check the queue, its suspects, and how many jobs of it the
    /// node holds, in the store and here.
    pub(super) fn apply_heartbeat(
        &mut self,
        check: bool,
        suspects: impl Iterator<Item = NodeId>,
        stored: u64,
        local: u64,
    ) {
        suspects.for_each(|suspect| self.suspects.add(suspect));
        if check || !self.suspects.is_empty() {
            self.request_claim();
        }
        if self.count_check.is_out_of_sync(stored, local, true) {
            self.request_resync();
        }
    }

    /// Records that jobs of the queue were claimed or recorded.
    pub(super) fn record_changes(&mut self, jobs: u64) {
        self.count_check.record_changes(jobs);
    }

    fn check_wanted(&self) -> bool {
        !matches!(self.next, NextRequest::Wait(_))
    }
}
