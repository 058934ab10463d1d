//! Looking: one job, a page of jobs, counts, nodes. Nothing here writes.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension, params};

use super::board::{Board, Life};
use super::failure;
use super::place::{self, DEAD, DONE, Place};
use super::rows::{JOB_COLUMNS, JOB_COLUMNS_LEN, job};
use crate::clock::from_micros;
use crate::error::{Error, Result};
use crate::job::{Fence, Job, JobId, Record, State};
use crate::node::{NodeId, NodeRecord};
use crate::store::{Beaten, Filter, Moving, PAGE, PAGE_MAX, Page, QueueCounts};

/// `get` of the contract.
pub(super) fn get(conn: &Connection, id: JobId) -> rusqlite::Result<Option<Record>> {
    let Some(no) = place::find(conn, id)? else {
        return Ok(None);
    };
    let job = conn
        .prepare_cached(&format!(
            "SELECT {JOB_COLUMNS}, q.name FROM duly_job j JOIN duly_queue q ON q.no = j.queue WHERE j.no = ?1"
        ))?
        .query_row([no], |row| job(row, row.get(JOB_COLUMNS_LEN)?))
        .optional()?;
    let Some(mut record) = job.map(|job| record(conn, no, job)).transpose()?.flatten() else {
        return Ok(None);
    };
    record.failures = failure::all(conn, no)?;
    Ok(Some(record))
}

/// A job with its place; `None` if it went away between two looks.
fn record(conn: &Connection, no: i64, job: Job) -> rusqlite::Result<Option<Record>> {
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
    }
}

fn node_id(conn: &Connection, no: i64) -> rusqlite::Result<Option<NodeId>> {
    conn.prepare_cached("SELECT id FROM duly_node WHERE no = ?1")?
        .query_row([no], |row| row.get(0).map(NodeId::from_bytes))
        .optional()
}

/// The order in which a state is listed: its table, its keys (those of a tree, at most four), and which way.
struct Order {
    from: &'static str,
    keys: &'static [&'static str],
    newest_first: bool,
}

fn order(state: Option<State>) -> Order {
    let (from, keys, newest_first): (_, &[_], _) = match state {
        Some(State::Scheduled) => ("duly_scheduled p", &["p.queue", "p.due", "p.no"], false),
        Some(State::Ready) => ("duly_ready p", &["p.queue", "p.priority", "p.seq"], false),
        Some(State::Running) => ("duly_held p", &["p.no"], false),
        Some(State::Done | State::Dead) => ("duly_ended p", &["p.queue", "p.state", "p.until", "p.no"], true),
        None => ("duly_job p", &["p.no"], true),
    };
    Order { from, keys, newest_first }
}

/// How many numbers a cursor has.
const CURSOR: usize = 4;

/// `list` of the contract. The cursor is the last job's keys: jobs that stay where they are appear once.
pub(super) fn list(conn: &Connection, filter: &Filter) -> Result<Page> {
    let told = |e| super::fault::refused("list", e);
    let limit = if filter.limit == 0 { PAGE } else { filter.limit.min(PAGE_MAX) };
    let queue = match &filter.queue {
        Some(name) => match queue_no(conn, name).map_err(told)? {
            Some(no) => Some(no),
            None => return Ok(Page::default()),
        },
        None => None,
    };
    let order = order(filter.state);
    let start = if order.newest_first { i64::MAX } else { i64::MIN };
    let after = filter.cursor.as_deref().map(parse_cursor).transpose()?.unwrap_or([start; CURSOR]);
    let sql = list_sql(&order, filter.state, queue);
    let query = || -> rusqlite::Result<Vec<(Job, i64, [i64; CURSOR])>> {
        let [a, b, c, d] = after;
        conn.prepare_cached(&sql)?
            .query_map(params![a, b, c, d, filter.kind, limit], |row| {
                let n = JOB_COLUMNS_LEN;
                let keys = [row.get(n + 2)?, row.get(n + 3)?, row.get(n + 4)?, row.get(n + 5)?];
                Ok((job(row, row.get(n)?)?, row.get(n + 1)?, keys))
            })?
            .collect()
    };
    let rows = query().map_err(told)?;
    let next = match rows.last() {
        Some((_, _, [a, b, c, d])) if rows.len() == limit => Some(format!("{a}.{b}.{c}.{d}")),
        _ => None,
    };
    let mut jobs = Vec::with_capacity(rows.len());
    for (job, no, _) in rows {
        let mut found = record(conn, no, job).map_err(told)?;
        if let Some(record) = found.as_mut().filter(|_| filter.failures) {
            record.failures = failure::all(conn, no).map_err(told)?;
        }
        jobs.extend(found);
    }
    Ok(Page { jobs, next })
}

