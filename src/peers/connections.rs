//! Connections that this process holds, known to the store so that a call finds them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::error::{Error, Result};
use crate::peers::{Peers, PeersInner};
use crate::store::CONNECTIONS_BATCH_MAX;

/// Most connections of one process.
const HELD_CONNECTIONS_MAX: usize = 1_000_000;
/// How long a step may take to be answered before the next one is sent.
const UPDATE_TIMEOUT: Duration = Duration::from_secs(10);

/// Whoever waits until the store has been told of a connection.
type UpdateSender = oneshot::Sender<Result<()>>;

/// One step at a time tells the store of them: what was said of a connection first never arrives last.
#[derive(Default)]
pub(crate) struct HeldConnections {
    held: Mutex<BTreeSet<String>>,
    /// Which have come or gone since the store was told.
    unsent: Mutex<BTreeMap<String, Vec<UpdateSender>>>,
    sending: tokio::sync::Mutex<()>,
    /// How often the way to the store was broken, so that it may have forgotten some; and up to which it was told again.
    gaps: AtomicU64,
    gaps_resynced: AtomicU64,
    resyncing: tokio::sync::Mutex<()>,
}

impl HeldConnections {
    fn held(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unsent(&self) -> MutexGuard<'_, BTreeMap<String, Vec<UpdateSender>>> {
        self.unsent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this process holds it.
    pub(crate) fn contains(&self, id: &str) -> bool {
        self.held().contains(id)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.held().is_empty()
    }

    /// The way to the store was broken: it may have forgotten what we hold.
    pub(crate) fn mark_gap(&self) {
        self.gaps.fetch_add(1, Ordering::SeqCst);
    }

    /// As many of those that have come or gone as one step tells of.
    fn take_unsent(&self) -> BTreeMap<String, Vec<UpdateSender>> {
        let mut untold = self.unsent();
        let rest = untold.keys().nth(CONNECTIONS_BATCH_MAX).cloned().map(|first| untold.split_off(&first));
        std::mem::replace(&mut *untold, rest.unwrap_or_default())
    }

    /// The store has not heard of these. Where there are too many, those that are gone end with this process.
    fn requeue<'i>(&self, ids: impl Iterator<Item = &'i String>) {
        let mut untold = self.unsent();
        for id in ids {
            if untold.len() < HELD_CONNECTIONS_MAX {
                untold.entry(id.clone()).or_default();
            }
        }
    }

    fn has_unsent(&self) -> bool {
        !self.unsent().is_empty()
    }

    /// As many that are held as one step tells of, behind this one.
    fn held_after(&self, last: Option<String>) -> Vec<String> {
        let behind = (last.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        self.held().range::<String, _>(behind).take(CONNECTIONS_BATCH_MAX).cloned().collect()
    }
}

impl PeersInner {
    /// Tells the store which connections have come and gone: all that wait for it in one step.
    async fn send_connections(&self) {
        let connections = &self.connections;
        let _alone = connections.sending.lock().await;
        // Those that another step has told of are not among them any more.
        let untold = connections.take_unsent();
        if untold.is_empty() {
            return;
        }
        let (held, gone): (Vec<String>, Vec<String>) = {
            let held = connections.held();
            untold.keys().cloned().partition(|id| held.contains(id))
        };
        let told = with_timeout(self.store.set_connections(self.node, &held, &gone)).await;
        if let Err(error) = &told {
            tracing::debug!(%error, "the store was not told of connections; told again with the next sign of life");
            connections.requeue(untold.keys());
        }
        for waits in untold.into_values().flatten() {
            let told = told.as_ref().map(drop).map_err(|error| Error::store("set_connections", error.to_string()));
            let _ = waits.send(told);
        }
    }

    /// Tells the store once more what it may have forgotten, or has not heard; what fails is tried again with the next sign
    /// of life.
    pub(crate) async fn resync_connections(&self) -> Result<()> {
        let connections = &self.connections;
        let Ok(_alone) = connections.resyncing.try_lock() else {
            return Ok(());
        };
        if connections.has_unsent() {
            self.send_connections().await;
        }
        let doubts = connections.gaps.load(Ordering::SeqCst);
        if connections.gaps_resynced.load(Ordering::SeqCst) == doubts {
            return Ok(());
        }
        let mut last = None;
        loop {
            let _alone = connections.sending.lock().await;
            let some = connections.held_after(last);
            if some.is_empty() {
                break;
            }
            with_timeout(self.store.refresh_connections(self.node, &some)).await?;
            last = some.into_iter().next_back();
        }
        // Not before all of it is told: what was dropped half-way is begun anew.
        connections.gaps_resynced.store(doubts, Ordering::SeqCst);
        Ok(())
    }
}

/// The answer, unless it takes so long that others have waited enough.
async fn with_timeout(step: impl Future<Output = Result<()>>) -> Result<()> {
    let late = |_| Error::Unknown { op: "set_connections", source: None };
    tokio::time::timeout(UPDATE_TIMEOUT, step).await.map_err(late).flatten()
}

/// A connection that this process holds: calls for it come here while this lives.
#[must_use = "dropping it makes the connection unknown again"]
pub struct HeldConnection {
    peers: Arc<Peers>,
    id: String,
}

impl HeldConnection {
    /// The connection's name.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }
}

impl Peers {
    pub(crate) async fn hold_connection(self: &Arc<Self>, id: String) -> Result<HeldConnection> {
        self.ensure_announced().await?;
        {
            let mut held = self.inner.connections.held();
            if held.len() >= HELD_CONNECTIONS_MAX {
                return Err(Error::invalid(
                    "connection",
                    format!("{HELD_CONNECTIONS_MAX} are held by this process already"),
                ));
            }
            if !held.insert(id.clone()) {
                return Err(Error::Conflict(format!("connection {id} is held by this process already")));
            }
        }
        let connection = HeldConnection { peers: self.clone(), id };
        let (told, answer) = oneshot::channel();
        self.send_connection_update(&connection.id, Some(told));
        answer.await.map_err(|_| Error::store("set_connections", "this handle was closed")).flatten()?;
        // The first one makes this process one that can be found.
        self.inner.announce_now.notify_one();
        Ok(connection)
    }

    /// This connection has come or gone: the store is told so.
    fn send_connection_update(&self, id: &str, told: Option<UpdateSender>) {
        self.inner.connections.unsent().entry(id.to_owned()).or_default().extend(told);
        let inner = self.inner.clone();
        self.spawn(async move { inner.send_connections().await });
    }
}

impl Drop for HeldConnection {
    fn drop(&mut self) {
        self.peers.inner.connections.held().remove(&self.id);
        self.peers.send_connection_update(&self.id, None);
    }
}

impl std::fmt::Debug for HeldConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("id", &self.id).finish_non_exhaustive()
    }
}
