//! Ack inside the caller's own transaction: the ack is committed if and only if the caller's rows are.
//!
//! The transaction only marks the running job. The job stays with its node until the handler returns, so counts,
//! heartbeats and leases need no exception. Whatever then ends the attempt finds the mark and acks the job: the settle of
//! the node, or the take back after a crash.

use std::path::Path;
use std::sync::Arc;

use rusqlite::{Connection, Transaction, params};

use crate::error::{ConflictKind, Error, Result};
use crate::job::HeldJob;
use crate::store::Store;
use crate::store::sqlite::errors;
use crate::store::sqlite::jobs::push_in::check_transaction;

/// Marks a running job as acked inside `tx`, a transaction on `file`, the file of this store.
pub(crate) fn ack_in(
    tx: &Transaction<'_>,
    store: &Arc<dyn Store>,
    file: &Path,
    held: &HeldJob,
    result: Option<&str>,
) -> Result<()> {
    check_transaction(tx, store, file, "ack_in")?.in_savepoint(|| mark_acked(tx, held, result))
}

fn mark_acked(tx: &Transaction<'_>, held: &HeldJob, result: Option<&str>) -> Result<()> {
    let refused = |e| errors::from_sqlite("ack_in", e);
    // No other claim has this fence, so it stands for the node too.
    let marked = tx
        .execute(
            "UPDATE duly_running SET acked = 1 WHERE job_no = ?1 AND fence = ?2",
            params![held.locator.value(), held.fence.0.cast_signed()],
        )
        .map_err(refused)?;
    if marked == 0 {
        return Err(Error::conflict(
            ConflictKind::LeaseLost,
            format!("this node no longer holds job {}; roll back, because another node runs it", held.job.id),
        ));
    }
    if let Some(result) = result.filter(|_| !held.job.keep.is_zero()) {
        tx.execute(
            "INSERT INTO duly_progress (job_no, result)
               VALUES (?1, ?2) ON CONFLICT (job_no) DO UPDATE SET result = excluded.result",
            params![held.locator.value(), result],
        )
        .map_err(refused)?;
    }
    Ok(())
}

/// Implements `TransactionStore::is_acked`.
pub(crate) fn is_acked(conn: &Connection, held: &HeldJob) -> rusqlite::Result<bool> {
    conn.prepare_cached(
        "SELECT EXISTS (SELECT 1 FROM duly_running WHERE job_no = ?1 AND fence = ?2 AND acked IS NOT NULL)",
    )?
    .query_row(params![held.locator.value(), held.fence.0.cast_signed()], |row| row.get(0))
}
