//! Messages between the quarantine and its owner.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::job::HeldJob;
use crate::worker::outcomes::ClaimKey;

/// A held job that may crash its process.
#[derive(Debug)]
pub(in crate::worker) struct CrashSuspect {
    pub(in crate::worker) queue_index: usize,
    pub(in crate::worker) held: Arc<HeldJob>,
    /// When the store last listed it as held by this node.
    pub(super) held_since: Instant,
    /// How long it runs before other jobs may start.
    pub(super) trial: Duration,
}

/// The decision on a job that was just claimed.
#[derive(Debug)]
pub(in crate::worker) enum Admission {
    /// Start it.
    Start(HeldJob),
    /// It waits here for its trial.
    Waits,
    /// Release it with this delay.
    Release(HeldJob, Duration),
}

/// The next action of the owner.
#[derive(Debug)]
pub(in crate::worker) enum QuarantineAction {
    /// Start these suspects.
    Start(Vec<CrashSuspect>),
    /// Tell the store whether this job runs alone, and report the reply to [`Quarantine::record_alone_reply`](super::Quarantine::record_alone_reply).
    SetAlone { queue_index: usize, held: Arc<HeldJob>, alone: bool },
    /// Release these suspects with this delay.
    Release(Vec<CrashSuspect>, Duration),
}

/// The reply of the store to [`QuarantineAction::SetAlone`].
#[derive(Clone, Copy, Debug)]
pub(in crate::worker) struct AloneReply {
    /// The job and the mark of the request. The attempt may have ended meanwhile, and another request may be in flight.
    pub(in crate::worker) claim: ClaimKey,
    pub(in crate::worker) alone: bool,
    /// Whether the node still holds the job; `None` if the request failed.
    pub(in crate::worker) is_held: Option<bool>,
}

/// The activity of the node apart from the quarantine.
#[derive(Clone, Copy, Debug)]
pub(in crate::worker) struct NodeActivity {
    /// Attempts run, or have outcomes that are not recorded: for the store, such a job still runs, and may be marked.
    pub(in crate::worker) runs: bool,
    /// The only attempt, if exactly one runs.
    pub(in crate::worker) only: Option<ClaimKey>,
    /// Claimed or delivered jobs may still arrive.
    pub(in crate::worker) expects_jobs: bool,
    /// Another node may have taken a suspect that waits here.
    pub(in crate::worker) may_have_lost: bool,
    /// The node accepts jobs: it neither stops nor is quiet.
    pub(in crate::worker) accepts_jobs: bool,
}

impl NodeActivity {
    /// Returns whether a trial may begin, as far as this node is concerned.
    pub(super) fn has_room(self) -> bool {
        !self.runs && !self.expects_jobs && !self.may_have_lost
    }
}
