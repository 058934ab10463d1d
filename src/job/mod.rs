//! Jobs and their states: pure data, without clock or store.

pub(crate) mod args;
pub(crate) mod depth;
pub(crate) mod due;
pub(crate) mod filter;
pub(crate) mod fingerprint;
pub(crate) mod id;
mod json;
pub(crate) mod push;
mod push_getters;
pub(crate) mod retry;
pub(crate) mod run;
pub(crate) mod unique;

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

#[doc(hidden)]
pub use self::depth::nesting_depth;
pub use self::filter::{FilterTerm, FilterTime, JobOrder};
pub use self::id::{IdPart, JobId};
use self::json::result_as_json;
pub(crate) use self::json::{args_as_json, as_millis};
pub(crate) use self::push::UNREADABLE_KIND;
pub use self::push::{Due, check_name};
pub use self::run::{Failure, JobRun, RunOutcome};
pub use self::unique::{UniqueConflict, UniqueKey, UniqueScope};
use crate::NodeId;
use crate::error::Error;

/// The priority of a job. Ready jobs of a queue with a higher priority always run first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    /// After everything else.
    Low,
    /// The default.
    #[default]
    Normal,
    /// Before normal.
    High,
    /// Before everything else.
    Critical,
}

impl Priority {
    /// All priorities, most urgent first.
    pub const ALL: [Priority; 4] = [Priority::Critical, Priority::High, Priority::Normal, Priority::Low];

    /// Returns the priority in one word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Priority::Low => "low",
            Priority::Normal => "normal",
            Priority::High => "high",
            Priority::Critical => "critical",
        }
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Priority {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Priority::ALL.into_iter().find(|priority| priority.as_str() == text).ok_or_else(|| {
            Error::invalid("priority", format!("{text:?} is not a priority; use low, normal, high or critical"))
        })
    }
}

/// The state of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum State {
    /// Waits until it is due.
    Scheduled,
    /// Can be claimed.
    Ready,
    /// Held by a node.
    Running,
    /// Succeeded.
    Done,
    /// Buried: kept with its errors until it is rescheduled or removed.
    Dead,
    /// Ended by a cancel, which is not a failure. Kept like a dead job.
    Cancelled,
}

impl State {
    /// All states, in the order of a job's life cycle.
    pub const ALL: [State; 6] = [Self::Scheduled, Self::Ready, Self::Running, Self::Done, Self::Dead, Self::Cancelled];

    /// Returns the state in one word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            State::Scheduled => "scheduled",
            State::Ready => "ready",
            State::Running => "running",
            State::Done => "done",
            State::Dead => "dead",
            State::Cancelled => "cancelled",
        }
    }

    /// Returns whether the job is done, dead or cancelled, so that no further attempt follows.
    #[must_use]
    pub fn is_final(self) -> bool {
        matches!(self, State::Done | State::Dead | State::Cancelled)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for State {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        State::ALL.into_iter().find(|state| state.as_str() == text).ok_or_else(|| {
            Error::invalid(
                "state",
                format!("{text:?} is not a state; use scheduled, ready, running, done, dead or cancelled"),
            )
        })
    }
}

/// A number that grows with every claim and never decreases.
///
/// Pass it to systems that a handler writes to, and reject writes with a smaller fence there. This prevents a late
/// writer from overwriting a newer one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fence(pub u64);

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The outcome of an attempt. A handler may return one to decide what happens next: [`Outcome::retry`] has an example.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// Succeeded.
    Ack,
    /// Failed: try again after a delay. Counts as an attempt.
    Retry {
        /// The delay.
        after: Duration,
        /// The reason, for the job's history.
        error: String,
    },
    /// Failed for good: the job is dead and keeps its errors.
    Bury {
        /// The reason, for the job's history.
        error: String,
    },
    /// Put back: try again after a delay. Does not count as an attempt.
    Release {
        /// The delay. Zero puts the job at the head of its queue.
        after: Duration,
    },
}

impl Outcome {
    /// Returns an outcome that retries the job after a delay and counts as an attempt.
    ///
    /// # Examples
    ///
    /// ```
    /// use duly::Outcome;
    ///
    /// fn on_status(status: u16) -> Outcome {
    ///     match status {
    ///         429 => Outcome::retry(std::time::Duration::from_secs(60), "too many requests"),
    ///         _ => Outcome::Ack,
    ///     }
    /// }
    /// ```
    #[must_use]
    pub fn retry(after: Duration, error: impl Into<String>) -> Self {
        Outcome::Retry { after, error: error.into() }
    }

    /// Returns an outcome that buries the job.
    ///
    /// # Examples
    ///
    /// ```
    /// async fn mail(ctx: duly::Ctx) -> duly::Outcome {
    ///     match ctx.args::<String>() {
    ///         Ok(_address) => duly::Outcome::Ack,
    ///         Err(error) => duly::Outcome::bury(error.to_string()), // a retry would fail too
    ///     }
    /// }
    /// ```
    #[must_use]
    pub fn bury(error: impl Into<String>) -> Self {
        Outcome::Bury { error: error.into() }
    }

    /// Returns an outcome that puts the job back for a delay and does not count as an attempt.
    ///
    /// # Examples
    ///
    /// ```
    /// let later = duly::Outcome::release(std::time::Duration::from_secs(300)); // the printer is switched off
    /// assert_eq!(later.as_str(), "release");
    /// ```
    #[must_use]
    pub fn release(after: Duration) -> Self {
        Outcome::Release { after }
    }

    /// Returns the outcome in one word.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Outcome::Ack => "ack",
            Outcome::Retry { .. } => "retry",
            Outcome::Bury { .. } => "bury",
            Outcome::Release { .. } => "release",
        }
    }
}

