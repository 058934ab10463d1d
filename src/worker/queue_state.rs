//! What a worker knows of one of its queues, and the pure choice of whom to ask for how many jobs.

use std::time::Duration;

use tokio::time::Instant;

use crate::job::{Fence, Held};
use crate::node::NodeId;
use crate::worker::outcomes::Outbox;
use crate::worker::reconcile::Agreement;

/// So many jobs are worth a request of their own.
pub(super) const AHEAD_MIN: usize = 100;

/// What a worker knows of one of its queues.
pub(super) struct Lane {
    pub(super) queue: String,
    /// Most of its jobs that run at once.
    pub(super) limit: usize,
    /// Its share; `None` for all lanes means strict order.
    pub(super) weight: Option<u32>,
    /// Attempts that run now.
    pub(super) running: usize,
    /// Claims in flight: one, or two where each is for many.
    pub(super) asking: usize,
    /// The store is being asked what we hold.
    pub(super) redoing: bool,
    /// Slots kept free for their answers.
    pub(super) asked: usize,
    /// The last claim got all that it asked for.
    pub(super) flows: bool,
    /// How attempts ended that the store does not have yet.
    pub(super) outbox: Outbox,
    /// Put into our hands and not begun yet.
    pub(super) handed: Vec<Held>,
    /// The highest fence of a job that the store has named, when it was asked what we hold or put one into our hands:
    /// what comes under one that is not higher may have come before.
    pub(super) named: Fence,
    /// We stand on the list of those that a push may wake.
    pub(super) idle: bool,
    /// A look may find something.
    pub(super) maybe_ready: bool,
    /// Look at this moment even if nothing wakes us.
    pub(super) look_at: Option<Instant>,
    /// When the next cron tick of the queue is to be fired.
    pub(super) tick_at: Option<Instant>,
    /// The store has said that it is due.
    pub(super) tick_due: bool,
    /// Ticks are being fired: one batch at a time.
    pub(super) firing: bool,
    /// How often in a row that has failed.
    pub(super) fire_failures: u32,
    /// The last look at ticks was in vain: no other before this moment.
    pub(super) fire_not_before: Option<Instant>,
    /// Rules whose job has just ended: a tick of theirs may have waited for that.
    pub(super) freed: Vec<String>,
    /// The store failed: do not ask before this moment.
    pub(super) not_before: Option<Instant>,
    /// How often in a row the store has failed.
    pub(super) failures: u32,
    /// The answer to a claim was lost: ask for everything we hold.
    pub(super) redo: bool,
    /// Nodes that may be dead and hold something here.
    pub(super) suspects: Vec<NodeId>,
    /// Nodes that will be suspected at a moment, unless a beat before it says otherwise.
    pub(super) ending: Vec<(NodeId, Instant)>,
    /// Whether the store counts as much in our hands as we do.
    pub(super) agreement: Agreement,
    /// When a beat was last answered here, and since when none was so late that the lease may have been over.
    heard: Option<Instant>,
    unbroken: Option<Instant>,
    /// Jobs done here since the last prune.
    pub(super) unpruned: usize,
    /// When to prune next.
    pub(super) prune_at: Option<Instant>,
}

impl Lane {
    pub(super) fn new(queue: String, limit: usize) -> Self {
        Lane {
            queue,
            limit,
            weight: None,
            running: 0,
            asking: 0,
            redoing: false,
            asked: 0,
            flows: false,
            outbox: Outbox::default(),
            handed: Vec::new(),
            named: Fence(0),
            idle: false,
            maybe_ready: true,
            look_at: None,
            tick_at: None,
            tick_due: false,
            firing: false,
            fire_failures: 0,
            fire_not_before: None,
            freed: Vec::new(),
            not_before: None,
            failures: 0,
            redo: false,
            suspects: Vec::new(),
            ending: Vec::new(),
            agreement: Agreement::default(),
            heard: None,
            unbroken: None,
            unpruned: 0,
            prune_at: None,
        }
    }

    /// A beat was answered. It was carried out a beat before that at the earliest, so this much sooner than a lease counts as late.
    pub(super) fn hear(&mut self, now: Instant, lease: Duration) {
        if self.heard.is_none_or(|before| now - before > lease * 2 / 3) {
            self.unbroken = Some(now);
        }
        self.heard = Some(now);
    }

    /// Whether nobody can have taken from us what we held at that moment.
    pub(super) fn is_ours_since(&self, moment: Instant, now: Instant, lease: Duration) -> bool {
        let still = self.heard.is_some_and(|heard| now - heard <= lease * 2 / 3);
        still && self.unbroken.is_some_and(|since| since <= moment)
    }

    /// From now on this node may be dead.
    pub(super) fn suspect(&mut self, node: NodeId) {
        if !self.suspects.contains(&node) {
            self.suspects.push(node);
        }
        self.maybe_ready = true;
    }

    /// Suspects those whose lease has ended meanwhile.
    pub(super) fn suspect_ended(&mut self, now: Instant) {
        let (ended, ending) = std::mem::take(&mut self.ending).into_iter().partition(|(_, at)| *at <= now);
        self.ending = ending;
        let ended: Vec<(NodeId, Instant)> = ended;
        ended.into_iter().for_each(|(node, _)| self.suspect(node));
    }

