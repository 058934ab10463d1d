//! Nodes held for workers outside the process, in any language.
//!
//! A front end such as an HTTP server joins a [`RemoteNode`] for each of its workers, and passes their requests on.
//! To the store a remote node is like any other: it has an id, a lease and fences. If its worker sends nothing for the
//! whole lease, other nodes take back its jobs.
//!
//! ```
//! use std::time::Duration;
//! use duly::worker::remote::{LEASE, RemoteNodes, ReportedOutcome, Settlement};
//! use duly::{Duly, Push};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> duly::Result<()> {
//! let duly = Duly::open(":memory:").await?;
//! duly.push(Push::new("resize", r#"{"image":7}"#)).await?;
//! let nodes = RemoteNodes::new(duly);
//! let node = nodes.join("ada", vec!["default".into()], vec!["resize".into()], LEASE).await?;
//! for job in node.claim(10, Duration::ZERO).await? {
//!     let ack = Settlement::new(job.job.id, job.fence, ReportedOutcome::Ack);
//!     assert!(node.settle(vec![ack]).await?.is_empty(), "the worker held it");
//! }
//! nodes.leave(node.id(), None).await?;
//! # Ok(())
//! # }
//! ```

mod commands;
mod held_jobs;
mod lock;
mod node;
mod settle;
mod state;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

pub use self::held_jobs::{ReportedOutcome, Settlement};
pub use self::lock::LockHold;
pub use self::node::{Instructions, RemoteNode};
use super::{DEFAULT_KEEP_DONE_MAX, fire_all_due_ticks};
use crate::client::Duly;
use crate::clock;
use crate::error::{Error, Result};
use crate::job::push::check_name;
use crate::node::{Node, NodeId};
use crate::store::JobStore;
use crate::sync::LockExt;

/// The default lease of a remote node: longer than that of a worker in this process, which has a heartbeat thread.
pub const LEASE: Duration = Duration::from_secs(30);
/// The shortest and the longest lease that a worker may request.
const LEASE_MIN: Duration = Duration::from_secs(1);
const LEASE_MAX: Duration = Duration::from_secs(3600);
/// The most remote nodes at a time.
const NODES_MAX: usize = 10_000;
/// The most queues and the most kinds of one worker.
const NAMES_MAX: usize = 256;
/// The interval of the maintenance task, which works once per queue and not once per worker.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(1);
/// How long [`RemoteNodes::leave_all`] waits for the release of held jobs; the rest counts as a crash.
const LEAVE_ALL_MAX: Duration = Duration::from_secs(5);
/// The maintenance task prunes ended jobs in every round that this number divides.
const PRUNE_EVERY: u64 = 60;

/// The remote nodes of this process. Clones share them.
#[derive(Clone)]
pub struct RemoteNodes {
    inner: Arc<Inner>,
}

struct Inner {
    duly: Duly,
    nodes: Mutex<HashMap<NodeId, Arc<RemoteNode>>>,
    /// The maintenance task runs.
    maintained: std::sync::atomic::AtomicBool,
}

impl Inner {
    fn nodes(&self) -> MutexGuard<'_, HashMap<NodeId, Arc<RemoteNode>>> {
        self.nodes.lock_unpoisoned()
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
        RemoteNodes { inner: Arc::new(Inner { duly, nodes: Mutex::default(), maintained: false.into() }) }
    }

    /// Joins a node for a worker on these queues. Without kinds the worker takes every kind.
    ///
    /// `joined_by` names the client: only [`RemoteNodes::get`] with the same name, or with none, returns the node.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a bad name or lease, [`Error::Conflict`] if there are too many remote nodes.
    pub async fn join(
        &self,
        joined_by: &str,
        queues: Vec<String>,
        mut kinds: Vec<String>,
        lease: Duration,
    ) -> Result<Arc<RemoteNode>> {
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
        if self.inner.nodes().len() >= NODES_MAX {
            return Err(Error::Conflict(format!("{NODES_MAX} workers have joined here already")));
        }
        let mut node = Node::fresh(queues);
        node.lease = lease;
        node.profile.kinds = Some(kinds.clone()).filter(|kinds| !kinds.is_empty());
        let node = RemoteNode::join(self.inner.duly.clone(), joined_by.to_owned(), node, kinds).await?;
        self.inner.nodes().insert(node.id(), node.clone());
        if !self.inner.maintained.swap(true, std::sync::atomic::Ordering::Relaxed) {
            tokio::spawn(maintain(Arc::downgrade(&self.inner)));
        }
        Ok(node)
    }

    /// Returns the node with this id. With `joined_by`, only if that client has joined it.
    ///
    /// Node ids are public, so an id alone does not prove that a client may act for the node.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`] if there is no such node, its lease is over, or another client has joined it.
    pub fn get(&self, id: NodeId, joined_by: Option<&str>) -> Result<Arc<RemoteNode>> {
        let node = self.inner.nodes().get(&id).cloned();
        let node = node.filter(|node| joined_by.is_none_or(|name| node.joined_by() == name));
        node.ok_or_else(|| Error::NotFound {
            what: "worker",
            name: format!("{id} (it was silent for its lease, or the server has restarted; join again)"),
        })
    }

    /// Releases the jobs of a node, and removes it; `joined_by` as for [`RemoteNodes::get`].
    pub async fn leave(&self, id: NodeId, joined_by: Option<&str>) -> Result<()> {
        let node = self.get(id, joined_by)?;
        self.inner.nodes().remove(&id);
        node.release_and_leave().await
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
        // The statistics of the last attempts, which are otherwise sent every few seconds.
        let _ = tokio::time::timeout(LEAVE_ALL_MAX, self.inner.duly.kind_stats.flush(&*self.inner.duly.store)).await;
    }
}

#[cfg(test)]
mod tests;

fn check_names(field: &'static str, one: &'static str, names: &[String]) -> Result<()> {
    if names.len() > NAMES_MAX {
        return Err(Error::invalid(field, format!("at most {NAMES_MAX}")));
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
    let mut rounds: u64 = 0;
    loop {
        tokio::time::sleep(MAINTENANCE_INTERVAL).await;
        let Some(inner) = inner.upgrade() else {
            return;
        };
        rounds += 1;
        let now = clock::monotonic_now();
        let all: Vec<Arc<RemoteNode>> = inner.nodes().values().cloned().collect();
        for silent in all.iter().filter(|node| node.is_silent(now)) {
            tracing::warn!(node = %silent.id(), "a worker was silent for its lease: other nodes take its jobs back");
            inner.nodes().remove(&silent.id());
            if let Err(error) = silent.leave().await {
                tracing::warn!(node = %silent.id(), %error, "cannot leave the store; the lease expires instead");
            }
        }
        let queues: BTreeSet<&str> = all.iter().flat_map(|node| node.queues()).map(String::as_str).collect();
        for queue in &queues {
            // One node is enough: if a claim leaves ready jobs, the store wakes the next node.
            let waiting: Vec<_> = all.iter().filter(|node| node.is_waiting_for(queue)).collect();
            if let Some(one) = waiting.get(usize::try_from(rounds).unwrap_or(0) % waiting.len().max(1)) {
                one.check_queue(queue);
            }
            if let Err(error) = fire_all_due_ticks(&inner.duly, queue).await {
                tracing::warn!(queue, %error, "cron rules did not fire");
            }
            if rounds.is_multiple_of(PRUNE_EVERY)
                && let Err(error) = inner.duly.store.prune(queue, DEFAULT_KEEP_DONE_MAX).await
            {
                tracing::warn!(queue, %error, "prune failed");
            }
        }
    }
}
