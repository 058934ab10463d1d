//! Transfer of a queue to or from another store: the mark, batches with their checkpoint, and removal.

use std::time::SystemTime;

use rusqlite::{OptionalExtension, params};

use crate::clock::{Micros, micros, to_micros};
use crate::job::{Fence, Job, JobId, Record, State};
use crate::node::NodeId;
use crate::store::sqlite::jobs::counts::Of;
use crate::store::sqlite::jobs::state;
use crate::store::sqlite::jobs::state::{DEAD, DONE, Place};
use crate::store::sqlite::jobs::{failures, progress, push};
use crate::store::sqlite::rows::{Body, Raw, millis, rank};
use crate::store::sqlite::tx::Tx;
use crate::store::{Marked, Marker, MoveIn, MovedIn, Moving};

/// Implements `set_transfer_mark` of the store contract.
pub(super) fn set_moving(tx: &Tx<'_>, name: &str, mover: NodeId, to: Option<&str>) -> rusqlite::Result<Marked> {
    let queue = tx.queue(name)?;
    let moving = match (of_queue(tx, queue)?, to) {
        (Some(old), Some(_)) => Some(Moving { mover, ..old }),
        (None, Some(to)) => Some(Moving { begun_by: mover, mover, to: to.to_owned() }),
        (Some(old), None) if old.mover != mover => Some(old),
        (_, None) => None,
    };
    tx.statement("UPDATE duly_queue SET transfer_mark = ?2 WHERE queue_no = ?1")?
        .execute(params![queue, moving.as_ref().map(Moving::text)])?;
    if moving.is_none() {
        tx.wake(name);
    }
    Ok(Marked { moving, fence: Fence(tx.last_fence()?.unsigned_abs()) })
}

/// Returns the transfer mark of a queue.
pub(super) fn of_queue(tx: &Tx<'_>, queue: i64) -> rusqlite::Result<Option<Moving>> {
    let text: Option<Raw> = tx
        .statement("SELECT transfer_mark FROM duly_queue WHERE queue_no = ?1")?
        .query_row([queue], |row| row.get(0))?;
    Ok(text.and_then(|text| Moving::parse(&text.text())))
}

/// Implements `transfer_in` of the store contract.
pub(super) fn move_in(tx: &Tx<'_>, batch: &MoveIn) -> rusqlite::Result<MovedIn> {
    let MoveIn { queue: name, jobs, marker, .. } = batch;
    let only_looks = jobs.is_empty() && marker.is.is_none();
    let Some(queue) = (if only_looks { tx.known_queue(name)? } else { Some(tx.queue(name)?) }) else {
        return Ok(if marker.was.is_none() { MovedIn::Yes { known: Vec::new() } } else { MovedIn::Lost(None) });
    };
    let found = note(tx, queue, marker.begun_by)?;
    if found == marker.is {
        return Ok(MovedIn::Yes { known: Vec::new() });
    }
    if found != marker.was {
        return Ok(MovedIn::Lost(found));
    }
    let (mut known, mut taken, mut new) = (Vec::new(), Vec::new(), Vec::new());
    for record in &**jobs {
        match meet(tx, queue, record)? {
            Met::Nobody => new.push(record),
            Met::Itself => known.push(record.job.id),
            Met::Holder => taken.push(record.job.id),
        }
    }
    if !taken.is_empty() {
        return Ok(MovedIn::Taken(taken));
    }
    put(tx, queue, batch, &new)?;
    set_note(tx, queue, marker)?;
    tx.raise_fence(batch.fence.0.cast_signed())?;
    Ok(MovedIn::Yes { known })
}

/// Writes the jobs that are new here.
fn put(tx: &Tx<'_>, queue: i64, batch: &MoveIn, new: &[&Record]) -> rusqlite::Result<()> {
    for record in new {
        let job_no = put_body(tx, queue, &record.job)?;
        // Stored before the state: the last failure decides the group of a dead job.
        for failed in &record.failures {
            failures::put(tx, job_no, failed)?;
        }
        progress::put(tx, job_no, record)?;
        let due = to_micros(record.due);
        let (priority, attempts, crashes) = (rank(record.job.priority), record.attempts, record.crashes);
        match record.state {
            State::Scheduled => state::schedule(tx, queue, job_no, priority, due, attempts, crashes)?,
            State::Ready | State::Running => state::ready(tx, queue, job_no, priority, job_no, due, attempts, crashes)?,
            State::Done => state::end(tx, queue, job_no, DONE, until(record, micros(record.job.keep)), record)?,
            State::Dead => state::end(tx, queue, job_no, DEAD, until(record, micros(batch.keep_dead)), record)?,
        }
        if !record.state.is_final() {
            tx.add(queue, Of::Bytes, record.job.args.len() as i64);
            tx.wake(&batch.queue);
        }
        if let Some(key) = key_of(record) {
            state::take_unique(tx, queue, key, job_no)?;
        }
    }
    Ok(())
}

