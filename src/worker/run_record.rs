//! The record of a worker's run: its summary, its recent outcomes, and the lost jobs it has reported.

use std::collections::HashSet;

use crate::job::Outcome;
use crate::metrics::{self, SettleMetrics};
use crate::store::{CANCELLED_INDEX, outcome_index};
use crate::worker::WorkerSettings;
use crate::worker::cancel::has_cancelled_jobs;
use crate::worker::end_reason::EndReason;
use crate::worker::event::{Event, RunSummary};
use crate::worker::outcomes::{ClaimKey, RecordingState, UnsettledEnd};
use crate::worker::recent_outcomes::RecentOutcomes;

/// The record of one run.
#[derive(Default)]
pub(super) struct RunRecord {
    summary: RunSummary,
    recent: RecentOutcomes,
    /// Running attempts that lost their job to another node and for which [`Event::Lost`] has been emitted.
    lost_reported: HashSet<ClaimKey>,
}

impl RunRecord {
    /// Returns the outcome and the result of an attempt that was settled recently.
    pub(super) fn find(&self, attempt: ClaimKey) -> Option<(Outcome, Option<String>)> {
        self.recent.find(attempt)
    }

    /// Reports that a running attempt has lost its job to another node.
    pub(super) fn report_lost(&mut self, settings: &WorkerSettings, attempt: ClaimKey) {
        self.lost_reported.insert(attempt);
        settings.emit(&Event::Lost { id: attempt.0 });
    }

    /// Records an outcome that the store has recorded.
    pub(super) fn record_settled(
        &mut self,
        settings: &WorkerSettings,
        settle_metrics: &mut SettleMetrics,
        settled: UnsettledEnd,
    ) {
        let attempt = settled.claim_key();
        self.lost_reported.remove(&attempt);
        if settled.recording == RecordingState::Resend {
            return;
        }
        let (end, held) = (&settled.end, settled.end.held());
        let duration = end.timing.map(|timing| timing.duration).unwrap_or_default();
        let cancelled = settled.reason == Some(EndReason::Cancelled) && has_cancelled_jobs(&*settings.duly.store);
        self.summary.record(&end.outcome, cancelled);
        settle_metrics.record(&held.job, if cancelled { "cancelled" } else { end.outcome.as_str() }, duration);
        if let Some(timing) = end.timing {
            let counter = if cancelled { CANCELLED_INDEX } else { outcome_index(&end.outcome) };
            settings.duly.kind_stats.record(&settings.duly.store, &held.job.kind, counter, timing);
        }
        let reason = settled.reason.map(EndReason::as_str);
        settings.emit(&Event::Settled { held, outcome: &end.outcome, reason, cancelled, duration });
        self.recent.remember(attempt, settled.end.outcome, settled.end.result);
    }

    /// Records an outcome that the store rejected because another node has the job. If the outcome may have been
    /// recorded before, it is not reported as lost.
    pub(super) fn record_rejected(&mut self, settings: &WorkerSettings, rejected: UnsettledEnd) {
        let attempt = rejected.claim_key();
        let loss_reported = self.lost_reported.remove(&attempt);
        if rejected.recording == RecordingState::New {
            self.summary.lost += 1;
            metrics::record_rejected_outcome(rejected.end.queue());
            if !loss_reported {
                settings.emit(&Event::Lost { id: attempt.0 });
            }
            tracing::warn!(id = %attempt.0, "outcome rejected: another node has the job");
        }
        self.recent.remember(attempt, rejected.end.outcome, rejected.end.result);
    }

    /// Returns the summary of the run.
    pub(super) fn into_summary(self, unrecorded: u64, crashed: bool) -> RunSummary {
        RunSummary { unrecorded, crashed, ..self.summary }
    }
}
