//! The phases of a worker's run.
//!
//! ```text
//!   Blocked ◀── a handler blocks ──▶ Running ◀── order of another node ──▶ Quiet
//!      │                                │                                    │
//!      └─────────────────────── stop requested ─────────────────────────────┤
//!                                               ▼
//!                         Stopping: no claims; running attempts may finish
//!                                               │
//!                         grace period over, or stop at once
//!                                               ▼
//!                         Leaving: attempts are aborted, the last outcomes are recorded
//! ```

use std::time::Duration;

use tokio::time::Instant;

use crate::worker::end_reason::EndReason;

/// Longer grace periods make no difference.
const GRACE_PERIOD_MAX: Duration = Duration::from_secs(30 * 24 * 3600);
/// How long a worker tries to record the last outcomes.
pub(super) const FINAL_SETTLE_TIMEOUT: Duration = Duration::from_secs(2);

/// The phase of a worker's run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Claims and runs jobs.
    Running,
    /// Another node has ordered this worker to claim no more jobs.
    Quiet,
    /// A handler blocks the runtime: new attempts could not run, so no job is claimed or started.
    Blocked,
    /// Claims nothing and waits for running attempts.
    Stopping { grace_until: Instant },
    /// Has aborted its attempts and leaves at this time, even if outcomes are unrecorded.
    Leaving { leave_by: Instant },
}

impl Phase {
    pub(super) fn is_running(self) -> bool {
        self == Phase::Running
    }

    /// Returns whether the worker has begun to stop.
    pub(super) fn is_stopping(self) -> bool {
        matches!(self, Phase::Stopping { .. } | Phase::Leaving { .. })
    }

    pub(super) fn is_leaving(self) -> bool {
        matches!(self, Phase::Leaving { .. })
    }

    /// Follows the order of another node. A stopping worker ignores it.
    pub(super) fn set_quiet(&mut self, quiet: bool) {
        match (*self, quiet) {
            (Phase::Running | Phase::Blocked, true) => *self = Phase::Quiet,
            (Phase::Quiet, false) => *self = Phase::Running,
            _ => {}
        }
    }

    /// Records whether a handler blocks the runtime. Returns whether that changed the phase.
    pub(super) fn set_blocked(&mut self, blocked: bool) -> bool {
        match (*self, blocked) {
            (Phase::Running, true) => *self = Phase::Blocked,
            (Phase::Blocked, false) => *self = Phase::Running,
            _ => return false,
        }
        true
    }

    /// Begins to stop.
    pub(super) fn stop(&mut self, now: Instant, grace: Duration) {
        if !self.is_stopping() {
            *self = Phase::Stopping { grace_until: now + grace.min(GRACE_PERIOD_MAX) };
        }
    }

    /// Ends the grace period.
    pub(super) fn leave(&mut self, now: Instant) {
        if !self.is_leaving() {
            *self = Phase::Leaving { leave_by: now + FINAL_SETTLE_TIMEOUT };
        }
    }

    /// Returns whether the grace period has ended, and the worker should leave.
    pub(super) fn is_grace_over(self, now: Instant) -> bool {
        matches!(self, Phase::Stopping { grace_until } if grace_until <= now)
    }

    /// Returns when this phase ends by itself.
    pub(super) fn deadline(self) -> Option<Instant> {
        match self {
            Phase::Running | Phase::Quiet | Phase::Blocked => None,
            Phase::Stopping { grace_until } => Some(grace_until),
            Phase::Leaving { leave_by } => Some(leave_by),
        }
    }

    /// Returns why a job that was claimed is not started; `None` if it is.
    pub(super) fn release_reason(self) -> Option<EndReason> {
        match self {
            Phase::Running => None,
            Phase::Quiet => Some(EndReason::WorkerQuiet),
            Phase::Blocked => Some(EndReason::WorkerBlocked),
            Phase::Stopping { .. } | Phase::Leaving { .. } => Some(EndReason::WorkerStopping),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stopping_worker_ignores_orders_and_leaves_after_its_grace_period() {
        let (now, grace) = (Instant::now(), Duration::from_secs(5));
        let mut phase = Phase::Running;
        phase.set_quiet(true);
        assert!(!phase.set_blocked(true), "a quiet worker claims nothing anyway");
        assert_eq!(phase, Phase::Quiet);
        phase.stop(now, grace);
        phase.set_quiet(false);
        phase.stop(now, Duration::MAX);
        assert_eq!(phase.deadline(), Some(now + grace));
        assert!(!phase.is_grace_over(now) && phase.is_grace_over(now + grace));
        phase.leave(now + grace);
        phase.leave(now + grace * 2);
        assert_eq!(phase.deadline(), Some(now + grace + FINAL_SETTLE_TIMEOUT));
        assert!(phase.is_stopping() && phase.is_leaving());
    }
}
