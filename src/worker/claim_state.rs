//! When a worker claims jobs from one queue.
//!
//! ```text
//!              wake, due time, heartbeat               a slot is free
//!   Wait ────────────────────────────────▶ Claim ─────────────────────▶ one or two claims in flight
//!    ▲                                       ▲                              │      │
//!    │ reply with fewer jobs than requested: │ full reply, or               │      │ reply lost,
//!    │ the node is on the idle list          │ an error and its backoff     │      │ or counts differ
//!    └───────────────────────────────────────┴──────────────────────────────┘      ▼
//!                                            ▲                                   Resync
//!                                            │ list of held jobs                   │ nothing in flight
//!                                            └───────────── resync in flight ◀─────┘
//! ```
//!
//! [`NextRequest`] is the request to send next, [`SentRequests`] those in flight. A wake that arrives while a claim is in
//! flight leads to another claim, since the first may not have seen the job.

use std::time::Duration;

use tokio::time::Instant;

use crate::node::NodeId;
use crate::worker::backoff::Backoff;

/// Stagger between idle nodes that wait for the same due time.
pub(super) const IDLE_RANK_STAGGER: Duration = Duration::from_millis(2);

/// The request to send next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextRequest {
    /// None until a wake, or until this time.
    Wait(Option<Instant>),
    /// A claim, once a slot is free.
    Claim,
    /// The list of held jobs: the reply to a claim was lost, or the counts differ.
    Resync,
}

impl NextRequest {
    /// A claim may find jobs.
    pub(super) fn request_claim(&mut self) {
        if *self != NextRequest::Resync {
            *self = NextRequest::Claim;
        }
    }

    /// Requests a claim if its time has come.
    pub(super) fn expire(&mut self, now: Instant) {
        if matches!(*self, NextRequest::Wait(Some(at)) if at <= now) {
            *self = NextRequest::Claim;
        }
    }

    /// Returns when to claim even without a wake.
    pub(super) fn check_at(self) -> Option<Instant> {
        if let NextRequest::Wait(at) = self { at } else { None }
    }

    /// Sets when to claim even without a wake, if no request has come in meanwhile.
    pub(super) fn wait_until(&mut self, check_at: Option<Instant>) {
        if matches!(self, NextRequest::Wait(_)) {
            *self = NextRequest::Wait(check_at);
        }
    }
}

/// The requests in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SentRequests {
    Nothing,
    /// One claim, or two if both are large. `slots` are reserved for their jobs.
    Claims {
        count: usize,
        slots: usize,
    },
    Resync,
}

/// The purpose of a claim.
#[derive(Clone, Copy, Debug)]
pub(super) enum ClaimPurpose {
    /// Claims this many jobs, including those of a node that may be dead.
    TakeJobs(usize, Option<NodeId>),
    /// Lists all jobs this node holds.
    Resync,
    /// Claims nothing: this node has no free slot, and a push should wake another one.
    LeaveIdleList,
}

impl ClaimPurpose {
    /// Returns the number of slots that the reply may fill.
    pub(super) fn reserved_slots(self) -> usize {
        if let ClaimPurpose::TakeJobs(max, _) = self { max } else { 0 }
    }
}

/// The claims of one queue.
#[derive(Debug)]
pub(super) struct ClaimState {
    next: NextRequest,
    sent: SentRequests,
    backoff: Backoff,
    /// A push may wake this node.
    on_idle_list: bool,
    /// The last claim returned as many jobs as requested.
    last_was_full: bool,
}

impl ClaimState {
    /// A new worker starts with a claim.
    pub(super) fn new() -> Self {
        ClaimState {
            next: NextRequest::Claim,
            sent: SentRequests::Nothing,
            backoff: Backoff::default(),
            on_idle_list: false,
            last_was_full: false,
        }
    }

    // The next steps.

    /// A claim may find jobs.
    pub(super) fn request_claim(&mut self) {
        self.next.request_claim();
    }

    /// This node may hold jobs that it does not know.
    pub(super) fn request_resync(&mut self) {
        self.next = NextRequest::Resync;
    }

    /// Requests a claim if its time has come.
    pub(super) fn expire(&mut self, now: Instant) {
        self.next.expire(now);
    }

