//! The requests of the run loop to the store, and the handling of their replies.

use std::collections::HashSet;
use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::clock;
use crate::error::{Error, Result};
use crate::job::{Fence, HeldJob, JobId, Outcome};
use crate::metrics;
use crate::node::NodeId;
use crate::store::{CLAIM_MAX, Claim, ClaimReply, PRUNE_MAX, SETTLE_MAX};
use crate::worker::attempt::{CRASH_SUSPECT_MIN, QUARANTINE_DELAY_MAX, QUARANTINE_DELAY_MIN};
use crate::worker::cron_ticks::TickReport;
use crate::worker::event::Event;
use crate::worker::in_flight::FinishedAttempt;
use crate::worker::queue_state::{CLAIM_AHEAD_MIN, divide_slots};
use crate::worker::run_loop::WorkerLoop;

/// Interval between prunes of finished jobs past their keep time.
const PRUNE_INTERVAL: Duration = Duration::from_secs(60);
/// Stagger between idle nodes that wait for the same due time.
const IDLE_RANK_STAGGER: Duration = Duration::from_millis(2);
/// The first delay after a store failure; doubles up to a third of the lease.
const BACKOFF_MIN: Duration = Duration::from_millis(50);
/// Maximum unsettled outcomes; beyond that no job is claimed.
const UNSETTLED_MAX: usize = 10 * SETTLE_MAX;

/// A reply of the store.
pub(super) enum StoreReply {
    Claimed(usize, ClaimPurpose, Instant, Result<ClaimReply>),
    Settled(usize, Vec<FinishedAttempt>, Instant, Result<Vec<JobId>>),
    Pruned(usize, Result<usize>),
    TicksFired(usize, Result<TickReport>),
}

/// The purpose of a claim.
#[derive(Clone, Copy)]
pub(super) enum ClaimPurpose {
    /// Claims this many jobs, including those of a node that may be dead.
    TakeJobs(usize, Option<NodeId>),
    /// Lists all jobs this node holds: the reply to a claim was lost, or the counts differ.
    Resync,
    /// Claims nothing: this node has no free slot, and a push should wake another one.
    LeaveIdleList,
}

impl ClaimPurpose {
    /// Returns the number of slots that the reply may fill.
    fn reserved_slots(self) -> usize {
        if let ClaimPurpose::TakeJobs(max, _) = self { max } else { 0 }
    }
}

impl WorkerLoop {
    /// Sends all requests that can be sent now.
    pub(super) fn send_requests(&mut self) {
        let now = clock::monotonic_now();
        self.handle_deadlines(now);
        let stopping = self.grace_until.is_some();
        for index in 0..self.queues.len() {
            let queue = &self.queues[index];
            match queue.needs_resync && queue.can_claim(now) && !stopping {
                // The list of held jobs is only exact while no outcome is in flight.
                true if !queue.outcomes.has_in_flight() => self.send_claim(index, ClaimPurpose::Resync),
                false if !queue.resync_in_flight => self.flush_outcomes(index, now),
                _ => {}
            }
        }
        if !stopping {
            self.prune_queues(now);
            self.fire_ticks(now);
            self.claim_jobs(now);
        }
        self.leave_idle_lists(now);
    }

    /// Sends large claims before the jobs of the previous claim run, so that the store works in the meantime.
    pub(super) fn claim_ahead(&mut self) {
        let now = clock::monotonic_now();
        let has_many = self.in_flight.unpolled_count() > 0
            && self.queues.iter().any(|queue| queue.jobs_to_claim(now) >= CLAIM_AHEAD_MIN);
        if has_many && self.grace_until.is_none() {
            self.claim_jobs(now);
            self.handle_ready_replies();
        }
    }

    /// Sends new requests and handles all replies that have arrived: those of one commit arrive together.
    pub(super) fn handle_ready_replies(&mut self) {
        while let Some(Some(reply)) = self.requests.next().now_or_never() {
            self.handle_store_reply(reply);
        }
    }

    pub(super) fn free_slots(&self) -> usize {
        let busy: usize = self.queues.iter().map(|queue| queue.running + queue.reserved_slots).sum();
        self.settings.concurrency.saturating_sub(busy)
    }

    fn claim_jobs(&mut self, now: Instant) {
        if self.pending_outcomes() >= UNSETTLED_MAX || self.quiet {
            return;
        }
        let wanted: Vec<_> = self.queues.iter().map(|queue| (queue.jobs_to_claim(now), queue.weight)).collect();
        let delivered: usize = self.queues.iter().map(|queue| queue.delivered.len()).sum();
        for (index, max) in divide_slots(&wanted, self.free_slots().saturating_sub(delivered), fastrand::f64()) {
            let suspect = self.queues[index].suspects.pop();
            self.send_claim(
                index,
                ClaimPurpose::TakeJobs(max.min(CLAIM_MAX).min(self.queues[index].claim_size_max()), suspect),
            );
        }
    }

