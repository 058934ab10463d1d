//! One node held for a worker outside: claims, beats and settles when that worker says so, and never by itself.
//!
//! Nothing that it holds may stay unknown to its worker. What is claimed is noted here before anybody is told;
//! a worker whose question was cut off gets it with its next one; what an answer did not bring to it
//! is missing in what it names with its beats, and is given back.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::hand::{self, Hand, Said, Settling};
use super::state::State;
use crate::client::Duly;
use crate::clock;
use crate::error::{Error, Result};
use crate::job::{Fence, Held, JobId, JobProgress, Outcome};
use crate::node::{Node, NodeId};
use crate::peers::AtWork;
use crate::store::{Beaten, CLAIM_MAX, Claim, Claimed, Note};

/// Orders that may wait: whoever gives more is told that it is busy.
const ORDERS_MAX: usize = 16;
/// So many beats in a row that do not name a job: its worker never got it.
const UNNAMED_MAX: u32 = 2;
/// Of idle nodes that wait for the same moment, each looks so much later than the one before.
const RANK_STEP: Duration = Duration::from_millis(2);

/// A node held for somebody outside.
pub(crate) struct Remote {
    pub(super) duly: Duly,
    /// In whose name its worker has joined.
    whose: String,
    pub(super) node: Node,
    kinds: Vec<String>,
    state: Mutex<State>,
    /// One claim is under way at a time.
    pub(super) claiming: tokio::sync::Mutex<()>,
    /// Ends are recorded side by side; while the store says what is held, none is.
    pub(super) recording: tokio::sync::RwLock<()>,
    /// How many questions of the worker wait for a job.
    pub(super) waiting: AtomicUsize,
    /// There may be something to claim, or to tell.
    pub(super) woken: Notify,
    at_work: Mutex<Option<AtWork>>,
}

/// What a beat answers.
#[derive(Debug, Default)]
pub(crate) struct Beat {
    /// Of the jobs that were named: another node has them now.
    pub(crate) lost: Vec<JobId>,
    /// To be stopped: somebody has cancelled them.
    pub(crate) cancel: Vec<JobId>,
    /// Claims give nothing until somebody says otherwise.
    pub(crate) quiet: bool,
    /// Somebody wants the worker to end.
    pub(crate) stop: bool,
}

impl Remote {
    /// Joins, and listens for what concerns it.
    pub(super) async fn join(duly: Duly, whose: String, node: Node, kinds: Vec<String>) -> Result<Arc<Self>> {
        let hall = duly.hall()?;
        let first = duly.store.beat(&node).await?;
        let wakes = duly.store.subscribe(node.id).await?;
        let (orders, ordered) = mpsc::channel(ORDERS_MAX);
        let state = State::new(&node.queues);
        let remote = Arc::new(Remote {
            at_work: Mutex::new(Some(hall.at_work(&node, orders))),
            duly,
            whose,
            node,
            kinds,
            state: Mutex::new(state),
            claiming: tokio::sync::Mutex::default(),
            recording: tokio::sync::RwLock::default(),
            waiting: AtomicUsize::new(0),
            woken: Notify::new(),
        });
        remote.heed(&first);
        tokio::spawn(super::orders::listen(Arc::downgrade(&remote), wakes, ordered));
        Ok(remote)
    }

    pub(crate) fn id(&self) -> NodeId {
        self.node.id
    }

    pub(super) fn whose(&self) -> &str {
        &self.whose
    }

    pub(super) fn queues(&self) -> &[String] {
        &self.node.queues
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_silent(&self, now: Instant) -> bool {
        let waited_for = self.waiting.load(Ordering::Relaxed) > 0;
        !waited_for && now.saturating_duration_since(self.state().seen) > self.node.lease
    }

    pub(super) fn waits_for(&self, queue: &str) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0 && self.node.queues.iter().any(|own| own == queue)
    }

    /// There may be something in this queue.
    pub(super) fn look(&self, queue: &str) {
        if let Some(lane) = self.state().lanes.iter_mut().find(|lane| lane.queue == queue) {
            lane.maybe_ready = true;
        }
        self.woken.notify_one();
    }

    /// Takes up to `max` jobs, and waits so long for the first. Nothing is lost if the one who asks goes away meanwhile.
    pub(crate) async fn claim(self: &Arc<Self>, max: usize, wait: Duration) -> Result<Vec<Arc<Held>>> {
        let max = max.clamp(1, CLAIM_MAX);
        // A worker that is silent for two thirds of its lease while it waits would be taken for dead.
        let until = clock::tick() + wait.min(self.node.lease * 2 / 3);
        self.alive().await?;
        let _waiting = Waiting::begin(&self.waiting);
        self.state().lanes.iter_mut().for_each(|lane| lane.maybe_ready = true);
        loop {
            let given = self.give(max);
            if !given.is_empty() {
                return Ok(given);
            }
            let fetching = self.clone();
            let fetched = tokio::spawn(async move { fetching.fetch(max).await });
            let more = fetched.await.unwrap_or_else(|broken_off| Err(self.broken_off(broken_off)));
            let given = self.give(max);
            if !given.is_empty() {
                // Others of the same worker may wait for the rest.
                self.woken.notify_one();
                return Ok(given);
            }
            let more = more?;
            if clock::tick() >= until || self.state().stop {
                return Ok(given);
            }
            if more {
                continue;
            }
            let look_at = self.state().lanes.iter().filter_map(|lane| lane.look_at).min();
            let next = look_at.map_or(until, |at| at.min(until));
            let _ = tokio::time::timeout_at(next, self.woken.notified()).await;
        }
    }

