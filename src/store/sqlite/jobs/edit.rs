//! Changes to jobs that are not running: edits, removals, new due times, and bulk changes.

use std::time::Duration;

use async_trait::async_trait;
use rusqlite::params;

use crate::error::Result;
use crate::job::push::Due;
use crate::job::{Job, JobId, State};
use crate::store::sqlite::Sqlite;
use crate::store::sqlite::jobs::counts::CountColumn;
use crate::store::sqlite::jobs::state::JobPosition;
use crate::store::sqlite::jobs::{cancel, capacity, job_index, push, query, remove_queue, runs, state};
use crate::store::sqlite::rows::{JOB_COLUMNS, JobBody, RawText, priority_code, read_checked_job, read_text};
use crate::store::sqlite::tx::Tx;
use crate::store::{
    AdminStore, BULK_CHANGE_MAX, CancelReply, Capacity, ChangeResult, ChangeTarget, DeadGroup, JobEdit,
    RemoveQueueResult,
};

#[async_trait]
impl AdminStore for Sqlite {
    async fn edit(&self, id: JobId, change: JobEdit) -> Result<ChangeResult> {
        self.writer.write("edit", move |tx| edit(tx, id, &change)).await
    }

    async fn cancel(&self, id: JobId, keep: Duration) -> Result<CancelReply> {
        self.writer.write("cancel", move |tx| cancel::cancel(tx, id, keep)).await
    }

    async fn set_capacity(&self, queue: &str, capacity: Capacity) -> Result<Capacity> {
        let queue = queue.to_owned();
        self.writer.write("set_capacity", move |tx| capacity::set_capacity(tx, &queue, capacity)).await
    }

    async fn remove_queue(&self, queue: &str, only_unused: bool) -> Result<RemoveQueueResult> {
        let queue = queue.to_owned();
        self.writer.write("remove_queue", move |tx| remove_queue::remove_queue(tx, &queue, only_unused)).await
    }

    async fn dead_groups(&self, queue: Option<&str>) -> Result<Vec<DeadGroup>> {
        let queue = queue.map(str::to_owned);
        self.query("dead_groups", move |conn| job_index::dead_groups(conn, queue.as_deref())).await
    }

    async fn unique_holder(&self, queue: &str, key: &str) -> Result<Option<JobId>> {
        let (queue, key) = (queue.to_owned(), key.to_owned());
        self.query("unique_holder", move |conn| query::unique_holder(conn, &queue, &key)).await
    }
}

/// Implements `AdminStore::edit`.
pub(crate) fn edit(tx: &Tx<'_>, id: JobId, edit: &JobEdit) -> rusqlite::Result<ChangeResult> {
    let Some(job_no) = state::find_job(tx.conn, id)? else {
        return Ok(ChangeResult::NotFound);
    };
    let position = match state::find_position(tx.conn, job_no)? {
        Some(JobPosition::Running { .. }) => return Ok(ChangeResult::Running),
        None => return Ok(ChangeResult::NotFound),
        Some(_) if state::is_queue_moving(tx, job_no)? => return Ok(ChangeResult::Moving),
        Some(position) => position,
    };
    let (bytes, queue) = state::read_args_bytes_and_queue(tx, job_no)?;
    let (job, whole) = tx
        .statement(&format!("SELECT {JOB_COLUMNS} FROM duly_job j WHERE j.job_no = ?1"))?
        .query_row([job_no], |row| read_checked_job(row, String::new()))?;
    if !whole {
        return Ok(ChangeResult::Unreadable);
    }
    if let Some(args) = &edit.args {
        set_args(tx, job_no, Job { args: args.clone(), ..job })?;
        if !matches!(position, JobPosition::Ended { .. }) {
            tx.change_count(queue, CountColumn::UnfinishedBytes, args.len() as i64 - bytes);
        }
    }
    if let Some(priority) = edit.priority {
        set_priority(tx, job_no, &position, priority_code(priority))?;
    }
    Ok(ChangeResult::Applied)
}

/// Writes new args and their checksum.
fn set_args(tx: &Tx<'_>, job_no: i64, job: Job) -> rusqlite::Result<()> {
    let tags = (!job.tags.is_empty()).then(|| job.tags.join(" "));
    let sum = JobBody::from_job(&job, tags.as_deref()).checksum();
    tx.statement("UPDATE duly_job SET args = ?2, checksum = ?3 WHERE job_no = ?1")?
        .execute(params![job_no, job.args, sum])?;
    Ok(())
}

/// Changes the priority. A ready job moves to the tail of its new priority.
fn set_priority(tx: &Tx<'_>, job_no: i64, position: &JobPosition, priority: i64) -> rusqlite::Result<()> {
    let old_priority: i64 =
        tx.statement("SELECT priority FROM duly_job WHERE job_no = ?1")?.query_row([job_no], |row| row.get(0))?;
    if old_priority == priority {
        return Ok(());
    }
    match position {
        JobPosition::Ready { seq, .. } => {
            tx.statement(
                "UPDATE duly_ready SET priority = ?3, seq = ?4
                  WHERE (queue_no, priority, seq) = (SELECT queue_no, priority, ?2 FROM duly_job WHERE job_no = ?1)",
            )?
            .execute(params![job_no, seq, priority, tx.next_number()?])?;
        }
        JobPosition::Scheduled { .. } => {
            tx.statement("UPDATE duly_scheduled SET priority = ?2 WHERE job_no = ?1")?
                .execute(params![job_no, priority])?;
        }
        JobPosition::Ended { .. } | JobPosition::Running { .. } => {}
    }
    tx.statement("UPDATE duly_job SET priority = ?2 WHERE job_no = ?1")?.execute(params![job_no, priority])?;
    Ok(())
}

