//! Outcomes on their way to the store. Each queue has its own, so that a failing shard does not delay other queues.

use std::collections::HashSet;
use std::time::Duration;

use tokio::time::Instant;

use crate::clock;
use crate::error::Error;
use crate::job::{Fence, HeldJob, JobId, Outcome};
use crate::metrics;
use crate::store::{AttemptEnd, AttemptTiming, SETTLE_MAX};
use crate::testing::CrashAt;
use crate::worker::attempt::UNKNOWN_KIND_REASON;
use crate::worker::claims::StoreReply;
use crate::worker::event::Event;
use crate::worker::in_flight::FinishedAttempt;
use crate::worker::progress_sender;
use crate::worker::run_loop::WorkerLoop;

/// Outcomes of one queue that the store has not recorded yet.
#[derive(Default)]
pub(super) struct UnsettledOutcomes {
    pending: Vec<FinishedAttempt>,
    /// The attempts in the current request; there is at most one request.
    in_flight: Vec<(JobId, Fence)>,
    failures: u32,
    /// Earliest time of the next request after a failure.
    pub(super) not_before: Option<Instant>,
}

impl UnsettledOutcomes {
    pub(super) fn add(&mut self, finished: FinishedAttempt) {
        self.pending.push(finished);
    }

    /// Returns how many outcomes wait to be sent.
    pub(super) fn pending_count(&self) -> usize {
        self.pending.len()
    }

    /// Returns how many outcomes are not known to be recorded.
    pub(super) fn unrecorded_count(&self) -> usize {
        self.pending.len() + self.in_flight.len()
    }

    /// Returns whether a request is in flight.
    pub(super) fn has_in_flight(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// Returns whether this attempt has finished and is not known to be recorded.
    pub(super) fn contains(&self, attempt: (JobId, Fence)) -> bool {
        self.in_flight.contains(&attempt) || self.pending.iter().any(|finished| claim_key(&finished.held) == attempt)
    }

    /// Takes the outcomes for the next request. Returns none while a request is in flight or a backoff is running.
    fn take_batch(&mut self, now: Instant) -> Vec<FinishedAttempt> {
        if self.has_in_flight() || self.not_before.is_some_and(|at| at > now) {
            return Vec::new();
        }
        let rest = self.pending.split_off(self.batch_size());
        let batch = std::mem::replace(&mut self.pending, rest);
        self.in_flight = batch.iter().map(|finished| claim_key(&finished.held)).collect();
        batch
    }

    /// Returns how many outcomes go into one request. After a failure, two attempts of one job are sent separately: the
    /// first may have been recorded before the job was claimed again, and the store rejects outcomes by job id.
    fn batch_size(&self) -> usize {
        let max = self.pending.len().min(SETTLE_MAX);
        if self.failures == 0 {
            return max;
        }
        let mut jobs = HashSet::new();
        self.pending[..max].iter().take_while(|finished| jobs.insert(finished.held.job.id)).count()
    }

    /// The store has recorded the batch.
    fn confirm_batch(&mut self) {
        self.in_flight.clear();
        self.failures = 0;
        self.not_before = None;
    }

    /// The request failed: its outcomes go first in the next one.
    fn return_batch(&mut self, batch: Vec<FinishedAttempt>, not_before: Instant) {
        self.in_flight.clear();
        self.failures = self.failures.saturating_add(1);
        self.not_before = Some(not_before);
        let newer = std::mem::replace(&mut self.pending, batch);
        self.pending.extend(newer);
    }
}

fn claim_key(held: &HeldJob) -> (JobId, Fence) {
    (held.job.id, held.fence)
}

impl WorkerLoop {
    /// Returns how many outcomes wait to be sent.
    pub(super) fn pending_outcomes(&self) -> usize {
        self.queues.iter().map(|queue| queue.outcomes.pending_count()).sum()
    }

    pub(super) fn flush_outcomes(&mut self, index: usize, now: Instant) {
        let batch = self.queues[index].outcomes.take_batch(now);
        if batch.is_empty() {
            return;
        }
        let keep_dead = self.settings.duly.options.keep_dead;
        let ends: Vec<AttemptEnd> = batch.iter().map(|finished| to_attempt_end(finished, keep_dead)).collect();
        let updates = progress_sender::collect_final_updates(&batch);
        let (store, node) = (self.store.clone(), self.node.id);
        self.requests.push(Box::pin(async move {
            let mut batch = batch;
            let recorded = progress_sender::send_updates(&*store, node, updates).await;
            // Recorded updates are not sent again if the outcomes are.
            let is_recorded = |finished: &&mut FinishedAttempt| recorded.contains(&finished.held.job.id);
            batch.iter_mut().filter(is_recorded).for_each(|finished| finished.progress_update = None);
            StoreReply::Settled(index, batch, now, store.settle(node, ends).await)
        }));
    }

