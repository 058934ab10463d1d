//! The run loop of a worker, from joining to leaving.
//!
//! One turn of the loop starts delivered jobs, collects finished attempts, sends requests to the store and waits for
//! the next event: a reply, a finished attempt, a wake, a heartbeat, a command or a deadline. The loop continues while
//! requests are in flight, and sleeps only if there is nothing to send. Store errors never end it.
//!
//! The parts decide and the loop connects them. [`Phase`] says whether the worker claims. Each [`QueueState`] says what
//! to send and when. [`Attempts`] starts jobs and keeps what became of them. [`StoreRequests`] carries requests.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::error::{Error, Result};
use crate::job::HeldJob;
use crate::metrics;
use crate::node::{NODE_KINDS_MAX, Node, NodeId, NodeProfile};

use crate::peers::{NodeCommand, Peers, WorkerRegistration};
use crate::store::{CLAIM_MAX, ClaimReply, HeartbeatReply, PRUNE_MAX, SETTLE_MAX, Store, Wake};
use crate::worker::WorkerSettings;
use crate::worker::attempts::Attempts;
use crate::worker::claim_state::ClaimPurpose;
use crate::worker::cron_ticks::TickReport;
use crate::worker::event::{Event, RunSummary};
use crate::worker::heartbeat::HeartbeatThread;
use crate::worker::loop_host::LoopHost;
use crate::worker::outcomes::UnsettledOutcome;
use crate::worker::phase::{FINAL_SETTLE_TIMEOUT, Phase};
use crate::worker::progress_sender::{self, ProgressSender};
use crate::worker::queue_state::{CLAIM_AHEAD_MIN, QueueState};
use crate::worker::requests::{StoreReply, StoreRequests};
use crate::worker::settle_pace::SettlePace;
use crate::worker::slots::divide_slots;
use crate::worker::timer::Timer;

/// How long a starting worker waits until other nodes can send it commands.
const PEERS_READY_TIMEOUT: Duration = Duration::from_millis(500);
/// Maximum queued commands for the loop; further senders get a busy error.
const COMMANDS_MAX: usize = 64;
/// Maximum unsettled outcomes; beyond that no job is claimed.
const UNSETTLED_MAX: usize = 10 * SETTLE_MAX;
/// Stagger between idle nodes that wait for the same due time.
const IDLE_RANK_STAGGER: Duration = Duration::from_millis(2);
/// How much longer than a lease a draining worker waits for jobs held by dead nodes: one heartbeat that lists them as
/// suspects, and the claim after it.
const DRAIN_TAKE_BACK_WAIT: Duration = Duration::from_secs(3);

/// Whether the loop waits for more work or ends once there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunMode {
    Serve,
    Drain,
}

/// A running worker.
pub(super) struct WorkerLoop {
    settings: Arc<WorkerSettings>,
    mode: RunMode,
    phase: Phase,
    stop: CancellationToken,
    /// Ends the grace period at once.
    stop_now: CancellationToken,
    store: Arc<dyn Store>,
    node: Node,
    peers: Arc<Peers>,
    /// Lets the heartbeat thread drive the loop while a handler blocks its thread.
    host: Weak<LoopHost>,
    /// The kinds with a handler; `None` if any kind can run.
    kinds: Option<Arc<[String]>>,
    queues: Vec<QueueState>,
    attempts: Attempts,
    requests: StoreRequests,
    settle_pace: SettlePace,
    /// The last heartbeat listed nodes with an expired lease, and nothing has been taken back since.
    has_suspects: bool,
    joined_at: Instant,
    /// When to emit the next [`Event::Alive`], if an interval is set.
    next_alive_at: Option<Instant>,
    /// The node has left the store and holds nothing there.
    has_left: bool,
}

