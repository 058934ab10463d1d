//! The state of one remote node: the jobs it holds, and the settlements it has recorded recently.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::job::RemoteJob;
use super::node::RemoteHeartbeatReply;
use super::queue::{RemoteClaim, RemoteQueue};
use super::settle::SettledBy;
use super::settlement::{ReportedOutcome, Settlement};
use super::{CLAIM_BYTES_MAX, JOBS_HELD_MAX};
use crate::clock;
use crate::job::{HeldJob, JobId};
use crate::peers::RunningJob;
use crate::store::{Claim, HeartbeatReply, SETTLE_MAX};
use crate::worker::DEFAULT_CRASHES_MAX;
use crate::worker::lease_history::LeaseHistory;
use crate::worker::outcomes::{ClaimKey, claim_key};
use crate::worker::process::WorkerProcess;
use crate::worker::quarantine::{Admission, AloneReply, CrashSuspect, NodeActivity, Quarantine, QuarantineAction};

/// The most settlements that are remembered in case the worker repeats them: one whole request.
const RECORDED_MAX: usize = SETTLE_MAX;

/// Whether the worker receives jobs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ClaimMode {
    Open,
    /// Not until the node is resumed.
    Quiet,
    /// Never again.
    Stopping,
}

/// How much the next claims may take.
#[derive(Clone, Copy)]
pub(super) struct ClaimRoom {
    jobs: usize,
    args_bytes: usize,
}

impl ClaimRoom {
    /// Subtracts these jobs and their args.
    pub(super) fn subtract(&mut self, jobs: &[HeldJob]) {
        self.jobs = self.jobs.saturating_sub(jobs.len());
        self.args_bytes = self.args_bytes.saturating_sub(jobs.iter().map(|held| held.args_bytes).sum());
    }

    /// Returns whether a claim has filled the room: a worker that holds too many jobs may still resync.
    pub(super) fn is_used_up(&self) -> bool {
        self.args_bytes == 0
    }
}

/// The watch of the suspect that runs alone.
#[derive(Default)]
struct LoneWatch {
    runs: bool,
    /// The claim that may be marked in the store as running alone.
    marked: Option<ClaimKey>,
}

/// The state of one remote node.
pub(super) struct RemoteState {
    /// The held jobs, each with its position in the order of arrival.
    jobs: HashMap<JobId, (u64, RemoteJob)>,
    /// The number of jobs that have ever been held.
    claimed_count: u64,
    /// Settlements of the worker that the store has recorded, newest first.
    recorded: VecDeque<ClaimKey>,
    queues: Vec<RemoteQueue>,
    quarantine: Quarantine,
    lone_watch: LoneWatch,
    /// When the last request of the worker arrived.
    last_seen: Instant,
    lease: Duration,
    lease_history: LeaseHistory,
    mode: ClaimMode,
}

impl RemoteState {
    /// Returns the state of a node that has just joined; every queue may have ready jobs.
    pub(super) fn new(queues: &[String], lease: Duration) -> Self {
        let now = clock::monotonic_now();
        let mut lease_history = LeaseHistory::default();
        lease_history.record_heartbeat(now, lease);
        RemoteState {
            jobs: HashMap::new(),
            claimed_count: 0,
            recorded: VecDeque::new(),
            queues: queues.iter().map(|name| RemoteQueue::new(name)).collect(),
            // The worker is a process of its own.
            quarantine: Quarantine::new(DEFAULT_CRASHES_MAX, true, WorkerProcess::default().join()),
            lone_watch: LoneWatch::default(),
            last_seen: now,
            lease,
            lease_history,
            mode: ClaimMode::Open,
        }
    }

    // Whether the worker receives jobs.

    /// Returns whether the worker receives no more jobs.
    pub(super) fn is_closed(&self) -> bool {
        self.mode != ClaimMode::Open
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.mode == ClaimMode::Stopping
    }

    pub(super) fn set_quiet(&mut self, quiet: bool) {
        if self.mode != ClaimMode::Stopping {
            self.mode = if quiet { ClaimMode::Quiet } else { ClaimMode::Open };
        }
    }

