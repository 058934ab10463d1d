//! The state of a job: one narrow row in one of four tables. Finds, moves and deletes that row.

use rusqlite::{Connection, OptionalExtension, ToSql, params};

use crate::clock::{Micros, micros, to_micros};
use crate::job::{JobId, JobRecord, JobRun, State};
use crate::store::sqlite::jobs::counts::CountColumn;
use crate::store::sqlite::jobs::{deferred, job_index, progress, runs};
use crate::store::sqlite::rows::{RawText, read_integer, read_u32};
use crate::store::sqlite::transfer;
use crate::store::sqlite::tx::Tx;

/// Number of a state in `duly_ended`.
pub(crate) const STATE_DONE: i64 = 3;
/// Number of a state in `duly_ended`.
pub(crate) const STATE_DEAD: i64 = 4;
/// Number of a state in `duly_ended`.
pub(crate) const STATE_CANCELLED: i64 = 5;

/// Makes a job ready.
pub(crate) const INSERT_READY: &str = "INSERT INTO duly_ready (queue_no, priority, seq, job_no, due_at, attempts,
       crashes) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";

/// Ends a job.
const INSERT_ENDED: &str =
    "INSERT INTO duly_ended (job_no, queue_no, state, prune_at, ended_at, due_at, attempts, crashes, group_no,
       started_at, duration_us, node_id, output) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)";

/// The state of a job, from its one row.
#[derive(Clone, Debug)]
pub(crate) enum JobPosition {
    Scheduled { due: Micros, attempts: u32, crashes: u32 },
    Ready { seq: i64, due: Micros, attempts: u32, crashes: u32 },
    Running { node_no: i64, fence: i64, due: Micros, attempts: u32, crashes: u32, cancelling: bool },
    Ended { state: i64, ended_at: Micros, due: Micros, attempts: u32, crashes: u32 },
}

/// Finds the state of a job by its number. Each query is one index lookup.
pub(crate) fn find_position(conn: &Connection, job_no: i64) -> rusqlite::Result<Option<JobPosition>> {
    let ready = |row: &rusqlite::Row<'_>| {
        Ok(JobPosition::Ready {
            seq: row.get(0)?,
            due: read_integer(row, 1),
            attempts: read_u32(row, 2),
            crashes: read_u32(row, 3),
        })
    };
    // A ready job that never moved has its own number as its position.
    let unmoved = conn
        .prepare_cached(
            "SELECT r.seq, r.due_at, r.attempts, r.crashes FROM duly_job j JOIN duly_ready r
               ON r.queue_no = j.queue_no AND r.priority = j.priority AND r.seq = j.job_no
               AND r.job_no = j.job_no WHERE j.job_no = ?1",
        )?
        .query_row([job_no], ready)
        .optional()?;
    if unmoved.is_some() {
        return Ok(unmoved);
    }
    let position = conn
        .prepare_cached("SELECT seq, due_at, attempts, crashes FROM duly_ready WHERE job_no = ?1 AND seq <> job_no")?
        .query_row([job_no], ready)
        .optional()?;
    if position.is_some() {
        return Ok(position);
    }
    let scheduled = conn
        .prepare_cached("SELECT due_at, attempts, crashes FROM duly_scheduled WHERE job_no = ?1")?
        .query_row([job_no], |row| {
            Ok(JobPosition::Scheduled { due: row.get(0)?, attempts: read_u32(row, 1), crashes: read_u32(row, 2) })
        })
        .optional()?;
    if scheduled.is_some() {
        return Ok(scheduled);
    }
    let held = conn
        .prepare_cached(
            "SELECT node_no, fence, due_at, attempts, crashes, cancel_keep_ms IS NOT NULL
               FROM duly_running WHERE job_no = ?1",
        )?
        .query_row([job_no], |row| {
            Ok(JobPosition::Running {
                node_no: row.get(0)?,
                fence: row.get(1)?,
                due: read_integer(row, 2),
                attempts: read_u32(row, 3),
                crashes: read_u32(row, 4),
                cancelling: row.get(5)?,
            })
        })
        .optional()?;
    if held.is_some() {
        return Ok(held);
    }
    conn.prepare_cached("SELECT state, ended_at, due_at, attempts, crashes FROM duly_ended WHERE job_no = ?1")?
        .query_row([job_no], |row| {
            Ok(JobPosition::Ended {
                state: row.get(0)?,
                ended_at: row.get(1)?,
                due: read_integer(row, 2),
                attempts: read_u32(row, 3),
                crashes: read_u32(row, 4),
            })
        })
        .optional()
}

