//! Queries: one job, counts, nodes. Never writes.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension, params};

use crate::clock::from_micros;
use crate::job::{Fence, Job, JobId, Record, State};
use crate::node::{NodeId, NodeRecord, Takes};
use crate::store::sqlite::jobs::state;
use crate::store::sqlite::jobs::state::{DONE, Place};
use crate::store::sqlite::jobs::{capacity, failures, progress};
use crate::store::sqlite::nodes::registry::{Board, Life};
use crate::store::sqlite::rows::{JOB_COLUMNS, JOB_COLUMNS_LEN, Raw, job, many, number, text, times};
use crate::store::{Beaten, ENDED_MAX, Moving, QueueCounts};

/// Implements `get` of the store contract.
pub(crate) fn get(conn: &Connection, id: JobId) -> rusqlite::Result<Option<Record>> {
    let Some(job_no) = state::find(conn, id)? else {
        return Ok(None);
    };
    let job = conn
        .prepare_cached(&format!(
            "SELECT {JOB_COLUMNS}, q.name FROM duly_job j
               JOIN duly_queue q ON q.queue_no = j.queue_no WHERE j.job_no = ?1"
        ))?
        .query_row([job_no], |row| job(row, text(row, JOB_COLUMNS_LEN)?))
        .optional()?;
    let Some(mut record) = job.map(|job| record(conn, job_no, job)).transpose()?.flatten() else {
        return Ok(None);
    };
    record.failures = failures::all(conn, job_no)?;
    progress::read(conn, job_no, &mut record)?;
    Ok(Some(record))
}

/// Returns the record of a job; `None` if the job has no state.
pub(crate) fn record(conn: &Connection, job_no: i64, job: Job) -> rusqlite::Result<Option<Record>> {
    let Some(place) = state::find_place(conn, job_no)? else {
        return Ok(None);
    };
    let mut record = match place {
        Place::Scheduled { due, attempts, crashes } => at(job, State::Scheduled, due, attempts, crashes),
        Place::Ready { due, attempts, crashes, .. } => at(job, State::Ready, due, attempts, crashes),
        Place::Held { due, attempts, crashes, .. } => at(job, State::Running, due, attempts, crashes),
        Place::Ended { state, due, attempts, crashes, .. } => {
            let state = if state == DONE { State::Done } else { State::Dead };
            at(job, state, due, attempts, crashes)
        }
    };
    match place {
        Place::Held { node, fence, .. } => {
            record.fence = Some(Fence(fence.unsigned_abs()));
            record.node = node_id(conn, node)?;
        }
        Place::Ended { ended, .. } => record.ended = Some(from_micros(ended)),
        Place::Scheduled { .. } | Place::Ready { .. } => {}
    }
    Ok(Some(record))
}

fn at(job: Job, state: State, due: i64, attempts: u32, crashes: u32) -> Record {
    Record {
        job,
        state,
        due: from_micros(due),
        attempts,
        crashes,
        node: None,
        fence: None,
        ended: None,
        failures: Vec::new(),
        progress: None,
        result: None,
        log: Vec::new(),
    }
}

fn node_id(conn: &Connection, node_no: i64) -> rusqlite::Result<Option<NodeId>> {
    conn.prepare_cached("SELECT id FROM duly_node WHERE node_no = ?1")?
        .query_row([node_no], |row| row.get(0).map(NodeId::from_bytes))
        .optional()
}

pub(crate) fn queue_no(conn: &Connection, name: &str) -> rusqlite::Result<Option<i64>> {
    conn.prepare_cached("SELECT queue_no FROM duly_queue WHERE name = ?1")?
        .query_row([name], |row| row.get(0))
        .optional()
}

/// Implements `counts` of the store contract.
pub(crate) fn counts(conn: &Connection) -> rusqlite::Result<Vec<QueueCounts>> {
    conn.prepare_cached(
        "SELECT q.name, q.paused, q.transfer_mark, q.capacity_jobs, q.capacity_bytes,
                coalesce(c.scheduled, 0), coalesce(c.ready, 0), coalesce(c.running, 0), coalesce(c.done, 0),
                coalesce(c.dead, 0), coalesce(c.unfinished_bytes, 0),
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
        let heads = [11, 12, 13, 14].map(|at| row.get::<_, Option<i64>>(at).unwrap_or_default());
        Ok(QueueCounts {
            oldest: heads.into_iter().flatten().min().map(from_micros),
            queue: text(row, 0)?,
            paused: number(row, 1) != 0,
            moving: row.get::<_, Option<Raw>>(2)?.and_then(|text| Moving::parse(&text.text())),
            capacity: capacity::read(row, 3),
            scheduled: many(row, 5),
            ready: many(row, 6),
            running: many(row, 7),
            done: many(row, 8),
            dead: many(row, 9),
            bytes: many(row, 10),
        })
    })?
    .collect()
}

