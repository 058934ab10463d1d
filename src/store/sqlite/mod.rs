//! The store in a SQLite file: no server, several processes, one sync for many commits.
//!
//! One thread writes (`writer`) and one reads (`reader`). Nodes share a registry in the directory `FILE-nodes`
//! (`nodes`) and exchange messages over a bus there (`peers`).

mod access;
mod contract;
mod cron;
mod errors;
mod file;
mod group_commit;
mod jobs;
mod locks;
mod maintenance;
mod nodes;
mod peers;
mod reader;
mod rows;
mod stats;
mod transfer;
mod tx;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use async_trait::async_trait;
use rusqlite::{Connection, params};
use tokio::sync::mpsc;

use self::nodes::liveness::LivenessSnapshot;
use self::nodes::registry::NodeRegistry;
use self::nodes::wake::Notifier;
use self::reader::Reader;
use self::tx::Tx;
use self::writer::Writer;
use super::open::{Durability, StoreOptions};
use super::{
    AnnounceReply, AttemptEnd, AuditEntry, AuditRecord, CLAIM_MAX, COMPLETION_QUEUES_MAX, CRON_FIRINGS_MAX, Capacity,
    ChangeResult, ChangeTarget, Claim, ClaimReply, CronFiring, CronPage, CronRecord, DeadGroup, DueCrons, Filter,
    FireCronsReply, Health, HeartbeatReply, History, HistoryQuery, JobEdit, JobPage, KindStats, LIST_EXAMINED_MAX,
    LOCK_EXTENDS_MAX, LockPage, LockReply, LockRequest, NewToken, Notification, PAGE_BYTES_MAX, PAGE_SIZE,
    PAGE_SIZE_MAX, PRUNE_MAX, PeerInfo, ProgressUpdate, PutCron, PutCronResult, QueueCounts, Recipient, StatCounters,
    Store, TransferBatch, TransferBatchResult, TransferMarkReply, Wake,
};
use crate::admin::token::Token;
use crate::clock::{Clock, Micros, micros};
use crate::error::{Error, Result};
use crate::job::push::{Due, Push, PushResult};
use crate::job::{JobId, JobRecord};
use crate::node::{Node, NodeId, NodeRecord};
use crate::store::sqlite::maintenance::upkeep;
use crate::store::sqlite::peers::SqlitePeers;

pub use crate::store::sqlite::jobs::push_in::AfterCommit;
pub(crate) use crate::store::sqlite::jobs::push_in::push_in;
pub use crate::store::sqlite::maintenance::sql::{ReadOnlySql, SQL_ROWS_MAX, SqlTable};

/// A store in a SQLite file, or in memory.
pub(crate) struct Sqlite {
    /// `None` for a store in memory, which has one connection. Declared before the writer, so that it closes first: the
    /// last connection to close removes the WAL.
    reader: Option<Reader>,
    writer: Writer,
    peers: SqlitePeers,
    registry: Arc<NodeRegistry>,
    path: Option<PathBuf>,
    durability: Durability,
    history_enabled: bool,
    clock: Clock,
    removed_id_retention: Micros,
    wal_grown: AtomicBool,
}

impl Sqlite {
    /// Opens a file, and creates it if it does not exist.
    pub(crate) fn open(path: &Path, options: &StoreOptions) -> Result<Self> {
        let path = file::prepare_file(path)?;
        let conn = file::connect(&path, options.durability)?;
        let reader = Reader::start(file::connect_read_only(&path)?)?;
        let registry = NodeRegistry::open(&path, options.clock.clone())
            .map_err(|e| Error::store("open", format!("{}-nodes: {e}", path.display())))?;
        Sqlite::start(conn, Some(reader), registry, Some(path), options)
    }

    /// Opens a store that ends with its last handle.
    pub(crate) fn in_memory(options: &StoreOptions) -> Result<Self> {
        let registry = NodeRegistry::in_memory(options.clock.clone());
        Sqlite::start(file::connect_in_memory()?, None, registry, None, options)
    }

    fn start(
        conn: Connection,
        reader: Option<Reader>,
        registry: NodeRegistry,
        path: Option<PathBuf>,
        options: &StoreOptions,
    ) -> Result<Self> {
        let registry = Arc::new(registry);
        let wal = path.as_deref().map(file::wal_path).filter(|_| options.durability == Durability::Second);
        Ok(Sqlite {
            writer: Writer::start(conn, options.clock.clone(), Notifier::new(registry.clone()), wal, options.history)?,
            reader,
            peers: SqlitePeers::new(registry.clone())?,
            registry,
            path,
            durability: options.durability,
            history_enabled: options.history,
            clock: options.clock.clone(),
            removed_id_retention: micros(options.remember),
            wal_grown: AtomicBool::new(false),
        })
    }

    async fn read<T, F>(&self, name: &'static str, read: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T> + Send + 'static,
    {
        match &self.reader {
            Some(reader) => reader.read(name, read).await,
            None => {
                let result = self.writer.run_outside_transaction(name, |conn| Ok(read(conn)));
                result.await?
            }
        }
    }

    async fn join_worker(&self, node: &Node) -> Result<()> {
        let slot = self
            .registry
            .join(node.id, node.lease)
            .map_err(|e| Error::store("heartbeat", format!("cannot take a slot in the node registry: {e}")))?;
        let (id, queues) = (node.id, node.queues.join(" "));
        let profile = serde_json::to_string(&node.profile).ok();
        let registry = self.registry.clone();
        let registered = self.writer.write("heartbeat", move |tx| {
            nodes::delete_dead_nodes(tx, &registry)?;
            nodes::register_node(tx, id, slot, &queues, profile.as_deref()).map(drop)
        });
        if let Err(error) = registered.await {
            // The database does not know the node, so its slot is released. The next heartbeat joins again.
            let _ = self.registry.leave(id);
            return Err(error);
        }
        let roomy = self.path.as_deref().is_some_and(upkeep::has_disk_room);
        if roomy && !self.wal_grown.swap(true, Ordering::Relaxed) {
            // Only makes commits cheaper, so a failure is not an error.
            if let Err(error) = self.writer.run_outside_transaction("heartbeat", upkeep::grow_wal).await {
                tracing::warn!(%error, "the WAL could not be grown");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
