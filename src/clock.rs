//! The clock: no other file reads the time.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Serialize, Serializer};

/// Microseconds: since 1970 for points in time, since boot for heartbeats.
pub(crate) type Micros = i64;

/// The source of the current time: the system clock, or a manual clock that a test advances.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    /// Microseconds since 1970, set by the test; `None` means the system clock.
    manual: Option<Arc<AtomicI64>>,
}

impl Clock {
    /// Returns the system clock.
    #[must_use]
    pub fn system() -> Self {
        Clock::default()
    }

    /// Returns a clock that stays at 2030-01-01 until [`Clock::advance`] is called. Clones share the time.
    #[must_use]
    pub fn manual() -> Self {
        const START: Micros = 1_893_456_000_000_000;
        Clock { manual: Some(Arc::new(AtomicI64::new(START))) }
    }

    /// Advances a manual clock. Does nothing on the system clock.
    pub fn advance(&self, by: Duration) {
        if let Some(now) = &self.manual {
            now.fetch_add(micros(by), Ordering::SeqCst);
        }
    }

    /// Returns the current time.
    #[must_use]
    pub fn now(&self) -> SystemTime {
        from_micros(self.now_micros())
    }

    /// Returns whether this is a manual clock.
    #[must_use]
    pub fn is_manual(&self) -> bool {
        self.manual.is_some()
    }

    /// Returns the time since an arbitrary point. It is monotonic and includes the time the machine was suspended.
    #[must_use]
    pub fn monotonic(&self) -> Duration {
        Duration::from_micros(self.since_boot().unsigned_abs())
    }

    /// Returns the microseconds since 1970.
    pub(crate) fn now_micros(&self) -> Micros {
        match &self.manual {
            Some(now) => now.load(Ordering::SeqCst),
            None => to_micros(SystemTime::now()),
        }
    }

    /// Returns microseconds on a monotonic clock that also counts while the machine is suspended.
    /// Processes on one machine compare heartbeats by it.
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
    // Only comparable within one process. On these platforms, only its file lock shows whether another process is dead.
    static START: OnceLock<Instant> = OnceLock::new();
    micros(START.get_or_init(Instant::now).elapsed())
}

/// Returns the current time for timers. It is monotonic and not affected by a manual clock.
pub(crate) fn monotonic_now() -> tokio::time::Instant {
    tokio::time::Instant::now()
}

/// Converts a duration to microseconds, capped at about 73,000 years.
pub(crate) fn micros(time: Duration) -> Micros {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX / 4).min(i64::MAX / 4)
}

/// Converts a point in time to microseconds since 1970; earlier times are negative.
pub(crate) fn to_micros(time: SystemTime) -> Micros {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => micros(since),
        Err(before) => -micros(before.duration()),
    }
}

/// Converts microseconds since 1970 to a point in time.
pub(crate) fn from_micros(micros: Micros) -> SystemTime {
    let distance = Duration::from_micros(micros.unsigned_abs());
    let time = if micros < 0 { UNIX_EPOCH.checked_sub(distance) } else { UNIX_EPOCH.checked_add(distance) };
    time.unwrap_or(UNIX_EPOCH)
}

pub(crate) fn as_micros<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    to_micros(*time).serialize(serializer)
}

pub(crate) fn as_micros_option<S: Serializer>(time: &Option<SystemTime>, serializer: S) -> Result<S::Ok, S::Error> {
    time.map(to_micros).serialize(serializer)
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
        fn time_survives_conversion_to_micros_and_back(micros in -1_000_000_000_000_000i64..4_000_000_000_000_000) {
            prop_assert_eq!(to_micros(from_micros(micros)), micros);
        }

        #[test]
        fn no_duration_overflows(secs in any::<u64>(), nanos in 0u32..1_000_000_000) {
            prop_assert!(micros(Duration::new(secs, nanos)) >= 0);
        }
    }
}
