//! What has happened by kind, hour by hour, in the hall's slot.

use crate::clock::{Micros, from_micros};
use crate::error::Result;
use crate::store::redis::conn::Way;
use crate::store::redis::{Redis, script};
use crate::store::{HistoryTally, KIND_HOURS_MAX, KINDS_COUNTED_MAX, KindPoint, OTHER_KINDS, TALLY};

/// An hour, in microseconds.
const HOUR: Micros = 3_600_000_000;

/// `add_kinds` of the contract.
pub(crate) async fn add(store: &Redis, kinds: &[(String, HistoryTally)]) -> Result<()> {
    let mut cmd = script::ADD_KINDS.call(&store.hall);
    cmd.arg(store.manual_now()).arg(KIND_HOURS_MAX).arg(KINDS_COUNTED_MAX).arg(OTHER_KINDS);
    for (kind, tally) in kinds {
        cmd.arg(kind).arg(write(tally));
    }
    let value = store.link.run("add_kinds", Way::Work, store.hall.slot, &script::ADD_KINDS, &cmd).await?;
    store.reply("add_kinds", value).map(drop)
}

/// `kinds` of the contract.
pub(crate) async fn asked(store: &Redis, hours: u32) -> Result<Vec<KindPoint>> {
    let mut cmd = script::KINDS.call(&store.hall);
    cmd.arg(store.manual_now());
    let value = store.link.run("kinds", Way::Door, store.hall.slot, &script::KINDS, &cmd).await?;
    let mut reply = store.reply("kinds", value)?;
    let first = reply.now.div_euclid(HOUR) - i64::from(hours.clamp(1, KIND_HOURS_MAX)) + 1;
    let fields = reply.list()?;
    let text = |bytes: &Option<Vec<u8>>| String::from_utf8_lossy(bytes.as_deref().unwrap_or_default()).into_owned();
    let points = fields.chunks_exact(2).filter_map(|pair| point(&text(&pair[0]), &text(&pair[1]), first));
    let mut points: Vec<KindPoint> = points.collect();
    points.sort_by(|a, b| (a.hour, &a.kind).cmp(&(b.hour, &b.kind)));
    Ok(points)
}

/// Of `hour.kind` and its numbers; a field that is the hour alone says how many kinds it has.
fn point(field: &str, numbers: &str, first: i64) -> Option<KindPoint> {
    let (hour, kind) = field.split_once('.')?;
    let hour: i64 = hour.parse().ok().filter(|hour| *hour >= first)?;
    Some(KindPoint { hour: from_micros(hour.saturating_mul(HOUR)), kind: kind.to_owned(), tally: read(numbers) })
}

/// Place (two digits) and count of each number that is not 0, each followed by a space.
fn write(tally: &HistoryTally) -> String {
    let numbers = tally.numbers();
    let counted = numbers.iter().enumerate().filter(|(_, count)| **count > 0);
    counted.map(|(place, count)| format!("{place:02}{count} ")).collect()
}

fn read(text: &str) -> HistoryTally {
    let mut numbers = [0; TALLY];
    for word in text.split_ascii_whitespace() {
        let Some((place, count)) = word.split_at_checked(2) else {
            continue;
        };
        if let Some(number) = place.parse::<usize>().ok().and_then(|place| numbers.get_mut(place)) {
            *number = count.parse().unwrap_or(0);
        }
    }
    HistoryTally::from_numbers(&numbers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn tallies_survive_their_text(numbers in proptest::collection::vec(prop_oneof![Just(0), 0u64..1 << 40], TALLY)) {
            let tally = HistoryTally::from_numbers(&numbers.try_into().expect("as many"));
            prop_assert_eq!(read(&write(&tally)), tally);
        }

        #[test]
        fn any_text_can_be_read(text in ".{0,80}") {
            let _ = read(&text);
        }
    }
}