    /// Returns whether a claim may find jobs.
    pub(super) fn wants_claim(&self) -> bool {
        self.next == NextRequest::Claim
    }

    pub(super) fn wants_resync(&self) -> bool {
        self.next == NextRequest::Resync
    }

    /// Returns whether nothing is in flight and no backoff is running.
    pub(super) fn can_send(&self, now: Instant) -> bool {
        self.sent == SentRequests::Nothing && self.backoff.is_over(now)
    }

    /// Returns whether a second claim can follow the one in flight, so that the store works while jobs start.
    pub(super) fn can_claim_ahead(&self, now: Instant) -> bool {
        let has_one = matches!(self.sent, SentRequests::Claims { count: 1, .. });
        has_one && self.last_was_full && self.next != NextRequest::Resync && self.backoff.is_over(now)
    }

    /// Returns when to claim even without a wake.
    pub(super) fn check_at(&self) -> Option<Instant> {
        self.next.check_at()
    }

    /// Returns when a failed request can be repeated.
    pub(super) fn backoff_deadline(&self, now: Instant) -> Option<Instant> {
        self.backoff.deadline(now)
    }

    // The requests in flight.

    pub(super) fn has_in_flight(&self) -> bool {
        self.sent != SentRequests::Nothing
    }

    pub(super) fn is_resyncing(&self) -> bool {
        self.sent == SentRequests::Resync
    }

    /// Returns the slots reserved for the replies to claims in flight.
    pub(super) fn reserved_slots(&self) -> usize {
        if let SentRequests::Claims { slots, .. } = self.sent { slots } else { 0 }
    }

    pub(super) fn is_on_idle_list(&self) -> bool {
        self.on_idle_list
    }

    /// A push has delivered a job to this node, which removed it from the idle list. If a job is due soon, this counts as
    /// being on the list: a node without free slots then leaves it, and the store wakes another node in time.
    pub(super) fn record_delivery(&mut self, next_heartbeat: Instant) {
        self.on_idle_list = matches!(self.next, NextRequest::Wait(Some(due)) if due < next_heartbeat);
        self.request_claim();
    }

    /// Records that a request was sent. A wake that arrives from now on is not covered by it.
    pub(super) fn record_sent(&mut self, purpose: ClaimPurpose) {
        if matches!(purpose, ClaimPurpose::Resync) {
            // The node stays on the idle list. A resync that is requested from now on is a new one.
            (self.sent, self.next) = (SentRequests::Resync, NextRequest::Claim);
            return;
        }
        let (count, slots) =
            if let SentRequests::Claims { count, slots } = self.sent { (count, slots) } else { (0, 0) };
        self.sent = SentRequests::Claims { count: count + 1, slots: slots + purpose.reserved_slots() };
        self.on_idle_list = false;
        if self.next != NextRequest::Resync {
            self.next = NextRequest::Wait(None);
        }
    }

    /// Records that a reply or an error has arrived.
    pub(super) fn record_reply(&mut self, purpose: ClaimPurpose) {
        self.sent = match self.sent {
            SentRequests::Claims { count, slots } if count > 1 => {
                SentRequests::Claims { count: count - 1, slots: slots - purpose.reserved_slots() }
            }
            _ => SentRequests::Nothing,
        };
    }

    /// Records the reply to a claim. A full reply removes the node from the idle list: it must claim again once it has
    /// room. `check_at` is the time of the next due job.
    pub(super) fn record_claimed(&mut self, is_full: bool, has_more: bool, check_at: Option<Instant>) {
        self.backoff.reset();
        self.last_was_full = is_full;
        self.on_idle_list = !is_full && !has_more;
        if !self.on_idle_list {
            self.request_claim();
        } else {
            self.next.wait_until(check_at);
        }
    }

    /// Records the reply to a request that claims no jobs: the list of held jobs, or that the node has left the idle
    /// list.
    pub(super) fn record_reply_without_claim(&mut self) {
        self.backoff.reset();
        self.request_claim();
    }

