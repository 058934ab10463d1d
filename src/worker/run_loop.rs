//! The run loop of a worker, from joining to leaving.
//!
//! One turn of the loop starts delivered jobs, collects finished attempts, sends requests to the store and waits for
//! the next event: a reply, a finished attempt, a wake, a heartbeat, a command or a deadline. The loop continues while
//! requests are in flight, and sleeps only if there is nothing to send. Store errors never end it.
//!
//! The loop connects its parts. [`Phase`] decides whether the worker claims, [`WorkerQueues`] which requests to send, and
//! [`Attempts`] which jobs to start.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::error::Result;
use crate::node::{Node, NodeId};
use crate::peers::{NodeCommand, Peers};
use crate::store::{ClaimReply, HeartbeatReply, JobStore, Store, Wake};
use crate::worker::WorkerSettings;
use crate::worker::attempts::Attempts;
use crate::worker::claim_state::ClaimPurpose;
use crate::worker::claim_state::IDLE_RANK_STAGGER;
use crate::worker::deliveries::DeliveredJob;
use crate::worker::delivery::start_delivered;
use crate::worker::event::{Event, RunSummary};
use crate::worker::finished_collector::FinishedCollector;
use crate::worker::heartbeat::HeartbeatThread;
use crate::worker::lease_history::is_recent;
use crate::worker::loop_event::{LoopEvent, LoopInputs};
use crate::worker::loop_host::LoopHost;
use crate::worker::phase::{FINAL_SETTLE_TIMEOUT, Phase};
use crate::worker::progress_sender;
use crate::worker::prune_schedule::{FINAL_PRUNE_TIMEOUT, prune_queues};
use crate::worker::quarantine::AloneReply;
use crate::worker::queue_state::QueueState;
use crate::worker::queues::WorkerQueues;
use crate::worker::requests::{StoreReply, StoreRequests};
use crate::worker::take_back_wait::TakeBackWait;
use crate::worker::timer::Timer;

