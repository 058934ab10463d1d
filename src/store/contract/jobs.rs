//! Jobs: push, claim and settle, queries and changes, and the nodes that work on them.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::capability;
use crate::error::Result;
use crate::job::push::{Due, Push, PushResult};
use crate::job::{HeldJob, IdPart, JobId, JobRecord};
use crate::node::{Node, NodeId};
use crate::store::*;

capability! {
    /// Keeps jobs in queues, and the leases of the nodes that run them.
    pub trait JobStore(jobs: "jobs") {
        /// Pushes jobs, each into its own queue with its own due time and priority: all or none per queue.
        ///
        /// If the job's id is in the queue, or was there within `remember_ids`, nothing changes and the result is
        /// `Existing`. The same holds if its unique key is taken, unless the push asks to replace a waiting job. If two
        /// jobs in one push have the same key, the first wins. Results are in the order of the jobs.
        async fn push(&self, jobs: Vec<Push>) -> Result<Vec<PushResult>>;

        /// Claims up to `max` jobs of one queue for `node`, in this order:
        /// 1. If the suspect is dead, its jobs go back to ready.
        /// 2. Due jobs become ready, and so do jobs deferred by other nodes if this node has a handler for their kind.
        /// 3. The first ready jobs are claimed, by priority and then by the time they became ready.
        ///
        /// Never blocks. Never claims a job before its due time unless it was deferred. Claims nothing from a queue
        /// that is paused or moving. If it returns fewer jobs than requested, it reports when to claim again and adds
        /// the node to the idle list, from which a push wakes nodes. With `max == 0`, removes the node from the idle
        /// list; if jobs are ready, wakes another idle node.
        async fn claim(&self, node: NodeId, claim: Claim) -> Result<ClaimReply>;

        /// Records how attempts ended. Returns the jobs that the node no longer held; nothing is recorded for those.
        ///
        /// A retried job goes to the tail of its queue at its new due time; a released job goes back to the head. A job that
        /// was cancelled ends with any outcome, see [`AdminStore::cancel`].
        async fn settle(&self, node: NodeId, ends: Vec<AttemptEnd>) -> Result<Vec<JobId>>;

        /// Notes whether the node runs this held job and no other job. Returns whether the node still holds it. At most one
        /// job of a node and queue is marked: a new mark replaces the old one, and a new claim has none.
        ///
        /// If the node dies, that is a crash of each job that it held. From [`CRASH_SUSPECT_MIN`] crashes on, a crash is
        /// counted only for a job that ran alone: any other job may have been a bystander.
        async fn set_alone(&self, node: NodeId, held: Arc<HeldJob>, alone: bool) -> Result<bool>;

        /// Returns one job with its runs, progress, log and result.
        async fn get(&self, id: JobId) -> Result<Option<JobRecord>>;

        /// Returns the ids of at most `max` jobs that begin or end with these digits. At most [`ID_SCAN_MAX`] jobs are
        /// examined if no index has the answer, the newest first if the store knows them.
        async fn find_ids(&self, part: IdPart, max: usize) -> Result<FoundIds>;

        /// Returns a page of jobs that match the filter. The order is stable: a job that does not change appears on
        /// exactly one page. Exception: on Redis, running jobs may appear on two pages while their hash table grows,
        /// but none is left out.
        ///
        /// State, queue, due time and end time are looked up in an index; so are kind and tag of scheduled and dead
        /// jobs if the store supports it. Other conditions are checked job by job in bounded batches. A page may
        /// therefore be short and still have a next cursor.
        async fn list(&self, filter: Filter) -> Result<JobPage>;

        /// Returns which of these jobs of one queue are done, dead, cancelled or gone. At most [`COMPLETION_CHECK_MAX`].
        async fn completed_among(&self, queue: &str, ids: Vec<JobId>) -> Result<Vec<JobId>>;

        /// Deletes a job, unless it is running or its queue is moving. Its id stays remembered.
        async fn remove(&self, id: JobId) -> Result<ChangeResult>;

        /// Gives a job a new due time, unless it is running or its queue is moving.
        /// A dead, done or cancelled job starts over with no failed attempts.
        async fn reschedule(&self, id: JobId, due: Due) -> Result<ChangeResult>;

        /// Deletes these jobs as [`JobStore::remove`] does, each only if it is still in the given state.
        /// Results are in the order of the targets. At most [`BULK_CHANGE_MAX`].
        async fn remove_all(&self, targets: Vec<ChangeTarget>) -> Result<Vec<ChangeResult>>;

        /// Reschedules these jobs as [`JobStore::reschedule`] does, each only if it is still in the given state.
        /// Results are in the order of the targets. At most [`BULK_CHANGE_MAX`].
        async fn reschedule_all(&self, targets: Vec<ChangeTarget>, due: Due) -> Result<Vec<ChangeResult>>;

        /// Returns the number of jobs in each state, by queue.
        async fn counts(&self) -> Result<Vec<QueueCounts>>;

        /// Pauses or resumes a queue, which need not have a job yet. Returns whether that changed anything.
        async fn set_paused(&self, queue: &str, paused: bool) -> Result<bool>;

        /// Deletes done, dead and cancelled jobs whose retention is over, and the done jobs beyond `done_max` that would expire
        /// first. Returns how many were deleted; if that is [`PRUNE_MAX`], there may be more.
        async fn prune(&self, queue: &str, done_max: usize) -> Result<usize>;

        /// Renews a node's lease; the first heartbeat registers the node.
        /// Until the lease expires, no other node can take back its jobs.
        async fn heartbeat(&self, node: &Node) -> Result<HeartbeatReply>;

        /// Removes a node that shuts down. The jobs it still holds can be taken back immediately.
        async fn leave(&self, node: NodeId) -> Result<()>;

        /// Subscribes to the wakes of a node that has sent a heartbeat. A wake may be lost, so poll once a second as
        /// well.
        async fn subscribe_wakes(&self, node: NodeId) -> Result<mpsc::Receiver<Wake>>;

        /// Allows pushes to deliver jobs of these kinds, or of any kind if `None`, directly to this subscribed node. A
        /// push delivers only while the node is idle in a queue without ready jobs. The node then holds the job as if
        /// it had claimed it, and receives [`Wake::Job`]. It gets at most one job per claim, and never one of another
        /// kind.
        ///
        /// If that wake is lost, the heartbeat reply counts the job, and a claim with `resync` returns it. A delivery
        /// made before a claim arrives before the reply to that claim. A store may never deliver.
        async fn accept_deliveries(&self, node: NodeId, kinds: Option<Arc<[String]>>) -> Result<()>;
    }
}
