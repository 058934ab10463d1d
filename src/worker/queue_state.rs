//! What a worker knows of one of its queues, and the pure choice of whom to ask for how many jobs.

use std::time::Duration;

use tokio::time::Instant;

use crate::job::{Fence, HeldJob};
use crate::node::NodeId;
use crate::worker::outcomes::UnsettledOutcomes;
use crate::worker::reconcile::HeldCountCheck;

/// So many jobs are worth a request of their own.
pub(super) const CLAIM_AHEAD_MIN: usize = 100;

/// What a worker knows of one of its queues.
pub(super) struct QueueState {
    pub(super) name: String,
    /// Most of its jobs that run at once.
    pub(super) limit: usize,
    /// Its share; `None` for all lanes means strict order.
    pub(super) weight: Option<u32>,
    /// Attempts that run now.
    pub(super) running: usize,
    /// Claims in flight: one, or two where each is for many.
    pub(super) claims_in_flight: usize,
    /// The store is being asked what we hold.
    pub(super) resync_in_flight: bool,
    /// Slots kept free for their answers.
    pub(super) reserved_slots: usize,
    /// The last claim got all that it asked for.
    pub(super) last_claim_was_full: bool,
    /// How attempts ended that the store does not have yet.
    pub(super) outcomes: UnsettledOutcomes,
    /// Put into our hands and not begun yet.
    pub(super) delivered: Vec<HeldJob>,
    /// The highest fence of a job that the store has named, when it was asked what we hold or put one into our hands:
    /// what comes under one that is not higher may have come before.
    pub(super) highest_reported_fence: Fence,
    /// We stand on the list of those that a push may wake.
    pub(super) on_idle_list: bool,
    /// A look may find something.
    pub(super) maybe_ready: bool,
    /// Look at this moment even if nothing wakes us.
    pub(super) check_at: Option<Instant>,
    /// When the next cron tick of the queue is to be fired.
    pub(super) tick_at: Option<Instant>,
    /// The store has said that it is due.
    pub(super) tick_due: bool,
    /// Ticks are being fired: one batch at a time.
    pub(super) fire_in_flight: bool,
    /// How often in a row that has failed.
    pub(super) fire_failures: u32,
    /// The last look at ticks was in vain: no other before this moment.
    pub(super) fire_not_before: Option<Instant>,
    /// Rules whose job has just ended: a tick of theirs may have waited for that.
    pub(super) unblocked_rules: Vec<String>,
    /// The store failed: do not ask before this moment.
    pub(super) claim_not_before: Option<Instant>,
    /// How often in a row the store has failed.
    pub(super) claim_failures: u32,
    /// The answer to a claim was lost: ask for everything we hold.
    pub(super) needs_resync: bool,
    /// Nodes that may be dead and hold something here.
    pub(super) suspects: Vec<NodeId>,
    /// Nodes that will be suspected at a moment, unless a beat before it says otherwise.
    pub(super) expiring: Vec<(NodeId, Instant)>,
    /// Whether the store counts as much in our hands as we do.
    pub(super) count_check: HeldCountCheck,
    /// When a beat was last answered here, and since when none was so late that the lease may have been over.
    last_heartbeat_at: Option<Instant>,
    leased_since: Option<Instant>,
    /// Jobs done here since the last prune.
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

    /// A beat was answered. It was carried out a beat before that at the earliest, so this much sooner than a lease counts as late.
    pub(super) fn record_heartbeat(&mut self, now: Instant, lease: Duration) {
        if self.last_heartbeat_at.is_none_or(|before| now - before > lease * 2 / 3) {
            self.leased_since = Some(now);
        }
        self.last_heartbeat_at = Some(now);
    }

    /// Whether nobody can have taken from us what we held at that moment.
    pub(super) fn is_leased_since(&self, moment: Instant, now: Instant, lease: Duration) -> bool {
        let still = self.last_heartbeat_at.is_some_and(|heard| now - heard <= lease * 2 / 3);
        still && self.leased_since.is_some_and(|since| since <= moment)
    }

    /// From now on this node may be dead.
    pub(super) fn add_suspect(&mut self, node: NodeId) {
        if !self.suspects.contains(&node) {
            self.suspects.push(node);
        }
        self.maybe_ready = true;
    }

    /// Suspects those whose lease has ended meanwhile.
    pub(super) fn suspect_expired(&mut self, now: Instant) {
        let (ended, ending) = std::mem::take(&mut self.expiring).into_iter().partition(|(_, at)| *at <= now);
        self.expiring = ending;
        let ended: Vec<(NodeId, Instant)> = ended;
        ended.into_iter().for_each(|(node, _)| self.add_suspect(node));
    }

    /// No claim is in flight, and the store has not just failed.
    pub(super) fn can_claim(&self, now: Instant) -> bool {
        self.claims_in_flight == 0 && self.claim_not_before.is_none_or(|at| at <= now)
    }

