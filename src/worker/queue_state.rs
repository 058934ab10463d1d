//! The state of one queue in a worker, and how free slots are divided among queues.

use std::time::Duration;

use tokio::time::Instant;

use crate::job::{Fence, HeldJob};
use crate::node::NodeId;
use crate::worker::outcomes::UnsettledOutcomes;
use crate::worker::reconcile::HeldCountCheck;

/// A claim for at least this many jobs is worth a separate request.
pub(super) const CLAIM_AHEAD_MIN: usize = 100;

/// The state of one queue in a worker.
pub(super) struct QueueState {
    pub(super) name: String,
    /// Maximum jobs of this queue that run at once.
    pub(super) limit: usize,
    /// Its share of free slots. Without weights on any queue, the order of the queues is strict.
    pub(super) weight: Option<u32>,
    /// Running attempts.
    pub(super) running: usize,
    /// Claims in flight: one, or two if both are large.
    pub(super) claims_in_flight: usize,
    /// A request for the list of held jobs is in flight.
    pub(super) resync_in_flight: bool,
    /// Slots reserved for the replies to claims in flight.
    pub(super) reserved_slots: usize,
    /// The last claim returned as many jobs as requested.
    pub(super) last_claim_was_full: bool,
    /// Outcomes that the store has not recorded yet.
    pub(super) outcomes: UnsettledOutcomes,
    /// Jobs delivered to this node and not started yet.
    pub(super) delivered: Vec<HeldJob>,
    /// The highest fence that a resync or a delivery has reported.
    /// A delivery with a fence that is not higher may be a duplicate.
    pub(super) highest_reported_fence: Fence,
    /// The node is on the idle list: a push may wake it.
    pub(super) on_idle_list: bool,
    /// A claim may find jobs.
    pub(super) maybe_ready: bool,
    /// When to claim even without a wake.
    pub(super) check_at: Option<Instant>,
    /// When to fire the next cron tick of the queue.
    pub(super) tick_at: Option<Instant>,
    /// The store has reported that the tick is due.
    pub(super) tick_due: bool,
    /// A request to fire ticks is in flight; there is at most one.
    pub(super) fire_in_flight: bool,
    /// Consecutive failures to fire ticks.
    pub(super) fire_failures: u32,
    /// Earliest time of the next tick check, after one that fired nothing.
    pub(super) fire_not_before: Option<Instant>,
    /// Cron rules that a finished job may have unblocked.
    pub(super) unblocked_rules: Vec<String>,
    /// Earliest time of the next claim after a store failure.
    pub(super) claim_not_before: Option<Instant>,
    /// Consecutive failed claims.
    pub(super) claim_failures: u32,
    /// The reply to a claim was lost: the list of held jobs must be requested.
    pub(super) needs_resync: bool,
    /// Nodes that may be dead and hold jobs of this queue.
    pub(super) suspects: Vec<NodeId>,
    /// Nodes that become suspects at the given time, unless a heartbeat reply corrects that.
    pub(super) expiring: Vec<(NodeId, Instant)>,
    /// Compares the number of held jobs with the store's count.
    pub(super) count_check: HeldCountCheck,
    /// When the last heartbeat reply arrived, and since when no reply was late enough for the lease to have expired.
    last_heartbeat_at: Option<Instant>,
    leased_since: Option<Instant>,
    /// Jobs done since the last prune.
    pub(super) done_since_prune: usize,
    /// When to prune next.
    pub(super) prune_at: Option<Instant>,
}

impl QueueState {
    pub(super) fn new(queue: String, limit: usize) -> Self {
        QueueState {
            name: queue,
            limit,
            weight: None,
            running: 0,
            claims_in_flight: 0,
            resync_in_flight: false,
            reserved_slots: 0,
            last_claim_was_full: false,
            outcomes: UnsettledOutcomes::default(),
            delivered: Vec::new(),
            highest_reported_fence: Fence(0),
            on_idle_list: false,
            maybe_ready: true,
            check_at: None,
            tick_at: None,
            tick_due: false,
            fire_in_flight: false,
            fire_failures: 0,
            fire_not_before: None,
            unblocked_rules: Vec::new(),
            claim_not_before: None,
            claim_failures: 0,
            needs_resync: false,
            suspects: Vec::new(),
            expiring: Vec::new(),
            count_check: HeldCountCheck::default(),
            last_heartbeat_at: None,
            leased_since: None,
            done_since_prune: 0,
            prune_at: None,
        }
    }

