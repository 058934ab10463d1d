//! The state of a job: one narrow row in one of four tables. Finds, moves and deletes that row.

use rusqlite::{Connection, OptionalExtension, ToSql, params};

use crate::clock::{Micros, to_micros};
use crate::job::push::Due;
use crate::job::{JobId, Record};
use crate::store::Moved;
use crate::store::sqlite::jobs::counts::Of;
use crate::store::sqlite::jobs::{deferred, job_index, progress, push};
use crate::store::sqlite::rows::{Raw, number, text, times};
use crate::store::sqlite::transfer;
use crate::store::sqlite::tx::Tx;

/// Number of a state in `duly_ended`.
pub(crate) const DONE: i64 = 3;
/// Number of a state in `duly_ended`.
pub(crate) const DEAD: i64 = 4;

/// Makes a job ready.
pub(crate) const INSERT_READY: &str = "INSERT INTO duly_ready (queue_no, priority, seq, job_no, due_at, attempts,
       crashes) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";

/// Ends a job.
const INSERT_ENDED: &str =
    "INSERT INTO duly_ended (job_no, queue_no, state, prune_at, ended_at, due_at, attempts, crashes, group_no)
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";

/// The state of a job, from its one row.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    Scheduled { due: Micros, attempts: u32, crashes: u32 },
    Ready { seq: i64, due: Micros, attempts: u32, crashes: u32 },
    Held { node: i64, fence: i64, due: Micros, attempts: u32, crashes: u32 },
    Ended { state: i64, ended: Micros, due: Micros, attempts: u32, crashes: u32 },
}

/// Finds the state of a job by its number. Each query is one index lookup.
pub(crate) fn find_place(conn: &Connection, job_no: i64) -> rusqlite::Result<Option<Place>> {
    let ready = |row: &rusqlite::Row<'_>| {
        Ok(Place::Ready { seq: row.get(0)?, due: number(row, 1), attempts: times(row, 2), crashes: times(row, 3) })
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
    let moved = conn
        .prepare_cached("SELECT seq, due_at, attempts, crashes FROM duly_ready WHERE job_no = ?1 AND seq <> job_no")?
        .query_row([job_no], ready)
        .optional()?;
    if moved.is_some() {
        return Ok(moved);
    }
    let scheduled = conn
        .prepare_cached("SELECT due_at, attempts, crashes FROM duly_scheduled WHERE job_no = ?1")?
        .query_row([job_no], |row| {
            Ok(Place::Scheduled { due: row.get(0)?, attempts: times(row, 1), crashes: times(row, 2) })
        })
        .optional()?;
    if scheduled.is_some() {
        return Ok(scheduled);
    }
    let held = conn
        .prepare_cached("SELECT node_no, fence, due_at, attempts, crashes FROM duly_running WHERE job_no = ?1")?
        .query_row([job_no], |row| {
            Ok(Place::Held {
                node: row.get(0)?,
                fence: row.get(1)?,
                due: number(row, 2),
                attempts: times(row, 3),
                crashes: times(row, 4),
            })
        })
        .optional()?;
    if held.is_some() {
        return Ok(held);
    }
    conn.prepare_cached("SELECT state, ended_at, due_at, attempts, crashes FROM duly_ended WHERE job_no = ?1")?
        .query_row([job_no], |row| {
            Ok(Place::Ended {
                state: row.get(0)?,
                ended: row.get(1)?,
                due: number(row, 2),
                attempts: times(row, 3),
                crashes: times(row, 4),
            })
        })
        .optional()
}

/// Finds a job by its id in any queue. If several queues have the id, returns the oldest job.
pub(crate) fn find(conn: &Connection, id: JobId) -> rusqlite::Result<Option<i64>> {
    conn.prepare_cached("SELECT job_no FROM duly_job WHERE id = ?1 ORDER BY job_no LIMIT 1")?
        .query_row([id.as_bytes()], |row| row.get(0))
        .optional()
}

/// Schedules a job.
pub(crate) fn schedule(
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
    tx.add(queue, Of::Scheduled, 1);
    job_index::scheduled(tx, queue, job_no, due)
}

/// Makes a job ready at this position.
#[expect(clippy::too_many_arguments, reason = "one per column; a struct would only be taken apart again")]
pub(crate) fn ready(
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
    tx.add(queue, Of::Ready, 1);
    Ok(())
}

