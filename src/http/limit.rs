//! How often somebody may ask: a bucket of tokens for each address or name, of which there are boundedly many.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::clock::{Clock, Micros};

/// Most addresses and names that are counted at a time; when there are more, the fullest buckets are forgotten.
const COUNTED_MAX: usize = 10_000;
/// So many wrong tokens from one address in a minute; then it waits.
const FAILURES_PER_MINUTE: u32 = 5;
/// So many refusals of one name are noted in the audit in an hour: it has room for thousands of entries,
/// which nobody who may change nothing must be able to push out.
const REFUSALS_NOTED_PER_HOUR: u32 = 20;

/// How much is left for whom.
pub(crate) struct Limits {
    requests: Buckets,
    failures: Buckets,
    refusals: Buckets,
}

impl Limits {
    pub(crate) fn new(rate: u32) -> Self {
        Limits {
            // A burst of two seconds' worth is no flood.
            requests: Buckets::new(f64::from(rate) * 2.0, f64::from(rate)),
            failures: Buckets::new(f64::from(FAILURES_PER_MINUTE), f64::from(FAILURES_PER_MINUTE) / 60.0),
            refusals: Buckets::new(f64::from(REFUSALS_NOTED_PER_HOUR), f64::from(REFUSALS_NOTED_PER_HOUR) / 3_600.0),
        }
    }

    /// Counts one request. `Err`: how many seconds until there is room for another.
    pub(crate) fn request(&self, whose: &str) -> Result<(), u32> {
        self.requests.take(whose, 1.0)
    }

    /// Whether this address may try a token at all.
    pub(crate) fn may_try(&self, address: &str) -> Result<(), u32> {
        self.failures.take(address, 0.0)
    }

    /// Somebody there has tried a token that is none.
    pub(crate) fn failed(&self, address: &str) {
        let _ = self.failures.take(address, 1.0);
    }

    /// Counts one refusal of this name. Whether it is still to be noted.
    pub(crate) fn refusal(&self, name: &str) -> bool {
        self.refusals.take(name, 1.0).is_ok()
    }
}

struct Buckets {
    size: f64,
    per_second: f64,
    left: Mutex<HashMap<String, (f64, Micros)>>,
}

impl Buckets {
    fn new(size: f64, per_second: f64) -> Self {
        Buckets { size, per_second, left: Mutex::default() }
    }

    fn take(&self, whose: &str, much: f64) -> Result<(), u32> {
        let now = Clock::system().since_boot();
        let mut all = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= COUNTED_MAX && !all.contains_key(whose) {
            all.retain(|_, (left, at)| self.filled(*left, *at, now) < self.size);
            // All of them are at it: then nobody's count is worth more than memory.
            if all.len() >= COUNTED_MAX {
                all.clear();
            }
        }
        let (left, at) = all.get(whose).copied().unwrap_or((self.size, now));
        let left = self.filled(left, at, now);
        if left < much.max(1.0) {
            return Err((((much.max(1.0) - left) / self.per_second).ceil() as u32).max(1));
        }
        if much > 0.0 {
            all.insert(whose.to_owned(), (left - much, now));
        }
        Ok(())
    }

    fn filled(&self, left: f64, at: Micros, now: Micros) -> f64 {
        (left + (now - at) as f64 / 1e6 * self.per_second).min(self.size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_gives_what_is_in_it_and_says_when_to_come_again() {
        let buckets = Buckets::new(3.0, 0.1);
        assert!((0..3).all(|_| buckets.take("a", 1.0).is_ok()));
        assert_eq!(buckets.take("a", 1.0), Err(10));
        assert!(buckets.take("b", 1.0).is_ok(), "others have their own");
    }

    #[test]
    fn what_is_counted_is_bounded() {
        let buckets = Buckets::new(3.0, 0.1);
        (0..3 * COUNTED_MAX).for_each(|n| assert!(buckets.take(&n.to_string(), 1.0).is_ok()));
        assert!(buckets.left.lock().expect("no panic").len() <= COUNTED_MAX);
    }
}
