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

use crate::adaptive_wait::AdaptiveWait;
use crate::clock;
use crate::error::Result;
use crate::job::{Fence, HeldJob, JobId};
use crate::node::{NODE_KINDS_MAX, Node, NodeProfile};
use crate::peers::{NodeCommand, Peers};
use crate::store::{HeartbeatReply, SETTLE_MAX, Store, Wake};
use crate::worker::WorkerSettings;
use crate::worker::attempt::Attempt;
use crate::worker::claims::StoreReply;
use crate::worker::event::{Event, RunSummary};
use crate::worker::handler::{AttemptState, Ctx, WorkerContext};
use crate::worker::heartbeat::HeartbeatThread;
use crate::worker::in_flight::{FinishedAttempt, InFlight};
use crate::worker::progress_sender;
use crate::worker::queue_state::QueueState;
use crate::worker::recent_outcomes::RecentOutcomes;
use crate::worker::timer::Timer;

/// How long a worker waits at its start until it can hear orders.
const PEERS_READY_TIMEOUT: Duration = Duration::from_millis(500);
/// Orders that may wait for the loop: whoever gives more is told that it is busy.
const COMMANDS_MAX: usize = 64;
/// How long a stopping worker tries to record what is left.
const FINAL_SETTLE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long at most to let other attempts end before the store is asked again, where they usually are as quick as this.
const COLLECT_WAIT_MAX: Duration = Duration::from_micros(300);
/// A store that answers sooner than this can wait so long all the same: a request more costs it as much.
const COLLECT_WAIT_MIN: Duration = Duration::from_micros(100);
const QUICK_ATTEMPT_MAX: Duration = Duration::from_micros(200);
/// The longest grace time that makes a difference.
const GRACE_PERIOD_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

/// Survivors of a node do not all ask for its jobs at the same moment.
const TAKE_BACK_JITTER_MAX: Duration = Duration::from_millis(30);

/// How much longer than a lease one that only drains waits for what the dead hold: the beat that finds it in contact for long
/// enough, and the claim after it.
const DRAIN_TAKE_BACK_WAIT: Duration = Duration::from_secs(3);

/// Whether to wait for more work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunMode {
    Serve,
    Drain,
}

pub(super) struct WorkerLoop {
    pub(super) settings: WorkerSettings,
    pub(super) mode: RunMode,
    pub(super) stop: CancellationToken,
    /// Ends the grace time.
    pub(super) stop_now: CancellationToken,
    pub(super) node: Node,
    pub(super) store: Arc<dyn Store>,
    pub(super) queues: Vec<QueueState>,
    pub(super) in_flight: InFlight,
    /// The kinds that there is a handler for; `None` if for any.
    pub(super) kinds: Option<Arc<[String]>>,
    /// How long attempts have taken of late, on average.
    pub(super) attempt_duration_avg: Duration,
    pub(super) collect_wait: AdaptiveWait,
    pub(super) recent_outcomes: RecentOutcomes,
    /// What every attempt gets.
    context: Arc<WorkerContext>,
    /// How long a settle has taken of late, on average.
    pub(super) settle_duration_avg: Duration,
    pub(super) requests: FuturesUnordered<BoxFuture<'static, StoreReply>>,
    /// When the grace time is over; set while stopping.
    pub(super) grace_until: Option<Instant>,
    /// When to leave, recorded or not; set once the grace time is over.
    pub(super) leave_by: Option<Instant>,
    /// When to tell next that the loop turns, if anybody wants to know.
    next_alive_at: Option<Instant>,
    pub(super) summary: RunSummary,
    peers: Arc<Peers>,
    /// Attempts whose job another node has, as an event has told already, and which have not ended yet.
    pub(super) lost_reported: HashSet<(JobId, Fence)>,
    /// The last beat has named nodes whose lease is over, and nothing has been taken back since.
    pub(super) has_suspects: bool,
    /// Somebody has told us to claim no more.
    pub(super) quiet: bool,
    /// When this shift began.
    joined_at: Instant,
    /// Nothing of ours is left in the store.
    has_left: bool,
}