/// The sources of events, apart from the store's replies and the attempts.
struct LoopInputs {
    wakes: mpsc::Receiver<Wake>,
    heartbeats: HeartbeatThread,
    commands: mpsc::Receiver<NodeCommand>,
    timer: Timer,
    /// A simulated crash.
    crashed: CancellationToken,
    _progress_sender: ProgressSender,
    _registration: WorkerRegistration,
}

/// Ends the wait of the loop.
enum LoopEvent {
    Replied(StoreReply),
    Finished(usize, UnsettledOutcome),
    Woken(Wake),
    /// A heartbeat reply; `None` if none arrived in time.
    Heartbeat(Option<HeartbeatReply>),
    Command(NodeCommand),
    DeadlinePassed,
    StopRequested,
    StopNowRequested,
    Crashed,
}

impl WorkerLoop {
    pub(super) fn new(
        settings: WorkerSettings,
        queues: Vec<QueueState>,
        mode: RunMode,
        stop: CancellationToken,
        stop_now: CancellationToken,
        peers: Arc<Peers>,
    ) -> Self {
        let mut node = Node::fresh(queues.iter().map(|queue| queue.name().to_owned()).collect());
        node.id = peers.worker_node_id();
        node.lease = settings.duly.options.lease;
        node.profile = build_profile(&settings, &queues);
        let settings = Arc::new(settings);
        let (store, kinds) = (settings.duly.store.clone(), settings.handlers.kinds());
        WorkerLoop {
            attempts: Attempts::new(settings.clone(), stop.clone()),
            requests: StoreRequests::new(store.clone(), node.id, kinds.clone()),
            settings,
            mode,
            phase: Phase::Running,
            stop,
            stop_now,
            store,
            node,
            peers,
            host: Weak::new(),
            kinds,
            queues,
            settle_pace: SettlePace::default(),
            has_suspects: false,
            joined_at: clock::monotonic_now(),
            next_alive_at: None,
            has_left: false,
        }
    }

    pub(super) fn set_host(&mut self, host: &Arc<LoopHost>) {
        self.host = Arc::downgrade(host);
    }

    /// Joins, runs until the worker is stopped or drained, and leaves.
    pub(super) async fn run(mut self) -> Result<RunSummary> {
        let mut inputs = self.join().await?;
        loop {
            inputs.heartbeats.record_loop_turn(!self.phase.is_running());
            self.begin_stop_if_requested();
            self.start_delivered();
            self.claim_ahead();
            self.collect_finished().await;
            if inputs.crashed.is_cancelled() {
                break;
            }
            self.begin_stop_if_requested();
            // Delivered jobs must be known before requests are sent and before the loop ends.
            self.read_wakes(&mut inputs);
            // Jobs delivered without a free slot are released in the same batch.
            self.start_delivered();
            self.send_requests();
            if self.is_finished() {
                break;
            }
            inputs.timer.set(self.next_deadline());
            match self.next_event(&mut inputs).await {
                LoopEvent::Crashed => break,
                event => self.handle_event(event, &inputs),
            }
        }
        self.leave(inputs).await
    }

    /// Registers the node and starts everything that the loop listens to.
    async fn join(&mut self) -> Result<LoopInputs> {
        // Peers that see this node should be able to call it, but jobs do not wait long for that.
        let _ = tokio::time::timeout(PEERS_READY_TIMEOUT, self.peers.ensure_announced()).await;
        let first_reply = self.store.heartbeat(&self.node).await?;
        let wakes = self.store.subscribe_wakes(self.node.id).await?;
        // A draining worker leaves once it finds nothing, and must not receive a job at that moment.
        if self.mode == RunMode::Serve {
            self.store.accept_deliveries(self.node.id, self.kinds.clone()).await?;
        }
        let (sender, commands) = mpsc::channel(COMMANDS_MAX);
        let inputs = LoopInputs {
            wakes,
            heartbeats: HeartbeatThread::start(self.store.clone(), self.node.clone(), self.host.clone())?,
            commands,
            timer: Timer::start()?,
            crashed: self.settings.crash.as_ref().map(|crash| crash.crashed.clone()).unwrap_or_default(),
            _progress_sender: progress_sender::start(self.attempts.progress(), self.store.clone(), self.node.id),
            _registration: self.peers.register_worker(&self.node, sender),
        };
        self.settings.emit(&Event::Joined { node: self.node.id });
        self.handle_heartbeat_reply(&first_reply);
        Ok(inputs)
    }

