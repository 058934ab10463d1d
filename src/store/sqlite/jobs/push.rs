//! Push: writes jobs into their queues, ready or scheduled.

use rusqlite::{CachedStatement, OptionalExtension, ToSql, params};

use crate::clock::{Micros, micros, to_micros};
use crate::job::push::{Due, Push, PushResult};
use crate::job::{JobId, UniqueConflict};
use crate::store::PUSHED_INDEX;
use crate::store::sqlite::jobs::capacity;
use crate::store::sqlite::jobs::capacity::QueueFull;
use crate::store::sqlite::jobs::counts::CountColumn;
use crate::store::sqlite::jobs::state;
use crate::store::sqlite::jobs::state::JobPosition;
use crate::store::sqlite::rows::{JobBody, priority_code, to_millis};
use crate::store::sqlite::transfer;
use crate::store::sqlite::tx::Tx;

/// Pushes jobs and returns a result for each, in the same order. Pushes none if a queue would be too full.
pub(crate) fn push(tx: &Tx<'_>, jobs: &[Push]) -> rusqlite::Result<Result<Vec<PushResult>, QueueFull>> {
    match capacity::find_bounded_queues(tx, jobs)? {
        bounded if bounded.is_empty() => insert_jobs(tx, jobs).map(Ok),
        bounded => capacity::push_within_capacity(tx, &bounded, || insert_jobs(tx, jobs)),
    }
}

fn insert_jobs(tx: &Tx<'_>, jobs: &[Push]) -> rusqlite::Result<Vec<PushResult>> {
    let first = tx.next_number()?;
    let mut results = Vec::with_capacity(jobs.len());
    let mut scheduled: Vec<(i64, &str)> = Vec::new();
    let mut inserts = JobInserter::new(tx)?;
    for job in jobs {
        let queue = tx.ensure_queue(&job.queue)?;
        let replaced = match resolve_conflict(tx, queue, job, first)? {
            PushConflict::NoConflict => None,
            PushConflict::Existing(id) => {
                results.push(PushResult::Existing(id));
                continue;
            }
            PushConflict::Replaced(old) => Some(old),
        };
        let due = resolve_due(tx, job.due);
        inserts.insert(queue, job, due)?;
        match due {
            Some(_) if scheduled.iter().any(|(queue_no, _)| *queue_no == queue) => {}
            Some(_) => scheduled.push((queue, &job.queue)),
            None => tx.wake_one(&job.queue),
        }
        results.push(match replaced {
            Some(old) => PushResult::Replaced { id: job.id, old },
            None => PushResult::New(job.id),
        });
    }
    for (queue, name) in scheduled {
        if is_next_due(tx, queue, first)? {
            tx.wake_one(name);
        }
    }
    Ok(results)
}

enum PushConflict {
    NoConflict,
    Existing(JobId),
    Replaced(JobId),
}

/// Returns whether this job, or one with its unique key, already exists.
fn resolve_conflict(tx: &Tx<'_>, queue: i64, job: &Push, first: i64) -> rusqlite::Result<PushConflict> {
    if !job.has_fresh_id && is_known_id(tx, queue, job.id)? {
        return Ok(PushConflict::Existing(job.id));
    }
    let Some(key) = &job.unique else {
        return Ok(PushConflict::NoConflict);
    };
    let Some((job_no, id)) = find_unique_holder(tx, queue, key)? else {
        return Ok(PushConflict::NoConflict);
    };
    let position = state::find_position(tx.conn, job_no)?;
    // If two jobs of one push have the same key, the first wins: its result is already decided.
    let of_this_push = job_no >= first;
    if of_this_push || job.conflict == UniqueConflict::Keep || matches!(position, Some(JobPosition::Running { .. })) {
        return Ok(PushConflict::Existing(id));
    }
    // A queue that moves to another store may have sent the job already.
    if transfer::read_transfer_mark(tx, queue)?.is_some() {
        return Ok(PushConflict::Existing(id));
    }
    state::delete_job(tx, job_no)?;
    Ok(PushConflict::Replaced(id))
}