    /// A claim that has not come to its end may have been carried out all the same: the store says what is held.
    fn broken_off(&self, why: tokio::task::JoinError) -> Error {
        self.state().lanes.iter_mut().for_each(|lane| lane.redo = true);
        Error::Unknown { op: "claim", source: Some(why.into()) }
    }

    /// Jobs that are here and were not given to the worker yet.
    fn give(&self, max: usize) -> Vec<Arc<Held>> {
        let (mut state, now) = (self.state(), clock::tick());
        state.seen = now;
        if state.is_closed() {
            return Vec::new();
        }
        let mut new: Vec<_> = state.hands.values_mut().filter(|hand| !hand.given).collect();
        new.sort_unstable_by_key(|hand| hand.no);
        let give = |hand: &mut Hand| {
            hand.given = true;
            hand.since = now;
            hand.held.clone()
        };
        new.into_iter().take(max).map(give).collect()
    }

    /// Asks the store where a look may find something. Answers whether another look is due at once.
    async fn fetch(self: Arc<Self>, max: usize) -> Result<bool> {
        let _one = self.claiming.lock().await;
        let (mut missing, mut more) = (max, false);
        for at in 0..self.node.queues.len() {
            let Some(claim) = self.ask(at, missing) else {
                continue;
            };
            let (redo, suspect) = (claim.redo, claim.suspect);
            let _recording = if redo { Some(self.recording.write().await) } else { None };
            match self.duly.store.claim(self.node.id, claim).await {
                Ok(claimed) => {
                    let took = claimed.jobs.len();
                    more |= self.claimed(at, redo, suspect, claimed).await?;
                    missing = missing.saturating_sub(took);
                }
                Err(error) => {
                    let lane = &mut self.state().lanes[at];
                    lane.maybe_ready = true;
                    lane.redo |= redo || matches!(error, Error::Unknown { .. });
                    return Err(error);
                }
            }
            if missing == 0 {
                return Ok(more);
            }
        }
        Ok(more)
    }

    /// The claim to send for a lane, if a look may find something there.
    fn ask(&self, at: usize, max: usize) -> Option<Claim> {
        let mut state = self.state();
        let (closed, now) = (state.is_closed(), clock::tick());
        let lane = &mut state.lanes[at];
        let due = lane.look_at.is_some_and(|at| at <= now);
        if !lane.redo && (closed || !(lane.maybe_ready || due)) {
            return None;
        }
        lane.maybe_ready = false;
        lane.look_at = None;
        let suspect = if lane.redo { None } else { lane.suspects.pop() };
        Some(Claim {
            queue: lane.queue.clone(),
            max,
            redo: lane.redo,
            suspect,
            kinds: self.node.takes.kinds.clone().map(Into::into),
        })
    }

    /// Notes what was claimed, and settles at once what no worker here may have. Answers whether to look again.
    async fn claimed(&self, at: usize, redo: bool, suspect: Option<NodeId>, claimed: Claimed) -> Result<bool> {
        let mut refused = Vec::new();
        let again = {
            let (mut state, now) = (self.state(), clock::tick());
            let (closed, moved) = (state.is_closed(), claimed.jobs.len() as u64);
            if redo {
                let theirs: Vec<_> = claimed.jobs.iter().map(|held| (held.job.id, held.fence)).collect();
                let queue = state.lanes[at].queue.clone();
                state.keep_only(&queue, &theirs, self.node.lease);
            }
            for held in claimed.jobs {
                let known = state.hands.get(&held.job.id).is_some_and(|hand| hand.held.fence == held.fence);
                match hand::refused(&held, &self.kinds, claimed.now, self.duly.options.keep_dead) {
                    _ if known => {}
                    Some(end) => refused.push(end),
                    // Asked for before that was said: for others to run.
                    None if closed => {
                        let outcome = Outcome::release(Duration::ZERO);
                        refused.push(hand::end(&held, None, outcome, self.duly.options.keep_dead));
                    }
                    None => state.take_in_hand(Hand::new(held, now, claimed.now), self.node.lease),
                }
            }
            let lane = &mut state.lanes[at];
            lane.redo = false;
            lane.agreement.moved(moved);
            lane.maybe_ready |= redo || claimed.more || claimed.left;
            lane.look_at = claimed.next_due.map(|due| now + due + RANK_STEP * claimed.rank);
            lane.suspects.extend(suspect.filter(|_| claimed.left));
            lane.maybe_ready
        };
        let again = again || !refused.is_empty();
        if !refused.is_empty() {
            // What is not recorded now is found by the counts of the next beats.
            self.duly.store.settle(self.node.id, refused).await?;
        }
        Ok(again)
    }

