//! One queue of a worker: its slots, and the parts that decide on requests to the store.
//!
//! - [`ClaimState`] decides when to claim.
//! - [`UnsettledEnds`] keeps outcomes until the store has recorded them.
//! - [`Deliveries`] keeps jobs that pushes have delivered.
//! - [`CronTicks`] decides when to fire cron rules.
//! - [`Suspects`] lists nodes that may be dead.
//! - [`HeldCountCheck`] notices if the store counts other jobs than this worker.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use crate::clock;
use crate::job::{Fence, HeldJob, Outcome, UniqueKey};
use crate::metrics;
use crate::node::NodeId;
use crate::store::{ClaimReply, HeartbeatReply};
use crate::worker::claim_state::{ClaimPurpose, ClaimState};
use crate::worker::cron_ticks::{CronTicks, TickReport};
use crate::worker::deliveries::{DeliveredJob, Deliveries};
use crate::worker::end_reason::EndReason;
use crate::worker::held_count_check::HeldCountCheck;
use crate::worker::lease_history::LeaseHistory;
use crate::worker::outcomes::{ClaimKey, UnsettledEnd, UnsettledEnds};
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
    /// How many of them the gauge counts.
    reported_running: usize,
    claims: ClaimState,
    outcomes: UnsettledEnds,
    deliveries: Deliveries,
    ticks: CronTicks,
    suspects: Suspects,
    lease: LeaseHistory,
    prune: PruneSchedule,
    count_check: HeldCountCheck,
}

