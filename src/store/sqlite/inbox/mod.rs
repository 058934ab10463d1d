//! The inbox: rows that other programs insert into `duly_inbox`, each in a transaction of its own.
//!
//! Every write transaction of duly first turns waiting rows into jobs and deletes them, so each row becomes a job exactly
//! once. On an empty inbox that costs one lookup in an index (`InboxReader::take_rows`).
//! While a worker runs, a watch (`watch`) asks for such a transaction as soon as another program has committed. Without
//! it, the claims of idle workers at each heartbeat take the rows.
//!
//! A row that cannot become a job gets an error and is not tried again; a row for a full queue waits.

mod row;
pub(super) mod watch;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, params};
use tokio::time::Instant;

use crate::clock;
use crate::error::Result;
use crate::job::HeldJob;
use crate::job::push::{Push, PushResult};
use crate::metrics::PushMetrics;
use crate::store::TransactionStore;
use crate::store::sqlite::Sqlite;
use crate::store::sqlite::disk_reserve;
use crate::store::sqlite::inbox::row::{InboxRow, SELECT_ROWS};
use crate::store::sqlite::jobs::{ack_in, push};
use crate::store::sqlite::rows::RawText;
use crate::store::sqlite::tx::Tx;

/// Most rows that one transaction takes.
const INBOX_ROWS_MAX: usize = 256;
/// Bytes of args after which a transaction takes no further row.
const INBOX_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Most queues that one transaction looks at. The next transaction goes on with the others.
const INBOX_QUEUES_MAX: usize = 32;
/// Most transactions of one `take_inbox`.
const TAKE_ROUNDS_MAX: usize = 10_000;
/// Most transactions of one `take_inbox` in a row that take nothing, because each looks at other queues that are full.
const IDLE_ROUNDS_MAX: usize = 32;
/// How long rows of a full queue wait before they are tried again.
const FULL_RETRY_DELAY: Duration = Duration::from_millis(50);
/// How long the inbox is left alone after the file refused its rows, for example because the disk is full.
const FAILURE_RETRY_DELAY: Duration = Duration::from_secs(1);

/// State that the writing thread and the watch share.
#[derive(Debug, Default)]
pub(super) struct InboxSignal {
    /// A request to take rows is on its way to the writing thread.
    pub(super) is_requested: AtomicBool,
    /// How many rows were taken or rejected so far.
    pub(super) handled: AtomicU64,
}

/// Takes rows from the inbox, inside the transactions of the writing thread.
pub(super) struct InboxReader {
    /// How long a job without `keep_ms` is kept once it is done.
    keep: Duration,
    /// Queues that were full, and when to try them again.
    full_queues: BTreeMap<RawText, Instant>,
    /// After a failure: when to try again.
    paused_until: Option<Instant>,
    /// The queue that was looked at last.
    last_queue: RawText,
    signal: Arc<InboxSignal>,
}

/// Why a row cannot become a job now.
enum NoRoom {
    InQueue,
    OnDisk,
}

/// The rows that one transaction has taken from the inbox.
#[derive(Default)]
pub(super) struct TakenRows {
    jobs: Vec<Push>,
    results: Vec<PushResult>,
    rejected: Vec<(i64, String)>,
    /// Bytes of args that were read.
    bytes: usize,
    /// Further rows can be taken now.
    pub(super) has_more: bool,
}

impl TakenRows {
    fn len(&self) -> usize {
        self.results.len() + self.rejected.len()
    }

    fn is_full(&self) -> bool {
        self.len() >= INBOX_ROWS_MAX || self.bytes >= INBOX_BYTES_MAX
    }
}

impl InboxReader {
    pub(super) fn new(keep: Duration, signal: Arc<InboxSignal>) -> Self {
        InboxReader { keep, full_queues: BTreeMap::new(), paused_until: None, last_queue: RawText(Vec::new()), signal }
    }