/// Finds a job by its id in any queue. If several queues have the id, returns the oldest job.
pub(crate) fn find_job(conn: &Connection, id: JobId) -> rusqlite::Result<Option<i64>> {
    conn.prepare_cached("SELECT job_no FROM duly_job WHERE id = ?1 ORDER BY job_no LIMIT 1")?
        .query_row([id.as_bytes()], |row| row.get(0))
        .optional()
}

/// Schedules a job.
pub(crate) fn insert_scheduled(
    tx: &Tx<'_>,
    queue: i64,
    job_no: i64,
    priority: i64,
    due: Micros,
    attempts: u32,
    crashes: u32,
) -> rusqlite::Result<()> {
    tx.statement(
        "INSERT INTO duly_scheduled (queue_no, due_at, job_no, priority, attempts, crashes)
           VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    )?
    .execute(params![queue, due, job_no, priority, attempts, crashes])?;
    tx.change_count(queue, CountColumn::Scheduled, 1);
    job_index::index_scheduled(tx, queue, job_no, due)
}

/// Makes a job ready at this position.
#[expect(clippy::too_many_arguments, reason = "one per column; a struct would only be taken apart again")]
pub(crate) fn insert_ready(
    tx: &Tx<'_>,
    queue: i64,
    job_no: i64,
    priority: i64,
    seq: i64,
    due: Micros,
    attempts: u32,
    crashes: u32,
) -> rusqlite::Result<()> {
    tx.statement(INSERT_READY)?.execute(params![queue, priority, seq, job_no, due, attempts, crashes])?;
    tx.change_count(queue, CountColumn::Ready, 1);
    Ok(())
}

/// Ends a job with the times and counts of its record.
pub(crate) fn insert_ended_record(
    tx: &Tx<'_>,
    queue: i64,
    job_no: i64,
    state: i64,
    prune_at: Micros,
    record: &JobRecord,
) -> rusqlite::Result<()> {
    let (ended, due) = (to_micros(record.ended.unwrap_or(record.due)), to_micros(record.due));
    let ack = record.split_runs().0;
    insert_ended(tx, queue, job_no, state, prune_at, ended, due, record.attempts, record.crashes, ack)
}

/// Ends a job. The failures of a dead job must be stored already: the last one decides its group. `ack` is the run that
/// made a job done.
#[expect(clippy::too_many_arguments, reason = "one per column; a struct would only be taken apart again")]
pub(crate) fn insert_ended(
    tx: &Tx<'_>,
    queue: i64,
    job_no: i64,
    state: i64,
    prune_at: Micros,
    ended: Micros,
    due: Micros,
    attempts: u32,
    crashes: u32,
    ack: Option<&JobRun>,
) -> rusqlite::Result<()> {
    let group_no = if state == STATE_DEAD { Some(job_index::index_dead(tx, queue, job_no, ended)?) } else { None };
    tx.statement(INSERT_ENDED)?.execute(params![
        job_no,
        queue,
        state,
        prune_at,
        ended,
        due,
        attempts,
        crashes,
        group_no,
        ack.and_then(|run| run.started).map(to_micros),
        ack.and_then(|run| run.duration).map(micros),
        ack.map(|run| run.node.as_bytes()),
        ack.and_then(|run| run.output.as_deref())
    ])?;
    tx.change_count(queue, ended_count_column(state), 1);
    Ok(())
}

fn ended_count_column(state: i64) -> CountColumn {
    match state {
        STATE_DONE => CountColumn::Done,
        STATE_CANCELLED => CountColumn::Cancelled,
        _ => CountColumn::Dead,
    }
}

