//! One shift of a worker, from joining to leaving: the loop.
//!
//! It asks the store (claims, settles, prunes) and goes on while the answers are under way;
//! it sleeps only when there is nothing to ask, and no error of the store ends it.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::adaptive_wait::Patience;
use crate::clock;
use crate::error::Result;
use crate::job::{Fence, Held, JobId};
use crate::node::{KINDS_MAX, Node, Takes};
use crate::peers::{Hall, Order};
use crate::store::{Beaten, SETTLE_MAX, Store, Wake};
use crate::worker::Settings;
use crate::worker::attempt::Attempt;
use crate::worker::claims::Answered;
use crate::worker::event::{Event, Tally};
use crate::worker::handler::{Ctx, Own, Shared};
use crate::worker::heartbeat::Beating;
use crate::worker::in_flight::{Crew, Finished};
use crate::worker::progress_sender;
use crate::worker::queue_state::Lane;
use crate::worker::recent_outcomes::Recent;
use crate::worker::timer::Alarm;

/// How long a worker waits at its start until it can hear orders.
const HEARING_MAX: Duration = Duration::from_millis(500);
/// Orders that may wait for the loop: whoever gives more is told that it is busy.
const ORDERS_MAX: usize = 64;
/// How long a stopping worker tries to record what is left.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// How long at most to let other attempts end before the store is asked again, where they usually are as quick as this.
const GATHER_MAX: Duration = Duration::from_micros(300);
/// A store that answers sooner than this can wait so long all the same: a request more costs it as much.
const GATHER_MIN: Duration = Duration::from_micros(100);
const QUICK: Duration = Duration::from_micros(200);
/// The longest grace time that makes a difference.
const GRACE_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

/// Survivors of a node do not all ask for its jobs at the same moment.
const SURVIVORS: Duration = Duration::from_millis(30);

/// How much longer than a lease one that only drains waits for what the dead hold: the beat that finds it in contact for long
/// enough, and the claim after it.
const DEAD_BEATS: Duration = Duration::from_secs(3);

/// Whether to wait for more work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Serve,
    Drain,
}

pub(super) struct Shift {
    pub(super) settings: Settings,
    pub(super) mode: Mode,
    pub(super) stop: CancellationToken,
    /// Ends the grace time.
    pub(super) at_once: CancellationToken,
    pub(super) node: Node,
    pub(super) store: Arc<dyn Store>,
    pub(super) lanes: Vec<Lane>,
    pub(super) crew: Crew,
    /// The kinds that there is a handler for; `None` if for any.
    pub(super) kinds: Option<Arc<[String]>>,
    /// How long attempts have taken of late, on average.
    pub(super) usual: Duration,
    pub(super) patience: Patience,
    pub(super) recent: Recent,
    /// What every attempt gets.
    shared: Arc<Shared>,
    /// How long a settle has taken of late, on average.
    pub(super) commit: Duration,
    pub(super) asks: FuturesUnordered<BoxFuture<'static, Answered>>,
    /// When the grace time is over; set while stopping.
    pub(super) grace_until: Option<Instant>,
    /// When to leave, recorded or not; set once the grace time is over.
    pub(super) leave_by: Option<Instant>,
    /// When to tell next that the loop turns, if anybody wants to know.
    alive_at: Option<Instant>,
    pub(super) tally: Tally,
    hall: Arc<Hall>,
    /// Attempts whose job another node has, as an event has told already, and which have not ended yet.
    pub(super) robbed: HashSet<(JobId, Fence)>,
    /// The last beat has named nodes whose lease is over, and nothing has been taken back since.
    pub(super) suspicion: bool,
    /// Somebody has told us to claim no more.
    pub(super) quiet: bool,
    /// When this shift began.
    joined: Instant,
    /// Nothing of ours is left in the store.
    left: bool,
}

impl Shift {
    pub(super) fn new(
        settings: Settings,
        lanes: Vec<Lane>,
        mode: Mode,
        stop: CancellationToken,
        at_once: CancellationToken,
        hall: Arc<Hall>,
    ) -> Self {
        let mut node = Node::fresh(lanes.iter().map(|lane| lane.queue.clone()).collect());
        node.id = hall.identity();
        node.lease = settings.duly.options.lease;
        node.takes = takes(&settings, &lanes);
        let shared = Arc::new(Shared {
            notes: Arc::default(),
            stopping: stop.clone(),
            duly: settings.duly.clone(),
            state: settings.state.clone(),
            crash: settings.crash.clone(),
        });
        Shift {
            hall,
            robbed: HashSet::new(),
            suspicion: false,
            quiet: false,
            store: settings.duly.store.clone(),
            kinds: settings.handlers.kinds(),
            settings,
            mode,
            stop,
            at_once,
            node,
            lanes,
            crew: Crew::default(),
            usual: Duration::ZERO,
            patience: Patience::default(),
            recent: Recent::default(),
            shared,
            commit: Duration::ZERO,
            asks: FuturesUnordered::new(),
            grace_until: None,
            leave_by: None,
            alive_at: None,
            tally: Tally::default(),
            joined: clock::tick(),
            left: false,
        }
    }

