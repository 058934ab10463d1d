//! Where a page of a list ended, in words that still hold when others have moved. Pure.
//!
//! Nothing in Sidekiq's lists has a number of its own. What holds is the order: an entry comes in at one end and goes out
//! anywhere, but two that stay never change places. So a page goes on behind the last entry of the one before that is still
//! there; where none of them is, it begins anew, and rather shows an entry twice than never.

use std::collections::VecDeque;

use crate::clock::Micros;
use crate::compat::sidekiq::find_job::{EntryPosition, LocatedEntry};
use crate::error::{Error, Result};
use crate::store::redis::sha1;

/// So many of the last entries of a page are remembered, by their digest.
const DIGESTS_MAX: usize = 8;
/// Hexadecimal digits of a digest that are enough to know an entry by.
const DIGEST_DIGITS: usize = 12;

/// The digest by which an entry is known again.
pub(super) fn entry_digest(found: &LocatedEntry) -> String {
    let mut sum = sha1(&String::from_utf8_lossy(&found.bytes));
    sum.truncate(DIGEST_DIGITS);
    sum
}

/// The last entries of a page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum SectionPosition {
    /// None yet.
    #[default]
    Start,
    /// Of what nodes hold, in the order of the claims: the fence, and the number under it.
    Held(u64, i64),
    /// In a list: how many were passed, and the digests of the last of them, the newest last.
    Listed(usize, VecDeque<String>),
    /// In a sorted set: the moment, and the digest.
    Scored(Micros, String),
}

impl SectionPosition {
    /// One more entry has been passed.
    pub(super) fn advance(&mut self, found: &LocatedEntry) {
        *self = match (found.position, std::mem::take(self)) {
            (EntryPosition::Running(_, fence, place), _) => SectionPosition::Held(fence.0, place),
            (
                EntryPosition::Schedule(at)
                | EntryPosition::Retry(at)
                | EntryPosition::Dead(at)
                | EntryPosition::Done(at),
                _,
            ) => SectionPosition::Scored(at, entry_digest(found)),
            (EntryPosition::Ready, SectionPosition::Listed(passed, mut known)) => {
                known.push_back(entry_digest(found));
                if known.len() > DIGESTS_MAX {
                    known.pop_front();
                }
                SectionPosition::Listed(passed + 1, known)
            }
            (EntryPosition::Ready, _) => SectionPosition::Listed(1, VecDeque::from([entry_digest(found)])),
        };
    }

    fn encode(&self) -> String {
        match self {
            SectionPosition::Start => String::new(),
            SectionPosition::Held(fence, place) => format!("h{fence}-{place}"),
            SectionPosition::Listed(passed, known) => {
                format!("l{passed}{}", known.iter().map(|sum| format!("-{sum}")).collect::<String>())
            }
            SectionPosition::Scored(at, sum) => format!("s{at}-{sum}"),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let Some(kind) = text.chars().next() else {
            return Some(SectionPosition::Start);
        };
        let mut parts = text.get(1..)?.split('-');
        let first = parts.next()?;
        let rest: VecDeque<String> = parts.map(str::to_owned).collect();
        let sound = |sum: &String| sum.len() == DIGEST_DIGITS && sum.bytes().all(|byte| byte.is_ascii_hexdigit());
        Some(match (kind, rest.len()) {
            ('h', 1) => SectionPosition::Held(first.parse().ok()?, rest[0].parse().ok()?),
            ('s', 1) if sound(&rest[0]) => SectionPosition::Scored(first.parse().ok()?, rest[0].clone()),
            ('l', 1..=DIGESTS_MAX) if rest.iter().all(sound) => {
                let passed = first.parse().ok().filter(|passed| (1..=i32::MAX as usize).contains(passed))?;
                SectionPosition::Listed(passed, rest)
            }
            _ => return None,
        })
    }
}

/// Where a page ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SidekiqListCursor {
    /// Which of the places.
    pub(super) section: usize,
    /// Behind which entries there.
    pub(super) position: SectionPosition,
    /// In which queue, where each has its own.
    pub(super) queue: String,
}

impl SidekiqListCursor {
    pub(super) fn encode(&self) -> String {
        format!("{}.{}.{}", self.section, self.position.encode(), self.queue)
    }

    /// From a text, with so many places.
    pub(super) fn parse(text: &str, places: usize) -> Result<Self> {
        let parsed = || {
            let [place, after, queue] = text.splitn(3, '.').collect::<Vec<_>>()[..] else {
                return None;
            };
            let place = place.parse().ok().filter(|place| *place < places)?;
            Some(SidekiqListCursor {
                section: place,
                position: SectionPosition::parse(after)?,
                queue: queue.to_owned(),
            })
        };
        parsed().ok_or_else(|| Error::invalid("cursor", "not one that a list has given"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_position() -> impl Strategy<Value = SectionPosition> {
        let sum = "[0-9a-f]{12}";
        prop_oneof![
            Just(SectionPosition::Start),
            (any::<u64>(), 0i64..10_000).prop_map(|(fence, place)| SectionPosition::Held(fence, place)),
            (1usize..1_000_000, proptest::collection::vec_deque(sum, 1..=DIGESTS_MAX))
                .prop_map(|(passed, known)| SectionPosition::Listed(passed, known)),
            (0i64..1 << 52, sum).prop_map(|(at, sum)| SectionPosition::Scored(at, sum)),
        ]
    }

    proptest! {
        #[test]
        fn parsing_any_text_does_not_panic(text in ".*") {
            let _ = SidekiqListCursor::parse(&text, 6);
        }

        #[test]
        fn cursors_round_trip_as_text(section in 0usize..6, position in any_position(), queue in "[a-z.:/-]{0,20}") {
            let cursor = SidekiqListCursor { section, position, queue };
            prop_assert_eq!(SidekiqListCursor::parse(&cursor.encode(), 6).expect("its own text"), cursor);
        }
    }
}