/// Returns the state of an ended job by its number.
pub(crate) fn ended_state(state: i64) -> State {
    match state {
        STATE_DONE => State::Done,
        STATE_CANCELLED => State::Cancelled,
        _ => State::Dead,
    }
}

/// Ends a job without a state: frees its unique key, keeps it for `keep_ms`, and notifies the callers that wait for it.
/// Its bytes must be uncounted already.
pub(crate) fn insert_cancelled(
    tx: &Tx<'_>,
    job_no: i64,
    keep_ms: i64,
    due: Micros,
    attempts: u32,
    crashes: u32,
) -> rusqlite::Result<()> {
    let (queue, id, key): (i64, [u8; 16], Option<RawText>) = tx
        .statement("SELECT queue_no, id, unique_key FROM duly_job WHERE job_no = ?1")?
        .query_row([job_no], |row| Ok((row.get(0)?, row.get(1).unwrap_or_default(), row.get(2)?)))?;
    if let Some(key) = key {
        free_unique_key(tx, queue, &key, job_no)?;
    }
    let prune_at = tx.now.saturating_add(keep_ms.saturating_mul(1_000));
    insert_ended(tx, queue, job_no, STATE_CANCELLED, prune_at, tx.now, due, attempts, crashes, None)?;
    tx.notify_completed(queue, JobId::from_bytes(id));
    Ok(())
}

/// Ends a job without a state as done, as an ack does. Its bytes must be uncounted already. `ack` is its last run, if that
/// is known.
pub(crate) fn insert_acked(
    tx: &Tx<'_>,
    job_no: i64,
    due: Micros,
    attempts: u32,
    crashes: u32,
    ack: Option<&JobRun>,
) -> rusqlite::Result<()> {
    let (queue, id, key, keep_ms): (i64, [u8; 16], Option<RawText>, i64) = tx
        .statement("SELECT queue_no, id, unique_key, keep_ms FROM duly_job WHERE job_no = ?1")?
        .query_row([job_no], |row| {
            Ok((row.get(0)?, row.get(1).unwrap_or_default(), row.get(2)?, read_integer(row, 3)))
        })?;
    if keep_ms <= 0 {
        return delete_body(tx, job_no);
    }
    if let Some(key) = key {
        free_unique_key(tx, queue, &key, job_no)?;
    }
    let prune_at = tx.now.saturating_add(keep_ms.saturating_mul(1_000));
    insert_ended(tx, queue, job_no, STATE_DONE, prune_at, tx.now, due, attempts, crashes, ack)?;
    tx.notify_completed(queue, JobId::from_bytes(id));
    Ok(())
}

/// Removes a job from the ended ones.
pub(crate) fn remove_ended(tx: &Tx<'_>, job_no: i64) -> rusqlite::Result<()> {
    let was: Option<(i64, i64, Micros, Option<i64>)> = tx
        .statement("DELETE FROM duly_ended WHERE job_no = ?1 RETURNING queue_no, state, ended_at, group_no")?
        .query_row([job_no], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))
        .optional()?;
    let Some((queue, state, ended, group_no)) = was else {
        return Ok(());
    };
    tx.change_count(queue, ended_count_column(state), -1);
    if state == STATE_DEAD { job_index::unindex_dead(tx, queue, job_no, ended, group_no) } else { Ok(()) }
}

/// Returns the bytes of a job's args, and its queue.
pub(crate) fn read_args_bytes_and_queue(tx: &Tx<'_>, job_no: i64) -> rusqlite::Result<(i64, i64)> {
    tx.statement("SELECT octet_length(args), queue_no FROM duly_job WHERE job_no = ?1")?
        .query_row([job_no], |row| Ok((read_integer(row, 0), row.get(1)?)))
}

/// Deletes a job that is not running. Its id stays remembered.
pub(crate) fn delete_job(tx: &Tx<'_>, job_no: i64) -> rusqlite::Result<()> {
    remove_position(tx, job_no)?;
    delete_body(tx, job_no)
}

