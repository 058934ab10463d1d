//! Counters per kind, by minute and by hour, in the slot of the peer keys.

use crate::error::Result;
use crate::store::redis::conn::ConnectionRole;
use crate::store::redis::{Redis, script};
use crate::store::{
    KIND_HOURS_MAX, KIND_MINUTES_MAX, KIND_STATS_MAX, KindPoints, KindStats, KindStatsQuery, OTHER_KINDS, Resolution,
    STAT_NUMBERS, StatCounters,
};

/// Intervals per request for all kinds.
const INTERVALS_PER_BATCH: u32 = 24;

/// Implements `StatsStore::add_kind_stats`.
pub(crate) async fn add_kind_stats(store: &Redis, kinds: &[(String, StatCounters)]) -> Result<()> {
    let mut cmd = script::ADD_KIND_STATS.call(&store.peer_keys);
    cmd.arg(store.manual_now()).arg(KIND_HOURS_MAX).arg(KIND_MINUTES_MAX).arg(KIND_STATS_MAX).arg(OTHER_KINDS);
    for (kind, counters) in kinds {
        cmd.arg(kind).arg(encode_counters(counters));
    }
    store
        .run_script("add_kind_stats", ConnectionRole::Worker, store.peer_keys.slot, &script::ADD_KIND_STATS, &cmd)
        .await
        .map(drop)
}

/// Implements `StatsStore::kind_stats`.
pub(crate) async fn kind_stats(store: &Redis, query: &KindStatsQuery) -> Result<Vec<KindStats>> {
    let unit = match query.resolution {
        Resolution::Minute => "minute",
        Resolution::Hour => "hour",
    };
    // One kind has at most one entry per interval.
    let batch = if query.kind.is_some() { query.count() } else { INTERVALS_PER_BATCH };
    let mut points = KindPoints::new(query, query.first(store.now()));
    let mut ago = query.count();
    while ago > 0 {
        let count = ago.min(batch);
        let mut cmd = script::KIND_STATS.call(&store.peer_keys);
        cmd.arg(store.manual_now()).arg(unit).arg(ago - 1).arg(count).arg(query.kind.as_deref().unwrap_or_default());
        let slot = store.peer_keys.slot;
        let mut reply = store.run_script("kind_stats", ConnectionRole::Client, slot, &script::KIND_STATS, &cmd).await?;
        let text = |bytes: &Option<Vec<u8>>| String::from_utf8_lossy(bytes.as_deref().unwrap_or_default()).into_owned();
        for entry in reply.list()?.chunks_exact(3) {
            if let Ok(number) = text(&entry[0]).parse() {
                points.add(number, text(&entry[1]), &decode_counters(&text(&entry[2])));
            }
        }
        ago -= count;
    }
    Ok(points.into_stats())
}

/// Encodes the non-zero numbers: index (two digits) and count, each followed by a space.
fn encode_counters(counters: &StatCounters) -> String {
    let numbers = counters.to_numbers();
    let counted = numbers.iter().enumerate().filter(|(_, count)| **count > 0);
    counted.map(|(index, count)| format!("{index:02}{count} ")).collect()
}

/// Decodes counters; damaged ones are zero.
pub(super) fn decode_counters(text: &str) -> [u64; STAT_NUMBERS] {
    let mut numbers = [0; STAT_NUMBERS];
    for field in text.split_ascii_whitespace() {
        let Some((index, count)) = field.split_at_checked(2) else {
            continue;
        };
        if let Some(number) = index.parse::<usize>().ok().and_then(|index| numbers.get_mut(index)) {
            *number = count.parse().unwrap_or(0);
        }
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn counters_round_trip_as_text(numbers in proptest::collection::vec(prop_oneof![Just(0), 0u64..1 << 40], STAT_NUMBERS)) {
            let counters = StatCounters::from_numbers(&numbers.try_into().expect("as many"));
            prop_assert_eq!(decode_counters(&encode_counters(&counters)), counters.to_numbers());
        }

        #[test]
        fn decoding_any_text_does_not_panic(text in ".{0,80}") {
            let _ = decode_counters(&text);
        }
    }
}
