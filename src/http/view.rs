//! How things look over HTTP: moments as RFC 3339 and as milliseconds since 1970, durations in milliseconds, ids as text.

use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::who::Who;
use crate::admin::token::Role;
use crate::clock::to_micros;
use crate::job::{Failure, Held, Job, JobProgress, LogLine, Record};
use crate::store::{LockRecord, QueueCounts};

/// A moment in RFC 3339, UTC, to the microsecond.
pub(crate) fn moment(at: SystemTime) -> String {
    jiff::Timestamp::from_microsecond(to_micros(at)).map_or_else(|_| "-".to_owned(), |at| at.to_string())
}

/// A moment as milliseconds since 1970.
pub(crate) fn moment_ms(at: SystemTime) -> i64 {
    to_micros(at) / 1_000
}

pub(crate) fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Text that is JSON, as it is: numbers beyond 2^53 and the order of keys survive.
pub(crate) fn raw(text: &str) -> Box<RawValue> {
    let quoted = || serde_json::value::to_raw_value(text).unwrap_or_else(|_| RawValue::NULL.to_owned());
    RawValue::from_string(text.to_owned()).unwrap_or_else(|_| quoted())
}

/// A job and what has become of it.
#[derive(Serialize, ToSchema)]
#[schema(as = Job)]
pub(crate) struct JobView {
    id: String,
    queue: String,
    kind: String,
    /// scheduled, ready, running, done or dead.
    state: &'static str,
    /// What the handler gets. Left out for roles below operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    args: Option<Box<RawValue>>,
    /// low, normal, high or critical.
    priority: &'static str,
    /// From when it may (or could) be claimed.
    due: String,
    due_ms: i64,
    pushed: String,
    pushed_ms: i64,
    /// When it was done or buried.
    #[serde(skip_serializing_if = "Option::is_none")]
    ended: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_ms: Option<i64>,
    /// Attempts that failed.
    attempts: u32,
    max_attempts: u32,
    /// How often a node died while it held this job.
    crashes: u32,
    timeout_ms: u64,
    keep_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    unique: Option<String>,
    tags: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<String>,
    /// Who holds it, while it is running.
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<String>,
    /// The claim it runs under.
    #[serde(skip_serializing_if = "Option::is_none")]
    fence: Option<u64>,
    /// Its failed attempts, oldest first; not in lists.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    failures: Vec<FailureView>,
    /// How far its last attempt has come, as far as it has said so, for every role; not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    progress: Option<ProgressView>,
    /// What its handler has given. Left out for roles below operator, and in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    result: Option<Box<RawValue>>,
    /// What its attempts have said, oldest first. Left out for roles below operator, and in lists.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    log: Vec<LineView>,
}

/// How far an attempt has come.
#[derive(Serialize, ToSchema)]
#[schema(as = Progress)]
pub(crate) struct ProgressView {
    /// From 0 to 1.
    done: f64,
    note: String,
    at: String,
    at_ms: i64,
}

/// A line that an attempt has said.
#[derive(Serialize, ToSchema)]
#[schema(as = LogLine)]
pub(crate) struct LineView {
    at: String,
    at_ms: i64,
    attempt: u32,
    line: String,
}

impl ProgressView {
    fn of(progress: &JobProgress) -> Self {
        let JobProgress { done, note, at } = progress;
        ProgressView { done: *done, note: note.clone(), at: moment(*at), at_ms: moment_ms(*at) }
    }
}

impl LineView {
    fn of(said: &LogLine) -> Self {
        LineView { at: moment(said.at), at_ms: moment_ms(said.at), attempt: said.attempt, line: said.line.clone() }
    }
}

/// A failed attempt.
#[derive(Serialize, ToSchema)]
#[schema(as = Failure)]
pub(crate) struct FailureView {
    at: String,
    at_ms: i64,
    attempt: u32,
    node: String,
    error: String,
}

impl FailureView {
    fn of(failure: &Failure) -> Self {
        FailureView {
            at: moment(failure.at),
            at_ms: moment_ms(failure.at),
            attempt: failure.attempt,
            node: failure.node.to_string(),
            error: failure.error.clone(),
        }
    }
}

impl JobView {
    pub(crate) fn of(record: &Record, who: &Who) -> Self {
        let Job { id, queue, kind, args, priority, pushed, max_attempts, timeout, keep, unique, tags, traceparent } =
            &record.job;
        JobView {
            id: id.to_string(),
            queue: queue.clone(),
            kind: kind.clone(),
            state: record.state.as_str(),
            args: who.sees_args().then(|| raw(args)),
            priority: priority.as_str(),
            due: moment(record.due),
            due_ms: moment_ms(record.due),
            pushed: moment(*pushed),
            pushed_ms: moment_ms(*pushed),
            ended: record.ended.map(moment),
            ended_ms: record.ended.map(moment_ms),
            attempts: record.attempts,
            max_attempts: *max_attempts,
            crashes: record.crashes,
            timeout_ms: ms(*timeout),
            keep_ms: ms(*keep),
            unique: unique.clone(),
            tags: tags.clone(),
            traceparent: traceparent.clone(),
            node: record.node.map(|node| node.to_string()),
            fence: record.fence.map(|fence| fence.0),
            failures: record.failures.iter().map(FailureView::of).collect(),
            progress: record.progress.as_ref().map(ProgressView::of),
            result: record.result.as_deref().filter(|_| who.sees_args()).map(raw),
            log: record.log.iter().filter(|_| who.sees_args()).map(LineView::of).collect(),
        }
    }
}

