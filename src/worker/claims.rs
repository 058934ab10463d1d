//! What the loop asks of the store, and what it makes of the answers.

use std::collections::HashSet;
use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::clock;
use crate::error::{Error, Result};
use crate::job::{Fence, Held, JobId, Outcome};
use crate::metrics;
use crate::node::NodeId;
use crate::store::{CLAIM_MAX, Claim, Claimed, PRUNE_MAX, SETTLE_MAX};
use crate::worker::attempt::{QUARANTINE_MAX, QUARANTINE_MIN, SUSPECT_CRASHES};
use crate::worker::cron_ticks::Ticked;
use crate::worker::event::Event;
use crate::worker::in_flight::Finished;
use crate::worker::queue_state::{AHEAD_MIN, choose};
use crate::worker::run_loop::Shift;

/// How often ended jobs are looked through for those past their time.
const PRUNE: Duration = Duration::from_secs(60);
/// Of idle nodes that wait for the same moment, each looks so much later than the one before.
const RANK_STEP: Duration = Duration::from_millis(2);
/// The first wait after the store has failed; doubles up to a third of the lease.
const BACKOFF_MIN: Duration = Duration::from_millis(50);
/// Outcomes that may wait for the store; beyond that no job is claimed.
const UNSETTLED_MAX: usize = 10 * SETTLE_MAX;

/// An answer of the store.
pub(super) enum Answered {
    Claimed(usize, Ask, Instant, Result<Claimed>),
    Settled(usize, Vec<Finished>, Instant, Result<Vec<JobId>>),
    Pruned(usize, Result<usize>),
    Ticked(usize, Result<Ticked>),
}

/// What a claim is for.
#[derive(Clone, Copy)]
pub(super) enum Ask {
    /// So many jobs, also those of a node that may be dead.
    Take(usize, Option<NodeId>),
    /// Everything we hold: the answer to a claim was lost, or the counts differ.
    Redo,
    /// No job: we have no room, and a push should wake somebody else.
    StepBack,
}

impl Ask {
    /// Slots that its answer may fill.
    fn slots(self) -> usize {
        if let Ask::Take(max, _) = self { max } else { 0 }
    }
}

impl Shift {
    /// Sends whatever can be sent now.
    pub(super) fn ask(&mut self) {
        let now = clock::tick();
        self.look_at_the_time(now);
        let stopping = self.grace_until.is_some();
        for at in 0..self.lanes.len() {
            let lane = &self.lanes[at];
            match lane.redo && lane.may_ask(now) && !stopping {
                // What we hold can be told exactly only while no outcome is under way.
                true if !lane.outbox.is_sent() => self.claim(at, Ask::Redo),
                false if !lane.redoing => self.settle(at, now),
                _ => {}
            }
        }
        if !stopping {
            self.prune(now);
            self.fire(now);
            self.take(now);
        }
        self.step_back(now);
    }

    /// Where there is room for many, they are asked for before those run that have just been claimed: the store answers
    /// while they do.
    pub(super) fn ask_ahead(&mut self) {
        let now = clock::tick();
        let many = self.crew.fresh() > 0 && self.lanes.iter().any(|lane| lane.room(now) >= AHEAD_MIN);
        if many && self.grace_until.is_none() {
            self.take(now);
            self.take_answers();
        }
    }

    /// Sends what was asked for, and takes what is answered already: what one commit of the store has answered is taken together.
    pub(super) fn take_answers(&mut self) {
        while let Some(Some(answered)) = self.asks.next().now_or_never() {
            self.answered(answered);
        }
    }

    pub(super) fn free(&self) -> usize {
        let busy: usize = self.lanes.iter().map(|lane| lane.running + lane.asked).sum();
        self.settings.concurrency.saturating_sub(busy)
    }

    fn take(&mut self, now: Instant) {
        if self.unsettled() >= UNSETTLED_MAX || self.quiet {
            return;
        }
        let rooms: Vec<_> = self.lanes.iter().map(|lane| (lane.room(now), lane.weight)).collect();
        let handed: usize = self.lanes.iter().map(|lane| lane.handed.len()).sum();
        for (at, max) in choose(&rooms, self.free().saturating_sub(handed), fastrand::f64()) {
            let suspect = self.lanes[at].suspects.pop();
            self.claim(at, Ask::Take(max.min(CLAIM_MAX).min(self.lanes[at].most()), suspect));
        }
    }

