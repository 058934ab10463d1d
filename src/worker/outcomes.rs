//! Outcomes on their way to the store. Each queue has its own, so that a failing shard does not delay other queues.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::clock;
use crate::job::{Fence, HeldJob, JobId, Outcome};
use crate::store::{AttemptEnd, ProgressUpdate, SETTLE_MAX};
use crate::worker::backoff::Backoff;
use crate::worker::end_reason::EndReason;

/// Identifies one claim of a job.
pub(super) type ClaimKey = (JobId, Fence);

pub(super) fn claim_key(held: &HeldJob) -> ClaimKey {
    (held.job.id, held.fence)
}

/// How far the recording of an outcome is, as far as the worker knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordingState {
    /// The store has not recorded it.
    New,
    /// It was sent before and the reply was lost, so the store may have recorded it.
    MayBeRecorded,
    /// The store recorded it and has lost it since, in a failover. It has been counted and reported before.
    Resend,
}

/// The end of an attempt with what the worker needs until the store has recorded it.
#[derive(Debug)]
pub(super) struct UnsettledEnd {
    pub(super) end: AttemptEnd,
    /// Why the job was released, if its handler did not decide that.
    pub(super) reason: Option<EndReason>,
    /// Unsent progress.
    pub(super) progress_update: Option<ProgressUpdate>,
    /// Since when this node is known to hold the job.
    pub(super) held_since: Instant,
    pub(super) recording: RecordingState,
}

impl UnsettledEnd {
    pub(super) fn new(end: AttemptEnd, reason: Option<EndReason>, held_since: Instant) -> Self {
        UnsettledEnd { end, reason, progress_update: None, held_since, recording: RecordingState::New }
    }

    pub(super) fn claim_key(&self) -> ClaimKey {
        claim_key(self.end.held())
    }

    /// The reply to a settle was lost.
    fn mark_uncertain(&mut self) {
        if self.recording == RecordingState::New {
            self.recording = RecordingState::MayBeRecorded;
        }
    }
}

/// Outcomes of one queue that the store has not recorded yet.
#[derive(Debug, Default)]
pub(super) struct UnsettledEnds {
    pending: Vec<UnsettledEnd>,
    /// The attempts in the current request; there is at most one request.
    in_flight: Vec<ClaimKey>,
    backoff: Backoff,
}

impl UnsettledEnds {
    pub(super) fn add(&mut self, finished: UnsettledEnd) {
        self.pending.push(finished);
    }

    /// Releases a job that was not started.
    pub(super) fn release(&mut self, held: HeldJob, after: Duration, reason: EndReason) {
        let end = AttemptEnd::new(Arc::new(held), Outcome::release(after), Duration::ZERO);
        self.add(UnsettledEnd::new(end, Some(reason), clock::monotonic_now()));
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
    pub(super) fn contains(&self, attempt: ClaimKey) -> bool {
        self.in_flight.contains(&attempt) || self.pending.iter().any(|unsettled| unsettled.claim_key() == attempt)
    }

    /// Returns when a failed request can be repeated.
    pub(super) fn backoff_deadline(&self, now: Instant) -> Option<Instant> {
        self.backoff.deadline(now)
    }

    /// Takes the outcomes for the next request. Returns none while a request is in flight or a backoff is running.
    pub(super) fn take_batch(&mut self, now: Instant) -> Vec<UnsettledEnd> {
        if self.has_in_flight() || !self.backoff.is_over(now) {
            return Vec::new();
        }
        let rest = self.pending.split_off(self.batch_size());
        let batch = std::mem::replace(&mut self.pending, rest);
        self.in_flight = batch.iter().map(UnsettledEnd::claim_key).collect();
        batch
    }

    /// Returns how many outcomes go into one request. Two attempts of one job are sent separately: the store rejects
    /// outcomes by job id, and one of the two may be rejected, because another node had the job in between.
    fn batch_size(&self) -> usize {
        let max = self.pending.len().min(SETTLE_MAX);
        let mut jobs = HashSet::with_capacity(max);
        self.pending[..max].iter().take_while(|unsettled| jobs.insert(unsettled.end.id())).count()
    }

    /// The store has recorded the batch.
    pub(super) fn confirm_batch(&mut self) {
        self.in_flight.clear();
        self.backoff.reset();
    }

    /// The request failed: its outcomes go first in the next one. Returns the delay before that.
    pub(super) fn return_batch(
        &mut self,
        mut batch: Vec<UnsettledEnd>,
        may_be_recorded: bool,
        now: Instant,
        lease: Duration,
    ) -> Duration {
        if may_be_recorded {
            batch.iter_mut().for_each(UnsettledEnd::mark_uncertain);
        }
        self.in_flight.clear();
        let newer = std::mem::replace(&mut self.pending, batch);
        self.pending.extend(newer);
        self.backoff.record_failure(now, lease)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Duly;
    use crate::job::push::Push;
    use crate::node::Node;
    use crate::store::{Claim, JobStore};

    /// Returns a claimed job.
    async fn claim_job() -> HeldJob {
        let duly = Duly::open(":memory:").await.expect("opens");
        duly.push(Push::new("mail", "{}")).await.expect("pushes");
        let node = Node::fresh(vec!["default".into()]);
        duly.store.heartbeat(&node).await.expect("joins");
        let claim = Claim::new("default", 1);
        duly.store.claim(node.id, claim).await.expect("claims").jobs.pop().expect("the job")
    }

    fn finished(held: &HeldJob, fence: u64) -> UnsettledEnd {
        let held = Arc::new(HeldJob { fence: Fence(fence), ..held.clone() });
        UnsettledEnd::new(AttemptEnd::new(held, Outcome::Ack, Duration::ZERO), None, clock::monotonic_now())
    }

    #[tokio::test]
    async fn two_attempts_of_one_job_are_not_settled_in_one_batch() {
        let (one, other, now) = (claim_job().await, claim_job().await, clock::monotonic_now());
        let mut outcomes = UnsettledEnds::default();
        outcomes.add(finished(&one, 1));
        let batch = outcomes.take_batch(now);
        let later = now + outcomes.return_batch(batch, true, now, Duration::from_secs(9));
        outcomes.add(finished(&other, 2));
        // The reply to the first settle was lost although it was recorded, and the job was claimed again.
        outcomes.add(finished(&one, 3));
        let fences =
            |batch: Vec<UnsettledEnd>| batch.iter().map(|unsettled| unsettled.end.fence().0).collect::<Vec<_>>();
        assert_eq!(fences(outcomes.take_batch(now)), [0u64; 0], "the backoff is running");
        assert_eq!(fences(outcomes.take_batch(later)), [1, 2]);
        outcomes.confirm_batch();
        assert_eq!(fences(outcomes.take_batch(now)), [3]);
    }
}
