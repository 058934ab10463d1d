//! Failed attempts of a job, bounded in number and length.

use rusqlite::{Connection, OptionalExtension, params};

use crate::NodeId;
use crate::clock::{from_micros, to_micros};
use crate::job::Failure;
use crate::store::FAILURES_MAX;
use crate::store::sqlite::rows::{read_integer, read_text, read_u32};
use crate::store::sqlite::tx::Tx;

const INSERT_FAILURE: &str =
    "INSERT INTO duly_failure (job_no, failed_at, attempt, node_id, error) VALUES (?1, ?2, ?3, ?4, ?5)";

/// Adds a failure and deletes the oldest beyond the maximum.
pub(crate) fn record(tx: &Tx<'_>, job_no: i64, attempt: u32, node: NodeId, error: &str) -> rusqlite::Result<()> {
    tx.statement(INSERT_FAILURE)?.execute(params![
        job_no,
        tx.now,
        attempt,
        node.as_bytes(),
        Failure::truncate_error(error)
    ])?;
    tx.statement(
        "DELETE FROM duly_failure WHERE rowid IN
           (SELECT rowid FROM duly_failure WHERE job_no = ?1 ORDER BY failed_at DESC, rowid DESC LIMIT -1 OFFSET ?2)",
    )?
    .execute(params![job_no, FAILURES_MAX])?;
    Ok(())
}

/// Adds an earlier failure unchanged.
pub(crate) fn import(tx: &Tx<'_>, job_no: i64, failed: &Failure) -> rusqlite::Result<()> {
    tx.statement(INSERT_FAILURE)?.execute(params![
        job_no,
        to_micros(failed.at),
        failed.attempt,
        failed.node.as_bytes(),
        failed.error
    ])?;
    Ok(())
}

/// Returns the error of a job's last failure.
pub(crate) fn last_error(conn: &Connection, job_no: i64) -> rusqlite::Result<Option<String>> {
    conn.prepare_cached("SELECT error FROM duly_failure WHERE job_no = ?1 ORDER BY failed_at DESC, rowid DESC LIMIT 1")?
        .query_row([job_no], |row| read_text(row, 0))
        .optional()
}

/// Returns the failures of a job, oldest first.
pub(crate) fn read_all(conn: &Connection, job_no: i64) -> rusqlite::Result<Vec<Failure>> {
    conn.prepare_cached(
        "SELECT failed_at, attempt, node_id, error FROM duly_failure WHERE job_no = ?1 ORDER BY failed_at, rowid",
    )?
    .query_map([job_no], |row| {
        Ok(Failure {
            at: from_micros(read_integer(row, 0)),
            attempt: read_u32(row, 1),
            node: NodeId::from_bytes(row.get(2).unwrap_or_default()),
            error: read_text(row, 3)?,
        })
    })?
    .collect()
}