/// Implements `completed_among` of the store contract.
pub(crate) fn ended(conn: &Connection, queue: &str, ids: &[JobId]) -> rusqlite::Result<Vec<JobId>> {
    let mut unfinished = conn.prepare_cached(
        "SELECT EXISTS (SELECT 1 FROM duly_job j JOIN duly_queue q ON q.queue_no = j.queue_no
          WHERE j.id = ?1 AND q.name = ?2 AND NOT EXISTS (SELECT 1 FROM duly_ended e WHERE e.job_no = j.job_no))",
    )?;
    let mut ended = Vec::new();
    for id in ids.iter().take(ENDED_MAX) {
        if !unfinished.query_row(params![id.as_bytes(), queue], |row| row.get::<_, bool>(0))? {
            ended.push(*id);
        }
    }
    Ok(ended)
}

/// Implements `unique_holder` of the store contract.
pub(crate) fn holder(conn: &Connection, queue: &str, key: &str) -> rusqlite::Result<Option<JobId>> {
    conn.prepare_cached(
        "SELECT j.id FROM duly_unique_key u JOIN duly_queue q ON q.queue_no = u.queue_no
           JOIN duly_job j ON j.job_no = u.job_no
          WHERE q.name = ?1 AND u.unique_key = ?2",
    )?
    .query_row([queue, key], |row| row.get(0).map(JobId::from_bytes))
    .optional()
}

/// Builds the reply to a heartbeat: the jobs that the node holds, and the other nodes that hold jobs without being
/// alive.
pub(crate) fn beaten(conn: &Connection, board: &Board, node: NodeId) -> rusqlite::Result<Beaten> {
    let mut beaten = Beaten::default();
    let mut statement = conn.prepare_cached(
        "SELECT n.id, n.slot, q.name, count(*) FROM duly_running h JOIN duly_node n ON n.node_no = h.node_no
           JOIN duly_queue q ON q.queue_no = h.queue_no GROUP BY h.node_no, h.queue_no",
    )?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let id = NodeId::from_bytes(row.get(0)?);
        if id == node {
            beaten.held.push((text(row, 2)?, row.get(3)?));
        } else if board.life(id, row.get(1)?) != Life::Beating {
            beaten.suspects.push((id, text(row, 2)?));
        }
    }
    Ok(beaten)
}

/// Implements `nodes` of the store contract.
pub(crate) fn nodes(conn: &Connection, board: &Board) -> rusqlite::Result<Vec<NodeRecord>> {
    conn.prepare_cached(
        "SELECT n.id, n.slot, n.host, n.pid, n.queues, n.joined_at, n.profile, n.node_no
           FROM duly_node n ORDER BY n.joined_at, n.node_no",
    )?
    .query_map([], |row| {
        let id = NodeId::from_bytes(row.get(0)?);
        let queues = text(row, 4)?;
        let takes: Takes = serde_json::from_str(&text(row, 6)?).unwrap_or_default();
        let holds = holds_of(conn, row.get(7)?)?;
        Ok(NodeRecord {
            id,
            host: text(row, 2)?,
            pid: times(row, 3),
            queues: queues.split(' ').filter(|q| !q.is_empty()).map(str::to_owned).collect(),
            joined: from_micros(row.get(5)?),
            alive: board.life(id, row.get(1)?) == Life::Beating,
            held: holds.values().sum(),
            holds,
            takes: Takes { quiet: board.is_quiet(id, row.get(1)?), ..takes },
            methods: Vec::new(),
        })
    })?
    .collect()
}

/// Returns how many jobs of each queue a node holds.
fn holds_of(conn: &Connection, node: i64) -> rusqlite::Result<BTreeMap<String, u64>> {
    conn.prepare_cached(
        "SELECT q.name, count(*) FROM duly_running h
           JOIN duly_queue q ON q.queue_no = h.queue_no WHERE h.node_no = ?1 GROUP BY h.queue_no",
    )?
    .query_map([node], |row| Ok((text(row, 0)?, row.get(1)?)))?
    .collect()
}
