//! The runs of a job: what its attempts did, bounded in number and length.
//!
//! The run that made a job done is in its row of `duly_ended`, which an ack writes anyway. All others have a row each.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, params};

use crate::NodeId;
use crate::clock::{from_micros, micros, to_micros};
use crate::job::{JobRun, RunOutcome};
use crate::store::RUNS_MAX;
use crate::store::sqlite::jobs::state::STATE_DONE;
use crate::store::sqlite::rows::{RawText, read_integer, read_text, read_u32};
use crate::store::sqlite::tx::Tx;

/// Adds a run and deletes the oldest beyond the maximum.
pub(crate) fn record(tx: &Tx<'_>, job_no: i64, run: &JobRun) -> rusqlite::Result<()> {
    import(tx, job_no, run)?;
    delete_excess(tx, job_no)
}

/// Adds an earlier run unchanged.
pub(crate) fn import(tx: &Tx<'_>, job_no: i64, run: &JobRun) -> rusqlite::Result<()> {
    tx.statement(
        "INSERT INTO duly_run (job_no, ended_at, attempt, node_id, outcome, started_at, duration_us, error, output)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
    )?
    .execute(params![
        job_no,
        to_micros(run.ended),
        run.attempt,
        run.node.as_bytes(),
        run.outcome.as_str(),
        run.started.map(to_micros),
        run.duration.map(micros),
        run.error,
        run.output
    ])?;
    tx.mark_runs_written();
    Ok(())
}

fn delete_excess(tx: &Tx<'_>, job_no: i64) -> rusqlite::Result<()> {
    tx.statement(
        "DELETE FROM duly_run WHERE rowid IN
           (SELECT rowid FROM duly_run WHERE job_no = ?1 ORDER BY ended_at DESC, rowid DESC LIMIT -1 OFFSET ?2)",
    )?
    .execute(params![job_no, RUNS_MAX])?;
    Ok(())
}

/// Gives the run that made a job done a row of its own, because the job is about to start over.
pub(crate) fn keep_ack(tx: &Tx<'_>, job_no: i64) -> rusqlite::Result<()> {
    let run = read_ack(tx.conn, job_no)?;
    run.map_or(Ok(()), |run| record(tx, job_no, &run))
}

/// Deletes the runs of a job, except that of `duly_ended`.
pub(crate) fn delete(tx: &Tx<'_>, job_no: i64) -> rusqlite::Result<()> {
    if tx.has_run_rows()? {
        tx.statement("DELETE FROM duly_run WHERE job_no = ?1")?.execute([job_no])?;
    }
    Ok(())
}

/// Returns the error of a job's last failure.
pub(crate) fn last_error(conn: &Connection, job_no: i64) -> rusqlite::Result<Option<String>> {
    conn.prepare_cached(
        "SELECT error FROM duly_run WHERE job_no = ?1 AND error IS NOT NULL
          ORDER BY ended_at DESC, rowid DESC LIMIT 1",
    )?
    .query_row([job_no], |row| read_text(row, 0))
    .optional()
}

/// Returns the runs of a job, oldest first.
pub(crate) fn read_all(conn: &Connection, job_no: i64) -> rusqlite::Result<Vec<JobRun>> {
    let mut runs: Vec<JobRun> = conn
        .prepare_cached(
            "SELECT ended_at, attempt, node_id, started_at, duration_us, output, outcome, error FROM duly_run
              WHERE job_no = ?1 ORDER BY ended_at, rowid",
        )?
        .query_map([job_no], |row| {
            let outcome = RunOutcome::parse(&read_text(row, 6)?);
            Ok(JobRun { error: read_optional_text(row, 7)?, ..read_run(row, read_u32(row, 1), outcome)? })
        })?
        .collect::<rusqlite::Result<_>>()?;
    runs.extend(read_ack(conn, job_no)?);
    Ok(runs)
}

/// Returns the run that made a job done.
fn read_ack(conn: &Connection, job_no: i64) -> rusqlite::Result<Option<JobRun>> {
    conn.prepare_cached(
        "SELECT ended_at, attempts, node_id, started_at, duration_us, output FROM duly_ended
          WHERE job_no = ?1 AND state = ?2 AND started_at IS NOT NULL",
    )?
    .query_row([job_no, STATE_DONE], |row| read_run(row, read_u32(row, 1).saturating_add(1), RunOutcome::Ack))
    .optional()
}

/// Reads a run without its error from `ended_at, _, node_id, started_at, duration_us, output`.
fn read_run(row: &rusqlite::Row<'_>, attempt: u32, outcome: RunOutcome) -> rusqlite::Result<JobRun> {
    let number = |column: usize| row.get::<_, Option<i64>>(column).unwrap_or_default();
    Ok(JobRun {
        attempt,
        outcome,
        node: NodeId::from_bytes(row.get(2).unwrap_or_default()),
        started: number(3).map(from_micros),
        ended: from_micros(read_integer(row, 0)),
        duration: number(4).map(|duration| Duration::from_micros(duration.unsigned_abs())),
        error: None,
        output: read_optional_text(row, 5)?,
    })
}

fn read_optional_text(row: &rusqlite::Row<'_>, column: usize) -> rusqlite::Result<Option<String>> {
    Ok(row.get::<_, Option<RawText>>(column)?.map(RawText::into_lossy_string))
}
