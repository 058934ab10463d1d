//! Collects finished attempts, so that one settle records them and one claim fills their slots.

use std::time::Duration;

use crate::clock;
use crate::store::SETTLE_MAX;
use crate::worker::attempts::Attempts;
use crate::worker::outcomes::UnsettledEnd;
use crate::worker::queues::WorkerQueues;
use crate::worker::run_loop::RunMode;
use crate::worker::settle_pace::SettlePace;

/// Moves finished attempts to the outcomes of their queues, at a pace that suits the store.
pub(super) struct FinishedCollector {
    mode: RunMode,
    pace: SettlePace,
}

impl FinishedCollector {
    pub(super) fn new(mode: RunMode) -> Self {
        FinishedCollector { mode, pace: SettlePace::default() }
    }

    /// Collects finished attempts.
    ///
    /// New attempts get their first poll. If attempts are usually quick, the others get a moment to finish.
    pub(super) async fn collect(&mut self, queues: &mut WorkerQueues, attempts: &mut Attempts) {
        self.take_finished(queues, attempts);
        let is_quick = self.pace.attempts_are_quick() && queues.can_settle() && !attempts.is_empty();
        let unpolled = attempts.unpolled_count();
        if !is_quick && unpolled == 0 {
            return;
        }
        let Some(wait) = self.pace.next_wait() else { return };
        let (before, until) = (queues.pending_outcomes(), clock::monotonic_now() + wait);
        let can_grow = |attempts: &Attempts| (is_quick && !attempts.is_empty()) || attempts.unpolled_count() > 0;
        while can_grow(attempts) && queues.pending_outcomes() < SETTLE_MAX && clock::monotonic_now() < until {
            tokio::task::yield_now().await;
            self.take_finished(queues, attempts);
        }
        let first_polls = unpolled.saturating_sub(attempts.unpolled_count());
        self.pace.record_arrivals(queues.pending_outcomes() - before + first_polls);
    }

    /// Adds the end of an attempt to the outcomes of its queue.
    pub(super) fn add(&mut self, queues: &mut WorkerQueues, index: usize, finished: UnsettledEnd) {
        if let Some(timing) = finished.end.timing {
            self.pace.record_attempt(timing.duration);
        }
        queues[index].add_finished(finished);
        if self.mode == RunMode::Drain {
            // The attempt may have pushed more jobs: only a claim after the last attempt shows that none is left.
            queues.request_claims();
        }
    }

    /// Learns from the duration of a settle.
    pub(super) fn record_settle(&mut self, duration: Duration) {
        self.pace.record_settle(duration);
    }

    fn take_finished(&mut self, queues: &mut WorkerQueues, attempts: &mut Attempts) {
        while let Some((queue_index, finished)) = attempts.try_next_finished() {
            self.add(queues, queue_index, finished);
        }
    }
}