/// How long a starting worker waits until other nodes can send it commands.
const PEERS_READY_TIMEOUT: Duration = Duration::from_millis(500);
/// Maximum queued commands for the loop; further senders get a busy error.
const COMMANDS_MAX: usize = 64;

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
    stop_now: CancellationToken,
    store: Arc<dyn Store>,
    node: Node,
    peers: Arc<Peers>,
    /// Lets the heartbeat thread drive the loop while a handler blocks its thread.
    host: Weak<LoopHost>,
    /// The kinds with a handler; `None` if any kind can run.
    kinds: Option<Arc<[String]>>,
    queues: WorkerQueues,
    attempts: Attempts,
    collector: FinishedCollector,
    take_back_wait: TakeBackWait,
    /// When to emit the next [`Event::Alive`], if an interval is set.
    next_alive_at: Option<Instant>,
    /// The node has left the store and holds nothing there.
    has_left: bool,
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
        node.profile = settings.profile(&queues);
        let settings = Arc::new(settings);
        let (store, kinds) = (settings.duly.store.clone(), settings.handlers.kinds());
        let requests = StoreRequests::new(store.clone(), node.id, kinds.clone());
        WorkerLoop {
            attempts: Attempts::new(settings.clone(), mode, stop.clone()),
            queues: WorkerQueues::new(settings.clone(), queues, requests),
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
            collector: FinishedCollector::new(mode),
            take_back_wait: TakeBackWait::new(),
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
            self.record_turn(&inputs.heartbeats);
            self.begin_stop_if_requested();
            self.start_delivered();
            if self.queues.claim_ahead(self.phase, self.attempts.claim_limit(), self.attempts.unpolled_count()) {
                self.handle_ready_replies();
            }
            self.collector.collect(&mut self.queues, &mut self.attempts).await;
            if inputs.crashed.is_cancelled() {
                break;
            }
            self.begin_stop_if_requested();
            // Delivered jobs must be known before requests are sent and before the loop ends.
            self.read_wakes(&mut inputs);
            // Jobs delivered without a free slot are released in the same batch.
            self.start_delivered();
            self.handle_deadlines();
            self.attempts.run_quarantine(self.phase, &mut self.queues, self.store.now());
            self.queues.send_requests(self.phase, self.attempts.claim_limit());
            if self.is_finished() {
                break;
            }
            inputs.timer.set(self.next_deadline());
            match inputs.next_event(&mut self.queues, &mut self.attempts, self.phase).await {
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
            process_changes: self.attempts.process_changes(),
            crashed: self.settings.crash.as_ref().map(|crash| crash.crashed.clone()).unwrap_or_default(),
            stop: self.stop.clone(),
            stop_now: self.stop_now.clone(),
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
        let deadline = match self.phase {
            Phase::Leaving { leave_by } => leave_by,
            _ => clock::monotonic_now() + FINAL_SETTLE_TIMEOUT,
        };
        let _ = tokio::time::timeout_at(deadline, inputs.shut_down()).await;
        let left = tokio::time::timeout_at(deadline, self.store.leave(self.node.id)).await;
        self.has_left = matches!(left, Ok(Ok(())));
        if self.has_left && !crashed {
            self.prune_finally().await;
        }
        let _ = tokio::time::timeout_at(deadline, self.settings.duly.kind_stats.flush(&*self.store)).await;
        let unrecorded = self.queues.iter().map(|queue| queue.unrecorded_outcomes() as u64).sum();
        Ok(self.attempts.take_summary(unrecorded, crashed))
    }

    /// Prunes each queue once more, unless the grace period is over: a worker that is started often and drains its
    /// queues may never live until its first prune.
    async fn prune_finally(&mut self) {
        let timeout = clock::monotonic_now() + FINAL_PRUNE_TIMEOUT;
        let until = match self.phase {
            Phase::Leaving { .. } => return,
            Phase::Stopping { grace_until } => timeout.min(grace_until),
            Phase::Running | Phase::Quiet | Phase::Blocked => timeout,
        };
        let names = self.queues.iter().map(|queue| queue.name().to_owned()).collect();
        let prune = prune_queues(self.store.clone(), names, self.settings.keep_done_max);
        let _ = tokio::time::timeout_at(until, prune).await;
    }

    /// Tells the heartbeat thread that the loop turns, and learns from it whether a handler blocks the runtime.
    ///
    /// A blocked worker claims nothing and keeps its lease. Attempts past their timeout end here, because the runtime
    /// cannot end them.
    fn record_turn(&mut self, heartbeats: &HeartbeatThread) {
        self.queues.report_running();
        let is_blocked = self.host.upgrade().is_some_and(|host| host.is_rescued());
        if self.phase.set_blocked(is_blocked) {
            self.queues.check_all();
        }
        if is_blocked {
            for (queue_index, ended) in self.attempts.end_blocked() {
                self.collector.add(&mut self.queues, queue_index, ended);
            }
        }
        heartbeats.record_loop_turn(!self.phase.is_running());
    }

    fn handle_event(&mut self, event: LoopEvent, inputs: &LoopInputs) {
        match event {
            LoopEvent::Replied(reply) => {
                self.handle_store_reply(reply);
                self.handle_ready_replies();
            }
            LoopEvent::Finished(queue_index, finished) => self.collector.add(&mut self.queues, queue_index, finished),
            LoopEvent::Woken(wake) => self.handle_wake(wake, &inputs.heartbeats),
            LoopEvent::Heartbeat(Some(reply)) => self.handle_heartbeat_reply(&reply),
            LoopEvent::Heartbeat(None) => self.queues.check_all(),
            LoopEvent::Command(command) => self.handle_command(command),
            LoopEvent::StopNowRequested => self.end_grace_period(),
            // The next turn acts on these.
            LoopEvent::StopRequested | LoopEvent::DeadlinePassed | LoopEvent::ProcessChanged | LoopEvent::Crashed => {}
        }
    }

    fn handle_ready_replies(&mut self) {
        while let Some(reply) = self.queues.try_next_reply() {
            self.handle_store_reply(reply);
        }
    }

    fn handle_store_reply(&mut self, reply: StoreReply) {
        self.begin_stop_if_requested();
        match reply {
            StoreReply::Claimed { queue_index, purpose, sent, reply } => {
                self.queues[queue_index].record_claim_reply(purpose);
                match reply {
                    Ok(reply) => self.handle_claim_reply(queue_index, purpose, sent, reply),
                    Err(error) => self.queues.handle_claim_error(queue_index, purpose, &error),
                }
            }
            StoreReply::Settled { queue_index, batch, sent, lost: Ok(lost) } => {
                self.collector.record_settle(clock::monotonic_now() - sent);
                self.attempts.handle_settle_reply(&mut self.queues[queue_index], batch, &lost, self.node.lease);
            }
            StoreReply::Settled { queue_index, batch, lost: Err(error), .. } => {
                self.queues.handle_settle_error(queue_index, batch, &error);
            }
            StoreReply::Pruned { queue_index, deleted } => self.queues.handle_pruned(queue_index, deleted),
            StoreReply::AloneSet { queue_index, claim, alone, sent, is_held } => {
                if let Err(error) = &is_held {
                    tracing::warn!(%error, "the store could not note that a job runs alone; it will be asked again");
                }
                // After a pause, another node may have taken the job since the store replied.
                let (queue, now) = (&self.queues[queue_index], clock::monotonic_now());
                let is_held = is_held.ok().filter(|_| queue.has_held_since(sent, now, self.node.lease));
                let reply = AloneReply { claim, alone, is_held };
                self.attempts.handle_alone_reply(self.phase, &mut self.queues, reply, self.store.now());
            }
            StoreReply::TicksFired { queue_index, report } => self.queues.handle_tick_report(queue_index, report),
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
            Wake::Queue(name) => self.queues.check(&name),
            Wake::Heartbeat => heartbeats.send_now(),
            Wake::Job(held) => {
                if let Some(queue) = self.queues.find(&held.job.queue) {
                    let now = clock::monotonic_now();
                    let next_heartbeat = now + self.node.heartbeat_interval();
                    queue.add_delivered(DeliveredJob { held: *held, received: now }, self.store.now(), next_heartbeat);
                }
            }
            Wake::Resync(name) => {
                self.queues.check(&name);
                if let Some(queue) = self.queues.find(&name) {
                    queue.request_resync();
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
        reply.cancelled.iter().for_each(|id| _ = self.attempts.cancel_job(*id));
        // Wakes of an unreachable queue may be lost too.
        reply.queues_to_check.iter().chain(&reply.unreachable).for_each(|name| self.queues.check(name));
        let ours = reply.suspects.iter().filter(|(_, name)| self.queues.find(name).is_some());
        self.take_back_wait.set_suspects(ours.map(|(node, _)| *node));
        let (now, lease) = (clock::monotonic_now(), self.node.lease);
        for (index, queue) in self.queues.iter_mut().enumerate() {
            queue.handle_heartbeat(reply, self.attempts.waiting_suspects(index), now, lease);
        }
    }

    /// Executes a command from another node. Replies are dropped if the caller is gone.
    fn handle_command(&mut self, command: NodeCommand) {
        match command {
            NodeCommand::ListJobs(reply) => drop(reply.send(self.attempts.snapshot())),
            NodeCommand::Cancel(id, reply) => drop(reply.send(self.attempts.cancel_job(id))),
            NodeCommand::SetQuiet(quiet, reply) => {
                self.phase.set_quiet(quiet);
                self.queues.check_all();
                let _ = reply.send(());
            }
            NodeCommand::Stop => self.stop.cancel(),
        }
    }

    fn handle_claim_reply(&mut self, index: usize, purpose: ClaimPurpose, sent: Instant, reply: ClaimReply) {
        match purpose {
            ClaimPurpose::TakeJobs(max, suspect) => self.start_claimed(index, max, suspect, sent, reply),
            ClaimPurpose::LeaveIdleList => self.queues[index].record_reply_without_claim(),
            ClaimPurpose::Resync => {
                self.queues[index].record_reply_without_claim();
                if !is_recent(sent, clock::monotonic_now(), self.node.lease) {
                    return self.queues[index].request_resync();
                }
                self.attempts.reconcile_held(self.phase, index, &mut self.queues[index], sent, reply);
            }
        }
    }

    fn start_claimed(&mut self, index: usize, max: usize, suspect: Option<NodeId>, sent: Instant, reply: ClaimReply) {
        if let Some(suspect) = suspect.filter(|_| reply.taken_back > 0) {
            if !reply.suspect_has_more {
                self.take_back_wait.remove(suspect);
            }
            self.settings.emit(&Event::TakenBack { node: suspect, jobs: reply.taken_back });
        }
        // Delays in the reply count from the store's time, which lies between request and reply.
        let (now, store_now) = (clock::monotonic_now(), reply.now);
        let age = self.settings.duly.options.clock.now().duration_since(store_now).unwrap_or_default();
        let replied_at = now - age.min(now - sent) + IDLE_RANK_STAGGER * reply.idle_rank;
        for held in self.queues[index].apply_claim_reply(max, suspect, reply, sent, replied_at, self.node.lease) {
            self.attempts.start_or_release(self.phase, index, &mut self.queues[index], held, store_now);
        }
    }

    /// Starts delivered jobs, or releases them if there is no free slot.
    fn start_delivered(&mut self) {
        start_delivered(self.phase, &mut self.queues, &mut self.attempts, || self.store.now());
    }

    // Deadlines and the end of the run.

    /// Acts on deadlines that have passed.
    fn handle_deadlines(&mut self) {
        let now = clock::monotonic_now();
        if let Some(interval) = self.settings.alive_interval.filter(|_| self.next_alive_at.is_none_or(|at| at <= now)) {
            self.next_alive_at = Some(now + interval);
            self.settings.emit(&Event::Alive);
        }
        self.queues.iter_mut().for_each(|queue| queue.handle_deadlines(now));
        if self.phase.is_grace_over(now) {
            self.end_grace_period();
        }
    }

    /// Returns when the loop must turn even if nothing happens.
    fn next_deadline(&self) -> Option<Instant> {
        let queues = self.queues.next_deadline(self.phase, clock::monotonic_now());
        let quarantine = self.attempts.quarantine_deadline();
        [queues, quarantine, self.phase.deadline(), self.next_alive_at].into_iter().flatten().min()
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
        for (queue_index, aborted) in self.attempts.abort_all() {
            self.collector.add(&mut self.queues, queue_index, aborted);
        }
    }

    fn is_finished(&self) -> bool {
        let now = clock::monotonic_now();
        let too_late = matches!(self.phase, Phase::Leaving { leave_by } if leave_by <= now);
        let is_settled = self.attempts.is_empty() && self.queues.iter().all(QueueState::is_settled);
        // After a claim with a lost reply, jobs may be held that this worker does not know: they are released first.
        let knows_held_jobs = !self.queues.iter().any(|queue| queue.wants_resync());
        let is_done =
            self.phase.is_leaving() || (knows_held_jobs && (self.phase.is_stopping() || self.is_drained(now)));
        too_late || (is_settled && is_done)
    }

    /// Returns whether a draining worker has nothing left to do.
    fn is_drained(&self, now: Instant) -> bool {
        let is_quiet = self.phase == Phase::Quiet;
        let may_take_back = !is_quiet && self.take_back_wait.is_pending(now, self.node.lease);
        let is_drained = is_quiet || self.queues.iter().all(|queue| queue.is_drained(now));
        self.mode == RunMode::Drain && !may_take_back && is_drained
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
