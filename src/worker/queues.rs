//! All queues of a worker: which requests to send now, and when to look again.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::clock;
use crate::error::{Error, Result};
use crate::job::HeldJob;
use crate::store::{CLAIM_MAX, PRUNE_MAX, SETTLE_MAX};
use crate::worker::WorkerSettings;
use crate::worker::claim_state::ClaimPurpose;
use crate::worker::cron_ticks::TickReport;
use crate::worker::deliveries::DeliveredJob;
use crate::worker::event::Event;
use crate::worker::outcomes::UnsettledEnd;
use crate::worker::phase::Phase;
use crate::worker::queue_state::{CLAIM_AHEAD_MIN, QueueState};
use crate::worker::requests::{StoreReply, StoreRequests};
use crate::worker::slots::divide_slots;

/// Maximum unsettled outcomes; beyond that no job is claimed.
const UNSETTLED_MAX: usize = 10 * SETTLE_MAX;

/// The queues of a worker and their requests to the store.
pub(super) struct WorkerQueues {
    settings: Arc<WorkerSettings>,
    queues: Vec<QueueState>,
    requests: StoreRequests,
}

impl std::ops::Index<usize> for WorkerQueues {
    type Output = QueueState;

    fn index(&self, index: usize) -> &QueueState {
        &self.queues[index]
    }
}

impl std::ops::IndexMut<usize> for WorkerQueues {
    fn index_mut(&mut self, index: usize) -> &mut QueueState {
        &mut self.queues[index]
    }
}

impl WorkerQueues {
    pub(super) fn new(settings: Arc<WorkerSettings>, queues: Vec<QueueState>, requests: StoreRequests) -> Self {
        WorkerQueues { settings, queues, requests }
    }

