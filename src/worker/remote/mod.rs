//! Nodes held for workers outside the process, in any language.
//!
//! A front end such as an HTTP server joins a [`RemoteNode`] for each of its workers, and passes their requests on.
//! To the store a remote node is like any other: it has an id, a lease and fences. If its worker sends nothing for the
//! whole lease, other nodes take back its jobs.
//!
//! ```
//! use std::time::Duration;
//! use duly::worker::remote::{DEFAULT_REMOTE_LEASE, RemoteNodes, ReportedOutcome, Settlement};
//! use duly::{Duly, Push};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> duly::Result<()> {
//! let duly = Duly::open(":memory:").await?;
//! duly.push(Push::new("resize", r#"{"image":7}"#)).await?;
//! let nodes = RemoteNodes::new(duly);
//! let node = nodes.join("ada", vec!["default".into()], vec!["resize".into()], DEFAULT_REMOTE_LEASE).await?;
//! for job in node.claim(10, Duration::ZERO).await? {
//!     let ack = Settlement::new(job.job.id, job.fence, ReportedOutcome::Ack);
//!     assert!(node.settle(vec![ack]).await?.is_empty(), "the worker held it");
//! }
//! nodes.leave(node.id(), None).await?;
//! # Ok(())
//! # }
//! ```

mod accepted_kinds;
mod commands;
mod job;
mod node;
mod quarantine;
mod queue;
mod settle;
mod settlement;
mod state;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use self::accepted_kinds::AcceptedKinds;
pub use self::node::{RemoteHeartbeatReply, RemoteNode};
pub use self::settlement::{ReportedOutcome, Settlement};
use super::prune_schedule::{FINAL_PRUNE_TIMEOUT, PruneSchedule, prune_queues};
use super::{DEFAULT_KEEP_DONE_MAX, fire_all_due_ticks};
use crate::bounds::NAME_BYTES_MAX;
use crate::client::Duly;
use crate::clock;
use crate::error::{ConflictKind, Error, Result};
use crate::job::push::{check_name, check_text};
use crate::node::{Node, NodeId};
use crate::store::{JobStore, PRUNE_MAX};
use crate::sync::LockExt;

/// The default lease of a remote node: longer than that of a worker in this process, which has a heartbeat thread.
pub const DEFAULT_REMOTE_LEASE: Duration = Duration::from_secs(30);
/// The shortest and the longest lease that a worker may request.
const LEASE_MIN: Duration = Duration::from_secs(1);
const LEASE_MAX: Duration = Duration::from_secs(3600);
/// The most remote nodes at a time.
const NODES_MAX: usize = 10_000;
/// The most remote nodes of one client at a time: a file has 1,024 slots for nodes of all processes.
const NODES_PER_CLIENT_MAX: usize = 256;
/// The most jobs that a remote node holds: claims of its worker return nothing until it settles some.
pub const JOBS_HELD_MAX: usize = 2_000;
/// The most bytes of args in the reply to one claim; further jobs stay ready. A single job may exceed it.
pub const CLAIM_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The most queues and the most kinds of one worker.
const NAMES_MAX: usize = 256;
/// The interval of the maintenance task, which works once per queue and not once per worker.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(1);
/// How long [`RemoteNodes::leave_all`] waits for the release of held jobs; the rest counts as a crash.
const LEAVE_ALL_MAX: Duration = Duration::from_secs(5);

/// The identity of a worker outside the process, for people. Its node shows it instead of the process that has joined it.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct RemoteWorker {
    /// Its name.
    pub name: Option<String>,
    /// The machine it runs on.
    pub host: Option<String>,
    /// Its process id there.
    pub pid: Option<u32>,
    /// How many jobs it runs at once.
    pub slots: Option<u64>,
}

impl RemoteWorker {
    fn check(&self) -> Result<()> {
        for (field, text) in [("name", &self.name), ("host", &self.host)] {
            if let Some(text) = text {
                check_text(field, text, NAME_BYTES_MAX)?;
            }
        }
        match self.slots {
            Some(0) => Err(Error::invalid("slots", "must be greater than zero")),
            _ => Ok(()),
        }
    }
}

