//! How much may be in a queue, and pushes that would be too much.

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::tx::Tx;
use crate::error::Error;
use crate::push::{Push, Pushed};
use crate::store::Capacity;

/// A queue that would be too full.
#[derive(Clone, Debug)]
pub(super) struct Full {
    queue: String,
    capacity: Capacity,
}

impl From<Full> for Error {
    fn from(Full { queue, capacity }: Full) -> Error {
        Error::Full { queue, capacity }
    }
}

/// A queue with a limit.
pub(super) struct Limited {
    no: i64,
    name: String,
    capacity: Capacity,
}

/// The limit in these two columns. One that cannot be is none: nobody has said it.
pub(super) fn read(row: &Row<'_>, at: usize) -> Capacity {
    let limit = |at| row.get::<_, Option<i64>>(at).ok().flatten().and_then(|limit| u64::try_from(limit).ok());
    Capacity { jobs: limit(at), bytes: limit(at + 1) }
}

pub(super) fn of_queue(conn: &Connection, queue: i64) -> rusqlite::Result<Capacity> {
    let found = conn
        .prepare_cached("SELECT limit_jobs, limit_bytes FROM duly_queue WHERE no = ?1")?
        .query_row([queue], |row| Ok(read(row, 0)))
        .optional()?;
    Ok(found.unwrap_or_default())
}

/// `set_capacity` of the contract.
pub(super) fn set(tx: &Tx<'_>, name: &str, limit: Capacity) -> rusqlite::Result<Capacity> {
    let queue = tx.queue(name)?;
    let was = of_queue(tx.conn, queue)?;
    let fits = |limit: Option<u64>| limit.map(|limit| i64::try_from(limit).unwrap_or(i64::MAX));
    tx.statement("UPDATE duly_queue SET limit_jobs = ?2, limit_bytes = ?3 WHERE no = ?1")?.execute(params![
        queue,
        fits(limit.jobs),
        fits(limit.bytes)
    ])?;
    tx.forget_limits();
    Ok(was)
}

/// Those of the jobs' queues that have a limit.
pub(super) fn among(tx: &Tx<'_>, jobs: &[Push]) -> rusqlite::Result<Vec<Limited>> {
    let mut limited: Vec<Limited> = Vec::new();
    let mut last: Option<&str> = None;
    for job in jobs {
        // Most pushes go to one queue.
        if last == Some(&job.queue) || limited.iter().any(|queue| queue.name == job.queue) {
            continue;
        }
        last = Some(&job.queue);
        let Some(no) = tx.known_queue(&job.queue)? else {
            continue;
        };
        let capacity = tx.capacity(no)?;
        if !capacity.is_none() {
            limited.push(Limited { no, name: job.queue.clone(), capacity });
        }
    }
    Ok(limited)
}

/// Pushes, and takes it all back if one of these queues is too full then.
pub(super) fn within(
    tx: &Tx<'_>,
    limited: &[Limited],
    push: impl FnOnce() -> rusqlite::Result<Vec<Pushed>>,
) -> rusqlite::Result<Result<Vec<Pushed>, Full>> {
    let before = tx.deltas();
    tx.conn.execute_batch("SAVEPOINT duly_limit")?;
    let pushed = push()?;
    let after = tx.deltas();
    for queue in limited {
        let ((was_jobs, was_bytes), (jobs, bytes)) = (before.unfinished(queue.no), after.unfinished(queue.no));
        let (kept_jobs, kept_bytes) = kept(tx, queue.no)?;
        let more = |was: i64, is: i64| u64::try_from(is - was).unwrap_or(0);
        let there = |kept: i64, was: i64| u64::try_from(kept + was).unwrap_or(0);
        let jobs = (there(kept_jobs, was_jobs), more(was_jobs, jobs));
        let bytes = (there(kept_bytes, was_bytes), more(was_bytes, bytes));
        if !queue.capacity.admits(jobs, bytes) {
            tx.conn.execute_batch("ROLLBACK TO duly_limit; RELEASE duly_limit")?;
            tx.restore(before);
            return Ok(Err(Full { queue: queue.name.clone(), capacity: queue.capacity }));
        }
    }
    tx.conn.execute_batch("RELEASE duly_limit")?;
    Ok(Ok(pushed))
}

/// Unfinished jobs of a queue and their bytes, as written.
fn kept(tx: &Tx<'_>, queue: i64) -> rusqlite::Result<(i64, i64)> {
    let found = tx
        .statement("SELECT scheduled + ready + running, bytes FROM duly_count WHERE queue = ?1")?
        .query_row([queue], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    Ok(found.unwrap_or_default())
}