    pub(super) fn len(&self) -> usize {
        self.queues.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &QueueState> {
        self.queues.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut QueueState> {
        self.queues.iter_mut()
    }

    /// Returns the queue with this name.
    pub(super) fn find(&mut self, name: &str) -> Option<&mut QueueState> {
        self.queues.iter_mut().find(|queue| queue.name() == name)
    }

    /// Returns the slots that are neither taken nor reserved.
    pub(super) fn free_slots(&self) -> usize {
        let busy: usize = self.iter().map(QueueState::busy_slots).sum();
        self.settings.concurrency.saturating_sub(busy)
    }

    /// Returns whether all slots run an attempt. Reserved slots do not count: an empty reply frees them at once.
    fn is_full(&self) -> bool {
        self.iter().map(QueueState::running).sum::<usize>() >= self.settings.concurrency
    }

    /// Returns how many outcomes wait to be sent.
    pub(super) fn pending_outcomes(&self) -> usize {
        self.iter().map(|queue| queue.pending_outcomes()).sum()
    }

    /// Returns whether outcomes wait that can be sent now.
    pub(super) fn can_settle(&self) -> bool {
        self.iter().any(|queue| queue.pending_outcomes() > 0 && !queue.is_settling())
    }

    /// Requests a claim of every queue.
    pub(super) fn request_claims(&mut self) {
        self.iter_mut().for_each(QueueState::request_claim);
    }

    /// Returns whether another node may have taken a delivered job.
    pub(super) fn may_have_lost(&self, index: usize, delivered: &DeliveredJob) -> bool {
        self.queues[index].may_have_lost(delivered, clock::monotonic_now(), self.lease())
    }

    /// Checks a queue, because it may have ready jobs.
    pub(super) fn check(&mut self, name: &str) {
        let (is_full, now) = (self.is_full(), clock::monotonic_now());
        if let Some(queue) = self.find(name) {
            queue.check(is_full, now);
        }
    }

    /// Checks every queue, in case a wake was lost.
    pub(super) fn check_all(&mut self) {
        let (is_full, now) = (self.is_full(), clock::monotonic_now());
        self.iter_mut().for_each(|queue| queue.check(is_full, now));
    }

    // Requests.

    /// Waits for the next reply. Never resolves if no request is in flight.
    pub(super) async fn next_reply(&mut self) -> StoreReply {
        self.requests.next_reply().await
    }

    /// Sends new requests, and returns a reply that has arrived.
    pub(super) fn try_next_reply(&mut self) -> Option<StoreReply> {
        self.requests.try_next_reply()
    }

    /// Updates the gauges of running attempts.
    pub(super) fn report_running(&mut self) {
        self.queues.iter_mut().for_each(QueueState::report_running);
    }

    /// Sends all requests that can be sent now.
    ///
    /// `claim_limit` is how many jobs may be claimed at once; 0 while a crash suspect has the node for itself.
    pub(super) fn send_requests(&mut self, phase: Phase, claim_limit: usize) {
        self.report_running();
        let now = clock::monotonic_now();
        for index in 0..self.queues.len() {
            let queue = &self.queues[index];
            let should_resync = queue.wants_resync() && queue.can_claim(now) && !phase.is_leaving();
            // The list of held jobs is only exact while no outcome is in flight.
            if should_resync && !queue.is_settling() {
                self.send_claim(index, ClaimPurpose::Resync);
            } else if !should_resync && !queue.is_resyncing() {
                self.flush_outcomes(index, now);
            }
        }
        if !phase.is_stopping() {
            self.prune(now);
        }
        if phase.is_running() {
            self.fire_ticks(now);
            self.claim_jobs(claim_limit, now);
        }
        self.leave_idle_lists(!phase.is_running() || claim_limit == 0, now);
    }

    /// Sends large claims before the jobs of the previous claim run, so that the store works in the meantime.
    /// `unpolled` attempts have not run yet. Returns whether there was a reason to claim.
    pub(super) fn claim_ahead(&mut self, phase: Phase, claim_limit: usize, unpolled: usize) -> bool {
        let now = clock::monotonic_now();
        let has_many = unpolled > 0 && self.iter().any(|queue| queue.jobs_to_claim(now) >= CLAIM_AHEAD_MIN);
        let should_claim = has_many && phase.is_running() && claim_limit == usize::MAX;
        if should_claim {
            self.claim_jobs(claim_limit, now);
        }
        should_claim
    }

    fn claim_jobs(&mut self, limit: usize, now: Instant) {
        if limit == 0 {
            return self.take_back_jobs(now);
        }
        if self.pending_outcomes() >= UNSETTLED_MAX {
            return;
        }
        let wanted: Vec<_> = self.iter().map(|queue| (queue.jobs_to_claim(now), queue.weight())).collect();
        let delivered: usize = self.iter().map(|queue| queue.delivered_count()).sum();
        for (index, max) in divide_slots(&wanted, self.free_slots().saturating_sub(delivered), fastrand::f64()) {
            let max = max.min(CLAIM_MAX).min(limit).min(self.queues[index].claim_size_max());
            let suspect = self.queues[index].take_suspect();
            self.send_claim(index, ClaimPurpose::TakeJobs(max, suspect));
        }
    }

    /// Makes the jobs of dead nodes ready for other nodes, without claiming any.
    fn take_back_jobs(&mut self, now: Instant) {
        for index in 0..self.queues.len() {
            if let Some(suspect) = self.queues[index].take_suspect_to_take_back(now) {
                self.send_claim(index, ClaimPurpose::TakeJobs(0, Some(suspect)));
            }
        }
    }

    /// Removes this node from idle lists if it has no free slot, so that pushes wake other nodes.
    fn leave_idle_lists(&mut self, accepts_none: bool, now: Instant) {
        let none_free = accepts_none || self.is_full();
        for index in 0..self.queues.len() {
            if self.queues[index].should_leave_idle_list(none_free, now) {
                self.send_claim(index, ClaimPurpose::LeaveIdleList);
            }
        }
    }

    fn send_claim(&mut self, index: usize, purpose: ClaimPurpose) {
        self.queues[index].record_claim_sent(purpose);
        self.requests.claim(index, self.queues[index].name(), purpose);
    }

    /// Tells the store whether a held job runs alone.
    pub(super) fn set_alone(&mut self, index: usize, held: Arc<HeldJob>, alone: bool) {
        debug_assert_eq!(self.queues[index].name(), held.job.queue);
        self.requests.set_alone(index, held, alone);
    }

    fn flush_outcomes(&mut self, index: usize, now: Instant) {
        let batch = self.queues[index].take_batch(now);
        if !batch.is_empty() {
            self.requests.settle(index, batch, now);
        }
    }

    fn prune(&mut self, now: Instant) {
        for (index, queue) in self.queues.iter_mut().enumerate() {
            if let Some(removal_is_due) = queue.take_due_prune(now) {
                // One queue of the worker is enough.
                let removes_queues = index == 0 && removal_is_due;
                self.requests.prune(index, queue.name(), self.settings.keep_done_max, removes_queues);
            }
        }
    }

    fn fire_ticks(&mut self, now: Instant) {
        for (index, queue) in self.queues.iter_mut().enumerate() {
            if let Some(unblocked_rules) = queue.begin_tick_check(now) {
                self.requests.fire_ticks(index, queue.name(), self.settings.duly.clone(), unblocked_rules);
            }
        }
    }

    /// Returns when a queue needs attention even if nothing happens.
    pub(super) fn next_deadline(&self, phase: Phase, now: Instant) -> Option<Instant> {
        let repeats = self.iter().flat_map(|queue| queue.backoff_deadlines(now));
        if phase.is_stopping() {
            return repeats.min();
        }
        // Only a running worker fires ticks: for others, a tick in the past would wake the loop continuously.
        let ticks = self.iter().filter_map(|queue| queue.next_tick_check(now)).filter(|_| phase.is_running());
        repeats.chain(self.iter().flat_map(QueueState::deadlines)).chain(ticks).min()
    }

    // Replies that need no attempt.

    pub(super) fn handle_claim_error(&mut self, index: usize, purpose: ClaimPurpose, error: &Error) {
        let may_be_applied = matches!(purpose, ClaimPurpose::Resync) || matches!(error, Error::Unknown { .. });
        let (now, lease) = (clock::monotonic_now(), self.lease());
        let retry_in = self.queues[index].record_claim_failure(now, lease, may_be_applied);
        self.report_failure("claim", error, retry_in);
    }

    pub(super) fn handle_settle_error(&mut self, index: usize, batch: Vec<UnsettledEnd>, error: &Error) {
        let may_be_recorded = matches!(error, Error::Unknown { .. });
        let (now, lease) = (clock::monotonic_now(), self.lease());
        let retry_in = self.queues[index].return_batch(batch, may_be_recorded, now, lease);
        self.report_failure("settle", error, retry_in);
    }

    pub(super) fn handle_pruned(&mut self, index: usize, deleted: Result<usize>) {
        match deleted {
            Ok(PRUNE_MAX) => self.queues[index].request_prune(),
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "prune failed"),
        }
    }

    pub(super) fn handle_tick_report(&mut self, index: usize, report: Result<TickReport>) {
        let (now, lease, queue) = (clock::monotonic_now(), self.lease(), &mut self.queues[index]);
        match report {
            Ok(report) => queue.record_tick_report(report, now),
            Err(Error::Unsupported { .. }) => queue.record_ticks_unsupported(),
            Err(error) => {
                let retry_in = queue.record_tick_failure(now, lease);
                self.report_failure("fire_crons", &error, retry_in);
            }
        }
    }

    fn report_failure(&self, op: &str, error: &Error, retry_in: Duration) {
        tracing::warn!(op, %error, ?retry_in, "request to the store failed");
        self.settings.emit(&Event::StoreFailed { error, retry_in });
    }

    fn lease(&self) -> Duration {
        self.settings.duly.options.lease
    }
}
