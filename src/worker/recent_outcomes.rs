//! Outcomes that were sent of late.
//!
//! A server that failed over may have lost the newest of them, or have refused them while another was in its place:
//! then it says that we still hold those jobs. The same outcome is sent again, and the job does not run a second time.

use std::collections::VecDeque;

use crate::job::{Fence, JobId, Outcome};

/// How many are remembered: more than are recorded in the time that a replica may be behind.
const RECENT_OUTCOMES_MAX: usize = 10_000;
/// Most bytes of results that are remembered with them.
const RECENT_RESULT_BYTES_MAX: usize = 1024 * 1024;

#[derive(Default)]
pub(super) struct RecentOutcomes {
    entries: VecDeque<((JobId, Fence), Outcome, Option<String>)>,
    /// Bytes of results.
    result_bytes: usize,
}

impl RecentOutcomes {
    pub(super) fn remember(&mut self, attempt: (JobId, Fence), outcome: Outcome, result: Option<String>) {
        self.result_bytes += result_len(result.as_ref());
        self.entries.push_back((attempt, outcome, result));
        while self.entries.len() > RECENT_OUTCOMES_MAX || self.result_bytes > RECENT_RESULT_BYTES_MAX {
            let oldest = self.entries.pop_front();
            self.result_bytes -= oldest.map_or(self.result_bytes, |(_, _, result)| result_len(result.as_ref()));
        }
    }

    /// How this attempt ended, and what it gave.
    pub(super) fn find(&self, attempt: (JobId, Fence)) -> Option<(Outcome, Option<String>)> {
        let found = self.entries.iter().rev().find(|(other, ..)| *other == attempt);
        found.map(|(_, outcome, result)| (outcome.clone(), result.clone()))
    }
}

fn result_len(result: Option<&String>) -> usize {
    result.map_or(0, String::len)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim_key(n: u64) -> (JobId, Fence) {
        (JobId::from_name(&n.to_string()), Fence(n))
    }

    #[test]
    fn oldest_outcome_is_forgotten_when_full() {
        let mut recent = RecentOutcomes::default();
        for n in 0..RECENT_OUTCOMES_MAX as u64 + 1 {
            recent.remember(claim_key(n), Outcome::Ack, None);
        }
        assert_eq!(recent.find(claim_key(0)), None);
        assert_eq!(recent.find(claim_key(1)), Some((Outcome::Ack, None)));
        assert_eq!(recent.find((claim_key(1).0, Fence(2))), None);
    }

    #[test]
    fn oldest_result_is_forgotten_when_bytes_are_used_up() {
        let mut recent = RecentOutcomes::default();
        let big = "x".repeat(RECENT_RESULT_BYTES_MAX / 2);
        for n in 0..3 {
            recent.remember(claim_key(n), Outcome::Ack, Some(big.clone()));
        }
        assert_eq!(recent.find(claim_key(0)), None);
        assert_eq!(recent.find(claim_key(2)), Some((Outcome::Ack, Some(big))));
        recent.remember(claim_key(3), Outcome::Ack, Some("x".repeat(RECENT_RESULT_BYTES_MAX + 1)));
        assert_eq!((recent.entries.len(), recent.result_bytes), (0, 0));
    }
}
