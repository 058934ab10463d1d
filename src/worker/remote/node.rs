//! A node held for a worker outside the process. It claims, sends heartbeats and settles only on request of the worker.
//!
//! The worker must learn of every job that the node holds. A claimed job is noted here before a reply contains it.
//! If a claim request is cut off, the next one returns its jobs. A job that a lost reply contained is missing from the
//! worker's heartbeats, and the node releases it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::held_jobs::{self, RemoteJob, ReportedOutcome, Settlement};
use super::state::RemoteState;
use crate::client::Duly;
use crate::clock;
use crate::error::{Error, Result};
use crate::job::{Fence, HeldJob, JobId, JobProgress, Outcome};
use crate::node::{Node, NodeId};
use crate::peers::WorkerRegistration;
use crate::store::{CLAIM_MAX, Claim, ClaimReply, HeartbeatReply, JobStore, ProgressStore, ProgressUpdate};
use crate::sync::LockExt;

/// The most commands that wait for the node; a caller beyond that receives a busy error.
const COMMANDS_MAX: usize = 16;
/// A delivered job that is missing from this many consecutive heartbeats never reached its worker.
const MISSED_HEARTBEATS_MAX: u32 = 2;
/// Stagger between idle nodes that wait for the same due time.
const IDLE_RANK_STAGGER: Duration = Duration::from_millis(2);

/// A node held for a worker outside the process.
pub struct RemoteNode {
    pub(super) duly: Duly,
    /// The name of the client that has joined.
    joined_by: String,
    pub(super) node: Node,
    kinds: Vec<String>,
    state: Mutex<RemoteState>,
    /// Serialises claims.
    pub(super) claiming: tokio::sync::Mutex<()>,
    /// Settles share it; a resync excludes them.
    pub(super) recording: tokio::sync::RwLock<()>,
    /// The number of claim requests that wait for a job.
    pub(super) waiting: AtomicUsize,
    /// Notified if there may be a job to claim or a command to report.
    pub(super) woken: Notify,
    registration: Mutex<Option<WorkerRegistration>>,
}

/// The reply to a worker's heartbeat.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Instructions {
    /// The named jobs that another node holds now: the worker must stop them.
    pub lost: Vec<JobId>,
    /// The cancelled jobs: the worker must stop and settle them.
    pub cancel: Vec<JobId>,
    /// Claims return nothing until the node is resumed.
    pub quiet: bool,
    /// The worker must finish its jobs and leave.
    pub stop: bool,
}

impl std::fmt::Debug for RemoteNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RemoteNode")
            .field("id", &self.node.id)
            .field("joined_by", &self.joined_by)
            .finish_non_exhaustive()
    }
}

impl RemoteNode {
    /// Registers the node with the store, and subscribes to its wakes and commands.
    pub(super) async fn join(duly: Duly, joined_by: String, node: Node, kinds: Vec<String>) -> Result<Arc<Self>> {
        let peers = duly.peers()?;
        let first = duly.store.heartbeat(&node).await?;
        let wakes = duly.store.subscribe_wakes(node.id).await?;
        let (sender, commands) = mpsc::channel(COMMANDS_MAX);
        let state = RemoteState::new(&node.queues);
        let remote = Arc::new(RemoteNode {
            registration: Mutex::new(Some(peers.register_worker(&node, sender))),
            duly,
            joined_by,
            node,
            kinds,
            state: Mutex::new(state),
            claiming: tokio::sync::Mutex::default(),
            recording: tokio::sync::RwLock::default(),
            waiting: AtomicUsize::new(0),
            woken: Notify::new(),
        });
        remote.apply_heartbeat(&first);
        tokio::spawn(super::commands::listen(Arc::downgrade(&remote), wakes, commands));
        Ok(remote)
    }

    /// Returns the node's id.
    #[must_use]
    pub fn id(&self) -> NodeId {
        self.node.id
    }

    pub(super) fn joined_by(&self) -> &str {
        &self.joined_by
    }

    pub(super) fn queues(&self) -> &[String] {
        &self.node.queues
    }