/// Ends a job with the times and counts of its record.
pub(crate) fn end(
    tx: &Tx<'_>,
    queue: i64,
    job_no: i64,
    state: i64,
    prune_at: Micros,
    record: &Record,
) -> rusqlite::Result<()> {
    let (ended, due) = (to_micros(record.ended.unwrap_or(record.due)), to_micros(record.due));
    end_at(tx, queue, job_no, state, prune_at, ended, due, record.attempts, record.crashes)
}

/// Ends a job. The failures of a dead job must be stored already: the last one decides its group.
#[expect(clippy::too_many_arguments, reason = "one per column; a struct would only be taken apart again")]
pub(crate) fn end_at(
    tx: &Tx<'_>,
    queue: i64,
    job_no: i64,
    state: i64,
    prune_at: Micros,
    ended: Micros,
    due: Micros,
    attempts: u32,
    crashes: u32,
) -> rusqlite::Result<()> {
    let group_no = if state == DEAD { Some(job_index::died(tx, queue, job_no, ended)?) } else { None };
    tx.statement(INSERT_ENDED)?
        .execute(params![job_no, queue, state, prune_at, ended, due, attempts, crashes, group_no])?;
    tx.add(queue, of_ended(state), 1);
    Ok(())
}

fn of_ended(state: i64) -> Of {
    if state == DONE { Of::Done } else { Of::Dead }
}

/// Removes a job from the ended ones.
pub(crate) fn unend(tx: &Tx<'_>, job_no: i64) -> rusqlite::Result<()> {
    let was: Option<(i64, i64, Micros, Option<i64>)> = tx
        .statement("DELETE FROM duly_ended WHERE job_no = ?1 RETURNING queue_no, state, ended_at, group_no")?
        .query_row([job_no], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))
        .optional()?;
    let Some((queue, state, ended, group_no)) = was else {
        return Ok(());
    };
    tx.add(queue, of_ended(state), -1);
    if state == DEAD { job_index::undead(tx, queue, job_no, ended, group_no) } else { Ok(()) }
}

/// Returns the bytes of a job's args, and its queue.
pub(crate) fn size(tx: &Tx<'_>, job_no: i64) -> rusqlite::Result<(i64, i64)> {
    tx.statement("SELECT octet_length(args), queue_no FROM duly_job WHERE job_no = ?1")?
        .query_row([job_no], |row| Ok((number(row, 0), row.get(1)?)))
}

/// Deletes a job that is not running. Its id stays remembered.
pub(crate) fn delete(tx: &Tx<'_>, job_no: i64) -> rusqlite::Result<()> {
    vacate(tx, job_no)?;
    delete_body(tx, job_no)
}

/// Deletes the body of a job without a state, with its unique key and failures. Its id stays remembered.
pub(crate) fn delete_body(tx: &Tx<'_>, job_no: i64) -> rusqlite::Result<()> {
    let Some((queue, id)) = erase(tx, job_no)? else {
        return Ok(());
    };
    if let Ok(id) = <[u8; 16]>::try_from(&id[..]) {
        tx.ended(queue, JobId::from_bytes(id));
    }
    tx.remember(queue, &id)
}

