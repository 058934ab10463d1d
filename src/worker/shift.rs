//! One shift of a worker, from joining to leaving: the loop.
//!
//! It asks the store (claims, settles, prunes) and goes on while the answers are under way;
//! it sleeps only when there is nothing to ask, and no error of the store ends it.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Settings;
use super::alarm::Alarm;
use super::beat::Beating;
use super::crew::{Crew, Finished};
use super::lane::{Lane, choose};
use crate::attempt::Attempt;
use crate::clock;
use crate::error::{Error, Result};
use crate::event::{Event, Tally};
use crate::handler::Ctx;
use crate::job::{Held, JobId, Outcome};
use crate::node::{Node, NodeId};
use crate::store::{Beaten, CLAIM_MAX, Claim, Claimed, End, PRUNE_MAX, SETTLE_MAX, Store, TAKE_BACK_MAX, Wake};

/// How long a stopping worker tries to record what is left.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// How often ended jobs are looked through for those past their time.
const PRUNE: Duration = Duration::from_secs(60);
/// Of idle nodes that wait for the same moment, each looks so much later than the one before.
const RANK_STEP: Duration = Duration::from_millis(2);
/// The first wait after the store has failed; doubles up to a third of the lease.
const BACKOFF_MIN: Duration = Duration::from_millis(50);
/// How often to let other attempts have a turn before the store is asked again.
const GATHER_MAX: usize = 16;
/// Outcomes that may wait for the store; beyond that no job is claimed.
const UNSETTLED_MAX: usize = 10 * SETTLE_MAX;

/// Whether to wait for more work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Serve,
    Drain,
}

/// An answer of the store.
enum Answered {
    Claimed(usize, Ask, Result<Claimed>),
    Settled(Vec<Finished>, Result<Vec<JobId>>),
    Pruned(usize, Result<usize>),
}

/// What a claim was for.
struct Ask {
    redo: bool,
    suspect: Option<NodeId>,
}

pub(super) struct Shift {
    settings: Settings,
    mode: Mode,
    stop: CancellationToken,
    /// Ends the grace time.
    at_once: CancellationToken,
    node: Node,
    store: Arc<dyn Store>,
    lanes: Vec<Lane>,
    crew: Crew,
    finished: Vec<Finished>,
    settling: bool,
    settle_failures: u32,
    settle_not_before: Option<Instant>,
    asks: FuturesUnordered<BoxFuture<'static, Answered>>,
    /// When the grace time is over; set while stopping.
    grace_until: Option<Instant>,
    /// When to leave, recorded or not; set once the grace time is over.
    leave_by: Option<Instant>,
    tally: Tally,
}

impl Shift {
    pub(super) fn new(
        settings: Settings,
        lanes: Vec<Lane>,
        mode: Mode,
        stop: CancellationToken,
        at_once: CancellationToken,
    ) -> Self {
        let mut node = Node::fresh(lanes.iter().map(|lane| lane.queue.clone()).collect());
        node.lease = settings.duly.options.lease;
        Shift {
            store: settings.duly.store.clone(),
            settings,
            mode,
            stop,
            at_once,
            node,
            lanes,
            crew: Crew::default(),
            finished: Vec::new(),
            settling: false,
            settle_failures: 0,
            settle_not_before: None,
            asks: FuturesUnordered::new(),
            grace_until: None,
            leave_by: None,
            tally: Tally::default(),
        }
    }

    /// Joins, works, leaves.
    pub(super) async fn work(mut self) -> Result<Tally> {
        let first = self.store.beat(&self.node).await?;
        let mut wakes = self.store.subscribe(self.node.id).await?;
        let mut beating = Beating::start(self.store.clone(), self.node.clone())?;
        let alarm = Alarm::start()?;
        self.settings.tell(&Event::Joined { node: self.node.id });
        self.beaten(first);
        loop {
            beating.tick();
            self.ask();
            if self.is_over() {
                break;
            }
            alarm.set(self.next_moment());
            tokio::select! {
                Some(answered) = self.asks.next(), if !self.asks.is_empty() => self.answered(answered),
                finished = self.crew.next() => {
                    self.finish(finished);
                    self.gather().await;
                }
                Some(wake) = wakes.recv() => match wake {
                    Wake::Queue(queue) => self.woken(&queue),
                    Wake::Beat => beating.soon(),
                },
                Some(beaten) = beating.answers.recv() => self.beaten(beaten),
                () = alarm.rings() => {}
                () = self.stop.cancelled(), if self.grace_until.is_none() => self.begin_to_stop(),
                () = self.at_once.cancelled(), if self.leave_by.is_none() => self.give_up(),
            }
        }
        drop(beating);
        // If the store does not answer, the lease ends what is left.
        let _ = tokio::time::timeout(LAST_WORDS, self.store.leave(self.node.id)).await;
        Ok(self.tally)
    }

