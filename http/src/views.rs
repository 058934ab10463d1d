//! The JSON views of jobs, queues and locks: times as RFC 3339 and as Unix milliseconds, durations in milliseconds.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::identity::Identity;
use duly::admin::QueueCounts;
use duly::admin::Role;
use duly::job::{Failure, HeldJob, JobProgress, LogLine};
use duly::lock::LockRecord;
use duly::{Job, JobRecord};

/// Formats a time as RFC 3339 in UTC, to the microsecond.
pub(crate) fn rfc3339(at: SystemTime) -> String {
    jiff::Timestamp::from_microsecond(unix_micros(at)).map_or_else(|_| "-".to_owned(), |at| at.to_string())
}

/// Returns a time as milliseconds since 1970.
pub(crate) fn unix_ms(at: SystemTime) -> i64 {
    unix_micros(at) / 1_000
}

/// Returns a time as microseconds since 1970; negative before that.
pub(crate) fn unix_micros(at: SystemTime) -> i64 {
    let micros = |time: Duration| i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
    match at.duration_since(UNIX_EPOCH) {
        Ok(since) => micros(since),
        Err(before) => -micros(before.duration()),
    }
}

/// Returns a duration in milliseconds.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Returns JSON text as it is, so that numbers beyond 2^53 and the order of keys survive; other text becomes a string.
pub(crate) fn raw_json(text: &str) -> Box<RawValue> {
    let quoted = || serde_json::value::to_raw_value(text).unwrap_or_else(|_| RawValue::NULL.to_owned());
    RawValue::from_string(text.to_owned()).unwrap_or_else(|_| quoted())
}

/// A job with its history.
#[derive(Serialize, ToSchema)]
#[schema(as = Job)]
pub(crate) struct JobView {
    id: String,
    queue: String,
    kind: String,
    /// `scheduled`, `ready`, `running`, `done`, `dead` or `cancelled`.
    state: &'static str,
    /// The args of the handler. Absent for roles below operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    args: Option<Box<RawValue>>,
    /// `low`, `normal`, `high` or `critical`.
    priority: &'static str,
    /// The time from which it can be claimed.
    due: String,
    due_ms: i64,
    pushed: String,
    pushed_ms: i64,
    /// It was cancelled while it is running: unless this attempt succeeds, the job ends cancelled with it. Absent if
    /// not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    cancelling: bool,
    /// When it was done, buried or cancelled.
    #[serde(skip_serializing_if = "Option::is_none")]
    ended: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_ms: Option<i64>,
    /// The number of failed attempts.
    attempts: u32,
    max_attempts: u32,
    /// How often a node died while it held this job.
    crashes: u32,
    timeout_ms: u64,
    keep_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    unique: Option<String>,
    /// The jobs of the queue that cannot have the same unique key: those of the same `kind`, or of the whole `queue`.
    #[serde(skip_serializing_if = "Option::is_none")]
    unique_scope: Option<&'static str>,
    tags: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<String>,
    /// The node that runs it.
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<String>,
    /// The fence of the current claim.
    #[serde(skip_serializing_if = "Option::is_none")]
    fence: Option<u64>,
    /// Its failed attempts, oldest first; absent in lists.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    failures: Vec<FailureView>,
    /// The progress of the last attempt, for every role; absent in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    progress: Option<ProgressView>,
    /// The result of the handler. Absent for roles below operator, and in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    result: Option<Box<RawValue>>,
    /// The log lines of its attempts, oldest first. Absent for roles below operator, and in lists.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    log: Vec<LineView>,
}

/// The progress of an attempt.
#[derive(Serialize, ToSchema)]
#[schema(as = Progress)]
pub(crate) struct ProgressView {
    /// From 0 to 1.
    fraction: f64,
    message: String,
    at: String,
    at_ms: i64,
}

/// A log line of an attempt.
#[derive(Serialize, ToSchema)]
#[schema(as = LogLine)]
pub(crate) struct LineView {
    at: String,
    at_ms: i64,
    attempt: u32,
    line: String,
}

impl ProgressView {
    fn new(progress: &JobProgress) -> Self {
        let JobProgress { fraction, message, at, .. } = progress;
        ProgressView { fraction: *fraction, message: message.clone(), at: rfc3339(*at), at_ms: unix_ms(*at) }
    }
}

