//! When a worker prunes the finished jobs of one queue.

use std::time::Duration;

use tokio::time::Instant;

use crate::store::PRUNE_MAX;

/// Interval between prunes of finished jobs past their keep time.
const PRUNE_INTERVAL: Duration = Duration::from_secs(60);

/// Prunes at an interval, and early if many jobs are done.
#[derive(Debug, Default)]
pub(super) struct PruneSchedule {
    done_since_last: usize,
    next_at: Option<Instant>,
}

impl PruneSchedule {
    /// Counts a done job that is kept.
    pub(super) fn count_done(&mut self) {
        self.done_since_last += 1;
    }

    /// The last prune deleted as many as it may: there are probably more.
    pub(super) fn request_another(&mut self) {
        self.done_since_last = PRUNE_MAX;
    }

    /// Returns whether to prune now, and schedules the next prune.
    pub(super) fn take_due(&mut self, now: Instant) -> bool {
        let is_due = *self.next_at.get_or_insert(now + PRUNE_INTERVAL) <= now || self.done_since_last >= PRUNE_MAX;
        if is_due {
            *self = PruneSchedule { done_since_last: 0, next_at: Some(now + PRUNE_INTERVAL) };
        }
        is_due
    }

    pub(super) fn next_at(&self) -> Option<Instant> {
        self.next_at
    }
}
