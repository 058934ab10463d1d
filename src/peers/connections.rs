//! Connections that this process holds, registered in the store so that calls find them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::error::{ConflictKind, Error, Result};
use crate::peers::{Peers, PeersInner};
use crate::store::{CONNECTIONS_BATCH_MAX, PeerStore};
use crate::sync::LockExt;

/// Most connections of one process.
const HELD_CONNECTIONS_MAX: usize = 1_000_000;
/// How long an update may take before the next one is sent.
const UPDATE_TIMEOUT: Duration = Duration::from_secs(10);

/// Notifies the caller that waits for the registration of a connection.
type UpdateSender = oneshot::Sender<Result<()>>;

/// The held connections. Updates are sent one at a time, so that an earlier one never arrives last.
#[derive(Default)]
pub(crate) struct HeldConnections {
    held: Mutex<BTreeSet<String>>,
    /// Connections added or removed since the last update.
    unsent: Mutex<BTreeMap<String, Vec<UpdateSender>>>,
    sending: tokio::sync::Mutex<()>,
    /// How often the store may have lost connections, and how many of these gaps are resolved.
    gaps: AtomicU64,
    gaps_resynced: AtomicU64,
    resyncing: tokio::sync::Mutex<()>,
}

impl HeldConnections {
    fn held(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.held.lock_unpoisoned()
    }

    fn unsent(&self) -> MutexGuard<'_, BTreeMap<String, Vec<UpdateSender>>> {
        self.unsent.lock_unpoisoned()
    }

    /// Returns whether this process holds the connection.
    pub(crate) fn contains(&self, id: &str) -> bool {
        self.held().contains(id)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.held().is_empty()
    }

    /// Records that the store may have lost this process's connections.
    pub(crate) fn mark_gap(&self) {
        self.gaps.fetch_add(1, Ordering::SeqCst);
    }

    /// Takes as many pending changes as fit into one update.
    fn take_unsent(&self) -> BTreeMap<String, Vec<UpdateSender>> {
        let mut unsent = self.unsent();
        let rest = unsent.keys().nth(CONNECTIONS_BATCH_MAX).cloned().map(|first| unsent.split_off(&first));
        std::mem::replace(&mut *unsent, rest.unwrap_or_default())
    }

    /// Queues these changes again. If there are too many, removed connections expire with this process.
    fn requeue<'i>(&self, ids: impl Iterator<Item = &'i String>) {
        let mut unsent = self.unsent();
        for id in ids {
            if unsent.len() < HELD_CONNECTIONS_MAX {
                unsent.entry(id.clone()).or_default();
            }
        }
    }

    fn has_unsent(&self) -> bool {
        !self.unsent().is_empty()
    }

    /// Returns the held connections after `last`, as many as fit into one update.
    fn held_after(&self, last: Option<String>) -> Vec<String> {
        let range = (last.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        self.held().range::<String, _>(range).take(CONNECTIONS_BATCH_MAX).cloned().collect()
    }
}

impl PeersInner {
    /// Sends all pending changes, at most one update's worth.
    async fn send_connections(&self) {
        let connections = &self.connections;
        let _exclusive = connections.sending.lock().await;
        // Changes sent by an earlier update are no longer pending.
        let unsent = connections.take_unsent();
        if unsent.is_empty() {
            return;
        }
        let (held, gone): (Vec<String>, Vec<String>) = {
            let held = connections.held();
            unsent.keys().cloned().partition(|id| held.contains(id))
        };
        let result = with_timeout(self.store.set_connections(self.node, &held, &gone)).await;
        if let Err(error) = &result {
            tracing::debug!(%error, "failed to register connections; retrying with the next announcement");
            connections.requeue(unsent.keys());
        }
        for sender in unsent.into_values().flatten() {
            let result = result.as_ref().map(drop).map_err(|error| Error::store("set_connections", error.to_string()));
            let _ = sender.send(result);
        }
    }

    /// Registers connections again after a gap and sends pending changes; the next announcement retries failures.
    pub(crate) async fn resync_connections(&self) -> Result<()> {
        let connections = &self.connections;
        let Ok(_exclusive) = connections.resyncing.try_lock() else {
            return Ok(());
        };
        if connections.has_unsent() {
            self.send_connections().await;
        }
        let gaps = connections.gaps.load(Ordering::SeqCst);
        if connections.gaps_resynced.load(Ordering::SeqCst) == gaps {
            return Ok(());
        }
        let mut last = None;
        loop {
            let _exclusive = connections.sending.lock().await;
            let batch = connections.held_after(last);
            if batch.is_empty() {
                break;
            }
            with_timeout(self.store.refresh_connections(self.node, &batch)).await?;
            last = batch.into_iter().next_back();
        }
        // Only after all are sent: an interrupted resync starts over.
        connections.gaps_resynced.store(gaps, Ordering::SeqCst);
        Ok(())
    }
}

/// Returns the result of an update, or an error if it takes too long for other callers to wait.
async fn with_timeout(update: impl Future<Output = Result<()>>) -> Result<()> {
    let timed_out = |_| Error::unknown("set_connections");
    tokio::time::timeout(UPDATE_TIMEOUT, update).await.map_err(timed_out).flatten()
}

/// A connection that this process holds. Calls for it come here until the value is dropped.
///
/// See [`Duly::hold_connection`](crate::Duly::hold_connection) for an example.
#[must_use = "dropping it makes the connection unknown again"]
pub struct HeldConnection {
    peers: Arc<Peers>,
    id: String,
}

impl HeldConnection {
    /// Returns the connection's name.
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
                    format!("this process already holds {HELD_CONNECTIONS_MAX} connections; drop some of them first"),
                ));
            }
            if !held.insert(id.clone()) {
                return Err(Error::conflict(
                    ConflictKind::Exists,
                    format!("this process already holds connection {id}; drop that value first"),
                ));
            }
        }
        let connection = HeldConnection { peers: self.clone(), id };
        let (sender, result) = oneshot::channel();
        self.send_connection_update(&connection.id, Some(sender));
        result
            .await
            .map_err(|_| Error::store("set_connections", "this handle was closed; open the store again"))
            .flatten()?;
        // The first connection makes this process discoverable.
        self.inner.announce_now.notify_one();
        Ok(connection)
    }

    /// Sends an update for a connection that was added or removed.
    fn send_connection_update(&self, id: &str, sender: Option<UpdateSender>) {
        self.inner.connections.unsent().entry(id.to_owned()).or_default().extend(sender);
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
        f.debug_struct("HeldConnection").field("id", &self.id).finish_non_exhaustive()
    }
}