    /// Leaves the store. If it does not reply in time, the remaining jobs are taken back when the lease expires.
    async fn leave(mut self, inputs: LoopInputs) -> Result<RunSummary> {
        let crashed = inputs.crashed.is_cancelled();
        drop(inputs);
        let deadline = match self.phase {
            Phase::Leaving { leave_by } => leave_by,
            _ => clock::monotonic_now() + FINAL_SETTLE_TIMEOUT,
        };
        let left = tokio::time::timeout_at(deadline, self.store.leave(self.node.id)).await;
        self.has_left = matches!(left, Ok(Ok(())));
        let _ = tokio::time::timeout_at(deadline, self.settings.duly.kind_stats.flush(&*self.store)).await;
        let unrecorded = self.queues.iter().map(|queue| queue.outcomes.unrecorded_count() as u64).sum();
        Ok(self.attempts.take_summary(unrecorded, crashed))
    }

    // Events.

    async fn next_event(&mut self, inputs: &mut LoopInputs) -> LoopEvent {
        tokio::select! {
            reply = self.requests.next_reply() => LoopEvent::Replied(reply),
            (queue_index, outcome) = self.attempts.next_finished() => LoopEvent::Finished(queue_index, outcome),
            Some(wake) = inputs.wakes.recv() => LoopEvent::Woken(wake),
            Some(reply) = inputs.heartbeats.replies.recv() => LoopEvent::Heartbeat(reply),
            Some(command) = inputs.commands.recv() => LoopEvent::Command(command),
            () = inputs.timer.expired() => LoopEvent::DeadlinePassed,
            () = inputs.crashed.cancelled() => LoopEvent::Crashed,
            () = self.stop.cancelled(), if !self.phase.is_stopping() => LoopEvent::StopRequested,
            () = self.stop_now.cancelled(), if !self.phase.is_leaving() => LoopEvent::StopNowRequested,
        }
    }

    fn handle_event(&mut self, event: LoopEvent, inputs: &LoopInputs) {
        match event {
            LoopEvent::Replied(reply) => {
                self.handle_store_reply(reply);
                self.handle_ready_replies();
            }
            LoopEvent::Finished(queue_index, outcome) => self.finish_attempt(queue_index, outcome),
            LoopEvent::Woken(wake) => self.handle_wake(wake, &inputs.heartbeats),
            LoopEvent::Heartbeat(Some(reply)) => self.handle_heartbeat_reply(&reply),
            LoopEvent::Heartbeat(None) => self.check_all_queues(),
            LoopEvent::Command(command) => self.handle_command(command),
            LoopEvent::StopRequested => self.begin_stop_if_requested(),
            LoopEvent::StopNowRequested => self.end_grace_period(),
            LoopEvent::DeadlinePassed | LoopEvent::Crashed => {}
        }
    }

    fn handle_ready_replies(&mut self) {
        while let Some(reply) = self.requests.try_next_reply() {
            self.handle_store_reply(reply);
        }
    }