    /// A sign of life of the worker, with the jobs that it has in hand, if it says which.
    pub(crate) async fn beat(self: &Arc<Self>, named: Option<&[JobId]>) -> Result<Beat> {
        let beaten = self.tell_alive().await?;
        self.heed(&beaten);
        let (mut ends, mut beat) = (Vec::new(), Beat::default());
        {
            let (mut state, now) = (self.state(), clock::tick());
            state.seen = now;
            (beat.quiet, beat.stop) = (state.quiet, state.stop);
            if let Some(named) = named {
                let recorded = |id: &JobId| state.recorded.iter().any(|(known, _)| known == id);
                let lost = named.iter().filter(|id| !state.hands.contains_key(id) && !recorded(id));
                beat.lost = lost.copied().collect();
            }
            let nobody_takes = self.waiting.load(Ordering::Relaxed) == 0 || state.is_closed();
            for (id, hand) in &mut state.hands {
                hand.unnamed = match named {
                    Some(named) if hand.given && !named.contains(id) => hand.unnamed + 1,
                    _ => 0,
                };
                if hand.unwanted {
                    beat.cancel.push(*id);
                }
                let said = if hand.unnamed >= UNNAMED_MAX || (!hand.given && nobody_takes) {
                    Said::Release { after: Duration::ZERO }
                } else if hand.is_overdue(now) {
                    beat.lost.push(*id);
                    Said::Retry { after: None, error: format!("timed out after {:?}", hand.held.job.timeout) }
                } else {
                    continue;
                };
                ends.push(Settling { id: *id, fence: hand.held.fence, said, result: None });
            }
        }
        self.settle_all(ends).await?;
        Ok(beat)
    }

    /// What the store says at a beat: where to look, who may be dead, whether we agree on what is held.
    fn heed(&self, beaten: &Beaten) {
        let mut state = self.state();
        let State { lanes, hands, .. } = &mut *state;
        for lane in lanes.iter_mut().filter(|lane| !beaten.unheard.contains(&lane.queue)) {
            lane.maybe_ready |= beaten.look.contains(&lane.queue);
            let suspects = beaten.suspects.iter().filter(|(_, queue)| *queue == lane.queue).map(|(node, _)| *node);
            lane.suspects = suspects.collect();
            lane.maybe_ready |= !lane.suspects.is_empty();
            let theirs = beaten.held.iter().find(|(queue, _)| *queue == lane.queue).map_or(0, |(_, held)| *held);
            let ours = hands.values().filter(|hand| hand.held.job.queue == lane.queue).count() as u64;
            lane.redo |= lane.agreement.is_broken(theirs, ours, true);
        }
        drop(state);
        self.woken.notify_one();
    }

    /// Keeps what the worker says of a job under way. Answers false if it does not hold it any more.
    pub(crate) async fn tell(
        &self,
        id: JobId,
        fence: Fence,
        done: Option<(f64, String)>,
        lines: Vec<String>,
    ) -> Result<bool> {
        let now = self.duly.store.now();
        let note = {
            let mut state = self.state();
            state.seen = clock::tick();
            let Some(hand) = state.hands.get(&id).filter(|hand| hand.held.fence == fence) else {
                return Ok(false);
            };
            let progress = done.map(|(done, note)| JobProgress::new(done, &note, now));
            Note::of(&hand.held, progress, lines.into_iter().map(|line| (now, line)).collect())
        };
        Ok(self.duly.store.note(self.node.id, vec![note]).await?.is_empty())
    }

    /// Tells the store that this node lives, if it was not told of late.
    async fn alive(self: &Arc<Self>) -> Result<()> {
        let due = {
            let mut state = self.state();
            let now = clock::tick();
            state.seen = now;
            state.beaten.is_none_or(|at| now - at > self.node.beat())
        };
        if due {
            let beaten = self.tell_alive().await?;
            self.heed(&beaten);
        }
        Ok(())
    }

    async fn tell_alive(&self) -> Result<Beaten> {
        let mut node = self.node.clone();
        node.takes.quiet = self.state().is_closed();
        let beaten = self.duly.store.beat(&node).await?;
        self.state().note_beat(self.node.lease);
        Ok(beaten)
    }

    /// Gives back what is in hand, and goes: who goes in good order has crashed with none of it.
    pub(super) async fn leave_in_order(self: &Arc<Self>) -> Result<()> {
        self.close();
        // A claim under way has ended then, and has left nothing in hand.
        drop(self.claiming.lock().await);
        // It goes also if that fails: what it still holds can be taken back at once then, and need not wait for its lease.
        let given_back = self.give_back().await;
        self.leave().await?;
        given_back
    }

    /// From now on its worker gets nothing.
    fn close(&self) {
        self.state().stop = true;
        self.woken.notify_waiters();
    }

    /// Goes; what it still holds can be taken back at once.
    pub(super) async fn leave(&self) -> Result<()> {
        self.close();
        drop(self.at_work.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.duly.store.leave(self.node.id).await
    }
}

/// A question that waits for a job.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn begin(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Waiting(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