/// The remote nodes of this process. Clones share them.
#[derive(Clone)]
pub struct RemoteNodes {
    inner: Arc<Inner>,
    /// The kind that no worker receives.
    excluded_kind: Option<Arc<str>>,
}

struct Inner {
    duly: Duly,
    nodes: Mutex<HashMap<NodeId, Arc<RemoteNode>>>,
    /// Serialises joins, so that they cannot pass the limits together.
    joining: tokio::sync::Mutex<()>,
    /// The maintenance task runs.
    maintained: std::sync::atomic::AtomicBool,
}

impl Inner {
    fn nodes(&self) -> MutexGuard<'_, HashMap<NodeId, Arc<RemoteNode>>> {
        self.nodes.lock_unpoisoned()
    }

    /// Prunes the queues of nodes that have left: workers that come and go may never live until a scheduled prune.
    async fn prune_finally(&self, left: &[Arc<RemoteNode>]) {
        let queues: BTreeSet<&String> = left.iter().flat_map(|node| node.queues()).collect();
        let queues = queues.into_iter().cloned().collect();
        let prune = prune_queues(self.duly.store.clone(), queues, DEFAULT_KEEP_DONE_MAX);
        let _ = tokio::time::timeout(FINAL_PRUNE_TIMEOUT, prune).await;
    }

    /// Prunes a queue if it is due.
    async fn prune_if_due(&self, queue: &str, schedule: &mut PruneSchedule) {
        if !schedule.take_due(clock::monotonic_now()) {
            return;
        }
        if schedule.take_queue_removal()
            && let Err(error) = self.duly.queues().remove_unused().await
        {
            tracing::warn!(%error, "cannot remove unused queues");
        }
        match self.duly.store.prune(queue, DEFAULT_KEEP_DONE_MAX).await {
            Ok(PRUNE_MAX) => schedule.request_another(),
            Ok(_) => {}
            Err(error) => tracing::warn!(queue, %error, "prune failed"),
        }
    }
}

impl std::fmt::Debug for RemoteNodes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RemoteNodes").field("nodes", &self.inner.nodes().len()).finish_non_exhaustive()
    }
}

impl RemoteNodes {
    /// Returns an empty registry for workers on this store.
    #[must_use]
    pub fn new(duly: Duly) -> Self {
        RemoteNodes {
            inner: Arc::new(Inner {
                duly,
                nodes: Mutex::default(),
                joining: tokio::sync::Mutex::default(),
                maintained: false.into(),
            }),
            excluded_kind: None,
        }
    }