    fn handle_store_reply(&mut self, reply: StoreReply) {
        self.begin_stop_if_requested();
        match reply {
            StoreReply::Claimed { queue_index, purpose, sent, reply } => {
                self.queues[queue_index].claims.record_reply(purpose);
                match reply {
                    Ok(reply) => self.handle_claim_reply(queue_index, purpose, sent, reply),
                    Err(error) => self.handle_claim_error(queue_index, purpose, &error),
                }
            }
            StoreReply::Settled { queue_index, batch, sent, lost: Ok(lost) } => {
                self.settle_pace.record_settle(clock::monotonic_now() - sent);
                self.attempts.handle_settle_reply(&mut self.queues[queue_index], batch, &lost, self.node.lease);
            }
            StoreReply::Settled { queue_index, batch, lost: Err(error), .. } => {
                self.handle_settle_error(queue_index, batch, &error);
            }
            StoreReply::Pruned { queue_index, deleted: Ok(PRUNE_MAX) } => {
                self.queues[queue_index].prune.request_another();
            }
            StoreReply::Pruned { deleted: Ok(_), .. } => {}
            StoreReply::Pruned { deleted: Err(error), .. } => tracing::warn!(%error, "prune failed"),
            StoreReply::TicksFired { queue_index, report } => self.handle_tick_report(queue_index, report),
        }
    }

    /// Handles all wakes that have arrived.
    fn read_wakes(&mut self, inputs: &mut LoopInputs) {
        while let Ok(wake) = inputs.wakes.try_recv() {
            self.handle_wake(wake, &inputs.heartbeats);
        }
    }

    fn handle_wake(&mut self, wake: Wake, heartbeats: &HeartbeatThread) {
        match wake {
            Wake::Queue(name) => self.check_queue_by_name(&name),
            Wake::Heartbeat => heartbeats.send_now(),
            Wake::Job(held) => self.add_delivered(*held),
            Wake::Resync(name) => {
                self.check_queue_by_name(&name);
                if let Some(queue) = self.queues.iter_mut().find(|queue| queue.name() == name) {
                    queue.claims.request_resync();
                }
            }
        }
    }

    /// Handles the reply to a heartbeat: checks queues, notes suspect nodes and compares the counts of held jobs.
    fn handle_heartbeat_reply(&mut self, reply: &HeartbeatReply) {
        if reply.quiet {
            self.phase.set_quiet(true);
        }
        if reply.stop {
            self.stop.cancel();
        }
        // Wakes of an unreachable queue may be lost too.
        reply.queues_to_check.iter().chain(&reply.unreachable).for_each(|name| self.check_queue_by_name(name));
        self.has_suspects = reply.suspects.iter().any(|(_, name)| self.queues.iter().any(|queue| queue.name() == name));
        let (now, lease) = (clock::monotonic_now(), self.node.lease);
        self.queues.iter_mut().for_each(|queue| queue.handle_heartbeat(reply, now, lease));
    }

    /// Executes a command from another node. Replies are dropped if the caller is gone.
    fn handle_command(&mut self, command: NodeCommand) {
        match command {
            NodeCommand::ListJobs(reply) => drop(reply.send(self.attempts.snapshot())),
            NodeCommand::Cancel(id, reply) => drop(reply.send(self.attempts.cancel_job(id))),
            NodeCommand::SetQuiet(quiet, reply) => {
                self.phase.set_quiet(quiet);
                self.check_all_queues();
                let _ = reply.send(());
            }
            NodeCommand::Stop => self.stop.cancel(),
        }
    }

    fn check_queue_by_name(&mut self, name: &str) {
        let (is_full, now) = (self.free_slots() == 0, clock::monotonic_now());
        if let Some(queue) = self.queues.iter_mut().find(|queue| queue.name() == name) {
            queue.check(is_full, now);
        }
    }

    /// Checks every queue: once a second, in case a wake was lost.
    fn check_all_queues(&mut self) {
        let (is_full, now) = (self.free_slots() == 0, clock::monotonic_now());
        self.queues.iter_mut().for_each(|queue| queue.check(is_full, now));
    }

    // Requests.