    /// A node that cannot take a job must not stand in the way of those that can.
    fn step_back(&mut self, now: Instant) {
        // By what runs, not by what is asked for: an empty answer gives its slots back at once.
        let running: usize = self.lanes.iter().map(|lane| lane.running).sum();
        let none_free = self.grace_until.is_some() || self.quiet || running >= self.settings.concurrency;
        for at in 0..self.lanes.len() {
            let lane = &self.lanes[at];
            if lane.idle && lane.may_ask(now) && (none_free || lane.running >= lane.limit) {
                self.claim(at, Ask::StepBack);
            }
        }
    }

    fn claim(&mut self, at: usize, ask: Ask) {
        let lane = &mut self.lanes[at];
        let max = ask.slots();
        let suspect = if let Ask::Take(_, suspect) = ask { suspect } else { None };
        let redo = matches!(ask, Ask::Redo);
        // A wake that comes while the claim is under way must not be taken for one that it has answered.
        lane.maybe_ready = false;
        // Whoever asks what it holds stays on the list of those who wait.
        lane.idle &= redo;
        lane.redoing |= redo;
        lane.look_at = None;
        lane.asking += 1;
        lane.asked += max;
        let claim = Claim { queue: lane.queue.clone(), max, redo, suspect, kinds: self.kinds.clone() };
        let (store, node) = (self.store.clone(), self.node.id);
        let sent = clock::tick();
        let claimed = async move { store.claim(node, claim).await };
        // An answer with many is read beside this loop, not in it.
        let ahead = max >= AHEAD_MIN;
        self.asks.push(Box::pin(async move {
            let claimed = if ahead { apart(claimed).await } else { claimed.await };
            Answered::Claimed(at, ask, sent, claimed)
        }));
    }

    fn prune(&mut self, now: Instant) {
        for (at, lane) in self.lanes.iter_mut().enumerate() {
            let due = *lane.prune_at.get_or_insert(now + PRUNE) <= now;
            if !due && lane.unpruned < PRUNE_MAX {
                continue;
            }
            lane.unpruned = 0;
            lane.prune_at = Some(now + PRUNE);
            let (store, queue, done_max) = (self.store.clone(), lane.queue.clone(), self.settings.keep_done_max);
            self.asks.push(Box::pin(async move { Answered::Pruned(at, store.prune(&queue, done_max).await) }));
        }
    }

    pub(super) fn answered(&mut self, answered: Answered) {
        self.notice_stop();
        match answered {
            Answered::Claimed(at, ask, sent, claimed) => {
                let lane = &mut self.lanes[at];
                lane.asking -= 1;
                lane.asked -= ask.slots();
                lane.redoing &= !matches!(ask, Ask::Redo);
                match claimed {
                    Ok(claimed) => self.claimed(at, ask, sent, claimed),
                    Err(error) => self.claim_failed(at, ask, &error),
                }
            }
            Answered::Settled(at, batch, since, Ok(lost)) => {
                self.commit = (self.commit * 7 + (clock::tick() - since)) / 8;
                self.settled(at, batch, &lost);
            }
            Answered::Settled(at, batch, _, Err(error)) => self.settle_failed(at, batch, &error),
            // More to prune: at the next turn.
            Answered::Pruned(at, Ok(PRUNE_MAX)) => self.lanes[at].unpruned = PRUNE_MAX,
            Answered::Pruned(_, Ok(_)) => {}
            Answered::Ticked(at, ticked) => self.ticked(at, ticked),
            Answered::Pruned(_, Err(error)) => tracing::warn!(%error, "prune failed"),
        }
    }

    fn claimed(&mut self, at: usize, ask: Ask, sent: Instant, claimed: Claimed) {
        let lane = &mut self.lanes[at];
        lane.failures = 0;
        lane.not_before = None;
        match ask {
            Ask::Take(max, suspect) => {
                self.schedule_look(at, sent, &claimed);
                self.took(at, max, suspect, claimed);
            }
            Ask::StepBack => lane.maybe_ready = true,
            Ask::Redo => {
                lane.redo = false;
                lane.maybe_ready = true;
                self.reconcile(at, claimed);
            }
        }
    }