    pub(super) fn handle_settle_reply(&mut self, index: usize, batch: Vec<FinishedAttempt>, lost: &[JobId]) {
        self.queues[index].outcomes.confirm_batch();
        let (now, lease) = (clock::monotonic_now(), self.node.lease);
        if let Some(crash) = self.settings.crash.as_ref().filter(|crash| crash.is_at(&CrashAt::AfterSettle)) {
            crash.crashed.cancel();
        }
        let mut settle_metrics = metrics::SettleMetrics::default();
        for finished in batch {
            let FinishedAttempt {
                queue_index,
                held,
                outcome,
                reason,
                duration,
                lateness,
                is_resend,
                result,
                held_since,
                may_be_recorded,
                ..
            } = finished;
            self.queues[queue_index].count_check.record_changes(1);
            let loss_reported = self.lost_reported.remove(&claim_key(&held));
            // After a settle with a lost reply: if the lease was valid throughout, that settle recorded the outcome.
            let recorded_before = may_be_recorded && self.queues[queue_index].is_leased_since(held_since, now, lease);
            if lost.contains(&held.job.id) && !recorded_before {
                // An outcome that may have been recorded before is not reported as lost.
                if !may_be_recorded && !is_resend {
                    self.summary.lost += 1;
                    metrics::record_rejected_outcome(&held.job.queue);
                    if !loss_reported {
                        self.settings.emit(&Event::Lost { id: held.job.id });
                    }
                    tracing::warn!(id = %held.job.id, "outcome rejected: another node has the job");
                }
                self.recent_outcomes.remember(claim_key(&held), outcome, result);
                continue;
            }
            if is_resend {
                continue;
            }
            self.unblock_cron_rule(queue_index, held.job.unique.as_deref(), &outcome);
            match outcome {
                Outcome::Ack => self.queues[queue_index].done_since_prune += usize::from(!held.job.keep.is_zero()),
                Outcome::Bury { .. } => {}
                // A claim finds the job, or reports when it becomes due.
                Outcome::Retry { .. } | Outcome::Release { .. } => self.queues[queue_index].maybe_ready = true,
            }
            self.summary.record(&outcome);
            settle_metrics.record(&held.job, &outcome, duration);
            if let Some(lateness) = lateness {
                let timing = AttemptTiming { lateness, duration };
                self.settings.duly.kind_stats.record(&self.store, &held.job.kind, &outcome, timing);
            }
            self.settings.emit(&Event::Settled { held: &held, outcome: &outcome, reason, duration });
            self.recent_outcomes.remember(claim_key(&held), outcome, result);
        }
    }

    pub(super) fn handle_settle_error(&mut self, index: usize, mut batch: Vec<FinishedAttempt>, error: &Error) {
        let retry_in = self.backoff_delay(self.queues[index].outcomes.failures);
        if matches!(error, Error::Unknown { .. }) {
            batch.iter_mut().for_each(|finished| finished.may_be_recorded = true);
        }
        self.queues[index].outcomes.return_batch(batch, clock::monotonic_now() + retry_in);
        self.report_store_failure("settle", error, retry_in);
    }
}

fn to_attempt_end(finished: &FinishedAttempt, keep_dead: Duration) -> AttemptEnd {
    let keep = match finished.outcome {
        Outcome::Bury { .. } => keep_dead,
        _ => finished.held.job.keep,
    };
    let timing = finished.lateness.map(|lateness| AttemptTiming { lateness, duration: finished.duration });
    let deferred = finished.reason == Some(UNKNOWN_KIND_REASON);
    AttemptEnd {
        timing,
        result: finished.result.clone(),
        deferred,
        ..AttemptEnd::from_held(&finished.held, finished.outcome.clone(), keep)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Duly;
    use crate::job::push::Push;
    use crate::node::Node;
    use crate::store::Claim;

    /// Returns a claimed job.
    async fn claim_job() -> HeldJob {
        let duly = Duly::open(":memory:").await.expect("opens");
        duly.push(Push::new("mail", "{}")).await.expect("pushes");
        let node = Node::fresh(vec!["default".into()]);
        duly.store.heartbeat(&node).await.expect("joins");
        let claim = Claim { queue: "default".into(), max: 1, resync: false, suspect: None, kinds: None };
        duly.store.claim(node.id, claim).await.expect("claims").jobs.pop().expect("the job")
    }

    fn finished(held: &HeldJob, fence: u64) -> FinishedAttempt {
        FinishedAttempt::without_run(0, HeldJob { fence: Fence(fence), ..held.clone() }, Outcome::Ack)
    }

    #[tokio::test]
    async fn two_attempts_of_one_job_are_not_settled_in_one_batch() {
        let (one, other, now) = (claim_job().await, claim_job().await, clock::monotonic_now());
        let mut outcomes = UnsettledOutcomes::default();
        outcomes.add(finished(&one, 1));
        let batch = outcomes.take_batch(now);
        outcomes.return_batch(batch, now);
        outcomes.add(finished(&other, 2));
        // The reply to the first settle was lost although it was recorded, and the job was claimed again.
        outcomes.add(finished(&one, 3));
        let fences =
            |batch: Vec<FinishedAttempt>| batch.iter().map(|finished| finished.held.fence.0).collect::<Vec<_>>();
        assert_eq!(fences(outcomes.take_batch(now)), [1, 2]);
        outcomes.confirm_batch();
        assert_eq!(fences(outcomes.take_batch(now)), [3]);
    }
}