    /// Sends all requests that can be sent now.
    fn send_requests(&mut self) {
        let now = clock::monotonic_now();
        self.handle_deadlines(now);
        for index in 0..self.queues.len() {
            let queue = &self.queues[index];
            let resync = queue.claims.wants_resync() && queue.claims.can_send(now) && !self.phase.is_stopping();
            match resync {
                // The list of held jobs is only exact while no outcome is in flight.
                true if !queue.outcomes.has_in_flight() => self.send_claim(index, ClaimPurpose::Resync),
                false if !queue.claims.is_resyncing() => self.flush_outcomes(index, now),
                _ => {}
            }
        }
        if !self.phase.is_stopping() {
            self.prune_queues(now);
        }
        if self.phase.is_running() {
            self.fire_ticks(now);
            self.claim_jobs(now);
        }
        self.leave_idle_lists(now);
    }

    fn handle_deadlines(&mut self, now: Instant) {
        if let Some(interval) = self.settings.alive_interval.filter(|_| self.next_alive_at.is_none_or(|at| at <= now)) {
            self.next_alive_at = Some(now + interval);
            self.settings.emit(&Event::Alive);
        }
        self.queues.iter_mut().for_each(|queue| queue.handle_deadlines(now));
        if self.phase.is_grace_over(now) {
            self.end_grace_period();
        }
    }

    /// Sends large claims before the jobs of the previous claim run, so that the store works in the meantime.
    fn claim_ahead(&mut self) {
        let now = clock::monotonic_now();
        let has_many = self.attempts.unpolled_count() > 0
            && self.queues.iter().any(|queue| queue.jobs_to_claim(now) >= CLAIM_AHEAD_MIN);
        if has_many && self.phase.is_running() {
            self.claim_jobs(now);
            self.handle_ready_replies();
        }
    }

    fn claim_jobs(&mut self, now: Instant) {
        if self.pending_outcomes() >= UNSETTLED_MAX {
            return;
        }
        let wanted: Vec<_> = self.queues.iter().map(|queue| (queue.jobs_to_claim(now), queue.weight())).collect();
        let delivered: usize = self.queues.iter().map(|queue| queue.deliveries.len()).sum();
        for (index, max) in divide_slots(&wanted, self.free_slots().saturating_sub(delivered), fastrand::f64()) {
            let max = max.min(CLAIM_MAX).min(self.queues[index].claim_size_max());
            let suspect = self.queues[index].suspects.take();
            self.send_claim(index, ClaimPurpose::TakeJobs(max, suspect));
        }
    }

    /// Removes this node from idle lists if it has no free slot, so that pushes wake other nodes.
    fn leave_idle_lists(&mut self, now: Instant) {
        let running: usize = self.queues.iter().map(QueueState::running).sum();
        let none_free = !self.phase.is_running() || running >= self.settings.concurrency;
        for index in 0..self.queues.len() {
            let queue = &self.queues[index];
            if queue.claims.is_on_idle_list() && queue.claims.can_send(now) && (none_free || queue.is_full()) {
                self.send_claim(index, ClaimPurpose::LeaveIdleList);
            }
        }
    }

    fn send_claim(&mut self, index: usize, purpose: ClaimPurpose) {
        self.queues[index].claims.record_sent(purpose);
        self.requests.claim(index, self.queues[index].name(), purpose);
    }

    fn prune_queues(&mut self, now: Instant) {
        for (index, queue) in self.queues.iter_mut().enumerate() {
            if queue.prune.take_due(now) {
                self.requests.prune(index, queue.name(), self.settings.keep_done_max);
            }
        }
    }

    fn fire_ticks(&mut self, now: Instant) {
        for (index, queue) in self.queues.iter_mut().enumerate() {
            if let Some(unblocked_rules) = queue.ticks.begin_check(now) {
                self.requests.fire_ticks(index, queue.name(), self.settings.duly.clone(), unblocked_rules);
            }
        }
    }

    fn handle_tick_report(&mut self, index: usize, report: Result<TickReport>) {
        let (queue, now) = (&mut self.queues[index], clock::monotonic_now());
        match report {
            Ok(report) => {
                if queue.ticks.record_report(report, now) {
                    queue.claims.request_claim();
                }
            }
            Err(Error::Unsupported { .. }) => queue.ticks.record_unsupported(),
            Err(error) => {
                let retry_in = queue.ticks.record_failure(now, self.node.lease);
                self.report_store_failure("fire_crons", &error, retry_in);
            }
        }
    }

