//! The JSON of the API as types. The command `duly` prints the same JSON, from a store and from a server.
//!
//! Times are RFC 3339 in UTC, and milliseconds since 1970 in fields that end in `_ms`; durations are milliseconds.
//! A client can parse responses into these types: args and results keep every digit and the order of their keys.

mod access;
mod changes;
mod cron;
mod locks;
mod nodes;
mod queues;
mod runs;
mod stats;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

pub(crate) use self::access::RoleSchema;
pub use self::access::{CreatedToken, TokenView, Tokens};
pub use self::changes::{
    Action, BreakResponse, CancelResponse, ChangeResponse, ClearResponse, DryRunResponse, Operation, PushedView,
};
pub(crate) use self::cron::TICKS;
pub use self::cron::{Preview, RuleView, Rules};
pub use self::locks::{LockList, LockView};
pub use self::nodes::{CallReplies, NodeList, NodeView, ReplyView};
pub use self::queues::{QueueList, QueueView};
pub use self::runs::RunView;
pub use self::stats::{HistoryView, PointView, Quantiles, QueueStats, QueueStatsView};
use super::identity::Identity;
use super::json;
use super::openapi::{JobStateName, PriorityName, UniqueScopeName, WhyName};
use duly::admin::{DeadGroup, JobPage, Why};
use duly::job::{Failure, HeldJob, JobProgress, LogLine};
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
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[non_exhaustive]
#[schema(as = Job)]
pub struct JobView {
    /// The id: a UUID.
    #[schema(format = "uuid")]
    pub id: String,
    /// The queue.
    pub queue: String,
    /// Selects the handler.
    pub kind: String,
    /// `scheduled`, `ready`, `running`, `done`, `dead` or `cancelled`.
    #[schema(value_type = JobStateName)]
    pub state: String,
    /// The args of the handler. Absent for roles below operator.
    #[serde(default, deserialize_with = "json::present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub args: Option<Box<RawValue>>,
    /// `low`, `normal`, `high` or `critical`.
    #[schema(value_type = PriorityName)]
    pub priority: String,
    /// The time from which it can be claimed.
    pub due: String,
    /// The same in milliseconds since 1970.
    pub due_ms: i64,
    /// When it was pushed.
    pub pushed: String,
    /// The same in milliseconds since 1970.
    pub pushed_ms: i64,
    /// It was cancelled while it is running: unless this attempt succeeds, the job ends cancelled with it. Absent if
    /// not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub cancelling: bool,
    /// When it was done, buried or cancelled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    /// The same in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_ms: Option<i64>,
    /// The number of failed attempts.
    pub attempts: u32,
    /// The number of failed attempts after which the job is dead.
    pub max_attempts: u32,
    /// How often a node died while it held this job.
    pub crashes: u32,
    /// The timeout of one attempt.
    pub timeout_ms: u64,
    /// How long the job is kept after it is done.
    pub keep_ms: u64,
    /// The unique key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unique: Option<String>,
    /// The jobs of the queue that cannot have the same unique key: those of the same `kind`, or of the whole `queue`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<UniqueScopeName>)]
    pub unique_scope: Option<String>,
    /// Words to find the job by.
    pub tags: Vec<String>,
    /// The W3C trace context of the push.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// The node that runs it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The fence of the current claim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fence: Option<u64>,
    /// Its attempts, oldest first: what each did, and how it ended; absent in lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub runs: Vec<RunView>,
    /// Its failed attempts, oldest first; absent in lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub failures: Vec<FailureView>,
    /// The progress of the last attempt, for every role; absent in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<ProgressView>,
    /// The result of the handler. Absent for roles below operator, and in lists.
    #[serde(default, deserialize_with = "json::present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub result: Option<Box<RawValue>>,
    /// The log lines of its attempts, oldest first. Absent for roles below operator, and in lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub log: Vec<LineView>,
}

/// The progress of an attempt.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[non_exhaustive]
#[schema(as = Progress)]
pub struct ProgressView {
    /// From 0 to 1.
    pub fraction: f64,
    /// The text of the handler, for people.
    pub message: String,
    /// When it was reported.
    pub at: String,
    /// The same in milliseconds since 1970.
    pub at_ms: i64,
}