    /// Excludes a kind: workers that join from now on do not receive its jobs.
    ///
    /// Such a job is deferred without counting an attempt, so a worker elsewhere that runs the kind gets it at once. On
    /// Sidekiq's keys, a worker without a list of kinds takes it first, and defers it each time.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # use duly::worker::remote::{DEFAULT_REMOTE_LEASE, RemoteNodes};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// duly.push(duly::Push::new("command", r#"{"argv":["true"]}"#)).await?;
    /// let nodes = RemoteNodes::new(duly).exclude_kind("command");
    /// let node = nodes.join("ada", vec!["default".into()], vec![], DEFAULT_REMOTE_LEASE).await?;
    /// assert!(node.claim(1, std::time::Duration::ZERO).await?.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn exclude_kind(self, kind: &str) -> Self {
        RemoteNodes { excluded_kind: Some(kind.into()), ..self }
    }

    /// Joins a node for a worker on these queues. Without kinds the worker takes every kind.
    ///
    /// `joined_by` names the client: only [`RemoteNodes::get`] with the same name, or with none, returns the node.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Invalid`] for an invalid name or lease, and [`Error::Conflict`] if there are too many remote nodes.
    pub async fn join(
        &self,
        joined_by: &str,
        queues: Vec<String>,
        kinds: Vec<String>,
        lease: Duration,
    ) -> Result<Arc<RemoteNode>> {
        self.join_as(joined_by, queues, kinds, lease, RemoteWorker::default()).await
    }

    /// As [`RemoteNodes::join`], with a name, a machine and a process id of the worker itself.
    ///
    /// # Errors
    ///
    /// As [`RemoteNodes::join`], and [`Error::Invalid`] for an invalid name, host or number of slots.
    pub async fn join_as(
        &self,
        joined_by: &str,
        queues: Vec<String>,
        mut kinds: Vec<String>,
        lease: Duration,
        worker: RemoteWorker,
    ) -> Result<Arc<RemoteNode>> {
        worker.check()?;
        check_names("queues", "queue", &queues)?;
        check_names("kinds", "kind", &kinds)?;
        kinds.sort();
        kinds.dedup();
        if queues.is_empty() {
            return Err(Error::invalid("queues", "name at least one to work on"));
        }
        if !(LEASE_MIN..=LEASE_MAX).contains(&lease) {
            return Err(Error::invalid("lease", format!("must be from {LEASE_MIN:?} to {LEASE_MAX:?}")));
        }
        if let Some(kind) = self.excluded_kind.as_deref().filter(|kind| kinds.iter().any(|named| named == kind)) {
            return Err(Error::invalid(
                "kinds",
                format!("workers do not receive jobs of the kind {kind} here; leave it out"),
            ));
        }
        let _joining = self.inner.joining.lock().await;
        self.check_room(joined_by)?;
        let mut node = Node::fresh(queues);
        node.lease = lease;
        node.profile.kinds = Some(kinds.clone()).filter(|kinds| !kinds.is_empty());
        let RemoteWorker { name, host, pid, slots } = worker;
        (node.profile.name, node.profile.host, node.profile.pid, node.profile.slots) = (name, host, pid, slots);
        let kinds = AcceptedKinds::new(kinds, self.excluded_kind.clone());
        let node = RemoteNode::join(self.inner.duly.clone(), joined_by.to_owned(), node, kinds).await?;
        self.inner.nodes().insert(node.id(), node.clone());
        if !self.inner.maintained.swap(true, std::sync::atomic::Ordering::Relaxed) {
            tokio::spawn(maintain(Arc::downgrade(&self.inner)));
        }
        Ok(node)
    }

    /// Returns an error if there are too many nodes, of this client or of all.
    fn check_room(&self, joined_by: &str) -> Result<()> {
        let nodes = self.inner.nodes();
        if nodes.len() >= NODES_MAX {
            return Err(Error::conflict(
                ConflictKind::LimitReached,
                format!("{NODES_MAX} workers have joined here already; let some leave first"),
            ));
        }
        if nodes.values().filter(|node| node.joined_by() == joined_by).count() >= NODES_PER_CLIENT_MAX {
            return Err(Error::conflict(
                ConflictKind::LimitReached,
                format!(
                    "{NODES_PER_CLIENT_MAX} workers of {joined_by} have joined here already; let some leave, or use another token"
                ),
            ));
        }
        Ok(())
    }

    /// Returns the node with this id. With `joined_by`, only if that client has joined it.
    ///
    /// Node ids are public, so an id alone does not prove that a client may act for the node.
    ///
    /// # Errors
    ///
    /// Returns [`Error::NotFound`] if there is no such node, its lease is over, or another client has joined it.
    pub fn get(&self, id: NodeId, joined_by: Option<&str>) -> Result<Arc<RemoteNode>> {
        let node = self.inner.nodes().get(&id).cloned();
        let node = node.filter(|node| joined_by.is_none_or(|name| node.joined_by() == name));
        node.ok_or_else(|| {
            Error::not_found_with_advice("worker", id, "its lease expired or the server restarted; join again")
        })
    }

    /// Releases the jobs of a node, removes it, and prunes its queues; `joined_by` as for [`RemoteNodes::get`].
    ///
    /// See the [module](self) for an example.
    ///
    /// # Errors
    ///
    /// - [`Error::NotFound`]: as for [`RemoteNodes::get`].
    /// - [`Error::Store`] or [`Error::Unknown`]: the store cannot be reached. The node is removed anyway, and other
    ///   nodes take its jobs back when its lease is over.
    pub async fn leave(&self, id: NodeId, joined_by: Option<&str>) -> Result<()> {
        let node = self.get(id, joined_by)?;
        self.inner.nodes().remove(&id);
        let left = node.release_and_leave().await;
        self.inner.prune_finally(&[node]).await;
        left
    }

    /// Releases the jobs of all nodes, and removes them, within five seconds: for a front end that stops.
    ///
    /// Call it after the last request. The workers have not crashed: other nodes take their jobs, and no crash counts.
    pub async fn leave_all(&self) {
        let nodes: Vec<Arc<RemoteNode>> = self.inner.nodes().drain().map(|(_, node)| node).collect();
        let leaving = futures_util::future::join_all(nodes.iter().map(async |node| {
            if let Err(error) = node.release_and_leave().await {
                tracing::warn!(node = %node.id(), %error, "cannot release the jobs of a worker: a crash is counted");
            }
        }));
        if tokio::time::timeout(LEAVE_ALL_MAX, leaving).await.is_err() {
            tracing::warn!("not all jobs of workers were released in time: a crash is counted for the rest");
        }
        self.inner.prune_finally(&nodes).await;
        // The statistics of the last attempts, which are otherwise sent every few seconds.
        let _ = tokio::time::timeout(LEAVE_ALL_MAX, self.inner.duly.kind_stats.flush(&*self.inner.duly.store)).await;
    }
}