    fn report_store_failure(&self, op: &str, error: &Error, retry_in: Duration) {
        tracing::warn!(op, %error, ?retry_in, "request to the store failed");
        self.settings.emit(&Event::StoreFailed { error, retry_in });
    }

    /// Returns the slots that are neither taken nor reserved.
    fn free_slots(&self) -> usize {
        let busy: usize = self.queues.iter().map(QueueState::busy_slots).sum();
        self.settings.concurrency.saturating_sub(busy)
    }

    // Jobs that arrive.

    fn handle_claim_reply(&mut self, index: usize, purpose: ClaimPurpose, sent: Instant, reply: ClaimReply) {
        match purpose {
            ClaimPurpose::TakeJobs(max, suspect) => self.start_claimed(index, max, suspect, sent, reply),
            ClaimPurpose::LeaveIdleList => self.queues[index].claims.record_left_idle_list(),
            ClaimPurpose::Resync => {
                self.queues[index].claims.record_resynced();
                self.attempts.reconcile_held(self.phase, index, &mut self.queues[index], reply);
            }
        }
    }

    fn handle_claim_error(&mut self, index: usize, purpose: ClaimPurpose, error: &Error) {
        let may_be_applied = matches!(purpose, ClaimPurpose::Resync) || matches!(error, Error::Unknown { .. });
        let claims = &mut self.queues[index].claims;
        let retry_in = claims.record_failure(clock::monotonic_now(), self.node.lease, may_be_applied);
        self.report_store_failure("claim", error, retry_in);
    }

    fn start_claimed(&mut self, index: usize, max: usize, suspect: Option<NodeId>, sent: Instant, reply: ClaimReply) {
        let queue = &mut self.queues[index];
        record_claim_metrics(queue, &reply);
        if let Some(suspect) = suspect {
            if reply.suspect_has_more {
                queue.suspects.add(suspect);
            }
            if reply.taken_back > 0 {
                self.has_suspects &= reply.suspect_has_more;
                self.settings.emit(&Event::TakenBack { node: suspect, jobs: reply.taken_back });
            }
        }
        // Delays in the reply count from the store's time, which lies between request and reply.
        let now = clock::monotonic_now();
        let age = self.settings.duly.options.clock.now().duration_since(reply.now).unwrap_or_default();
        let replied_at = now - age.min(now - sent) + IDLE_RANK_STAGGER * reply.idle_rank;
        let next_due = reply.next_due.map(|due| replied_at + due);
        let tick_is_due = reply.next_tick.is_some_and(|tick| tick.is_zero());
        queue.ticks.record_next_tick(reply.next_tick.map(|tick| replied_at + tick), tick_is_due);
        queue.claims.record_claimed(reply.jobs.len() == max, reply.has_more, next_due);
        if !queue.suspects.is_empty() {
            queue.claims.request_claim();
        }
        for held in reply.jobs {
            self.attempts.start_or_release(self.phase, index, &mut self.queues[index], held, reply.now);
        }
    }

    /// Accepts a job that a push delivered to this node.
    fn add_delivered(&mut self, held: HeldJob) {
        if let Some(queue) = self.queues.iter_mut().find(|queue| queue.name() == held.job.queue) {
            queue.count_check.record_changes(1);
            queue.claims.record_delivery();
            metrics::record_claimed(queue.name(), 1);
            let lateness = self.store.now().duration_since(held.due).unwrap_or_default();
            metrics::lateness_histogram(queue.name()).record(lateness.as_secs_f64());
            queue.deliveries.add(held);
        }
    }

    /// Starts delivered jobs, or releases them if there is no free slot.
    fn start_delivered(&mut self) {
        for index in 0..self.queues.len() {
            for held in self.queues[index].deliveries.take_all() {
                self.start_delivered_job(index, held);
            }
        }
    }