    /// Turns waiting rows into jobs. Called first in a transaction, so that the operations in it see the jobs.
    pub(super) fn take_rows(&mut self, tx: &Tx<'_>) -> rusqlite::Result<TakenRows> {
        let mut taken = TakenRows::default();
        if !has_waiting_rows(tx.conn)? {
            return Ok(taken);
        }
        let now = clock::monotonic_now();
        if self.paused_until.is_some_and(|until| now < until) {
            return Ok(taken);
        }
        self.full_queues.retain(|_, until| now < *until);
        let mut first: Option<RawText> = None;
        for _ in 0..INBOX_QUEUES_MAX {
            let Some(queue) = next_queue(tx, &self.last_queue)? else {
                return Ok(taken);
            };
            if first.as_ref() == Some(&queue) {
                return Ok(taken);
            }
            first.get_or_insert_with(|| queue.clone());
            self.last_queue = queue.clone();
            if !self.full_queues.contains_key(&queue) {
                match self.take_rows_of(tx, &queue, &mut taken)? {
                    None => {}
                    Some(NoRoom::InQueue) => drop(self.full_queues.insert(queue, now + FULL_RETRY_DELAY)),
                    Some(NoRoom::OnDisk) => {
                        self.pause();
                        return Ok(taken);
                    }
                }
            }
            if taken.is_full() {
                break;
            }
        }
        // Without progress, the next transaction is soon enough: every queue may be full.
        taken.has_more = taken.len() > 0;
        tx.set_has_more_inbox_rows(taken.has_more);
        Ok(taken)
    }

    /// Turns rows of one queue into jobs. Returns why the next one has no room, if it has none.
    fn take_rows_of(&self, tx: &Tx<'_>, queue: &RawText, taken: &mut TakenRows) -> rusqlite::Result<Option<NoRoom>> {
        for row in read_rows(tx, queue, taken)? {
            let number = row.number;
            let job = match row.into_push(self.keep, tx.now) {
                Ok(job) => job,
                Err(error) => {
                    let error = error.to_string();
                    tx.statement("UPDATE duly_inbox SET error = ?2 WHERE inbox_no = ?1")?
                        .execute(params![number, error])?;
                    taken.rejected.push((number, error));
                    continue;
                }
            };
            let jobs = std::slice::from_ref(&job);
            if tx.check_disk_room("inbox", disk_reserve::push_bytes(jobs))?.is_err() {
                return Ok(Some(NoRoom::OnDisk));
            }
            let Ok(results) = push::push(tx, jobs)? else {
                return Ok(Some(NoRoom::InQueue));
            };
            tx.statement("DELETE FROM duly_inbox WHERE inbox_no = ?1")?.execute([number])?;
            taken.results.extend(results);
            taken.jobs.push(job);
        }
        Ok(None)
    }

    /// Leaves the inbox alone for a while: the transaction failed because of its rows.
    pub(super) fn pause(&mut self) {
        self.paused_until = Some(clock::monotonic_now() + FAILURE_RETRY_DELAY);
    }

    /// Reports rows once their transaction is committed.
    pub(super) fn report(&self, taken: TakenRows) {
        self.signal.handled.fetch_add(taken.len() as u64, Ordering::SeqCst);
        PushMetrics::for_jobs(&taken.jobs).record(&taken.results);
        for (number, error) in taken.rejected {
            tracing::warn!(
                inbox_no = number,
                error,
                "a row of duly_inbox cannot become a job; correct it and set its error to NULL, or delete it"
            );
        }
    }
}

/// Reads as many rows of a queue as this transaction may still take.
fn read_rows(tx: &Tx<'_>, queue: &RawText, taken: &mut TakenRows) -> rusqlite::Result<Vec<InboxRow>> {
    let mut select = tx.statement(SELECT_ROWS)?;
    let mut rows = select.query(params![queue, INBOX_ROWS_MAX.saturating_sub(taken.len())])?;
    let mut read = Vec::new();
    while taken.bytes < INBOX_BYTES_MAX
        && let Some(row) = rows.next()?
    {
        let row = InboxRow::read(row)?;
        taken.bytes += row.args_bytes;
        read.push(row);
    }
    Ok(read)
}