    /// When to look again. The answer counts from the store's moment, which lies between the question and now.
    fn schedule_look(&mut self, at: usize, sent: Instant, claimed: &Claimed) {
        let now = clock::tick();
        let ago = self.settings.duly.options.clock.now().duration_since(claimed.now).unwrap_or_default();
        let moment = now - ago.min(now - sent);
        let later = RANK_STEP * claimed.rank;
        self.lanes[at].look_at = claimed.next_due.map(|due| moment + due + later);
        self.lanes[at].tick_at = claimed.next_tick.map(|tick| moment + tick + later);
        self.lanes[at].tick_due = claimed.next_tick.is_some_and(|tick| tick.is_zero());
    }

    fn took(&mut self, at: usize, max: usize, suspect: Option<NodeId>, claimed: Claimed) {
        let lane = &mut self.lanes[at];
        lane.agreement.moved(claimed.jobs.len() as u64);
        metrics::claimed(&lane.queue, claimed.jobs.len());
        metrics::taken_back(&lane.queue, claimed.taken_back);
        if !claimed.jobs.is_empty() {
            let lateness = metrics::lateness(&lane.queue);
            for held in &claimed.jobs {
                lateness.record(claimed.now.duration_since(held.due).unwrap_or_default().as_secs_f64());
            }
        }
        if let Some(suspect) = suspect {
            if claimed.left {
                lane.suspects.push(suspect);
            }
            if claimed.taken_back > 0 {
                self.suspicion &= claimed.left;
                self.settings.tell(&Event::TakenBack { node: suspect, jobs: claimed.taken_back });
            }
        }
        // A full answer takes the node off the idle list: nobody wakes it, it looks again when it has room.
        lane.flows = claimed.jobs.len() == max;
        lane.idle = !lane.flows && !claimed.more;
        lane.maybe_ready |= !lane.idle || !lane.suspects.is_empty();
        for held in claimed.jobs {
            self.begin(at, held, claimed.now);
        }
    }

    /// A push has put this job into our hands.
    pub(super) fn handed(&mut self, held: Held) {
        if let Some(lane) = self.lanes.iter_mut().find(|lane| lane.queue == held.job.queue) {
            lane.agreement.moved(1);
            // That took us off the list of those who wait.
            lane.idle = false;
            lane.maybe_ready = true;
            metrics::claimed(&lane.queue, 1);
            let late = self.store.now().duration_since(held.due).unwrap_or_default();
            metrics::lateness(&lane.queue).record(late.as_secs_f64());
            lane.handed.push(held);
        }
    }

    /// Starts what was put into our hands.
    pub(super) fn take_in_hand(&mut self) {
        for at in 0..self.lanes.len() {
            for held in std::mem::take(&mut self.lanes[at].handed) {
                self.take_one(at, held);
            }
        }
    }

    fn take_one(&mut self, at: usize, held: Held) {
        let lane = &self.lanes[at];
        if held.fence <= lane.named && self.knows(at, (held.job.id, held.fence)) {
            return;
        }
        let room = self.free() > 0 && lane.running + lane.asked < lane.limit && !self.quiet;
        // A list of what we hold may have been made before. And slots that a claim was promised are free if it finds nothing.
        let wait = lane.asking > 0 && (lane.redoing || !room);
        if wait {
            return self.lanes[at].handed.push(held);
        }
        // A connection that is given up and its successor may both have listened: of two words of one job one counts.
        self.lanes[at].named = held.fence.max(self.lanes[at].named);
        match room {
            true => self.begin(at, held, self.store.now()),
            false => self.release(at, held, Duration::ZERO, "given to this node when it had no room"),
        }
    }

    /// Whether the store has told us of this job before, when we asked what we hold.
    fn knows(&self, at: usize, name: (JobId, Fence)) -> bool {
        self.lanes[at].outbox.has(name) || self.crew.holds(at).contains(&name) || self.recent.end_of(name).is_some()
    }