    fn start_delivered_job(&mut self, index: usize, held: HeldJob) {
        let queue = &self.queues[index];
        if queue.deliveries.may_be_duplicate(&held) && self.attempts.is_known_claim(index, queue, &held) {
            return;
        }
        let has_room = self.free_slots() > 0 && queue.has_room() && self.phase != Phase::Quiet;
        // A resync in flight may already list the job, and slots reserved by a claim are free if it finds nothing.
        let must_wait = queue.claims.is_resyncing() || (queue.claims.has_in_flight() && !has_room);
        let queue = &mut self.queues[index];
        if must_wait {
            return queue.deliveries.add(held);
        }
        queue.deliveries.record_fence(held.fence);
        match has_room {
            true => self.attempts.start_or_release(self.phase, index, queue, held, self.store.now()),
            false => queue.outcomes.release(held, Duration::ZERO, "delivered to this node without a free slot"),
        }
    }

    // Outcomes.

    /// Collects finished attempts, so that one settle records them and one claim fills their slots.
    ///
    /// New attempts get their first poll. If attempts are usually quick, the others get a moment to finish.
    async fn collect_finished(&mut self) {
        self.take_finished();
        let has_unsent =
            self.queues.iter().any(|queue| queue.outcomes.pending_count() > 0 && !queue.outcomes.has_in_flight());
        let is_quick = self.settle_pace.attempts_are_quick() && has_unsent && !self.attempts.is_empty();
        let unpolled = self.attempts.unpolled_count();
        if !is_quick && unpolled == 0 {
            return;
        }
        let Some(wait) = self.settle_pace.next_wait() else { return };
        let (before, until) = (self.pending_outcomes(), clock::monotonic_now() + wait);
        let can_grow = |this: &Self| (is_quick && !this.attempts.is_empty()) || this.attempts.unpolled_count() > 0;
        while can_grow(self) && self.pending_outcomes() < SETTLE_MAX && clock::monotonic_now() < until {
            tokio::task::yield_now().await;
            self.take_finished();
        }
        let first_polls = unpolled.saturating_sub(self.attempts.unpolled_count());
        self.settle_pace.record_arrivals(self.pending_outcomes() - before + first_polls);
    }

    fn take_finished(&mut self) {
        while let Some((queue_index, outcome)) = self.attempts.try_next_finished() {
            self.finish_attempt(queue_index, outcome);
        }
    }

    fn finish_attempt(&mut self, index: usize, finished: UnsettledOutcome) {
        if let Some(timing) = finished.end.timing {
            self.settle_pace.record_attempt(timing.duration);
        }
        self.queues[index].record_finished();
        self.queues[index].outcomes.add(finished);
        if self.mode == RunMode::Drain {
            // The attempt may have pushed more jobs: only a claim after the last attempt shows that none is left.
            self.queues.iter_mut().for_each(|queue| queue.claims.request_claim());
        }
    }

    /// Returns how many outcomes wait to be sent.
    fn pending_outcomes(&self) -> usize {
        self.queues.iter().map(|queue| queue.outcomes.pending_count()).sum()
    }

    fn flush_outcomes(&mut self, index: usize, now: Instant) {
        let batch = self.queues[index].outcomes.take_batch(now);
        if !batch.is_empty() {
            self.requests.settle(index, batch, now);
        }
    }

    fn handle_settle_error(&mut self, index: usize, batch: Vec<UnsettledOutcome>, error: &Error) {
        let may_be_recorded = matches!(error, Error::Unknown { .. });
        let (now, outcomes) = (clock::monotonic_now(), &mut self.queues[index].outcomes);
        let retry_in = outcomes.return_batch(batch, may_be_recorded, now, self.node.lease);
        self.report_store_failure("settle", error, retry_in);
    }

    // Deadlines and the end of the run.

