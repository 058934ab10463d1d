//! The baseline: the SQL of a job's lifecycle on duly's own tables, in one bare loop.
//!
//! It has no threads, channels, handlers, JSON or checks except the fence. The ratio to it is the overhead of duly.
//! Settings, batches and the size of the WAL are the same, with `synchronous=FULL`.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use duly::Duly;
use duly::rusqlite::config::DbConfig;
use duly::rusqlite::{Connection, params};
use uuid::Uuid;

use crate::config::{BULK_JOBS, noop_args};

/// duly grows its WAL to this size when a worker joins.
const WAL_GROWN_BYTES: usize = 8 * 1024 * 1024;
/// Prepared statements in the cache.
const STATEMENTS_MAX: usize = 96;
/// The number of the queue and of the node of every job.
const QUEUE_AND_NODE_NO: i64 = 1;
/// The value of normal in `duly_job.priority`.
const NORMAL_PRIORITY: i64 = 2;

/// One connection to a file that duly created.
pub(crate) struct SqliteBaseline {
    conn: Connection,
    args: String,
}

impl SqliteBaseline {
    /// Creates the file with duly, then opens it directly.
    pub(crate) async fn create(path: &Path) -> Result<Self> {
        let url = path.to_str().context("the path is not UTF-8")?;
        drop(Duly::open(url).await?);
        let conn = Connection::open(path)?;
        conn.busy_timeout(Duration::from_secs(5))?;
        conn.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
        // Otherwise SQLite plans the claim again whenever its bound values change.
        conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
        conn.execute_batch(
            "PRAGMA synchronous = FULL;
             PRAGMA wal_autocheckpoint = 1000;
             PRAGMA journal_size_limit = 16777216;
             PRAGMA temp_store = MEMORY;
             PRAGMA trusted_schema = OFF;
             PRAGMA cell_size_check = ON;
             INSERT OR IGNORE INTO duly_queue (queue_no, name) VALUES (1, 'default');",
        )?;
        let mode: String = conn.query_row("PRAGMA journal_mode", [], |row| row.get(0))?;
        ensure!(mode == "wal", "the journal mode is {mode}, not wal");
        grow_wal(&conn)?;
        Ok(SqliteBaseline { conn, args: noop_args() })
    }

    /// Returns jobs per second, pushed `batch` at a time for this duration.
    pub(crate) fn measure_pushes(&self, batch: usize, time: Duration) -> Result<f64> {
        let begin = Instant::now();
        let mut jobs = 0;
        while begin.elapsed() < time {
            self.push(batch)?;
            jobs += batch;
        }
        Ok(jobs as f64 / begin.elapsed().as_secs_f64())
    }

    /// Pushes this many jobs in bulk.
    pub(crate) fn fill(&self, jobs: usize) -> Result<()> {
        (0..jobs.div_ceil(BULK_JOBS)).try_for_each(|_| self.push(BULK_JOBS.min(jobs)))
    }

    /// Returns lifecycles per second, `batch` at a time: one commit each for push, claim and settle.
    pub(crate) fn measure_lifecycles(&self, batch: usize, time: Duration) -> Result<f64> {
        let begin = Instant::now();
        let mut jobs = 0;
        while begin.elapsed() < time {
            self.run_lifecycle(batch)?;
            jobs += batch;
        }
        Ok(jobs as f64 / begin.elapsed().as_secs_f64())
    }

    /// Runs the lifecycle of `batch` jobs.
    pub(crate) fn run_lifecycle(&self, batch: usize) -> Result<()> {
        self.push(batch)?;
        let held = self.claim(batch)?;
        ensure!(held.len() == batch, "{} of {batch} jobs claimed", held.len());
        self.settle(&held)
    }

