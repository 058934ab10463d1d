//! Connections that this process holds, known to the store so that a call finds them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::error::{Error, Result};
use crate::peers::{Hall, Inner};
use crate::store::CONNECTIONS_MAX;

/// Most connections of one process.
const HELD_MAX: usize = 1_000_000;
/// How long a step may take to be answered before the next one is sent.
const STEP_MAX: Duration = Duration::from_secs(10);

/// Whoever waits until the store has been told of a connection.
type Told = oneshot::Sender<Result<()>>;

/// One step at a time tells the store of them: what was said of a connection first never arrives last.
#[derive(Default)]
pub(crate) struct Connections {
    held: Mutex<BTreeSet<String>>,
    /// Which have come or gone since the store was told.
    untold: Mutex<BTreeMap<String, Vec<Told>>>,
    telling: tokio::sync::Mutex<()>,
    /// How often the way to the store was broken, so that it may have forgotten some; and up to which it was told again.
    doubts: AtomicU64,
    mended: AtomicU64,
    mending: tokio::sync::Mutex<()>,
}

impl Connections {
    fn held(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn untold(&self) -> MutexGuard<'_, BTreeMap<String, Vec<Told>>> {
        self.untold.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this process holds it.
    pub(crate) fn has(&self, id: &str) -> bool {
        self.held().contains(id)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.held().is_empty()
    }

    /// The way to the store was broken: it may have forgotten what we hold.
    pub(crate) fn doubt(&self) {
        self.doubts.fetch_add(1, Ordering::SeqCst);
    }

    /// As many of those that have come or gone as one step tells of.
    fn take_untold(&self) -> BTreeMap<String, Vec<Told>> {
        let mut untold = self.untold();
        let rest = untold.keys().nth(CONNECTIONS_MAX).cloned().map(|first| untold.split_off(&first));
        std::mem::replace(&mut *untold, rest.unwrap_or_default())
    }

    /// The store has not heard of these. Where there are too many, those that are gone end with this process.
    fn tell_again<'i>(&self, ids: impl Iterator<Item = &'i String>) {
        let mut untold = self.untold();
        for id in ids {
            if untold.len() < HELD_MAX {
                untold.entry(id.clone()).or_default();
            }
        }
    }

    fn has_untold(&self) -> bool {
        !self.untold().is_empty()
    }

    /// As many that are held as one step tells of, behind this one.
    fn held_behind(&self, last: Option<String>) -> Vec<String> {
        let behind = (last.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        self.held().range::<String, _>(behind).take(CONNECTIONS_MAX).cloned().collect()
    }
}

impl Inner {
    /// Tells the store which connections have come and gone: all that wait for it in one step.
    async fn tell_connections(&self) {
        let connections = &self.connections;
        let _alone = connections.telling.lock().await;
        // Those that another step has told of are not among them any more.
        let untold = connections.take_untold();
        if untold.is_empty() {
            return;
        }
        let (held, gone): (Vec<String>, Vec<String>) = {
            let held = connections.held();
            untold.keys().cloned().partition(|id| held.contains(id))
        };
        let told = in_time(self.store.set_connections(self.node, &held, &gone)).await;
        if let Err(error) = &told {
            tracing::debug!(%error, "the store was not told of connections; told again with the next sign of life");
            connections.tell_again(untold.keys());
        }
        for waits in untold.into_values().flatten() {
            let told = told.as_ref().map(drop).map_err(|error| Error::store("set_connections", error.to_string()));
            let _ = waits.send(told);
        }
    }

    /// Tells the store once more what it may have forgotten, or has not heard; what fails is tried again with the next sign
    /// of life.
    pub(crate) async fn mend_connections(&self) -> Result<()> {
        let connections = &self.connections;
        let Ok(_alone) = connections.mending.try_lock() else {
            return Ok(());
        };
        if connections.has_untold() {
            self.tell_connections().await;
        }
        let doubts = connections.doubts.load(Ordering::SeqCst);
        if connections.mended.load(Ordering::SeqCst) == doubts {
            return Ok(());
        }
        let mut last = None;
        loop {
            let _alone = connections.telling.lock().await;
            let some = connections.held_behind(last);
            if some.is_empty() {
                break;
            }
            in_time(self.store.keep_connections(self.node, &some)).await?;
            last = some.into_iter().next_back();
        }
        // Not before all of it is told: what was dropped half-way is begun anew.
        connections.mended.store(doubts, Ordering::SeqCst);
        Ok(())
    }
}

/// The answer, unless it takes so long that others have waited enough.
async fn in_time(step: impl Future<Output = Result<()>>) -> Result<()> {
    let late = |_| Error::Unknown { op: "set_connections", source: None };
    tokio::time::timeout(STEP_MAX, step).await.map_err(late).flatten()
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
        let (told, answer) = oneshot::channel();
        self.tell(&connection.id, Some(told));
        answer.await.map_err(|_| Error::store("set_connections", "this handle was closed")).flatten()?;
        // The first one makes this process one that can be found.
        self.inner.soon.notify_one();
        Ok(connection)
    }

    /// This connection has come or gone: the store is told so.
    fn tell(&self, id: &str, told: Option<Told>) {
        self.inner.connections.untold().entry(id.to_owned()).or_default().extend(told);
        let inner = self.inner.clone();
        self.spawn(async move { inner.tell_connections().await });
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.hall.inner.connections.held().remove(&self.id);
        self.hall.tell(&self.id, None);
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("id", &self.id).finish_non_exhaustive()
    }
}
