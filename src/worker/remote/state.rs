//! The state of one remote node: the jobs it holds, and the settlements it has recorded recently.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use super::held_jobs::RemoteJob;
use super::settle::SettledBy;
use crate::clock;
use crate::job::{Fence, JobId};
use crate::node::NodeId;
use crate::store::SETTLE_MAX;
use crate::worker::HeldCountCheck;

/// The most settlements that are remembered in case the worker repeats them: one whole request.
const RECORDED_MAX: usize = SETTLE_MAX;

/// The state of one remote node.
pub(super) struct RemoteState {
    pub(super) jobs: HashMap<JobId, RemoteJob>,
    /// The number of jobs that have ever been held.
    claimed_count: u64,
    /// Settlements of the worker that the store has recorded, newest first.
    pub(super) recorded: VecDeque<(JobId, Fence)>,
    pub(super) queues: Vec<RemoteQueue>,
    /// When the last request of the worker arrived.
    pub(super) last_seen: Instant,
    /// When the store last received a heartbeat.
    pub(super) last_heartbeat: Option<Instant>,
    /// Since this time, no two heartbeats were further apart than the lease.
    pub(super) unbroken_since: Instant,
    pub(super) quiet: bool,
    pub(super) stop: bool,
}

impl RemoteState {
    /// Returns the state of a node that has just joined; every queue may have ready jobs.
    pub(super) fn new(queues: &[String]) -> Self {
        let now = clock::monotonic_now();
        RemoteState {
            jobs: HashMap::new(),
            claimed_count: 0,
            recorded: VecDeque::new(),
            queues: queues.iter().map(|name| RemoteQueue::new(name)).collect(),
            last_seen: now,
            last_heartbeat: Some(now),
            unbroken_since: now,
            quiet: false,
            stop: false,
        }
    }

    /// Returns whether the worker receives no more jobs.
    pub(super) fn is_closed(&self) -> bool {
        self.quiet || self.stop
    }

    /// Removes a job after the reply to its settle, unless the job is held again under another fence.
    pub(super) fn remove_settled(&mut self, id: JobId, fence: Fence, by: SettledBy, refused: bool) {
        if self.job(id, fence).is_some()
            && let Some(job) = self.jobs.remove(&id)
        {
            let own = self.queues.iter_mut().filter(|queue| queue.name == job.held.job.queue);
            own.for_each(|queue| queue.count_check.record_changes(1));
            self.remember(id, fence, if refused { job.uncertain } else { by == SettledBy::Worker });
        }
    }

    /// Remembers whether the last report on a job was recorded. If it was not, another node has the job, and no older
    /// report counts either.
    fn remember(&mut self, id: JobId, fence: Fence, recorded: bool) {
        if recorded {
            self.recorded.push_front((id, fence));
            self.recorded.truncate(RECORDED_MAX);
        } else {
            self.recorded.retain(|(settled, _)| *settled != id);
        }
    }

    /// Marks jobs whose settle has an unknown result. Only reports of the worker matter: it may repeat them.
    pub(super) fn mark_uncertain(&mut self, claims: &[(JobId, Fence)], by: SettledBy) {
        for (id, fence) in claims.iter().filter(|_| by == SettledBy::Worker) {
            self.job(*id, *fence).into_iter().for_each(|job| job.uncertain = true);
        }
    }

    /// Returns the job if it is held under this fence.
    pub(super) fn job(&mut self, id: JobId, fence: Fence) -> Option<&mut RemoteJob> {
        self.jobs.get_mut(&id).filter(|job| job.held.fence == fence)
    }

    /// Removes the jobs of a queue that the store does not list as held by this node.
    pub(super) fn retain_held(&mut self, queue: &str, stored: &[(JobId, Fence)], lease: Duration) {
        let is_gone =
            |(id, job): &(&JobId, &RemoteJob)| job.held.job.queue == queue && !stored.contains(&(**id, job.held.fence));
        let gone: Vec<JobId> = self.jobs.iter().filter(is_gone).map(|(id, _)| *id).collect();
        for job in gone.iter().filter_map(|id| self.jobs.remove(id)).collect::<Vec<_>>() {
            self.remember_removed(&job, lease);
        }
    }

    /// Remembers a job that disappeared without a reply from the store. An uncertain settle was recorded if the lease
    /// never lapsed, so that no other node can have taken the job since.
    fn remember_removed(&mut self, job: &RemoteJob, lease: Duration) {
        let unbroken = self.unbroken_since <= job.since
            && self.last_heartbeat.is_some_and(|at| clock::monotonic_now() - at <= lease);
        self.remember(job.held.job.id, job.held.fence, job.uncertain && unbroken);
    }

    /// Adds a claimed job. An older claim of the same job has ended without a reply from the store.
    pub(super) fn insert(&mut self, mut job: RemoteJob, lease: Duration) {
        let id = job.held.job.id;
        self.claimed_count += 1;
        job.sequence = self.claimed_count;
        if let Some(older) = self.jobs.insert(id, job) {
            self.remember_removed(&older, lease);
        }
    }

    /// Records that the store has received a heartbeat. After a gap, other nodes may have taken the jobs of this one.
    pub(super) fn record_heartbeat(&mut self, lease: Duration) {
        let now = clock::monotonic_now();
        if self.last_heartbeat.is_none_or(|at| now - at > lease) {
            self.unbroken_since = now;
        }
        self.last_heartbeat = Some(now);
    }
}

/// The state of one queue of a remote node.
pub(super) struct RemoteQueue {
    pub(super) name: String,
    pub(super) maybe_ready: bool,
    /// When the next job of the queue is due.
    pub(super) next_due: Option<Instant>,
    /// The reply to a claim was lost: request the list of held jobs.
    pub(super) resync: bool,
    pub(super) suspects: Vec<NodeId>,
    /// Compares the number of held jobs here with the store's.
    pub(super) count_check: HeldCountCheck,
}

impl RemoteQueue {
    fn new(name: &str) -> Self {
        RemoteQueue {
            name: name.to_owned(),
            maybe_ready: true,
            next_due: None,
            resync: false,
            suspects: Vec::new(),
            count_check: HeldCountCheck::default(),
        }
    }
}
