//! The store in a SQLite file: no server, several processes, one sync for many commits.
//!
//! One thread writes (`writer`) and one reads (`reader`). Nodes share a registry in the directory `FILE-nodes`
//! (`nodes`) and exchange messages over a bus there (`peers`).

mod access;
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
use std::sync::atomic::AtomicBool;
use std::time::SystemTime;

use rusqlite::Connection;

use self::nodes::registry::NodeRegistry;
use self::nodes::wake::Notifier;
use self::peers::SqlitePeers;
use self::reader::Reader;
use self::writer::Writer;
use super::contract::{self, Capabilities, Store};
use super::open::{Durability, StoreOptions};
use crate::clock::{Clock, Micros, micros};
use crate::error::{Error, Result};

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
            removed_id_retention: micros(options.remember_ids),
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

    /// Runs a query that fails only as SQLite does.
    async fn query<T, F>(&self, name: &'static str, query: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        self.read(name, move |conn| query(conn).map_err(|e| errors::from_sqlite(name, e))).await
    }
}

impl contract::sealed::Sealed for Sqlite {}

impl Store for Sqlite {
    fn name(&self) -> &'static str {
        "SQLite"
    }

    fn capabilities(&self) -> Capabilities<'_> {
        Capabilities {
            jobs: Some(self),
            admin: Some(self),
            progress: Some(self),
            crons: Some(self),
            locks: Some(self),
            peers: Some(self),
            completions: Some(self),
            stats: Some(self),
            access: Some(self),
            transfer: Some(self),
            maintenance: Some(self),
            health: Some(self),
            snapshot: Some(self),
            // A file copies itself.
            scan: None,
        }
    }

    fn advice(&self, _capability: &str) -> &'static str {
        "back up the file instead"
    }

    fn runtime(&self) -> Option<tokio::runtime::Handle> {
        None
    }

    fn now(&self) -> SystemTime {
        self.clock.now()
    }
}

#[cfg(test)]
mod tests;