    /// Joins, works, leaves.
    pub(super) async fn work(mut self) -> Result<Tally> {
        // Whoever sees this node should be able to speak to it; but no job waits for that for long.
        let _ = tokio::time::timeout(HEARING_MAX, self.hall.attended()).await;
        let first = self.store.beat(&self.node).await?;
        let mut wakes = self.store.subscribe(self.node.id).await?;
        // One that only drains goes as soon as it finds nothing, and must not be given something just then.
        if self.mode == Mode::Serve {
            self.store.accept(self.node.id, self.kinds.clone()).await?;
        }
        let mut beating = Beating::start(self.store.clone(), self.node.clone())?;
        let alarm = Alarm::start()?;
        let _telling = progress_sender::tell(self.shared.notes.clone(), self.store.clone(), self.node.id);
        let crashed = self.settings.crash.as_ref().map(|crash| crash.crashed.clone()).unwrap_or_default();
        let (sender, mut orders) = mpsc::channel(ORDERS_MAX);
        let _at_work = self.hall.at_work(&self.node, sender);
        self.settings.tell(&Event::Joined { node: self.node.id });
        self.beaten(first);
        loop {
            beating.tick(self.quiet || self.grace_until.is_some());
            self.notice_stop();
            self.take_in_hand();
            self.ask_ahead();
            self.gather().await;
            if crashed.is_cancelled() {
                break;
            }
            self.notice_stop();
            // What is in our hands is known before anything is asked, and before we go.
            while let Ok(wake) = wakes.try_recv() {
                self.wake(wake, &beating);
            }
            // What there is no room for is given back with what is asked now.
            self.take_in_hand();
            self.ask();
            if self.is_over() {
                break;
            }
            alarm.set(self.next_moment());
            tokio::select! {
                Some(answered) = self.asks.next(), if !self.asks.is_empty() => {
                    self.answered(answered);
                    self.take_answers();
                }
                finished = self.crew.next() => self.finish(finished),
                Some(wake) = wakes.recv() => self.wake(wake, &beating),
                Some(beaten) = beating.answers.recv() => match beaten {
                    Some(beaten) => self.beaten(beaten),
                    None => self.look_everywhere(),
                },
                Some(order) = orders.recv() => self.ordered(order),
                () = alarm.rings() => {}
                () = crashed.cancelled() => break,
                () = self.stop.cancelled(), if self.grace_until.is_none() => self.notice_stop(),
                () = self.at_once.cancelled(), if self.leave_by.is_none() => self.give_up(),
            }
        }
        drop(beating);
        self.tally.crashed = crashed.is_cancelled();
        self.tally.unrecorded = self.lanes.iter().map(|lane| lane.outbox.unrecorded() as u64).sum();
        // If the store does not answer in time, the lease ends what is left.
        let by = self.leave_by.unwrap_or_else(|| clock::tick() + LAST_WORDS);
        let left = tokio::time::timeout_at(by, self.store.leave(self.node.id)).await;
        self.left = left.is_ok_and(|left| left.is_ok());
        let _ = tokio::time::timeout_at(by, self.settings.duly.kinds.send(&*self.store)).await;
        Ok(self.tally)
    }

    /// Does what another node tells us to.
    fn ordered(&mut self, order: Order) {
        match order {
            // Whoever asked may have gone away.
            Order::Jobs(answer) => drop(answer.send(self.crew.told())),
            Order::Cancel(id, answer) => drop(answer.send(self.crew.cancel_for_good(id))),
            Order::Quiet(quiet, answer) => {
                self.quiet = quiet;
                self.look_everywhere();
                let _ = answer.send(());
            }
            Order::Stop => self.stop.cancel(),
        }
    }

    // Attempts.

