//! Capacity of queues: how much a queue may hold, and pushes that exceed it.

use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::error::Error;
use crate::job::push::{Push, PushResult};
use crate::store::Capacity;
use crate::store::sqlite::tx::Tx;

/// A queue that a push would overfill.
#[derive(Clone, Debug)]
pub(crate) struct QueueFull {
    queue: String,
    capacity: Capacity,
}

impl From<QueueFull> for Error {
    fn from(QueueFull { queue, capacity }: QueueFull) -> Error {
        Error::Full { queue, capacity }
    }
}

/// A queue with a capacity.
pub(crate) struct BoundedQueue {
    queue_no: i64,
    name: String,
    capacity: Capacity,
}

/// Reads the capacity from two columns. An impossible value counts as no capacity.
pub(crate) fn read_capacity(row: &Row<'_>, column: usize) -> Capacity {
    let maximum = |column| row.get::<_, Option<i64>>(column).ok().flatten().and_then(|found| u64::try_from(found).ok());
    Capacity { jobs: maximum(column), bytes: maximum(column + 1) }
}

pub(crate) fn queue_capacity(conn: &Connection, queue: i64) -> rusqlite::Result<Capacity> {
    let found = conn
        .prepare_cached("SELECT capacity_jobs, capacity_bytes FROM duly_queue WHERE queue_no = ?1")?
        .query_row([queue], |row| Ok(read_capacity(row, 0)))
        .optional()?;
    Ok(found.unwrap_or_default())
}

/// Implements `AdminStore::set_capacity`.
pub(crate) fn set_capacity(tx: &Tx<'_>, name: &str, capacity: Capacity) -> rusqlite::Result<Capacity> {
    let queue = tx.ensure_queue(name)?;
    let old = queue_capacity(tx.conn, queue)?;
    let fits = |capacity: Option<u64>| capacity.map(|capacity| i64::try_from(capacity).unwrap_or(i64::MAX));
    tx.statement("UPDATE duly_queue SET capacity_jobs = ?2, capacity_bytes = ?3 WHERE queue_no = ?1")?
        .execute(params![queue, fits(capacity.jobs), fits(capacity.bytes)])?;
    tx.clear_capacities();
    Ok(old)
}

/// Returns the queues of these jobs that have a capacity.
pub(crate) fn find_bounded_queues(tx: &Tx<'_>, jobs: &[Push]) -> rusqlite::Result<Vec<BoundedQueue>> {
    let mut bounded: Vec<BoundedQueue> = Vec::new();
    let mut last: Option<&str> = None;
    for job in jobs {
        // Most pushes go to one queue.
        if last == Some(&job.queue) || bounded.iter().any(|queue| queue.name == job.queue) {
            continue;
        }
        last = Some(&job.queue);
        let Some(queue_no) = tx.find_queue(&job.queue)? else {
            continue;
        };
        let capacity = tx.capacity(queue_no)?;
        if !capacity.is_unlimited() {
            bounded.push(BoundedQueue { queue_no, name: job.queue.clone(), capacity });
        }
    }
    Ok(bounded)
}

/// Pushes, and rolls the push back if it overfills one of these queues.
pub(crate) fn push_within_capacity(
    tx: &Tx<'_>,
    bounded: &[BoundedQueue],
    push: impl FnOnce() -> rusqlite::Result<Vec<PushResult>>,
) -> rusqlite::Result<Result<Vec<PushResult>, QueueFull>> {
    let before = tx.save_deltas();
    tx.conn.execute_batch("SAVEPOINT duly_capacity")?;
    let pushed = push()?;
    let after = tx.save_deltas();
    for queue in bounded {
        let ((was_jobs, was_bytes), (jobs, bytes)) =
            (before.unfinished_delta(queue.queue_no), after.unfinished_delta(queue.queue_no));
        let (kept_jobs, kept_bytes) = read_unfinished(tx, queue.queue_no)?;
        let more = |was: i64, is: i64| u64::try_from(is - was).unwrap_or(0);
        let there = |kept: i64, was: i64| u64::try_from(kept + was).unwrap_or(0);
        let jobs = (there(kept_jobs, was_jobs), more(was_jobs, jobs));
        let bytes = (there(kept_bytes, was_bytes), more(was_bytes, bytes));
        if !queue.capacity.has_room_for(jobs, bytes) {
            tx.conn.execute_batch("ROLLBACK TO duly_capacity; RELEASE duly_capacity")?;
            tx.restore_deltas(before);
            return Ok(Err(QueueFull { queue: queue.name.clone(), capacity: queue.capacity }));
        }
    }
    tx.conn.execute_batch("RELEASE duly_capacity")?;
    Ok(Ok(pushed))
}

/// Returns the unfinished jobs of a queue and their bytes, as stored.
fn read_unfinished(tx: &Tx<'_>, queue: i64) -> rusqlite::Result<(i64, i64)> {
    let found = tx
        .statement("SELECT scheduled + ready + running, unfinished_bytes FROM duly_queue_stats WHERE queue_no = ?1")?
        .query_row([queue], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    Ok(found.unwrap_or_default())
}
