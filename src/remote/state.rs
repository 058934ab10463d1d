//! What is known of one node held for a worker outside: what is in its hands, and what its worker has said of what was.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use super::hand::Hand;
use super::settle::By;
use crate::clock;
use crate::job::{Fence, JobId};
use crate::node::NodeId;
use crate::store::SETTLE_MAX;
use crate::worker::Agreement;

/// Most ends that are known to be recorded when their worker says them again: all of its last request, however large.
const RECORDED_MAX: usize = SETTLE_MAX;

/// All of it but what it asks.
pub(super) struct State {
    pub(super) hands: HashMap<JobId, Hand>,
    /// How many jobs have come into them.
    came: u64,
    /// Recorded as the worker has said: it may say so again if no answer has reached it. The newest first.
    pub(super) recorded: VecDeque<(JobId, Fence)>,
    pub(super) lanes: Vec<Lane>,
    /// When its worker was last heard of, and when the store was last told.
    pub(super) seen: Instant,
    pub(super) beaten: Option<Instant>,
    /// Since when that was never longer ago than the lease.
    pub(super) unbroken: Instant,
    pub(super) quiet: bool,
    pub(super) stop: bool,
}

impl State {
    /// Of one that has just joined, and will look everywhere.
    pub(super) fn new(queues: &[String]) -> Self {
        let now = clock::tick();
        State {
            hands: HashMap::new(),
            came: 0,
            recorded: VecDeque::new(),
            lanes: queues.iter().map(|queue| Lane::new(queue)).collect(),
            seen: now,
            beaten: Some(now),
            unbroken: now,
            quiet: false,
            stop: false,
        }
    }

    /// Its worker gets no more jobs.
    pub(super) fn is_closed(&self) -> bool {
        self.quiet || self.stop
    }

    /// The store has answered, and may have refused: it is in nobody's hand any more, unless it has come again under another fence.
    pub(super) fn let_go(&mut self, id: JobId, fence: Fence, by: By, refused: bool) {
        if self.hand(id, fence).is_some()
            && let Some(hand) = self.hands.remove(&id)
        {
            let its_own = self.lanes.iter_mut().filter(|lane| lane.queue == hand.held.job.queue);
            its_own.for_each(|lane| lane.agreement.moved(1));
            self.remember(id, fence, if refused { hand.in_doubt } else { by == By::Worker });
        }
    }

    /// Whether what the worker has said of a job that is out of hand is recorded. If not, no older word on it counts either:
    /// the job is somebody else's.
    fn remember(&mut self, id: JobId, fence: Fence, recorded: bool) {
        if recorded {
            self.recorded.push_front((id, fence));
            self.recorded.truncate(RECORDED_MAX);
        } else {
            self.recorded.retain(|(known, _)| *known != id);
        }
    }

    /// They may have been recorded, and may not. Only of what the worker has said is that to be known later.
    pub(super) fn doubt(&mut self, claims: &[(JobId, Fence)], by: By) {
        for (id, fence) in claims.iter().filter(|_| by == By::Worker) {
            self.hand(*id, *fence).into_iter().for_each(|hand| hand.in_doubt = true);
        }
    }

    /// The job, if it is in hand under this fence.
    pub(super) fn hand(&mut self, id: JobId, fence: Fence) -> Option<&mut Hand> {
        self.hands.get_mut(&id).filter(|hand| hand.held.fence == fence)
    }

    /// Lets go of what the store does not name any more of this queue.
    pub(super) fn keep_only(&mut self, queue: &str, theirs: &[(JobId, Fence)], lease: Duration) {
        let gone =
            |(id, hand): &(&JobId, &Hand)| hand.held.job.queue == queue && !theirs.contains(&(**id, hand.held.fence));
        let gone: Vec<JobId> = self.hands.iter().filter(gone).map(|(id, _)| *id).collect();
        for hand in gone.iter().filter_map(|id| self.hands.remove(id)).collect::<Vec<_>>() {
            self.part_with(&hand, lease);
        }
    }

    /// A job is out of hand without a word. What was settled and never answered was recorded then, if nobody can have taken the
    /// job since; else it is somebody else's.
    fn part_with(&mut self, hand: &Hand, lease: Duration) {
        let unbroken = self.unbroken <= hand.since && self.beaten.is_some_and(|at| clock::tick() - at <= lease);
        self.remember(hand.held.job.id, hand.held.fence, hand.in_doubt && unbroken);
    }

    /// Takes a job in hand. One that is there under an older claim has come again before it was known that its end was recorded.
    pub(super) fn take_in_hand(&mut self, mut hand: Hand, lease: Duration) {
        let id = hand.held.job.id;
        self.came += 1;
        hand.no = self.came;
        if let Some(older) = self.hands.insert(id, hand) {
            self.part_with(&older, lease);
        }
    }

    /// The store has been told that the node lives. After a gap others may have taken what it held.
    pub(super) fn note_beat(&mut self, lease: Duration) {
        let now = clock::tick();
        if self.beaten.is_none_or(|at| now - at > lease) {
            self.unbroken = now;
        }
        self.beaten = Some(now);
    }
}

/// What is known of one of its queues.
pub(super) struct Lane {
    pub(super) queue: String,
    pub(super) maybe_ready: bool,
    pub(super) look_at: Option<Instant>,
    /// The answer to a claim was lost: ask for everything that is held.
    pub(super) redo: bool,
    pub(super) suspects: Vec<NodeId>,
    /// Whether the store counts as much in our hands as we do.
    pub(super) agreement: Agreement,
}

impl Lane {
    fn new(queue: &str) -> Self {
        Lane {
            queue: queue.to_owned(),
            maybe_ready: true,
            look_at: None,
            redo: false,
            suspects: Vec::new(),
            agreement: Agreement::default(),
        }
    }
}