    pub(super) fn start(&mut self, lane: usize, held: Held, now: SystemTime) {
        let settings = &self.settings;
        let deadline = settings.duly.options.clock.now() + held.job.timeout;
        let attempt = Attempt {
            retry: *settings.retries.get(&held.job.kind).unwrap_or(&settings.retry),
            max_crashes: settings.max_crashes,
            age: now.duration_since(held.job.pushed).unwrap_or_default(),
            ctx: Ctx { own: Arc::new(Own::new(held, deadline)), shared: self.shared.clone() },
        };
        let held = &attempt.ctx.own.held;
        let late = now.duration_since(held.due).unwrap_or_default();
        if attempt.exhausted().is_none() {
            settings.tell(&Event::Started { held, late });
        }
        self.lanes[lane].running += 1;
        self.crew.start(lane, late, attempt, settings.handlers.clone());
    }

    /// Attempts that end at about the same time are settled together, and their slots filled by one claim.
    ///
    /// Those that were just started are given their first turn, and where attempts have been quick of late the others a
    /// moment to end too: asking the store for a few would keep the rest waiting for a whole commit.
    /// If that brings nobody it is tried again only now and then.
    async fn gather(&mut self) {
        while let Some(finished) = self.crew.try_next() {
            self.finish(finished);
        }
        let some_wait = self.lanes.iter().any(|lane| lane.outbox.waiting() > 0 && !lane.outbox.is_sent());
        let quick = self.usual < QUICK && some_wait && !self.crew.is_empty();
        let fresh = self.crew.fresh();
        if !(quick || fresh > 0) || !self.patience.is_worth_it() {
            return;
        }
        let (before, until) = (self.unsettled(), clock::tick() + (self.commit / 3).clamp(GATHER_MIN, GATHER_MAX));
        let waits = |shift: &Self| (quick && !shift.crew.is_empty()) || shift.crew.fresh() > 0;
        while waits(self) && self.unsettled() < SETTLE_MAX && clock::tick() < until {
            tokio::task::yield_now().await;
            while let Some(finished) = self.crew.try_next() {
                self.finish(finished);
            }
        }
        self.patience.learn(self.unsettled() - before + fresh.saturating_sub(self.crew.fresh()));
    }

    fn finish(&mut self, mut finished: Finished) {
        (finished.note, finished.result) = self.shared.notes.end(&finished.held);
        let lane = &mut self.lanes[finished.lane];
        lane.running -= 1;
        lane.agreement.moved(1);
        self.usual = (self.usual * 7 + finished.took) / 8;
        lane.outbox.put(finished);
        if self.mode == Mode::Drain {
            // It may have pushed more: the end is reached only when a look after the last attempt finds nothing.
            self.lanes.iter_mut().for_each(|lane| lane.maybe_ready = true);
        }
    }

    // Signals and time.

    fn wake(&mut self, wake: Wake, beating: &Beating) {
        match wake {
            Wake::Queue(queue) => self.woken(&queue),
            Wake::Beat => beating.soon(),
            Wake::Job(held) => self.handed(*held),
            Wake::Missed(queue) => {
                self.woken(&queue);
                self.lanes.iter_mut().filter(|lane| lane.queue == queue).for_each(|lane| lane.redo = true);
            }
        }
    }

    fn woken(&mut self, queue: &str) {
        if let Some(at) = self.lanes.iter().position(|lane| lane.queue == queue) {
            self.look_at_lane(at);
        }
    }

    /// Once a second, in case a wake was lost.
    fn look_everywhere(&mut self) {
        (0..self.lanes.len()).for_each(|at| self.look_at_lane(at));
    }

    /// A look may find something. Where there is no room for a job no claim goes out, which would tell of a tick: then that
    /// is asked for by itself, or a rule that came meanwhile would wait for a job to end.
    fn look_at_lane(&mut self, at: usize) {
        let none_free = self.free() == 0;
        let lane = &mut self.lanes[at];
        lane.maybe_ready = true;
        if none_free || lane.running >= lane.limit {
            lane.tick_at = Some(clock::tick());
        }
    }

