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
    /// `None` means the system clock.
    manual: Option<Arc<ManualTime>>,
}

/// The time of a manual clock, in microseconds.
#[derive(Debug)]
struct ManualTime {
    /// Since 1970.
    wall: AtomicI64,
    /// Monotonic.
    uptime: AtomicI64,
}

impl Clock {
    /// Returns the system clock.
    #[must_use]
    pub fn system() -> Self {
        Clock::default()
    }

    /// Returns a clock that stays at 2030-01-01 until [`Clock::advance`] is called. Clones share the time.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Clock, Duly};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// let clock = Clock::manual();
    /// let duly = Duly::builder(":memory:").clock(clock.clone()).open().await?;
    /// clock.advance(std::time::Duration::from_secs(3600));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn manual() -> Self {
        const START: Micros = 1_893_456_000_000_000;
        Clock::manual_at(from_micros(START))
    }

    /// Returns a clock that stays at this time until [`Clock::advance`] is called. Clones share the time.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    /// use duly::Clock;
    ///
    /// let new_year_2027 = SystemTime::UNIX_EPOCH + Duration::from_secs(1_798_761_600);
    /// let clock = Clock::manual_at(new_year_2027);
    /// clock.advance(Duration::from_secs(1));
    /// assert_eq!(clock.now(), new_year_2027 + Duration::from_secs(1));
    /// ```
    #[must_use]
    pub fn manual_at(time: SystemTime) -> Self {
        let start = to_micros(time);
        Clock { manual: Some(Arc::new(ManualTime { wall: start.into(), uptime: start.into() })) }
    }

    /// Advances a manual clock. Does nothing on the system clock.
    ///
    /// See [`Clock::manual_at`] for an example.
    pub fn advance(&self, by: Duration) {
        if let Some(now) = &self.manual {
            now.wall.fetch_add(micros(by), Ordering::SeqCst);
            now.uptime.fetch_add(micros(by), Ordering::SeqCst);
        }
    }

    /// Sets the wall time of a manual clock, forward or back, as an operator or a time server does. Monotonic time is
    /// not affected. Does nothing on the system clock.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use duly::Clock;
    ///
    /// let clock = Clock::manual();
    /// let (before, hour) = (clock.now(), Duration::from_secs(3600));
    /// clock.set(before - hour);
    /// assert_eq!(clock.now(), before - hour);
    /// ```
    pub fn set(&self, to: SystemTime) {
        if let Some(now) = &self.manual {
            now.wall.store(to_micros(to), Ordering::SeqCst);
        }
    }

    /// Returns the current time. [`Clock::manual_at`] has an example.
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
            Some(now) => now.wall.load(Ordering::SeqCst),
            None => to_micros(SystemTime::now()),
        }
    }

    /// Returns microseconds on the monotonic clock of the system. On Linux and macOS it counts while the machine sleeps.
    /// Processes on one machine compare heartbeats by it.
    pub(crate) fn since_boot(&self) -> Micros {
        match &self.manual {
            Some(now) => now.uptime.load(Ordering::SeqCst),
            None => boot_micros(),
        }
    }
}

/// A monotonic clock of the system, which all its processes share.
#[cfg(all(any(feature = "sqlite", feature = "redis"), unix))]
#[derive(Debug, PartialEq, Eq)]
enum SystemClock {
    BootTime,
    Monotonic,
}

/// Returns the clock to compare heartbeats by. It must count while the machine sleeps, so that a lease ends meanwhile:
/// CLOCK_MONOTONIC does so on macOS, and stops on Linux.
#[cfg(all(any(feature = "sqlite", feature = "redis"), unix))]
fn clock_since_boot(system: &str) -> SystemClock {
    match system {
        "linux" | "android" => SystemClock::BootTime,
        _ => SystemClock::Monotonic,
    }
}

#[cfg(all(any(feature = "sqlite", feature = "redis"), unix))]
fn boot_micros() -> Micros {
    let clock = match clock_since_boot(std::env::consts::OS) {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        SystemClock::BootTime => rustix::time::ClockId::Boottime,
        _ => rustix::time::ClockId::Monotonic,
    };
    let time = rustix::time::clock_gettime(clock);
    time.tv_sec * 1_000_000 + time.tv_nsec / 1_000
}

/// Without a store that processes share, no other process sees this time.
#[cfg(not(all(any(feature = "sqlite", feature = "redis"), unix)))]
fn boot_micros() -> Micros {
    use std::sync::OnceLock;
    use std::time::Instant;
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

    #[cfg(all(any(feature = "sqlite", feature = "redis"), unix))]
    #[test]
    fn clock_since_boot_counts_while_the_machine_sleeps() {
        assert_eq!(clock_since_boot("linux"), SystemClock::BootTime);
        assert_eq!(clock_since_boot("macos"), SystemClock::Monotonic);
        assert_eq!(clock_since_boot("freebsd"), SystemClock::Monotonic);
    }

    #[test]
    fn manual_clock_moves_only_when_advanced() {
        let clock = Clock::manual();
        let before = clock.clone().now();
        clock.advance(Duration::from_secs(5));
        assert_eq!(clock.now(), before + Duration::from_secs(5));
    }

    #[test]
    fn set_moves_only_the_wall_time() {
        let clock = Clock::manual();
        let (wall, monotonic) = (clock.now(), clock.monotonic());
        clock.set(wall - Duration::from_secs(3_600));
        assert_eq!((clock.now(), clock.monotonic()), (wall - Duration::from_secs(3_600), monotonic));
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
