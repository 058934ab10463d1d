//! Outcomes that were sent of late.
//!
//! A server that failed over may have lost the newest of them, or have refused them while another was in its place:
//! then it says that we still hold those jobs. The same outcome is sent again, and the job does not run a second time.

use std::collections::VecDeque;

use crate::job::{Fence, JobId, Outcome};

/// How many are remembered: more than are recorded in the time that a replica may be behind.
const RECENT_MAX: usize = 10_000;

#[derive(Default)]
pub(super) struct Recent {
    outcomes: VecDeque<(JobId, Fence, Outcome)>,
}

impl Recent {
    pub(super) fn note(&mut self, id: JobId, fence: Fence, outcome: Outcome) {
        if self.outcomes.len() == RECENT_MAX {
            self.outcomes.pop_front();
        }
        self.outcomes.push_back((id, fence, outcome));
    }

    /// How this attempt ended.
    pub(super) fn outcome_of(&self, (id, fence): (JobId, Fence)) -> Option<&Outcome> {
        let found = self.outcomes.iter().rev().find(|(other, of, _)| (*other, *of) == (id, fence));
        found.map(|(_, _, outcome)| outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembers_the_newest() {
        let mut recent = Recent::default();
        for n in 0..RECENT_MAX as u64 + 1 {
            recent.note(JobId::named(&n.to_string()), Fence(n), Outcome::Ack);
        }
        assert_eq!(recent.outcome_of((JobId::named("0"), Fence(0))), None);
        assert_eq!(recent.outcome_of((JobId::named("1"), Fence(1))), Some(&Outcome::Ack));
        assert_eq!(recent.outcome_of((JobId::named("1"), Fence(2))), None);
    }
}
