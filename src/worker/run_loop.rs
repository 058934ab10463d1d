//! The run loop of a worker, from joining to leaving.
//!
//! The loop sends requests to the store (claim, settle, prune) and continues while they are in flight.
//! It sleeps only if there is nothing to send. Store errors never end it.

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

/// How long a starting worker waits until other nodes can send it commands.
const PEERS_READY_TIMEOUT: Duration = Duration::from_millis(500);
/// Maximum queued commands for the loop; further senders get a busy error.
const COMMANDS_MAX: usize = 64;
/// How long a stopping worker tries to record the last outcomes.
const FINAL_SETTLE_TIMEOUT: Duration = Duration::from_secs(2);
/// Upper bound of the wait for more attempts to finish before the next settle, if attempts are usually quick.
const COLLECT_WAIT_MAX: Duration = Duration::from_micros(300);
/// Lower bound of that wait, even if the store is faster: an extra request costs it as much.
const COLLECT_WAIT_MIN: Duration = Duration::from_micros(100);
const QUICK_ATTEMPT_MAX: Duration = Duration::from_micros(200);
/// Longer grace periods make no difference.
const GRACE_PERIOD_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

/// Spreads the take-back requests of the nodes that survive a dead one.
const TAKE_BACK_JITTER_MAX: Duration = Duration::from_millis(30);

/// How much longer than a lease a draining worker waits for jobs held by dead nodes: one heartbeat that lists them as
/// suspects, and the claim after it.
const DRAIN_TAKE_BACK_WAIT: Duration = Duration::from_secs(3);

/// Whether the loop waits for more work or ends once there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunMode {
    Serve,
    Drain,
}