impl WorkerLoop {
    pub(super) fn new(
        settings: WorkerSettings,
        lanes: Vec<QueueState>,
        mode: RunMode,
        stop: CancellationToken,
        at_once: CancellationToken,
        hall: Arc<Peers>,
    ) -> Self {
        let mut node = Node::fresh(lanes.iter().map(|lane| lane.name.clone()).collect());
        node.id = hall.worker_node_id();
        node.lease = settings.duly.options.lease;
        node.profile = build_profile(&settings, &lanes);
        let shared = Arc::new(WorkerContext {
            progress: Arc::default(),
            stopping: stop.clone(),
            duly: settings.duly.clone(),
            state: settings.state.clone(),
            crash: settings.crash.clone(),
        });
        WorkerLoop {
            peers: hall,
            lost_reported: HashSet::new(),
            has_suspects: false,
            quiet: false,
            store: settings.duly.store.clone(),
            kinds: settings.handlers.kinds(),
            settings,
            mode,
            stop,
            stop_now: at_once,
            node,
            queues: lanes,
            in_flight: InFlight::default(),
            attempt_duration_avg: Duration::ZERO,
            collect_wait: AdaptiveWait::default(),
            recent_outcomes: RecentOutcomes::default(),
            context: shared,
            settle_duration_avg: Duration::ZERO,
            requests: FuturesUnordered::new(),
            grace_until: None,
            leave_by: None,
            next_alive_at: None,
            summary: RunSummary::default(),
            joined_at: clock::monotonic_now(),
            has_left: false,
        }
    }

    /// Joins, works, leaves.
    pub(super) async fn run(mut self) -> Result<RunSummary> {
        // Whoever sees this node should be able to speak to it; but no job waits for that for long.
        let _ = tokio::time::timeout(PEERS_READY_TIMEOUT, self.peers.ensure_announced()).await;
        let first = self.store.heartbeat(&self.node).await?;
        let mut wakes = self.store.subscribe_wakes(self.node.id).await?;
        // One that only drains goes as soon as it finds nothing, and must not be given something just then.
        if self.mode == RunMode::Serve {
            self.store.accept_deliveries(self.node.id, self.kinds.clone()).await?;
        }
        let mut beating = HeartbeatThread::start(self.store.clone(), self.node.clone())?;
        let alarm = Timer::start()?;
        let _telling = progress_sender::start(self.context.progress.clone(), self.store.clone(), self.node.id);
        let crashed = self.settings.crash.as_ref().map(|crash| crash.crashed.clone()).unwrap_or_default();
        let (sender, mut orders) = mpsc::channel(COMMANDS_MAX);
        let _at_work = self.peers.register_worker(&self.node, sender);
        self.settings.emit(&Event::Joined { node: self.node.id });
        self.handle_heartbeat_reply(first);
        loop {
            beating.record_loop_turn(self.quiet || self.grace_until.is_some());
            self.begin_stop_if_requested();
            self.start_delivered();
            self.claim_ahead();
            self.collect_finished().await;
            if crashed.is_cancelled() {
                break;
            }
            self.begin_stop_if_requested();
            // What is in our hands is known before anything is asked, and before we go.
            while let Ok(wake) = wakes.try_recv() {
                self.handle_wake(wake, &beating);
            }
            // What there is no room for is given back with what is asked now.
            self.start_delivered();
            self.send_requests();
            if self.is_finished() {
                break;
            }
            alarm.set(self.next_deadline());
            tokio::select! {
                Some(answered) = self.requests.next(), if !self.requests.is_empty() => {
                    self.handle_store_reply(answered);
                    self.handle_ready_replies();
                }
                finished = self.in_flight.next_finished() => self.finish_attempt(finished),
                Some(wake) = wakes.recv() => self.handle_wake(wake, &beating),
                Some(beaten) = beating.replies.recv() => match beaten {
                    Some(beaten) => self.handle_heartbeat_reply(beaten),
                    None => self.check_all_queues(),
                },
                Some(order) = orders.recv() => self.handle_command(order),
                () = alarm.expired() => {}
                () = crashed.cancelled() => break,
                () = self.stop.cancelled(), if self.grace_until.is_none() => self.begin_stop_if_requested(),
                () = self.stop_now.cancelled(), if self.leave_by.is_none() => self.end_grace_period(),
            }
        }
        drop(beating);
        self.summary.crashed = crashed.is_cancelled();
        self.summary.unrecorded = self.queues.iter().map(|lane| lane.outcomes.unrecorded_count() as u64).sum();
        // If the store does not answer in time, the lease ends what is left.
        let by = self.leave_by.unwrap_or_else(|| clock::monotonic_now() + FINAL_SETTLE_TIMEOUT);
        let left = tokio::time::timeout_at(by, self.store.leave(self.node.id)).await;
        self.has_left = left.is_ok_and(|left| left.is_ok());
        let _ = tokio::time::timeout_at(by, self.settings.duly.kind_stats.flush(&*self.store)).await;
        Ok(self.summary)
    }

