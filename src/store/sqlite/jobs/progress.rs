//! Progress, log lines and results of attempts.

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, params};

use crate::clock::{from_micros, to_micros};
use crate::error::Result;
use crate::job::{JobId, JobProgress, JobRecord, LogLine};
use crate::node::NodeId;
use crate::store::sqlite::rows::{RawText, read_integer, read_text, read_u32};
use crate::store::sqlite::tx::Tx;
use crate::store::sqlite::{Sqlite, nodes};
use crate::store::{LOG_LINES_MAX, ProgressStore, ProgressUpdate};

const INSERT_LOG_LINE: &str = "INSERT INTO duly_log (job_no, logged_at, attempt, line) VALUES (?1, ?2, ?3, ?4)";

#[async_trait]
impl ProgressStore for Sqlite {
    async fn record_progress(&self, node: NodeId, updates: Vec<ProgressUpdate>) -> Result<Vec<JobId>> {
        let registry = self.registry.clone();
        self.writer
            .write("record_progress", move |tx| record_progress(tx, nodes::ensure_node(tx, &registry, node)?, &updates))
            .await
    }
}

/// Implements `ProgressStore::record_progress`.
pub(crate) fn record_progress(tx: &Tx<'_>, node: i64, updates: &[ProgressUpdate]) -> rusqlite::Result<Vec<JobId>> {
    let mut lost = Vec::new();
    for update in updates {
        let held: bool = tx
            .statement("SELECT EXISTS (SELECT 1 FROM duly_running WHERE job_no = ?1 AND node_no = ?2 AND fence = ?3)")?
            .query_row(params![update.locator.value(), node, update.fence.0.cast_signed()], |row| row.get(0))?;
        if !held {
            lost.push(update.id);
            continue;
        }
        if let Some(progress) = &update.progress {
            set_progress(tx, update.locator.value(), progress)?;
        }
        for (at, line) in &update.lines {
            tx.statement(INSERT_LOG_LINE)?.execute(params![
                update.locator.value(),
                to_micros(*at),
                update.attempt,
                line
            ])?;
        }
        if !update.lines.is_empty() {
            tx.statement(
                "DELETE FROM duly_log WHERE rowid IN
                   (SELECT rowid FROM duly_log WHERE job_no = ?1 ORDER BY rowid DESC LIMIT -1 OFFSET ?2)",
            )?
            .execute(params![update.locator.value(), LOG_LINES_MAX])?;
        }
        tx.mark_progress_written();
    }
    Ok(lost)
}

fn set_progress(tx: &Tx<'_>, job_no: i64, progress: &JobProgress) -> rusqlite::Result<()> {
    tx.statement(
        "INSERT INTO duly_progress (job_no, fraction, message, updated_at) VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT (job_no) DO UPDATE
         SET fraction = excluded.fraction, message = excluded.message, updated_at = excluded.updated_at",
    )?
    .execute(params![job_no, progress.fraction, progress.message, to_micros(progress.at)])?;
    Ok(())
}

/// Stores the result of a job.
pub(crate) fn set_result(tx: &Tx<'_>, job_no: i64, result: Option<&str>) -> rusqlite::Result<()> {
    let Some(result) = result else {
        return Ok(());
    };
    tx.statement(
        "INSERT INTO duly_progress (job_no, result)
           VALUES (?1, ?2) ON CONFLICT (job_no) DO UPDATE SET result = excluded.result",
    )?
    .execute(params![job_no, result])?;
    tx.mark_progress_written();
    Ok(())
}

/// Deletes the progress, result and log of a job.
pub(crate) fn delete(tx: &Tx<'_>, job_no: i64) -> rusqlite::Result<()> {
    if tx.has_progress_rows()? {
        tx.statement("DELETE FROM duly_progress WHERE job_no = ?1")?.execute([job_no])?;
        tx.statement("DELETE FROM duly_log WHERE job_no = ?1")?.execute([job_no])?;
    }
    Ok(())
}

/// Adds progress, result and log to a record.
pub(crate) fn read_into(conn: &Connection, job_no: i64, record: &mut JobRecord) -> rusqlite::Result<()> {
    let noted = conn
        .prepare_cached("SELECT fraction, message, updated_at, result FROM duly_progress WHERE job_no = ?1")?
        .query_row([job_no], |row| {
            let fraction: Option<f64> = row.get(0).unwrap_or_default();
            let (message, at) = (read_text(row, 1)?, from_micros(read_integer(row, 2)));
            let result: Option<RawText> = row.get(3)?;
            Ok((
                fraction.map(|fraction| JobProgress::new(fraction, &message, at)),
                result.map(RawText::into_lossy_string),
            ))
        })
        .optional()?;
    (record.progress, record.result) = noted.unwrap_or_default();
    record.log = conn
        .prepare_cached("SELECT logged_at, attempt, line FROM duly_log WHERE job_no = ?1 ORDER BY rowid")?
        .query_map([job_no], |row| {
            Ok(LogLine { at: from_micros(read_integer(row, 0)), attempt: read_u32(row, 1), line: read_text(row, 2)? })
        })?
        .collect::<rusqlite::Result<_>>()?;
    Ok(())
}

/// Writes the progress, result and log of a job from another store.
pub(crate) fn import(tx: &Tx<'_>, job_no: i64, record: &JobRecord) -> rusqlite::Result<()> {
    if let Some(progress) = &record.progress {
        set_progress(tx, job_no, progress)?;
        tx.mark_progress_written();
    }
    set_result(tx, job_no, record.result.as_deref())?;
    for line in &record.log {
        tx.statement(INSERT_LOG_LINE)?.execute(params![job_no, to_micros(line.at), line.attempt, line.line])?;
        tx.mark_progress_written();
    }
    Ok(())
}