    /// Records a heartbeat reply. The store may have applied the heartbeat up to one interval earlier, so a reply
    /// counts as late after two thirds of a lease.
    pub(super) fn record_heartbeat(&mut self, now: Instant, lease: Duration) {
        if self.last_heartbeat_at.is_none_or(|before| now - before > lease * 2 / 3) {
            self.leased_since = Some(now);
        }
        self.last_heartbeat_at = Some(now);
    }

    /// Returns whether the lease has been valid since `since`, so that no other node can have taken held jobs.
    pub(super) fn is_leased_since(&self, since: Instant, now: Instant, lease: Duration) -> bool {
        let is_current = self.last_heartbeat_at.is_some_and(|replied| now - replied <= lease * 2 / 3);
        is_current && self.leased_since.is_some_and(|leased| leased <= since)
    }

    /// Adds a node that may be dead.
    pub(super) fn add_suspect(&mut self, node: NodeId) {
        if !self.suspects.contains(&node) {
            self.suspects.push(node);
        }
        self.maybe_ready = true;
    }

    /// Turns nodes with an expired lease into suspects.
    pub(super) fn suspect_expired(&mut self, now: Instant) {
        let (expired, expiring) = std::mem::take(&mut self.expiring).into_iter().partition(|(_, at)| *at <= now);
        self.expiring = expiring;
        let expired: Vec<(NodeId, Instant)> = expired;
        expired.into_iter().for_each(|(node, _)| self.add_suspect(node));
    }

    /// Returns whether no claim is in flight and no backoff is running.
    pub(super) fn can_claim(&self, now: Instant) -> bool {
        self.claims_in_flight == 0 && self.claim_not_before.is_none_or(|at| at <= now)
    }

    /// Returns whether a second large claim can follow the one in flight, so that the store works while jobs start.
    fn can_claim_ahead(&self, now: Instant) -> bool {
        let is_large = self.limit.saturating_sub(self.running + self.reserved_slots) >= CLAIM_AHEAD_MIN;
        is_large
            && self.claims_in_flight == 1
            && self.last_claim_was_full
            && self.claim_not_before.is_none_or(|at| at <= now)
    }

    /// Returns the maximum size of one claim. With many slots it is half of them, so that two claims can overlap.
    pub(super) fn claim_size_max(&self) -> usize {
        if self.limit >= 2 * CLAIM_AHEAD_MIN { self.limit.div_ceil(2) } else { self.limit }
    }

    /// Returns how many jobs to claim: 0 if a claim is pointless, or until it is known which jobs this node holds.
    pub(super) fn jobs_to_claim(&self, now: Instant) -> usize {
        match !self.needs_resync && ((self.maybe_ready && self.can_claim(now)) || self.can_claim_ahead(now)) {
            true => self.limit.saturating_sub(self.running + self.reserved_slots + self.delivered.len()),
            false => 0,
        }
    }
}

/// Divides `free` slots among queues, given as `(wanted jobs, weight)`. Returns `(queue index, jobs)`, never 0 jobs.
///
/// Without weights, the first queue gets as much as it wants, then the next one.
/// With weights, the slots are divided in proportion; `random` in 0..1 decides which queue gets the remainder.
pub(super) fn divide_slots(queues: &[(usize, Option<u32>)], free: usize, random: f64) -> Vec<(usize, usize)> {
    let open: Vec<usize> = (0..queues.len()).filter(|index| queues[*index].0 > 0).collect();
    let weighted = queues.iter().any(|(_, weight)| weight.is_some());
    if !weighted {
        return divide_slots_in_order(queues, &open, free);
    }
    let weight = |index: usize| u64::from(queues[index].1.unwrap_or(1));
    let sum: u64 = open.iter().map(|index| weight(*index)).sum();
    let mut shares = Vec::new();
    let (mut before, mut given) = (0.0, 0);
    for index in open {
        // All cumulative shares are shifted by the same random fraction: they add up, and each is fair on average.
        before += free as f64 * weight(index) as f64 / sum.max(1) as f64;
        let up_to = ((before + random.clamp(0.0, 0.999_999)).floor() as usize).min(free);
        let share = (up_to - given).min(queues[index].0);
        given = up_to;
        if share > 0 {
            shares.push((index, share));
        }
    }
    shares
}

