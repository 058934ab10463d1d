//! Checks whether a node and the store agree on how many jobs of a queue the node holds. Pure logic.

/// Consecutive mismatches after which a resync is requested even while jobs come and go.
const MISMATCHES_MAX: u32 = 10;

/// The comparison state of one queue.
#[derive(Debug, Default)]
pub(crate) struct HeldCountCheck {
    /// Grows with every job that is claimed, finished or recorded. Counts are only compared if it has not changed.
    changes: u64,
    /// Consecutive heartbeats with a mismatch, and `changes` at the last one.
    mismatches: u32,
    changes_at_mismatch: u64,
}

impl HeldCountCheck {
    /// Records that jobs were claimed, finished or recorded.
    pub(crate) fn record_changes(&mut self, jobs: u64) {
        self.changes += jobs;
    }

    /// Compares the store's count with ours. Returns whether a resync is needed: after two mismatches with no change in
    /// between and nothing in flight (`at_rest`), or after many mismatches.
    pub(crate) fn is_out_of_sync(&mut self, theirs: u64, ours: u64, at_rest: bool) -> bool {
        if theirs == ours {
            self.mismatches = 0;
            return false;
        }
        let unchanged = self.mismatches > 0 && self.changes_at_mismatch == self.changes && at_rest;
        self.mismatches += 1;
        self.changes_at_mismatch = self.changes;
        let out_of_sync = unchanged || self.mismatches >= MISMATCHES_MAX;
        if out_of_sync {
            self.mismatches = 0;
        }
        out_of_sync
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_mismatch_is_tolerated() {
        let mut check = HeldCountCheck::default();
        assert!(!check.is_out_of_sync(3, 2, true));
        assert!(!check.is_out_of_sync(2, 2, true));
        assert!(!check.is_out_of_sync(3, 2, true), "the count restarts");
        assert!(check.is_out_of_sync(3, 2, true));
    }

    #[test]
    fn mismatch_during_changes_is_tolerated_up_to_the_maximum() {
        let mut check = HeldCountCheck::default();
        for heartbeat in 1..MISMATCHES_MAX {
            check.record_changes(u64::from(heartbeat % 2));
            assert!(!check.is_out_of_sync(3, 2, heartbeat % 2 == 1), "at heartbeat {heartbeat}");
        }
        assert!(check.is_out_of_sync(3, 2, false), "but not forever");
    }
}
