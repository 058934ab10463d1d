//! Counters per kind and hour, in the slot of the peer keys.

use crate::clock::{Micros, from_micros};
use crate::error::Result;
use crate::store::redis::conn::ConnectionRole;
use crate::store::redis::{Redis, script};
use crate::store::{KIND_HOURS_MAX, KIND_STATS_MAX, KindStats, OTHER_KINDS, STAT_NUMBERS, StatCounters};

/// An hour, in microseconds.
const HOUR_MICROS: Micros = 3_600_000_000;

/// Implements `StatsStore::add_kind_stats`.
pub(crate) async fn add_kind_stats(store: &Redis, kinds: &[(String, StatCounters)]) -> Result<()> {
    let mut cmd = script::ADD_KIND_STATS.call(&store.peer_keys);
    cmd.arg(store.manual_now()).arg(KIND_HOURS_MAX).arg(KIND_STATS_MAX).arg(OTHER_KINDS);
    for (kind, counters) in kinds {
        cmd.arg(kind).arg(encode_counters(counters));
    }
    store
        .run_script("add_kind_stats", ConnectionRole::Worker, store.peer_keys.slot, &script::ADD_KIND_STATS, &cmd)
        .await
        .map(drop)
}

/// Implements `StatsStore::kind_stats`.
pub(crate) async fn kind_stats(store: &Redis, hours: u32) -> Result<Vec<KindStats>> {
    let mut cmd = script::KIND_STATS.call(&store.peer_keys);
    cmd.arg(store.manual_now());
    let mut reply =
        store.run_script("kind_stats", ConnectionRole::Client, store.peer_keys.slot, &script::KIND_STATS, &cmd).await?;
    let first = reply.now.div_euclid(HOUR_MICROS) - i64::from(hours.clamp(1, KIND_HOURS_MAX)) + 1;
    let fields = reply.list()?;
    let text = |bytes: &Option<Vec<u8>>| String::from_utf8_lossy(bytes.as_deref().unwrap_or_default()).into_owned();
    let points = fields.chunks_exact(2).filter_map(|pair| parse_kind_stats(&text(&pair[0]), &text(&pair[1]), first));
    let mut points: Vec<KindStats> = points.collect();
    points.sort_by(|a, b| (a.hour, &a.kind).cmp(&(b.hour, &b.kind)));
    Ok(points)
}

/// Parses `hour.kind` and its numbers. A field with only the hour has the number of kinds, and is skipped.
fn parse_kind_stats(field: &str, numbers: &str, first: i64) -> Option<KindStats> {
    let (hour, kind) = field.split_once('.')?;
    let hour: i64 = hour.parse().ok().filter(|hour| *hour >= first)?;
    Some(KindStats {
        hour: from_micros(hour.saturating_mul(HOUR_MICROS)),
        kind: kind.to_owned(),
        counters: decode_counters(numbers),
    })
}

/// Encodes the non-zero numbers: index (two digits) and count, each followed by a space.
fn encode_counters(counters: &StatCounters) -> String {
    let numbers = counters.to_numbers();
    let counted = numbers.iter().enumerate().filter(|(_, count)| **count > 0);
    counted.map(|(index, count)| format!("{index:02}{count} ")).collect()
}

fn decode_counters(text: &str) -> StatCounters {
    let mut numbers = [0; STAT_NUMBERS];
    for field in text.split_ascii_whitespace() {
        let Some((index, count)) = field.split_at_checked(2) else {
            continue;
        };
        if let Some(number) = index.parse::<usize>().ok().and_then(|index| numbers.get_mut(index)) {
            *number = count.parse().unwrap_or(0);
        }
    }
    StatCounters::from_numbers(&numbers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn counters_round_trip_as_text(numbers in proptest::collection::vec(prop_oneof![Just(0), 0u64..1 << 40], STAT_NUMBERS)) {
            let counters = StatCounters::from_numbers(&numbers.try_into().expect("as many"));
            prop_assert_eq!(decode_counters(&encode_counters(&counters)), counters);
        }

        #[test]
        fn decoding_any_text_does_not_panic(text in ".{0,80}") {
            let _ = decode_counters(&text);
        }
    }
}
