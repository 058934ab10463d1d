//! Cron rules: their jobs, their pattern, and how they treat missed ticks and overlap. Pure data.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;

use super::plan::MISSED_TICKS_MAX;
use super::{Schedule, UTC};
use crate::clock::Micros;
use crate::error::{Error, Result};
use crate::job::push::{Due, Push, check_name};
use crate::job::{JobId, Priority};

/// Maximum length of the args of a rule, in bytes of JSON text. Many rules may fire in one request.
pub const CRON_ARGS_BYTES_MAX: usize = 64 * 1024;
/// Maximum jitter of a rule.
pub const JITTER_MAX: Duration = Duration::from_secs(24 * 3600);
/// The version of the JSON format in which stores keep a rule.
const FORMAT: u32 = 1;
/// Prefix of the unique keys of jobs that rules push. All kinds of the queue share them.
const UNIQUE_KEY_PREFIX: &str = "* cron:";
/// Prefix of the names from which the ids of these jobs derive.
const TICK_NAME_PREFIX: &str = "cron:";

/// The treatment of ticks that no node fired in time. [`Cron::missed`](crate::cron::Cron::missed) has an example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Missed {
    /// They are skipped.
    Skip,
    /// Only the newest of them fires.
    #[default]
    Once,
    /// This many of the newest fire, each as one job; at most [`MISSED_TICKS_MAX`](crate::bounds::MISSED_TICKS_MAX).
    All(u32),
}

/// The behaviour of a tick while the job of an earlier tick is unfinished.
/// [`Cron::overlap`](crate::cron::Cron::overlap) has an example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Overlap {
    /// Pushes its job anyway.
    #[default]
    Allow,
    /// Is skipped.
    Skip,
    /// Waits until that job has finished. At most one tick waits; further ticks are skipped.
    Queue,
    /// Removes that job, or cancels it if it is running, and then pushes its own.
    Replace,
}

impl Overlap {
    /// All variants.
    pub const ALL: [Overlap; 4] = [Overlap::Allow, Overlap::Skip, Overlap::Queue, Overlap::Replace];

    /// Returns the variant in one word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Overlap::Allow => "allow",
            Overlap::Skip => "skip",
            Overlap::Queue => "queue",
            Overlap::Replace => "replace",
        }
    }
}

impl fmt::Display for Overlap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Overlap {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Overlap::ALL.into_iter().find(|overlap| overlap.as_str() == text);
        found.ok_or_else(|| {
            Error::invalid("overlap", format!("{text:?} is not an overlap policy; use allow, skip, queue or replace"))
        })
    }
}

impl fmt::Display for Missed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Missed::Skip => f.pad("skip"),
            Missed::Once => f.pad("once"),
            Missed::All(max) => f.pad(&format!("all:{max}")),
        }
    }
}

impl FromStr for Missed {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let all = |max: &str| max.parse().ok().filter(|max| (1..=MISSED_TICKS_MAX).contains(max)).map(Missed::All);
        match text {
            "skip" => Some(Missed::Skip),
            "once" => Some(Missed::Once),
            "all" => Some(Missed::All(MISSED_TICKS_MAX)),
            other => other.strip_prefix("all:").and_then(all),
        }
        .ok_or_else(|| {
            Error::invalid(
                "missed",
                format!("{text:?} is not a policy for missed ticks; use skip, once or all:N with N from 1 to {MISSED_TICKS_MAX}"),
            )
        })
    }
}

/// A rule that pushes a job at each time of a pattern.
///
/// # Examples
///
/// ```
/// use duly::Push;
/// use duly::cron::{CronRule, Overlap};
///
/// let rule = CronRule::new("report", "0 3 * * *", Push::new("report", "{}"))?.tz("Europe/Berlin").overlap(Overlap::Skip);
/// assert_eq!(rule.schedule()?.describe(), "Every day at 03:00.");
/// # Ok::<_, duly::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CronRule {
    /// Its name, unique in the store.
    pub name: String,
    /// The pattern: five fields, or six with seconds first.
    pub pattern: String,
    /// The time zone of the pattern.
    pub tz: String,
    /// The queue of its jobs. Nodes that work on this queue fire the rule.
    pub queue: String,
    /// The kind of its jobs.
    pub kind: String,
    /// The args of its jobs, as JSON text.
    #[serde(serialize_with = "crate::job::args_as_json")]
    pub args: String,
    /// The priority of its jobs.
    pub priority: Priority,
    /// How many attempts of a job may fail.
    pub max_attempts: u32,
    /// How long one attempt may run.
    #[serde(serialize_with = "crate::job::as_millis")]
    pub timeout: Duration,
    /// How long a job is kept once it is done; `None` means the default of the node that fires the rule.
    #[serde(serialize_with = "as_millis_option")]
    pub keep: Option<Duration>,
    /// Tags of its jobs.
    pub tags: Vec<String>,
    /// The treatment of ticks that no node fired in time.
    #[serde(serialize_with = "as_text")]
    pub missed: Missed,
    /// The behaviour of a tick while the job of an earlier tick is unfinished.
    #[serde(serialize_with = "as_text")]
    pub overlap: Overlap,
    /// Maximum delay of a job after its tick, to spread rules with the same time. Each tick has a fixed delay.
    #[serde(serialize_with = "crate::job::as_millis")]
    pub jitter: Duration,
}

