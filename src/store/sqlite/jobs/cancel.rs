//! Cancel: ends a job that waits, and marks a running one, so that it ends with its attempt.

use std::time::Duration;

use rusqlite::{OptionalExtension, params};

use crate::job::JobId;
use crate::node::NodeId;
use crate::store::sqlite::jobs::state;
use crate::store::sqlite::jobs::state::{JobPosition, STATE_CANCELLED};
use crate::store::sqlite::rows::to_millis;
use crate::store::sqlite::tx::Tx;
use crate::store::{CANCELLED_INDEX, CancelReply};

/// Implements `AdminStore::cancel`.
pub(crate) fn cancel(tx: &Tx<'_>, id: JobId, keep: Duration) -> rusqlite::Result<CancelReply> {
    let Some(job_no) = state::find_job(tx.conn, id)? else {
        return Ok(CancelReply::NotFound);
    };
    let (due, attempts, crashes) = match state::find_position(tx.conn, job_no)? {
        None => return Ok(CancelReply::NotFound),
        Some(JobPosition::Running { .. }) => return mark_running(tx, job_no, keep),
        Some(JobPosition::Ended { state: STATE_CANCELLED, .. }) => return Ok(CancelReply::Cancelled),
        Some(JobPosition::Ended { state, .. }) => return Ok(CancelReply::Ended(state::ended_state(state))),
        Some(_) if state::is_queue_moving(tx, job_no)? => return Ok(CancelReply::Moving),
        Some(JobPosition::Scheduled { due, attempts, crashes } | JobPosition::Ready { due, attempts, crashes, .. }) => {
            (due, attempts, crashes)
        }
    };
    state::remove_position(tx, job_no)?;
    let (_, queue) = state::read_args_bytes_and_queue(tx, job_no)?;
    tx.increment_counter(queue, CANCELLED_INDEX, 1);
    state::insert_cancelled(tx, job_no, to_millis(keep), due, attempts, crashes)?;
    Ok(CancelReply::Cancelled)
}

/// Marks a running job, and notifies the node that holds it after the commit. An earlier mark stays.
fn mark_running(tx: &Tx<'_>, job_no: i64, keep: Duration) -> rusqlite::Result<CancelReply> {
    tx.statement("UPDATE duly_running SET cancel_keep_ms = ?2 WHERE job_no = ?1 AND cancel_keep_ms IS NULL")?
        .execute(params![job_no, to_millis(keep)])?;
    let node = tx
        .statement("SELECT n.id FROM duly_running h JOIN duly_node n ON n.node_no = h.node_no WHERE h.job_no = ?1")?
        .query_row([job_no], |row| row.get(0).map(NodeId::from_bytes))
        .optional()?;
    // A damaged file may name a holder that is not registered.
    let node = node.unwrap_or_else(|| NodeId::from_bytes([0; 16]));
    tx.request_heartbeat(node);
    Ok(CancelReply::Cancelling(node))
}