impl QueueState {
    pub(super) fn new(name: String, limit: usize) -> Self {
        QueueState {
            name,
            limit,
            weight: None,
            running: 0,
            reported_running: 0,
            claims: ClaimState::new(),
            outcomes: UnsettledEnds::default(),
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

    /// Adds the end of a running attempt, to be settled.
    pub(super) fn add_finished(&mut self, finished: UnsettledEnd) {
        self.record_finished();
        self.outcomes.add(finished);
    }

    fn record_finished(&mut self) {
        self.running -= 1;
        self.count_check.record_changes(1);
    }

    /// Updates the gauge of running attempts, if their number has changed.
    pub(super) fn report_running(&mut self) {
        if self.running != self.reported_running {
            metrics::add_running(&self.name, self.running as f64 - self.reported_running as f64);
            self.reported_running = self.running;
        }
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

    /// A claim may find jobs.
    pub(super) fn request_claim(&mut self) {
        self.claims.request_claim();
    }

    /// This node may hold jobs that it does not know.
    pub(super) fn request_resync(&mut self) {
        self.claims.request_resync();
    }

    /// Returns whether the list of held jobs was requested and has not been sent.
    pub(super) fn wants_resync(&self) -> bool {
        self.claims.wants_resync()
    }

    pub(super) fn is_resyncing(&self) -> bool {
        self.claims.is_resyncing()
    }

    /// Returns whether claimed or delivered jobs may still arrive.
    pub(super) fn expects_jobs(&self) -> bool {
        self.claims.has_in_flight() || self.deliveries.len() > 0
    }

    /// Returns whether no claim is in flight and no backoff is running.
    pub(super) fn can_claim(&self, now: Instant) -> bool {
        self.claims.can_send(now)
    }

    /// Returns whether this node should leave the idle list, because it has no free slot.
    pub(super) fn should_leave_idle_list(&self, worker_accepts_none: bool, now: Instant) -> bool {
        self.claims.is_on_idle_list() && self.claims.can_send(now) && (worker_accepts_none || self.is_full())
    }

    /// Takes the suspect to name in the next claim.
    pub(super) fn take_suspect(&mut self) -> Option<NodeId> {
        self.suspects.take()
    }

    /// Takes a suspect for a claim of no jobs, if one can be sent now.
    pub(super) fn take_suspect_to_take_back(&mut self, now: Instant) -> Option<NodeId> {
        (self.claims.wants_claim() && self.claims.can_send(now)).then(|| self.suspects.take()).flatten()
    }

    pub(super) fn record_claim_sent(&mut self, purpose: ClaimPurpose) {
        self.claims.record_sent(purpose);
    }

    /// Records that a reply to a claim, or an error, has arrived.
    pub(super) fn record_claim_reply(&mut self, purpose: ClaimPurpose) {
        self.claims.record_reply(purpose);
    }

    /// Records a failed claim and returns the delay before the next one.
    pub(super) fn record_claim_failure(&mut self, now: Instant, lease: Duration, may_be_applied: bool) -> Duration {
        self.claims.record_failure(now, lease, may_be_applied)
    }

    /// Records the reply to a request that claims no jobs.
    pub(super) fn record_reply_without_claim(&mut self) {
        self.claims.record_reply_without_claim();
    }

    /// Applies the reply to a claim of `max` jobs and returns the jobs to start: none if the node may have lost them
    /// since the claim was sent. `replied_at` is the local time of the reply's delays.
    pub(super) fn apply_claim_reply(
        &mut self,
        max: usize,
        suspect: Option<NodeId>,
        reply: ClaimReply,
        sent: Instant,
        replied_at: Instant,
        lease: Duration,
    ) -> Vec<HeldJob> {
        self.count_claimed(&reply);
        if let Some(suspect) = suspect.filter(|_| reply.suspect_has_more) {
            self.suspects.add(suspect);
        }
        let tick_is_due = reply.next_tick.is_some_and(|tick| tick.is_zero());
        self.ticks.record_next_tick(reply.next_tick.map(|tick| replied_at + tick), tick_is_due);
        let next_due = reply.next_due.map(|due| replied_at + due);
        self.claims.record_claimed(reply.jobs.len() == max, reply.has_more, next_due);
        if !self.suspects.is_empty() {
            self.claims.request_claim();
        }
        if reply.jobs.is_empty() || self.lease.is_valid_since(sent, clock::monotonic_now(), lease) {
            return reply.jobs;
        }
        self.claims.request_resync();
        Vec::new()
    }

    /// Counts the jobs of a claim reply.
    fn count_claimed(&mut self, reply: &ClaimReply) {
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

    // Deliveries.

    /// Accepts a job that a push delivered to this node. Other nodes learn of due times with their next heartbeat, at
    /// `next_heartbeat` at the latest.
    pub(super) fn add_delivered(&mut self, delivered: DeliveredJob, now: SystemTime, next_heartbeat: Instant) {
        self.count_check.record_changes(1);
        self.claims.record_delivery(next_heartbeat);
        metrics::record_claimed(&self.name, 1);
        let lateness = now.duration_since(delivered.held.due).unwrap_or_default();
        metrics::lateness_histogram(&self.name).record(lateness.as_secs_f64());
        self.deliveries.add(delivered);
    }

    pub(super) fn take_delivered(&mut self) -> Vec<DeliveredJob> {
        self.deliveries.take_all()
    }

    /// Returns how many delivered jobs have not started.
    pub(super) fn delivered_count(&self) -> usize {
        self.deliveries.len()
    }

    /// Returns whether a delivered job has to wait: a resync in flight may already list it, and slots reserved by a
    /// claim are free if it finds nothing.
    pub(super) fn must_delay_delivery(&self, has_room: bool) -> bool {
        self.claims.is_resyncing() || (self.claims.has_in_flight() && !has_room)
    }

    /// Keeps a delivered job that has to wait.
    pub(super) fn return_delivered(&mut self, delivered: DeliveredJob) {
        self.deliveries.add(delivered);
    }

    /// Returns whether another node may have taken a delivered job.
    pub(super) fn may_have_lost(&self, delivered: &DeliveredJob, now: Instant, lease: Duration) -> bool {
        self.lease.may_predate_gap(delivered.received, now, lease)
    }

    /// Returns whether a resync or another delivery may have reported this job before.
    pub(super) fn may_be_duplicate(&self, held: &HeldJob) -> bool {
        self.deliveries.may_be_duplicate(held)
    }

    /// Records the fence of a job that a resync or a delivery has reported.
    pub(super) fn record_fence(&mut self, fence: Fence) {
        self.deliveries.record_fence(fence);
    }

    // Outcomes.

    /// Releases a job that was not started.
    pub(super) fn release(&mut self, held: HeldJob, after: Duration, reason: EndReason) {
        self.outcomes.release(held, after, reason);
    }

    /// Settles an attempt again.
    pub(super) fn resend(&mut self, end: UnsettledEnd) {
        self.outcomes.add(end);
    }

    /// Returns how many outcomes wait to be sent.
    pub(super) fn pending_outcomes(&self) -> usize {
        self.outcomes.pending_count()
    }

    /// Returns how many outcomes are not known to be recorded.
    pub(super) fn unrecorded_outcomes(&self) -> usize {
        self.outcomes.unrecorded_count()
    }

    /// Returns whether a settle is in flight.
    pub(super) fn is_settling(&self) -> bool {
        self.outcomes.has_in_flight()
    }

    /// Returns whether this claim has finished or was delivered, and is not known to be recorded.
    pub(super) fn has_claim(&self, claim: ClaimKey) -> bool {
        self.outcomes.contains(claim) || self.deliveries.contains(claim)
    }

    /// Takes the outcomes for the next settle.
    pub(super) fn take_batch(&mut self, now: Instant) -> Vec<UnsettledEnd> {
        self.outcomes.take_batch(now)
    }

    /// The settle failed. Returns the delay before the next one.
    pub(super) fn return_batch(
        &mut self,
        batch: Vec<UnsettledEnd>,
        may_be_recorded: bool,
        now: Instant,
        lease: Duration,
    ) -> Duration {
        self.outcomes.return_batch(batch, may_be_recorded, now, lease)
    }

    /// The store has replied to a settle of this many outcomes.
    pub(super) fn confirm_settled(&mut self, count: usize) {
        self.outcomes.confirm_batch();
        self.count_check.record_changes(count as u64);
    }

    /// Returns whether no other node can have taken jobs that were held since then.
    pub(super) fn has_held_since(&self, since: Instant, now: Instant, lease: Duration) -> bool {
        self.lease.is_valid_since(since, now, lease)
    }

    /// Acts on an outcome that the store has recorded.
    pub(super) fn follow_up(&mut self, settled: &UnsettledEnd) {
        let (end, job) = (&settled.end, &settled.end.held().job);
        let has_ended =
            matches!(end.outcome, Outcome::Ack | Outcome::Bury { .. }) || settled.reason == Some(EndReason::Cancelled);
        if has_ended {
            self.ticks.unblock_rule(job.unique.as_ref().map(UniqueKey::as_str));
        }
        match end.outcome {
            Outcome::Ack if !job.keep.is_zero() => self.prune.count_done(),
            Outcome::Ack | Outcome::Bury { .. } => {}
            // A claim finds the job, or reports when it becomes due.
            Outcome::Retry { .. } | Outcome::Release { .. } => self.claims.request_claim(),
        }
    }

    // Cron rules and prunes.

    /// Requests a claim. Claim replies also report due ticks, but without a free slot no claim is sent. Then the ticks
    /// are checked separately, or a new cron rule would wait until a job finishes.
    pub(super) fn check(&mut self, worker_is_full: bool, now: Instant) {
        self.claims.request_claim();
        if worker_is_full || self.is_full() {
            self.ticks.check_at(now);
        }
    }

    /// Begins a check of due ticks, if it is time for one. Returns the unblocked rules that it covers.
    pub(super) fn begin_tick_check(&mut self, now: Instant) -> Option<Vec<String>> {
        self.ticks.begin_check(now)
    }

    /// Returns when to check ticks next.
    pub(super) fn next_tick_check(&self, now: Instant) -> Option<Instant> {
        self.ticks.next_check_at(now)
    }

    /// Records the result of a check of ticks; a claim may find the jobs of fired rules.
    pub(super) fn record_tick_report(&mut self, report: TickReport, now: Instant) {
        if self.ticks.record_report(report, now) {
            self.claims.request_claim();
        }
    }

    pub(super) fn record_ticks_unsupported(&mut self) {
        self.ticks.record_unsupported();
    }

    /// Records a failed check of ticks and returns the delay before the next one.
    pub(super) fn record_tick_failure(&mut self, now: Instant, lease: Duration) -> Duration {
        self.ticks.record_failure(now, lease)
    }

    /// If it is time to prune, schedules the next prune, and returns whether to remove unused queues too.
    pub(super) fn take_due_prune(&mut self, now: Instant) -> Option<bool> {
        self.prune.take_due(now).then(|| self.prune.take_queue_removal())
    }

    /// The last prune deleted as many jobs as it may: there are probably more.
    pub(super) fn request_prune(&mut self) {
        self.prune.request_another();
    }

    // Heartbeats and deadlines.

    /// Handles the reply to a heartbeat, unless it does not cover this queue: compares the counts of held jobs and
    /// notes dead and dying nodes. `waiting_suspects` are held here, although they have not started.
    pub(super) fn handle_heartbeat(
        &mut self,
        reply: &HeartbeatReply,
        waiting_suspects: usize,
        now: Instant,
        lease: Duration,
    ) {
        if !reply.unreachable.contains(&self.name) {
            self.lease.record_heartbeat(now, lease);
            let theirs = reply.held.iter().find(|(name, _)| *name == self.name).map_or(0, |(_, held)| *held);
            let unstarted = self.deliveries.len() + waiting_suspects;
            let ours = (self.running + self.outcomes.pending_count() + unstarted) as u64;
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

impl Drop for QueueState {
    /// The attempts of a dropped worker are aborted.
    fn drop(&mut self) {
        self.running = 0;
        self.report_running();
    }
}

#[cfg(test)]
mod tests;