    /// Stops the delivery of jobs for good.
    pub(super) fn stop(&mut self) {
        self.mode = ClaimMode::Stopping;
    }

    /// Records a request of the worker.
    pub(super) fn record_request(&mut self, now: Instant) {
        self.last_seen = now;
    }

    /// Returns whether the last request of the worker arrived more than a lease ago.
    pub(super) fn is_silent(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.last_seen) > self.lease
    }

    // The held jobs.

    /// Returns the job if it is held under this fence.
    pub(super) fn job(&self, (id, fence): ClaimKey) -> Option<&RemoteJob> {
        self.jobs.get(&id).map(|(_, job)| job).filter(|job| job.held().fence == fence)
    }

    /// Returns the job for a change, if it is held under this fence.
    pub(super) fn job_mut(&mut self, (id, fence): ClaimKey) -> Option<&mut RemoteJob> {
        self.jobs.get_mut(&id).map(|(_, job)| job).filter(|job| job.held().fence == fence)
    }

    fn jobs(&self) -> impl Iterator<Item = &RemoteJob> {
        self.jobs.values().map(|(_, job)| job)
    }

    /// Returns something of every held job.
    #[cfg(test)]
    pub(super) fn describe_held<T>(&self, describe: impl Fn(&HeldJob) -> T) -> Vec<T> {
        self.jobs().map(|job| describe(job.held())).collect()
    }

    pub(super) fn describe_jobs(&self) -> Vec<RunningJob> {
        let now = clock::monotonic_now();
        self.jobs().map(|job| job.describe(now)).collect()
    }

    /// Marks a held job as cancelled. Returns whether there is one.
    pub(super) fn cancel(&mut self, id: JobId) -> bool {
        self.jobs.get_mut(&id).map(|(_, job)| job.cancel()).is_some()
    }

    /// Returns held jobs that no reply has contained yet, in the order of arrival, and marks them as delivered.
    pub(super) fn take_undelivered(&mut self, max: usize, now: Instant) -> Vec<Arc<HeldJob>> {
        let mut undelivered: Vec<_> = self.jobs.values_mut().filter(|(_, job)| !job.is_delivered()).collect();
        undelivered.sort_unstable_by_key(|(sequence, _)| *sequence);
        undelivered.into_iter().take(max).map(|(_, job)| job.deliver(now)).collect()
    }

    /// Returns whether a held job waits for a reply that contains it.
    pub(super) fn has_undelivered(&self) -> bool {
        self.jobs().any(|job| !job.is_delivered())
    }

    /// Returns settlements that release every held job.
    pub(super) fn release_all(&self) -> Vec<Settlement> {
        let release = ReportedOutcome::Release { after: Duration::ZERO };
        self.jobs().map(|job| Settlement::new(job.id(), job.held().fence, release.clone())).collect()
    }

    /// Adds a claimed job. An older claim of the same job has ended without a reply from the store.
    pub(super) fn insert(&mut self, held: Arc<HeldJob>, now: Instant, store_now: SystemTime) {
        self.claimed_count += 1;
        let job = RemoteJob::new(held, now, store_now);
        if let Some((_, older)) = self.jobs.insert(job.id(), (self.claimed_count, job)) {
            self.remember_removed(&older, now);
        }
    }

    // Settlements.

    /// Returns whether the store has recorded this settlement of the worker.
    pub(super) fn is_recorded(&self, claim: ClaimKey) -> bool {
        self.recorded.contains(&claim)
    }

    /// Removes a job after the reply to its settle, unless the job is held again under another fence.
    pub(super) fn remove_settled(&mut self, claim: ClaimKey, by: SettledBy, refused: bool) {
        if self.job(claim).is_some()
            && let Some((_, job)) = self.jobs.remove(&claim.0)
        {
            self.queues.iter_mut().filter(|queue| job.is_in(queue.name())).for_each(|queue| queue.record_changes(1));
            self.remember(claim, if refused { job.is_uncertain() } else { by == SettledBy::Worker });
        }
    }

    /// Remembers whether the last report on a job was recorded. If it was not, another node has the job, and no older
    /// report counts either.
    fn remember(&mut self, claim: ClaimKey, recorded: bool) {
        if recorded {
            self.recorded.push_front(claim);
            self.recorded.truncate(RECORDED_MAX);
        } else {
            self.recorded.retain(|(settled, _)| *settled != claim.0);
        }
    }

    /// Remembers a job that disappeared without a reply from the store. An uncertain settle was recorded if the lease
    /// never lapsed, so that no other node can have taken the job since.
    fn remember_removed(&mut self, job: &RemoteJob, now: Instant) {
        let is_lease_valid = self.lease_history.is_valid_since(job.since(), now, self.lease);
        self.remember(job.claim_key(), job.is_uncertain() && is_lease_valid);
    }

    /// Marks jobs whose settle has an unknown result. Only reports of the worker matter: it may repeat them.
    pub(super) fn mark_uncertain(&mut self, claims: &[ClaimKey], by: SettledBy) {
        for (id, fence) in claims.iter().filter(|_| by == SettledBy::Worker) {
            let job = self.jobs.get_mut(id).filter(|(_, job)| job.held().fence == *fence);
            job.into_iter().for_each(|(_, job)| job.mark_uncertain());
        }
    }

    // Claims.

    /// Makes the next claims check the queues with these names, which may have a ready job.
    pub(super) fn request_claims(&mut self, names: impl Fn(&str) -> bool) {
        self.queues.iter_mut().filter(|queue| names(queue.name())).for_each(RemoteQueue::request_claim);
    }

    /// Requests a resync of all queues.
    pub(super) fn request_resyncs(&mut self) {
        self.queues.iter_mut().for_each(RemoteQueue::request_resync);
    }

    /// Returns when to look for jobs even without a wake.
    pub(super) fn check_at(&self) -> Option<Instant> {
        self.queues.iter().filter_map(RemoteQueue::check_at).chain(self.quarantine.deadline()).min()
    }

    /// Returns the state of the queue with this index.
    pub(super) fn queue(&mut self, index: usize) -> &mut RemoteQueue {
        &mut self.queues[index]
    }

    /// Returns whether the node may hold another job.
    pub(super) fn has_room(&self) -> bool {
        self.held_count() < JOBS_HELD_MAX
    }

    fn held_count(&self) -> usize {
        let waiting: usize = (0..self.queues.len()).map(|index| self.quarantine.count(index)).sum();
        self.jobs.len() + waiting
    }

    /// Returns how much claims may take for a request of at most `max` jobs.
    pub(super) fn claim_room(&self, max: usize) -> ClaimRoom {
        ClaimRoom { jobs: max.min(JOBS_HELD_MAX.saturating_sub(self.held_count())), args_bytes: CLAIM_BYTES_MAX }
    }

    /// Returns the claim to send for a queue, if the queue may have a ready job.
    pub(super) fn next_claim(&mut self, index: usize, room: ClaimRoom, now: Instant) -> Option<(RemoteClaim, Claim)> {
        let (closed, max) = (self.is_closed(), room.jobs.min(self.quarantine.claim_limit()));
        let queue = &mut self.queues[index];
        let next = queue.next_claim(closed, max > 0, now)?;
        let args_bytes_max = Some(room.args_bytes);
        let claim = Claim::new(queue.name(), max);
        Some((next, Claim { resync: next.resync, suspect: next.suspect, args_bytes_max, ..claim }))
    }

    /// Removes the jobs of a queue that are missing from a list of held jobs, which was requested at `sent`.
    pub(super) fn retain_held(&mut self, index: usize, stored: &[ClaimKey], sent: Instant, now: Instant) {
        let queue = self.queues[index].name();
        let is_gone = |job: &&RemoteJob| job.is_in(queue) && !stored.contains(&job.claim_key());
        let gone: Vec<JobId> = self.jobs().filter(is_gone).map(RemoteJob::id).collect();
        for (_, job) in gone.iter().filter_map(|id| self.jobs.remove(id)).collect::<Vec<_>>() {
            self.remember_removed(&job, now);
        }
        self.quarantine.retain(index, sent, |key| stored.contains(&key));
    }

    /// Returns whether the node holds the job, possibly until its trial.
    pub(super) fn is_held(&self, claim: ClaimKey) -> bool {
        self.job(claim).is_some() || self.quarantine.contains(claim)
    }

    /// Adds a job that was just claimed, or returns it with a delay if it must be released.
    pub(super) fn admit(
        &mut self,
        index: usize,
        held: Arc<HeldJob>,
        now: Instant,
        store_now: SystemTime,
    ) -> Option<(Arc<HeldJob>, Duration)> {
        match self.quarantine.admit(index, Arc::unwrap_or_clone(held), store_now, now) {
            Admission::Start(held) => self.insert(Arc::new(held), now, store_now),
            Admission::Waits => {}
            Admission::Release(held, after) => return Some((Arc::new(held), after)),
        }
        None
    }

    // Crash suspects.

    /// Returns the next action for crash suspects. Claims must not run meanwhile.
    pub(super) fn next_quarantine_action(&mut self, accepts_jobs: bool, now: Instant) -> Option<QuarantineAction> {
        let may_have_lost = self.may_have_lost_suspects(now);
        let only = if self.jobs.len() == 1 { self.jobs().next() } else { None };
        let activity = NodeActivity {
            runs: !self.jobs.is_empty(),
            only: only.map(RemoteJob::claim_key),
            expects_jobs: false,
            may_have_lost,
            accepts_jobs: accepts_jobs && !self.is_closed(),
        };
        self.quarantine.next_action(activity, now)
    }

    /// Returns whether another node may have taken a suspect that waits here. A resync shows which.
    fn may_have_lost_suspects(&mut self, now: Instant) -> bool {
        // A list of held jobs from before the lease is valid again could be out of date.
        let is_valid_now = self.lease_history.is_valid_since(now, now, self.lease);
        let mut may_have_lost = false;
        for (index, since) in self.quarantine.waiting() {
            if !self.lease_history.is_valid_since(since, now, self.lease) {
                may_have_lost = true;
                if is_valid_now {
                    self.queues[index].request_resync();
                }
            }
        }
        may_have_lost
    }

    /// Records the reply to a request that was sent at this time, unless it may be out of date. Returns the suspect to
    /// deliver.
    pub(super) fn record_alone_reply(
        &mut self,
        reply: AloneReply,
        sent: Instant,
        now: Instant,
    ) -> Option<CrashSuspect> {
        let is_valid = self.lease_history.is_valid_since(sent, now, self.lease);
        let reply = AloneReply { is_held: reply.is_held.filter(|_| is_valid), ..reply };
        self.lone_watch.marked = None;
        self.quarantine.record_alone_reply(reply, now)
    }

    /// Returns whether to start a watch of the suspect that runs alone.
    pub(super) fn begin_lone_watch(&mut self) -> bool {
        self.quarantine.lone_suspect().is_some() && !std::mem::replace(&mut self.lone_watch.runs, true)
    }

    /// Returns the suspect that runs alone, and the mark to set or remove in the store. `None` ends the watch.
    pub(super) fn check_lone_suspect(&mut self, now: Instant) -> Option<(Arc<HeldJob>, Option<bool>)> {
        let held = self.quarantine.lone_suspect().cloned();
        self.lone_watch.runs = held.is_some();
        let (held, is_overdue) = (held?, !self.lease_history.is_current(now, self.lease));
        let may_be_marked = self.lone_watch.marked == Some(claim_key(&held));
        Some((held, Some(is_overdue).filter(|_| is_overdue || may_be_marked)))
    }

    /// Records whether the store may have a mark of this suspect.
    pub(super) fn record_mark(&mut self, claim: ClaimKey, may_be_marked: bool) {
        self.lone_watch.marked = Some(claim).filter(|_| may_be_marked);
    }

    // Heartbeats.

    /// Returns whether the last heartbeat of the store is older than the interval.
    pub(super) fn is_heartbeat_due(&self, now: Instant) -> bool {
        self.lease_history.is_heartbeat_due(now, self.lease)
    }

    /// Records that the store has received a heartbeat.
    pub(super) fn record_heartbeat(&mut self, now: Instant) {
        self.lease_history.record_heartbeat(now, self.lease);
    }

    /// Applies the store's reply to a heartbeat: queues to check, suspected dead nodes, and whether the counts agree.
    pub(super) fn apply_heartbeat(&mut self, reply: &HeartbeatReply) {
        for (index, queue) in self.queues.iter_mut().enumerate() {
            let name = queue.name().to_owned();
            if reply.unreachable.contains(&name) {
                continue;
            }
            let check = reply.queues_to_check.contains(&name);
            let suspects = reply.suspects.iter().filter(|(_, queue)| *queue == name).map(|(node, _)| *node);
            let stored = reply.held.iter().find(|(queue, _)| *queue == name).map_or(0, |(_, held)| *held);
            let local = self.jobs.values().filter(|(_, job)| job.is_in(&name)).count() + self.quarantine.count(index);
            queue.apply_heartbeat(check, suspects, stored, local as u64);
        }
        for id in &reply.cancelled {
            self.cancel(*id);
            self.quarantine.cancel(*id);
        }
    }

    /// Handles a heartbeat of the worker, which names its jobs if it reports them. Returns the reply, and settlements of
    /// jobs that the worker did not receive or that are past their timeout.
    pub(super) fn handle_worker_heartbeat(
        &mut self,
        named: Option<&[JobId]>,
        claim_waits: bool,
        now: Instant,
    ) -> (RemoteHeartbeatReply, Vec<Settlement>) {
        self.record_request(now);
        let (quiet, stop) = (self.is_closed(), self.is_stopping());
        let mut reply = RemoteHeartbeatReply { quiet, stop, ..RemoteHeartbeatReply::default() };
        if let Some(named) = named {
            let is_recorded = |id: &JobId| self.recorded.iter().any(|(settled, _)| settled == id);
            let lost = named.iter().filter(|id| !self.jobs.contains_key(id) && !is_recorded(id));
            reply.lost = lost.copied().collect();
        }
        let can_deliver = claim_waits && !self.is_closed();
        let mut settlements = Vec::new();
        for (id, (_, job)) in &mut self.jobs {
            job.record_heartbeat(named);
            if job.is_cancelled() {
                reply.cancel.push(*id);
            }
            let outcome = if job.never_arrived() || (!job.is_delivered() && !can_deliver) {
                ReportedOutcome::Release { after: Duration::ZERO }
            } else if job.is_overdue(now) {
                reply.lost.push(*id);
                ReportedOutcome::Retry { after: None, error: format!("timed out after {:?}", job.held().job.timeout) }
            } else {
                continue;
            };
            settlements.push(Settlement::new(*id, job.held().fence, outcome));
        }
        (reply, settlements)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::tests::held_job;

    #[test]
    fn uncertain_settle_is_not_recorded_after_a_late_heartbeat_reply() {
        let lease = Duration::from_secs(3);
        for (gap, recorded) in [(lease / 3, true), (lease * 9 / 10, false)] {
            let mut state = RemoteState::new(&["default".to_owned()], lease);
            let start = clock::monotonic_now();
            state.record_heartbeat(start);
            let held = Arc::new(held_job("work"));
            let claim = (held.job.id, held.fence);
            state.insert(held.clone(), start, held.due);
            state.mark_uncertain(&[claim], SettledBy::Worker);
            // The store may have applied this heartbeat after the lease had expired.
            let replied = start + gap;
            state.record_heartbeat(replied);
            state.retain_held(0, &[], replied, replied);
            assert_eq!(state.is_recorded(claim), recorded, "a gap of {gap:?}");
        }
    }
}