    fn push(&self, jobs: usize) -> Result<()> {
        self.begin()?;
        let now = now_micros();
        let first: i64 = self.query_number("SELECT value FROM duly_sequence WHERE name = 'next_number'")?;
        let mut body = self.conn.prepare_cached(
            "INSERT INTO duly_job (job_no, id, queue_no, kind, args, priority, pushed_at, max_attempts, timeout_ms,
                                   keep_ms, unique_key, tags, traceparent, checksum)
             VALUES (?1, ?2, ?3, 'noop', ?4, ?5, ?6, 25, 3600000, 0, NULL, NULL, NULL, 0)",
        )?;
        let mut ready = self.conn.prepare_cached(
            "INSERT INTO duly_ready (queue_no, priority, seq, job_no, due_at, attempts, crashes)
             VALUES (?1, ?2, ?3, ?3, ?4, 0, 0)",
        )?;
        for job_no in first..first + jobs as i64 {
            body.execute(params![
                job_no,
                Uuid::now_v7().as_bytes(),
                QUEUE_AND_NODE_NO,
                self.args,
                NORMAL_PRIORITY,
                now
            ])?;
            ready.execute(params![QUEUE_AND_NODE_NO, NORMAL_PRIORITY, job_no, now])?;
        }
        self.conn
            .prepare_cached("UPDATE duly_sequence SET value = ?1 WHERE name = 'next_number'")?
            .execute([first + jobs as i64])?;
        self.commit()
    }

    fn claim(&self, max: usize) -> Result<Vec<ClaimedRow>> {
        self.begin()?;
        let mut held: Vec<ClaimedRow> = self
            .conn
            .prepare_cached(
                "SELECT j.id, j.kind, j.args, r.job_no, r.priority, r.seq FROM duly_ready r
                   JOIN duly_job j ON j.job_no = r.job_no
                  WHERE r.queue_no = ?1 ORDER BY r.priority, r.seq LIMIT ?2",
            )?
            .query_map(params![QUEUE_AND_NODE_NO, max], |row| {
                // A worker must read kind and args, too; their use is not part of the baseline.
                let (_kind, _args): (String, String) = (row.get(1)?, row.get(2)?);
                Ok(ClaimedRow { id: row.get(0)?, row_id: row.get(3)?, position: (row.get(4)?, row.get(5)?), fence: 0 })
            })?
            .collect::<duly::rusqlite::Result<_>>()?;
        let fence: i64 = self
            .conn
            .prepare_cached(
                "UPDATE duly_sequence SET value = max(value + 1, ?1) WHERE name = 'last_fence' RETURNING value",
            )?
            .query_row([now_micros()], |row| row.get(0))?;
        held.iter_mut().for_each(|row| row.fence = fence);
        let (priority, seq) = held.last().map(|row| row.position).context("nothing to claim")?;
        self.conn
            .prepare_cached(
                "INSERT INTO duly_running (job_no, node_no, queue_no, fence, priority, seq, due_at, attempts, crashes)
                 SELECT job_no, ?4, queue_no, ?5, priority, seq, due_at, attempts, crashes FROM duly_ready
                  WHERE queue_no = ?1 AND (priority, seq) <= (?2, ?3)",
            )?
            .execute(params![QUEUE_AND_NODE_NO, priority, seq, QUEUE_AND_NODE_NO, fence])?;
        self.conn
            .prepare_cached("DELETE FROM duly_ready WHERE queue_no = ?1 AND (priority, seq) <= (?2, ?3)")?
            .execute(params![QUEUE_AND_NODE_NO, priority, seq])?;
        self.commit()?;
        Ok(held)
    }

    fn settle(&self, held: &[ClaimedRow]) -> Result<()> {
        self.begin()?;
        let release = "DELETE FROM duly_running WHERE job_no = ?1 AND node_no = ?2 AND fence = ?3";
        let mut release = self.conn.prepare_cached(release)?;
        let mut delete = self.conn.prepare_cached("DELETE FROM duly_job WHERE job_no = ?1")?;
        let mut remember_id =
            self.conn.prepare_cached("INSERT OR IGNORE INTO duly_removed_id_0 (queue_no, job_id) VALUES (?1, ?2)")?;
        for ClaimedRow { id, row_id: job_no, fence, .. } in held {
            ensure!(release.execute(params![job_no, QUEUE_AND_NODE_NO, fence])? == 1, "job {job_no} is not held");
            delete.execute([job_no])?;
            remember_id.execute(params![QUEUE_AND_NODE_NO, id])?;
        }
        self.commit()
    }

    fn begin(&self) -> Result<()> {
        self.conn.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        Ok(())
    }

    fn commit(&self) -> Result<()> {
        self.conn.prepare_cached("COMMIT")?.execute([])?;
        Ok(())
    }

    fn query_number(&self, sql: &str) -> Result<i64> {
        Ok(self.conn.prepare_cached(sql)?.query_row([], |row| row.get(0))?)
    }
}

/// A claimed job.
struct ClaimedRow {
    id: [u8; 16],
    row_id: i64,
    position: (i64, i64),
    fence: i64,
}

/// Grows the WAL: a transaction larger than the cache spills into it and is rolled back.
fn grow_wal(conn: &Connection) -> Result<()> {
    conn.execute_batch("PRAGMA cache_size = 16; BEGIN IMMEDIATE;")?;
    conn.execute(
        "INSERT INTO duly_meta (name, value) VALUES ('growing', CAST(zeroblob(?1) AS TEXT))",
        [WAL_GROWN_BYTES],
    )?;
    conn.execute_batch("ROLLBACK; PRAGMA cache_size = -16384;")?;
    Ok(())
}

fn now_micros() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}