impl LineView {
    fn new(line: &LogLine) -> Self {
        LineView { at: rfc3339(line.at), at_ms: unix_ms(line.at), attempt: line.attempt, line: line.line.clone() }
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
    fn new(failure: &Failure) -> Self {
        FailureView {
            at: rfc3339(failure.at),
            at_ms: unix_ms(failure.at),
            attempt: failure.attempt,
            node: failure.node.to_string(),
            error: failure.error.clone(),
        }
    }
}

impl JobView {
    pub(crate) fn new(record: &JobRecord, identity: &Identity) -> Self {
        let Job {
            id, queue, kind, args, priority, pushed, max_attempts, timeout, keep, unique, tags, traceparent, ..
        } = &record.job;
        JobView {
            id: id.to_string(),
            queue: queue.clone(),
            kind: kind.clone(),
            state: record.state.as_str(),
            args: identity.can_see_args().then(|| raw_json(args)),
            priority: priority.as_str(),
            due: rfc3339(record.due),
            due_ms: unix_ms(record.due),
            pushed: rfc3339(*pushed),
            pushed_ms: unix_ms(*pushed),
            cancelling: record.cancelling,
            ended: record.ended.map(rfc3339),
            ended_ms: record.ended.map(unix_ms),
            attempts: record.attempts,
            max_attempts: *max_attempts,
            crashes: record.crashes,
            timeout_ms: millis(*timeout),
            keep_ms: millis(*keep),
            unique: unique.as_ref().map(|unique| unique.key().to_owned()),
            unique_scope: unique.as_ref().map(|unique| unique.scope().as_str()),
            tags: tags.clone(),
            traceparent: traceparent.clone(),
            node: record.node.map(|node| node.to_string()),
            fence: record.fence.map(|fence| fence.0),
            failures: record.failures.iter().map(FailureView::new).collect(),
            progress: record.progress.as_ref().map(ProgressView::new),
            result: record.result.as_deref().filter(|_| identity.can_see_args()).map(raw_json),
            log: record.log.iter().filter(|_| identity.can_see_args()).map(LineView::new).collect(),
        }
    }
}

/// A claimed job.
#[derive(Serialize, ToSchema)]
#[schema(as = ClaimedJob)]
pub(crate) struct HeldView {
    id: String,
    queue: String,
    kind: String,
    #[schema(value_type = serde_json::Value)]
    args: Box<RawValue>,
    priority: &'static str,
    /// Grows with every claim: pass it to the resources that the job changes, and send it with the settle.
    fence: u64,
    /// The number of this attempt, from 1.
    attempt: u32,
    max_attempts: u32,
    /// How often a node died while it held this job.
    crashes: u32,
    due: String,
    due_ms: i64,
    /// The timeout of the attempt; after that the worker loses the job.
    timeout_ms: u64,
    tags: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<String>,
}

impl HeldView {
    pub(crate) fn new(held: &HeldJob) -> Self {
        let job = &held.job;
        HeldView {
            id: job.id.to_string(),
            queue: job.queue.clone(),
            kind: job.kind.clone(),
            args: raw_json(&job.args),
            priority: job.priority.as_str(),
            fence: held.fence.0,
            attempt: held.attempt(),
            max_attempts: job.max_attempts,
            crashes: held.crashes,
            due: rfc3339(held.due),
            due_ms: unix_ms(held.due),
            timeout_ms: millis(job.timeout),
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
    /// Its jobs are not claimed.
    pub(crate) paused: bool,
    /// It is moving to another store.
    pub(crate) moving: bool,
    pub(crate) scheduled: u64,
    pub(crate) ready: u64,
    pub(crate) running: u64,
    pub(crate) done: u64,
    pub(crate) dead: u64,
    pub(crate) cancelled: u64,
    /// The bytes of args of unfinished jobs.
    pub(crate) bytes: u64,
    /// The due time of its first ready job; absent if none is ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) oldest: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) oldest_ms: Option<i64>,
    /// The most unfinished jobs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) capacity_jobs: Option<u64>,
    /// The most bytes of args of unfinished jobs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) capacity_bytes: Option<u64>,
}

impl QueueView {
    pub(crate) fn new(counts: &QueueCounts) -> Self {
        QueueView {
            queue: counts.queue.clone(),
            paused: counts.paused,
            moving: counts.moving.is_some(),
            scheduled: counts.scheduled,
            ready: counts.ready,
            running: counts.running,
            done: counts.done,
            dead: counts.dead,
            cancelled: counts.cancelled,
            bytes: counts.bytes,
            oldest: counts.oldest_ready.map(rfc3339),
            oldest_ms: counts.oldest_ready.map(unix_ms),
            capacity_jobs: counts.capacity.jobs,
            capacity_bytes: counts.capacity.bytes,
        }
    }
}

/// A held lock.
#[derive(Serialize, ToSchema)]
#[schema(as = Lock)]
pub(crate) struct LockView {
    name: String,
    slot: u32,
    /// The owner id, with which a client can extend and release the lock; only for roles that can break it.
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<String>,
    node: String,
    /// The description of the holder.
    note: String,
    fence: u64,
    /// Since when it is held; missing for a lock of ActionHero, which does not record it.
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    since_ms: Option<i64>,
    /// When the hold expires unless it is extended.
    expires: String,
    expires_ms: i64,
    /// The number of waiters.
    waiters: u64,
}

impl LockView {
    pub(crate) fn new(lock: &LockRecord, identity: &Identity) -> Self {
        LockView {
            name: lock.name.clone(),
            slot: lock.slot,
            owner: identity.require(Role::Operator).is_ok().then(|| lock.owner.to_string()),
            node: lock.node.to_string(),
            note: lock.note.clone(),
            fence: lock.fence.0,
            since: lock.since.map(rfc3339),
            since_ms: lock.since.map(unix_ms),
            expires: rfc3339(lock.expires),
            expires_ms: unix_ms(lock.expires),
            waiters: lock.waiters,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn args_survive_byte_for_byte() {
        for text in [r#"{"b":9007199254740993,"a":[1.10,1e400]}"#, "18446744073709551616"] {
            assert_eq!(raw_json(text).get(), text);
        }
        assert_eq!(raw_json("not json").get(), "\"not json\"", "not JSON");
    }

    #[test]
    fn moments_are_utc() {
        let at = UNIX_EPOCH + Duration::from_micros(1_893_456_000_123_456);
        assert_eq!(rfc3339(at), "2030-01-01T00:00:00.123456Z");
        assert_eq!(unix_ms(at), 1_893_456_000_123);
    }
}