    /// Removes this node from idle lists if it has no free slot, so that pushes wake other nodes.
    fn leave_idle_lists(&mut self, now: Instant) {
        // Reserved slots do not count: an empty reply frees them at once.
        let running: usize = self.queues.iter().map(|queue| queue.running).sum();
        let none_free = self.grace_until.is_some() || self.quiet || running >= self.settings.concurrency;
        for index in 0..self.queues.len() {
            let queue = &self.queues[index];
            if queue.on_idle_list && queue.can_claim(now) && (none_free || queue.running >= queue.limit) {
                self.send_claim(index, ClaimPurpose::LeaveIdleList);
            }
        }
    }

    fn send_claim(&mut self, index: usize, purpose: ClaimPurpose) {
        let queue = &mut self.queues[index];
        let max = purpose.reserved_slots();
        let suspect = if let ClaimPurpose::TakeJobs(_, suspect) = purpose { suspect } else { None };
        let resync = matches!(purpose, ClaimPurpose::Resync);
        // A wake that arrives while the claim is in flight must not be taken for one that the claim has covered.
        queue.maybe_ready = false;
        // A resync does not remove the node from the idle list.
        queue.on_idle_list &= resync;
        queue.resync_in_flight |= resync;
        queue.check_at = None;
        queue.claims_in_flight += 1;
        queue.reserved_slots += max;
        let claim = Claim { queue: queue.name.clone(), max, resync, suspect, kinds: self.kinds.clone() };
        let (store, node) = (self.store.clone(), self.node.id);
        let sent = clock::monotonic_now();
        let request = async move { store.claim(node, claim).await };
        // A large reply is decoded in a separate task, not in the loop.
        let is_large = max >= CLAIM_AHEAD_MIN;
        self.requests.push(Box::pin(async move {
            let reply = if is_large { spawn_claim(request).await } else { request.await };
            StoreReply::Claimed(index, purpose, sent, reply)
        }));
    }

    fn prune_queues(&mut self, now: Instant) {
        for (index, queue) in self.queues.iter_mut().enumerate() {
            let due = *queue.prune_at.get_or_insert(now + PRUNE_INTERVAL) <= now;
            if !due && queue.done_since_prune < PRUNE_MAX {
                continue;
            }
            queue.done_since_prune = 0;
            queue.prune_at = Some(now + PRUNE_INTERVAL);
            let (store, name, done_max) = (self.store.clone(), queue.name.clone(), self.settings.keep_done_max);
            self.requests.push(Box::pin(async move { StoreReply::Pruned(index, store.prune(&name, done_max).await) }));
        }
    }

    pub(super) fn handle_store_reply(&mut self, reply: StoreReply) {
        self.begin_stop_if_requested();
        match reply {
            StoreReply::Claimed(index, purpose, sent, reply) => {
                let queue = &mut self.queues[index];
                queue.claims_in_flight -= 1;
                queue.reserved_slots -= purpose.reserved_slots();
                queue.resync_in_flight &= !matches!(purpose, ClaimPurpose::Resync);
                match reply {
                    Ok(reply) => self.handle_claim_reply(index, purpose, sent, reply),
                    Err(error) => self.handle_claim_error(index, purpose, &error),
                }
            }
            StoreReply::Settled(index, batch, sent, Ok(lost)) => {
                self.settle_duration_avg = (self.settle_duration_avg * 7 + (clock::monotonic_now() - sent)) / 8;
                self.handle_settle_reply(index, batch, &lost);
            }
            StoreReply::Settled(index, batch, _, Err(error)) => self.handle_settle_error(index, batch, &error),
            // There is more to prune: continue in the next turn.
            StoreReply::Pruned(index, Ok(PRUNE_MAX)) => self.queues[index].done_since_prune = PRUNE_MAX,
            StoreReply::Pruned(_, Ok(_)) => {}
            StoreReply::TicksFired(index, report) => self.handle_tick_report(index, report),
            StoreReply::Pruned(_, Err(error)) => tracing::warn!(%error, "prune failed"),
        }
    }

    fn handle_claim_reply(&mut self, index: usize, purpose: ClaimPurpose, sent: Instant, reply: ClaimReply) {
        let queue = &mut self.queues[index];
        queue.claim_failures = 0;
        queue.claim_not_before = None;
        match purpose {
            ClaimPurpose::TakeJobs(max, suspect) => {
                self.schedule_next_check(index, sent, &reply);
                self.start_claimed(index, max, suspect, reply);
            }
            ClaimPurpose::LeaveIdleList => queue.maybe_ready = true,
            ClaimPurpose::Resync => {
                queue.needs_resync = false;
                queue.maybe_ready = true;
                self.reconcile_held(index, reply);
            }
        }
    }