fn list_sql(order: &Order, state: Option<State>, queue: Option<i64>) -> String {
    let Order { from, keys, newest_first } = *order;
    let (compare, way) = if newest_first { ("<", "DESC") } else { (">", "ASC") };
    // Of the cursor's numbers as many are used, from its end, as there are keys.
    let unused = CURSOR - keys.len();
    let places: Vec<String> = (unused..CURSOR).map(|n| format!("?{}", n + 1)).collect();
    let order: Vec<String> = keys.iter().map(|key| format!("{key} {way}")).collect();
    format!(
        "SELECT {JOB_COLUMNS}, q.name, p.no, {zeroes} {keys} FROM {from}
           JOIN duly_job j ON j.no = p.no JOIN duly_queue q ON q.no = j.queue
          WHERE ({keys}) {compare} ({places}) {queue} {state} AND (?5 IS NULL OR j.kind = ?5)
          ORDER BY {order} LIMIT ?6",
        zeroes = "0, ".repeat(unused),
        keys = keys.join(", "),
        places = places.join(", "),
        order = order.join(", "),
        queue = queue.map_or_else(String::new, |no| format!("AND p.queue = {no}")),
        state = match state {
            Some(State::Done) => "AND p.state = 3",
            Some(State::Dead) => "AND p.state = 4",
            _ => "",
        }
    )
}

fn queue_no(conn: &Connection, name: &str) -> rusqlite::Result<Option<i64>> {
    conn.prepare_cached("SELECT no FROM duly_queue WHERE name = ?1")?.query_row([name], |row| row.get(0)).optional()
}

fn parse_cursor(text: &str) -> Result<[i64; CURSOR]> {
    let wrong = || Error::invalid("cursor", "not one that a list has given");
    let parts: Vec<i64> = text.split('.').map(str::parse).collect::<Result<_, _>>().map_err(|_| wrong())?;
    parts.try_into().map_err(|_| wrong())
}

/// `counts` of the contract.
pub(super) fn counts(conn: &Connection) -> rusqlite::Result<Vec<QueueCounts>> {
    let mut counts: BTreeMap<i64, QueueCounts> = BTreeMap::new();
    let mut queues = conn.prepare_cached("SELECT no, name, paused, moving FROM duly_queue")?;
    let mut rows = queues.query([])?;
    while let Some(row) = rows.next()? {
        let moving = row.get::<_, Option<String>>(3)?.as_deref().and_then(Moving::parse);
        let count = QueueCounts { queue: row.get(1)?, paused: row.get(2)?, moving, ..QueueCounts::default() };
        counts.insert(row.get(0)?, count);
    }
    let mut add = |sql: &str, field: fn(&mut QueueCounts) -> &mut u64| -> rusqlite::Result<()> {
        let mut statement = conn.prepare_cached(sql)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            if let Some(count) = counts.get_mut(&row.get(0)?) {
                *field(count) = row.get(1)?;
            }
        }
        Ok(())
    };
    add("SELECT queue, count(*) FROM duly_scheduled GROUP BY queue", |c| &mut c.scheduled)?;
    add("SELECT queue, count(*) FROM duly_ready GROUP BY queue", |c| &mut c.ready)?;
    add("SELECT queue, count(*) FROM duly_held GROUP BY queue", |c| &mut c.running)?;
    add(&ended(DONE), |c| &mut c.done)?;
    add(&ended(DEAD), |c| &mut c.dead)?;
    let mut counts: Vec<_> = counts.into_values().collect();
    counts.sort_by(|a, b| a.queue.cmp(&b.queue));
    Ok(counts)
}

fn ended(state: i64) -> String {
    format!("SELECT queue, count(*) FROM duly_ended WHERE state = {state} GROUP BY queue")
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
            beaten.held.push((row.get(2)?, row.get(3)?));
        } else if board.life(id, row.get(1)?) != Life::Beating {
            beaten.suspects.push((id, row.get(2)?));
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
        let queues: String = row.get(4)?;
        let takes: Option<String> = row.get(6)?;
        let holds = holds_of(conn, row.get(7)?)?;
        Ok(NodeRecord {
            id,
            host: row.get(2)?,
            pid: row.get(3)?,
            queues: queues.split(' ').filter(|q| !q.is_empty()).map(str::to_owned).collect(),
            joined: from_micros(row.get(5)?),
            alive: board.life(id, row.get(1)?) == Life::Beating,
            held: holds.values().sum(),
            holds,
            takes: takes.and_then(|takes| serde_json::from_str(&takes).ok()).unwrap_or_default(),
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
    .query_map([node], |row| Ok((row.get(0)?, row.get(1)?)))?
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_cursor_parses_or_is_refused(text in ".*") {
            let _ = parse_cursor(&text);
        }

        #[test]
        fn cursors_survive_their_text(keys in any::<[i64; CURSOR]>()) {
            let text = keys.map(|key| key.to_string()).join(".");
            prop_assert_eq!(parse_cursor(&text).expect("its own text"), keys);
        }
    }
}