    /// Once a second: look where there is something; see who is suspected, and whether the store's count of what we hold is ours.
    fn beaten(&mut self, beaten: Beaten) {
        self.quiet |= beaten.quiet;
        if beaten.stop {
            self.stop.cancel();
        }
        // Of a queue that says nothing wakes may be lost too.
        beaten.look.iter().chain(&beaten.unheard).for_each(|queue| self.woken(queue));
        self.suspicion = beaten.suspects.iter().any(|(_, queue)| self.lanes.iter().any(|lane| lane.queue == *queue));
        let now = clock::tick();
        for lane in &mut self.lanes {
            if beaten.unheard.contains(&lane.queue) {
                continue;
            }
            lane.hear(now, self.node.lease);
            let theirs = beaten.held.iter().find(|(queue, _)| *queue == lane.queue).map_or(0, |(_, held)| *held);
            let ours = (lane.running + lane.outbox.waiting() + lane.handed.len()) as u64;
            let at_rest = !lane.outbox.is_sent() && lane.asking == 0;
            lane.redo |= lane.agreement.is_broken(theirs, ours, at_rest);
        }
        for lane in &mut self.lanes {
            let here = |queue: &String| *queue == lane.queue;
            let ending = beaten.ending.iter().filter(|(_, queue, _)| here(queue));
            lane.ending =
                ending.map(|(node, _, left)| (*node, now + *left + SURVIVORS.mul_f64(fastrand::f64()))).collect();
            let suspects: Vec<_> =
                beaten.suspects.iter().filter(|(_, queue)| here(queue)).map(|(node, _)| *node).collect();
            suspects.into_iter().for_each(|node| lane.suspect(node));
        }
    }

    pub(super) fn look_at_the_time(&mut self, now: Instant) {
        if let Some(every) = self.settings.alive_every.filter(|_| self.alive_at.is_none_or(|at| at <= now)) {
            self.alive_at = Some(now + every);
            self.settings.tell(&Event::Alive);
        }
        for lane in &mut self.lanes {
            if lane.look_at.is_some_and(|at| at <= now) {
                lane.look_at = None;
                lane.maybe_ready = true;
            }
            lane.suspect_ended(now);
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
        let waits = self.lanes.iter().filter_map(|lane| lane.outbox.not_before.filter(later)).min();
        if self.grace_until.is_some() {
            return [self.leave_by.or(self.grace_until), waits, self.alive_at].into_iter().flatten().min();
        }
        // Who is quiet fires nothing: a tick that has passed would ring without end.
        let fires = |lane: &Lane| lane.fire_at(now).filter(|_| !self.quiet);
        let lanes = self
            .lanes
            .iter()
            .flat_map(|lane| [lane.look_at, lane.not_before.filter(later), lane.prune_at, fires(lane)]);
        let ending = self.lanes.iter().flat_map(|lane| lane.ending.iter().map(|(_, at)| Some(*at)));
        lanes.chain(ending).chain([waits, self.alive_at]).flatten().min()
    }

    /// A stop counts from the moment it is asked for, whatever else happens at the same time:
    /// nothing is claimed after it, and nothing started.
    pub(super) fn notice_stop(&mut self) {
        if self.grace_until.is_some() || !self.stop.is_cancelled() {
            return;
        }
        self.grace_until = Some(clock::tick() + self.settings.grace.min(GRACE_MAX));
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
        let asking = self.lanes.iter().any(|lane| lane.asking > 0 || lane.firing);
        let idle = self.crew.is_empty() && self.lanes.iter().all(|lane| lane.outbox.unrecorded() == 0) && !asking;
        let stopped = self.grace_until.is_some();
        // Only who has been there for a whole lease may take from the dead: until then what they hold is not done with.
        let may_inherit = self.suspicion && !self.quiet && clock::tick() < self.joined + self.node.lease + DEAD_BEATS;
        let drained = self.mode == Mode::Drain
            && !may_inherit
            && self.lanes.iter().all(|lane| {
                !lane.redo
                    && (self.quiet
                        || (!lane.maybe_ready && lane.suspects.is_empty() && !lane.tick_is_due(clock::tick())))
            });
        let too_late = self.leave_by.is_some_and(|at| at <= clock::tick());
        too_late || (idle && (stopped || drained))
    }
}

impl Drop for Shift {
    /// A worker that is dropped in mid-work leaves at once, so that others need not wait for its lease.
    fn drop(&mut self) {
        if let (false, Ok(runtime)) = (self.left, tokio::runtime::Handle::try_current()) {
            let (store, node) = (self.store.clone(), self.node.id);
            runtime.spawn(async move { store.leave(node).await });
        }
    }
}

/// What this worker can take on, for whoever asks why a job waits.
fn takes(settings: &Settings, lanes: &[Lane]) -> Takes {
    Takes {
        kinds: settings.handlers.kinds().filter(|kinds| kinds.len() <= KINDS_MAX).map(|kinds| kinds.to_vec()),
        slots: Some(settings.concurrency as u64),
        limits: lanes.iter().map(|lane| (lane.queue.clone(), lane.limit as u64)).collect(),
        quiet: false,
    }
}