    /// A claim for many is in flight, and another one can follow it: the store answers that while we see to the first.
    fn can_claim_ahead(&self, now: Instant) -> bool {
        let many = self.limit.saturating_sub(self.running + self.reserved_slots) >= CLAIM_AHEAD_MIN;
        many && self.claims_in_flight == 1
            && self.last_claim_was_full
            && self.claim_not_before.is_none_or(|at| at <= now)
    }

    /// Most jobs to ask for at a time. Of many slots half, so that the store answers for the other half while these run.
    pub(super) fn claim_size_max(&self) -> usize {
        if self.limit >= 2 * CLAIM_AHEAD_MIN { self.limit.div_ceil(2) } else { self.limit }
    }

    /// How many more jobs to ask for; none if there is no reason to, or before it is known what we hold.
    pub(super) fn jobs_to_claim(&self, now: Instant) -> usize {
        match !self.needs_resync && ((self.maybe_ready && self.can_claim(now)) || self.can_claim_ahead(now)) {
            true => self.limit.saturating_sub(self.running + self.reserved_slots + self.delivered.len()),
            false => 0,
        }
    }
}

/// Whom to ask for how many, when `free` slots are free: `(lane, jobs)`, none of them 0.
///
/// Without weights the first lane that has room gets all it can take, then the next.
/// With weights free slots are divided by them; `random` in 0..1 decides where the odd slot goes.
pub(super) fn divide_slots(lanes: &[(usize, Option<u32>)], free: usize, random: f64) -> Vec<(usize, usize)> {
    let open: Vec<usize> = (0..lanes.len()).filter(|at| lanes[*at].0 > 0).collect();
    let weighted = lanes.iter().any(|(_, weight)| weight.is_some());
    if !weighted {
        return divide_slots_in_order(lanes, &open, free);
    }
    let weight = |at: usize| u64::from(lanes[at].1.unwrap_or(1));
    let sum: u64 = open.iter().map(|at| weight(*at)).sum();
    let mut shares = Vec::new();
    let (mut before, mut given) = (0.0, 0);
    for at in open {
        // Cumulative shares, all shifted by the same random part of a slot: they add up, and each is fair on average.
        before += free as f64 * weight(at) as f64 / sum.max(1) as f64;
        let upto = ((before + random.clamp(0.0, 0.999_999)).floor() as usize).min(free);
        let share = (upto - given).min(lanes[at].0);
        given = upto;
        if share > 0 {
            shares.push((at, share));
        }
    }
    shares
}

fn divide_slots_in_order(lanes: &[(usize, Option<u32>)], open: &[usize], free: usize) -> Vec<(usize, usize)> {
    let mut left = free;
    let mut shares = Vec::new();
    for at in open {
        let share = lanes[*at].0.min(left);
        if share > 0 {
            shares.push((*at, share));
            left -= share;
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
        let mut lane = QueueState::new("q".into(), 4 * CLAIM_AHEAD_MIN);
        assert_eq!((lane.jobs_to_claim(now), lane.claim_size_max()), (4 * CLAIM_AHEAD_MIN, 2 * CLAIM_AHEAD_MIN));
        (lane.claims_in_flight, lane.reserved_slots) = (1, 2 * CLAIM_AHEAD_MIN);
        assert_eq!(lane.jobs_to_claim(now), 0, "nobody knows yet whether there are so many");
        lane.last_claim_was_full = true;
        assert_eq!(lane.jobs_to_claim(now), 2 * CLAIM_AHEAD_MIN);
        lane.needs_resync = true;
        assert_eq!(lane.jobs_to_claim(now), 0, "what we hold is asked for when nothing is under way");
        (lane.claims_in_flight, lane.reserved_slots) = (0, 0);
        assert_eq!(lane.jobs_to_claim(now), 0, "and nothing else before it");
        lane.needs_resync = false;
        (lane.claims_in_flight, lane.reserved_slots) = (2, 3 * CLAIM_AHEAD_MIN);
        assert_eq!(lane.jobs_to_claim(now), 0, "two are enough");
        let few = QueueState::new("q".into(), CLAIM_AHEAD_MIN);
        assert_eq!((few.jobs_to_claim(now), few.claim_size_max()), (CLAIM_AHEAD_MIN, CLAIM_AHEAD_MIN));
    }

    proptest! {
        #[test]
        fn never_gives_more_than_is_free_or_fits(lanes in proptest::collection::vec((0usize..50, proptest::option::of(0u32..9)), 0..8),
                                                 free in 0usize..100, random in any::<f64>()) {
            let shares = divide_slots(&lanes, free, random);
            prop_assert!(shares.iter().map(|(_, n)| n).sum::<usize>() <= free);
            prop_assert!(shares.iter().all(|(at, n)| *n > 0 && *n <= lanes[*at].0));
        }

        #[test]
        fn no_slot_stays_free_for_want_of_asking_in_strict_order(rooms in proptest::collection::vec(0usize..50, 0..8), free in 0usize..100) {
            let lanes: Vec<_> = rooms.iter().map(|room| (*room, None)).collect();
            let given: usize = divide_slots(&lanes, free, 0.0).iter().map(|(_, n)| n).sum();
            prop_assert_eq!(given, free.min(rooms.iter().sum()));
        }
    }
}
