//! Transfer of a queue to or from another store: the mark, batches with their checkpoint, and removal.

use std::time::SystemTime;

use async_trait::async_trait;
use rusqlite::{OptionalExtension, params};

use crate::clock::{Micros, micros, to_micros};
use crate::error::Result;
use crate::job::{Fence, Job, JobId, JobRecord, State, UniqueKey};
use crate::node::NodeId;
use crate::store::sqlite::Sqlite;
use crate::store::sqlite::disk_reserve;
use crate::store::sqlite::jobs::counts::CountColumn;
use crate::store::sqlite::jobs::state;
use crate::store::sqlite::jobs::state::{JobPosition, STATE_CANCELLED, STATE_DEAD, STATE_DONE};
use crate::store::sqlite::jobs::{progress, push, runs};
use crate::store::sqlite::rows::{JobBody, RawText, priority_code, to_millis};
use crate::store::sqlite::tx::Tx;
use crate::store::{
    TransferBatch, TransferBatchResult, TransferCheckpoint, TransferMark, TransferMarkReply, TransferStore,
};

#[async_trait]
impl TransferStore for Sqlite {
    async fn set_transfer_mark(&self, queue: &str, mover: NodeId, to: Option<&str>) -> Result<TransferMarkReply> {
        let (queue, to) = (queue.to_owned(), to.map(str::to_owned));
        self.writer.write("set_transfer_mark", move |tx| set_transfer_mark(tx, &queue, mover, to.as_deref())).await
    }

    async fn transfer_in(&self, batch: TransferBatch) -> Result<TransferBatchResult> {
        let bytes = disk_reserve::record_bytes(&batch.jobs);
        self.writer
            .write("transfer_in", move |tx| match tx.check_disk_room("transfer_in", bytes)? {
                Ok(()) => transfer_in(tx, &batch).map(Ok),
                Err(full) => Ok(Err(full)),
            })
            .await?
    }

    async fn transfer_out(&self, queue: &str, mover: NodeId, jobs: Vec<(JobId, SystemTime)>) -> Result<Option<usize>> {
        let queue = queue.to_owned();
        self.writer.write("transfer_out", move |tx| transfer_out(tx, &queue, mover, &jobs)).await
    }
}

/// Implements `TransferStore::set_transfer_mark`.
pub(super) fn set_transfer_mark(
    tx: &Tx<'_>,
    name: &str,
    mover: NodeId,
    to: Option<&str>,
) -> rusqlite::Result<TransferMarkReply> {
    let queue = tx.ensure_queue(name)?;
    let mark = match (read_transfer_mark(tx, queue)?, to) {
        (Some(old), Some(_)) => Some(TransferMark { mover, ..old }),
        (None, Some(to)) => Some(TransferMark { begun_by: mover, mover, to: to.to_owned() }),
        (Some(old), None) if old.mover != mover => Some(old),
        (_, None) => None,
    };
    tx.statement("UPDATE duly_queue SET transfer_mark = ?2 WHERE queue_no = ?1")?
        .execute(params![queue, mark.as_ref().map(TransferMark::to_text)])?;
    if mark.is_none() {
        tx.wake_one(name);
    }
    Ok(TransferMarkReply { mark, last_fence: Fence(tx.last_fence()?.unsigned_abs()) })
}

/// Returns the transfer mark of a queue.
pub(super) fn read_transfer_mark(tx: &Tx<'_>, queue: i64) -> rusqlite::Result<Option<TransferMark>> {
    let text: Option<RawText> = tx
        .statement("SELECT transfer_mark FROM duly_queue WHERE queue_no = ?1")?
        .query_row([queue], |row| row.get(0))?;
    Ok(text.and_then(|text| TransferMark::parse(&text.into_lossy_string())))
}

/// Implements `TransferStore::transfer_in`.
pub(super) fn transfer_in(tx: &Tx<'_>, batch: &TransferBatch) -> rusqlite::Result<TransferBatchResult> {
    let TransferBatch { queue: name, jobs, checkpoint, .. } = batch;
    let only_looks = jobs.is_empty() && checkpoint.replacement.is_none();
    let Some(queue) = (if only_looks { tx.find_queue(name)? } else { Some(tx.ensure_queue(name)?) }) else {
        return Ok(if checkpoint.expected.is_none() {
            TransferBatchResult::Applied { skipped: Vec::new() }
        } else {
            TransferBatchResult::CheckpointMismatch(None)
        });
    };
    let found = read_checkpoint(tx, queue, checkpoint.begun_by)?;
    if found == checkpoint.replacement {
        return Ok(TransferBatchResult::Applied { skipped: Vec::new() });
    }
    if found != checkpoint.expected {
        return Ok(TransferBatchResult::CheckpointMismatch(found));
    }
    let (mut skipped, mut taken, mut new) = (Vec::new(), Vec::new(), Vec::new());
    for record in &**jobs {
        match find_conflict(tx, queue, record)? {
            TransferConflict::NoConflict => new.push(record),
            TransferConflict::AlreadyPresent => skipped.push(record.job.id),
            TransferConflict::KeyTaken => taken.push(record.job.id),
        }
    }
    if !taken.is_empty() {
        return Ok(TransferBatchResult::UniqueTaken(taken));
    }
    insert_jobs(tx, queue, batch, &new)?;
    set_checkpoint(tx, queue, checkpoint)?;
    tx.raise_fence(batch.fence_floor.0.cast_signed())?;
    Ok(TransferBatchResult::Applied { skipped })
}

