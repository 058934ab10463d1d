//! Push: writes jobs into their queues, ready or scheduled.

use rusqlite::{CachedStatement, OptionalExtension, ToSql, params};

use crate::clock::{Micros, micros, to_micros};
use crate::job::JobId;
use crate::job::push::{Conflict, Due, Push, Pushed};
use crate::store::PUSHED;
use crate::store::sqlite::jobs::capacity;
use crate::store::sqlite::jobs::capacity::Full;
use crate::store::sqlite::jobs::counts::Of;
use crate::store::sqlite::jobs::state;
use crate::store::sqlite::jobs::state::Place;
use crate::store::sqlite::rows::{Body, millis, rank};
use crate::store::sqlite::transfer;
use crate::store::sqlite::tx::Tx;

/// Pushes jobs and returns a result for each, in the same order. Pushes none if a queue would be too full.
pub(crate) fn push(tx: &Tx<'_>, jobs: &[Push]) -> rusqlite::Result<Result<Vec<Pushed>, Full>> {
    match capacity::among(tx, jobs)? {
        limits if limits.is_empty() => put(tx, jobs).map(Ok),
        limits => capacity::within(tx, &limits, || put(tx, jobs)),
    }
}

fn put(tx: &Tx<'_>, jobs: &[Push]) -> rusqlite::Result<Vec<Pushed>> {
    let first = tx.number()?;
    let mut answers = Vec::with_capacity(jobs.len());
    let mut scheduled: Vec<(i64, &str)> = Vec::new();
    let mut inserts = Inserts::new(tx)?;
    for job in jobs {
        let queue = tx.queue(&job.queue)?;
        let replaced = match meet(tx, queue, job, first)? {
            Met::Nobody => None,
            Met::Existing(id) => {
                answers.push(Pushed::Existing(id));
                continue;
            }
            Met::Replaced(old) => Some(old),
        };
        let due = due(tx, job.due);
        inserts.insert(queue, job, due)?;
        match due {
            Some(_) if scheduled.iter().any(|(queue_no, _)| *queue_no == queue) => {}
            Some(_) => scheduled.push((queue, &job.queue)),
            None => tx.wake(&job.queue),
        }
        answers.push(match replaced {
            Some(old) => Pushed::Replaced { id: job.id, old },
            None => Pushed::New(job.id),
        });
    }
    for (queue, name) in scheduled {
        if is_next(tx, queue, first)? {
            tx.wake(name);
        }
    }
    Ok(answers)
}

enum Met {
    Nobody,
    Existing(JobId),
    Replaced(JobId),
}

/// Returns whether this job, or one with its unique key, already exists.
fn meet(tx: &Tx<'_>, queue: i64, job: &Push, first: i64) -> rusqlite::Result<Met> {
    if !job.fresh && is_known(tx, queue, job.id)? {
        return Ok(Met::Existing(job.id));
    }
    let Some(key) = &job.unique else {
        return Ok(Met::Nobody);
    };
    let Some((job_no, id)) = holder(tx, queue, key)? else {
        return Ok(Met::Nobody);
    };
    let place = state::find_place(tx.conn, job_no)?;
    // If two jobs of one push have the same key, the first wins: its result is already decided.
    let of_this_push = job_no >= first;
    if of_this_push || job.conflict == Conflict::Keep || matches!(place, Some(Place::Held { .. })) {
        return Ok(Met::Existing(id));
    }
    // A queue that moves to another store may have sent the job already.
    if transfer::of_queue(tx, queue)?.is_some() {
        return Ok(Met::Existing(id));
    }
    state::delete(tx, job_no)?;
    Ok(Met::Replaced(id))
}

/// Returns whether a job with this id is in a queue, or was recently.
pub(crate) fn is_known(tx: &Tx<'_>, queue: i64, id: JobId) -> rusqlite::Result<bool> {
    let here: bool = tx
        .statement("SELECT EXISTS (SELECT 1 FROM duly_job WHERE id = ?1 AND queue_no = ?2)")?
        .query_row(params![id.as_bytes(), queue], |row| row.get(0))?;
    Ok(here || tx.remembers(queue, id)?)
}

/// Returns the unfinished job that holds this unique key.
pub(crate) fn holder(tx: &Tx<'_>, queue: i64, key: impl ToSql) -> rusqlite::Result<Option<(i64, JobId)>> {
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
struct Inserts<'t> {
    tx: &'t Tx<'t>,
    body: CachedStatement<'t>,
    ready: CachedStatement<'t>,
}

impl<'t> Inserts<'t> {
    fn new(tx: &'t Tx<'t>) -> rusqlite::Result<Self> {
        Ok(Inserts { tx, body: tx.statement(INSERT_BODY)?, ready: tx.statement(state::INSERT_READY)? })
    }

    fn insert(&mut self, queue: i64, job: &Push, due: Option<Micros>) -> rusqlite::Result<()> {
        let tx = self.tx;
        let job_no = tx.number()?;
        let priority = rank(job.priority);
        let tags = (!job.tags.is_empty()).then(|| job.tags.join(" "));
        let args = job.args.as_deref().unwrap_or("null");
        let (timeout, keep) = (millis(job.timeout), millis(job.keep.unwrap_or_default()));
        let body = Body {
            id: job.id.as_bytes(),
            kind: &job.kind,
            args,
            numbers: [tx.now, i64::from(job.max_attempts), timeout, keep],
            tags: tags.as_deref(),
            traceparent: job.traceparent.as_deref(),
        };
        self.body.execute(params![
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
            body.sum(),
        ])?;
        match due {
            Some(due) => state::schedule(tx, queue, job_no, priority, due, 0, 0)?,
            None => {
                self.ready.execute(params![queue, priority, job_no, job_no, tx.now, 0, 0])?;
                tx.add(queue, Of::Ready, 1);
            }
        }
        tx.add(queue, Of::Bytes, args.len() as i64);
        tx.happened(queue, PUSHED, 1);
        if let Some(key) = &job.unique {
            state::take_unique(tx, queue, key, job_no)?;
        }
        Ok(())
    }
}

/// Returns when a job is due; `None` for now.
pub(crate) fn due(tx: &Tx<'_>, due: Due) -> Option<Micros> {
    let at = match due {
        Due::Now => return None,
        Due::After(delay) => tx.now.saturating_add(micros(delay)),
        Due::At(moment) => to_micros(moment),
    };
    (at > tx.now).then_some(at)
}

/// Returns whether the next due job of this queue came with this push. If so, a sleeping node must be woken.
fn is_next(tx: &Tx<'_>, queue: i64, first: i64) -> rusqlite::Result<bool> {
    // There is no such job if a later job of the same push replaced it.
    let next = tx
        .statement("SELECT job_no FROM duly_scheduled WHERE queue_no = ?1 ORDER BY due_at, job_no LIMIT 1")?
        .query_row([queue], |row| row.get::<_, i64>(0))
        .optional()?;
    Ok(next.is_some_and(|job_no| job_no >= first))
}