    /// Starts what was claimed, unless it must wait.
    fn begin(&mut self, at: usize, held: Held, now: std::time::SystemTime) {
        let suspected = (SUSPECT_CRASHES..=self.settings.max_crashes).contains(&held.crashes);
        let under_suspicion = if suspected { self.crew.under_suspicion() } else { None };
        let (after, why) = match (self.grace_until, under_suspicion) {
            // Claimed too late: for others to run.
            (Some(_), _) => (Duration::ZERO, "claimed while the worker was stopping"),
            (None, _) if self.quiet => (Duration::ZERO, "claimed while the worker was told to claim no more"),
            // One of several that were there each time a process died: run one by one, the guilty one betrays itself.
            (None, Some(ran)) => {
                (ran.clamp(QUARANTINE_MIN, QUARANTINE_MAX), "waits for another that may crash its process")
            }
            (None, None) => return self.start(at, held, now),
        };
        self.release(at, held, after, why);
    }

    fn release(&mut self, at: usize, held: Held, after: Duration, why: &'static str) {
        let released = Finished::without_a_run(at, held, Outcome::release(after));
        self.lanes[at].outbox.put(Finished { why: Some(why), ..released });
    }

    /// The store has said what we hold in a queue: run what we do not know, let go of what is not ours.
    fn reconcile(&mut self, at: usize, claimed: Claimed) {
        let name = |held: &Held| (held.job.id, held.fence);
        let theirs: HashSet<_> = claimed.jobs.iter().map(name).collect();
        self.lanes[at].named = theirs.iter().map(|(_, fence)| *fence).fold(self.lanes[at].named, Fence::max);
        let ours: HashSet<_> = self.crew.holds(at).into_iter().collect();
        for job in ours.iter().filter(|job| !theirs.contains(job)) {
            if self.crew.cancel(*job) {
                self.robbed.insert(*job);
                self.settings.tell(&Event::Lost { id: job.0 });
            }
        }
        let waiting: HashSet<_> = self.lanes[at].handed.iter().map(name).collect();
        for held in claimed.jobs {
            let known = self.lanes[at].outbox.has(name(&held)) || waiting.contains(&name(&held));
            if known || ours.contains(&name(&held)) {
                continue;
            }
            match self.recent.end_of(name(&held)) {
                Some((outcome, result)) => {
                    let ended = Finished::without_a_run(at, held, outcome);
                    self.lanes[at].outbox.put(Finished { result, again: true, ..ended });
                }
                None => self.begin(at, held, claimed.now),
            }
        }
    }

    fn claim_failed(&mut self, at: usize, ask: Ask, error: &Error) {
        let again_in = self.backoff(self.lanes[at].failures);
        let lane = &mut self.lanes[at];
        lane.failures = lane.failures.saturating_add(1);
        lane.maybe_ready = true;
        lane.not_before = Some(clock::tick() + again_in);
        // Whatever was sent may have been carried out.
        lane.redo |= matches!(ask, Ask::Redo) || matches!(error, Error::Unknown { .. });
        self.failed("claim", error, again_in);
    }

    pub(super) fn failed(&self, op: &str, error: &Error, again_in: Duration) {
        tracing::warn!(op, %error, ?again_in, "the store failed");
        self.settings.tell(&Event::StoreFailed { error, again_in });
    }

    /// Doubles, with full jitter, and stays below a third of the lease: a short outage must not cost it.
    pub(super) fn backoff(&self, failures: u32) -> Duration {
        let max = (self.node.lease / 3).max(BACKOFF_MIN);
        let ceiling = BACKOFF_MIN.saturating_mul(1 << failures.min(16)).min(max);
        BACKOFF_MIN / 2 + ceiling.mul_f64(fastrand::f64())
    }
}

/// Carries out a claim as a task of its own, for as long as anybody waits for it.
async fn apart(claim: impl Future<Output = Result<Claimed>> + Send + 'static) -> Result<Claimed> {
    let task = AbortOnDropHandle::new(tokio::spawn(claim));
    task.await.unwrap_or_else(|gone| Err(Error::Unknown { op: "claim", source: Some(gone.into()) }))
}