    pub(super) fn state(&self) -> MutexGuard<'_, RemoteState> {
        self.state.lock_unpoisoned()
    }

    /// Returns whether the worker has sent nothing for its whole lease.
    pub(super) fn is_silent(&self, now: Instant) -> bool {
        let has_request = self.waiting.load(Ordering::Relaxed) > 0;
        !has_request && now.saturating_duration_since(self.state().last_seen) > self.node.lease
    }

    /// Returns whether the worker waits for a job of this queue.
    pub(super) fn is_waiting_for(&self, queue: &str) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0 && self.node.queues.iter().any(|name| name == queue)
    }

    /// Makes the next claim check this queue, which may have a ready job.
    pub(super) fn check_queue(&self, name: &str) {
        if let Some(queue) = self.state().queues.iter_mut().find(|queue| queue.name == name) {
            queue.maybe_ready = true;
        }
        self.woken.notify_one();
    }

    /// Claims up to `max` jobs, and waits at most `wait` for the first.
    ///
    /// Dropping the future loses nothing: the next claim returns the jobs.
    pub async fn claim(self: &Arc<Self>, max: usize, wait: Duration) -> Result<Vec<Arc<HeldJob>>> {
        let max = max.clamp(1, CLAIM_MAX);
        // A worker that sends nothing for its whole lease is treated as dead, also while it waits.
        let until = clock::monotonic_now() + wait.min(self.node.lease * 2 / 3);
        self.send_heartbeat_if_due().await?;
        let _waiter = ClaimWaiter::new(&self.waiting);
        self.state().queues.iter_mut().for_each(|queue| queue.maybe_ready = true);
        loop {
            let jobs = self.take_undelivered(max);
            if !jobs.is_empty() {
                return Ok(jobs);
            }
            let node = self.clone();
            let claim = tokio::spawn(async move { node.claim_from_store(max).await });
            let more = claim.await.unwrap_or_else(|error| Err(self.resync_all(error)));
            let jobs = self.take_undelivered(max);
            if !jobs.is_empty() {
                // Another claim request of the same worker may wait for the rest.
                self.woken.notify_one();
                return Ok(jobs);
            }
            let more = more?;
            if clock::monotonic_now() >= until || self.state().stop {
                return Ok(jobs);
            }
            if more {
                continue;
            }
            let next_due = self.state().queues.iter().filter_map(|queue| queue.next_due).min();
            let next = next_due.map_or(until, |at| at.min(until));
            let _ = tokio::time::timeout_at(next, self.woken.notified()).await;
        }
    }

    /// Requests a resync of all queues: a claim task that did not finish may have claimed jobs.
    fn resync_all(&self, error: tokio::task::JoinError) -> Error {
        self.state().queues.iter_mut().for_each(|queue| queue.resync = true);
        Error::Unknown { op: "claim", source: Some(error.into()) }
    }

    /// Returns held jobs that no reply has contained yet, and marks them as delivered.
    fn take_undelivered(&self, max: usize) -> Vec<Arc<HeldJob>> {
        let (mut state, now) = (self.state(), clock::monotonic_now());
        state.last_seen = now;
        if state.is_closed() {
            return Vec::new();
        }
        let mut undelivered: Vec<_> = state.jobs.values_mut().filter(|job| !job.delivered).collect();
        undelivered.sort_unstable_by_key(|job| job.sequence);
        let deliver = |job: &mut RemoteJob| {
            job.delivered = true;
            job.since = now;
            job.held.clone()
        };
        undelivered.into_iter().take(max).map(deliver).collect()
    }

    /// Claims from every queue that may have a ready job. Returns whether to claim again at once.
    async fn claim_from_store(self: Arc<Self>, max: usize) -> Result<bool> {
        let _one = self.claiming.lock().await;
        let (mut missing, mut more) = (max, false);
        for index in 0..self.node.queues.len() {
            let Some(claim) = self.next_claim(index, missing) else {
                continue;
            };
            let (resync, suspect) = (claim.resync, claim.suspect);
            let _recording = if resync { Some(self.recording.write().await) } else { None };
            match self.duly.store.claim(self.node.id, claim).await {
                Ok(reply) => {
                    let count = reply.jobs.len();
                    more |= self.accept_claimed(index, resync, suspect, reply).await?;
                    missing = missing.saturating_sub(count);
                }
                Err(error) => {
                    let queue = &mut self.state().queues[index];
                    queue.maybe_ready = true;
                    queue.resync |= resync || matches!(error, Error::Unknown { .. });
                    return Err(error);
                }
            }
            if missing == 0 {
                return Ok(more);
            }
        }
        Ok(more)
    }

    /// Returns the claim to send for a queue, if the queue may have a ready job.
    fn next_claim(&self, index: usize, max: usize) -> Option<Claim> {
        let mut state = self.state();
        let (closed, now) = (state.is_closed(), clock::monotonic_now());
        let queue = &mut state.queues[index];
        let due = queue.next_due.is_some_and(|at| at <= now);
        if !queue.resync && (closed || !(queue.maybe_ready || due)) {
            return None;
        }
        queue.maybe_ready = false;
        queue.next_due = None;
        let suspect = if queue.resync { None } else { queue.suspects.pop() };
        Some(Claim {
            queue: queue.name.clone(),
            max,
            resync: queue.resync,
            suspect,
            kinds: self.node.profile.kinds.clone().map(Into::into),
        })
    }

    /// Notes claimed jobs, and settles those that must not be delivered. Returns whether to claim again at once.
    async fn accept_claimed(
        &self,
        index: usize,
        resync: bool,
        suspect: Option<NodeId>,
        reply: ClaimReply,
    ) -> Result<bool> {
        let mut rejected = Vec::new();
        let again = {
            let (mut state, now) = (self.state(), clock::monotonic_now());
            let (closed, count) = (state.is_closed(), reply.jobs.len() as u64);
            if resync {
                let stored: Vec<_> = reply.jobs.iter().map(|held| (held.job.id, held.fence)).collect();
                let queue = state.queues[index].name.clone();
                state.retain_held(&queue, &stored, self.node.lease);
            }
            for held in reply.jobs.into_iter().map(Arc::new) {
                let is_held = state.jobs.get(&held.job.id).is_some_and(|job| job.held.fence == held.fence);
                match held_jobs::reject_claimed(&held, &self.kinds, reply.now, self.duly.options.keep_dead) {
                    _ if is_held => {}
                    Some(end) => rejected.push(end),
                    // The node was closed while the claim was in flight: release the job for other nodes.
                    None if closed => {
                        let outcome = Outcome::release(Duration::ZERO);
                        rejected.push(held_jobs::end_attempt(&held, None, outcome, self.duly.options.keep_dead));
                    }
                    None => state.insert(RemoteJob::new(held, now, reply.now), self.node.lease),
                }
            }
            let queue = &mut state.queues[index];
            queue.resync = false;
            queue.count_check.record_changes(count);
            queue.maybe_ready |= resync || reply.has_more || reply.suspect_has_more;
            queue.next_due = reply.next_due.map(|due| now + due + IDLE_RANK_STAGGER * reply.idle_rank);
            queue.suspects.extend(suspect.filter(|_| reply.suspect_has_more));
            queue.maybe_ready
        };
        let again = again || !rejected.is_empty();
        if !rejected.is_empty() {
            // If this fails, the counts of the next heartbeats differ and cause a resync.
            self.duly.store.settle(self.node.id, rejected).await?;
        }
        Ok(again)
    }

    /// Handles a heartbeat of the worker. `named` lists the jobs that the worker has, if it reports them.
    ///
    /// Releases delivered jobs that are missing from two consecutive heartbeats, and retries jobs past their timeout.
    pub async fn heartbeat(self: &Arc<Self>, named: Option<&[JobId]>) -> Result<Instructions> {
        let reply = self.send_heartbeat().await?;
        self.apply_heartbeat(&reply);
        let (mut settlements, mut instructions) = (Vec::new(), Instructions::default());
        {
            let (mut state, now) = (self.state(), clock::monotonic_now());
            state.last_seen = now;
            (instructions.quiet, instructions.stop) = (state.quiet, state.stop);
            if let Some(named) = named {
                let is_recorded = |id: &JobId| state.recorded.iter().any(|(settled, _)| settled == id);
                let lost = named.iter().filter(|id| !state.jobs.contains_key(id) && !is_recorded(id));
                instructions.lost = lost.copied().collect();
            }
            let no_claim_waits = self.waiting.load(Ordering::Relaxed) == 0 || state.is_closed();
            for (id, job) in &mut state.jobs {
                job.missed_heartbeats = match named {
                    Some(named) if job.delivered && !named.contains(id) => job.missed_heartbeats + 1,
                    _ => 0,
                };
                if job.cancelled {
                    instructions.cancel.push(*id);
                }
                let never_arrived = job.missed_heartbeats >= MISSED_HEARTBEATS_MAX;
                let outcome = if never_arrived || (!job.delivered && no_claim_waits) {
                    ReportedOutcome::Release { after: Duration::ZERO }
                } else if job.is_overdue(now) {
                    instructions.lost.push(*id);
                    ReportedOutcome::Retry { after: None, error: format!("timed out after {:?}", job.held.job.timeout) }
                } else {
                    continue;
                };
                settlements.push(Settlement { id: *id, fence: job.held.fence, outcome, result: None });
            }
        }
        self.settle_all(settlements).await?;
        Ok(instructions)
    }

    /// Applies the store's reply to a heartbeat: queues to check, suspected dead nodes, and whether the counts agree.
    fn apply_heartbeat(&self, reply: &HeartbeatReply) {
        let mut state = self.state();
        let RemoteState { queues, jobs, .. } = &mut *state;
        for queue in queues.iter_mut().filter(|queue| !reply.unreachable.contains(&queue.name)) {
            queue.maybe_ready |= reply.queues_to_check.contains(&queue.name);
            let suspects = reply.suspects.iter().filter(|(_, name)| *name == queue.name).map(|(node, _)| *node);
            queue.suspects = suspects.collect();
            queue.maybe_ready |= !queue.suspects.is_empty();
            let stored = reply.held.iter().find(|(name, _)| *name == queue.name).map_or(0, |(_, held)| *held);
            let local = jobs.values().filter(|job| job.held.job.queue == queue.name).count() as u64;
            queue.resync |= queue.count_check.is_out_of_sync(stored, local, true);
        }
        drop(state);
        self.woken.notify_one();
    }

    /// Stores the progress (fraction and message) and the log lines of a running job. Returns `false` if the worker no longer holds it.
    pub async fn record_progress(
        &self,
        id: JobId,
        fence: Fence,
        progress: Option<(f64, String)>,
        lines: Vec<String>,
    ) -> Result<bool> {
        let now = self.duly.store.now();
        let update = {
            let mut state = self.state();
            state.last_seen = clock::monotonic_now();
            let Some(job) = state.jobs.get(&id).filter(|job| job.held.fence == fence) else {
                return Ok(false);
            };
            let progress = progress.map(|(fraction, message)| JobProgress::new(fraction, &message, now));
            ProgressUpdate::from_held(&job.held, progress, lines.into_iter().map(|line| (now, line)).collect())
        };
        Ok(self.duly.store.record_progress(self.node.id, vec![update]).await?.is_empty())
    }

    /// Sends a heartbeat to the store if the last one is older than the interval.
    async fn send_heartbeat_if_due(self: &Arc<Self>) -> Result<()> {
        let due = {
            let mut state = self.state();
            let now = clock::monotonic_now();
            state.last_seen = now;
            state.last_heartbeat.is_none_or(|at| now - at > self.node.heartbeat_interval())
        };
        if due {
            let reply = self.send_heartbeat().await?;
            self.apply_heartbeat(&reply);
        }
        Ok(())
    }

    async fn send_heartbeat(&self) -> Result<HeartbeatReply> {
        let mut node = self.node.clone();
        node.profile.quiet = self.state().is_closed();
        let reply = self.duly.store.heartbeat(&node).await?;
        self.state().record_heartbeat(self.node.lease);
        Ok(reply)
    }

    /// Releases every held job and leaves: a worker that leaves gracefully has crashed on none of its jobs.
    pub(super) async fn release_and_leave(self: &Arc<Self>) -> Result<()> {
        self.close();
        // Waits for a claim in flight; a closed node keeps none of its jobs.
        drop(self.claiming.lock().await);
        // Leave even if the release fails: other nodes can then take the jobs back before the lease ends.
        let released = self.release_all().await;
        self.leave().await?;
        released
    }

    /// Stops the delivery of jobs.
    fn close(&self) {
        self.state().stop = true;
        self.woken.notify_waiters();
    }

    /// Leaves the store: other nodes can take back its jobs at once.
    pub(super) async fn leave(&self) -> Result<()> {
        self.close();
        drop(self.registration.lock_unpoisoned().take());
        self.duly.store.leave(self.node.id).await
    }
}

/// Counts a claim request for as long as it waits.
struct ClaimWaiter<'a>(&'a AtomicUsize);

impl<'a> ClaimWaiter<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        ClaimWaiter(count)
    }
}

impl Drop for ClaimWaiter<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
