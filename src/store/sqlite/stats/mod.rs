//! Statistics: counters per minute, and totals.

pub(crate) mod kinds;

use async_trait::async_trait;
use rusqlite::{Connection, params};

use crate::clock::{Micros, from_micros};
use crate::error::Result;
use crate::store::sqlite::Sqlite;
use crate::store::sqlite::jobs::counts::{MINUTE_MICROS, add_counters, unpack_counters};
use crate::store::sqlite::jobs::query;
use crate::store::sqlite::rows::read_text;
use crate::store::{HISTORY_MINUTES_MAX, History, HistoryPoint, HistoryQuery, KindStats, StatCounters, StatsStore};

#[async_trait]
impl StatsStore for Sqlite {
    async fn history(&self, query: HistoryQuery) -> Result<History> {
        let now = self.clock.now_micros();
        self.query("history", move |conn| history(conn, &query, now)).await
    }

    async fn queue_totals(&self) -> Result<Vec<(String, StatCounters)>> {
        self.query("queue_totals", queue_totals).await
    }

    async fn add_kind_stats(&self, kinds: Vec<(String, StatCounters)>) -> Result<()> {
        self.writer.write("add_kind_stats", move |tx| kinds::add_kind_stats(tx, &kinds)).await
    }

    async fn kind_stats(&self, hours: u32) -> Result<Vec<KindStats>> {
        let now = self.clock.now_micros();
        self.query("kind_stats", move |conn| kinds::kind_stats(conn, hours, now)).await
    }
}

/// Implements `StatsStore::history`.
pub(super) fn history(conn: &Connection, query: &HistoryQuery, now: Micros) -> rusqlite::Result<History> {
    let mut history = History { now: Some(from_micros(now)), ..History::default() };
    let queue = match &query.queue {
        Some(name) => match query::find_queue(conn, name)? {
            Some(queue_no) => Some(queue_no),
            None => return Ok(history),
        },
        None => None,
    };
    let minutes = if query.minutes == 0 { HISTORY_MINUTES_MAX } else { query.minutes.min(HISTORY_MINUTES_MAX) };
    let first = now.div_euclid(MINUTE_MICROS) - i64::from(minutes) + 1;
    let point =
        |(queue, minute, counters)| HistoryPoint { minute: from_micros(minute * MINUTE_MICROS), queue, counters };
    history.points = read_points(conn, queue, first)?.into_iter().map(point).collect();
    Ok(history)
}

/// Returns queue, minute and counters of each minute from `first` on, oldest first.
fn read_points(
    conn: &Connection,
    queue: Option<i64>,
    first: i64,
) -> rusqlite::Result<Vec<(String, i64, StatCounters)>> {
    conn.prepare_cached(
        "SELECT q.name, h.minute, h.counters FROM duly_queue q
           JOIN (SELECT queue_no, minute, counters FROM duly_history
                 UNION ALL SELECT queue_no, minute, counters FROM duly_queue_stats) h ON h.queue_no = q.queue_no
          WHERE h.minute >= ?2 AND (?1 IS NULL OR q.queue_no = ?1) AND h.counters <> x'' ORDER BY h.minute, q.name",
    )?
    .query_map(params![queue, first], |row| {
        let counters: Vec<u8> = row.get(2)?;
        Ok((read_text(row, 0)?, row.get(1)?, StatCounters::from_numbers(&unpack_counters(&counters))))
    })?
    .collect()
}

/// Implements `StatsStore::queue_totals`: the finished minutes and the current one.
pub(super) fn queue_totals(conn: &Connection) -> rusqlite::Result<Vec<(String, StatCounters)>> {
    conn.prepare_cached(
        "SELECT q.name, coalesce(t.counters, x''), coalesce(c.counters, x'') FROM duly_queue q
           LEFT JOIN duly_queue_total t ON t.queue_no = q.queue_no
           LEFT JOIN duly_queue_stats c ON c.queue_no = q.queue_no ORDER BY q.name",
    )?
    .query_map([], |row| {
        let (over, present): (Vec<u8>, Vec<u8>) = (row.get(1)?, row.get(2)?);
        Ok((
            read_text(row, 0)?,
            StatCounters::from_numbers(&add_counters(&unpack_counters(&over), &unpack_counters(&present))),
        ))
    })?
    .collect()
}