/// Writes the jobs that are new here.
fn insert_jobs(tx: &Tx<'_>, queue: i64, batch: &TransferBatch, new: &[&JobRecord]) -> rusqlite::Result<()> {
    for record in new {
        let job_no = insert_body(tx, queue, &record.job)?;
        // Stored before the state: the last failure decides the group of a dead job.
        for run in record.split_runs().1 {
            runs::import(tx, job_no, run)?;
        }
        progress::import(tx, job_no, record)?;
        let due = to_micros(record.due);
        let (priority, attempts, crashes) = (priority_code(record.job.priority), record.attempts, record.crashes);
        match record.state {
            State::Scheduled => state::insert_scheduled(tx, queue, job_no, priority, due, attempts, crashes)?,
            State::Ready | State::Running => {
                state::insert_ready(tx, queue, job_no, priority, job_no, due, attempts, crashes)?
            }
            State::Done => state::insert_ended_record(
                tx,
                queue,
                job_no,
                STATE_DONE,
                compute_prune_at(record, micros(record.job.keep)),
                record,
            )?,
            State::Dead => state::insert_ended_record(
                tx,
                queue,
                job_no,
                STATE_DEAD,
                compute_prune_at(record, micros(batch.keep_dead)),
                record,
            )?,
            State::Cancelled => state::insert_ended_record(
                tx,
                queue,
                job_no,
                STATE_CANCELLED,
                compute_prune_at(record, micros(batch.keep_dead)),
                record,
            )?,
        }
        if !record.state.is_final() {
            tx.change_count(queue, CountColumn::UnfinishedBytes, record.job.args.len() as i64);
            tx.wake_one(&batch.queue);
        }
        if let Some(key) = unique_key_of(record) {
            state::take_unique_key(tx, queue, key, job_no)?;
        }
    }
    Ok(())
}

fn insert_body(tx: &Tx<'_>, queue: i64, job: &Job) -> rusqlite::Result<i64> {
    let job_no = tx.next_number()?;
    let tags = (!job.tags.is_empty()).then(|| job.tags.join(" "));
    tx.statement(push::INSERT_BODY)?.execute(params![
        job_no,
        job.id.as_bytes(),
        queue,
        job.kind,
        job.args,
        priority_code(job.priority),
        to_micros(job.pushed),
        job.max_attempts,
        to_millis(job.timeout),
        to_millis(job.keep),
        job.unique.as_ref().map(UniqueKey::as_str),
        tags,
        job.traceparent,
        JobBody::from_job(job, tags.as_deref()).checksum(),
    ])?;
    Ok(job_no)
}

/// Returns the unique key that a job holds. An ended job holds none.
fn unique_key_of(record: &JobRecord) -> Option<&str> {
    record.job.unique.as_ref().map(UniqueKey::as_str).filter(|_| !record.state.is_final())
}

fn compute_prune_at(record: &JobRecord, keep: Micros) -> Micros {
    to_micros(record.ended.unwrap_or(record.due)).saturating_add(keep)
}

enum TransferConflict {
    NoConflict,
    /// A job with its id is here, or was recently.
    AlreadyPresent,
    /// Another job holds its unique key.
    KeyTaken,
}

fn find_conflict(tx: &Tx<'_>, queue: i64, record: &JobRecord) -> rusqlite::Result<TransferConflict> {
    if push::is_known_id(tx, queue, record.job.id)? {
        return Ok(TransferConflict::AlreadyPresent);
    }
    let holder = unique_key_of(record).map(|key| push::find_unique_holder(tx, queue, key)).transpose()?.flatten();
    Ok(if holder.is_some() { TransferConflict::KeyTaken } else { TransferConflict::NoConflict })
}

fn read_checkpoint(tx: &Tx<'_>, queue: i64, begun_by: NodeId) -> rusqlite::Result<Option<String>> {
    tx.statement("SELECT checkpoint FROM duly_transfer_checkpoint WHERE queue_no = ?1 AND begun_by = ?2")?
        .query_row(params![queue, begun_by.as_bytes()], |row| row.get(0))
        .optional()
}

fn set_checkpoint(tx: &Tx<'_>, queue: i64, checkpoint: &TransferCheckpoint) -> rusqlite::Result<()> {
    let begun_by = checkpoint.begun_by.as_bytes();
    match &checkpoint.replacement {
        Some(note) => tx
            .statement(
                "INSERT OR REPLACE INTO duly_transfer_checkpoint (queue_no, begun_by, checkpoint)
                   VALUES (?1, ?2, ?3)",
            )?
            .execute(params![queue, begun_by, note])?,
        None => tx
            .statement("DELETE FROM duly_transfer_checkpoint WHERE queue_no = ?1 AND begun_by = ?2")?
            .execute(params![queue, begun_by])?,
    };
    Ok(())
}

/// Implements `TransferStore::transfer_out`.
pub(super) fn transfer_out(
    tx: &Tx<'_>,
    name: &str,
    mover: NodeId,
    jobs: &[(JobId, SystemTime)],
) -> rusqlite::Result<Option<usize>> {
    let Some(queue) = tx.find_queue(name)? else {
        return Ok(None);
    };
    if read_transfer_mark(tx, queue)?.is_none_or(|mark| mark.mover != mover) {
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
        if !matches!(state::find_position(tx.conn, job_no)?, Some(JobPosition::Running { .. })) {
            state::remove_position(tx, job_no)?;
            state::delete_body_unremembered(tx, job_no)?;
            gone += 1;
        }
    }
    Ok(Some(gone))
}
