//! Rate limits: a token bucket per address or client name, for a bounded number of them.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use duly::Clock;

use crate::sync::LockExt;

/// The most addresses and names with a bucket; beyond that, full buckets are dropped.
const BUCKETS_MAX: usize = 10_000;
/// The most wrong tokens from one address per minute.
const FAILURES_PER_MINUTE: u32 = 5;
/// The most refusals of one client that the audit log records per hour. The log keeps some thousand entries, and a client
/// without rights must not be able to displace them.
const REFUSALS_PER_HOUR: u32 = 20;

/// The rate limits of a server.
pub(crate) struct RateLimits {
    requests: TokenBuckets,
    failures: TokenBuckets,
    refusals: TokenBuckets,
}

impl RateLimits {
    pub(crate) fn new(rate: u32) -> Self {
        RateLimits {
            // A burst may use the requests of two seconds.
            requests: TokenBuckets::new(f64::from(rate) * 2.0, f64::from(rate)),
            failures: TokenBuckets::new(f64::from(FAILURES_PER_MINUTE), f64::from(FAILURES_PER_MINUTE) / 60.0),
            refusals: TokenBuckets::new(f64::from(REFUSALS_PER_HOUR), f64::from(REFUSALS_PER_HOUR) / 3_600.0),
        }
    }

    /// Counts one request. The error is the number of seconds after which another one is allowed.
    pub(crate) fn take_request(&self, key: &str) -> Result<(), u32> {
        self.requests.take(key, 1.0)
    }

    /// Returns an error if this address has sent too many wrong tokens.
    pub(crate) fn check_failures(&self, address: &str) -> Result<(), u32> {
        self.failures.take(address, 0.0)
    }

    /// Counts a wrong token from this address.
    pub(crate) fn count_failure(&self, address: &str) {
        let _ = self.failures.take(address, 1.0);
    }

    /// Counts a refused request of this client. Returns whether to record it in the audit log.
    pub(crate) fn take_refusal(&self, name: &str) -> bool {
        self.refusals.take(name, 1.0).is_ok()
    }
}

struct TokenBuckets {
    capacity: f64,
    per_second: f64,
    /// The level of each bucket, and when it was last changed.
    levels: Mutex<HashMap<String, (f64, Duration)>>,
}

impl TokenBuckets {
    fn new(capacity: f64, per_second: f64) -> Self {
        TokenBuckets { capacity, per_second, levels: Mutex::default() }
    }

    fn take(&self, key: &str, amount: f64) -> Result<(), u32> {
        let now = Clock::system().monotonic();
        let mut levels = self.levels.lock_unpoisoned();
        if levels.len() >= BUCKETS_MAX && !levels.contains_key(key) {
            levels.retain(|_, (level, at)| self.refill(*level, *at, now) < self.capacity);
            // All of them are in use: bounded memory is worth more than their counts.
            if levels.len() >= BUCKETS_MAX {
                levels.clear();
            }
        }
        let (level, at) = levels.get(key).copied().unwrap_or((self.capacity, now));
        let level = self.refill(level, at, now);
        if level < amount.max(1.0) {
            return Err((((amount.max(1.0) - level) / self.per_second).ceil() as u32).max(1));
        }
        if amount > 0.0 {
            levels.insert(key.to_owned(), (level - amount, now));
        }
        Ok(())
    }

    fn refill(&self, level: f64, at: Duration, now: Duration) -> f64 {
        (level + now.saturating_sub(at).as_secs_f64() * self.per_second).min(self.capacity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_bucket_returns_the_seconds_to_wait() {
        let buckets = TokenBuckets::new(3.0, 0.1);
        assert!((0..3).all(|_| buckets.take("a", 1.0).is_ok()));
        assert_eq!(buckets.take("a", 1.0), Err(10));
        assert!(buckets.take("b", 1.0).is_ok(), "another key has its own bucket");
    }

    #[test]
    fn the_number_of_buckets_is_bounded() {
        let buckets = TokenBuckets::new(3.0, 0.1);
        (0..3 * BUCKETS_MAX).for_each(|n| assert!(buckets.take(&n.to_string(), 1.0).is_ok()));
        assert!(buckets.levels.lock().expect("no panic").len() <= BUCKETS_MAX);
    }
}