    /// No claim is in flight, and the store has not just failed.
    pub(super) fn may_ask(&self, now: Instant) -> bool {
        self.asking == 0 && self.not_before.is_none_or(|at| at <= now)
    }

    /// A claim for many is in flight, and another one can follow it: the store answers that while we see to the first.
    fn may_ask_ahead(&self, now: Instant) -> bool {
        let many = self.limit.saturating_sub(self.running + self.asked) >= AHEAD_MIN;
        many && self.asking == 1 && self.flows && self.not_before.is_none_or(|at| at <= now)
    }

    /// Most jobs to ask for at a time. Of many slots half, so that the store answers for the other half while these run.
    pub(super) fn most(&self) -> usize {
        if self.limit >= 2 * AHEAD_MIN { self.limit.div_ceil(2) } else { self.limit }
    }

    /// How many more jobs to ask for; none if there is no reason to, or before it is known what we hold.
    pub(super) fn room(&self, now: Instant) -> usize {
        match !self.redo && ((self.maybe_ready && self.may_ask(now)) || self.may_ask_ahead(now)) {
            true => self.limit.saturating_sub(self.running + self.asked + self.handed.len()),
            false => 0,
        }
    }
}

/// Whom to ask for how many, when `free` slots are free: `(lane, jobs)`, none of them 0.
///
/// Without weights the first lane that has room gets all it can take, then the next.
/// With weights free slots are divided by them; `random` in 0..1 decides where the odd slot goes.
pub(super) fn choose(lanes: &[(usize, Option<u32>)], free: usize, random: f64) -> Vec<(usize, usize)> {
    let open: Vec<usize> = (0..lanes.len()).filter(|at| lanes[*at].0 > 0).collect();
    let weighted = lanes.iter().any(|(_, weight)| weight.is_some());
    if !weighted {
        return strict(lanes, &open, free);
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

fn strict(lanes: &[(usize, Option<u32>)], open: &[usize], free: usize) -> Vec<(usize, usize)> {
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
    fn strict_order_fills_the_first_lane_first() {
        assert_eq!(choose(&[(5, None), (5, None)], 3, 0.0), [(0, 3)]);
        assert_eq!(choose(&[(5, None), (5, None)], 8, 0.0), [(0, 5), (1, 3)]);
        assert_eq!(choose(&[(0, None), (5, None)], 8, 0.0), [(1, 5)]);
    }

    #[test]
    fn weights_divide_free_slots() {
        assert_eq!(choose(&[(9, Some(3)), (9, Some(1))], 8, 0.0), [(0, 6), (1, 2)]);
    }

    #[test]
    fn one_free_slot_goes_to_each_by_its_weight_on_average() {
        let first = (0..1_000).filter(|n| choose(&[(9, Some(3)), (9, Some(1))], 1, f64::from(*n) / 1_000.0)[0].0 == 0);
        assert!((700..800).contains(&first.count()));
    }

    #[test]
    fn many_are_asked_for_by_halves_and_the_second_half_while_the_first_is_under_way() {
        let now = Instant::now();
        let mut lane = Lane::new("q".into(), 4 * AHEAD_MIN);
        assert_eq!((lane.room(now), lane.most()), (4 * AHEAD_MIN, 2 * AHEAD_MIN));
        (lane.asking, lane.asked) = (1, 2 * AHEAD_MIN);
        assert_eq!(lane.room(now), 0, "nobody knows yet whether there are so many");
        lane.flows = true;
        assert_eq!(lane.room(now), 2 * AHEAD_MIN);
        lane.redo = true;
        assert_eq!(lane.room(now), 0, "what we hold is asked for when nothing is under way");
        (lane.asking, lane.asked) = (0, 0);
        assert_eq!(lane.room(now), 0, "and nothing else before it");
        lane.redo = false;
        (lane.asking, lane.asked) = (2, 3 * AHEAD_MIN);
        assert_eq!(lane.room(now), 0, "two are enough");
        let few = Lane::new("q".into(), AHEAD_MIN);
        assert_eq!((few.room(now), few.most()), (AHEAD_MIN, AHEAD_MIN));
    }

    proptest! {
        #[test]
        fn never_gives_more_than_is_free_or_fits(lanes in proptest::collection::vec((0usize..50, proptest::option::of(0u32..9)), 0..8),
                                                 free in 0usize..100, random in any::<f64>()) {
            let shares = choose(&lanes, free, random);
            prop_assert!(shares.iter().map(|(_, n)| n).sum::<usize>() <= free);
            prop_assert!(shares.iter().all(|(at, n)| *n > 0 && *n <= lanes[*at].0));
        }

        #[test]
        fn no_slot_stays_free_for_want_of_asking_in_strict_order(rooms in proptest::collection::vec(0usize..50, 0..8), free in 0usize..100) {
            let lanes: Vec<_> = rooms.iter().map(|room| (*room, None)).collect();
            let given: usize = choose(&lanes, free, 0.0).iter().map(|(_, n)| n).sum();
            prop_assert_eq!(given, free.min(rooms.iter().sum()));
        }
    }
}