impl CronRule {
    /// Returns a rule that pushes this job at each time of the pattern, in UTC unless [`CronRule::tz`] is set.
    ///
    /// The job must not have an id, a due time, a unique key or a trace context: each tick sets these itself. Those that
    /// come from [`Args::defaults`](crate::Args::defaults) are dropped; use [`CronRule::overlap`] instead of a unique key.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Invalid`] if the job is invalid or has one of these. The pattern is checked when the rule is stored.
    ///
    /// # Examples
    ///
    /// ```
    /// use duly::{Push, cron::CronRule};
    ///
    /// let rule = CronRule::new("report", "0 3 * * *", Push::new("report", "{}").queue("slow"))?;
    /// assert_eq!((rule.queue.as_str(), rule.tz.as_str()), ("slow", "UTC"));
    /// # Ok::<_, duly::Error>(())
    /// ```
    pub fn new(name: impl Into<String>, pattern: impl Into<String>, job: impl Into<Push>) -> Result<Self> {
        let job: Push = job.into().without_defaults_of_ticks();
        let reserved = |field: &str| {
            Err(Error::invalid("job", format!("must not have {field} in a cron rule; each tick sets it")))
        };
        if !job.has_fresh_id {
            return reserved("an id");
        }
        if job.due != Due::Now {
            return reserved("a due time");
        }
        if job.unique.is_some() {
            return reserved("a unique key (see overlap)");
        }
        if job.traceparent.is_some() {
            return reserved("a trace context");
        }
        job.check()?;
        Ok(CronRule {
            name: name.into(),
            pattern: pattern.into(),
            tz: UTC.to_owned(),
            queue: job.queue,
            kind: job.kind,
            args: job.args.unwrap_or_default().trim().to_owned(),
            priority: job.priority,
            max_attempts: job.max_attempts,
            timeout: job.timeout,
            keep: job.keep,
            tags: job.tags,
            missed: Missed::default(),
            overlap: Overlap::default(),
            jitter: Duration::ZERO,
        })
    }

    /// Sets the time zone of the pattern.
    ///
    /// # Examples
    ///
    /// ```
    /// use duly::{Push, cron::CronRule};
    ///
    /// let rule = CronRule::new("report", "0 3 * * *", Push::new("report", "{}"))?.tz("Europe/Berlin");
    /// assert_eq!(rule.schedule()?.zone_name(), "Europe/Berlin");
    /// # Ok::<_, duly::Error>(())
    /// ```
    #[must_use]
    pub fn tz(mut self, tz: impl Into<String>) -> Self {
        self.tz = tz.into();
        self
    }

    /// Sets the policy for ticks that no node fired in time (default: once).
    ///
    /// # Examples
    ///
    /// ```
    /// use duly::{Push, cron::{CronRule, Missed}};
    ///
    /// let rule = CronRule::new("report", "0 3 * * *", Push::new("report", "{}"))?.missed(Missed::All(7));
    /// assert_eq!(rule.missed, Missed::All(7)); // after a week without workers, one report per day
    /// # Ok::<_, duly::Error>(())
    /// ```
    #[must_use]
    pub fn missed(mut self, missed: Missed) -> Self {
        self.missed = missed;
        self
    }

    /// Sets the policy for a tick while the job of an earlier tick is unfinished (default: allow).
    ///
    /// # Examples
    ///
    /// ```
    /// use duly::{Push, cron::{CronRule, Overlap}};
    ///
    /// let rule = CronRule::new("report", "0 3 * * *", Push::new("report", "{}"))?.overlap(Overlap::Queue);
    /// assert_eq!(rule.overlap, Overlap::Queue); // a slow report delays the next one
    /// # Ok::<_, duly::Error>(())
    /// ```
    #[must_use]
    pub fn overlap(mut self, overlap: Overlap) -> Self {
        self.overlap = overlap;
        self
    }

    /// Sets the maximum delay of a job after its tick.
    ///
    /// # Examples
    ///
    /// ```
    /// use duly::{Push, cron::CronRule};
    ///
    /// let rule = CronRule::new("report", "0 3 * * *", Push::new("report", "{}"))?.jitter(std::time::Duration::from_secs(600));
    /// assert_eq!(rule.jitter.as_secs(), 600); // due between 3:00 and 3:10
    /// # Ok::<_, duly::Error>(())
    /// ```
    #[must_use]
    pub fn jitter(mut self, jitter: Duration) -> Self {
        self.jitter = jitter;
        self
    }

