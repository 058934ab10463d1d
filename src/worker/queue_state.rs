//! One queue of a worker: its slots, and the parts that decide on requests to the store.
//!
//! - [`ClaimState`] decides when to claim.
//! - [`UnsettledOutcomes`] keeps outcomes until the store has recorded them.
//! - [`Deliveries`] keeps jobs that pushes have delivered.
//! - [`CronTicks`] decides when to fire cron rules.
//! - [`Suspects`] lists nodes that may be dead.
//! - [`HeldCountCheck`] notices if the store counts other jobs than this worker.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use crate::job::HeldJob;
use crate::metrics;
use crate::store::{ClaimReply, HeartbeatReply};
use crate::worker::claim_state::ClaimState;
use crate::worker::cron_ticks::CronTicks;
use crate::worker::deliveries::Deliveries;
use crate::worker::held_count_check::HeldCountCheck;
use crate::worker::lease_history::LeaseHistory;
use crate::worker::outcomes::UnsettledOutcomes;
use crate::worker::prune_schedule::PruneSchedule;
use crate::worker::suspects::Suspects;

/// A claim for at least this many jobs is worth a separate request.
pub(super) const CLAIM_AHEAD_MIN: usize = 100;
/// Spreads the take-back requests of the nodes that survive a dead one.
const TAKE_BACK_JITTER_MAX: Duration = Duration::from_millis(30);

/// The state of one queue in a worker.
pub(super) struct QueueState {
    name: String,
    /// Maximum jobs of this queue that run at once.
    limit: usize,
    /// Its share of free slots. Without weights on any queue, the order of the queues is strict.
    weight: Option<u32>,
    /// Running attempts.
    running: usize,
    pub(super) claims: ClaimState,
    pub(super) outcomes: UnsettledOutcomes,
    pub(super) deliveries: Deliveries,
    pub(super) ticks: CronTicks,
    pub(super) suspects: Suspects,
    pub(super) lease: LeaseHistory,
    pub(super) prune: PruneSchedule,
    pub(super) count_check: HeldCountCheck,
}

