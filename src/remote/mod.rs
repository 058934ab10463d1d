//! Nodes held on behalf of workers outside this process, in whatever language, who speak through somebody here.
//!
//! To the store such a node is like any other: it has an identity, a lease of its own and fences, and when its worker falls
//! silent, others take back what it held. This file keeps the list of them; `node` is one of them, `state` what is known of it,
//! `hand` what it holds, `orders` what others want of it, `lock` are locks for those who cannot keep a guard.

mod hand;
mod lock;
mod node;
mod orders;
mod settle;
mod state;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

pub(crate) use self::hand::{Said, Settling};
pub(crate) use self::node::Remote;
use crate::client::Duly;
use crate::clock;
use crate::error::{Error, Result};
use crate::job::push::check_name;
use crate::node::{Node, NodeId};
use crate::worker::{KEEP_DONE_MAX, fire_ticks};

/// How long a hold lasts without a beat, unless the worker says otherwise: longer than for those who beat by a thread of ours.
pub(crate) const LEASE: Duration = Duration::from_secs(30);
/// Shortest and longest lease that a worker may ask for.
const LEASE_MIN: Duration = Duration::from_secs(1);
const LEASE_MAX: Duration = Duration::from_secs(3600);
/// Most nodes that are held for others at a time.
const REMOTES_MAX: usize = 10_000;
/// Most queues and kinds of one worker.
const NAMES_MAX: usize = 256;
/// How often somebody looks after the silent, and makes up for lost wakes: for each queue, never for each worker.
const LOOK: Duration = Duration::from_secs(1);
/// How long a server that ends waits until what its workers hold has been given back; what is left then counts as a crash.
const LEAVE_ALL_MAX: Duration = Duration::from_secs(5);
/// How often ended jobs are looked through for those past their time, in looks.
const PRUNE_EVERY: u64 = 60;

/// All nodes that this process holds for others. Clones share them.
#[derive(Clone)]
pub(crate) struct Remotes {
    inner: Arc<Inner>,
}

struct Inner {
    duly: Duly,
    nodes: Mutex<HashMap<NodeId, Arc<Remote>>>,
    /// Somebody looks after them.
    attended: std::sync::atomic::AtomicBool,
}

impl Inner {
    fn nodes(&self) -> MutexGuard<'_, HashMap<NodeId, Arc<Remote>>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Remotes {
    pub(crate) fn new(duly: Duly) -> Self {
        Remotes { inner: Arc::new(Inner { duly, nodes: Mutex::default(), attended: false.into() }) }
    }

    /// A worker of somebody's joins, for these queues and kinds; without kinds it takes every kind.
    pub(crate) async fn join(
        &self,
        whose: &str,
        queues: Vec<String>,
        mut kinds: Vec<String>,
        lease: Duration,
    ) -> Result<Arc<Remote>> {
        check_names("queues", "queue", &queues)?;
        check_names("kinds", "kind", &kinds)?;
        kinds.sort();
        kinds.dedup();
        if queues.is_empty() {
            return Err(Error::invalid("queues", "name at least one to work on"));
        }
        if !(LEASE_MIN..=LEASE_MAX).contains(&lease) {
            return Err(Error::invalid("lease_ms", format!("must be from {LEASE_MIN:?} to {LEASE_MAX:?}")));
        }
        if self.inner.nodes().len() >= REMOTES_MAX {
            return Err(Error::Conflict(format!("{REMOTES_MAX} workers have joined here already")));
        }
        let mut node = Node::fresh(queues);
        node.lease = lease;
        node.takes.kinds = Some(kinds.clone()).filter(|kinds| !kinds.is_empty());
        let remote = Remote::join(self.inner.duly.clone(), whose.to_owned(), node, kinds).await?;
        self.inner.nodes().insert(remote.id(), remote.clone());
        if !self.inner.attended.swap(true, std::sync::atomic::Ordering::Relaxed) {
            tokio::spawn(look_after(Arc::downgrade(&self.inner)));
        }
        Ok(remote)
    }

    /// The node of this name, if it is held here and has not fallen silent. `whose` is `None` for those who may speak for any.
    ///
    /// Somebody else's is not there: everybody can read its id, so that knowing it proves nothing.
    pub(crate) fn get(&self, id: NodeId, whose: Option<&str>) -> Result<Arc<Remote>> {
        let known = self.inner.nodes().get(&id).cloned();
        let known = known.filter(|remote| whose.is_none_or(|whose| remote.whose() == whose));
        known.ok_or_else(|| Error::NotFound {
            what: "worker",
            name: format!("{id} (it was silent for its lease, or the server has restarted: join again)"),
        })
    }

    /// A worker goes in good order; `whose` as for [`Remotes::get`].
    pub(crate) async fn leave(&self, id: NodeId, whose: Option<&str>) -> Result<()> {
        let remote = self.get(id, whose)?;
        self.inner.nodes().remove(&id);
        remote.leave_in_order().await
    }

    /// All go in good order, side by side and in bounded time: for a server that ends. Nobody may ask for anything any more.
    ///
    /// Their workers have not died: what they hold goes to whoever joins next, and no crash is counted.
    pub(crate) async fn leave_all(&self) {
        let all: Vec<Arc<Remote>> = self.inner.nodes().drain().map(|(_, remote)| remote).collect();
        let leaving = futures_util::future::join_all(all.iter().map(async |remote| {
            if let Err(error) = remote.leave_in_order().await {
                tracing::warn!(node = %remote.id(), %error, "a worker's jobs could not be given back: a crash is counted");
            }
        }));
        if tokio::time::timeout(LEAVE_ALL_MAX, leaving).await.is_err() {
            tracing::warn!("not all that workers hold was given back in time: a crash is counted for the rest");
        }
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

/// Lets go of the silent, makes up for lost wakes, prunes: as long as anybody uses this.
async fn look_after(inner: Weak<Inner>) {
    let mut looks: u64 = 0;
    loop {
        tokio::time::sleep(LOOK).await;
        let Some(inner) = inner.upgrade() else {
            return;
        };
        looks += 1;
        let now = clock::tick();
        let all: Vec<Arc<Remote>> = inner.nodes().values().cloned().collect();
        for silent in all.iter().filter(|remote| remote.is_silent(now)) {
            tracing::warn!(node = %silent.id(), "a worker has been silent for its lease: what it holds goes to others");
            inner.nodes().remove(&silent.id());
            if let Err(error) = silent.leave().await {
                tracing::warn!(node = %silent.id(), %error, "its lease ends by itself");
            }
        }
        let queues: BTreeSet<&str> = all.iter().flat_map(|remote| remote.queues()).map(String::as_str).collect();
        for queue in &queues {
            // One is enough: if it finds more than it takes, it wakes the next.
            let waiting: Vec<_> = all.iter().filter(|remote| remote.waits_for(queue)).collect();
            if let Some(one) = waiting.get(usize::try_from(looks).unwrap_or(0) % waiting.len().max(1)) {
                one.look(queue);
            }
            if let Err(error) = fire_ticks(&inner.duly, queue).await {
                tracing::warn!(queue, %error, "cron rules did not fire");
            }
            if looks.is_multiple_of(PRUNE_EVERY)
                && let Err(error) = inner.duly.store.prune(queue, KEEP_DONE_MAX).await
            {
                tracing::warn!(queue, %error, "prune failed");
            }
        }
    }
}