    /// Returns when the loop must turn even if nothing happens.
    fn next_deadline(&self) -> Option<Instant> {
        let now = clock::monotonic_now();
        let settle_at = self.queues.iter().filter_map(|queue| queue.outcomes.deadline(now)).min();
        let always = [self.phase.deadline(), settle_at, self.next_alive_at].into_iter().flatten();
        if self.phase.is_stopping() {
            return always.min();
        }
        // A quiet worker fires no ticks, so a tick in the past would wake the loop continuously.
        let ticks = self.queues.iter().filter_map(|queue| queue.ticks.next_check_at(now));
        let ticks = ticks.filter(|_| self.phase.is_running());
        always.chain(self.queues.iter().flat_map(|queue| queue.deadlines(now))).chain(ticks).min()
    }

    /// Begins to stop if that has been requested. From then on, no job is claimed or started, regardless of other
    /// events at the same time.
    fn begin_stop_if_requested(&mut self) {
        if !self.phase.is_stopping() && self.stop.is_cancelled() {
            self.phase.stop(clock::monotonic_now(), self.settings.grace);
            self.settings.emit(&Event::Stopping { running: self.attempts.len() });
        }
    }

    /// Ends the grace period: running attempts are aborted and their jobs released, so that other nodes can run them.
    fn end_grace_period(&mut self) {
        self.stop.cancel();
        self.phase.leave(clock::monotonic_now());
        for (queue_index, outcome) in self.attempts.abort_all() {
            self.finish_attempt(queue_index, outcome);
        }
    }

    fn is_finished(&self) -> bool {
        let now = clock::monotonic_now();
        let too_late = matches!(self.phase, Phase::Leaving { leave_by } if leave_by <= now);
        let is_settled = self.attempts.is_empty() && self.queues.iter().all(QueueState::is_settled);
        too_late || (is_settled && (self.phase.is_stopping() || self.is_drained(now)))
    }

    /// Returns whether a draining worker has nothing left to do.
    fn is_drained(&self, now: Instant) -> bool {
        let is_quiet = self.phase == Phase::Quiet;
        // Only a node that has been connected for a whole lease may take jobs back: until then, wait for those.
        let may_take_back =
            self.has_suspects && !is_quiet && now < self.joined_at + self.node.lease + DRAIN_TAKE_BACK_WAIT;
        let is_drained = |queue: &QueueState| !queue.claims.wants_resync() && (is_quiet || queue.is_drained(now));
        self.mode == RunMode::Drain && !may_take_back && self.queues.iter().all(is_drained)
    }
}

impl Drop for WorkerLoop {
    /// A dropped worker leaves at once, so that other nodes need not wait for its lease to expire.
    fn drop(&mut self) {
        if let (false, Ok(runtime)) = (self.has_left, tokio::runtime::Handle::try_current()) {
            let (store, node) = (self.store.clone(), self.node.id);
            runtime.spawn(async move { store.leave(node).await });
        }
    }
}

fn record_claim_metrics(queue: &mut QueueState, reply: &ClaimReply) {
    queue.count_check.record_changes(reply.jobs.len() as u64);
    metrics::record_claimed(queue.name(), reply.jobs.len());
    metrics::record_taken_back(queue.name(), reply.taken_back);
    if !reply.jobs.is_empty() {
        let lateness = metrics::lateness_histogram(queue.name());
        for held in &reply.jobs {
            lateness.record(reply.now.duration_since(held.due).unwrap_or_default().as_secs_f64());
        }
    }
}

/// Returns the capabilities that this worker publishes.
fn build_profile(settings: &WorkerSettings, queues: &[QueueState]) -> NodeProfile {
    NodeProfile {
        kinds: settings.handlers.kinds().filter(|kinds| kinds.len() <= NODE_KINDS_MAX).map(|kinds| kinds.to_vec()),
        slots: Some(settings.concurrency as u64),
        limits: queues.iter().map(|queue| (queue.name().to_owned(), queue.limit() as u64)).collect(),
        quiet: false,
    }
}
