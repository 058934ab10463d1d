//! Looking: one job, counts, nodes. Nothing here writes.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension, params};

use super::board::{Board, Life};
use super::place::{self, DONE, Place};
use super::rows::{JOB_COLUMNS, JOB_COLUMNS_LEN, Raw, job, many, number, text, times};
use super::{failure, limit, note};
use crate::clock::from_micros;
use crate::job::{Fence, Job, JobId, Record, State};
use crate::node::{NodeId, NodeRecord, Takes};
use crate::store::{Beaten, ENDED_MAX, Moving, QueueCounts};

/// `get` of the contract.
pub(super) fn get(conn: &Connection, id: JobId) -> rusqlite::Result<Option<Record>> {
    let Some(no) = place::find(conn, id)? else {
        return Ok(None);
    };
    let job = conn
        .prepare_cached(&format!(
            "SELECT {JOB_COLUMNS}, q.name FROM duly_job j JOIN duly_queue q ON q.no = j.queue WHERE j.no = ?1"
        ))?
        .query_row([no], |row| job(row, text(row, JOB_COLUMNS_LEN)?))
        .optional()?;
    let Some(mut record) = job.map(|job| record(conn, no, job)).transpose()?.flatten() else {
        return Ok(None);
    };
    record.failures = failure::all(conn, no)?;
    note::read(conn, no, &mut record)?;
    Ok(Some(record))
}

/// A job with its place; `None` if it went away between two looks.
pub(super) fn record(conn: &Connection, no: i64, job: Job) -> rusqlite::Result<Option<Record>> {
    let Some(place) = place::find_place(conn, no)? else {
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

fn node_id(conn: &Connection, no: i64) -> rusqlite::Result<Option<NodeId>> {
    conn.prepare_cached("SELECT id FROM duly_node WHERE no = ?1")?
        .query_row([no], |row| row.get(0).map(NodeId::from_bytes))
        .optional()
}

pub(super) fn queue_no(conn: &Connection, name: &str) -> rusqlite::Result<Option<i64>> {
    conn.prepare_cached("SELECT no FROM duly_queue WHERE name = ?1")?.query_row([name], |row| row.get(0)).optional()
}

/// `counts` of the contract.
pub(super) fn counts(conn: &Connection) -> rusqlite::Result<Vec<QueueCounts>> {
    conn.prepare_cached(
        "SELECT q.name, q.paused, q.moving, q.limit_jobs, q.limit_bytes,
                coalesce(c.scheduled, 0), coalesce(c.ready, 0), coalesce(c.running, 0), coalesce(c.done, 0),
                coalesce(c.dead, 0), coalesce(c.bytes, 0),
                (SELECT r.due FROM duly_ready r WHERE r.queue = q.no AND r.priority = 0 ORDER BY r.seq LIMIT 1),
                (SELECT r.due FROM duly_ready r WHERE r.queue = q.no AND r.priority = 1 ORDER BY r.seq LIMIT 1),
                (SELECT r.due FROM duly_ready r WHERE r.queue = q.no AND r.priority = 2 ORDER BY r.seq LIMIT 1),
                (SELECT r.due FROM duly_ready r WHERE r.queue = q.no AND r.priority = 3 ORDER BY r.seq LIMIT 1)
           FROM duly_queue q LEFT JOIN duly_count c ON c.queue = q.no ORDER BY q.name",
    )?
    .query_map([], |row| {
        // The first of each priority.
        let heads = [11, 12, 13, 14].map(|at| row.get::<_, Option<i64>>(at).unwrap_or_default());
        Ok(QueueCounts {
            oldest: heads.into_iter().flatten().min().map(from_micros),
            queue: text(row, 0)?,
            paused: number(row, 1) != 0,
            moving: row.get::<_, Option<Raw>>(2)?.and_then(|text| Moving::parse(&text.text())),
            capacity: limit::read(row, 3),
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

/// `ended` of the contract.
pub(super) fn ended(conn: &Connection, queue: &str, ids: &[JobId]) -> rusqlite::Result<Vec<JobId>> {
    let mut unfinished = conn.prepare_cached(
        "SELECT EXISTS (SELECT 1 FROM duly_job j JOIN duly_queue q ON q.no = j.queue
          WHERE j.id = ?1 AND q.name = ?2 AND NOT EXISTS (SELECT 1 FROM duly_ended e WHERE e.no = j.no))",
    )?;
    let mut ended = Vec::new();
    for id in ids.iter().take(ENDED_MAX) {
        if !unfinished.query_row(params![id.as_bytes(), queue], |row| row.get::<_, bool>(0))? {
            ended.push(*id);
        }
    }
    Ok(ended)
}

/// `holder` of the contract.
pub(super) fn holder(conn: &Connection, queue: &str, key: &str) -> rusqlite::Result<Option<JobId>> {
    conn.prepare_cached(
        "SELECT j.id FROM duly_unique u JOIN duly_queue q ON q.no = u.queue JOIN duly_job j ON j.no = u.no
          WHERE q.name = ?1 AND u.key = ?2",
    )?
    .query_row([queue, key], |row| row.get(0).map(JobId::from_bytes))
    .optional()
}

/// What a beat answers: what the node holds, and who else holds something without being alive.
pub(super) fn beaten(conn: &Connection, board: &Board, node: NodeId) -> rusqlite::Result<Beaten> {
    let mut beaten = Beaten::default();
    let mut statement = conn.prepare_cached(
        "SELECT n.id, n.slot, q.name, count(*) FROM duly_held h JOIN duly_node n ON n.no = h.node
           JOIN duly_queue q ON q.no = h.queue GROUP BY h.node, h.queue",
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

/// `nodes` of the contract.
pub(super) fn nodes(conn: &Connection, board: &Board) -> rusqlite::Result<Vec<NodeRecord>> {
    conn.prepare_cached(
        "SELECT n.id, n.slot, n.host, n.pid, n.queues, n.joined, n.takes, n.no FROM duly_node n ORDER BY n.joined, n.no",
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

/// How many jobs of each queue a node holds.
fn holds_of(conn: &Connection, node: i64) -> rusqlite::Result<BTreeMap<String, u64>> {
    conn.prepare_cached(
        "SELECT q.name, count(*) FROM duly_held h JOIN duly_queue q ON q.no = h.queue WHERE h.node = ?1 GROUP BY h.queue",
    )?
    .query_map([node], |row| Ok((text(row, 0)?, row.get(1)?)))?
    .collect()
}
