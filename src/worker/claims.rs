//! What the loop asks of the store, and what it makes of the answers.

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

/// How often ended jobs are looked through for those past their time.
const PRUNE_INTERVAL: Duration = Duration::from_secs(60);
/// Of idle nodes that wait for the same moment, each looks so much later than the one before.
const IDLE_RANK_STAGGER: Duration = Duration::from_millis(2);
/// The first wait after the store has failed; doubles up to a third of the lease.
const BACKOFF_MIN: Duration = Duration::from_millis(50);
/// Outcomes that may wait for the store; beyond that no job is claimed.
const UNSETTLED_MAX: usize = 10 * SETTLE_MAX;

/// An answer of the store.
pub(super) enum StoreReply {
    Claimed(usize, ClaimPurpose, Instant, Result<ClaimReply>),
    Settled(usize, Vec<FinishedAttempt>, Instant, Result<Vec<JobId>>),
    Pruned(usize, Result<usize>),
    TicksFired(usize, Result<TickReport>),
}

/// What a claim is for.
#[derive(Clone, Copy)]
pub(super) enum ClaimPurpose {
    /// So many jobs, also those of a node that may be dead.
    TakeJobs(usize, Option<NodeId>),
    /// Everything we hold: the answer to a claim was lost, or the counts differ.
    Resync,
    /// No job: we have no room, and a push should wake somebody else.
    LeaveIdleList,
}

impl ClaimPurpose {
    /// Slots that its answer may fill.
    fn reserved_slots(self) -> usize {
        if let ClaimPurpose::TakeJobs(max, _) = self { max } else { 0 }
    }
}

