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

use super::accepted_kinds::AcceptedKinds;
use super::queue::RemoteClaim;
use super::settlement;
use super::state::RemoteState;
use crate::client::Duly;
use crate::clock;
use crate::error::{Error, Result};
use crate::job::{Fence, HeldJob, JobId, JobProgress, Outcome};
use crate::node::{Node, NodeId};
use crate::peers::WorkerRegistration;
use crate::store::{AttemptEnd, CLAIM_MAX, Claim, ClaimReply, HeartbeatReply, JobStore, ProgressStore, ProgressUpdate};
use crate::sync::LockExt;
use crate::worker::lease_history::is_recent;
use crate::worker::outcomes::claim_key;

/// The most commands that wait for the node; a caller beyond that receives a busy error.
const COMMANDS_MAX: usize = 16;

/// A node held for a worker outside the process.
pub struct RemoteNode {
    duly: Duly,
    /// The name of the client that has joined.
    joined_by: String,
    node: Node,
    kinds: AcceptedKinds,
    state: Mutex<RemoteState>,
    /// Serialises claims.
    claiming: tokio::sync::Mutex<()>,
    /// Settles share it; a resync excludes them.
    recording: tokio::sync::RwLock<()>,
    /// The number of claim requests that wait for a job.
    waiting: AtomicUsize,
    /// Notified if there may be a job to claim or a command to report.
    woken: Notify,
    registration: Mutex<Option<WorkerRegistration>>,
}

