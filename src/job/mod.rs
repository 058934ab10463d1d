//! What a job is: pure data, no clock, no store.

pub(crate) mod filter;
pub(crate) mod fingerprint;
pub(crate) mod push;
pub(crate) mod retry;

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::NodeId;
use crate::error::Error;

/// A job's name in its queue: made by whoever pushes it, so that a push can be repeated safely.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobId(Uuid);

impl JobId {
    /// A fresh id that sorts by the time it was made (UUID version 7).
    #[must_use]
    pub fn fresh() -> Self {
        JobId(Uuid::now_v7())
    }

    /// The id that belongs to a name of your own, such as `"invoice:7"`: the same name gives the same id.
    ///
    /// Pushing with it makes the push idempotent without keeping the id anywhere.
    #[must_use]
    pub fn from_name(name: &str) -> Self {
        const NAMES: Uuid = Uuid::from_u128(0x6475_6c79_0000_5000_8000_6a6f_6220_6964);
        JobId(Uuid::new_v5(&NAMES, name.as_bytes()))
    }

    /// The id as its 16 bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }

    /// The id with these 16 bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        JobId(Uuid::from_bytes(bytes))
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

impl fmt::Debug for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
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

/// Among ready jobs of a queue, those of a higher priority always go first.
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
    /// All priorities, the most urgent first.
    pub const ALL: [Priority; 4] = [Priority::Critical, Priority::High, Priority::Normal, Priority::Low];

    /// The priority in one word.
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
            .find(|p| p.as_str() == text)
            .ok_or_else(|| Error::invalid("priority", format!("{text:?} is none of low, normal, high, critical")))
    }
}

/// Where a job is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum State {
    /// Waits for its due moment.
    Scheduled,
    /// May be claimed.
    Ready,
    /// Held by a node.
    Running,
    /// Its last attempt ended in an ack.
    Done,
    /// Given up: kept with its errors until somebody reschedules or removes it.
    Dead,
}

impl State {
    /// All states, in the order of a job's life.
    pub const ALL: [State; 5] = [State::Scheduled, State::Ready, State::Running, State::Done, State::Dead];

    /// The state in one word.
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

    /// Done or dead: no further attempt will come by itself.
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
        State::ALL.into_iter().find(|s| s.as_str() == text).ok_or_else(|| {
            Error::invalid("state", format!("{text:?} is none of scheduled, ready, running, done, dead"))
        })
    }
}

/// A number that grows with every claim and never goes back.
///
/// Pass it on to whatever a handler writes to, and refuse there what carries a smaller one:
/// so a late writer can be told from the present one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fence(pub u64);

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How an attempt ended. A handler may return one to say exactly what should happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done.
    Ack,
    /// Again after a while; counts as an attempt.
    Retry {
        /// How long to wait.
        after: Duration,
        /// Why, for the job's history.
        error: String,
    },
    /// Given up: the job is dead and keeps its errors.
    Bury {
        /// Why, for the job's history.
        error: String,
    },
    /// Again after a while; does not count as an attempt.
    Release {
        /// How long to wait; nothing puts it at the head of its queue.
        after: Duration,
    },
}

impl Outcome {
    /// Again after `after`, counted as an attempt.
    #[must_use]
    pub fn retry(after: Duration, error: impl Into<String>) -> Self {
        Outcome::Retry { after, error: error.into() }
    }

    /// Given up for this reason.
    #[must_use]
    pub fn bury(error: impl Into<String>) -> Self {
        Outcome::Bury { error: error.into() }
    }

    /// Again after `after`, not counted as an attempt.
    #[must_use]
    pub fn release(after: Duration) -> Self {
        Outcome::Release { after }
    }

    /// The outcome in one word.
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

/// A piece of work kept until it is done or dead. Written once, at the push.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Job {
    /// Its name in its queue.
    pub id: JobId,
    /// The lane it is in.
    pub queue: String,
    /// Names the handler that runs it.
    pub kind: String,
    /// What the handler gets, as JSON text; never looked into by a store.
    #[serde(serialize_with = "args_as_json")]
    pub args: String,
    /// Strict among ready jobs.
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
    /// At most one unfinished job of its queue has this key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unique: Option<String>,
    /// Words to find it by.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// The W3C trace context of whoever pushed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
}