impl WorkerLoop {
    /// Sends whatever can be sent now.
    pub(super) fn send_requests(&mut self) {
        let now = clock::monotonic_now();
        self.handle_deadlines(now);
        let stopping = self.grace_until.is_some();
        for at in 0..self.queues.len() {
            let lane = &self.queues[at];
            match lane.needs_resync && lane.can_claim(now) && !stopping {
                // What we hold can be told exactly only while no outcome is under way.
                true if !lane.outcomes.has_in_flight() => self.send_claim(at, ClaimPurpose::Resync),
                false if !lane.resync_in_flight => self.flush_outcomes(at, now),
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

    /// Where there is room for many, they are asked for before those run that have just been claimed: the store answers
    /// while they do.
    pub(super) fn claim_ahead(&mut self) {
        let now = clock::monotonic_now();
        let many = self.in_flight.unpolled_count() > 0
            && self.queues.iter().any(|lane| lane.jobs_to_claim(now) >= CLAIM_AHEAD_MIN);
        if many && self.grace_until.is_none() {
            self.claim_jobs(now);
            self.handle_ready_replies();
        }
    }

    /// Sends what was asked for, and takes what is answered already: what one commit of the store has answered is taken together.
    pub(super) fn handle_ready_replies(&mut self) {
        while let Some(Some(answered)) = self.requests.next().now_or_never() {
            self.handle_store_reply(answered);
        }
    }

    pub(super) fn free_slots(&self) -> usize {
        let busy: usize = self.queues.iter().map(|lane| lane.running + lane.reserved_slots).sum();
        self.settings.concurrency.saturating_sub(busy)
    }

    fn claim_jobs(&mut self, now: Instant) {
        if self.pending_outcomes() >= UNSETTLED_MAX || self.quiet {
            return;
        }
        let rooms: Vec<_> = self.queues.iter().map(|lane| (lane.jobs_to_claim(now), lane.weight)).collect();
        let handed: usize = self.queues.iter().map(|lane| lane.delivered.len()).sum();
        for (at, max) in divide_slots(&rooms, self.free_slots().saturating_sub(handed), fastrand::f64()) {
            let suspect = self.queues[at].suspects.pop();
            self.send_claim(
                at,
                ClaimPurpose::TakeJobs(max.min(CLAIM_MAX).min(self.queues[at].claim_size_max()), suspect),
            );
        }
    }

    /// A node that cannot take a job must not stand in the way of those that can.
    fn leave_idle_lists(&mut self, now: Instant) {
        // By what runs, not by what is asked for: an empty answer gives its slots back at once.
        let running: usize = self.queues.iter().map(|lane| lane.running).sum();
        let none_free = self.grace_until.is_some() || self.quiet || running >= self.settings.concurrency;
        for at in 0..self.queues.len() {
            let lane = &self.queues[at];
            if lane.on_idle_list && lane.can_claim(now) && (none_free || lane.running >= lane.limit) {
                self.send_claim(at, ClaimPurpose::LeaveIdleList);
            }
        }
    }

    fn send_claim(&mut self, at: usize, ask: ClaimPurpose) {
        let lane = &mut self.queues[at];
        let max = ask.reserved_slots();
        let suspect = if let ClaimPurpose::TakeJobs(_, suspect) = ask { suspect } else { None };
        let redo = matches!(ask, ClaimPurpose::Resync);
        // A wake that comes while the claim is under way must not be taken for one that it has answered.
        lane.maybe_ready = false;
        // Whoever asks what it holds stays on the list of those who wait.
        lane.on_idle_list &= redo;
        lane.resync_in_flight |= redo;
        lane.check_at = None;
        lane.claims_in_flight += 1;
        lane.reserved_slots += max;
        let claim = Claim { queue: lane.name.clone(), max, resync: redo, suspect, kinds: self.kinds.clone() };
        let (store, node) = (self.store.clone(), self.node.id);
        let sent = clock::monotonic_now();
        let claimed = async move { store.claim(node, claim).await };
        // An answer with many is read beside this loop, not in it.
        let ahead = max >= CLAIM_AHEAD_MIN;
        self.requests.push(Box::pin(async move {
            let claimed = if ahead { spawn_claim(claimed).await } else { claimed.await };
            StoreReply::Claimed(at, ask, sent, claimed)
        }));
    }

    fn prune_queues(&mut self, now: Instant) {
        for (at, lane) in self.queues.iter_mut().enumerate() {
            let due = *lane.prune_at.get_or_insert(now + PRUNE_INTERVAL) <= now;
            if !due && lane.done_since_prune < PRUNE_MAX {
                continue;
            }
            lane.done_since_prune = 0;
            lane.prune_at = Some(now + PRUNE_INTERVAL);
            let (store, queue, done_max) = (self.store.clone(), lane.name.clone(), self.settings.keep_done_max);
            self.requests.push(Box::pin(async move { StoreReply::Pruned(at, store.prune(&queue, done_max).await) }));
        }
    }

    pub(super) fn handle_store_reply(&mut self, answered: StoreReply) {
        self.begin_stop_if_requested();
        match answered {
            StoreReply::Claimed(at, ask, sent, claimed) => {
                let lane = &mut self.queues[at];
                lane.claims_in_flight -= 1;
                lane.reserved_slots -= ask.reserved_slots();
                lane.resync_in_flight &= !matches!(ask, ClaimPurpose::Resync);
                match claimed {
                    Ok(claimed) => self.handle_claim_reply(at, ask, sent, claimed),
                    Err(error) => self.handle_claim_error(at, ask, &error),
                }
            }
            StoreReply::Settled(at, batch, since, Ok(lost)) => {
                self.settle_duration_avg = (self.settle_duration_avg * 7 + (clock::monotonic_now() - since)) / 8;
                self.handle_settle_reply(at, batch, &lost);
            }
            StoreReply::Settled(at, batch, _, Err(error)) => self.handle_settle_error(at, batch, &error),
            // More to prune: at the next turn.
            StoreReply::Pruned(at, Ok(PRUNE_MAX)) => self.queues[at].done_since_prune = PRUNE_MAX,
            StoreReply::Pruned(_, Ok(_)) => {}
            StoreReply::TicksFired(at, ticked) => self.handle_tick_report(at, ticked),
            StoreReply::Pruned(_, Err(error)) => tracing::warn!(%error, "prune failed"),
        }
    }

    fn handle_claim_reply(&mut self, at: usize, ask: ClaimPurpose, sent: Instant, claimed: ClaimReply) {
        let lane = &mut self.queues[at];
        lane.claim_failures = 0;
        lane.claim_not_before = None;
        match ask {
            ClaimPurpose::TakeJobs(max, suspect) => {
                self.schedule_next_check(at, sent, &claimed);
                self.start_claimed(at, max, suspect, claimed);
            }
            ClaimPurpose::LeaveIdleList => lane.maybe_ready = true,
            ClaimPurpose::Resync => {
                lane.needs_resync = false;
                lane.maybe_ready = true;
                self.reconcile_held(at, claimed);
            }
        }
    }

    /// When to look again. The answer counts from the store's moment, which lies between the question and now.
    fn schedule_next_check(&mut self, at: usize, sent: Instant, claimed: &ClaimReply) {
        let now = clock::monotonic_now();
        let ago = self.settings.duly.options.clock.now().duration_since(claimed.now).unwrap_or_default();
        let moment = now - ago.min(now - sent);
        let later = IDLE_RANK_STAGGER * claimed.idle_rank;
        self.queues[at].check_at = claimed.next_due.map(|due| moment + due + later);
        self.queues[at].tick_at = claimed.next_tick.map(|tick| moment + tick + later);
        self.queues[at].tick_due = claimed.next_tick.is_some_and(|tick| tick.is_zero());
    }

    fn start_claimed(&mut self, at: usize, max: usize, suspect: Option<NodeId>, claimed: ClaimReply) {
        let lane = &mut self.queues[at];
        lane.count_check.record_changes(claimed.jobs.len() as u64);
        metrics::record_claimed(&lane.name, claimed.jobs.len());
        metrics::record_taken_back(&lane.name, claimed.taken_back);
        if !claimed.jobs.is_empty() {
            let lateness = metrics::lateness_histogram(&lane.name);
            for held in &claimed.jobs {
                lateness.record(claimed.now.duration_since(held.due).unwrap_or_default().as_secs_f64());
            }
        }
        if let Some(suspect) = suspect {
            if claimed.suspect_has_more {
                lane.suspects.push(suspect);
            }
            if claimed.taken_back > 0 {
                self.has_suspects &= claimed.suspect_has_more;
                self.settings.emit(&Event::TakenBack { node: suspect, jobs: claimed.taken_back });
            }
        }
        // A full answer takes the node off the idle list: nobody wakes it, it looks again when it has room.
        lane.last_claim_was_full = claimed.jobs.len() == max;
        lane.on_idle_list = !lane.last_claim_was_full && !claimed.has_more;
        lane.maybe_ready |= !lane.on_idle_list || !lane.suspects.is_empty();
        for held in claimed.jobs {
            self.start_or_release(at, held, claimed.now);
        }
    }

    /// A push has put this job into our hands.
    pub(super) fn add_delivered(&mut self, held: HeldJob) {
        if let Some(lane) = self.queues.iter_mut().find(|lane| lane.name == held.job.queue) {
            lane.count_check.record_changes(1);
            // That took us off the list of those who wait.
            lane.on_idle_list = false;
            lane.maybe_ready = true;
            metrics::record_claimed(&lane.name, 1);
            let late = self.store.now().duration_since(held.due).unwrap_or_default();
            metrics::lateness_histogram(&lane.name).record(late.as_secs_f64());
            lane.delivered.push(held);
        }
    }

    /// Starts what was put into our hands.
    pub(super) fn start_delivered(&mut self) {
        for at in 0..self.queues.len() {
            for held in std::mem::take(&mut self.queues[at].delivered) {
                self.start_delivered_job(at, held);
            }
        }
    }

    fn start_delivered_job(&mut self, at: usize, held: HeldJob) {
        let lane = &self.queues[at];
        if held.fence <= lane.highest_reported_fence && self.is_known_claim(at, (held.job.id, held.fence)) {
            return;
        }
        let room = self.free_slots() > 0 && lane.running + lane.reserved_slots < lane.limit && !self.quiet;
        // A list of what we hold may have been made before. And slots that a claim was promised are free if it finds nothing.
        let wait = lane.claims_in_flight > 0 && (lane.resync_in_flight || !room);
        if wait {
            return self.queues[at].delivered.push(held);
        }
        // A connection that is given up and its successor may both have listened: of two words of one job one counts.
        self.queues[at].highest_reported_fence = held.fence.max(self.queues[at].highest_reported_fence);
        match room {
            true => self.start_or_release(at, held, self.store.now()),
            false => self.release_unstarted(at, held, Duration::ZERO, "given to this node when it had no room"),
        }
    }

    /// Whether the store has told us of this job before, when we asked what we hold.
    fn is_known_claim(&self, at: usize, name: (JobId, Fence)) -> bool {
        self.queues[at].outcomes.contains(name)
            || self.in_flight.claim_keys(at).contains(&name)
            || self.recent_outcomes.find(name).is_some()
    }

    /// Starts what was claimed, unless it must wait.
    fn start_or_release(&mut self, at: usize, held: HeldJob, now: std::time::SystemTime) {
        let suspected = (CRASH_SUSPECT_MIN..=self.settings.max_crashes).contains(&held.crashes);
        let under_suspicion = if suspected { self.in_flight.crash_suspect_elapsed() } else { None };
        let (after, why) = match (self.grace_until, under_suspicion) {
            // Claimed too late: for others to run.
            (Some(_), _) => (Duration::ZERO, "claimed while the worker was stopping"),
            (None, _) if self.quiet => (Duration::ZERO, "claimed while the worker was told to claim no more"),
            // One of several that were there each time a process died: run one by one, the guilty one betrays itself.
            (None, Some(ran)) => {
                (ran.clamp(QUARANTINE_DELAY_MIN, QUARANTINE_DELAY_MAX), "waits for another that may crash its process")
            }
            (None, None) => return self.start_attempt(at, held, now),
        };
        self.release_unstarted(at, held, after, why);
    }

    fn release_unstarted(&mut self, at: usize, held: HeldJob, after: Duration, why: &'static str) {
        let released = FinishedAttempt::without_run(at, held, Outcome::release(after));
        self.queues[at].outcomes.add(FinishedAttempt { reason: Some(why), ..released });
    }

    /// The store has said what we hold in a queue: run what we do not know, let go of what is not ours.
    fn reconcile_held(&mut self, at: usize, claimed: ClaimReply) {
        let name = |held: &HeldJob| (held.job.id, held.fence);
        let theirs: HashSet<_> = claimed.jobs.iter().map(name).collect();
        self.queues[at].highest_reported_fence =
            theirs.iter().map(|(_, fence)| *fence).fold(self.queues[at].highest_reported_fence, Fence::max);
        let ours: HashSet<_> = self.in_flight.claim_keys(at).into_iter().collect();
        for job in ours.iter().filter(|job| !theirs.contains(job)) {
            if self.in_flight.cancel_lost_job(*job) {
                self.lost_reported.insert(*job);
                self.settings.emit(&Event::Lost { id: job.0 });
            }
        }
        let waiting: HashSet<_> = self.queues[at].delivered.iter().map(name).collect();
        for held in claimed.jobs {
            let known = self.queues[at].outcomes.contains(name(&held)) || waiting.contains(&name(&held));
            if known || ours.contains(&name(&held)) {
                continue;
            }
            match self.recent_outcomes.find(name(&held)) {
                Some((outcome, result)) => {
                    let ended = FinishedAttempt::without_run(at, held, outcome);
                    self.queues[at].outcomes.add(FinishedAttempt { result, is_resend: true, ..ended });
                }
                None => self.start_or_release(at, held, claimed.now),
            }
        }
    }

    fn handle_claim_error(&mut self, at: usize, ask: ClaimPurpose, error: &Error) {
        let again_in = self.backoff_delay(self.queues[at].claim_failures);
        let lane = &mut self.queues[at];
        lane.claim_failures = lane.claim_failures.saturating_add(1);
        lane.maybe_ready = true;
        lane.claim_not_before = Some(clock::monotonic_now() + again_in);
        // Whatever was sent may have been carried out.
        lane.needs_resync |= matches!(ask, ClaimPurpose::Resync) || matches!(error, Error::Unknown { .. });
        self.report_store_failure("claim", error, again_in);
    }

    pub(super) fn report_store_failure(&self, op: &str, error: &Error, again_in: Duration) {
        tracing::warn!(op, %error, ?again_in, "the store failed");
        self.settings.emit(&Event::StoreFailed { error, retry_in: again_in });
    }

    /// Doubles, with full jitter, and stays below a third of the lease: a short outage must not cost it.
    pub(super) fn backoff_delay(&self, failures: u32) -> Duration {
        let max = (self.node.lease / 3).max(BACKOFF_MIN);
        let ceiling = BACKOFF_MIN.saturating_mul(1 << failures.min(16)).min(max);
        BACKOFF_MIN / 2 + ceiling.mul_f64(fastrand::f64())
    }
}

/// Carries out a claim as a task of its own, for as long as anybody waits for it.
async fn spawn_claim(claim: impl Future<Output = Result<ClaimReply>> + Send + 'static) -> Result<ClaimReply> {
    let task = AbortOnDropHandle::new(tokio::spawn(claim));
    task.await.unwrap_or_else(|gone| Err(Error::Unknown { op: "claim", source: Some(gone.into()) }))
}