/// The reply to a worker's heartbeat.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct RemoteHeartbeatReply {
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
    pub(super) async fn join(duly: Duly, joined_by: String, node: Node, kinds: AcceptedKinds) -> Result<Arc<Self>> {
        let peers = duly.peers()?;
        let first = duly.store.heartbeat(&node).await?;
        let wakes = duly.store.subscribe_wakes(node.id).await?;
        let (sender, commands) = mpsc::channel(COMMANDS_MAX);
        let state = RemoteState::new(&node.queues, node.lease);
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

    /// Returns the name of the client that has joined the node.
    #[must_use]
    pub fn joined_by(&self) -> &str {
        &self.joined_by
    }

    pub(super) fn queues(&self) -> &[String] {
        &self.node.queues
    }

    pub(super) fn duly(&self) -> &Duly {
        &self.duly
    }

    pub(super) fn lease(&self) -> Duration {
        self.node.lease
    }

    /// Excludes claims until the returned guard is dropped.
    pub(super) async fn pause_claims(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.claiming.lock().await
    }

    /// Excludes resyncs until the returned guard is dropped.
    pub(super) async fn begin_recording(&self) -> tokio::sync::RwLockReadGuard<'_, ()> {
        self.recording.read().await
    }

    pub(super) fn state(&self) -> MutexGuard<'_, RemoteState> {
        self.state.lock_unpoisoned()
    }

    /// Returns whether the worker has sent nothing for its whole lease.
    pub(super) fn is_silent(&self, now: Instant) -> bool {
        !self.has_waiting_claim() && self.state().is_silent(now)
    }

    /// Returns whether a claim request of the worker waits for a job.
    pub(super) fn has_waiting_claim(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Makes a waiting claim request look for jobs again.
    pub(super) fn wake_claim(&self) {
        self.woken.notify_one();
    }

    /// Makes all waiting claim requests check whether the node still accepts jobs.
    pub(super) fn wake_all_claims(&self) {
        self.woken.notify_waiters();
    }

    /// Returns whether the worker waits for a job of this queue.
    pub(super) fn is_waiting_for(&self, queue: &str) -> bool {
        self.has_waiting_claim() && self.node.queues.iter().any(|name| name == queue)
    }

    /// Makes the next claim check this queue, which may have a ready job.
    pub(super) fn check_queue(&self, name: &str) {
        self.state().request_claims(|queue| queue == name);
        self.wake_claim();
    }

    /// Takes the node off the idle list of a queue. If the queue has a ready job, another node is woken.
    pub(super) async fn step_back(&self, queue: String) {
        let _one = self.claiming.lock().await;
        if let Err(error) = self.duly.store.claim(self.node.id, Claim::new(queue, 0)).await {
            tracing::debug!(%error, "a wake could not be passed on");
        }
    }

    /// Claims up to `max` jobs, and waits at most `wait` for the first.
    ///
    /// Returns fewer jobs if their args are large ([`CLAIM_BYTES_MAX`](super::CLAIM_BYTES_MAX)), and none while the worker
    /// holds [`JOBS_HELD_MAX`](super::JOBS_HELD_MAX). Dropping the future loses nothing: the next claim returns the jobs.
    /// See the [module](super) for an example.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Store`] or [`Error::Unknown`] if the store cannot be reached. Claim again: no job is lost.
    pub async fn claim(self: &Arc<Self>, max: usize, wait: Duration) -> Result<Vec<Arc<HeldJob>>> {
        let max = max.clamp(1, CLAIM_MAX);
        // A worker that sends nothing for its whole lease is treated as dead, also while it waits.
        let until = clock::monotonic_now() + wait.min(self.node.lease * 2 / 3);
        self.send_heartbeat_if_due().await?;
        let _waiter = ClaimWaiter::new(&self.waiting);
        self.state().request_claims(|_| true);
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
                self.wake_claim();
                return Ok(jobs);
            }
            let more = more?;
            if clock::monotonic_now() >= until || self.state().is_stopping() {
                return Ok(jobs);
            }
            if more {
                continue;
            }
            let next = self.state().check_at().map_or(until, |at| at.min(until));
            let _ = tokio::time::timeout_at(next, self.woken.notified()).await;
        }
    }

    /// Requests a resync of all queues: a claim task that did not finish may have claimed jobs.
    fn resync_all(&self, error: tokio::task::JoinError) -> Error {
        self.state().request_resyncs();
        Error::unknown_with_cause("claim", error)
    }

    /// Returns held jobs that no reply has contained yet, and marks them as delivered.
    fn take_undelivered(&self, max: usize) -> Vec<Arc<HeldJob>> {
        let (mut state, now) = (self.state(), clock::monotonic_now());
        state.record_request(now);
        if state.is_closed() { Vec::new() } else { state.take_undelivered(max, now) }
    }

    /// Claims from every queue that may have a ready job. Returns whether to claim again at once.
    pub(super) async fn claim_from_store(self: Arc<Self>, max: usize) -> Result<bool> {
        let _one = self.claiming.lock().await;
        self.run_quarantine(true).await?;
        // Several claim requests must not collect more jobs in memory than one reply may contain.
        if self.state().has_undelivered() {
            return Ok(false);
        }
        let (mut room, mut more) = (self.state().claim_room(max), false);
        for index in 0..self.node.queues.len() {
            let now = clock::monotonic_now();
            let Some((sent, claim)) = self.state().next_claim(index, room, now) else {
                continue;
            };
            let claim = Claim { kinds: self.kinds.named(), excluded_kind: self.kinds.excluded(), ..claim };
            let _recording = if sent.resync { Some(self.recording.write().await) } else { None };
            let sent_at = clock::monotonic_now();
            match self.duly.store.claim(self.node.id, claim).await {
                // The server was paused meanwhile: other nodes may have taken the jobs.
                Ok(_) if !is_recent(sent_at, clock::monotonic_now(), self.node.lease) => {
                    self.state().queue(index).record_late_reply(sent);
                    more = true;
                }
                Ok(reply) => {
                    if !sent.resync {
                        room.subtract(&reply.jobs);
                    }
                    more |= self.accept_claimed(index, sent, sent_at, reply).await?;
                }
                Err(error) => {
                    self.state().queue(index).record_failure(sent, matches!(error, Error::Unknown { .. }));
                    return Err(error);
                }
            }
            if room.is_used_up() {
                break;
            }
        }
        self.run_quarantine(true).await?;
        Ok(more)
    }

    /// Notes claimed jobs, and settles those that must not be delivered. Returns whether to claim again at once.
    async fn accept_claimed(
        &self,
        index: usize,
        sent: RemoteClaim,
        sent_at: Instant,
        mut reply: ClaimReply,
    ) -> Result<bool> {
        let (jobs, keep_dead) = (std::mem::take(&mut reply.jobs), self.duly.options.keep_dead);
        let mut rejected = Vec::new();
        let again = {
            let (mut state, now) = (self.state(), clock::monotonic_now());
            let again = state.queue(index).record_reply(sent, &reply, jobs.len() as u64, now);
            if sent.resync {
                let stored: Vec<_> = jobs.iter().map(claim_key).collect();
                state.retain_held(index, &stored, sent_at, now);
            }
            for held in jobs.into_iter().map(Arc::new) {
                if state.is_held(claim_key(&held)) {
                    continue;
                }
                if let Some(end) = settlement::reject_claimed(&held, &self.kinds, reply.now, keep_dead) {
                    rejected.push(end);
                } else if sent.resync {
                    // The reply to its claim was lost, and a resync lists jobs without args: release it.
                    rejected.push(self.end_release(held, Duration::ZERO));
                } else if state.is_closed() {
                    // The node was closed while the claim was in flight: release the job for other nodes.
                    rejected.push(self.end_release(held, Duration::ZERO));
                } else if let Some((held, after)) = state.admit(index, held, now, reply.now) {
                    rejected.push(self.end_release(held, after));
                }
            }
            again || !rejected.is_empty()
        };
        if !rejected.is_empty() {
            // If this fails, the counts of the next heartbeats differ and cause a resync.
            self.duly.store.settle(self.node.id, rejected).await?;
        }
        Ok(again)
    }

    pub(super) fn end_release(&self, held: Arc<HeldJob>, after: Duration) -> AttemptEnd {
        settlement::end_attempt(&held, None, Outcome::release(after), self.duly.options.keep_dead)
    }

    /// Handles a heartbeat of the worker. `named` lists the jobs that the worker has, if it reports them.
    ///
    /// Releases delivered jobs that are missing from two consecutive heartbeats, and retries jobs past their timeout.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Store`] or [`Error::Unknown`] if the store cannot be reached. Repeat it before the lease is over.
    pub async fn heartbeat(self: &Arc<Self>, named: Option<&[JobId]>) -> Result<RemoteHeartbeatReply> {
        let reply = self.send_heartbeat().await?;
        self.apply_heartbeat(&reply);
        if !self.has_waiting_claim() || self.state().is_closed() {
            let _claiming = self.claiming.lock().await;
            self.run_quarantine(false).await?;
        }
        let (claim_waits, now) = (self.has_waiting_claim(), clock::monotonic_now());
        let (reply, settlements) = self.state().handle_worker_heartbeat(named, claim_waits, now);
        self.settle_all(settlements).await?;
        Ok(reply)
    }

    /// Applies the store's reply to a heartbeat.
    fn apply_heartbeat(&self, reply: &HeartbeatReply) {
        self.state().apply_heartbeat(reply);
        self.wake_claim();
    }

    /// Stores the progress (fraction and message) and the log lines of a running job. Returns `false` if the worker no
    /// longer holds it.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Store`] or [`Error::Unknown`] if the store cannot be reached.
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
            state.record_request(clock::monotonic_now());
            let Some(job) = state.job_mut((id, fence)) else {
                return Ok(false);
            };
            if self.duly.options.attempts {
                job.add_output(&lines);
            }
            let progress = progress.map(|(fraction, message)| JobProgress::new(fraction, &message, now));
            ProgressUpdate::from_held(job.held(), progress, lines.into_iter().map(|line| (now, line)).collect())
        };
        Ok(self.duly.store.record_progress(self.node.id, vec![update]).await?.is_empty())
    }

    /// Sends a heartbeat to the store if the last one is older than the interval.
    async fn send_heartbeat_if_due(self: &Arc<Self>) -> Result<()> {
        let due = {
            let mut state = self.state();
            let now = clock::monotonic_now();
            state.record_request(now);
            state.is_heartbeat_due(now)
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
        self.state().record_heartbeat(clock::monotonic_now());
        Ok(reply)
    }

    /// Releases every held job and leaves: a worker that leaves gracefully has crashed on none of its jobs.
    pub(super) async fn release_and_leave(self: &Arc<Self>) -> Result<()> {
        self.close();
        // Waits for a claim in flight; a closed node keeps none of its jobs.
        let claiming = self.claiming.lock().await;
        let unstarted = self.run_quarantine(false).await;
        drop(claiming);
        // Leave even if the release fails: other nodes can then take the jobs back before the lease ends.
        let released = self.release_all().await;
        self.leave().await?;
        unstarted.and(released)
    }

    /// Stops the delivery of jobs.
    fn close(&self) {
        self.state().stop();
        self.wake_all_claims();
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
