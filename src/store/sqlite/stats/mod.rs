//! Statistics: counters per minute and hour, and totals.

pub(crate) mod kinds;

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, params};

use crate::clock::{Micros, from_micros};
use crate::error::Result;
use crate::store::sqlite::Sqlite;
use crate::store::sqlite::jobs::counts::{add_counters, pack_counters, unpack_counters};
use crate::store::sqlite::jobs::query;
use crate::store::sqlite::rows::read_text;
use crate::store::sqlite::tx::Tx;
use crate::store::{
    HISTORY_HOURS_MAX, History, HistoryPoints, HistoryQuery, KindStats, KindStatsQuery, Resolution, STAT_NUMBERS,
    StatCounters, StatsStore,
};

/// Minutes in an hour.
const HOUR_MINUTES: i64 = 60;

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

    async fn kind_stats(&self, query: KindStatsQuery) -> Result<Vec<KindStats>> {
        let now = self.clock.now_micros();
        self.query("kind_stats", move |conn| kinds::kind_stats(conn, &query, now)).await
    }
}

/// Implements `StatsStore::history`.
pub(super) fn history(conn: &Connection, query: &HistoryQuery, now: Micros) -> rusqlite::Result<History> {
    let queue = match &query.queue {
        Some(name) => match query::find_queue(conn, name)? {
            Some(queue_no) => Some(queue_no),
            None => return Ok(History { now: Some(from_micros(now)), ..History::default() }),
        },
        None => None,
    };
    let sql = match query.resolution {
        Resolution::Minute => {
            "SELECT q.name, h.number, h.counters FROM duly_queue q
               JOIN (SELECT queue_no, minute AS number, counters FROM duly_history
                     UNION ALL SELECT queue_no, minute, counters FROM duly_queue_stats) h ON h.queue_no = q.queue_no
              WHERE h.number >= ?2 AND (?1 IS NULL OR q.queue_no = ?1)"
        }
        Resolution::Hour => {
            "SELECT q.name, h.number, h.counters FROM duly_queue q
               JOIN (SELECT queue_no, hour AS number, counters FROM duly_history_hour
                     UNION ALL SELECT queue_no, minute / 60, counters FROM duly_queue_stats) h
                 ON h.queue_no = q.queue_no
              WHERE h.number >= ?2 AND (?1 IS NULL OR q.queue_no = ?1)"
        }
    };
    let mut points = HistoryPoints::new(query);
    let mut statement = conn.prepare_cached(sql)?;
    let mut rows = statement.query(params![queue, query.first(now)])?;
    while let Some(row) = rows.next()? {
        let counters: Vec<u8> = row.get(2)?;
        points.add(row.get(1)?, &read_text(row, 0)?, &unpack_counters(&counters));
    }
    Ok(points.into_history(now))
}

/// Adds a minute that has ended to its hour. The first one of an hour deletes the hours that are too old, or further in
/// the future than those that are kept: the clock was wrong.
pub(super) fn add_to_hour(
    tx: &Tx<'_>,
    queue: i64,
    minute: i64,
    counters: &[u64; STAT_NUMBERS],
) -> rusqlite::Result<()> {
    if *counters == [0; STAT_NUMBERS] {
        return Ok(());
    }
    let hour = minute.div_euclid(HOUR_MINUTES);
    let before: Option<Vec<u8>> = tx
        .statement("SELECT counters FROM duly_history_hour WHERE queue_no = ?1 AND hour = ?2")?
        .query_row(params![queue, hour], |row| row.get(0))
        .optional()?;
    let is_new = before.is_none();
    let whole = pack_counters(&add_counters(&unpack_counters(&before.unwrap_or_default()), counters));
    tx.statement("INSERT OR REPLACE INTO duly_history_hour (queue_no, hour, counters) VALUES (?1, ?2, ?3)")?
        .execute(params![queue, hour, whole])?;
    if is_new {
        let (present, kept) = (Resolution::Hour.number_at(tx.now), i64::from(HISTORY_HOURS_MAX));
        tx.statement("DELETE FROM duly_history_hour WHERE queue_no = ?1 AND (hour <= ?2 OR hour > ?3)")?
            .execute(params![queue, present - kept, present + kept])?;
    }
    Ok(())
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
