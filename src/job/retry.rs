//! The delay before the next attempt, from the number of failed ones. Pure logic.

use std::time::Duration;

/// The delays between attempts: exponential, with a maximum and jitter.
///
/// The default waits 1 s after the first failure and doubles the delay each time, up to 6 hours. Jitter makes each delay
/// up to a quarter longer or shorter. 25 attempts take about two and a half days.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use duly::Retry;
///
/// let retry = Retry::exponential(Duration::from_secs(5)).max(Duration::from_secs(60)).jitter(0.0);
/// let delays: Vec<u64> = (1..=5).map(|failed| retry.delay(failed, 0.5).as_secs()).collect();
/// assert_eq!(delays, [5, 10, 20, 40, 60]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Retry {
    base: Duration,
    factor: f64,
    max: Duration,
    jitter: f64,
    /// The delay grows with the fourth power of the failures; only `max` applies besides.
    fourth_power: bool,
}

impl Default for Retry {
    fn default() -> Self {
        Retry {
            base: Duration::from_secs(1),
            factor: 2.0,
            max: Duration::from_secs(6 * 3600),
            jitter: 0.25,
            fourth_power: false,
        }
    }
}

impl Retry {
    /// Waits `base`, then twice as long each time, up to six hours.
    ///
    /// # Examples
    ///
    /// ```
    /// let retry = duly::Retry::exponential(std::time::Duration::from_secs(5));
    /// ```
    #[must_use]
    pub fn exponential(base: Duration) -> Self {
        Retry { base, ..Retry::default() }
    }

    /// Waits the same time after every failure.
    ///
    /// # Examples
    ///
    /// ```
    /// let minute = std::time::Duration::from_secs(60);
    /// assert_eq!(duly::Retry::fixed(minute).delay(7, 0.5), minute);
    /// ```
    #[must_use]
    pub fn fixed(delay: Duration) -> Self {
        Retry { base: delay, factor: 1.0, max: delay, jitter: 0.0, fourth_power: false }
    }

    /// Waits `n^4 + 15` seconds after `n` earlier failures, and up to `9 (n + 1)` random seconds more. 26 attempts take
    /// about three weeks. Sidekiq does the same; this is the default on its keys.
    ///
    /// # Examples
    ///
    /// ```
    /// let retry = duly::Retry::fourth_power();
    /// assert_eq!([1, 2, 3].map(|failed| retry.delay(failed, 0.0).as_secs()), [15, 16, 31]);
    /// ```
    #[must_use]
    pub fn fourth_power() -> Self {
        Retry { max: Duration::MAX, fourth_power: true, ..Retry::default() }
    }

    /// Sets the factor between two delays, at least 1.
    ///
    /// # Examples
    ///
    /// ```
    /// let second = std::time::Duration::from_secs(1);
    /// let retry = duly::Retry::exponential(second).factor(3.0).jitter(0.0);
    /// assert_eq!(retry.delay(3, 0.5), 9 * second);
    /// ```
    #[must_use]
    pub fn factor(mut self, factor: f64) -> Self {
        self.factor = if factor.is_finite() { factor.max(1.0) } else { 1.0 };
        self
    }

    /// Sets the maximum delay.
    ///
    /// # Examples
    ///
    /// ```
    /// let (second, hour) = (std::time::Duration::from_secs(1), std::time::Duration::from_secs(3600));
    /// let retry = duly::Retry::exponential(second).max(hour).jitter(0.0);
    /// assert_eq!(retry.delay(20, 0.5), hour);
    /// ```
    #[must_use]
    pub fn max(mut self, max: Duration) -> Self {
        self.max = max;
        self
    }

    /// Sets the jitter, from 0 (none) to 1: each delay gets longer or shorter at random, by at most this share of it.
    ///
    /// # Examples
    ///
    /// ```
    /// let minute = std::time::Duration::from_secs(60);
    /// let retry = duly::Retry::fixed(minute).max(2 * minute).jitter(0.5);
    /// assert!((minute / 2..=minute * 3 / 2).contains(&retry.delay(1, 0.9)));
    /// ```
    #[must_use]
    pub fn jitter(mut self, share: f64) -> Self {
        self.jitter = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
        self
    }

    /// Returns the delay after the `failed`-th failure (from 1). `random` in 0..1 selects the jitter.
    ///
    /// # Examples
    ///
    /// ```
    /// let retry = duly::Retry::default().jitter(0.0);
    /// assert_eq!([1, 2, 3].map(|failed| retry.delay(failed, 0.5).as_secs()), [1, 2, 4]);
    /// ```
    #[must_use]
    pub fn delay(&self, failed: u32, random: f64) -> Duration {
        if self.fourth_power {
            let before = u64::from(failed.saturating_sub(1));
            let spread = (random.clamp(0.0, 0.999_999) * 10.0) as u64 * (before + 1);
            return Duration::from_secs(before.saturating_pow(4).saturating_add(15 + spread)).min(self.max);
        }
        let max = self.max.as_secs_f64();
        let exponent = i32::try_from(failed.saturating_sub(1)).unwrap_or(i32::MAX);
        let plain = (self.base.as_secs_f64() * self.factor.powi(exponent)).min(max);
        let spread = plain * self.jitter * (random.clamp(0.0, 1.0) * 2.0 - 1.0);
        Duration::try_from_secs_f64((plain + spread).clamp(0.0, max)).unwrap_or(self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn delay_doubles_up_to_max() {
        let retry = Retry::exponential(Duration::from_secs(1)).jitter(0.0);
        let secs: Vec<u64> = [1, 2, 3, 14, 15, 16, 25].map(|n| retry.delay(n, 0.5).as_secs()).to_vec();
        assert_eq!(secs, [1, 2, 4, 8192, 16384, 21600, 21600]);
    }

    #[test]
    fn fourth_power_delays_match_sidekiq() {
        let range = |failed| [0.0, 1.0].map(|random| Retry::fourth_power().delay(failed, random).as_secs());
        assert_eq!([1, 2, 5, 25].map(range), [[15, 24], [16, 34], [271, 316], [331_791, 332_016]]);
    }

    proptest! {
        #[test]
        fn stays_within_its_bounds(
            base in 0u64..100_000, factor in -5.0f64..50.0, max in 0u64..1_000_000,
            jitter in -1.0f64..3.0, failed in any::<u32>(), random in any::<f64>(),
        ) {
            let max = Duration::from_millis(max);
            let retry = Retry::exponential(Duration::from_millis(base)).factor(factor).max(max).jitter(jitter);
            prop_assert!(retry.delay(failed, random) <= max);
        }

        #[test]
        fn without_jitter_never_shrinks(base in 1u64..10_000, failed in 1u32..u32::MAX) {
            let retry = Retry::exponential(Duration::from_millis(base)).jitter(0.0);
            prop_assert!(retry.delay(failed + 1, 0.0) >= retry.delay(failed, 0.0));
        }
    }
}