fn put_body(tx: &Tx<'_>, queue: i64, job: &Job) -> rusqlite::Result<i64> {
    let job_no = tx.number()?;
    let tags = (!job.tags.is_empty()).then(|| job.tags.join(" "));
    tx.statement(push::INSERT_BODY)?.execute(params![
        job_no,
        job.id.as_bytes(),
        queue,
        job.kind,
        job.args,
        rank(job.priority),
        to_micros(job.pushed),
        job.max_attempts,
        millis(job.timeout),
        millis(job.keep),
        job.unique,
        tags,
        job.traceparent,
        Body::of(job, tags.as_deref()).sum(),
    ])?;
    Ok(job_no)
}

/// Returns the unique key that a job holds. An ended job holds none.
fn key_of(record: &Record) -> Option<&str> {
    record.job.unique.as_deref().filter(|_| !record.state.is_final())
}

fn until(record: &Record, keep: Micros) -> Micros {
    to_micros(record.ended.unwrap_or(record.due)).saturating_add(keep)
}

enum Met {
    Nobody,
    /// A job with its id is here, or was recently.
    Itself,
    /// Another job holds its unique key.
    Holder,
}

fn meet(tx: &Tx<'_>, queue: i64, record: &Record) -> rusqlite::Result<Met> {
    if push::is_known(tx, queue, record.job.id)? {
        return Ok(Met::Itself);
    }
    let holder = key_of(record).map(|key| push::holder(tx, queue, key)).transpose()?.flatten();
    Ok(if holder.is_some() { Met::Holder } else { Met::Nobody })
}

fn note(tx: &Tx<'_>, queue: i64, begun_by: NodeId) -> rusqlite::Result<Option<String>> {
    tx.statement("SELECT checkpoint FROM duly_transfer_checkpoint WHERE queue_no = ?1 AND transfer_id = ?2")?
        .query_row(params![queue, begun_by.as_bytes()], |row| row.get(0))
        .optional()
}

fn set_note(tx: &Tx<'_>, queue: i64, marker: &Marker) -> rusqlite::Result<()> {
    let begun_by = marker.begun_by.as_bytes();
    match &marker.is {
        Some(note) => tx
            .statement(
                "INSERT OR REPLACE INTO duly_transfer_checkpoint (queue_no, transfer_id, checkpoint)
                   VALUES (?1, ?2, ?3)",
            )?
            .execute(params![queue, begun_by, note])?,
        None => tx
            .statement("DELETE FROM duly_transfer_checkpoint WHERE queue_no = ?1 AND transfer_id = ?2")?
            .execute(params![queue, begun_by])?,
    };
    Ok(())
}

/// Implements `transfer_out` of the store contract.
pub(super) fn move_out(
    tx: &Tx<'_>,
    name: &str,
    mover: NodeId,
    jobs: &[(JobId, SystemTime)],
) -> rusqlite::Result<Option<usize>> {
    let Some(queue) = tx.known_queue(name)? else {
        return Ok(None);
    };
    if of_queue(tx, queue)?.is_none_or(|moving| moving.mover != mover) {
        return Ok(None);
    }
    let mut gone = 0;
    for (id, pushed) in jobs {
        let job_no: Option<i64> = tx
            .statement("SELECT job_no FROM duly_job WHERE id = ?1 AND queue_no = ?2 AND pushed_at = ?3")?
            .query_row(params![id.as_bytes(), queue, to_micros(*pushed)], |row| row.get(0))
            .optional()?;
        let Some(job_no) = job_no else {
            continue;
        };
        if !matches!(state::find_place(tx.conn, job_no)?, Some(Place::Held { .. })) {
            state::vacate(tx, job_no)?;
            state::erase(tx, job_no)?;
            gone += 1;
        }
    }
    Ok(Some(gone))
}