fn divide_slots_in_order(queues: &[(usize, Option<u32>)], open: &[usize], free: usize) -> Vec<(usize, usize)> {
    let mut remaining = free;
    let mut shares = Vec::new();
    for index in open {
        let share = queues[*index].0.min(remaining);
        if share > 0 {
            shares.push((*index, share));
            remaining -= share;
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn queues_without_weights_are_filled_in_order() {
        assert_eq!(divide_slots(&[(5, None), (5, None)], 3, 0.0), [(0, 3)]);
        assert_eq!(divide_slots(&[(5, None), (5, None)], 8, 0.0), [(0, 5), (1, 3)]);
        assert_eq!(divide_slots(&[(0, None), (5, None)], 8, 0.0), [(1, 5)]);
    }

    #[test]
    fn free_slots_are_divided_by_weight() {
        assert_eq!(divide_slots(&[(9, Some(3)), (9, Some(1))], 8, 0.0), [(0, 6), (1, 2)]);
    }

    #[test]
    fn single_free_slot_goes_to_each_queue_by_weight_on_average() {
        let first =
            (0..1_000).filter(|n| divide_slots(&[(9, Some(3)), (9, Some(1))], 1, f64::from(*n) / 1_000.0)[0].0 == 0);
        assert!((700..800).contains(&first.count()));
    }

    #[test]
    fn large_claim_is_split_in_two_and_overlapped() {
        let now = Instant::now();
        let mut queue = QueueState::new("q".into(), 4 * CLAIM_AHEAD_MIN);
        assert_eq!((queue.jobs_to_claim(now), queue.claim_size_max()), (4 * CLAIM_AHEAD_MIN, 2 * CLAIM_AHEAD_MIN));
        (queue.claims_in_flight, queue.reserved_slots) = (1, 2 * CLAIM_AHEAD_MIN);
        assert_eq!(queue.jobs_to_claim(now), 0, "the first claim may not be full");
        queue.last_claim_was_full = true;
        assert_eq!(queue.jobs_to_claim(now), 2 * CLAIM_AHEAD_MIN);
        queue.needs_resync = true;
        assert_eq!(queue.jobs_to_claim(now), 0, "a resync waits until no claim is in flight");
        (queue.claims_in_flight, queue.reserved_slots) = (0, 0);
        assert_eq!(queue.jobs_to_claim(now), 0, "no claim before the resync");
        queue.needs_resync = false;
        (queue.claims_in_flight, queue.reserved_slots) = (2, 3 * CLAIM_AHEAD_MIN);
        assert_eq!(queue.jobs_to_claim(now), 0, "at most two claims in flight");
        let few = QueueState::new("q".into(), CLAIM_AHEAD_MIN);
        assert_eq!((few.jobs_to_claim(now), few.claim_size_max()), (CLAIM_AHEAD_MIN, CLAIM_AHEAD_MIN));
    }

    proptest! {
        #[test]
        fn shares_never_exceed_free_slots_or_demand(
            queues in proptest::collection::vec((0usize..50, proptest::option::of(0u32..9)), 0..8),
            free in 0usize..100,
            random in any::<f64>(),
        ) {
            let shares = divide_slots(&queues, free, random);
            prop_assert!(shares.iter().map(|(_, n)| n).sum::<usize>() <= free);
            prop_assert!(shares.iter().all(|(index, n)| *n > 0 && *n <= queues[*index].0));
        }

        #[test]
        fn strict_order_fills_every_slot(wanted in proptest::collection::vec(0usize..50, 0..8), free in 0usize..100) {
            let queues: Vec<_> = wanted.iter().map(|jobs| (*jobs, None)).collect();
            let given: usize = divide_slots(&queues, free, 0.0).iter().map(|(_, n)| n).sum();
            prop_assert_eq!(given, free.min(wanted.iter().sum()));
        }
    }
}