/// Implements `JobStore::remove`.
pub(crate) fn remove(tx: &Tx<'_>, id: JobId) -> rusqlite::Result<ChangeResult> {
    let Some(job_no) = state::find_job(tx.conn, id)? else {
        return Ok(ChangeResult::NotFound);
    };
    match state::find_position(tx.conn, job_no)? {
        Some(JobPosition::Running { .. }) => Ok(ChangeResult::Running),
        _ if state::is_queue_moving(tx, job_no)? => Ok(ChangeResult::Moving),
        _ => {
            state::delete_job(tx, job_no)?;
            Ok(ChangeResult::Applied)
        }
    }
}

/// Implements `JobStore::reschedule`.
pub(crate) fn reschedule(tx: &Tx<'_>, id: JobId, due: Due) -> rusqlite::Result<ChangeResult> {
    let Some(job_no) = state::find_job(tx.conn, id)? else {
        return Ok(ChangeResult::NotFound);
    };
    let (attempts, crashes, ended) = match state::find_position(tx.conn, job_no)? {
        Some(JobPosition::Running { .. }) => return Ok(ChangeResult::Running),
        _ if state::is_queue_moving(tx, job_no)? => return Ok(ChangeResult::Moving),
        Some(JobPosition::Ready { attempts, crashes, .. } | JobPosition::Scheduled { attempts, crashes, .. }) => {
            (attempts, crashes, false)
        }
        // Attempts start over: otherwise a job that died of its last attempt would die again after one more.
        Some(JobPosition::Ended { .. }) | None => (0, 0, true),
    };
    let (queue, name, priority, key): (i64, String, i64, Option<RawText>) = tx
        .statement(
            "SELECT j.queue_no, q.name, j.priority, j.unique_key FROM duly_job j
               JOIN duly_queue q ON q.queue_no = j.queue_no
             WHERE j.job_no = ?1",
        )?
        .query_row([job_no], |row| Ok((row.get(0)?, read_text(row, 1)?, row.get(2)?, row.get(3)?)))?;
    if let (true, Some(key)) = (ended, &key) {
        if let Some((_, other)) = push::find_unique_holder(tx, queue, key)? {
            return Ok(ChangeResult::Existing(other));
        }
        state::take_unique_key(tx, queue, key, job_no)?;
    }
    if ended {
        runs::keep_ack(tx, job_no)?;
    }
    state::remove_position(tx, job_no)?;
    tx.change_count(queue, CountColumn::UnfinishedBytes, state::read_args_bytes_and_queue(tx, job_no)?.0);
    match push::resolve_due(tx, due) {
        Some(due) => state::insert_scheduled(tx, queue, job_no, priority, due, attempts, crashes)?,
        None => state::insert_ready(tx, queue, job_no, priority, tx.next_number()?, tx.now, attempts, crashes)?,
    }
    tx.wake_one(&name);
    Ok(ChangeResult::Applied)
}

/// Implements `JobStore::remove_all`.
pub(crate) fn remove_all(tx: &Tx<'_>, targets: &[ChangeTarget]) -> rusqlite::Result<Vec<ChangeResult>> {
    change_each(tx, targets, |id| remove(tx, id))
}

/// Implements `JobStore::reschedule_all`.
pub(crate) fn reschedule_all(tx: &Tx<'_>, targets: &[ChangeTarget], due: Due) -> rusqlite::Result<Vec<ChangeResult>> {
    change_each(tx, targets, |id| reschedule(tx, id, due))
}

fn change_each(
    tx: &Tx<'_>,
    targets: &[ChangeTarget],
    mut change: impl FnMut(JobId) -> rusqlite::Result<ChangeResult>,
) -> rusqlite::Result<Vec<ChangeResult>> {
    let seen = targets.iter().take(BULK_CHANGE_MAX).map(|target| match find_state(tx, target.id)? {
        None => Ok(ChangeResult::NotFound),
        Some(State::Running) => Ok(ChangeResult::Running),
        Some(state) if state != target.state => Ok(ChangeResult::Changed),
        Some(_) => change(target.id),
    });
    seen.collect()
}

fn find_state(tx: &Tx<'_>, id: JobId) -> rusqlite::Result<Option<State>> {
    let Some(job_no) = state::find_job(tx.conn, id)? else {
        return Ok(None);
    };
    Ok(state::find_position(tx.conn, job_no)?.map(|position| match position {
        JobPosition::Scheduled { .. } => State::Scheduled,
        JobPosition::Ready { .. } => State::Ready,
        JobPosition::Running { .. } => State::Running,
        JobPosition::Ended { state, .. } => state::ended_state(state),
    }))
}