    // Asking.

    /// Sends whatever can be sent now.
    fn ask(&mut self) {
        let now = clock::tick();
        self.look_at_the_time(now);
        self.settle(now);
        if self.grace_until.is_some() {
            return;
        }
        self.prune(now);
        if self.finished.len() >= UNSETTLED_MAX {
            return;
        }
        let busy: usize = self.lanes.iter().map(|lane| lane.running + lane.asked).sum();
        let free = self.settings.concurrency.saturating_sub(busy);
        let rooms: Vec<_> = self.lanes.iter().map(|lane| (lane.room(now), lane.weight)).collect();
        for (lane, max) in choose(&rooms, free, fastrand::f64()) {
            self.claim(lane, max.min(CLAIM_MAX));
        }
    }

    fn claim(&mut self, at: usize, max: usize) {
        let lane = &mut self.lanes[at];
        let ask = Ask { redo: lane.redo, suspect: lane.suspects.pop() };
        // A wake that comes while the claim is under way must not be taken for one that it has answered.
        lane.maybe_ready = false;
        lane.look_at = None;
        lane.asked = max;
        let claim = Claim { queue: lane.queue.clone(), max, redo: ask.redo, suspect: ask.suspect };
        let (store, node) = (self.store.clone(), self.node.id);
        self.asks.push(Box::pin(async move { Answered::Claimed(at, ask, store.claim(node, claim).await) }));
    }

