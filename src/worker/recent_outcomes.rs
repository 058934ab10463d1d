//! Outcomes that were sent recently.
//!
//! A server may lose the newest outcomes in a failover, or reject them while another server replaces it.
//! It then lists the jobs as held. The worker sends the same outcome again instead of running the job twice.

use std::collections::VecDeque;

use crate::job::Outcome;
use crate::worker::outcomes::ClaimKey;

/// Maximum remembered outcomes: more than are recorded while a replica lags behind.
const RECENT_OUTCOMES_MAX: usize = 10_000;
/// Maximum bytes of remembered results.
const RECENT_RESULT_BYTES_MAX: usize = 1024 * 1024;

#[derive(Default)]
pub(super) struct RecentOutcomes {
    entries: VecDeque<(ClaimKey, Outcome, Option<String>)>,
    /// Total bytes of results.
    result_bytes: usize,
}

impl RecentOutcomes {
    pub(super) fn remember(&mut self, attempt: ClaimKey, outcome: Outcome, result: Option<String>) {
        self.result_bytes += result_len(result.as_ref());
        self.entries.push_back((attempt, outcome, result));
        while self.entries.len() > RECENT_OUTCOMES_MAX || self.result_bytes > RECENT_RESULT_BYTES_MAX {
            let oldest = self.entries.pop_front();
            self.result_bytes -= oldest.map_or(self.result_bytes, |(_, _, result)| result_len(result.as_ref()));
        }
    }

    /// Returns the outcome and the result of an attempt.
    pub(super) fn find(&self, attempt: ClaimKey) -> Option<(Outcome, Option<String>)> {
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
    use crate::job::{Fence, JobId};

    fn claim_key(n: u64) -> ClaimKey {
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
