//! Queries: one job, counts, completed jobs. Never writes.

use rusqlite::{Connection, OptionalExtension, params};

use crate::clock::from_micros;
use crate::job::{Fence, Job, JobId, JobRecord, State};
use crate::node::NodeId;
use crate::store::sqlite::jobs::state;
use crate::store::sqlite::jobs::state::JobPosition;
use crate::store::sqlite::jobs::{capacity, progress, runs};
use crate::store::sqlite::rows::{JOB_COLUMNS, JOB_COLUMNS_LEN, RawText, read_integer, read_job, read_text, read_u64};
use crate::store::{COMPLETION_CHECK_MAX, QueueCounts, TransferMark};

/// Implements `JobStore::get`.
pub(crate) fn get(conn: &Connection, id: JobId) -> rusqlite::Result<Option<JobRecord>> {
    let Some(job_no) = state::find_job(conn, id)? else {
        return Ok(None);
    };
    let job = conn
        .prepare_cached(&format!(
            "SELECT {JOB_COLUMNS}, q.name FROM duly_job j
               JOIN duly_queue q ON q.queue_no = j.queue_no WHERE j.job_no = ?1"
        ))?
        .query_row([job_no], |row| read_job(row, read_text(row, JOB_COLUMNS_LEN)?))
        .optional()?;
    let Some(mut record) = job.map(|job| read_record(conn, job_no, job)).transpose()?.flatten() else {
        return Ok(None);
    };
    record.set_runs(runs::read_all(conn, job_no)?);
    progress::read_into(conn, job_no, &mut record)?;
    Ok(Some(record))
}

/// Returns the record of a job; `None` if the job has no state.
pub(crate) fn read_record(conn: &Connection, job_no: i64, job: Job) -> rusqlite::Result<Option<JobRecord>> {
    let Some(position) = state::find_position(conn, job_no)? else {
        return Ok(None);
    };
    let (state, due, attempts, crashes) = match position {
        JobPosition::Scheduled { due, attempts, crashes } => (State::Scheduled, due, attempts, crashes),
        JobPosition::Ready { due, attempts, crashes, .. } => (State::Ready, due, attempts, crashes),
        JobPosition::Running { due, attempts, crashes, .. } => (State::Running, due, attempts, crashes),
        JobPosition::Ended { state, due, attempts, crashes, .. } => (state::ended_state(state), due, attempts, crashes),
    };
    let mut record = JobRecord::new(job, state, from_micros(due), attempts, crashes);
    match position {
        JobPosition::Running { node_no: node, fence, cancelling, .. } => {
            record.cancelling = cancelling;
            record.fence = Some(Fence(fence.unsigned_abs()));
            record.node = find_node_id(conn, node)?;
        }
        JobPosition::Ended { ended_at: ended, .. } => record.ended = Some(from_micros(ended)),
        JobPosition::Scheduled { .. } | JobPosition::Ready { .. } => {}
    }
    Ok(Some(record))
}

fn find_node_id(conn: &Connection, node_no: i64) -> rusqlite::Result<Option<NodeId>> {
    conn.prepare_cached("SELECT id FROM duly_node WHERE node_no = ?1")?
        .query_row([node_no], |row| row.get(0).map(NodeId::from_bytes))
        .optional()
}

pub(crate) fn find_queue(conn: &Connection, name: &str) -> rusqlite::Result<Option<i64>> {
    conn.prepare_cached("SELECT queue_no FROM duly_queue WHERE name = ?1")?
        .query_row([name], |row| row.get(0))
        .optional()
}

/// Implements `JobStore::counts`.
pub(crate) fn counts(conn: &Connection) -> rusqlite::Result<Vec<QueueCounts>> {
    conn.prepare_cached(
        "SELECT q.name, q.paused, q.transfer_mark, q.capacity_jobs, q.capacity_bytes,
                coalesce(c.scheduled, 0), coalesce(c.ready, 0), coalesce(c.running, 0), coalesce(c.done, 0),
                coalesce(c.dead, 0), coalesce(c.cancelled, 0), coalesce(c.unfinished_bytes, 0),
                (SELECT r.due_at FROM duly_ready r
                  WHERE r.queue_no = q.queue_no AND r.priority = 0 ORDER BY r.seq LIMIT 1),
                (SELECT r.due_at FROM duly_ready r
                  WHERE r.queue_no = q.queue_no AND r.priority = 1 ORDER BY r.seq LIMIT 1),
                (SELECT r.due_at FROM duly_ready r
                  WHERE r.queue_no = q.queue_no AND r.priority = 2 ORDER BY r.seq LIMIT 1),
                (SELECT r.due_at FROM duly_ready r
                  WHERE r.queue_no = q.queue_no AND r.priority = 3 ORDER BY r.seq LIMIT 1)
           FROM duly_queue q LEFT JOIN duly_queue_stats c ON c.queue_no = q.queue_no ORDER BY q.name",
    )?
    .query_map([], |row| {
        // The first job of each priority.
        let heads = [12, 13, 14, 15].map(|at| row.get::<_, Option<i64>>(at).unwrap_or_default());
        Ok(QueueCounts {
            oldest_ready: heads.into_iter().flatten().min().map(from_micros),
            queue: read_text(row, 0)?,
            paused: read_integer(row, 1) != 0,
            moving: row.get::<_, Option<RawText>>(2)?.and_then(|text| TransferMark::parse(&text.into_lossy_string())),
            capacity: capacity::read_capacity(row, 3),
            scheduled: read_u64(row, 5),
            ready: read_u64(row, 6),
            running: read_u64(row, 7),
            done: read_u64(row, 8),
            dead: read_u64(row, 9),
            cancelled: read_u64(row, 10),
            bytes: read_u64(row, 11),
        })
    })?
    .collect()
}

/// Implements `JobStore::completed_among`.
pub(crate) fn completed_among(conn: &Connection, queue: &str, ids: &[JobId]) -> rusqlite::Result<Vec<JobId>> {
    let mut unfinished = conn.prepare_cached(
        "SELECT EXISTS (SELECT 1 FROM duly_job j JOIN duly_queue q ON q.queue_no = j.queue_no
          WHERE j.id = ?1 AND q.name = ?2 AND NOT EXISTS (SELECT 1 FROM duly_ended e WHERE e.job_no = j.job_no))",
    )?;
    let mut ended = Vec::new();
    for id in ids.iter().take(COMPLETION_CHECK_MAX) {
        if !unfinished.query_row(params![id.as_bytes(), queue], |row| row.get::<_, bool>(0))? {
            ended.push(*id);
        }
    }
    Ok(ended)
}

/// Implements `AdminStore::unique_holder`.
pub(crate) fn unique_holder(conn: &Connection, queue: &str, key: &str) -> rusqlite::Result<Option<JobId>> {
    conn.prepare_cached(
        "SELECT j.id FROM duly_unique_key u JOIN duly_queue q ON q.queue_no = u.queue_no
           JOIN duly_job j ON j.job_no = u.job_no
          WHERE q.name = ?1 AND u.unique_key = ?2",
    )?
    .query_row([queue, key], |row| row.get(0).map(JobId::from_bytes))
    .optional()
}
