//! The only file that reads a clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Serialize, Serializer};

/// Microseconds: since 1970 for moments, since the start of the machine for beats.
pub(crate) type Micros = i64;

/// Where "now" comes from: the machine, or a test that moves the time itself.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    /// Microseconds since 1970 that the test has set; `None` is the machine's clock.
    manual: Option<Arc<AtomicI64>>,
}

impl Clock {
    /// The machine's clock.
    #[must_use]
    pub fn system() -> Self {
        Clock::default()
    }

    /// A clock that stands at 2030-01-01 until [`Clock::advance`] moves it. Clones share the time.
    #[must_use]
    pub fn manual() -> Self {
        const START: Micros = 1_893_456_000_000_000;
        Clock { manual: Some(Arc::new(AtomicI64::new(START))) }
    }

    /// Moves a manual clock on. The machine's clock cannot be moved: there it does nothing.
    pub fn advance(&self, by: Duration) {
        if let Some(now) = &self.manual {
            now.fetch_add(micros(by), Ordering::SeqCst);
        }
    }

    /// The present moment.
    #[must_use]
    pub fn now(&self) -> SystemTime {
        from_micros(self.now_micros())
    }

    /// Whether a test moves this clock.
    #[must_use]
    pub fn is_manual(&self) -> bool {
        self.manual.is_some()
    }

    /// Returns the time since an arbitrary point. It never steps, and includes the time for which the machine was suspended.
    #[must_use]
    pub fn monotonic(&self) -> Duration {
        Duration::from_micros(self.since_boot().unsigned_abs())
    }

    /// Microseconds since 1970.
    pub(crate) fn now_micros(&self) -> Micros {
        match &self.manual {
            Some(now) => now.load(Ordering::SeqCst),
            None => to_micros(SystemTime::now()),
        }
    }

    /// Microseconds on a clock that never steps and goes on while the machine sleeps:
    /// the one to compare beats of processes on one machine by.
    pub(crate) fn since_boot(&self) -> Micros {
        match &self.manual {
            Some(now) => now.load(Ordering::SeqCst),
            None => boot_micros(),
        }
    }
}

#[cfg(all(any(feature = "sqlite", feature = "redis"), target_os = "linux"))]
fn boot_micros() -> Micros {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    time.tv_sec * 1_000_000 + time.tv_nsec / 1_000
}

#[cfg(not(all(any(feature = "sqlite", feature = "redis"), target_os = "linux")))]
fn boot_micros() -> Micros {
    use std::sync::OnceLock;
    use std::time::Instant;
    // Only comparable within one process: elsewhere a dead process is told by its file lock alone.
    static START: OnceLock<Instant> = OnceLock::new();
    micros(START.get_or_init(Instant::now).elapsed())
}

/// The present moment for timers: never steps, cannot be moved by a test.
pub(crate) fn monotonic_now() -> tokio::time::Instant {
    tokio::time::Instant::now()
}

/// A duration in microseconds, at most a few hundred thousand years.
pub(crate) fn micros(time: Duration) -> Micros {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX / 4).min(i64::MAX / 4)
}

/// A moment as microseconds since 1970; before 1970 is negative.
pub(crate) fn to_micros(moment: SystemTime) -> Micros {
    match moment.duration_since(UNIX_EPOCH) {
        Ok(since) => micros(since),
        Err(before) => -micros(before.duration()),
    }
}

/// The moment so many microseconds after 1970.
pub(crate) fn from_micros(at: Micros) -> SystemTime {
    let distance = Duration::from_micros(at.unsigned_abs());
    let moment = if at < 0 { UNIX_EPOCH.checked_sub(distance) } else { UNIX_EPOCH.checked_add(distance) };
    moment.unwrap_or(UNIX_EPOCH)
}

pub(crate) fn as_micros<S: Serializer>(moment: &SystemTime, s: S) -> Result<S::Ok, S::Error> {
    to_micros(*moment).serialize(s)
}

pub(crate) fn as_micros_option<S: Serializer>(moment: &Option<SystemTime>, s: S) -> Result<S::Ok, S::Error> {
    moment.map(to_micros).serialize(s)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn manual_clock_moves_only_when_advanced() {
        let clock = Clock::manual();
        let before = clock.clone().now();
        clock.advance(Duration::from_secs(5));
        assert_eq!(clock.now(), before + Duration::from_secs(5));
    }

    proptest! {
        #[test]
        fn moments_survive_the_way_to_micros_and_back(at in -1_000_000_000_000_000i64..4_000_000_000_000_000) {
            prop_assert_eq!(to_micros(from_micros(at)), at);
        }

        #[test]
        fn no_duration_overflows(secs in any::<u64>(), nanos in 0u32..1_000_000_000) {
            prop_assert!(micros(Duration::new(secs, nanos)) >= 0);
        }
    }
}