pub(super) struct WorkerLoop {
    pub(super) settings: WorkerSettings,
    pub(super) mode: RunMode,
    pub(super) stop: CancellationToken,
    /// Ends the grace period at once.
    pub(super) stop_now: CancellationToken,
    pub(super) node: Node,
    pub(super) store: Arc<dyn Store>,
    pub(super) queues: Vec<QueueState>,
    pub(super) in_flight: InFlight,
    /// The kinds with a handler; `None` if any kind can run.
    pub(super) kinds: Option<Arc<[String]>>,
    /// Moving average of attempt durations.
    pub(super) attempt_duration_avg: Duration,
    pub(super) collect_wait: AdaptiveWait,
    pub(super) recent_outcomes: RecentOutcomes,
    /// Shared by all attempts.
    context: Arc<WorkerContext>,
    /// Moving average of settle durations.
    pub(super) settle_duration_avg: Duration,
    pub(super) requests: FuturesUnordered<BoxFuture<'static, StoreReply>>,
    /// End of the grace period; set while stopping.
    pub(super) grace_until: Option<Instant>,
    /// Deadline for leaving even if outcomes are unrecorded; set once the grace period is over.
    pub(super) leave_by: Option<Instant>,
    /// When to emit the next [`Event::Alive`], if an interval is set.
    next_alive_at: Option<Instant>,
    pub(super) summary: RunSummary,
    peers: Arc<Peers>,
    /// Running attempts that lost their job to another node and for which [`Event::Lost`] has been emitted.
    pub(super) lost_reported: HashSet<(JobId, Fence)>,
    /// The last heartbeat listed nodes with an expired lease, and nothing has been taken back since.
    pub(super) has_suspects: bool,
    /// Another node has ordered this worker to stop claiming.
    pub(super) quiet: bool,
    /// When this run began.
    joined_at: Instant,
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
        let mut node = Node::fresh(queues.iter().map(|queue| queue.name.clone()).collect());
        node.id = peers.worker_node_id();
        node.lease = settings.duly.options.lease;
        node.profile = build_profile(&settings, &queues);
        let context = Arc::new(WorkerContext {
            progress: Arc::default(),
            stopping: stop.clone(),
            duly: settings.duly.clone(),
            state: settings.state.clone(),
            crash: settings.crash.clone(),
        });
        WorkerLoop {
            peers,
            lost_reported: HashSet::new(),
            has_suspects: false,
            quiet: false,
            store: settings.duly.store.clone(),
            kinds: settings.handlers.kinds(),
            settings,
            mode,
            stop,
            stop_now,
            node,
            queues,
            in_flight: InFlight::default(),
            attempt_duration_avg: Duration::ZERO,
            collect_wait: AdaptiveWait::default(),
            recent_outcomes: RecentOutcomes::default(),
            context,
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

    /// Joins, runs until the worker is stopped or drained, and leaves.
    pub(super) async fn run(mut self) -> Result<RunSummary> {
        // Peers that see this node should be able to call it, but jobs do not wait long for that.
        let _ = tokio::time::timeout(PEERS_READY_TIMEOUT, self.peers.ensure_announced()).await;
        let first_reply = self.store.heartbeat(&self.node).await?;
        let mut wakes = self.store.subscribe_wakes(self.node.id).await?;
        // A draining worker leaves once it finds nothing, and must not receive a job at that moment.
        if self.mode == RunMode::Serve {
            self.store.accept_deliveries(self.node.id, self.kinds.clone()).await?;
        }
        let mut heartbeats = HeartbeatThread::start(self.store.clone(), self.node.clone())?;
        let timer = Timer::start()?;
        let _progress_sender = progress_sender::start(self.context.progress.clone(), self.store.clone(), self.node.id);
        let crashed = self.settings.crash.as_ref().map(|crash| crash.crashed.clone()).unwrap_or_default();
        let (sender, mut commands) = mpsc::channel(COMMANDS_MAX);
        let _registration = self.peers.register_worker(&self.node, sender);
        self.settings.emit(&Event::Joined { node: self.node.id });
        self.handle_heartbeat_reply(first_reply);
        loop {
            heartbeats.record_loop_turn(self.quiet || self.grace_until.is_some());
            self.begin_stop_if_requested();
            self.start_delivered();
            self.claim_ahead();
            self.collect_finished().await;
            if crashed.is_cancelled() {
                break;
            }
            self.begin_stop_if_requested();
            // Delivered jobs must be known before requests are sent and before the loop ends.
            while let Ok(wake) = wakes.try_recv() {
                self.handle_wake(wake, &heartbeats);
            }
            // Jobs delivered without a free slot are released in the same batch.
            self.start_delivered();
            self.send_requests();
            if self.is_finished() {
                break;
            }
            timer.set(self.next_deadline());
            tokio::select! {
                Some(reply) = self.requests.next(), if !self.requests.is_empty() => {
                    self.handle_store_reply(reply);
                    self.handle_ready_replies();
                }
                finished = self.in_flight.next_finished() => self.finish_attempt(finished),
                Some(wake) = wakes.recv() => self.handle_wake(wake, &heartbeats),
                Some(reply) = heartbeats.replies.recv() => match reply {
                    Some(reply) => self.handle_heartbeat_reply(reply),
                    None => self.check_all_queues(),
                },
                Some(command) = commands.recv() => self.handle_command(command),
                () = timer.expired() => {}
                () = crashed.cancelled() => break,
                () = self.stop.cancelled(), if self.grace_until.is_none() => self.begin_stop_if_requested(),
                () = self.stop_now.cancelled(), if self.leave_by.is_none() => self.end_grace_period(),
            }
        }
        drop(heartbeats);
        self.summary.crashed = crashed.is_cancelled();
        self.summary.unrecorded = self.queues.iter().map(|queue| queue.outcomes.unrecorded_count() as u64).sum();
        // If the store does not reply in time, the remaining jobs are taken back when the lease expires.
        let deadline = self.leave_by.unwrap_or_else(|| clock::monotonic_now() + FINAL_SETTLE_TIMEOUT);
        let left = tokio::time::timeout_at(deadline, self.store.leave(self.node.id)).await;
        self.has_left = matches!(left, Ok(Ok(())));
        let _ = tokio::time::timeout_at(deadline, self.settings.duly.kind_stats.flush(&*self.store)).await;
        Ok(self.summary)
    }

    /// Executes a command from another node. Replies are dropped if the caller is gone.
    fn handle_command(&mut self, command: NodeCommand) {
        match command {
            NodeCommand::ListJobs(reply) => drop(reply.send(self.in_flight.snapshot())),
            NodeCommand::Cancel(id, reply) => drop(reply.send(self.in_flight.cancel_job(id))),
            NodeCommand::SetQuiet(quiet, reply) => {
                self.quiet = quiet;
                self.check_all_queues();
                let _ = reply.send(());
            }
            NodeCommand::Stop => self.stop.cancel(),
        }
    }

    // Attempts.

    pub(super) fn start_attempt(&mut self, queue_index: usize, held: HeldJob, now: SystemTime) {
        let settings = &self.settings;
        let deadline = settings.duly.options.clock.now() + held.job.timeout;
        let attempt = Attempt {
            retry: *settings.retries.get(&held.job.kind).unwrap_or(&settings.default_retry),
            max_crashes: settings.max_crashes,
            job_age: now.duration_since(held.job.pushed).unwrap_or_default(),
            ctx: Ctx { attempt_state: Arc::new(AttemptState::new(held, deadline)), worker: self.context.clone() },
        };
        let held = &attempt.ctx.attempt_state.held;
        let lateness = now.duration_since(held.due).unwrap_or_default();
        if attempt.check_crash_limit().is_none() {
            settings.emit(&Event::Started { held, lateness });
        }
        self.queues[queue_index].running += 1;
        self.in_flight.start(queue_index, lateness, attempt, settings.handlers.clone());
    }

    /// Collects finished attempts, so that one settle records them and one claim fills their slots.
    ///
    /// New attempts get their first poll. If attempts are usually quick, the others get a moment to finish, since a
    /// request for a few would make the rest wait for a whole commit. [`AdaptiveWait`] skips this if it does not pay
    /// off.
    async fn collect_finished(&mut self) {
        while let Some(finished) = self.in_flight.try_next_finished() {
            self.finish_attempt(finished);
        }
        let has_unsent =
            self.queues.iter().any(|queue| queue.outcomes.pending_count() > 0 && !queue.outcomes.has_in_flight());
        let is_quick = self.attempt_duration_avg < QUICK_ATTEMPT_MAX && has_unsent && !self.in_flight.is_empty();
        let unpolled = self.in_flight.unpolled_count();
        if !(is_quick || unpolled > 0) || !self.collect_wait.should_wait() {
            return;
        }
        let (before, until) = (
            self.pending_outcomes(),
            clock::monotonic_now() + (self.settle_duration_avg / 3).clamp(COLLECT_WAIT_MIN, COLLECT_WAIT_MAX),
        );
        let can_grow = |this: &Self| (is_quick && !this.in_flight.is_empty()) || this.in_flight.unpolled_count() > 0;
        while can_grow(self) && self.pending_outcomes() < SETTLE_MAX && clock::monotonic_now() < until {
            tokio::task::yield_now().await;
            while let Some(finished) = self.in_flight.try_next_finished() {
                self.finish_attempt(finished);
            }
        }
        self.collect_wait.record_arrivals(
            self.pending_outcomes() - before + unpolled.saturating_sub(self.in_flight.unpolled_count()),
        );
    }

    fn finish_attempt(&mut self, mut finished: FinishedAttempt) {
        (finished.progress_update, finished.result) = self.context.progress.finish_attempt(&finished.held);
        let queue = &mut self.queues[finished.queue_index];
        queue.running -= 1;
        queue.count_check.record_changes(1);
        self.attempt_duration_avg = (self.attempt_duration_avg * 7 + finished.duration) / 8;
        queue.outcomes.add(finished);
        if self.mode == RunMode::Drain {
            // The attempt may have pushed more jobs: only a claim after the last attempt shows that none is left.
            self.queues.iter_mut().for_each(|queue| queue.maybe_ready = true);
        }
    }

    // Wakes, heartbeats and deadlines.

    fn handle_wake(&mut self, wake: Wake, heartbeats: &HeartbeatThread) {
        match wake {
            Wake::Queue(name) => self.check_queue_by_name(&name),
            Wake::Heartbeat => heartbeats.send_now(),
            Wake::Job(held) => self.add_delivered(*held),
            Wake::Resync(name) => {
                self.check_queue_by_name(&name);
                self.queues.iter_mut().filter(|queue| queue.name == name).for_each(|queue| queue.needs_resync = true);
            }
        }
    }

    fn check_queue_by_name(&mut self, name: &str) {
        if let Some(index) = self.queues.iter().position(|queue| queue.name == name) {
            self.check_queue(index);
        }
    }

    /// Marks every queue for a claim: once a second, in case a wake was lost.
    fn check_all_queues(&mut self) {
        (0..self.queues.len()).for_each(|index| self.check_queue(index));
    }

    /// Marks a queue for a claim.
    ///
    /// Claim replies also report due ticks, but without a free slot no claim is sent. Then the ticks are checked
    /// separately, or a new cron rule would wait until a job finishes.
    fn check_queue(&mut self, index: usize) {
        let none_free = self.free_slots() == 0;
        let queue = &mut self.queues[index];
        queue.maybe_ready = true;
        if none_free || queue.running >= queue.limit {
            queue.tick_at = Some(clock::monotonic_now());
        }
    }

    /// Handles the reply to a heartbeat: checks queues, notes suspect nodes and compares the counts of held jobs.
    fn handle_heartbeat_reply(&mut self, reply: HeartbeatReply) {
        self.quiet |= reply.quiet;
        if reply.stop {
            self.stop.cancel();
        }
        // Wakes of an unreachable queue may be lost too.
        reply.queues_to_check.iter().chain(&reply.unreachable).for_each(|name| self.check_queue_by_name(name));
        self.has_suspects = reply.suspects.iter().any(|(_, name)| self.queues.iter().any(|queue| queue.name == *name));
        let now = clock::monotonic_now();
        for queue in &mut self.queues {
            if reply.unreachable.contains(&queue.name) {
                continue;
            }
            queue.record_heartbeat(now, self.node.lease);
            let theirs = reply.held.iter().find(|(name, _)| *name == queue.name).map_or(0, |(_, held)| *held);
            let ours = (queue.running + queue.outcomes.pending_count() + queue.delivered.len()) as u64;
            let at_rest = !queue.outcomes.has_in_flight() && queue.claims_in_flight == 0;
            queue.needs_resync |= queue.count_check.is_out_of_sync(theirs, ours, at_rest);
        }
        for queue in &mut self.queues {
            let is_here = |name: &String| *name == queue.name;
            let expiring = reply.expiring.iter().filter(|(_, name, _)| is_here(name));
            queue.expiring = expiring
                .map(|(node, _, after)| (*node, now + *after + TAKE_BACK_JITTER_MAX.mul_f64(fastrand::f64())))
                .collect();
            let suspects: Vec<_> =
                reply.suspects.iter().filter(|(_, name)| is_here(name)).map(|(node, _)| *node).collect();
            suspects.into_iter().for_each(|node| queue.add_suspect(node));
        }
    }

    pub(super) fn handle_deadlines(&mut self, now: Instant) {
        if let Some(interval) = self.settings.alive_interval.filter(|_| self.next_alive_at.is_none_or(|at| at <= now)) {
            self.next_alive_at = Some(now + interval);
            self.settings.emit(&Event::Alive);
        }
        for queue in &mut self.queues {
            if queue.check_at.is_some_and(|at| at <= now) {
                queue.check_at = None;
                queue.maybe_ready = true;
            }
            queue.suspect_expired(now);
        }
        if self.leave_by.is_none() && self.grace_until.is_some_and(|at| at <= now) {
            self.end_grace_period();
        }
    }

    /// Returns when the loop must turn even if nothing happens.
    fn next_deadline(&self) -> Option<Instant> {
        let now = clock::monotonic_now();
        // Deadlines in the past have been handled, or wait for something else.
        let later = |at: &Instant| *at > now;
        let settle_at = self.queues.iter().filter_map(|queue| queue.outcomes.not_before.filter(later)).min();
        if self.grace_until.is_some() {
            return [self.leave_by.or(self.grace_until), settle_at, self.next_alive_at].into_iter().flatten().min();
        }
        // A quiet worker fires no ticks, so a tick in the past would wake the loop continuously.
        let fire_at = |queue: &QueueState| queue.next_fire_at(now).filter(|_| !self.quiet);
        let deadlines = self
            .queues
            .iter()
            .flat_map(|queue| [queue.check_at, queue.claim_not_before.filter(later), queue.prune_at, fire_at(queue)]);
        let expiring = self.queues.iter().flat_map(|queue| queue.expiring.iter().map(|(_, at)| Some(*at)));
        deadlines.chain(expiring).chain([settle_at, self.next_alive_at]).flatten().min()
    }

    /// Begins to stop if that has been requested. From then on, no job is claimed or started, regardless of other
    /// events at the same time.
    pub(super) fn begin_stop_if_requested(&mut self) {
        if self.grace_until.is_some() || !self.stop.is_cancelled() {
            return;
        }
        self.grace_until = Some(clock::monotonic_now() + self.settings.grace.min(GRACE_PERIOD_MAX));
        self.settings.emit(&Event::Stopping { running: self.in_flight.len() });
    }

    /// Ends the grace period: running attempts are aborted and their jobs released, so that other nodes can run them.
    fn end_grace_period(&mut self) {
        self.stop.cancel();
        self.grace_until.get_or_insert(clock::monotonic_now());
        self.leave_by = Some(clock::monotonic_now() + FINAL_SETTLE_TIMEOUT);
        for finished in self.in_flight.abort_all() {
            self.finish_attempt(finished);
        }
    }

    fn is_finished(&self) -> bool {
        let has_requests = self.queues.iter().any(|queue| queue.claims_in_flight > 0 || queue.fire_in_flight);
        let idle = self.in_flight.is_empty()
            && self.queues.iter().all(|queue| queue.outcomes.unrecorded_count() == 0)
            && !has_requests;
        let stopped = self.grace_until.is_some();
        // Only a node that has been connected for a whole lease may take jobs back: until then, wait for those.
        let may_take_back = self.has_suspects
            && !self.quiet
            && clock::monotonic_now() < self.joined_at + self.node.lease + DRAIN_TAKE_BACK_WAIT;
        let drained = self.mode == RunMode::Drain
            && !may_take_back
            && self.queues.iter().all(|queue| {
                !queue.needs_resync
                    && (self.quiet
                        || (!queue.maybe_ready
                            && queue.suspects.is_empty()
                            && !queue.can_fire_due_tick(clock::monotonic_now())))
            });
        let too_late = self.leave_by.is_some_and(|at| at <= clock::monotonic_now());
        too_late || (idle && (stopped || drained))
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

/// Returns the capabilities that this worker publishes.
fn build_profile(settings: &WorkerSettings, queues: &[QueueState]) -> NodeProfile {
    NodeProfile {
        kinds: settings.handlers.kinds().filter(|kinds| kinds.len() <= NODE_KINDS_MAX).map(|kinds| kinds.to_vec()),
        slots: Some(settings.concurrency as u64),
        limits: queues.iter().map(|queue| (queue.name.clone(), queue.limit as u64)).collect(),
        quiet: false,
    }
}
