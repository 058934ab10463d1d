//! Counters per kind and hour.

use rusqlite::{Connection, OptionalExtension, params};

use crate::clock::{Micros, from_micros};
use crate::store::sqlite::jobs::counts::{add_counters, pack_counters, unpack_counters};
use crate::store::sqlite::tx::Tx;
use crate::store::{KIND_HOURS_MAX, KIND_STATS_MAX, KindStats, OTHER_KINDS, StatCounters};

/// An hour, in microseconds.
const HOUR_MICROS: Micros = 3_600_000_000;

/// Implements `StatsStore::add_kind_stats`.
pub(crate) fn add_kind_stats(tx: &Tx<'_>, kinds: &[(String, StatCounters)]) -> rusqlite::Result<()> {
    let hour = tx.now.div_euclid(HOUR_MICROS);
    let mut kind_count: usize =
        tx.statement("SELECT count(*) FROM duly_kind_stats WHERE hour = ?1")?.query_row([hour], |row| row.get(0))?;
    if kind_count == 0 {
        let past = hour - i64::from(KIND_HOURS_MAX);
        tx.statement("DELETE FROM duly_kind_stats WHERE hour <= ?1")?.execute([past])?;
    }
    let counted = |kind: &str| -> rusqlite::Result<Option<Vec<u8>>> {
        tx.statement("SELECT counters FROM duly_kind_stats WHERE hour = ?1 AND kind = ?2")?
            .query_row(params![hour, kind], |row| row.get(0))
            .optional()
    };
    for (kind, counters) in kinds {
        let (mut kind, mut before) = (kind.as_str(), counted(kind)?);
        if before.is_none() && kind_count >= KIND_STATS_MAX {
            (kind, before) = (OTHER_KINDS, counted(OTHER_KINDS)?);
        }
        kind_count += usize::from(before.is_none());
        let whole = pack_counters(&add_counters(&unpack_counters(&before.unwrap_or_default()), &counters.to_numbers()));
        tx.statement("INSERT OR REPLACE INTO duly_kind_stats (hour, kind, counters) VALUES (?1, ?2, ?3)")?
            .execute(params![hour, kind, whole])?;
    }
    Ok(())
}

/// Implements `StatsStore::kind_stats`.
pub(crate) fn kind_stats(conn: &Connection, hours: u32, now: Micros) -> rusqlite::Result<Vec<KindStats>> {
    let first = now.div_euclid(HOUR_MICROS) - i64::from(hours.clamp(1, KIND_HOURS_MAX)) + 1;
    conn.prepare_cached("SELECT hour, kind, counters FROM duly_kind_stats WHERE hour >= ?1 ORDER BY hour, kind")?
        .query_map([first], |row| {
            let counters: Vec<u8> = row.get(2)?;
            let hour = from_micros(row.get::<_, i64>(0)?.saturating_mul(HOUR_MICROS));
            Ok(KindStats { hour, kind: row.get(1)?, counters: StatCounters::from_numbers(&unpack_counters(&counters)) })
        })?
        .collect()
}
