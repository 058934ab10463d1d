//! Decides whether to wait briefly for more work before an expensive operation that a batch can share.
//!
//! Waiting pays off if work arrives in bursts, and only costs time if it arrives singly.
//! After a wait without arrivals, [`AdaptiveWait`] skips a growing number of opportunities before it waits again.

/// Maximum opportunities skipped before the next wait.
const SKIPS_MAX: u32 = 31;

/// Learns from past waits whether waiting pays off.
#[derive(Debug, Default)]
pub(crate) struct AdaptiveWait {
    /// Opportunities to skip after a wait without arrivals; doubles each time.
    skips: u32,
    skips_left: u32,
}

impl AdaptiveWait {
    /// Returns whether to wait this time.
    pub(crate) fn should_wait(&mut self) -> bool {
        if self.skips_left == 0 {
            return true;
        }
        self.skips_left -= 1;
        false
    }

    /// Records how many items arrived during a wait.
    pub(crate) fn record_arrivals(&mut self, arrivals: usize) {
        self.skips = if arrivals == 0 { (self.skips * 2 + 1).min(SKIPS_MAX) } else { 0 };
        self.skips_left = self.skips;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_backs_off_after_misses_and_resumes_after_arrivals() {
        let mut wait = AdaptiveWait::default();
        let waits = (0..1_000).filter(|_| wait.should_wait().then(|| wait.record_arrivals(0)).is_some()).count();
        assert!((30..=40).contains(&waits), "{waits}");
        while !wait.should_wait() {}
        wait.record_arrivals(3);
        assert!(wait.should_wait() && wait.should_wait());
    }
}
