//! Whether a node and the store agree on how much the node holds of a queue. Pure.

/// So many beats in a row whose count differs from ours while jobs come and go: then the store is asked all the same.
const DIFFERING_MAX: u32 = 10;

/// What was counted of one queue so far.
#[derive(Debug, Default)]
pub(crate) struct Agreement {
    /// Grows with every job that comes, ends or is recorded: counts are compared only if nothing moved meanwhile.
    moves: u64,
    /// How many beats in a row have had another count than ours, and `moves` at the last of them.
    differing: u32,
    differed_at: u64,
}

impl Agreement {
    /// So many jobs have come, or gone.
    pub(crate) fn moved(&mut self, jobs: u64) {
        self.moves += jobs;
    }

    /// Compares the store's count with ours. Answers whether one of us has forgotten something: they differ twice with nothing
    /// moved between, and nothing under way (`at_rest`), or many times.
    pub(crate) fn is_broken(&mut self, theirs: u64, ours: u64, at_rest: bool) -> bool {
        if theirs == ours {
            self.differing = 0;
            return false;
        }
        let still = self.differing > 0 && self.differed_at == self.moves && at_rest;
        self.differing += 1;
        self.differed_at = self.moves;
        let broken = still || self.differing >= DIFFERING_MAX;
        if broken {
            self.differing = 0;
        }
        broken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_that_differ_once_may_have_crossed() {
        let mut agreement = Agreement::default();
        assert!(!agreement.is_broken(3, 2, true));
        assert!(!agreement.is_broken(2, 2, true));
        assert!(!agreement.is_broken(3, 2, true), "it has begun anew");
        assert!(agreement.is_broken(3, 2, true));
    }

    #[test]
    fn what_moves_or_is_under_way_explains_a_difference_for_a_while() {
        let mut agreement = Agreement::default();
        for beat in 1..DIFFERING_MAX {
            agreement.moved(u64::from(beat % 2));
            assert!(!agreement.is_broken(3, 2, beat % 2 == 1), "at beat {beat}");
        }
        assert!(agreement.is_broken(3, 2, false), "but not for ever");
    }
}
