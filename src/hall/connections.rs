//! Connections that this process holds, known to the store so that a call finds them.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Hall;
use crate::error::{Error, Result};
use crate::node::NodeId;
use crate::store::{CONNECTIONS_MAX, Store};

/// Most connections of one process.
const HELD_MAX: usize = 1_000_000;

#[derive(Default)]
pub(super) struct Connections {
    held: Mutex<BTreeSet<String>>,
    /// The store may have forgotten some.
    doubted: AtomicBool,
}

impl Connections {
    fn held(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.held().is_empty()
    }

    /// The way to the store was broken: it may have forgotten what we hold.
    pub(super) fn doubt(&self) {
        self.doubted.store(true, Ordering::Relaxed);
    }

    /// Tells the store once more what it may have forgotten.
    pub(super) async fn mend(&self, store: &dyn Store, node: NodeId) -> Result<()> {
        if !self.doubted.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        let held: Vec<String> = self.held().iter().cloned().collect();
        for some in held.chunks(CONNECTIONS_MAX) {
            if let Err(error) = store.set_connections(node, some, &[]).await {
                self.doubt();
                return Err(error);
            }
        }
        Ok(())
    }
}

/// A connection that this process holds: calls for it come here while this lives.
#[must_use = "dropping it makes the connection unknown again"]
pub struct Connection {
    hall: Arc<Hall>,
    id: String,
}

impl Connection {
    /// The connection's name.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }
}

impl Hall {
    pub(crate) async fn hold_connection(self: &Arc<Self>, id: String) -> Result<Connection> {
        self.attended().await?;
        {
            let mut held = self.inner.connections.held();
            if held.len() >= HELD_MAX {
                return Err(Error::invalid("connection", format!("{HELD_MAX} are held by this process already")));
            }
            if !held.insert(id.clone()) {
                return Err(Error::Conflict(format!("connection {id} is held by this process already")));
            }
        }
        let connection = Connection { hall: self.clone(), id };
        self.inner.store.set_connections(self.inner.node, std::slice::from_ref(&connection.id), &[]).await?;
        // The first one makes this process one that can be found.
        self.inner.soon.notify_one();
        Ok(connection)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.hall.inner.connections.held().remove(&self.id);
        let (inner, id) = (self.hall.inner.clone(), self.id.clone());
        self.hall.spawn(async move {
            // If it fails, the caller finds nobody here who knows it.
            if let Err(error) = inner.store.set_connections(inner.node, &[], &[id]).await {
                tracing::debug!(%error, "a connection could not be forgotten");
            }
        });
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("id", &self.id).finish_non_exhaustive()
    }
}