    /// Parses the pattern and the time zone.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Invalid`] if the pattern or the time zone is invalid.
    ///
    /// # Examples
    ///
    /// ```
    /// use duly::{Push, cron::CronRule};
    ///
    /// let rule = CronRule::new("report", "0 3 * * *", Push::new("report", "{}"))?;
    /// let next = rule.schedule()?.ticks_after(std::time::SystemTime::now()).next();
    /// assert!(next.is_some());
    /// # Ok::<_, duly::Error>(())
    /// ```
    pub fn schedule(&self) -> Result<Schedule> {
        Schedule::parse(&self.pattern, &self.tz)
    }

    /// Validates everything that does not depend on the store.
    pub(crate) fn check(&self) -> Result<Schedule> {
        check_name("cron", &self.name)?;
        if self.args.len() > CRON_ARGS_BYTES_MAX {
            let reason = format!("{} bytes; args of a rule have at most {CRON_ARGS_BYTES_MAX}", self.args.len());
            return Err(Error::invalid("args", reason));
        }
        if self.jitter > JITTER_MAX {
            return Err(Error::invalid("jitter", "must be at most 24 h"));
        }
        if let Missed::All(max) = self.missed
            && !(1..=MISSED_TICKS_MAX).contains(&max)
        {
            return Err(Error::invalid("missed", format!("all: must be from 1 to {MISSED_TICKS_MAX}")));
        }
        self.to_push().check()?;
        self.schedule()
    }

    /// Returns a job of this rule, without the parts that its tick sets.
    pub(crate) fn to_push(&self) -> Push {
        let mut push = Push::new(&self.kind, &self.args)
            .queue(&self.queue)
            .priority(self.priority)
            .max_attempts(self.max_attempts)
            .timeout(self.timeout)
            .tags(self.tags.iter().cloned());
        push.keep = self.keep;
        push.unique = (self.overlap != Overlap::Allow).then(|| cron_unique_key(&self.name));
        push
    }

    /// Serializes the rule for a store.
    pub(crate) fn to_json(&self) -> String {
        let args = RawValue::from_string(self.args.clone()).or_else(|_| RawValue::from_string("null".to_owned()));
        let stored = args.map(|args| StoredCronRule {
            format: FORMAT,
            name: self.name.clone(),
            pattern: self.pattern.clone(),
            tz: self.tz.clone(),
            queue: self.queue.clone(),
            kind: self.kind.clone(),
            args,
            priority: self.priority,
            max_attempts: self.max_attempts,
            timeout_ms: millis(self.timeout),
            keep_ms: self.keep.map(millis),
            tags: self.tags.clone(),
            missed: self.missed.to_string(),
            overlap: self.overlap.to_string(),
            jitter_ms: millis(self.jitter),
        });
        stored.and_then(|stored| serde_json::to_string(&stored)).unwrap_or_default()
    }

    /// Parses a stored rule. Returns `None` if a newer version wrote it, or if it is damaged.
    pub(crate) fn from_json(text: &str) -> Option<Self> {
        let stored: StoredCronRule = serde_json::from_str(text).ok()?;
        (stored.format == FORMAT).then_some(())?;
        Some(CronRule {
            name: stored.name,
            pattern: stored.pattern,
            tz: stored.tz,
            queue: stored.queue,
            kind: stored.kind,
            args: stored.args.get().to_owned(),
            priority: stored.priority,
            max_attempts: stored.max_attempts,
            timeout: Duration::from_millis(stored.timeout_ms),
            keep: stored.keep_ms.map(Duration::from_millis),
            tags: stored.tags,
            missed: stored.missed.parse().ok()?,
            overlap: stored.overlap.parse().ok()?,
            jitter: Duration::from_millis(stored.jitter_ms),
        })
    }
}

/// A rule as stored: JSON, to be readable for people.
#[derive(Serialize, Deserialize)]
struct StoredCronRule {
    format: u32,
    name: String,
    pattern: String,
    tz: String,
    queue: String,
    kind: String,
    args: Box<RawValue>,
    priority: Priority,
    max_attempts: u32,
    timeout_ms: u64,
    keep_ms: Option<u64>,
    tags: Vec<String>,
    missed: String,
    overlap: String,
    jitter_ms: u64,
}

/// Returns the unique key of the jobs of a rule that forbids overlap.
pub(crate) fn cron_unique_key(name: &str) -> String {
    format!("{UNIQUE_KEY_PREFIX}{name}")
}

/// Returns the rule with jobs that have this unique key.
pub(crate) fn rule_name_from_key(key: &str) -> Option<&str> {
    key.strip_prefix(UNIQUE_KEY_PREFIX)
}

/// Returns the id of the job of a tick. It does not depend on the node that fires it.
pub(crate) fn tick_job_id(name: &str, tick: Micros) -> JobId {
    JobId::from_name(&format!("{TICK_NAME_PREFIX}{name}:{tick}"))
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn as_millis_option<S: Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    time.map(millis).serialize(serializer)
}

fn as_text<S: Serializer>(value: &impl fmt::Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

#[cfg(test)]
mod tests;