/// The kind under which a job goes that this version cannot read: no handler has it, so it is given back.
pub(crate) const UNREADABLE_KIND: &str = "duly:unreadable";

/// A job in a node's hands.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeldJob {
    /// The job itself.
    pub job: Job,
    /// Which claim this is: a settle with an older one is refused.
    pub fence: Fence,
    /// The moment from which it could be claimed.
    pub due: SystemTime,
    /// Attempts that failed before this one.
    pub attempts: u32,
    /// How often a node died while it held this job.
    pub crashes: u32,
    /// The store's own number for the job: saves it a look-up at the settle.
    pub(crate) locator: i64,
}

impl HeldJob {
    /// Which attempt this is, from 1. Never overflows: a file that somebody has written to may say any number.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempts.saturating_add(1)
    }
}

/// One line of a job's history: an attempt that did not end in an ack.
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
    /// What the handler said, cut to a bounded length.
    pub error: String,
}

impl Failure {
    /// As much of an error as the history keeps, cut between characters.
    pub(crate) fn truncate_error(error: &str) -> &str {
        let mut end = error.len().min(crate::store::ERROR_BYTES_MAX);
        while !error.is_char_boundary(end) {
            end -= 1;
        }
        &error[..end]
    }
}

/// A job and what has become of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct JobRecord {
    /// The job itself.
    #[serde(flatten)]
    pub job: Job,
    /// Where it is in its life.
    pub state: State,
    /// The moment from which it may (or could) be claimed.
    #[serde(serialize_with = "crate::clock::as_micros")]
    pub due: SystemTime,
    /// Attempts that failed.
    pub attempts: u32,
    /// How often a node died while it held this job.
    pub crashes: u32,
    /// Who holds it, while it is running.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
    /// The fence of the claim it runs under.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fence: Option<Fence>,
    /// When it was done or buried.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "crate::clock::as_micros_option")]
    pub ended: Option<SystemTime>,
    /// Its failed attempts, oldest first. Filled by `get`, empty in lists.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<Failure>,
    /// How far its last attempt has come, as far as it has said so. Filled by `get`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<JobProgress>,
    /// What its handler has given, as JSON text. Filled by `get`, for done jobs that are kept.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "result_as_json")]
    pub result: Option<String>,
    /// What its attempts have said, oldest first. Filled by `get`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub log: Vec<LogLine>,
}

/// How far an attempt has come.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JobProgress {
    /// From 0 to 1.
    pub done: f64,
    /// In words.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// When it was said.
    #[serde(serialize_with = "crate::clock::as_micros")]
    pub at: SystemTime,
}

// Never NaN: see `JobProgress::new`.
impl Eq for JobProgress {}

impl JobProgress {
    /// So far, with a note that is cut to a bounded length; what is no number is 0.
    #[must_use]
    pub fn new(done: f64, note: &str, at: SystemTime) -> Self {
        let done = if done.is_nan() { 0.0 } else { done.clamp(0.0, 1.0) };
        JobProgress {
            done,
            note: crate::store::truncate_text(note, crate::store::PROGRESS_NOTE_BYTES_MAX).to_owned(),
            at,
        }
    }
}

/// A line that an attempt has said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LogLine {
    /// When it was said, by its node's clock.
    #[serde(serialize_with = "crate::clock::as_micros")]
    pub at: SystemTime,
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// What it said.
    pub line: String,
}

fn result_as_json<S: serde::Serializer>(result: &Option<String>, serializer: S) -> Result<S::Ok, S::Error> {
    match result {
        Some(result) => args_as_json(result, serializer),
        None => serializer.serialize_none(),
    }
}

pub(crate) fn args_as_json<S: serde::Serializer>(args: &str, serializer: S) -> Result<S::Ok, S::Error> {
    // Kept as the text it is: numbers beyond 2^53 and the order of keys survive.
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

    /// A job of this kind in a node's hands, for the first time.
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
        HeldJob { job, fence: Fence(1), due: at, attempts: 0, crashes: 0, locator: 1 }
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
        fn any_text_parses_or_is_refused(text in ".*") {
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
