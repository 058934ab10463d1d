//! The due time of a job to be pushed, and its bounds.

use std::time::{Duration, SystemTime};

use crate::clock::{Micros, micros, to_micros};
use crate::error::{Error, Result};

/// The latest due time of a job, in microseconds since 1970: 2223-07-06. Later times lose microsecond precision on a
/// server, which stores them as floating-point numbers.
pub(crate) const DUE_MICROS_MAX: Micros = 8_000_000_000_000_000;
/// The longest delay of a job: 46,296 days.
pub(crate) const DELAY_MICROS_MAX: Micros = DUE_MICROS_MAX / 2;

/// When a job becomes due.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use duly::{Duly, Push, job::Due};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> duly::Result<()> {
/// # let duly = Duly::open(":memory:").await?;
/// let id = duly.push(Push::new("mail", "{}").after(Duration::from_secs(3600))).await?.id();
/// duly.jobs().reschedule(id, Due::Now).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Due {
    /// At once.
    #[default]
    Now,
    /// After this delay, by the store's clock. The pusher's clock does not matter.
    After(Duration),
    /// At this time.
    At(SystemTime),
}

impl Due {
    /// Returns an error if the due time is too late for a store to keep.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Invalid`] if a store could not keep the time.
    ///
    /// # Examples
    ///
    /// ```
    /// use duly::job::Due;
    ///
    /// assert!(Due::After(std::time::Duration::MAX).check().is_err());
    /// ```
    pub fn check(self) -> Result<()> {
        let reason = match self {
            Due::At(time) if to_micros(time) > DUE_MICROS_MAX => "too late; the latest possible due time is 2223-07-06",
            Due::After(delay) if micros(delay) > DELAY_MICROS_MAX => {
                "too late; the longest possible delay is 46296 days"
            }
            Due::Now | Due::After(_) | Due::At(_) => return Ok(()),
        };
        Err(Error::invalid("due", reason))
    }
}
