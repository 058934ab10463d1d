//! Rate limits: a token bucket per address or client name, for a bounded number of them.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::Duration;

use duly::Clock;

use crate::client_network::client_network;
use crate::sync::LockExt;

/// The most addresses and names with a bucket; beyond that, full buckets are dropped.
const BUCKETS_MAX: usize = 10_000;
/// The most wrong tokens from one address per minute.
const FAILURES_PER_MINUTE: u32 = 5;
/// The most refusals of one client that the audit log records per hour. The log keeps some thousand entries, and a client
/// without rights must not be able to displace them.
const REFUSALS_PER_HOUR: u32 = 20;

/// The most sign-ins with one token per minute.
const SIGN_INS_PER_TOKEN: u32 = 20;
/// The most sign-ins from one address per minute: users of one company may share it.
const SIGN_INS_PER_ADDRESS: u32 = 100;

/// The rate limits of a server. Addresses are the networks of [`client_network`].
pub(crate) struct RateLimits {
    requests: TokenBuckets,
    sign_ins_by_token: TokenBuckets,
    sign_ins_by_address: TokenBuckets,
    failures: TokenBuckets,
    refusals: TokenBuckets,
}

impl RateLimits {
    pub(crate) fn new(rate: u32, clock: &Clock) -> Self {
        let per_minute = |number| TokenBuckets::new(f64::from(number), f64::from(number) / 60.0, clock);
        RateLimits {
            // A burst may use the requests of two seconds.
            requests: TokenBuckets::new(f64::from(rate) * 2.0, f64::from(rate), clock),
            sign_ins_by_token: per_minute(SIGN_INS_PER_TOKEN),
            sign_ins_by_address: per_minute(SIGN_INS_PER_ADDRESS),
            failures: per_minute(FAILURES_PER_MINUTE),
            refusals: TokenBuckets::new(f64::from(REFUSALS_PER_HOUR), f64::from(REFUSALS_PER_HOUR) / 3_600.0, clock),
        }
    }

    /// Counts an attempt to sign in. Clients behind a proxy on this machine have no limit: they share its address.
    pub(crate) fn take_sign_in_from(&self, address: Option<IpAddr>) -> Result<(), u32> {
        match address.filter(|address| !address.is_loopback()) {
            Some(address) => self.sign_ins_by_address.take(&client_network(address).to_string(), 1.0),
            None => Ok(()),
        }
    }

    /// Counts a sign-in with the token of this name.
    pub(crate) fn take_sign_in_as(&self, name: &str) -> Result<(), u32> {
        self.sign_ins_by_token.take(name, 1.0)
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
    clock: Clock,
    capacity: f64,
    per_second: f64,
    /// The level of each bucket, and when it was last changed.
    levels: Mutex<HashMap<String, (f64, Duration)>>,
}

impl TokenBuckets {
    fn new(capacity: f64, per_second: f64, clock: &Clock) -> Self {
        TokenBuckets { clock: clock.clone(), capacity, per_second, levels: Mutex::default() }
    }

    fn take(&self, key: &str, amount: f64) -> Result<(), u32> {
        let now = self.clock.monotonic();
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
        let buckets = TokenBuckets::new(3.0, 0.1, &Clock::system());
        assert!((0..3).all(|_| buckets.take("a", 1.0).is_ok()));
        assert_eq!(buckets.take("a", 1.0), Err(10));
        assert!(buckets.take("b", 1.0).is_ok(), "another key has its own bucket");
    }

    #[test]
    fn the_number_of_buckets_is_bounded() {
        let buckets = TokenBuckets::new(3.0, 0.1, &Clock::system());
        (0..3 * BUCKETS_MAX).for_each(|n| assert!(buckets.take(&n.to_string(), 1.0).is_ok()));
        assert!(buckets.levels.lock().expect("no panic").len() <= BUCKETS_MAX);
    }
}
