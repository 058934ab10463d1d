//! The cursor of a job list, which stays valid while other clients change the lists. No I/O.
//!
//! Entries of Sidekiq's lists have no stable index, only a stable order: an entry enters at one end and leaves
//! anywhere, but two entries that stay never swap. So a page continues after the last entry of the previous page that
//! still exists. If none exists, the section starts again: an entry may be shown twice, but is never skipped.

use std::collections::VecDeque;

use crate::clock::Micros;
use crate::compat::sidekiq::find_job::{EntryPosition, LocatedEntry};
use crate::error::{Error, Result};
use crate::store::redis::sha1;

/// Number of entries at the end of a page whose digests the cursor holds.
const DIGESTS_MAX: usize = 8;
/// Length of a digest in hexadecimal digits.
const DIGEST_DIGITS: usize = 12;

/// Returns the digest that identifies an entry.
pub(super) fn entry_digest(found: &LocatedEntry) -> String {
    let mut digest = sha1(&String::from_utf8_lossy(&found.bytes));
    digest.truncate(DIGEST_DIGITS);
    digest
}

/// The last entries that a page has passed in its section.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum SectionPosition {
    /// None yet.
    #[default]
    Start,
    /// Among held entries, in the order of the claims: fence and locator.
    Held(u64, i64),
    /// In a list: the number of passed entries, and the digests of the last ones, the latest at the end.
    Listed(usize, VecDeque<String>),
    /// In a sorted set: score and digest.
    Scored(Micros, String),
}

impl SectionPosition {
    /// Advances past an entry.
    pub(super) fn advance(&mut self, found: &LocatedEntry) {
        *self = match (found.position, std::mem::take(self)) {
            (EntryPosition::Running(_, fence, locator), _) => SectionPosition::Held(fence.0, locator),
            (
                EntryPosition::Schedule(score)
                | EntryPosition::Retry(score)
                | EntryPosition::Dead(score)
                | EntryPosition::Done(score)
                | EntryPosition::Reserved(_, score),
                _,
            ) => SectionPosition::Scored(score, entry_digest(found)),
            (EntryPosition::Ready, SectionPosition::Listed(passed, mut digests)) => {
                digests.push_back(entry_digest(found));
                if digests.len() > DIGESTS_MAX {
                    digests.pop_front();
                }
                SectionPosition::Listed(passed + 1, digests)
            }
            (EntryPosition::Ready, _) => SectionPosition::Listed(1, VecDeque::from([entry_digest(found)])),
        };
    }

    fn encode(&self) -> String {
        match self {
            SectionPosition::Start => String::new(),
            SectionPosition::Held(fence, locator) => format!("h{fence}-{locator}"),
            SectionPosition::Listed(passed, digests) => {
                format!("l{passed}{}", digests.iter().map(|digest| format!("-{digest}")).collect::<String>())
            }
            SectionPosition::Scored(score, digest) => format!("s{score}-{digest}"),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let Some(kind) = text.chars().next() else {
            return Some(SectionPosition::Start);
        };
        let mut parts = text.get(1..)?.split('-');
        let first = parts.next()?;
        let rest: VecDeque<String> = parts.map(str::to_owned).collect();
        let is_digest = |text: &String| text.len() == DIGEST_DIGITS && text.bytes().all(|b| b.is_ascii_hexdigit());
        Some(match (kind, rest.len()) {
            ('h', 1) => SectionPosition::Held(first.parse().ok()?, rest[0].parse().ok()?),
            ('s', 1) if is_digest(&rest[0]) => SectionPosition::Scored(first.parse().ok()?, rest[0].clone()),
            ('l', 1..=DIGESTS_MAX) if rest.iter().all(is_digest) => {
                let passed = first.parse().ok().filter(|passed| (1..=i32::MAX as usize).contains(passed))?;
                SectionPosition::Listed(passed, rest)
            }
            _ => return None,
        })
    }
}

/// The position at which a page ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SidekiqListCursor {
    /// Index of the section.
    pub(super) section: usize,
    /// Position in the section.
    pub(super) position: SectionPosition,
    /// The queue, if the section is per queue.
    pub(super) queue: String,
}

impl SidekiqListCursor {
    pub(super) fn encode(&self) -> String {
        format!("{}.{}.{}", self.section, self.position.encode(), self.queue)
    }

    /// Parses a cursor over this number of sections.
    pub(super) fn parse(text: &str, sections: usize) -> Result<Self> {
        let parsed = || {
            let [section, position, queue] = text.splitn(3, '.').collect::<Vec<_>>()[..] else {
                return None;
            };
            let section = section.parse().ok().filter(|section| *section < sections)?;
            Some(SidekiqListCursor { section, position: SectionPosition::parse(position)?, queue: queue.to_owned() })
        };
        parsed().ok_or_else(|| Error::invalid("cursor", "must be a cursor returned by a list"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_position() -> impl Strategy<Value = SectionPosition> {
        let digest = "[0-9a-f]{12}";
        prop_oneof![
            Just(SectionPosition::Start),
            (any::<u64>(), 0i64..10_000).prop_map(|(fence, locator)| SectionPosition::Held(fence, locator)),
            (1usize..1_000_000, proptest::collection::vec_deque(digest, 1..=DIGESTS_MAX))
                .prop_map(|(passed, digests)| SectionPosition::Listed(passed, digests)),
            (0i64..1 << 52, digest).prop_map(|(score, digest)| SectionPosition::Scored(score, digest)),
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