/// A job in a worker's hands.
#[derive(Serialize, ToSchema)]
#[schema(as = ClaimedJob)]
pub(crate) struct HeldView {
    id: String,
    queue: String,
    kind: String,
    #[schema(value_type = serde_json::Value)]
    args: Box<RawValue>,
    priority: &'static str,
    /// Grows with every claim: pass it on to whatever the job writes to, and name it when settling.
    fence: u64,
    /// Which attempt this is, from 1.
    attempt: u32,
    max_attempts: u32,
    /// How often a node died while it held this job.
    crashes: u32,
    due: String,
    due_ms: i64,
    /// How long the attempt may run; then the job is taken away.
    timeout_ms: u64,
    tags: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<String>,
}

impl HeldView {
    pub(crate) fn of(held: &Held) -> Self {
        let job = &held.job;
        HeldView {
            id: job.id.to_string(),
            queue: job.queue.clone(),
            kind: job.kind.clone(),
            args: raw(&job.args),
            priority: job.priority.as_str(),
            fence: held.fence.0,
            attempt: held.attempt(),
            max_attempts: job.max_attempts,
            crashes: held.crashes,
            due: moment(held.due),
            due_ms: moment_ms(held.due),
            timeout_ms: ms(job.timeout),
            tags: job.tags.clone(),
            traceparent: job.traceparent.clone(),
        }
    }
}

/// A queue.
#[derive(Clone, Serialize, ToSchema, PartialEq)]
#[schema(as = Queue)]
pub(crate) struct QueueView {
    pub(crate) queue: String,
    /// Nothing is claimed from it.
    pub(crate) paused: bool,
    /// It is moving to another store.
    pub(crate) moving: bool,
    pub(crate) scheduled: u64,
    pub(crate) ready: u64,
    pub(crate) running: u64,
    pub(crate) done: u64,
    pub(crate) dead: u64,
    /// Bytes of args of what is unfinished.
    pub(crate) bytes: u64,
    /// Since when its first ready job could have been claimed; absent if none is ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) oldest: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) oldest_ms: Option<i64>,
    /// At most so many jobs may be unfinished in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) limit_jobs: Option<u64>,
    /// At most so many bytes of args.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) limit_bytes: Option<u64>,
}

impl QueueView {
    pub(crate) fn of(counts: &QueueCounts) -> Self {
        QueueView {
            queue: counts.queue.clone(),
            paused: counts.paused,
            moving: counts.moving.is_some(),
            scheduled: counts.scheduled,
            ready: counts.ready,
            running: counts.running,
            done: counts.done,
            dead: counts.dead,
            bytes: counts.bytes,
            oldest: counts.oldest.map(moment),
            oldest_ms: counts.oldest.map(moment_ms),
            limit_jobs: counts.limit.jobs,
            limit_bytes: counts.limit.bytes,
        }
    }
}

/// A lock that is held.
#[derive(Serialize, ToSchema)]
#[schema(as = Lock)]
pub(crate) struct LockView {
    name: String,
    slot: u32,
    /// With it the lock can be extended and released, so only those see it who may break it.
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<String>,
    node: String,
    /// Who that is, for people.
    note: String,
    fence: u64,
    since: String,
    since_ms: i64,
    /// When the hold ends, unless it is extended.
    ends: String,
    ends_ms: i64,
    /// How many wait for the lock.
    waiting: u64,
}

impl LockView {
    pub(crate) fn of(lock: &LockRecord, who: &Who) -> Self {
        LockView {
            name: lock.name.clone(),
            slot: lock.slot,
            owner: who.may(Role::Operator).is_ok().then(|| lock.owner.to_string()),
            node: lock.node.to_string(),
            note: lock.note.clone(),
            fence: lock.fence.0,
            since: moment(lock.since),
            since_ms: moment_ms(lock.since),
            ends: moment(lock.ends),
            ends_ms: moment_ms(lock.ends),
            waiting: lock.waiting,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn args_survive_byte_for_byte() {
        for text in [r#"{"b":9007199254740993,"a":[1.10,1e400]}"#, "18446744073709551616"] {
            assert_eq!(raw(text).get(), text);
        }
        assert_eq!(raw("not json").get(), "\"not json\"", "what no version of ours has written");
    }

    #[test]
    fn moments_are_utc() {
        let at = crate::clock::from_micros(1_893_456_000_123_456);
        assert_eq!(moment(at), "2030-01-01T00:00:00.123456Z");
        assert_eq!(moment_ms(at), 1_893_456_000_123);
    }
}