impl QueueState {
    pub(super) fn new(name: String, limit: usize) -> Self {
        QueueState {
            name,
            limit,
            weight: None,
            running: 0,
            claims: ClaimState::new(),
            outcomes: UnsettledOutcomes::default(),
            deliveries: Deliveries::new(),
            ticks: CronTicks::default(),
            suspects: Suspects::default(),
            lease: LeaseHistory::default(),
            prune: PruneSchedule::default(),
            count_check: HeldCountCheck::default(),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    pub(super) fn weight(&self) -> Option<u32> {
        self.weight
    }

    pub(super) fn set_weight(&mut self, weight: u32) {
        self.weight = Some(weight);
    }

    // Slots.

    pub(super) fn running(&self) -> usize {
        self.running
    }

    /// Returns the slots that are taken or reserved for the replies to claims in flight.
    pub(super) fn busy_slots(&self) -> usize {
        self.running + self.claims.reserved_slots()
    }

    /// Returns whether another job of this queue may start.
    pub(super) fn has_room(&self) -> bool {
        self.busy_slots() < self.limit
    }

    /// Returns whether all slots of this queue run an attempt.
    pub(super) fn is_full(&self) -> bool {
        self.running >= self.limit
    }

    pub(super) fn record_started(&mut self) {
        self.running += 1;
    }

    pub(super) fn record_finished(&mut self) {
        self.running -= 1;
        self.count_check.record_changes(1);
    }

    // Claims.

    /// Returns how many jobs to claim: 0 if a claim is pointless, or until it is known which jobs this node holds.
    pub(super) fn jobs_to_claim(&self, now: Instant) -> usize {
        let free = self.limit.saturating_sub(self.busy_slots());
        let claim_ahead = free >= CLAIM_AHEAD_MIN && self.claims.can_claim_ahead(now);
        match claim_ahead || (self.claims.wants_claim() && self.claims.can_send(now)) {
            true => free.saturating_sub(self.deliveries.len()),
            false => 0,
        }
    }

    /// Returns the maximum size of one claim. With many slots it is half of them, so that two claims can overlap.
    pub(super) fn claim_size_max(&self) -> usize {
        if self.limit >= 2 * CLAIM_AHEAD_MIN { self.limit.div_ceil(2) } else { self.limit }
    }

    /// Counts the jobs of a claim reply.
    pub(super) fn count_claimed(&mut self, reply: &ClaimReply) {
        self.count_check.record_changes(reply.jobs.len() as u64);
        metrics::record_claimed(&self.name, reply.jobs.len());
        metrics::record_taken_back(&self.name, reply.taken_back);
        if !reply.jobs.is_empty() {
            let lateness = metrics::lateness_histogram(&self.name);
            for held in &reply.jobs {
                lateness.record(reply.now.duration_since(held.due).unwrap_or_default().as_secs_f64());
            }
        }
    }

    /// Accepts a job that a push delivered to this node.
    pub(super) fn add_delivered(&mut self, held: HeldJob, now: SystemTime) {
        self.count_check.record_changes(1);
        self.claims.record_delivery();
        metrics::record_claimed(&self.name, 1);
        let lateness = now.duration_since(held.due).unwrap_or_default();
        metrics::lateness_histogram(&self.name).record(lateness.as_secs_f64());
        self.deliveries.add(held);
    }

    /// Requests a claim. Claim replies also report due ticks, but without a free slot no claim is sent. Then the ticks
    /// are checked separately, or a new cron rule would wait until a job finishes.
    pub(super) fn check(&mut self, worker_is_full: bool, now: Instant) {
        self.claims.request_claim();
        if worker_is_full || self.is_full() {
            self.ticks.check_at(now);
        }
    }

    // Heartbeats and deadlines.

    /// Handles the reply to a heartbeat, unless it does not cover this queue: compares the counts of held jobs and
    /// notes dead and dying nodes.
    pub(super) fn handle_heartbeat(&mut self, reply: &HeartbeatReply, now: Instant, lease: Duration) {
        if !reply.unreachable.contains(&self.name) {
            self.lease.record_heartbeat(now, lease);
            let theirs = reply.held.iter().find(|(name, _)| *name == self.name).map_or(0, |(_, held)| *held);
            let ours = (self.running + self.outcomes.pending_count() + self.deliveries.len()) as u64;
            let at_rest = !self.outcomes.has_in_flight() && !self.claims.has_in_flight();
            if self.count_check.is_out_of_sync(theirs, ours, at_rest) {
                self.claims.request_resync();
            }
        }
        let expiring = reply.expiring.iter().filter(|(_, name, _)| *name == self.name);
        let jittered = |after: Duration| now + after + TAKE_BACK_JITTER_MAX.mul_f64(fastrand::f64());
        self.suspects.set_expiring(expiring.map(|(node, _, after)| (*node, jittered(*after))).collect());
        for (node, name) in &reply.suspects {
            if *name == self.name {
                self.suspects.add(*node);
                self.claims.request_claim();
            }
        }
    }

    /// Acts on deadlines that have passed.
    pub(super) fn handle_deadlines(&mut self, now: Instant) {
        self.claims.expire(now);
        if self.suspects.suspect_expired(now) {
            self.claims.request_claim();
        }
    }

    /// Returns when a failed request can be repeated.
    pub(super) fn backoff_deadlines(&self, now: Instant) -> impl Iterator<Item = Instant> {
        [self.claims.backoff_deadline(now), self.outcomes.backoff_deadline(now)].into_iter().flatten()
    }

    /// Returns when to claim or prune even if nothing happens.
    pub(super) fn deadlines(&self) -> impl Iterator<Item = Instant> {
        [self.claims.check_at(), self.prune.next_at(), self.suspects.next_expiry()].into_iter().flatten()
    }

    // The end of the run.

    /// Returns whether nothing of this queue is in flight or waits to be recorded.
    pub(super) fn is_settled(&self) -> bool {
        self.outcomes.unrecorded_count() == 0 && !self.claims.has_in_flight() && !self.ticks.is_in_flight()
    }

    /// Returns whether no job is ready and no known suspect or due tick may lead to one.
    pub(super) fn is_drained(&self, now: Instant) -> bool {
        !self.claims.wants_claim() && self.suspects.is_empty() && !self.ticks.can_fire(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::claim_state::ClaimPurpose;

    #[test]
    fn large_claim_is_split_in_two_and_overlapped() {
        let now = Instant::now();
        let half = ClaimPurpose::TakeJobs(2 * CLAIM_AHEAD_MIN, None);
        let mut queue = QueueState::new("q".into(), 4 * CLAIM_AHEAD_MIN);
        assert_eq!((queue.jobs_to_claim(now), queue.claim_size_max()), (4 * CLAIM_AHEAD_MIN, 2 * CLAIM_AHEAD_MIN));
        queue.claims.record_sent(half);
        assert_eq!(queue.jobs_to_claim(now), 0, "the first claim may not be full");
        queue.claims.record_reply(half);
        queue.claims.record_claimed(true, false, None);
        queue.claims.record_sent(half);
        assert_eq!(queue.jobs_to_claim(now), 2 * CLAIM_AHEAD_MIN);
        queue.claims.request_resync();
        assert_eq!(queue.jobs_to_claim(now), 0, "a resync waits until no claim is in flight");
        queue.claims.record_reply(half);
        assert_eq!(queue.jobs_to_claim(now), 0, "no claim before the resync");
        let few = QueueState::new("q".into(), CLAIM_AHEAD_MIN);
        assert_eq!((few.jobs_to_claim(now), few.claim_size_max()), (CLAIM_AHEAD_MIN, CLAIM_AHEAD_MIN));
    }

    #[test]
    fn new_claim_waits_for_room() {
        let now = Instant::now();
        let mut queue = QueueState::new("q".into(), 1);
        queue.record_started();
        assert_eq!((queue.jobs_to_claim(now), queue.is_full(), queue.has_room()), (0, true, false));
        queue.record_finished();
        assert_eq!(queue.jobs_to_claim(now), 1);
    }
}
