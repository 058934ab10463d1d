//! Jobs and their states: pure data, without clock or store.

pub(crate) mod args;
pub(crate) mod filter;
pub(crate) mod fingerprint;
pub(crate) mod push;
pub(crate) mod retry;

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

pub use self::filter::{FilterTerm, FilterTime};
pub use self::push::{Due, UniqueConflict, check_name};
use crate::NodeId;
use crate::error::Error;
use crate::uuid_id::uuid_id;

/// The id of a job. The pusher chooses it, so that a push can be repeated safely.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobId(Uuid);
uuid_id!(JobId);

impl JobId {
    /// Returns the id derived from a name of your own, such as `"invoice:7"`. The same name always gives the same id.
    ///
    /// A push with such an id is idempotent without storing the id anywhere.
    #[must_use]
    pub fn from_name(name: &str) -> Self {
        const NAMESPACE: Uuid = Uuid::from_u128(0x6475_6c79_0000_5000_8000_6a6f_6220_6964);
        JobId(Uuid::new_v5(&NAMESPACE, name.as_bytes()))
    }
}

impl FromStr for JobId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Uuid::parse_str(text).map(JobId).map_err(|_| {
            let shown: String = text.chars().take(40).collect();
            Error::invalid("id", format!("{shown:?} is not a job id; ids are UUIDs, as printed by push"))
        })
    }
}

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
        Priority::ALL
            .into_iter()
            .find(|priority| priority.as_str() == text)
            .ok_or_else(|| Error::invalid("priority", format!("{text:?} is none of low, normal, high and critical")))
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
}

impl State {
    /// All states, in the order of a job's life cycle.
    pub const ALL: [State; 5] = [State::Scheduled, State::Ready, State::Running, State::Done, State::Dead];

    /// Returns the state in one word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            State::Scheduled => "scheduled",
            State::Ready => "ready",
            State::Running => "running",
            State::Done => "done",
            State::Dead => "dead",
        }
    }

    /// Returns whether the job is done or dead, so that no further attempt follows.
    #[must_use]
    pub fn is_final(self) -> bool {
        matches!(self, State::Done | State::Dead)
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
            Error::invalid("state", format!("{text:?} is none of scheduled, ready, running, done and dead"))
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

/// The outcome of an attempt. A handler may return one to decide what happens next.
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
    #[must_use]
    pub fn retry(after: Duration, error: impl Into<String>) -> Self {
        Outcome::Retry { after, error: error.into() }
    }

    /// Returns an outcome that buries the job.
    #[must_use]
    pub fn bury(error: impl Into<String>) -> Self {
        Outcome::Bury { error: error.into() }
    }

    /// Returns an outcome that puts the job back for a delay and does not count as an attempt.
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

/// A unit of work, kept until it is done or dead. Written once, at the push.
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
    /// Unique key: at most one unfinished job of the queue has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unique: Option<String>,
    /// Tags to find it by.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// The W3C trace context of the pusher.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
}

/// The kind of a job that this version cannot read. No handler has it, so the job is released.
pub(crate) const UNREADABLE_KIND: &str = "duly:unreadable";

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
}

/// An entry of a job's history: an attempt that did not end in an ack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Failure {
    /// When it was recorded, by the store's clock.
    #[serde(serialize_with = "crate::clock::as_micros")]
    pub at: SystemTime,
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// The node that held the job.
    pub node: NodeId,
    /// The error of the handler, truncated.
    pub error: String,
}

impl Failure {
    /// Truncates an error to the length that the history keeps, at a character boundary.
    pub(crate) fn truncate_error(error: &str) -> &str {
        let mut end = error.len().min(crate::store::ERROR_BYTES_MAX);
        while !error.is_char_boundary(end) {
            end -= 1;
        }
        &error[..end]
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
    /// When it was done or buried.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "crate::clock::as_micros_option")]
    pub ended: Option<SystemTime>,
    /// Its failed attempts, oldest first. Filled by `get`, empty in lists.
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
        let (failures, log) = (Vec::new(), Vec::new());
        let (node, fence, ended, progress, result) = (None, None, None, None, None);
        JobRecord { job, state, due, attempts, crashes, node, fence, ended, failures, progress, result, log }
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

fn result_as_json<S: serde::Serializer>(result: &Option<String>, serializer: S) -> Result<S::Ok, S::Error> {
    match result {
        Some(result) => args_as_json(result, serializer),
        None => serializer.serialize_none(),
    }
}

pub(crate) fn args_as_json<S: serde::Serializer>(args: &str, serializer: S) -> Result<S::Ok, S::Error> {
    // Kept as text, so that numbers beyond 2^53 and the order of keys survive.
    match serde_json::value::RawValue::from_string(args.to_owned()) {
        Ok(raw) => raw.serialize(serializer),
        Err(_) => args.serialize(serializer),
    }
}

pub(crate) fn as_millis<S: serde::Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    (u64::try_from(time.as_millis()).unwrap_or(u64::MAX)).serialize(serializer)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns a job of this kind, claimed for the first time.
    pub(crate) fn held_job(kind: &str) -> HeldJob {
        let at = SystemTime::UNIX_EPOCH;
        let job = Job {
            id: JobId::fresh(),
            queue: "default".into(),
            kind: kind.into(),
            args: "null".into(),
            priority: Priority::Normal,
            pushed: at,
            max_attempts: 1,
            timeout: Duration::from_secs(60),
            keep: Duration::ZERO,
            unique: None,
            tags: Vec::new(),
            traceparent: None,
        };
        HeldJob { job, fence: Fence(1), due: at, attempts: 0, crashes: 0, locator: Locator::new(1) }
    }

    #[test]
    fn same_name_gives_same_id() {
        assert_eq!(JobId::from_name("invoice:7"), JobId::from_name("invoice:7"));
        assert_ne!(JobId::from_name("invoice:7"), JobId::from_name("invoice:8"));
    }

    #[test]
    fn higher_priority_compares_greater() {
        assert!(Priority::Critical > Priority::High && Priority::Normal > Priority::Low);
    }

    proptest! {
        #[test]
        fn any_text_parses_or_is_rejected(text in ".*") {
            let _ = text.parse::<JobId>();
            let _ = text.parse::<Priority>();
            let _ = text.parse::<State>();
        }

        #[test]
        fn errors_are_cut_between_characters(text in "\\PC{0,3000}") {
            let cut = Failure::truncate_error(&text);
            prop_assert!(cut.len() <= crate::store::ERROR_BYTES_MAX && text.starts_with(cut));
        }

        #[test]
        fn ids_survive_their_text(bytes in any::<[u8; 16]>()) {
            let id = JobId::from_bytes(bytes);
            prop_assert_eq!(id.to_string().parse::<JobId>().expect("its own text"), id);
        }
    }
}