/// A log line of an attempt.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[non_exhaustive]
#[schema(as = LogLine)]
pub struct LineView {
    /// When it was written.
    pub at: String,
    /// The same in milliseconds since 1970.
    pub at_ms: i64,
    /// The attempt that wrote it, from 1.
    pub attempt: u32,
    /// The text.
    pub line: String,
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
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[non_exhaustive]
#[schema(as = Failure)]
pub struct FailureView {
    /// When it failed.
    pub at: String,
    /// The same in milliseconds since 1970.
    pub at_ms: i64,
    /// Which attempt it was, from 1.
    pub attempt: u32,
    /// The node that ran it.
    pub node: String,
    /// The error of the handler.
    pub error: String,
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

impl From<&JobRecord> for JobView {
    /// Returns the whole job, as an operator sees it.
    fn from(record: &JobRecord) -> Self {
        let Job {
            id, queue, kind, args, priority, pushed, max_attempts, timeout, keep, unique, tags, traceparent, ..
        } = &record.job;
        JobView {
            id: id.to_string(),
            queue: queue.clone(),
            kind: kind.clone(),
            state: record.state.to_string(),
            args: Some(raw_json(args)),
            priority: priority.to_string(),
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
            unique_scope: unique.as_ref().map(|unique| unique.scope().as_str().to_owned()),
            tags: tags.clone(),
            traceparent: traceparent.clone(),
            node: record.node.map(|node| node.to_string()),
            fence: record.fence.map(|fence| fence.0),
            runs: record.runs.iter().map(RunView::from).collect(),
            failures: record.failures.iter().map(FailureView::new).collect(),
            progress: record.progress.as_ref().map(ProgressView::new),
            result: record.result.as_deref().map(raw_json),
            log: record.log.iter().map(LineView::new).collect(),
        }
    }
}

impl JobView {
    /// Returns how many attempts have counted: those that failed, and the one that runs or made the job done.
    #[must_use]
    pub fn attempts_made(&self) -> u32 {
        let counts_last = ["running", "done"].contains(&self.state.as_str());
        self.attempts.saturating_add(u32::from(counts_last))
    }

    /// Returns the parts of a job that the client may see.
    pub(crate) fn new(record: &JobRecord, identity: &Identity) -> Self {
        let mut view = JobView::from(record);
        if !identity.can_see_args() {
            (view.args, view.result) = (None, None);
            view.log.clear();
            view.runs.iter_mut().for_each(|run| run.output = None);
        }
        view
    }
}

/// A page of jobs.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[non_exhaustive]
pub struct JobList {
    /// The jobs.
    pub jobs: Vec<JobView>,
    /// The cursor of the next page, if there may be one; also in the `Link` header.
    pub next: Option<String>,
}

impl JobList {
    pub(crate) fn new(page: JobPage, identity: &Identity) -> Self {
        let jobs = page.jobs.iter().map(|record| JobView::new(record, identity)).collect();
        JobList { jobs, next: page.next_cursor }
    }
}

impl From<JobPage> for JobList {
    /// Returns the whole jobs, as an operator sees them.
    fn from(page: JobPage) -> Self {
        JobList { jobs: page.jobs.iter().map(JobView::from).collect(), next: page.next_cursor }
    }
}

/// The reason why a job is not running.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[non_exhaustive]
#[schema(as = Why)]
pub struct WhyView {
    /// A stable code.
    #[schema(value_type = WhyName)]
    pub why: String,
    /// The reason as one sentence.
    pub text: String,
}

impl From<&Why> for WhyView {
    fn from(why: &Why) -> Self {
        WhyView { why: why.code().to_owned(), text: why.to_string() }
    }
}

/// Dead jobs of one kind with the same error.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[non_exhaustive]
#[schema(as = DeadGroup)]
pub struct GroupView {
    /// The id for `group:ID` in a filter.
    pub id: String,
    /// The queue.
    pub queue: String,
    /// The kind of the jobs.
    pub kind: String,
    /// The common part of their last errors.
    pub error: String,
    /// The number of jobs.
    pub count: u64,
    /// When the first of them died.
    pub oldest: String,
    /// The same in milliseconds since 1970.
    pub oldest_ms: i64,
    /// When the last of them died.
    pub newest: String,
    /// The same in milliseconds since 1970.
    pub newest_ms: i64,
}

impl From<DeadGroup> for GroupView {
    fn from(group: DeadGroup) -> Self {
        GroupView {
            id: group.id,
            queue: group.queue,
            kind: group.kind,
            error: group.error,
            count: group.count,
            oldest: rfc3339(group.oldest),
            oldest_ms: unix_ms(group.oldest),
            newest: rfc3339(group.newest),
            newest_ms: unix_ms(group.newest),
        }
    }
}

/// All groups, largest first.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[non_exhaustive]
pub struct Groups {
    /// The groups.
    pub groups: Vec<GroupView>,
}

impl From<Vec<DeadGroup>> for Groups {
    fn from(groups: Vec<DeadGroup>) -> Self {
        Groups { groups: groups.into_iter().map(GroupView::from).collect() }
    }
}

/// A claimed job.
#[derive(Serialize, ToSchema)]
#[schema(as = ClaimedJob)]
pub(crate) struct HeldView {
    #[schema(format = "uuid")]
    id: String,
    queue: String,
    kind: String,
    #[schema(value_type = serde_json::Value)]
    args: Box<RawValue>,
    #[schema(value_type = PriorityName)]
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
