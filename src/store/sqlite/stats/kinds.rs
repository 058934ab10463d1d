//! Counters per kind, by minute and by hour.

use rusqlite::{Connection, OptionalExtension, params};

use crate::clock::Micros;
use crate::store::sqlite::jobs::counts::{add_counters, pack_counters, unpack_counters};
use crate::store::sqlite::tx::Tx;
use crate::store::{
    KIND_HOURS_MAX, KIND_MINUTES_MAX, KIND_STATS_MAX, KindPoints, KindStats, KindStatsQuery, OTHER_KINDS, Resolution,
    StatCounters,
};

/// A table of counters per kind, and its statements.
struct KindTable {
    resolution: Resolution,
    /// Intervals for which counters are kept.
    kept: u32,
    count: &'static str,
    delete_before: &'static str,
    delete_after: &'static str,
    find: &'static str,
    write: &'static str,
    list: &'static str,
}

const MINUTES: KindTable = KindTable {
    resolution: Resolution::Minute,
    kept: KIND_MINUTES_MAX,
    count: "SELECT count(*) FROM duly_kind_minute WHERE minute = ?1",
    delete_before: "DELETE FROM duly_kind_minute WHERE minute <= ?1",
    delete_after: "DELETE FROM duly_kind_minute WHERE minute > ?1",
    find: "SELECT counters FROM duly_kind_minute WHERE minute = ?1 AND kind = ?2",
    write: "INSERT OR REPLACE INTO duly_kind_minute (minute, kind, counters) VALUES (?1, ?2, ?3)",
    list: "SELECT minute, kind, counters FROM duly_kind_minute WHERE minute >= ?1",
};

const HOURS: KindTable = KindTable {
    resolution: Resolution::Hour,
    kept: KIND_HOURS_MAX,
    count: "SELECT count(*) FROM duly_kind_hour WHERE hour = ?1",
    delete_before: "DELETE FROM duly_kind_hour WHERE hour <= ?1",
    delete_after: "DELETE FROM duly_kind_hour WHERE hour > ?1",
    find: "SELECT counters FROM duly_kind_hour WHERE hour = ?1 AND kind = ?2",
    write: "INSERT OR REPLACE INTO duly_kind_hour (hour, kind, counters) VALUES (?1, ?2, ?3)",
    list: "SELECT hour, kind, counters FROM duly_kind_hour WHERE hour >= ?1",
};

/// Implements `StatsStore::add_kind_stats`.
pub(crate) fn add_kind_stats(tx: &Tx<'_>, kinds: &[(String, StatCounters)]) -> rusqlite::Result<()> {
    MINUTES.add(tx, kinds)?;
    HOURS.add(tx, kinds)
}

impl KindTable {
    /// Adds counters to the current interval. The first ones of an interval delete the intervals that are too old, or
    /// further in the future than those that are kept: the clock was wrong.
    fn add(&self, tx: &Tx<'_>, kinds: &[(String, StatCounters)]) -> rusqlite::Result<()> {
        let number = self.resolution.number_at(tx.now);
        let mut kind_count: usize = tx.statement(self.count)?.query_row([number], |row| row.get(0))?;
        if kind_count == 0 {
            let kept = i64::from(self.kept);
            tx.statement(self.delete_before)?.execute([number - kept])?;
            tx.statement(self.delete_after)?.execute([number + kept])?;
        }
        let find = |kind: &str| {
            let mut statement = tx.statement(self.find)?;
            find_counters(&mut statement, number, kind)
        };
        for (kind, counters) in kinds {
            let (mut kind, mut before) = (kind.as_str(), find(kind)?);
            if before.is_none() && kind_count >= KIND_STATS_MAX {
                (kind, before) = (OTHER_KINDS, find(OTHER_KINDS)?);
            }
            kind_count += usize::from(before.is_none());
            let before = unpack_counters(&before.unwrap_or_default());
            let whole = pack_counters(&add_counters(&before, &counters.to_numbers()));
            tx.statement(self.write)?.execute(params![number, kind, whole])?;
        }
        Ok(())
    }
}

fn find_counters(
    statement: &mut rusqlite::Statement<'_>,
    number: i64,
    kind: &str,
) -> rusqlite::Result<Option<Vec<u8>>> {
    statement.query_row(params![number, kind], |row| row.get(0)).optional()
}

/// Implements `StatsStore::kind_stats`.
pub(crate) fn kind_stats(conn: &Connection, query: &KindStatsQuery, now: Micros) -> rusqlite::Result<Vec<KindStats>> {
    let table = match query.resolution {
        Resolution::Minute => MINUTES,
        Resolution::Hour => HOURS,
    };
    let first = query.first(now);
    let mut points = KindPoints::new(query, first);
    match &query.kind {
        Some(kind) => {
            let mut statement = conn.prepare_cached(table.find)?;
            for number in first..first + i64::from(query.count()) {
                if let Some(counters) = find_counters(&mut statement, number, kind)? {
                    points.add(number, kind.clone(), &unpack_counters(&counters));
                }
            }
        }
        None => {
            let mut statement = conn.prepare_cached(table.list)?;
            let mut rows = statement.query([first])?;
            while let Some(row) = rows.next()? {
                let counters: Vec<u8> = row.get(2)?;
                points.add(row.get(0)?, row.get(1)?, &unpack_counters(&counters));
            }
        }
    }
    Ok(points.into_stats())
}