#[cfg(test)]
mod tests;

fn check_names(field: &'static str, one: &'static str, names: &[String]) -> Result<()> {
    if names.len() > NAMES_MAX {
        return Err(Error::invalid(field, format!("at most {NAMES_MAX} are allowed")));
    }
    names.iter().try_for_each(|name| {
        check_name(one, name).map_err(|error| match error {
            Error::Invalid { reason, .. } => Error::Invalid { field, reason },
            other => other,
        })
    })
}

/// Removes silent nodes, makes up for lost wakes, fires cron rules and prunes, until the registry is dropped.
async fn maintain(inner: Weak<Inner>) {
    let mut rounds: usize = 0;
    let mut prunes: HashMap<String, PruneSchedule> = HashMap::new();
    loop {
        tokio::time::sleep(MAINTENANCE_INTERVAL).await;
        let Some(inner) = inner.upgrade() else {
            return;
        };
        rounds = rounds.wrapping_add(1);
        let now = clock::monotonic_now();
        let all: Vec<Arc<RemoteNode>> = inner.nodes().values().cloned().collect();
        let silent: Vec<Arc<RemoteNode>> = all.iter().filter(|node| node.is_silent(now)).cloned().collect();
        for silent in &silent {
            tracing::warn!(node = %silent.id(), "a worker was silent for its lease: other nodes take its jobs back");
            inner.nodes().remove(&silent.id());
            if let Err(error) = silent.leave().await {
                tracing::warn!(node = %silent.id(), %error, "cannot leave the store; the lease expires instead");
            }
        }
        inner.prune_finally(&silent).await;
        let queues: BTreeSet<&str> = all.iter().flat_map(|node| node.queues()).map(String::as_str).collect();
        prunes.retain(|queue, _| queues.contains(queue.as_str()));
        for queue in &queues {
            // One node is enough: if a claim leaves ready jobs, the store wakes the next node.
            let waiting: Vec<_> = all.iter().filter(|node| node.is_waiting_for(queue)).collect();
            if let Some(one) = waiting.get(rounds % waiting.len().max(1)) {
                one.check_queue(queue);
            }
            if let Err(error) = fire_all_due_ticks(&inner.duly, queue).await {
                tracing::warn!(queue, %error, "cron rules did not fire");
            }
            inner.prune_if_due(queue, prunes.entry((*queue).to_owned()).or_default()).await;
        }
    }
}