    /// Schedules the next claim. Delays in the reply count from the store's time, which lies between request and reply.
    fn schedule_next_check(&mut self, index: usize, sent: Instant, reply: &ClaimReply) {
        let now = clock::monotonic_now();
        let age = self.settings.duly.options.clock.now().duration_since(reply.now).unwrap_or_default();
        let replied_at = now - age.min(now - sent);
        let stagger = IDLE_RANK_STAGGER * reply.idle_rank;
        self.queues[index].check_at = reply.next_due.map(|due| replied_at + due + stagger);
        self.queues[index].tick_at = reply.next_tick.map(|tick| replied_at + tick + stagger);
        self.queues[index].tick_due = reply.next_tick.is_some_and(|tick| tick.is_zero());
    }

    fn start_claimed(&mut self, index: usize, max: usize, suspect: Option<NodeId>, reply: ClaimReply) {
        let queue = &mut self.queues[index];
        queue.count_check.record_changes(reply.jobs.len() as u64);
        metrics::record_claimed(&queue.name, reply.jobs.len());
        metrics::record_taken_back(&queue.name, reply.taken_back);
        if !reply.jobs.is_empty() {
            let lateness = metrics::lateness_histogram(&queue.name);
            for held in &reply.jobs {
                lateness.record(reply.now.duration_since(held.due).unwrap_or_default().as_secs_f64());
            }
        }
        if let Some(suspect) = suspect {
            if reply.suspect_has_more {
                queue.suspects.push(suspect);
            }
            if reply.taken_back > 0 {
                self.has_suspects &= reply.suspect_has_more;
                self.settings.emit(&Event::TakenBack { node: suspect, jobs: reply.taken_back });
            }
        }
        // A full reply removes the node from the idle list: it must claim again once it has room.
        queue.last_claim_was_full = reply.jobs.len() == max;
        queue.on_idle_list = !queue.last_claim_was_full && !reply.has_more;
        queue.maybe_ready |= !queue.on_idle_list || !queue.suspects.is_empty();
        for held in reply.jobs {
            self.start_or_release(index, held, reply.now);
        }
    }

    /// Accepts a job that a push delivered to this node.
    pub(super) fn add_delivered(&mut self, held: HeldJob) {
        if let Some(queue) = self.queues.iter_mut().find(|queue| queue.name == held.job.queue) {
            queue.count_check.record_changes(1);
            // The delivery has removed this node from the idle list.
            queue.on_idle_list = false;
            queue.maybe_ready = true;
            metrics::record_claimed(&queue.name, 1);
            let lateness = self.store.now().duration_since(held.due).unwrap_or_default();
            metrics::lateness_histogram(&queue.name).record(lateness.as_secs_f64());
            queue.delivered.push(held);
        }
    }

    /// Starts delivered jobs, or releases them if there is no free slot.
    pub(super) fn start_delivered(&mut self) {
        for index in 0..self.queues.len() {
            for held in std::mem::take(&mut self.queues[index].delivered) {
                self.start_delivered_job(index, held);
            }
        }
    }

    fn start_delivered_job(&mut self, index: usize, held: HeldJob) {
        let queue = &self.queues[index];
        if held.fence <= queue.highest_reported_fence && self.is_known_claim(index, (held.job.id, held.fence)) {
            return;
        }
        let has_room = self.free_slots() > 0 && queue.running + queue.reserved_slots < queue.limit && !self.quiet;
        // A resync in flight may already list the job, and slots reserved by a claim are free if it finds nothing.
        let must_wait = queue.claims_in_flight > 0 && (queue.resync_in_flight || !has_room);
        if must_wait {
            return self.queues[index].delivered.push(held);
        }
        // A connection and its successor may both deliver the same job: only one of the two deliveries counts.
        self.queues[index].highest_reported_fence = held.fence.max(self.queues[index].highest_reported_fence);
        match has_room {
            true => self.start_or_release(index, held, self.store.now()),
            false => self.release_unstarted(index, held, Duration::ZERO, "delivered to this node without a free slot"),
        }
    }

    /// Returns whether this claim is known here: running, finished or settled recently.
    fn is_known_claim(&self, index: usize, key: (JobId, Fence)) -> bool {
        self.queues[index].outcomes.contains(key)
            || self.in_flight.claim_keys(index).contains(&key)
            || self.recent_outcomes.find(key).is_some()
    }

