//! The store in a SQLite file: no server, several processes, one sync for many commits.
//!
//! One thread writes (`writer`) and one reads (`reader`). Nodes share a registry in the directory `FILE-nodes`
//! (`nodes`) and exchange messages over a bus there (`peers`).

mod access;
mod contract;
mod cron;
mod errors;
mod file;
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

use self::nodes::liveness::Lives;
use self::nodes::registry::Board;
use self::nodes::wake::Waker;
use self::reader::Reader;
use self::tx::Tx;
use self::writer::Writer;
use super::open::{Durability, Options};
use super::{
    Attended, Audit, AuditRecord, Beaten, CLAIM_MAX, CRON_FIRE_MAX, Capacity, Claim, Claimed, CronFire, CronPage,
    CronPut, CronRecord, CronsFired, DeadGroup, DueCrons, ENDS_QUEUES_MAX, EXTEND_MAX, Edit, End, Filter, Guest,
    Health, Heard, History, HistoryAsk, HistoryTally, KindPoint, LOOKED_MAX, LockAsk, LockPage, LockTaken, Marked,
    MoveIn, Moved, MovedIn, NewToken, Note, PAGE, PAGE_BYTES_MAX, PAGE_MAX, PRUNE_MAX, Page, PutCron, QueueCounts,
    Store, Target, To, Wake,
};
use crate::admin::token::Token;
use crate::clock::{Clock, Micros, from_micros, micros};
use crate::error::{Error, Result};
use crate::job::push::{Due, Push, Pushed};
use crate::job::{JobId, Record};
use crate::node::{Node, NodeId, NodeRecord};
use crate::store::sqlite::maintenance::upkeep;
use crate::store::sqlite::peers::Hall;

pub use crate::store::sqlite::jobs::push_in::AfterCommit;
pub(crate) use crate::store::sqlite::jobs::push_in::push_in;
pub use crate::store::sqlite::maintenance::sql::{SQL_ROWS_MAX, Sql, SqlTable};

/// A store in a SQLite file, or in memory.
pub(crate) struct Sqlite {
    /// `None` for a store in memory, which has one connection. Declared before the writer, so that it closes first: the
    /// last connection to close removes the WAL.
    reader: Option<Reader>,
    writer: Writer,
    hall: Hall,
    board: Arc<Board>,
    path: Option<PathBuf>,
    durability: Durability,
    history: bool,
    clock: Clock,
    remember: Micros,
    wal_grown: AtomicBool,
}

impl Sqlite {
    /// Opens a file, and creates it if it does not exist.
    pub(crate) fn open(path: &Path, options: &Options) -> Result<Self> {
        let path = file::prepare(path)?;
        let conn = file::connect(&path, options.durability)?;
        let reader = Reader::start(file::connect_to_read(&path)?)?;
        let board = Board::beside(&path, options.clock.clone())
            .map_err(|e| Error::store("open", format!("{}-nodes: {e}", path.display())))?;
        Sqlite::start(conn, Some(reader), board, Some(path), options)
    }

    /// Opens a store that ends with its last handle.
    pub(crate) fn in_memory(options: &Options) -> Result<Self> {
        let board = Board::in_memory(options.clock.clone());
        Sqlite::start(file::connect_in_memory()?, None, board, None, options)
    }

    fn start(
        conn: Connection,
        reader: Option<Reader>,
        board: Board,
        path: Option<PathBuf>,
        options: &Options,
    ) -> Result<Self> {
        let board = Arc::new(board);
        let wal = path.as_deref().map(file::wal_of).filter(|_| options.durability == Durability::Second);
        Ok(Sqlite {
            writer: Writer::start(conn, options.clock.clone(), Waker::new(board.clone()), wal, options.history)?,
            reader,
            hall: Hall::new(board.clone())?,
            board,
            path,
            durability: options.durability,
            history: options.history,
            clock: options.clock.clone(),
            remember: micros(options.remember),
            wal_grown: AtomicBool::new(false),
        })
    }

    async fn read<T, F>(&self, name: &'static str, look: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T> + Send + 'static,
    {
        match &self.reader {
            Some(reader) => reader.read(name, look).await,
            None => {
                let looked = self.writer.upkeep(name, |conn| Ok(look(conn)));
                looked.await?
            }
        }
    }

    async fn join(&self, node: &Node) -> Result<()> {
        let slot = self
            .board
            .join(node.id, node.lease)
            .map_err(|e| Error::store("beat", format!("cannot take a slot in the node registry: {e}")))?;
        let (id, queues) = (node.id, node.queues.join(" "));
        let takes = serde_json::to_string(&node.takes).ok();
        let board = self.board.clone();
        let registered = self.writer.write("beat", move |tx| {
            nodes::forget_dead(tx, &board)?;
            nodes::register(tx, id, slot, &queues, takes.as_deref()).map(drop)
        });
        if let Err(error) = registered.await {
            // The database does not know the node, so its slot is released. The next heartbeat joins again.
            let _ = self.board.leave(id);
            return Err(error);
        }
        let roomy = self.path.as_deref().is_some_and(upkeep::is_roomy);
        if roomy && !self.wal_grown.swap(true, Ordering::Relaxed) {
            // Only makes commits cheaper, so a failure is not an error.
            if let Err(error) = self.writer.upkeep("beat", upkeep::grow_wal).await {
                tracing::warn!(%error, "the WAL could not be grown");
            }
        }
        Ok(())
    }
}

fn claimed(now: Micros, jobs: Vec<crate::job::Held>) -> Claimed {
    Claimed {
        jobs,
        now: from_micros(now),
        more: false,
        next_due: None,
        next_tick: None,
        rank: 0,
        taken_back: 0,
        left: false,
    }
}

#[cfg(test)]
mod tests;