    /// Does what another node tells us to.
    fn handle_command(&mut self, order: NodeCommand) {
        match order {
            // Whoever asked may have gone away.
            NodeCommand::ListJobs(answer) => drop(answer.send(self.in_flight.snapshot())),
            NodeCommand::Cancel(id, answer) => drop(answer.send(self.in_flight.cancel_job(id))),
            NodeCommand::SetQuiet(quiet, answer) => {
                self.quiet = quiet;
                self.check_all_queues();
                let _ = answer.send(());
            }
            NodeCommand::Stop => self.stop.cancel(),
        }
    }

    // Attempts.

    pub(super) fn start_attempt(&mut self, lane: usize, held: HeldJob, now: SystemTime) {
        let settings = &self.settings;
        let deadline = settings.duly.options.clock.now() + held.job.timeout;
        let attempt = Attempt {
            retry: *settings.retries.get(&held.job.kind).unwrap_or(&settings.default_retry),
            max_crashes: settings.max_crashes,
            job_age: now.duration_since(held.job.pushed).unwrap_or_default(),
            ctx: Ctx { attempt_state: Arc::new(AttemptState::new(held, deadline)), worker: self.context.clone() },
        };
        let held = &attempt.ctx.attempt_state.held;
        let late = now.duration_since(held.due).unwrap_or_default();
        if attempt.check_crash_limit().is_none() {
            settings.emit(&Event::Started { held, lateness: late });
        }
        self.queues[lane].running += 1;
        self.in_flight.start(lane, late, attempt, settings.handlers.clone());
    }

    /// Attempts that end at about the same time are settled together, and their slots filled by one claim.
    ///
    /// Those that were just started are given their first turn, and where attempts have been quick of late the others a
    /// moment to end too: asking the store for a few would keep the rest waiting for a whole commit.
    /// If that brings nobody it is tried again only now and then.
    async fn collect_finished(&mut self) {
        while let Some(finished) = self.in_flight.try_next_finished() {
            self.finish_attempt(finished);
        }
        let some_wait =
            self.queues.iter().any(|lane| lane.outcomes.pending_count() > 0 && !lane.outcomes.has_in_flight());
        let quick = self.attempt_duration_avg < QUICK_ATTEMPT_MAX && some_wait && !self.in_flight.is_empty();
        let fresh = self.in_flight.unpolled_count();
        if !(quick || fresh > 0) || !self.collect_wait.should_wait() {
            return;
        }
        let (before, until) = (
            self.pending_outcomes(),
            clock::monotonic_now() + (self.settle_duration_avg / 3).clamp(COLLECT_WAIT_MIN, COLLECT_WAIT_MAX),
        );
        let waits = |shift: &Self| (quick && !shift.in_flight.is_empty()) || shift.in_flight.unpolled_count() > 0;
        while waits(self) && self.pending_outcomes() < SETTLE_MAX && clock::monotonic_now() < until {
            tokio::task::yield_now().await;
            while let Some(finished) = self.in_flight.try_next_finished() {
                self.finish_attempt(finished);
            }
        }
        self.collect_wait
            .record_arrivals(self.pending_outcomes() - before + fresh.saturating_sub(self.in_flight.unpolled_count()));
    }

