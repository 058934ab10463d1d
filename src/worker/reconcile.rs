//! Whether a node and the store agree on how much the node holds of a queue. Pure.

/// So many beats in a row whose count differs from ours while jobs come and go: then the store is asked all the same.
const MISMATCHES_MAX: u32 = 10;

/// What was counted of one queue so far.
#[derive(Debug, Default)]
pub(crate) struct HeldCountCheck {
    /// Grows with every job that comes, ends or is recorded: counts are compared only if nothing moved meanwhile.
    changes: u64,
    /// How many beats in a row have had another count than ours, and `moves` at the last of them.
    mismatches: u32,
    changes_at_mismatch: u64,
}

impl HeldCountCheck {
    /// So many jobs have come, or gone.
    pub(crate) fn record_changes(&mut self, jobs: u64) {
        self.changes += jobs;
    }

    /// Compares the store's count with ours. Answers whether one of us has forgotten something: they differ twice with nothing
    /// moved between, and nothing under way (`at_rest`), or many times.
    pub(crate) fn is_out_of_sync(&mut self, theirs: u64, ours: u64, at_rest: bool) -> bool {
        if theirs == ours {
            self.mismatches = 0;
            return false;
        }
        let still = self.mismatches > 0 && self.changes_at_mismatch == self.changes && at_rest;
        self.mismatches += 1;
        self.changes_at_mismatch = self.changes;
        let broken = still || self.mismatches >= MISMATCHES_MAX;
        if broken {
            self.mismatches = 0;
        }
        broken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_mismatch_is_tolerated() {
        let mut agreement = HeldCountCheck::default();
        assert!(!agreement.is_out_of_sync(3, 2, true));
        assert!(!agreement.is_out_of_sync(2, 2, true));
        assert!(!agreement.is_out_of_sync(3, 2, true), "it has begun anew");
        assert!(agreement.is_out_of_sync(3, 2, true));
    }

    #[test]
    fn mismatch_during_changes_is_tolerated_up_to_the_maximum() {
        let mut agreement = HeldCountCheck::default();
        for beat in 1..MISMATCHES_MAX {
            agreement.record_changes(u64::from(beat % 2));
            assert!(!agreement.is_out_of_sync(3, 2, beat % 2 == 1), "at beat {beat}");
        }
        assert!(agreement.is_out_of_sync(3, 2, false), "but not for ever");
    }
}