/// Deletes the body of a job without a state, with its unique key and runs. Its id stays remembered.
pub(crate) fn delete_body(tx: &Tx<'_>, job_no: i64) -> rusqlite::Result<()> {
    let Some((queue, id)) = delete_body_unremembered(tx, job_no)? else {
        return Ok(());
    };
    if let Ok(id) = <[u8; 16]>::try_from(&id[..]) {
        tx.notify_completed(queue, JobId::from_bytes(id));
    }
    tx.remember_removed_id(queue, &id)
}

/// Deletes the body as [`delete_body`] does, but does not remember the id. Returns the queue and the id.
pub(crate) fn delete_body_unremembered(tx: &Tx<'_>, job_no: i64) -> rusqlite::Result<Option<(i64, Vec<u8>)>> {
    runs::delete(tx, job_no)?;
    progress::delete(tx, job_no)?;
    let body: Option<(i64, RawText, Option<RawText>)> = tx
        .statement("DELETE FROM duly_job WHERE job_no = ?1 RETURNING queue_no, id, unique_key")?
        .query_row([job_no], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .optional()?;
    let Some((queue, id, key)) = body else {
        return Ok(None);
    };
    if let Some(key) = key {
        free_unique_key(tx, queue, &key, job_no)?;
        if !key.is_utf8() {
            // The key was damaged after it was taken, so it is found by its job.
            tx.statement("DELETE FROM duly_unique_key WHERE job_no = ?1")?.execute([job_no])?;
        }
    }
    Ok(Some((queue, id.0)))
}

/// Takes a unique key that is free, or was left by a job that no longer exists.
pub(crate) fn take_unique_key(tx: &Tx<'_>, queue: i64, key: impl ToSql, job_no: i64) -> rusqlite::Result<()> {
    tx.statement("INSERT OR REPLACE INTO duly_unique_key (queue_no, unique_key, job_no) VALUES (?1, ?2, ?3)")?
        .execute(params![queue, key, job_no])?;
    Ok(())
}

/// Frees a unique key if it still belongs to this job.
pub(crate) fn free_unique_key(tx: &Tx<'_>, queue: i64, key: impl ToSql, job_no: i64) -> rusqlite::Result<()> {
    tx.statement("DELETE FROM duly_unique_key WHERE queue_no = ?1 AND unique_key = ?2 AND job_no = ?3")?
        .execute(params![queue, key, job_no])?;
    Ok(())
}

/// Returns whether the queue of a job is moving to another store.
pub(crate) fn is_queue_moving(tx: &Tx<'_>, job_no: i64) -> rusqlite::Result<bool> {
    let queue =
        tx.statement("SELECT queue_no FROM duly_job WHERE job_no = ?1")?.query_row([job_no], |row| row.get(0))?;
    Ok(transfer::read_transfer_mark(tx, queue)?.is_some())
}

/// Deletes the state of a job that is not running.
pub(crate) fn remove_position(tx: &Tx<'_>, job_no: i64) -> rusqlite::Result<()> {
    match find_position(tx.conn, job_no)? {
        Some(JobPosition::Ready { seq, .. }) => {
            tx.statement(
                "DELETE FROM duly_ready WHERE (queue_no, priority, seq) =
                   (SELECT queue_no, priority, ?2 FROM duly_job WHERE job_no = ?1)",
            )?
            .execute(params![job_no, seq])?;
            let (bytes, queue) = read_args_bytes_and_queue(tx, job_no)?;
            tx.change_count(queue, CountColumn::Ready, -1);
            tx.change_count(queue, CountColumn::UnfinishedBytes, -bytes);
        }
        Some(JobPosition::Scheduled { due, .. }) => {
            tx.statement("DELETE FROM duly_scheduled WHERE job_no = ?1")?.execute([job_no])?;
            let (bytes, queue) = read_args_bytes_and_queue(tx, job_no)?;
            tx.change_count(queue, CountColumn::Scheduled, -1);
            tx.change_count(queue, CountColumn::UnfinishedBytes, -bytes);
            job_index::unindex_scheduled(tx, queue, job_no, due)?;
            deferred::delete_hint_of_job(tx, job_no)?;
        }
        Some(JobPosition::Ended { .. }) => remove_ended(tx, job_no)?,
        Some(JobPosition::Running { .. }) | None => {}
    }
    Ok(())
}