/// Deletes the body as [`delete_body`] does, but does not remember the id. Returns the queue and the id.
pub(crate) fn erase(tx: &Tx<'_>, job_no: i64) -> rusqlite::Result<Option<(i64, Vec<u8>)>> {
    tx.statement("DELETE FROM duly_failure WHERE job_no = ?1")?.execute([job_no])?;
    progress::forget(tx, job_no)?;
    let body: Option<(i64, Raw, Option<Raw>)> = tx
        .statement("DELETE FROM duly_job WHERE job_no = ?1 RETURNING queue_no, id, unique_key")?
        .query_row([job_no], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .optional()?;
    let Some((queue, id, key)) = body else {
        return Ok(None);
    };
    if let Some(key) = key {
        free_unique(tx, queue, &key, job_no)?;
        if !key.is_text() {
            // The key was damaged after it was taken, so it is found by its job.
            tx.statement("DELETE FROM duly_unique_key WHERE job_no = ?1")?.execute([job_no])?;
        }
    }
    Ok(Some((queue, id.0)))
}

/// Takes a unique key that is free, or was left by a job that no longer exists.
pub(crate) fn take_unique(tx: &Tx<'_>, queue: i64, key: impl ToSql, job_no: i64) -> rusqlite::Result<()> {
    tx.statement("INSERT OR REPLACE INTO duly_unique_key (queue_no, unique_key, job_no) VALUES (?1, ?2, ?3)")?
        .execute(params![queue, key, job_no])?;
    Ok(())
}

/// Frees a unique key if it still belongs to this job.
pub(crate) fn free_unique(tx: &Tx<'_>, queue: i64, key: impl ToSql, job_no: i64) -> rusqlite::Result<()> {
    tx.statement("DELETE FROM duly_unique_key WHERE queue_no = ?1 AND unique_key = ?2 AND job_no = ?3")?
        .execute(params![queue, key, job_no])?;
    Ok(())
}

/// Implements `remove` of the store contract.
pub(crate) fn remove(tx: &Tx<'_>, id: JobId) -> rusqlite::Result<Moved> {
    let Some(job_no) = find(tx.conn, id)? else {
        return Ok(Moved::NotFound);
    };
    match find_place(tx.conn, job_no)? {
        Some(Place::Held { .. }) => Ok(Moved::Running),
        _ if is_moving(tx, job_no)? => Ok(Moved::Moving),
        _ => {
            delete(tx, job_no)?;
            Ok(Moved::Yes)
        }
    }
}

/// Returns whether the queue of a job is moving to another store.
pub(crate) fn is_moving(tx: &Tx<'_>, job_no: i64) -> rusqlite::Result<bool> {
    let queue =
        tx.statement("SELECT queue_no FROM duly_job WHERE job_no = ?1")?.query_row([job_no], |row| row.get(0))?;
    Ok(transfer::of_queue(tx, queue)?.is_some())
}

/// Implements `reschedule` of the store contract.
pub(crate) fn reschedule(tx: &Tx<'_>, id: JobId, due: Due) -> rusqlite::Result<Moved> {
    let Some(job_no) = find(tx.conn, id)? else {
        return Ok(Moved::NotFound);
    };
    let (attempts, crashes, ended) = match find_place(tx.conn, job_no)? {
        Some(Place::Held { .. }) => return Ok(Moved::Running),
        _ if is_moving(tx, job_no)? => return Ok(Moved::Moving),
        Some(Place::Ready { attempts, crashes, .. } | Place::Scheduled { attempts, crashes, .. }) => {
            (attempts, crashes, false)
        }
        // Attempts start over: otherwise a job that died of its last attempt would die again after one more.
        Some(Place::Ended { .. }) | None => (0, 0, true),
    };
    let (queue, name, priority, key): (i64, String, i64, Option<Raw>) = tx
        .statement(
            "SELECT j.queue_no, q.name, j.priority, j.unique_key FROM duly_job j
               JOIN duly_queue q ON q.queue_no = j.queue_no
             WHERE j.job_no = ?1",
        )?
        .query_row([job_no], |row| Ok((row.get(0)?, text(row, 1)?, row.get(2)?, row.get(3)?)))?;
    if let (true, Some(key)) = (ended, &key) {
        if let Some((_, other)) = push::holder(tx, queue, key)? {
            return Ok(Moved::Existing(other));
        }
        take_unique(tx, queue, key, job_no)?;
    }
    vacate(tx, job_no)?;
    tx.add(queue, Of::Bytes, size(tx, job_no)?.0);
    match push::due(tx, due) {
        Some(due) => schedule(tx, queue, job_no, priority, due, attempts, crashes)?,
        None => ready(tx, queue, job_no, priority, tx.number()?, tx.now, attempts, crashes)?,
    }
    tx.wake(&name);
    Ok(Moved::Yes)
}

/// Deletes the state of a job that is not running.
pub(crate) fn vacate(tx: &Tx<'_>, job_no: i64) -> rusqlite::Result<()> {
    match find_place(tx.conn, job_no)? {
        Some(Place::Ready { seq, .. }) => {
            tx.statement(
                "DELETE FROM duly_ready WHERE (queue_no, priority, seq) =
                   (SELECT queue_no, priority, ?2 FROM duly_job WHERE job_no = ?1)",
            )?
            .execute(params![job_no, seq])?;
            let (bytes, queue) = size(tx, job_no)?;
            tx.add(queue, Of::Ready, -1);
            tx.add(queue, Of::Bytes, -bytes);
        }
        Some(Place::Scheduled { due, .. }) => {
            tx.statement("DELETE FROM duly_scheduled WHERE job_no = ?1")?.execute([job_no])?;
            let (bytes, queue) = size(tx, job_no)?;
            tx.add(queue, Of::Scheduled, -1);
            tx.add(queue, Of::Bytes, -bytes);
            job_index::unscheduled(tx, queue, job_no, due)?;
            deferred::forget(tx, job_no)?;
        }
        Some(Place::Ended { .. }) => unend(tx, job_no)?,
        Some(Place::Held { .. }) | None => {}
    }
    Ok(())
}
