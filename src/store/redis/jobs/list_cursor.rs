//! The end of a page of a list.

use crate::error::{Error, Result};
use crate::job::State;

/// The largest number in a cursor, the largest integer that scripts represent exactly.
pub(super) const EXACT_INTEGER_MAX: i64 = 1 << 53;

/// The end of a page. Jobs that do not change state meanwhile appear exactly once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RedisListCursor {
    pub(super) queue: String,
    /// Index into `STATE_ORDER`.
    pub(super) state: usize,
    /// Index of the ready list.
    pub(super) priority_list: usize,
    /// The last ticket or id; for running jobs the listed ids at the server's current cursor.
    pub(super) last_member: Vec<u8>,
    /// The position or score of that member; for running jobs the server's cursor.
    pub(super) position: i64,
}

impl RedisListCursor {
    pub(super) fn next_state(&mut self) {
        let queue = std::mem::take(&mut self.queue);
        *self = RedisListCursor { queue, state: self.state + 1, ..RedisListCursor::default() };
    }

    pub(super) fn next_priority_list(&mut self, state: State) {
        if state != State::Ready || self.priority_list == 3 {
            return self.next_state();
        }
        let queue = std::mem::take(&mut self.queue);
        *self = RedisListCursor {
            queue,
            state: self.state,
            priority_list: self.priority_list + 1,
            ..RedisListCursor::default()
        };
    }

    /// Encodes the cursor as text that is readable in logs and needs no escaping in a URL.
    pub(super) fn encode(&self) -> String {
        let last_member: String = self.last_member.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{}.{}.{}.{last_member}.{}", self.state, self.priority_list, self.position, self.queue)
    }

    pub(super) fn parse(text: &str) -> Result<Self> {
        let [state, priority_list, position, last_member, queue] = text.splitn(5, '.').collect::<Vec<_>>()[..] else {
            return Err(invalid_cursor());
        };
        if !last_member.is_ascii() || last_member.len() % 2 != 0 {
            return Err(invalid_cursor());
        }
        let byte =
            |cursor: usize| u8::from_str_radix(&last_member[cursor..cursor + 2], 16).map_err(|_| invalid_cursor());
        let cursor = RedisListCursor {
            queue: queue.to_owned(),
            state: state.parse().map_err(|_| invalid_cursor())?,
            priority_list: priority_list.parse().map_err(|_| invalid_cursor())?,
            last_member: (0..last_member.len()).step_by(2).map(byte).collect::<Result<_>>()?,
            position: position.parse().map_err(|_| invalid_cursor())?,
        };
        if cursor.priority_list > 3 || cursor.queue.is_empty() || !(0..=EXACT_INTEGER_MAX).contains(&cursor.position) {
            return Err(invalid_cursor());
        }
        Ok(cursor)
    }
}

pub(super) fn invalid_cursor() -> Error {
    Error::invalid("cursor", "is not from a list of jobs; use the cursor of the previous page")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parsing_any_text_does_not_panic(text in ".*") {
            let _ = RedisListCursor::parse(&text);
        }

        #[test]
        fn cursors_round_trip_as_text(queue in "[a-z.:/-]{1,20}", state in 0usize..5, priority_list in 0usize..4, position in 0..=EXACT_INTEGER_MAX,
                                      last_member in proptest::collection::vec(any::<u8>(), 0..20)) {
            let cursor = RedisListCursor { queue, state, priority_list, last_member, position };
            prop_assert_eq!(RedisListCursor::parse(&cursor.encode()).expect("its own text"), cursor);
        }
    }
}
