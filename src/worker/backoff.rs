//! The delay before a failed request to the store is repeated.

use std::time::Duration;

use tokio::time::Instant;

/// The first delay; it doubles up to a third of the lease.
const BACKOFF_MIN: Duration = Duration::from_millis(50);

/// Counts consecutive failures of one kind of request.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
    not_before: Option<Instant>,
}

impl Backoff {
    /// Records a failure and returns the delay before the next request: it doubles per failure, with full jitter.
    /// It stays below a third of the lease, so that a short outage does not cost the lease.
    pub(super) fn record_failure(&mut self, now: Instant, lease: Duration) -> Duration {
        let max = (lease / 3).max(BACKOFF_MIN);
        let ceiling = BACKOFF_MIN.saturating_mul(1 << self.failures.min(16)).min(max);
        let delay = BACKOFF_MIN / 2 + ceiling.mul_f64(fastrand::f64());
        self.failures = self.failures.saturating_add(1);
        self.not_before = Some(now + delay);
        delay
    }

    /// Records a success.
    pub(super) fn reset(&mut self) {
        *self = Backoff::default();
    }

    /// Returns whether a request can be sent now.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.not_before.is_none_or(|at| at <= now)
    }

    /// Returns when the delay ends, unless it has ended.
    pub(super) fn deadline(&self, now: Instant) -> Option<Instant> {
        self.not_before.filter(|at| *at > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delay_grows_to_a_third_of_the_lease_and_ends_with_a_success() {
        let (now, lease) = (Instant::now(), Duration::from_secs(3));
        let mut backoff = Backoff::default();
        assert!(backoff.is_over(now));
        for _ in 0..100 {
            let delay = backoff.record_failure(now, lease);
            assert!(delay >= BACKOFF_MIN / 2 && delay <= lease / 3 + BACKOFF_MIN, "{delay:?}");
            assert_eq!(backoff.deadline(now), Some(now + delay));
            assert!(!backoff.is_over(now) && backoff.is_over(now + delay));
        }
        backoff.reset();
        assert!(backoff.is_over(now));
    }
}
