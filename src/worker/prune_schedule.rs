//! When a worker prunes the finished jobs of one queue.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::store::{JobStore, PRUNE_MAX, Store};

/// Interval between prunes of finished jobs past their keep time.
const PRUNE_INTERVAL: Duration = Duration::from_secs(60);

/// Bounds of the delay before the first prune. Workers started by cron or in CI run for a short time only.
const FIRST_PRUNE_MIN: Duration = Duration::from_secs(1);
const FIRST_PRUNE_MAX: Duration = Duration::from_secs(2);

/// Prunes of one queue after which a worker also removes unused queues of the store: about one hour.
const PRUNES_PER_QUEUE_REMOVAL: u32 = 60;

/// Bounds of the last prunes of a worker: requests per queue, and the time for all queues.
const FINAL_PRUNE_BATCHES_MAX: usize = 10;
pub(super) const FINAL_PRUNE_TIMEOUT: Duration = Duration::from_secs(1);

/// Deletes the finished jobs of these queues that are past their keep time or their maximum number.
pub(super) async fn prune_queues(store: Arc<dyn Store>, queues: Vec<String>, done_max: usize) {
    for queue in queues {
        for _ in 0..FINAL_PRUNE_BATCHES_MAX {
            match store.prune(&queue, done_max).await {
                Ok(PRUNE_MAX) => {}
                Ok(_) => break,
                Err(error) => {
                    tracing::warn!(%error, "prune failed");
                    break;
                }
            }
        }
    }
}

/// Prunes shortly after the start, at an interval, and early if many jobs are done.
#[derive(Debug, Default)]
pub(super) struct PruneSchedule {
    done_since_last: usize,
    next_at: Option<Instant>,
    /// Prunes since unused queues were removed.
    prunes: u32,
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
        let first = || now + FIRST_PRUNE_MIN + (FIRST_PRUNE_MAX - FIRST_PRUNE_MIN).mul_f64(fastrand::f64());
        let is_due = *self.next_at.get_or_insert_with(first) <= now || self.done_since_last >= PRUNE_MAX;
        if is_due {
            let prunes = self.prunes + 1;
            *self = PruneSchedule { done_since_last: 0, next_at: Some(now + PRUNE_INTERVAL), prunes };
        }
        is_due
    }

    /// Returns whether to remove unused queues with this prune.
    pub(super) fn take_queue_removal(&mut self) -> bool {
        let is_due = self.prunes >= PRUNES_PER_QUEUE_REMOVAL;
        if is_due {
            self.prunes = 0;
        }
        is_due
    }

    pub(super) fn next_at(&self) -> Option<Instant> {
        self.next_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_prune_follows_shortly_after_the_start() {
        let (mut schedule, start) = (PruneSchedule::default(), Instant::now());
        assert!(!schedule.take_due(start));
        assert!(schedule.next_at().is_some_and(|at| at >= start + FIRST_PRUNE_MIN && at <= start + FIRST_PRUNE_MAX));
        assert!(schedule.take_due(start + FIRST_PRUNE_MAX));
        assert_eq!(schedule.next_at(), Some(start + FIRST_PRUNE_MAX + PRUNE_INTERVAL));
    }
}