    /// Starts a claimed job, or releases it if it must not run now.
    fn start_or_release(&mut self, index: usize, held: HeldJob, now: std::time::SystemTime) {
        let suspected = (CRASH_SUSPECT_MIN..=self.settings.max_crashes).contains(&held.crashes);
        let suspect_elapsed = if suspected { self.in_flight.crash_suspect_elapsed() } else { None };
        let (after, reason) = match (self.grace_until, suspect_elapsed) {
            (Some(_), _) => (Duration::ZERO, "claimed while the worker was stopping"),
            (None, _) if self.quiet => (Duration::ZERO, "claimed while the worker was quiet"),
            // All jobs that ran during a crash are suspects. They run one by one, so that the next crash
            // identifies the cause.
            (None, Some(elapsed)) => (
                elapsed.clamp(QUARANTINE_DELAY_MIN, QUARANTINE_DELAY_MAX),
                "waits for another job that may crash its process",
            ),
            (None, None) => return self.start_attempt(index, held, now),
        };
        self.release_unstarted(index, held, after, reason);
    }

    fn release_unstarted(&mut self, index: usize, held: HeldJob, after: Duration, reason: &'static str) {
        let released = FinishedAttempt::without_run(index, held, Outcome::release(after));
        self.queues[index].outcomes.add(FinishedAttempt { reason: Some(reason), ..released });
    }

    /// Compares the held jobs listed by the store with our own: starts unknown jobs, cancels attempts that lost theirs.
    fn reconcile_held(&mut self, index: usize, reply: ClaimReply) {
        let key = |held: &HeldJob| (held.job.id, held.fence);
        let theirs: HashSet<_> = reply.jobs.iter().map(key).collect();
        self.queues[index].highest_reported_fence =
            theirs.iter().map(|(_, fence)| *fence).fold(self.queues[index].highest_reported_fence, Fence::max);
        let ours: HashSet<_> = self.in_flight.claim_keys(index).into_iter().collect();
        for job in ours.iter().filter(|job| !theirs.contains(job)) {
            if self.in_flight.cancel_lost_job(*job) {
                self.lost_reported.insert(*job);
                self.settings.emit(&Event::Lost { id: job.0 });
            }
        }
        let waiting: HashSet<_> = self.queues[index].delivered.iter().map(key).collect();
        for held in reply.jobs {
            let is_known = self.queues[index].outcomes.contains(key(&held)) || waiting.contains(&key(&held));
            if is_known || ours.contains(&key(&held)) {
                continue;
            }
            match self.recent_outcomes.find(key(&held)) {
                Some((outcome, result)) => {
                    let finished = FinishedAttempt::without_run(index, held, outcome);
                    self.queues[index].outcomes.add(FinishedAttempt { result, is_resend: true, ..finished });
                }
                None => self.start_or_release(index, held, reply.now),
            }
        }
    }

    fn handle_claim_error(&mut self, index: usize, purpose: ClaimPurpose, error: &Error) {
        let retry_in = self.backoff_delay(self.queues[index].claim_failures);
        let queue = &mut self.queues[index];
        queue.claim_failures = queue.claim_failures.saturating_add(1);
        queue.maybe_ready = true;
        queue.claim_not_before = Some(clock::monotonic_now() + retry_in);
        // The claim may have been applied.
        queue.needs_resync |= matches!(purpose, ClaimPurpose::Resync) || matches!(error, Error::Unknown { .. });
        self.report_store_failure("claim", error, retry_in);
    }

    pub(super) fn report_store_failure(&self, op: &str, error: &Error, retry_in: Duration) {
        tracing::warn!(op, %error, ?retry_in, "request to the store failed");
        self.settings.emit(&Event::StoreFailed { error, retry_in });
    }

    /// Returns a delay that doubles per failure, with full jitter. It stays below a third of the lease, so that a short
    /// outage does not cost the lease.
    pub(super) fn backoff_delay(&self, failures: u32) -> Duration {
        let max = (self.node.lease / 3).max(BACKOFF_MIN);
        let ceiling = BACKOFF_MIN.saturating_mul(1 << failures.min(16)).min(max);
        BACKOFF_MIN / 2 + ceiling.mul_f64(fastrand::f64())
    }
}

/// Runs a claim in a separate task, which is aborted if the caller is dropped.
async fn spawn_claim(claim: impl Future<Output = Result<ClaimReply>> + Send + 'static) -> Result<ClaimReply> {
    let task = AbortOnDropHandle::new(tokio::spawn(claim));
    task.await.unwrap_or_else(|error| Err(Error::Unknown { op: "claim", source: Some(error.into()) }))
}
