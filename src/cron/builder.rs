//! The builder of a cron rule.

use std::time::Duration;

use crate::client::Duly;
use crate::cron::{CronRule, Crons, Missed, Overlap};
use crate::error::Result;
use crate::job::push::Push;
use crate::store::CronRecord;

/// A cron rule under construction; created by [`Duly::cron`].
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use duly::{Duly, Push, cron::{Missed, Overlap}};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> duly::Result<()> {
/// # let duly = Duly::open(":memory:").await?;
/// let rule = duly.cron("report", "0 3 * * *")
///     .tz("Europe/Berlin")
///     .missed(Missed::Once)
///     .overlap(Overlap::Skip)
///     .jitter(Duration::from_secs(60))
///     .push(Push::new("report", "{}").max_attempts(5))
///     .await?;
/// assert_eq!(rule.rule.tz, "Europe/Berlin");
/// # Ok(())
/// # }
/// ```
#[must_use = "call `push`"]
#[derive(Debug)]
pub struct Cron {
    duly: Duly,
    name: String,
    pattern: String,
    tz: Option<String>,
    missed: Missed,
    overlap: Overlap,
    jitter: Duration,
}

impl Cron {
    /// Sets the time zone of the pattern (default UTC).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn example(duly: duly::Duly) -> duly::cron::Cron {
    /// duly.cron("report", "0 3 * * *").tz("Europe/Berlin")
    /// # }
    /// ```
    pub fn tz(mut self, tz: impl Into<String>) -> Self {
        self.tz = Some(tz.into());
        self
    }

    /// Sets the policy for ticks that no node fired in time (default: once).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn example(duly: duly::Duly) -> duly::cron::Cron {
    /// duly.cron("report", "0 3 * * *").missed(duly::cron::Missed::All(7))
    /// # }
    /// ```
    pub fn missed(mut self, missed: Missed) -> Self {
        self.missed = missed;
        self
    }

    /// Sets the policy for a tick while the job of an earlier tick is unfinished (default: allow).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn example(duly: duly::Duly) -> duly::cron::Cron {
    /// duly.cron("sync", "*/5 * * * *").overlap(duly::cron::Overlap::Skip)
    /// # }
    /// ```
    pub fn overlap(mut self, overlap: Overlap) -> Self {
        self.overlap = overlap;
        self
    }

    /// Sets the maximum delay of a job after its tick, to spread rules with the same time.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn example(duly: duly::Duly) -> duly::cron::Cron {
    /// duly.cron("report", "@hourly").jitter(std::time::Duration::from_secs(300))
    /// # }
    /// ```
    pub fn jitter(mut self, jitter: Duration) -> Self {
        self.jitter = jitter;
        self
    }

    /// Stores the rule, which pushes this job at each of its times from now on.
    ///
    /// Storing the same rule again is a no-op. A different rule with the same name replaces it and keeps its due tick.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Invalid`](crate::Error::Invalid) if the name, the pattern, the zone or the job is invalid, or if the
    /// job has an id, a due time or a unique key that does not come from [`Args::defaults`](crate::Args::defaults).
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, Push};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let store_rule = || duly.cron("report", "0 3 * * *").push(Push::new("report", "{}"));
    /// let revision = store_rule().await?.revision;
    /// assert_eq!(store_rule().await?.revision, revision, "the same rule again changes nothing");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn push(self, job: impl Into<Push>) -> Result<CronRecord> {
        let rule = CronRule::new(self.name, self.pattern, job)?;
        let rule = rule.missed(self.missed).overlap(self.overlap).jitter(self.jitter);
        self.duly
            .crons()
            .put(match self.tz {
                Some(tz) => rule.tz(tz),
                None => rule,
            })
            .await
    }
}

impl Duly {
    /// Starts a rule that pushes a job at each time of a pattern. [`Cron::push`] completes and stores it.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, Push};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let rule = duly.cron("report", "0 3 * * *").tz("Europe/Berlin").push(Push::new("report", "{}")).await?;
    /// assert!(rule.next.is_some());
    /// # Ok(())
    /// # }
    /// ```
    pub fn cron(&self, name: impl Into<String>, pattern: impl Into<String>) -> Cron {
        Cron {
            duly: self.clone(),
            name: name.into(),
            pattern: pattern.into(),
            tz: None,
            missed: Missed::default(),
            overlap: Overlap::default(),
            jitter: Duration::ZERO,
        }
    }

    /// Returns a handle to the cron rules of the store: list, change, pause and trigger them.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, Push};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// # duly.cron("report", "0 3 * * *").push(Push::new("report", "{}")).await?;
    /// duly.crons().pause("report").await?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn crons(&self) -> Crons<'_> {
        Crons::new(self)
    }
}