/// A unit of work, kept until it is done, dead or cancelled. Written once, at the push.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Job {
    /// Its id.
    pub id: JobId,
    /// The queue it is in.
    pub queue: String,
    /// The kind, which selects the handler.
    pub kind: String,
    /// The args of the handler, as JSON text. Stores never parse them.
    #[serde(serialize_with = "args_as_json")]
    pub args: String,
    /// Its priority among ready jobs.
    pub priority: Priority,
    /// When it was pushed, by the store's clock.
    #[serde(serialize_with = "crate::clock::as_micros")]
    pub pushed: SystemTime,
    /// How many attempts may end in failure before the job is buried.
    pub max_attempts: u32,
    /// How long one attempt may run.
    #[serde(serialize_with = "as_millis")]
    pub timeout: Duration,
    /// How long the job stays in the store once it is done.
    #[serde(serialize_with = "as_millis")]
    pub keep: Duration,
    /// Its unique key: at most one unfinished job of the queue has it.
    #[serde(flatten)]
    pub unique: Option<UniqueKey>,
    /// Tags to find it by.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// The W3C trace context of the pusher.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
}

/// A claimed job.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeldJob {
    /// The job itself.
    pub job: Job,
    /// The fence of the claim: a settle with an older one is rejected.
    pub fence: Fence,
    /// When it became due.
    pub due: SystemTime,
    /// Attempts that failed before this one.
    pub attempts: u32,
    /// How often a node died while it held this job.
    pub crashes: u32,
    pub(crate) locator: Locator,
    /// The length of the args, which may have been dropped since: a settle subtracts it from the bytes of the queue.
    pub(crate) args_bytes: usize,
}

/// A store's own reference to a held job, which saves it a lookup at the settle. Only the store that made it can read
/// it: a row id in SQLite, packed counters on Redis, a position in the claim on Sidekiq's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Locator(i64);

#[cfg_attr(not(any(feature = "sqlite", feature = "redis")), allow(dead_code, reason = "only stores make and read it"))]
impl Locator {
    pub(crate) const fn new(value: i64) -> Self {
        Locator(value)
    }

    pub(crate) fn value(self) -> i64 {
        self.0
    }
}

impl HeldJob {
    /// Returns the number of this attempt, from 1. Saturates, since a modified file may contain any number.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempts.saturating_add(1)
    }

    /// Drops the args from memory. Everything else that a settle needs stays.
    #[cfg(any(feature = "sqlite", feature = "redis"))]
    pub(crate) fn drop_args(&mut self) {
        self.job.args = String::new();
    }
}

/// A job and its current state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct JobRecord {
    /// The job itself.
    #[serde(flatten)]
    pub job: Job,
    /// Its state.
    pub state: State,
    /// When it becomes or became due.
    #[serde(serialize_with = "crate::clock::as_micros")]
    pub due: SystemTime,
    /// Attempts that failed.
    pub attempts: u32,
    /// How often a node died while it held this job.
    pub crashes: u32,
    /// The node that holds it while it is running.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
    /// The fence of its current claim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fence: Option<Fence>,
    /// Whether it was cancelled while it is running: unless this attempt succeeds, the job ends cancelled with it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cancelling: bool,
    /// When it was done, buried or cancelled.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "crate::clock::as_micros_option")]
    pub ended: Option<SystemTime>,
    /// Its attempts, oldest first: what each did, and how it ended. Filled by `get`, empty in lists.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<JobRun>,
    /// The attempts that failed, oldest first. Filled by `get`, empty in lists.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<Failure>,
    /// The last reported progress. Filled by `get`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<JobProgress>,
    /// The result set by its handler, as JSON text. Filled by `get`, for done jobs that are kept.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "result_as_json")]
    pub result: Option<String>,
    /// The log lines of its attempts, oldest first. Filled by `get`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub log: Vec<LogLine>,
}

#[cfg(any(feature = "sqlite", feature = "redis"))]
impl JobRecord {
    /// Returns the record of a job without holder, end and details.
    pub(crate) fn new(job: Job, state: State, due: SystemTime, attempts: u32, crashes: u32) -> Self {
        let (runs, failures, log) = (Vec::new(), Vec::new(), Vec::new());
        let (node, fence, ended, progress, result) = (None, None, None, None, None);
        let cancelling = false;
        JobRecord {
            job,
            state,
            due,
            attempts,
            crashes,
            node,
            fence,
            cancelling,
            ended,
            runs,
            failures,
            progress,
            result,
            log,
        }
    }
}

/// The progress of an attempt.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct JobProgress {
    /// From 0 to 1.
    pub fraction: f64,
    /// A description.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// When it was reported.
    #[serde(serialize_with = "crate::clock::as_micros")]
    pub at: SystemTime,
}

// Never NaN: see `JobProgress::new`.
impl Eq for JobProgress {}

impl JobProgress {
    /// Returns a progress from 0 to 1 with a truncated message. NaN counts as 0.
    #[must_use]
    pub fn new(fraction: f64, message: &str, at: SystemTime) -> Self {
        let fraction = if fraction.is_nan() { 0.0 } else { fraction.clamp(0.0, 1.0) };
        JobProgress {
            fraction,
            message: crate::store::truncate_text(message, crate::store::PROGRESS_MESSAGE_BYTES_MAX).to_owned(),
            at,
        }
    }
}

/// A log line of an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LogLine {
    /// When it was written, by the node's clock.
    #[serde(serialize_with = "crate::clock::as_micros")]
    pub at: SystemTime,
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// The text.
    pub line: String,
}
#[cfg(test)]
pub(crate) mod tests;