    fn finish_attempt(&mut self, mut finished: FinishedAttempt) {
        (finished.progress_update, finished.result) = self.context.progress.finish_attempt(&finished.held);
        let lane = &mut self.queues[finished.queue_index];
        lane.running -= 1;
        lane.count_check.record_changes(1);
        self.attempt_duration_avg = (self.attempt_duration_avg * 7 + finished.duration) / 8;
        lane.outcomes.add(finished);
        if self.mode == RunMode::Drain {
            // It may have pushed more: the end is reached only when a look after the last attempt finds nothing.
            self.queues.iter_mut().for_each(|lane| lane.maybe_ready = true);
        }
    }

    // Signals and time.

    fn handle_wake(&mut self, wake: Wake, beating: &HeartbeatThread) {
        match wake {
            Wake::Queue(queue) => self.check_queue_by_name(&queue),
            Wake::Heartbeat => beating.send_now(),
            Wake::Job(held) => self.add_delivered(*held),
            Wake::Resync(queue) => {
                self.check_queue_by_name(&queue);
                self.queues.iter_mut().filter(|lane| lane.name == queue).for_each(|lane| lane.needs_resync = true);
            }
        }
    }

    fn check_queue_by_name(&mut self, queue: &str) {
        if let Some(at) = self.queues.iter().position(|lane| lane.name == queue) {
            self.check_queue(at);
        }
    }

    /// Once a second, in case a wake was lost.
    fn check_all_queues(&mut self) {
        (0..self.queues.len()).for_each(|at| self.check_queue(at));
    }

    /// A look may find something. Where there is no room for a job no claim goes out, which would tell of a tick: then that
    /// is asked for by itself, or a rule that came meanwhile would wait for a job to end.
    fn check_queue(&mut self, at: usize) {
        let none_free = self.free_slots() == 0;
        let lane = &mut self.queues[at];
        lane.maybe_ready = true;
        if none_free || lane.running >= lane.limit {
            lane.tick_at = Some(clock::monotonic_now());
        }
    }

    /// Once a second: look where there is something; see who is suspected, and whether the store's count of what we hold is ours.
    fn handle_heartbeat_reply(&mut self, beaten: HeartbeatReply) {
        self.quiet |= beaten.quiet;
        if beaten.stop {
            self.stop.cancel();
        }
        // Of a queue that says nothing wakes may be lost too.
        beaten.queues_to_check.iter().chain(&beaten.unreachable).for_each(|queue| self.check_queue_by_name(queue));
        self.has_suspects = beaten.suspects.iter().any(|(_, queue)| self.queues.iter().any(|lane| lane.name == *queue));
        let now = clock::monotonic_now();
        for lane in &mut self.queues {
            if beaten.unreachable.contains(&lane.name) {
                continue;
            }
            lane.record_heartbeat(now, self.node.lease);
            let theirs = beaten.held.iter().find(|(queue, _)| *queue == lane.name).map_or(0, |(_, held)| *held);
            let ours = (lane.running + lane.outcomes.pending_count() + lane.delivered.len()) as u64;
            let at_rest = !lane.outcomes.has_in_flight() && lane.claims_in_flight == 0;
            lane.needs_resync |= lane.count_check.is_out_of_sync(theirs, ours, at_rest);
        }
        for lane in &mut self.queues {
            let here = |queue: &String| *queue == lane.name;
            let ending = beaten.expiring.iter().filter(|(_, queue, _)| here(queue));
            lane.expiring = ending
                .map(|(node, _, left)| (*node, now + *left + TAKE_BACK_JITTER_MAX.mul_f64(fastrand::f64())))
                .collect();
            let suspects: Vec<_> =
                beaten.suspects.iter().filter(|(_, queue)| here(queue)).map(|(node, _)| *node).collect();
            suspects.into_iter().for_each(|node| lane.add_suspect(node));
        }
    }

    pub(super) fn handle_deadlines(&mut self, now: Instant) {
        if let Some(every) = self.settings.alive_interval.filter(|_| self.next_alive_at.is_none_or(|at| at <= now)) {
            self.next_alive_at = Some(now + every);
            self.settings.emit(&Event::Alive);
        }
        for lane in &mut self.queues {
            if lane.check_at.is_some_and(|at| at <= now) {
                lane.check_at = None;
                lane.maybe_ready = true;
            }
            lane.suspect_expired(now);
        }
        if self.leave_by.is_none() && self.grace_until.is_some_and(|at| at <= now) {
            self.end_grace_period();
        }
    }

