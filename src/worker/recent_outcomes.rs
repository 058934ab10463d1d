//! Outcomes that were sent of late.
//!
//! A server that failed over may have lost the newest of them, or have refused them while another was in its place:
//! then it says that we still hold those jobs. The same outcome is sent again, and the job does not run a second time.

use std::collections::VecDeque;

use crate::job::{Fence, JobId, Outcome};

/// How many are remembered: more than are recorded in the time that a replica may be behind.
const RECENT_MAX: usize = 10_000;
/// Most bytes of results that are remembered with them.
const RESULTS_MAX: usize = 1024 * 1024;

#[derive(Default)]
pub(super) struct Recent {
    ends: VecDeque<((JobId, Fence), Outcome, Option<String>)>,
    /// Bytes of results.
    bytes: usize,
}

impl Recent {
    pub(super) fn note(&mut self, attempt: (JobId, Fence), outcome: Outcome, result: Option<String>) {
        self.bytes += bytes_of(result.as_ref());
        self.ends.push_back((attempt, outcome, result));
        while self.ends.len() > RECENT_MAX || self.bytes > RESULTS_MAX {
            let oldest = self.ends.pop_front();
            self.bytes -= oldest.map_or(self.bytes, |(_, _, result)| bytes_of(result.as_ref()));
        }
    }

    /// How this attempt ended, and what it gave.
    pub(super) fn end_of(&self, attempt: (JobId, Fence)) -> Option<(Outcome, Option<String>)> {
        let found = self.ends.iter().rev().find(|(other, ..)| *other == attempt);
        found.map(|(_, outcome, result)| (outcome.clone(), result.clone()))
    }
}

fn bytes_of(result: Option<&String>) -> usize {
    result.map_or(0, String::len)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(n: u64) -> (JobId, Fence) {
        (JobId::named(&n.to_string()), Fence(n))
    }

    #[test]
    fn remembers_the_newest() {
        let mut recent = Recent::default();
        for n in 0..RECENT_MAX as u64 + 1 {
            recent.note(attempt(n), Outcome::Ack, None);
        }
        assert_eq!(recent.end_of(attempt(0)), None);
        assert_eq!(recent.end_of(attempt(1)), Some((Outcome::Ack, None)));
        assert_eq!(recent.end_of((attempt(1).0, Fence(2))), None);
    }

    #[test]
    fn results_are_remembered_while_there_is_room() {
        let mut recent = Recent::default();
        let big = "x".repeat(RESULTS_MAX / 2);
        for n in 0..3 {
            recent.note(attempt(n), Outcome::Ack, Some(big.clone()));
        }
        assert_eq!(recent.end_of(attempt(0)), None);
        assert_eq!(recent.end_of(attempt(2)), Some((Outcome::Ack, Some(big))));
        recent.note(attempt(3), Outcome::Ack, Some("x".repeat(RESULTS_MAX + 1)));
        assert_eq!((recent.ends.len(), recent.bytes), (0, 0));
    }
}
