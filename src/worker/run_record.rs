//! The record of a worker's run: its summary, its recent outcomes, and the lost jobs it has reported.

use std::collections::HashSet;

use crate::job::Outcome;
use crate::metrics::{self, SettleMetrics};
use crate::worker::WorkerSettings;
use crate::worker::event::{Event, RunSummary};
use crate::worker::outcomes::{ClaimKey, Recording, UnsettledOutcome};
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
        settled: UnsettledOutcome,
    ) {
        let attempt = settled.claim_key();
        self.lost_reported.remove(&attempt);
        if settled.recording == Recording::Resend {
            return;
        }
        let (end, held) = (&settled.end, settled.end.held());
        let duration = end.timing.map(|timing| timing.duration).unwrap_or_default();
        self.summary.record(&end.outcome);
        settle_metrics.record(&held.job, &end.outcome, duration);
        if let Some(timing) = end.timing {
            settings.duly.kind_stats.record(&settings.duly.store, &held.job.kind, &end.outcome, timing);
        }
        settings.emit(&Event::Settled { held, outcome: &end.outcome, reason: settled.reason, duration });
        self.recent.remember(attempt, settled.end.outcome, settled.end.result);
    }

    /// Records an outcome that the store rejected because another node has the job. If the outcome may have been
    /// recorded before, it is not reported as lost.
    pub(super) fn record_rejected(&mut self, settings: &WorkerSettings, rejected: UnsettledOutcome) {
        let attempt = rejected.claim_key();
        let loss_reported = self.lost_reported.remove(&attempt);
        if rejected.recording == Recording::New {
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