    /// When to turn again although nothing happens.
    fn next_deadline(&self) -> Option<Instant> {
        let now = clock::monotonic_now();
        // What has passed already has been asked for, or waits for something else.
        let later = |at: &Instant| *at > now;
        let waits = self.queues.iter().filter_map(|lane| lane.outcomes.not_before.filter(later)).min();
        if self.grace_until.is_some() {
            return [self.leave_by.or(self.grace_until), waits, self.next_alive_at].into_iter().flatten().min();
        }
        // Who is quiet fires nothing: a tick that has passed would ring without end.
        let fires = |lane: &QueueState| lane.next_fire_at(now).filter(|_| !self.quiet);
        let lanes = self
            .queues
            .iter()
            .flat_map(|lane| [lane.check_at, lane.claim_not_before.filter(later), lane.prune_at, fires(lane)]);
        let ending = self.queues.iter().flat_map(|lane| lane.expiring.iter().map(|(_, at)| Some(*at)));
        lanes.chain(ending).chain([waits, self.next_alive_at]).flatten().min()
    }

    /// A stop counts from the moment it is asked for, whatever else happens at the same time:
    /// nothing is claimed after it, and nothing started.
    pub(super) fn begin_stop_if_requested(&mut self) {
        if self.grace_until.is_some() || !self.stop.is_cancelled() {
            return;
        }
        self.grace_until = Some(clock::monotonic_now() + self.settings.grace.min(GRACE_PERIOD_MAX));
        self.settings.emit(&Event::Stopping { running: self.in_flight.len() });
    }

    /// The grace time is over: what still runs is released, to be run elsewhere at once.
    fn end_grace_period(&mut self) {
        self.stop.cancel();
        self.grace_until.get_or_insert(clock::monotonic_now());
        self.leave_by = Some(clock::monotonic_now() + FINAL_SETTLE_TIMEOUT);
        for finished in self.in_flight.abort_all() {
            self.finish_attempt(finished);
        }
    }

    fn is_finished(&self) -> bool {
        let asking = self.queues.iter().any(|lane| lane.claims_in_flight > 0 || lane.fire_in_flight);
        let idle = self.in_flight.is_empty()
            && self.queues.iter().all(|lane| lane.outcomes.unrecorded_count() == 0)
            && !asking;
        let stopped = self.grace_until.is_some();
        // Only who has been there for a whole lease may take from the dead: until then what they hold is not done with.
        let may_inherit = self.has_suspects
            && !self.quiet
            && clock::monotonic_now() < self.joined_at + self.node.lease + DRAIN_TAKE_BACK_WAIT;
        let drained = self.mode == RunMode::Drain
            && !may_inherit
            && self.queues.iter().all(|lane| {
                !lane.needs_resync
                    && (self.quiet
                        || (!lane.maybe_ready
                            && lane.suspects.is_empty()
                            && !lane.can_fire_due_tick(clock::monotonic_now())))
            });
        let too_late = self.leave_by.is_some_and(|at| at <= clock::monotonic_now());
        too_late || (idle && (stopped || drained))
    }
}

impl Drop for WorkerLoop {
    /// A worker that is dropped in mid-work leaves at once, so that others need not wait for its lease.
    fn drop(&mut self) {
        if let (false, Ok(runtime)) = (self.has_left, tokio::runtime::Handle::try_current()) {
            let (store, node) = (self.store.clone(), self.node.id);
            runtime.spawn(async move { store.leave(node).await });
        }
    }
}

/// What this worker can take on, for whoever asks why a job waits.
fn build_profile(settings: &WorkerSettings, lanes: &[QueueState]) -> NodeProfile {
    NodeProfile {
        kinds: settings.handlers.kinds().filter(|kinds| kinds.len() <= NODE_KINDS_MAX).map(|kinds| kinds.to_vec()),
        slots: Some(settings.concurrency as u64),
        limits: lanes.iter().map(|lane| (lane.name.clone(), lane.limit as u64)).collect(),
        quiet: false,
    }
}