fn has_waiting_rows(conn: &Connection) -> rusqlite::Result<bool> {
    conn.prepare_cached("SELECT EXISTS (SELECT 1 FROM duly_inbox INDEXED BY duly_inbox_waiting WHERE error IS NULL)")?
        .query_row([], |row| row.get(0))
}

/// Returns whether rows of a queue were left for the next transaction, which will take them.
pub(super) fn has_more_rows_of(tx: &Tx<'_>, queue: &str) -> rusqlite::Result<bool> {
    if !tx.has_more_inbox_rows() {
        return Ok(false);
    }
    tx.statement(
        "SELECT EXISTS (SELECT 1 FROM duly_inbox INDEXED BY duly_inbox_waiting WHERE error IS NULL AND queue = ?1)",
    )?
    .query_row([queue], |row| row.get(0))
}

/// Returns the first queue after this one that has waiting rows, or the first of all.
fn next_queue(tx: &Tx<'_>, last: &RawText) -> rusqlite::Result<Option<RawText>> {
    let select = |sql: &str, params: &[&dyn rusqlite::ToSql]| -> rusqlite::Result<Option<RawText>> {
        tx.statement(sql)?.query_row(params, |row| row.get(0)).optional()
    };
    let next = select(
        "SELECT queue FROM duly_inbox INDEXED BY duly_inbox_waiting WHERE error IS NULL AND queue > ?1
          ORDER BY queue LIMIT 1",
        params![last],
    )?;
    if next.is_some() {
        return Ok(next);
    }
    select(
        "SELECT queue FROM duly_inbox INDEXED BY duly_inbox_waiting WHERE error IS NULL ORDER BY queue LIMIT 1",
        params![],
    )
}

/// The rows of the inbox, for a report.
pub(super) struct InboxCounts {
    pub(super) waiting: u64,
    pub(super) rejected: u64,
    /// When the oldest waiting row was inserted.
    pub(super) oldest_at: Option<i64>,
    /// The error of the oldest rejected row.
    pub(super) first_error: Option<String>,
}

/// Counts the rows of the inbox.
pub(super) fn count_rows(conn: &Connection) -> rusqlite::Result<InboxCounts> {
    let mut counts = conn.query_row(
        "SELECT count(*) FILTER (WHERE error IS NULL), count(error), min(inserted_at) FILTER (WHERE error IS NULL)
           FROM duly_inbox",
        [],
        |row| {
            Ok(InboxCounts { waiting: row.get(0)?, rejected: row.get(1)?, oldest_at: row.get(2)?, first_error: None })
        },
    )?;
    if counts.rejected > 0 {
        let error: Option<RawText> = conn
            .query_row("SELECT error FROM duly_inbox WHERE error IS NOT NULL ORDER BY inbox_no LIMIT 1", [], |row| {
                row.get(0)
            })
            .optional()?;
        counts.first_error = error.map(RawText::into_lossy_string);
    }
    Ok(counts)
}

#[async_trait]
impl TransactionStore for Sqlite {
    async fn take_inbox(&self) -> Result<()> {
        let mut idle_rounds = 0;
        for _ in 0..TAKE_ROUNDS_MAX {
            let handled = self.inbox_signal.handled.load(Ordering::SeqCst);
            // Every write transaction takes rows, so this one needs no operation of its own.
            self.writer.write("take_inbox", |_| Ok(())).await?;
            if self.inbox_signal.handled.load(Ordering::SeqCst) != handled {
                idle_rounds = 0;
                continue;
            }
            idle_rounds += 1;
            if idle_rounds == IDLE_ROUNDS_MAX || !self.query("take_inbox", has_waiting_rows).await? {
                break;
            }
        }
        Ok(())
    }

    async fn is_acked(&self, held: Arc<HeldJob>) -> Result<bool> {
        self.query("is_acked", move |conn| ack_in::is_acked(conn, &held)).await
    }
}
