//! The store in a SQLite file: no server, several processes, one sync for many commits.
//!
//! One thread writes (`writer`) and one reads (`reader`). Nodes share a registry in the directory `FILE-nodes`
//! (`nodes`) and exchange messages over a bus there (`peers`).

mod access;
mod cron;
mod disk_reserve;
mod errors;
mod file;
mod file_watch;
mod group_commit;
mod inbox;
mod jobs;
mod lock_holder;
mod locks;
mod maintenance;
mod nodes;
mod opening;
mod peers;
mod reader;
mod rows;
mod stats;
mod transaction_error;
mod transfer;
mod tx;
mod wal_sync;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use rusqlite::Connection;

use self::file_watch::FileWatch;
use self::inbox::watch::InboxWatch;
use self::inbox::{InboxReader, InboxSignal};
use self::nodes::registry::NodeRegistry;
use self::nodes::wakes::Notifier;
use self::peers::SqlitePeers;
use self::reader::Reader;
use self::writer::{Writer, WriterSettings};
use super::contract::{self, Capabilities, Store};
use super::open::{Durability, StoreOptions};
use crate::clock::{Clock, Micros, micros};
use crate::error::{Error, Result};
use crate::job::JobId;

pub(crate) use crate::store::sqlite::jobs::ack_in::ack_in;
pub use crate::store::sqlite::jobs::push_in::AfterCommit;
pub(crate) use crate::store::sqlite::jobs::push_in::push_in;
pub use crate::store::sqlite::maintenance::sql::{ReadOnlySql, SQL_ROWS_MAX, SqlTable};

/// A store in a SQLite file, or in memory.
pub(crate) struct Sqlite {
    /// Set once a worker runs. Declared before the writer, whose thread it keeps alive.
    inbox_watch: OnceLock<Option<InboxWatch>>,
    inbox_signal: Arc<InboxSignal>,
    /// `None` for a store in memory, which has one connection. Declared before the writer, so that it closes first: the
    /// last connection to close removes the WAL.
    reader: Option<Reader>,
    writer: Writer,
    peers: SqlitePeers,
    registry: Arc<NodeRegistry>,
    path: Option<PathBuf>,
    /// `None` for a store in memory.
    watch: Option<Arc<FileWatch>>,
    durability: Durability,
    /// The interval of nodes with the lease of this store.
    heartbeat_interval: Duration,
    history_enabled: bool,
    clock: Clock,
    removed_id_retention: Micros,
    wal_grown: AtomicBool,
}

impl Sqlite {
    /// Opens a file, and creates it if it does not exist.
    pub(crate) fn open(path: &Path, options: &StoreOptions) -> Result<Self> {
        let is_new = std::fs::symlink_metadata(path).is_err();
        let path = file::prepare_file(path)?;
        opening::check_identity(&path).inspect_err(|_| {
            if is_new {
                file::remove_if_empty(&path);
            }
        })?;
        let conn = file::connect(&path, options.durability)?;
        let reading = file::connect_read_only(&path)?;
        let registry = opening::open_registry(&conn, &path, options)?;
        let watch = opening::watch_files(&conn, &path, &registry)?;
        let reader = Reader::start(reading, watch.clone())?;
        Sqlite::start(conn, Some(reader), registry, Some(watch), options)
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
        watch: Option<Arc<FileWatch>>,
        options: &StoreOptions,
    ) -> Result<Self> {
        let registry = Arc::new(registry);
        let path = watch.as_ref().map(|watch| watch.path().to_owned());
        let inbox_signal = Arc::<InboxSignal>::default();
        let settings = WriterSettings {
            inbox: InboxReader::new(options.keep, inbox_signal.clone()),
            clock: options.clock.clone(),
            notifier: Notifier::new(registry.clone()),
            watch: watch.clone(),
            syncs_later: options.durability == Durability::Second,
            history_enabled: options.history,
        };
        Ok(Sqlite {
            inbox_watch: OnceLock::new(),
            inbox_signal,
            writer: Writer::start(conn, settings)?,
            watch,
            reader,
            peers: SqlitePeers::new(registry.clone())?,
            registry,
            path,
            durability: options.durability,
            heartbeat_interval: options.lease / 3,
            history_enabled: options.history,
            clock: options.clock.clone(),
            removed_id_retention: micros(options.remember_ids),
            wal_grown: AtomicBool::new(false),
        })
    }

    /// Checks that the files of the store are still the ones at their paths, whenever that was last done.
    fn check_files_now(&self, op: &'static str) -> Result<()> {
        let checked = self.watch.as_ref().map_or(Ok(()), |watch| watch.check());
        checked.map_err(|problem| Error::store(op, problem))
    }

    /// Watches for rows that other programs insert into the inbox. Called when a worker starts.
    fn watch_inbox(&self) {
        let Some(path) = &self.path else {
            return;
        };
        self.inbox_watch.get_or_init(|| {
            let request = self.writer.inbox_requester(self.inbox_signal.clone());
            InboxWatch::start(&file::wal_path(path), request).unwrap_or_else(|error| {
                tracing::warn!(%error, "cannot watch the file: rows in duly_inbox wait for a heartbeat, about a second");
                None
            })
        });
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
            // Only duly uses its tables.
            shared_keys: None,
            maintenance: Some(self),
            health: Some(self),
            snapshot: Some(self),
            transactions: self.path.is_some().then_some(self as _),
            // A file copies itself.
            scan: None,
        }
    }

    fn advice(&self, capability: &str) -> &'static str {
        match capability {
            contract::transactions::CAPABILITY => contract::transactions::ADVICE,
            _ => "back up the file instead",
        }
    }

    fn parse_job_id(&self, text: &str) -> Result<JobId> {
        text.parse()
    }

    fn runtime(&self) -> Option<tokio::runtime::Handle> {
        None
    }

    fn now(&self) -> SystemTime {
        self.clock.now()
    }

    fn check_files(&self, op: &'static str, seen_id: Option<&str>) -> Result<()> {
        let Some(watch) = &self.watch else { return Ok(()) };
        watch.check_before_commit().map_err(|problem| Error::store(op, problem))?;
        match seen_id {
            Some(id) if id != watch.store_id() => Err(Error::store(op, watch.other_store_problem())),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
