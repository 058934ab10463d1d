//! How long to wait for more attempts to finish before a settle.
//!
//! Quick attempts finish together: a settle for the first few would make the rest wait for a whole commit.

use std::time::Duration;

use crate::adaptive_wait::AdaptiveWait;

/// Upper bound of the wait.
const WAIT_MAX: Duration = Duration::from_micros(300);
/// Lower bound of the wait, even if the store is faster: an extra request costs it as much.
const WAIT_MIN: Duration = Duration::from_micros(100);
/// Attempts that take less than this on average are quick.
const QUICK_ATTEMPT_MAX: Duration = Duration::from_micros(200);

/// Learns from the durations of attempts and settles.
#[derive(Debug, Default)]
pub(super) struct SettlePace {
    /// Moving averages.
    attempt_duration: Duration,
    settle_duration: Duration,
    wait: AdaptiveWait,
}

impl SettlePace {
    pub(super) fn record_attempt(&mut self, duration: Duration) {
        self.attempt_duration = (self.attempt_duration * 7 + duration) / 8;
    }

    pub(super) fn record_settle(&mut self, duration: Duration) {
        self.settle_duration = (self.settle_duration * 7 + duration) / 8;
    }

    pub(super) fn attempts_are_quick(&self) -> bool {
        self.attempt_duration < QUICK_ATTEMPT_MAX
    }

    /// Returns how long to wait now; `None` if recent waits did not pay off.
    pub(super) fn next_wait(&mut self) -> Option<Duration> {
        self.wait.should_wait().then(|| (self.settle_duration / 3).clamp(WAIT_MIN, WAIT_MAX))
    }

    /// Records how many attempts finished during a wait.
    pub(super) fn record_arrivals(&mut self, attempts: usize) {
        self.wait.record_arrivals(attempts);
    }
}