    fn settle(&mut self, now: Instant) {
        let waits = self.settle_not_before.is_some_and(|at| at > now);
        if self.settling || self.finished.is_empty() || waits {
            return;
        }
        let rest = self.finished.split_off(self.finished.len().min(SETTLE_MAX));
        let batch = std::mem::replace(&mut self.finished, rest);
        let keep_dead = self.settings.duly.options.keep_dead;
        let ends = batch.iter().map(|finished| end(finished, keep_dead)).collect();
        let (store, node) = (self.store.clone(), self.node.id);
        self.settling = true;
        self.asks.push(Box::pin(async move { Answered::Settled(batch, store.settle(node, ends).await) }));
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

    // Answers.

    fn answered(&mut self, answered: Answered) {
        match answered {
            Answered::Claimed(at, ask, Ok(claimed)) => self.claimed(at, ask, claimed),
            Answered::Claimed(at, ask, Err(error)) => self.claim_failed(at, &ask, &error),
            Answered::Settled(batch, Ok(lost)) => self.settled(batch, &lost),
            Answered::Settled(batch, Err(error)) => self.settle_failed(batch, &error),
            // More to prune: at the next turn.
            Answered::Pruned(at, Ok(PRUNE_MAX)) => self.lanes[at].unpruned = PRUNE_MAX,
            Answered::Pruned(_, Ok(_)) => {}
            Answered::Pruned(_, Err(error)) => tracing::warn!(%error, "prune failed"),
        }
    }

    fn claimed(&mut self, at: usize, ask: Ask, claimed: Claimed) {
        let lane = &mut self.lanes[at];
        let asked = std::mem::take(&mut lane.asked);
        lane.failures = 0;
        lane.not_before = None;
        lane.moves += claimed.jobs.len() as u64;
        if let Some(suspect) = ask.suspect {
            if claimed.taken_back == TAKE_BACK_MAX {
                lane.suspects.push(suspect);
            }
            if claimed.taken_back > 0 {
                self.settings.tell(&Event::TakenBack { node: suspect, jobs: claimed.taken_back });
            }
        }
        if ask.redo {
            lane.redo = false;
            lane.maybe_ready = true;
            return self.reconcile(at, claimed);
        }
        // A full answer takes the node off the idle list: nobody wakes it, it looks again when it has room.
        lane.maybe_ready |= claimed.more || claimed.jobs.len() == asked || !lane.suspects.is_empty();
        lane.look_at = claimed.next_due.map(|due| clock::tick() + due + RANK_STEP * claimed.rank);
        for held in claimed.jobs {
            self.start(at, held, claimed.now);
        }
    }

    /// The store has said what we hold in a queue: run what we do not know, let go of what is not ours.
    fn reconcile(&mut self, at: usize, claimed: Claimed) {
        let name = |held: &Held| (held.job.id, held.fence);
        let theirs: Vec<_> = claimed.jobs.iter().map(name).collect();
        let ours = self.crew.holds(at);
        for job in ours.iter().filter(|job| !theirs.contains(job)) {
            if self.crew.cancel(*job) {
                self.settings.tell(&Event::Lost { id: job.0 });
            }
        }
        // While a settle is under way its jobs are neither here nor there: the next beat will tell.
        if self.settling {
            return;
        }
        let waiting: Vec<_> = self.finished.iter().map(|finished| name(&finished.held)).collect();
        for held in claimed.jobs {
            if !ours.contains(&name(&held)) && !waiting.contains(&name(&held)) {
                self.start(at, held, claimed.now);
            }
        }
    }

    fn claim_failed(&mut self, at: usize, ask: &Ask, error: &Error) {
        let again_in = self.backoff(self.lanes[at].failures);
        let lane = &mut self.lanes[at];
        lane.asked = 0;
        lane.failures += 1;
        lane.maybe_ready = true;
        lane.not_before = Some(clock::tick() + again_in);
        // Whatever was sent may have been carried out.
        lane.redo = ask.redo || matches!(error, Error::Unknown { .. });
        self.failed("claim", error, again_in);
    }

    fn settled(&mut self, batch: Vec<Finished>, lost: &[JobId]) {
        self.settling = false;
        let repeated = std::mem::take(&mut self.settle_failures) > 0;
        self.settle_not_before = None;
        for finished in batch {
            let Finished { lane, held, outcome, took } = finished;
            self.lanes[lane].moves += 1;
            if lost.contains(&held.job.id) {
                // After a settle that failed, its first try may have been recorded: not a robbery.
                if !repeated {
                    self.tally.lost += 1;
                    self.settings.tell(&Event::Lost { id: held.job.id });
                    tracing::warn!(id = %held.job.id, "outcome refused: another node has the job");
                }
                continue;
            }
            match outcome {
                Outcome::Ack => self.lanes[lane].unpruned += usize::from(!held.job.keep.is_zero()),
                Outcome::Bury { .. } => {}
                // It is ready again, or will be: look, or learn when.
                Outcome::Retry { .. } | Outcome::Release { .. } => self.lanes[lane].maybe_ready = true,
            }
            self.tally.count(&outcome);
            self.settings.tell(&Event::Settled { held: &held, outcome: &outcome, took });
        }
    }

    fn settle_failed(&mut self, batch: Vec<Finished>, error: &Error) {
        let again_in = self.backoff(self.settle_failures);
        self.settling = false;
        self.settle_failures += 1;
        self.settle_not_before = Some(clock::tick() + again_in);
        let newer = std::mem::replace(&mut self.finished, batch);
        self.finished.extend(newer);
        self.failed("settle", error, again_in);
    }

    fn failed(&self, op: &str, error: &Error, again_in: Duration) {
        tracing::warn!(op, %error, ?again_in, "the store failed");
        self.settings.tell(&Event::StoreFailed { error, again_in });
    }

    /// Doubles, with full jitter, and stays below a third of the lease: a short outage must not cost it.
    fn backoff(&self, failures: u32) -> Duration {
        let max = (self.node.lease / 3).max(BACKOFF_MIN);
        let ceiling = BACKOFF_MIN.saturating_mul(1 << failures.min(16)).min(max);
        BACKOFF_MIN / 2 + ceiling.mul_f64(fastrand::f64())
    }

    // Attempts.

    fn start(&mut self, lane: usize, held: Held, now: SystemTime) {
        let settings = &self.settings;
        let attempt = Attempt {
            retry: *settings.retries.get(&held.job.kind).unwrap_or(&settings.retry),
            max_crashes: settings.max_crashes,
            age: now.duration_since(held.job.pushed).unwrap_or_default(),
            ctx: Ctx {
                deadline: settings.duly.options.clock.now() + held.job.timeout,
                held: Arc::new(held),
                cancelled: CancellationToken::new(),
                stopping: self.stop.clone(),
                duly: settings.duly.clone(),
                state: settings.state.clone(),
            },
        };
        if attempt.exhausted().is_none() {
            let held = &attempt.ctx.held;
            settings.tell(&Event::Started { held, late: now.duration_since(held.due).unwrap_or_default() });
        }
        self.lanes[lane].running += 1;
        self.crew.start(lane, attempt, settings.handlers.clone());
    }

    /// Attempts that end at about the same time are settled together, and their slots filled by one claim.
    async fn gather(&mut self) {
        for _ in 0..GATHER_MAX {
            let before = self.finished.len();
            while let Some(finished) = self.crew.try_next() {
                self.finish(finished);
            }
            if self.crew.is_empty() || self.finished.len() == before {
                return;
            }
            // Others that only need a turn get one.
            tokio::task::yield_now().await;
        }
    }

    fn finish(&mut self, finished: Finished) {
        let lane = &mut self.lanes[finished.lane];
        lane.running -= 1;
        lane.moves += 1;
        self.finished.push(finished);
        if self.mode == Mode::Drain {
            // It may have pushed more: the end is reached only when a look after the last attempt finds nothing.
            self.lanes.iter_mut().for_each(|lane| lane.maybe_ready = true);
        }
    }

    // Signals and time.

    fn woken(&mut self, queue: &str) {
        if let Some(lane) = self.lanes.iter_mut().find(|lane| lane.queue == queue) {
            lane.maybe_ready = true;
        }
    }

    /// Once a second: look everywhere, in case a wake was lost; see who is suspected, and whether counts agree.
    fn beaten(&mut self, beaten: Beaten) {
        let settling = self.settling;
        for (at, lane) in self.lanes.iter_mut().enumerate() {
            lane.maybe_ready = true;
            let theirs = beaten.held.iter().find(|(queue, _)| *queue == lane.queue).map_or(0, |(_, held)| *held);
            let waiting = self.finished.iter().filter(|finished| finished.lane == at).count();
            if settling || lane.asked > 0 || theirs == (lane.running + waiting) as u64 {
                lane.differed_at = None;
            } else if lane.differed_at == Some(lane.moves) {
                // Twice, and nothing has moved between: one of us has forgotten something.
                lane.redo = true;
                lane.differed_at = None;
            } else {
                lane.differed_at = Some(lane.moves);
            }
        }
        for (node, queue) in beaten.suspects {
            let lane = self.lanes.iter_mut().find(|lane| lane.queue == queue);
            if let Some(lane) = lane.filter(|lane| !lane.suspects.contains(&node)) {
                lane.suspects.push(node);
            }
        }
    }

    fn look_at_the_time(&mut self, now: Instant) {
        for lane in &mut self.lanes {
            if lane.look_at.is_some_and(|at| at <= now) {
                lane.look_at = None;
                lane.maybe_ready = true;
            }
        }
        if self.leave_by.is_none() && self.grace_until.is_some_and(|at| at <= now) {
            self.give_up();
        }
    }

    /// When to turn again although nothing happens.
    fn next_moment(&self) -> Option<Instant> {
        let now = clock::tick();
        // What has passed already has been asked for, or waits for something else.
        let later = |at: &Instant| *at > now;
        let waits = self.settle_not_before.filter(later);
        if self.grace_until.is_some() {
            return [self.leave_by.or(self.grace_until), waits].into_iter().flatten().min();
        }
        let lanes = self.lanes.iter().flat_map(|lane| [lane.look_at, lane.not_before.filter(later), lane.prune_at]);
        lanes.chain([waits]).flatten().min()
    }

    fn begin_to_stop(&mut self) {
        self.grace_until = Some(clock::tick() + self.settings.grace);
        self.settings.tell(&Event::Stopping { running: self.crew.len() });
    }

    /// The grace time is over: what still runs is released, to be run elsewhere at once.
    fn give_up(&mut self) {
        self.stop.cancel();
        self.grace_until.get_or_insert(clock::tick());
        self.leave_by = Some(clock::tick() + LAST_WORDS);
        for finished in self.crew.abandon() {
            self.finish(finished);
        }
    }

    fn is_over(&self) -> bool {
        let asking = self.settling || self.lanes.iter().any(|lane| lane.asked > 0);
        let idle = self.crew.is_empty() && self.finished.is_empty() && !asking;
        let stopped = self.grace_until.is_some();
        let drained = self.mode == Mode::Drain
            && self.lanes.iter().all(|lane| !lane.maybe_ready && !lane.redo && lane.suspects.is_empty());
        let too_late = self.leave_by.is_some_and(|at| at <= clock::tick());
        too_late || (idle && (stopped || drained))
    }
}

fn end(finished: &Finished, keep_dead: Duration) -> End {
    let keep = match finished.outcome {
        Outcome::Bury { .. } => keep_dead,
        _ => finished.held.job.keep,
    };
    End::of(&finished.held, finished.outcome.clone(), keep)
}