    /// Records a failed request and returns the delay before the next one. If the request may have been applied, the
    /// node may hold jobs that it does not know.
    pub(super) fn record_failure(&mut self, now: Instant, lease: Duration, may_be_applied: bool) -> Duration {
        if may_be_applied {
            self.request_resync();
        } else {
            self.request_claim();
        }
        self.backoff.record_failure(now, lease)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(10);

    /// Sends a claim for `max` jobs and receives the reply.
    fn claim(state: &mut ClaimState, max: usize, found: usize, check_at: Option<Instant>) {
        let purpose = ClaimPurpose::TakeJobs(max, None);
        state.record_sent(purpose);
        state.record_reply(purpose);
        state.record_claimed(found == max, false, check_at);
    }

    #[test]
    fn queue_without_ready_jobs_waits_for_its_next_due_time() {
        let now = Instant::now();
        let mut state = ClaimState::new();
        assert!(state.wants_claim());
        claim(&mut state, 5, 0, Some(now + LEASE));
        assert!(!state.wants_claim() && state.is_on_idle_list());
        state.expire(now);
        assert!(!state.wants_claim(), "not due yet");
        state.expire(now + LEASE);
        assert!(state.wants_claim());
    }

    #[test]
    fn full_reply_leads_to_another_claim() {
        let mut state = ClaimState::new();
        claim(&mut state, 5, 5, None);
        assert!(state.wants_claim() && !state.is_on_idle_list());
    }

    #[test]
    fn delivery_leaves_the_idle_list_unless_a_job_is_due_soon() {
        let now = Instant::now();
        let mut state = ClaimState::new();
        claim(&mut state, 5, 0, Some(now + LEASE));
        state.record_delivery(now + LEASE / 3);
        assert!(!state.is_on_idle_list());
        claim(&mut state, 5, 0, Some(now + LEASE / 4));
        state.record_delivery(now + LEASE / 3);
        assert!(state.is_on_idle_list(), "the store is told when the node is full");
    }

    #[test]
    fn wake_during_a_claim_leads_to_another_claim() {
        let mut state = ClaimState::new();
        let purpose = ClaimPurpose::TakeJobs(5, None);
        state.record_sent(purpose);
        assert!(!state.wants_claim());
        state.request_claim();
        state.record_reply(purpose);
        state.record_claimed(false, false, None);
        assert!(state.wants_claim());
    }

    #[test]
    fn lost_reply_leads_to_a_resync_before_the_next_claim() {
        let now = Instant::now();
        let mut state = ClaimState::new();
        let purpose = ClaimPurpose::TakeJobs(5, None);
        state.record_sent(purpose);
        state.record_reply(purpose);
        let delay = state.record_failure(now, LEASE, true);
        state.request_claim();
        assert!(state.wants_resync() && !state.can_send(now) && state.can_send(now + delay));
        state.record_sent(ClaimPurpose::Resync);
        assert!(state.is_resyncing());
        state.record_reply(ClaimPurpose::Resync);
        state.record_reply_without_claim();
        assert!(state.wants_claim() && state.can_send(now));
    }

    #[test]
    fn resync_requested_during_a_resync_is_sent_afterwards() {
        let mut state = ClaimState::new();
        state.request_resync();
        state.record_sent(ClaimPurpose::Resync);
        state.request_resync();
        state.record_reply(ClaimPurpose::Resync);
        state.record_reply_without_claim();
        assert!(state.wants_resync());
    }

    #[test]
    fn second_claim_needs_a_full_reply_before() {
        let now = Instant::now();
        let mut state = ClaimState::new();
        state.record_sent(ClaimPurpose::TakeJobs(200, None));
        assert!(!state.can_claim_ahead(now), "the first claim may not be full");
        state.record_reply(ClaimPurpose::TakeJobs(200, None));
        state.record_claimed(true, false, None);
        state.record_sent(ClaimPurpose::TakeJobs(200, None));
        assert!(state.can_claim_ahead(now));
        state.record_sent(ClaimPurpose::TakeJobs(100, None));
        assert!(!state.can_claim_ahead(now), "at most two");
        assert_eq!(state.reserved_slots(), 300);
        state.record_reply(ClaimPurpose::TakeJobs(200, None));
        assert_eq!(state.reserved_slots(), 100);
    }
}