/// Returns whether a job with this id is in a queue, or was recently.
pub(crate) fn is_known_id(tx: &Tx<'_>, queue: i64, id: JobId) -> rusqlite::Result<bool> {
    let here: bool = tx
        .statement("SELECT EXISTS (SELECT 1 FROM duly_job WHERE id = ?1 AND queue_no = ?2)")?
        .query_row(params![id.as_bytes(), queue], |row| row.get(0))?;
    Ok(here || tx.is_recently_removed(queue, id)?)
}

/// Returns the unfinished job that holds this unique key.
pub(crate) fn find_unique_holder(tx: &Tx<'_>, queue: i64, key: impl ToSql) -> rusqlite::Result<Option<(i64, JobId)>> {
    tx.statement(
        "SELECT u.job_no, j.id FROM duly_unique_key u
           JOIN duly_job j ON j.job_no = u.job_no WHERE u.queue_no = ?1 AND u.unique_key = ?2",
    )?
    .query_row(params![queue, key], |row| Ok((row.get(0)?, JobId::from_bytes(row.get(1)?))))
    .optional()
}

/// Writes the body of a job, once.
pub(crate) const INSERT_BODY: &str =
    "INSERT INTO duly_job (job_no, id, queue_no, kind, args, priority, pushed_at, max_attempts, timeout_ms, keep_ms,
                           unique_key, tags, traceparent, checksum)
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)";

/// Writes jobs with prepared statements for the most common case.
struct JobInserter<'t> {
    tx: &'t Tx<'t>,
    insert_body: CachedStatement<'t>,
    insert_ready: CachedStatement<'t>,
}

impl<'t> JobInserter<'t> {
    fn new(tx: &'t Tx<'t>) -> rusqlite::Result<Self> {
        Ok(JobInserter {
            tx,
            insert_body: tx.statement(INSERT_BODY)?,
            insert_ready: tx.statement(state::INSERT_READY)?,
        })
    }

    fn insert(&mut self, queue: i64, job: &Push, due: Option<Micros>) -> rusqlite::Result<()> {
        let tx = self.tx;
        let job_no = tx.next_number()?;
        let priority = priority_code(job.priority);
        let tags = (!job.tags.is_empty()).then(|| job.tags.join(" "));
        let args = job.args.as_deref().unwrap_or("null");
        let (timeout, keep) = (to_millis(job.timeout), to_millis(job.keep.unwrap_or_default()));
        let body = JobBody {
            id: job.id.as_bytes(),
            kind: &job.kind,
            args,
            numbers: [tx.now, i64::from(job.max_attempts), timeout, keep],
            tags: tags.as_deref(),
            traceparent: job.traceparent.as_deref(),
        };
        self.insert_body.execute(params![
            job_no,
            job.id.as_bytes(),
            queue,
            job.kind,
            args,
            priority,
            tx.now,
            job.max_attempts,
            timeout,
            keep,
            job.unique,
            tags,
            job.traceparent,
            body.checksum(),
        ])?;
        match due {
            Some(due) => state::insert_scheduled(tx, queue, job_no, priority, due, 0, 0)?,
            None => {
                self.insert_ready.execute(params![queue, priority, job_no, job_no, tx.now, 0, 0])?;
                tx.change_count(queue, CountColumn::Ready, 1);
            }
        }
        tx.change_count(queue, CountColumn::UnfinishedBytes, args.len() as i64);
        tx.increment_counter(queue, PUSHED_INDEX, 1);
        if let Some(key) = &job.unique {
            state::take_unique_key(tx, queue, key, job_no)?;
        }
        Ok(())
    }
}

/// Returns when a job is due; `None` for now.
pub(crate) fn resolve_due(tx: &Tx<'_>, due: Due) -> Option<Micros> {
    let at = match due {
        Due::Now => return None,
        Due::After(delay) => tx.now.saturating_add(micros(delay)),
        Due::At(moment) => to_micros(moment),
    };
    (at > tx.now).then_some(at)
}

/// Returns whether the next due job of this queue came with this push. If so, a sleeping node must be woken.
fn is_next_due(tx: &Tx<'_>, queue: i64, first: i64) -> rusqlite::Result<bool> {
    // There is no such job if a later job of the same push replaced it.
    let next = tx
        .statement("SELECT job_no FROM duly_scheduled WHERE queue_no = ?1 ORDER BY due_at, job_no LIMIT 1")?
        .query_row([queue], |row| row.get::<_, i64>(0))
        .optional()?;
    Ok(next.is_some_and(|job_no| job_no >= first))
}
