//! How attempts ended, on the way to the store: each queue for itself, so that a shard that fails holds up no other.

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

/// Outcomes of one queue that the store does not have yet.
#[derive(Default)]
pub(super) struct UnsettledOutcomes {
    pending: Vec<FinishedAttempt>,
    /// Those that are under way: one request at a time.
    in_flight: Vec<(JobId, Fence)>,
    failures: u32,
    /// The store has failed: send nothing before this moment.
    pub(super) not_before: Option<Instant>,
}

impl UnsettledOutcomes {
    pub(super) fn add(&mut self, finished: FinishedAttempt) {
        self.pending.push(finished);
    }

    /// How many wait to be sent.
    pub(super) fn pending_count(&self) -> usize {
        self.pending.len()
    }

    /// How many the store does not have, as far as we know.
    pub(super) fn unrecorded_count(&self) -> usize {
        self.pending.len() + self.in_flight.len()
    }

    /// Whether some are under way.
    pub(super) fn has_in_flight(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// Whether this attempt is known to have ended here.
    pub(super) fn contains(&self, attempt: (JobId, Fence)) -> bool {
        self.in_flight.contains(&attempt) || self.pending.iter().any(|finished| claim_key(&finished.held) == attempt)
    }

    /// What goes in the next request: nothing while one is under way, or too soon after one that has failed.
    fn take_batch(&mut self, now: Instant) -> Vec<FinishedAttempt> {
        if self.has_in_flight() || self.not_before.is_some_and(|at| at > now) {
            return Vec::new();
        }
        let rest = self.pending.split_off(self.batch_size());
        let batch = std::mem::replace(&mut self.pending, rest);
        self.in_flight = batch.iter().map(|finished| claim_key(&finished.held)).collect();
        batch
    }

    /// How many go together. The store names what it refuses by the job alone, so no two attempts of one: an outcome that came back
    /// may have been recorded, and the job claimed again since.
    fn batch_size(&self) -> usize {
        let most = self.pending.len().min(SETTLE_MAX);
        if self.failures == 0 {
            return most;
        }
        let mut jobs = HashSet::new();
        self.pending[..most].iter().take_while(|finished| jobs.insert(finished.held.job.id)).count()
    }

    /// The store has them.
    fn confirm_batch(&mut self) {
        self.in_flight.clear();
        self.failures = 0;
        self.not_before = None;
    }

    /// The store has not answered: they go first the next time.
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
    /// How many outcomes wait to be sent.
    pub(super) fn pending_outcomes(&self) -> usize {
        self.queues.iter().map(|lane| lane.outcomes.pending_count()).sum()
    }

    pub(super) fn flush_outcomes(&mut self, at: usize, now: Instant) {
        let batch = self.queues[at].outcomes.take_batch(now);
        if batch.is_empty() {
            return;
        }
        let keep_dead = self.settings.duly.options.keep_dead;
        let ends: Vec<AttemptEnd> = batch.iter().map(|finished| to_attempt_end(finished, keep_dead)).collect();
        let last_words = progress_sender::collect_final_updates(&batch);
        let (store, node) = (self.store.clone(), self.node.id);
        self.requests.push(Box::pin(async move {
            let mut batch = batch;
            let kept = progress_sender::send_updates(&*store, node, last_words).await;
            // Not again, if the outcomes must be sent again.
            let said = |finished: &&mut FinishedAttempt| kept.contains(&finished.held.job.id);
            batch.iter_mut().filter(said).for_each(|finished| finished.progress_update = None);
            StoreReply::Settled(at, batch, now, store.settle(node, ends).await)
        }));
    }

    pub(super) fn handle_settle_reply(&mut self, at: usize, batch: Vec<FinishedAttempt>, lost: &[JobId]) {
        self.queues[at].outcomes.confirm_batch();
        let (now, lease) = (clock::monotonic_now(), self.node.lease);
        if let Some(crash) = self.settings.crash.as_ref().filter(|crash| crash.is_at(&CrashAt::AfterSettle)) {
            crash.crashed.cancel();
        }
        let mut settling = metrics::SettleMetrics::default();
        for finished in batch {
            let FinishedAttempt {
                queue_index: lane,
                held,
                outcome,
                reason: why,
                duration: took,
                lateness: late,
                is_resend: again,
                result,
                held_since: since,
                may_be_recorded: doubted,
                ..
            } = finished;
            self.queues[lane].count_check.record_changes(1);
            let told = self.lost_reported.remove(&claim_key(&held));
            // Of a settle whose answer was lost: if nobody can have taken the job since we began, it was recorded then.
            let recorded_before = doubted && self.queues[lane].is_leased_since(since, now, lease);
            if lost.contains(&held.job.id) && !recorded_before {
                // It may have been recorded then all the same: not a robbery that anybody could know of.
                if !doubted && !again {
                    self.summary.lost += 1;
                    metrics::record_rejected_outcome(&held.job.queue);
                    if !told {
                        self.settings.emit(&Event::Lost { id: held.job.id });
                    }
                    tracing::warn!(id = %held.job.id, "outcome refused: another node has the job");
                }
                self.recent_outcomes.remember(claim_key(&held), outcome, result);
                continue;
            }
            if again {
                continue;
            }
            self.unblock_cron_rule(lane, held.job.unique.as_deref(), &outcome);
            match outcome {
                Outcome::Ack => self.queues[lane].done_since_prune += usize::from(!held.job.keep.is_zero()),
                Outcome::Bury { .. } => {}
                // It is ready again, or will be: look, or learn when.
                Outcome::Retry { .. } | Outcome::Release { .. } => self.queues[lane].maybe_ready = true,
            }
            self.summary.record(&outcome);
            settling.record(&held.job, &outcome, took);
            if let Some(lateness) = late {
                let timing = AttemptTiming { lateness, duration: took };
                self.settings.duly.kind_stats.record(&self.store, &held.job.kind, &outcome, timing);
            }
            self.settings.emit(&Event::Settled { held: &held, outcome: &outcome, reason: why, duration: took });
            self.recent_outcomes.remember(claim_key(&held), outcome, result);
        }
    }

    pub(super) fn handle_settle_error(&mut self, at: usize, mut batch: Vec<FinishedAttempt>, error: &Error) {
        let again_in = self.backoff_delay(self.queues[at].outcomes.failures);
        if matches!(error, Error::Unknown { .. }) {
            batch.iter_mut().for_each(|finished| finished.may_be_recorded = true);
        }
        self.queues[at].outcomes.return_batch(batch, clock::monotonic_now() + again_in);
        self.report_store_failure("settle", error, again_in);
    }
}

fn to_attempt_end(finished: &FinishedAttempt, keep_dead: Duration) -> AttemptEnd {
    let keep = match finished.outcome {
        Outcome::Bury { .. } => keep_dead,
        _ => finished.held.job.keep,
    };
    let timing = finished.lateness.map(|lateness| AttemptTiming { lateness, duration: finished.duration });
    let put_off = finished.reason == Some(UNKNOWN_KIND_REASON);
    AttemptEnd {
        timing,
        result: finished.result.clone(),
        deferred: put_off,
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

    /// A job in a node's hands.
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
        let mut outbox = UnsettledOutcomes::default();
        outbox.add(finished(&one, 1));
        let batch = outbox.take_batch(now);
        outbox.return_batch(batch, now);
        outbox.add(finished(&other, 2));
        // The first was recorded, unheard, and the job has come again.
        outbox.add(finished(&one, 3));
        let fences =
            |batch: Vec<FinishedAttempt>| batch.iter().map(|finished| finished.held.fence.0).collect::<Vec<_>>();
        assert_eq!(fences(outbox.take_batch(now)), [1, 2]);
        outbox.confirm_batch();
        assert_eq!(fences(outbox.take_batch(now)), [3]);
    }
}
