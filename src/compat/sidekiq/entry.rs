//! A Sidekiq entry: a job as a JSON object. Parsing is lenient; the output has the format of Ruby's JSON.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::json::{self, JsonObject, encode_float, encode_object, encode_seconds, encode_string, normalize, set_field};
use super::{active_job, id};
use crate::clock::{Micros, from_micros, to_micros};
use crate::job::push::{DEFAULT_TIMEOUT, Push, TAGS_MAX, is_word};
use crate::job::{Failure, Job, JobId, JobRecord, Priority, State};
use crate::node::NodeId;

/// Retries of a job with `"retry": true`.
const DEFAULT_MAX_RETRIES: u32 = 25;
/// The timeout of a job that Ruby pushed: none in practice, since Sidekiq has no timeouts and its jobs may be long.
const RUBY_JOB_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);
/// Failures kept in an entry, and the bytes of each: the entry is rewritten with every failure.
const FAILURES_MAX: usize = 10;
const FAILURE_BYTES_MAX: usize = 1_000;
/// The error of an attempt whose node died.
pub(super) const NODE_DIED_ERROR: &str =
    "the node died while it held this job, or was paused for longer than its lease";
/// Fields of a failed job, removed when it is restarted.
const FAILURE_FIELDS: [&str; 7] =
    ["error_message", "error_class", "error_backtrace", "failed_at", "retry_count", "retried_at", "discarded_at"];

/// The fields that duly adds to an entry, in one object. Sidekiq preserves and ignores it.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct DulyFields {
    /// The args are a single value, stored in Sidekiq as a list of one.
    #[serde(skip_serializing_if = "is_false")]
    single_arg: bool,
    /// The args as pushed, if Ruby would format them differently.
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    keep_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<String>,
    #[serde(skip_serializing_if = "is_zero")]
    crashes: u32,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    history: Vec<(Micros, u32, NodeId, String)>,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// A parsed entry.
pub(super) struct SidekiqEntry {
    pub(super) job: Job,
    /// Failed attempts.
    pub(super) attempts: u32,
    pub(super) crashes: u32,
    /// The time since which the job could be claimed, if the entry contains it.
    pub(super) due: Micros,
    pub(super) failures: Vec<Failure>,
    /// The job is deleted rather than buried.
    pub(super) skips_dead_set: bool,
    /// The job has failed before.
    pub(super) has_failed: bool,
}

/// The number of times a node died while it held an entry; the time and the node of the last one.
pub(super) struct CrashRecord {
    count: u32,
    last_at: Micros,
    node: NodeId,
}

impl CrashRecord {
    /// Decodes the format of the scripts: count, space, time in 16 digits, node.
    pub(super) fn decode(text: &[u8]) -> Option<Self> {
        let (count, rest) = std::str::from_utf8(text).ok()?.split_once(' ')?;
        let (last_at, node) = rest.split_at_checked(16)?;
        Some(CrashRecord { count: count.parse().ok()?, last_at: last_at.parse().ok()?, node: node.parse().ok()? })
    }
}

/// Returns the tags that are valid in duly: a Ruby program may set any number of any texts.
fn read_tags(fields: &JsonObject<'_>) -> Vec<String> {
    let tags: Vec<String> = fields.get("tags").unwrap_or_default();
    tags.into_iter().filter(|tag| is_word(tag)).take(TAGS_MAX).collect()
}

/// Parses an entry of a queue. The error describes why it cannot be run.
pub(super) fn parse_entry(queue: &str, bytes: &[u8], crash: Option<&CrashRecord>) -> Result<SidekiqEntry, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "not UTF-8")?;
    let fields = JsonObject::parse(text)?;
    let kind = active_job::kind(&fields, fields.get("class").ok_or("has no class")?);
    let own: DulyFields = fields.get("duly").unwrap_or_default();
    let timestamp = |name: &str| fields.raw(name).and_then(parse_timestamp);
    let id = fields.get::<String>("jid").map_or_else(|| id::id_from_bytes(bytes), |jid| id::id_from_jid(&jid));
    let pushed = timestamp("created_at").or_else(|| timestamp("enqueued_at")).unwrap_or(0);
    let retry_count = fields.get::<i64>("retry_count");
    // A manual retry in Sidekiq Web decrements the count first, so it may be -1.
    let attempts = retry_count.map_or(0, |count| u32::try_from(count.saturating_add(1)).unwrap_or(0));
    let retries = parse_retry(fields.raw("retry"));
    let mut entry = SidekiqEntry {
        attempts,
        crashes: own.crashes + crash.map_or(0, |crash| crash.count),
        due: timestamp("enqueued_at").unwrap_or(pushed),
        failures: read_failures(&fields, &own, attempts),
        skips_dead_set: retries.is_none() || fields.raw("dead") == Some("false"),
        has_failed: retry_count.is_some(),
        job: Job {
            id,
            queue: queue.to_owned(),
            kind,
            args: read_args(&fields, &own),
            priority: Priority::Normal,
            pushed: from_micros(pushed),
            max_attempts: retries.unwrap_or(0).saturating_add(1),
            timeout: own.timeout_ms.map_or_else(|| default_timeout(id), Duration::from_millis),
            keep: own.keep_ms.map_or(Duration::ZERO, Duration::from_millis),
            unique: None,
            tags: read_tags(&fields),
            traceparent: own.traceparent.clone(),
        },
    };
    if let Some(crash) = crash {
        let error = NODE_DIED_ERROR.to_owned();
        entry.failures.push(Failure { at: from_micros(crash.last_at), attempt: attempts + 1, node: crash.node, error });
    }
    Ok(entry)
}

/// Returns the queue of an entry in a set.
pub(super) fn parse_queue(bytes: &[u8]) -> String {
    let fields = std::str::from_utf8(bytes).ok().and_then(|text| JsonObject::parse(text).ok());
    fields.and_then(|fields| fields.get("queue")).unwrap_or_else(|| crate::job::push::DEFAULT_QUEUE.to_owned())
}

/// Returns the number of retries; `None` if the job is to be deleted when it fails.
/// A job without the field is retried; Ruby would drop it silently.
fn parse_retry(text: Option<&str>) -> Option<u32> {
    match text {
        Some("false" | "null") => None,
        Some(number) => Some(number.parse().unwrap_or(DEFAULT_MAX_RETRIES)),
        None => Some(DEFAULT_MAX_RETRIES),
    }
}

/// Parses a timestamp: a number with a fraction is in seconds, an integer in milliseconds (Sidekiq 8).
fn parse_timestamp(text: &str) -> Option<Micros> {
    let number: f64 = text.parse().ok().filter(|number: &f64| number.is_finite())?;
    let unit_micros = if text.contains(['.', 'e', 'E']) { 1e6 } else { 1e3 };
    Some((number * unit_micros).round() as Micros)
}

fn read_args(fields: &JsonObject<'_>, own: &DulyFields) -> String {
    let list = fields.raw("args").unwrap_or("[]");
    let only_element = |list: &str| {
        let inner = list.trim().strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        inner.map_or_else(|| list.to_owned(), |inner| inner.trim().to_owned())
    };
    let current = if own.single_arg { only_element(list) } else { list.to_owned() };
    match &own.args {
        // The pushed text is outdated if a client has edited the args since.
        Some(pushed) if normalize(pushed).ok() == normalize(&current).ok() => pushed.clone(),
        _ => current,
    }
}

/// Returns the known failures: those that duly recorded, and the last one if Ruby ran it.
fn read_failures(fields: &JsonObject<'_>, own: &DulyFields, attempts: u32) -> Vec<Failure> {
    let recorded = own.history.iter().map(|(at, attempt, node, error)| Failure {
        at: from_micros(*at),
        attempt: *attempt,
        node: *node,
        error: error.clone(),
    });
    let mut failures: Vec<Failure> = recorded.collect();
    let is_known = failures.last().is_some_and(|last| last.attempt >= attempts);
    if attempts > 0 && !is_known {
        let text = |name: &str| fields.get::<String>(name).unwrap_or_default();
        let at = ["retried_at", "failed_at"].iter().find_map(|name| fields.raw(name).and_then(parse_timestamp));
        let error = format!("{}: {}", text("error_class"), text("error_message"));
        let error = Failure::truncate_error(&error).to_owned();
        failures.push(Failure { at: from_micros(at.unwrap_or(0)), attempt: attempts, node: foreign_node(), error });
    }
    failures
}

/// Returns the node id of an attempt that Ruby made.
fn foreign_node() -> NodeId {
    NodeId::from_bytes([0; 16])
}

/// The name of a field and its JSON text.
type JsonField = (String, String);

fn json_field(name: &str, text: impl Into<String>) -> JsonField {
    (name.to_owned(), text.into())
}

/// Returns a pushed job as an entry, with `enqueued_at` if it is ready. The error describes args that Ruby cannot read.
pub(super) fn encode_push(push: &Push, now: Micros, ready: bool) -> Result<String, String> {
    let text = push.args.as_deref().map_err(Clone::clone)?;
    let own = DulyFields {
        timeout_ms: (push.timeout != default_timeout(push.id)).then(|| millis(push.timeout)),
        keep_ms: push.keep.filter(|keep| !keep.is_zero()).map(millis),
        traceparent: push.traceparent.clone(),
        ..DulyFields::default()
    };
    let job_fields = JobFields {
        id: push.id,
        queue: &push.queue,
        kind: &push.kind,
        max_attempts: push.max_attempts,
        tags: &push.tags,
        pushed: now,
    };
    let mut fields = job_fields.encode(text, own)?;
    if ready {
        fields.push(json_field("enqueued_at", encode_seconds(now)));
    }
    Ok(encode_object(&fields))
}

/// The fields that every entry has.
struct JobFields<'j> {
    id: JobId,
    queue: &'j str,
    kind: &'j str,
    max_attempts: u32,
    tags: &'j [String],
    pushed: Micros,
}

impl JobFields<'_> {
    fn encode(&self, args: &str, mut own: DulyFields) -> Result<Vec<JsonField>, String> {
        let active_job = active_job::complete_args(args, self.kind, self.queue, self.id);
        let args = active_job.as_deref().unwrap_or(args);
        let ruby = normalize(args)?;
        own.single_arg = !ruby.starts_with('[');
        own.args = (ruby != args).then(|| args.to_owned());
        let mut fields = vec![
            json_field("retry", self.max_attempts.saturating_sub(1).to_string()),
            json_field("queue", encode_string(self.queue)),
        ];
        match active_job {
            Some(_) => {
                fields.push(json_field("class", encode_string(active_job::WRAPPERS[0])));
                fields.push(json_field("wrapped", encode_string(self.kind)));
            }
            None => fields.push(json_field("class", encode_string(self.kind))),
        }
        if !self.tags.is_empty() {
            let tags: Vec<String> = self.tags.iter().map(|tag| encode_string(tag)).collect();
            fields.push(json_field("tags", format!("[{}]", tags.join(","))));
        }
        if own != DulyFields::default() {
            fields.push(json_field("duly", encode_duly_fields(&own)));
        }
        fields.push(json_field("args", if own.single_arg { format!("[{ruby}]") } else { ruby }));
        fields.push(json_field("jid", encode_string(&id::jid_from_id(self.id).unwrap_or_else(|| self.id.to_string()))));
        fields.push(json_field("created_at", encode_seconds(self.pushed)));
        Ok(fields)
    }
}

fn encode_duly_fields(own: &DulyFields) -> String {
    serde_json::to_string(own).unwrap_or_else(|_| "{}".to_owned())
}

/// Returns the timeout of a job whose entry has none.
fn default_timeout(id: JobId) -> Duration {
    if id::is_duly_id(id) { DEFAULT_TIMEOUT } else { RUBY_JOB_TIMEOUT }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Returns a job of another store as an entry.
pub(super) fn encode_record(record: &JobRecord) -> Result<String, String> {
    let job = &record.job;
    let tail = record.failures.len().saturating_sub(FAILURES_MAX);
    let own = DulyFields {
        timeout_ms: (job.timeout != default_timeout(job.id)).then(|| millis(job.timeout)),
        keep_ms: (!job.keep.is_zero()).then(|| millis(job.keep)),
        traceparent: job.traceparent.clone(),
        crashes: record.crashes,
        history: record.failures[tail..].iter().map(history_item).collect(),
        ..DulyFields::default()
    };
    let job_fields = JobFields {
        id: job.id,
        queue: &job.queue,
        kind: &job.kind,
        max_attempts: job.max_attempts,
        tags: &job.tags,
        pushed: to_micros(job.pushed),
    };
    let mut fields = job_fields.encode(&job.args, own)?;
    if record.state != State::Scheduled {
        fields.push(json_field("enqueued_at", encode_seconds(to_micros(record.due))));
    }
    if record.attempts > 0 {
        let last = record.failures.last();
        let at = encode_seconds(last.map_or(0, |last| to_micros(last.at)));
        let error = last.map_or("", |last| last.error.as_str());
        fields.push(json_field("error_message", encode_string(error)));
        fields.push(json_field("error_class", encode_string(error_class(error))));
        fields.push(json_field("failed_at", at.clone()));
        fields.push(json_field("retry_count", (record.attempts - 1).to_string()));
        fields.push(json_field("retried_at", at));
    }
    Ok(encode_object(&fields))
}

fn history_item(failure: &Failure) -> (Micros, u32, NodeId, String) {
    let mut end = failure.error.len().min(FAILURE_BYTES_MAX);
    while !failure.error.is_char_boundary(end) {
        end -= 1;
    }
    (to_micros(failure.at), failure.attempt, failure.node, failure.error[..end].to_owned())
}

/// Returns an entry of a set as it enters its queue.
pub(super) fn promote_entry(bytes: &[u8], now: Micros) -> Result<String, String> {
    rewrite_entry(bytes, &[], |fields| set_field(fields, "enqueued_at", encode_seconds(now)))
}

/// Returns an entry of a queue as it enters its queue again, with its number of crashes.
pub(super) fn requeue_entry(bytes: &[u8], now: Micros, crashes: u32) -> Result<String, String> {
    rewrite_entry(bytes, &[], |fields| {
        set_crashes(fields, crashes);
        set_field(fields, "enqueued_at", encode_seconds(now));
    })
}

/// Returns an entry of a queue as it enters the schedule, with its number of crashes.
pub(super) fn schedule_entry(bytes: &[u8], crashes: u32) -> Result<String, String> {
    rewrite_entry(bytes, &["enqueued_at"], |fields| set_crashes(fields, crashes))
}

/// Writes the crashes into the entry: their record is keyed by its digest, which changes with the entry.
fn set_crashes(fields: &mut Vec<JsonField>, crashes: u32) {
    let existing = fields.iter().find(|(name, _)| name == "duly");
    let mut own: DulyFields = existing.and_then(|(_, text)| serde_json::from_str(text).ok()).unwrap_or_default();
    if own.crashes != crashes {
        own.crashes = crashes;
        set_field(fields, "duly", encode_duly_fields(&own));
    }
}

/// Returns a dead or done entry as it starts over, ready or scheduled.
pub(super) fn restart_entry(bytes: &[u8], now: Option<Micros>) -> Result<String, String> {
    let without: Vec<&str> = FAILURE_FIELDS.iter().copied().chain(["enqueued_at"]).collect();
    let text = std::str::from_utf8(bytes).map_err(|_| "not UTF-8")?;
    let mut own: DulyFields = JsonObject::parse(text)?.get("duly").unwrap_or_default();
    own.crashes = 0;
    rewrite_entry(bytes, &without, |fields| {
        if fields.iter().any(|(name, _)| name == "duly") {
            set_field(fields, "duly", encode_duly_fields(&own));
        }
        if let Some(now) = now {
            set_field(fields, "enqueued_at", encode_seconds(now));
        }
    })
}

fn rewrite_entry(bytes: &[u8], without: &[&str], change: impl FnOnce(&mut Vec<JsonField>)) -> Result<String, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "not UTF-8")?;
    let mut fields = JsonObject::parse(text)?.rewrite(without);
    change(&mut fields);
    Ok(encode_object(&fields))
}

/// A failed attempt.
pub(super) struct EntryFailure<'f> {
    /// The queue that the entry was taken from.
    pub(super) queue: &'f str,
    pub(super) now: Micros,
    pub(super) node: NodeId,
    pub(super) error: &'f str,
    /// The number of times a node died while it held this entry.
    pub(super) crashes: u32,
}

/// Returns an entry after a failed attempt, with Sidekiq's fields for it and one more failure in its history.
pub(super) fn fail_entry(bytes: &[u8], failed: &EntryFailure<'_>) -> Result<String, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "not UTF-8")?;
    let parsed = JsonObject::parse(text)?;
    let count = parsed.get::<i64>("retry_count");
    let retry_queue = parsed.raw("retry_queue").map(str::to_owned);
    let mut own: DulyFields = parsed.get("duly").unwrap_or_default();
    own.crashes = failed.crashes;
    let attempt = count.map_or(1, |count| u32::try_from(count.saturating_add(2)).unwrap_or(1));
    let error = Failure::truncate_error(failed.error);
    own.history.push(history_item(&Failure {
        at: from_micros(failed.now),
        attempt,
        node: failed.node,
        error: error.to_owned(),
    }));
    let excess = own.history.len().saturating_sub(FAILURES_MAX);
    own.history.drain(..excess);
    rewrite_entry(bytes, &["error_backtrace"], |fields| {
        let queue = retry_queue.filter(|queue| queue.starts_with('"')).unwrap_or_else(|| encode_string(failed.queue));
        set_field(fields, "queue", queue);
        set_field(fields, "duly", encode_duly_fields(&own));
        set_field(fields, "error_message", encode_string(error));
        set_field(fields, "error_class", encode_string(error_class(error)));
        match count {
            None => {
                set_field(fields, "failed_at", encode_seconds(failed.now));
                set_field(fields, "retry_count", "0".to_owned());
            }
            Some(count) => {
                set_field(fields, "retry_count", count.saturating_add(1).to_string());
                set_field(fields, "retried_at", encode_seconds(failed.now));
            }
        }
    })
}

/// Returns a class for the error, by which Sidekiq Web shows and groups failures.
fn error_class(error: &str) -> &'static str {
    match error {
        _ if error.starts_with("panicked: ") => "Duly::Panic",
        _ if error.starts_with("timed out after ") => "Duly::Timeout",
        "cancelled" => "Duly::Cancelled",
        _ => "Duly::Failure",
    }
}

/// Wraps an entry that is not a job in a valid one, so that it can be inspected in the dead set.
pub(super) fn wrap_unreadable(queue: &str, bytes: &[u8], reason: &str, now: Micros) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut fields = vec![
        json_field("retry", "false"),
        json_field("queue", encode_string(queue)),
        json_field("class", encode_string("Duly::Unreadable")),
        json_field("args", format!("[{}]", encode_string(&text))),
        json_field("jid", encode_string(&JobId::fresh().to_string())),
        json_field("created_at", encode_seconds(now)),
        json_field("error_message", encode_string(&format!("not a valid job: {reason}"))),
        json_field("error_class", encode_string("Duly::Unreadable")),
        json_field("failed_at", encode_seconds(now)),
        json_field("retry_count", "0"),
    ];
    if matches!(text, std::borrow::Cow::Owned(_)) {
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        fields.push(json_field("duly", encode_object(&[json_field("hex", encode_string(&hex))])));
    }
    encode_object(&fields)
}

/// Returns the record of a running entry in the `work` hash of its process.
pub(super) fn encode_work(queue: &str, entry: &str, since: Micros) -> String {
    encode_object(&[
        json_field("queue", encode_string(queue)),
        json_field("payload", encode_string(entry)),
        json_field("run_at", (since / 1_000_000).to_string()),
    ])
}

/// The information in the record of a Sidekiq process.
pub(super) struct ProcessInfo<'p> {
    pub(super) identity: &'p str,
    pub(super) host: &'p str,
    pub(super) started_at: Micros,
    pub(super) concurrency: u64,
    pub(super) queues: &'p [String],
}

impl ProcessInfo<'_> {
    pub(super) fn encode(&self) -> String {
        let queues: Vec<String> = self.queues.iter().map(|queue| encode_string(queue)).collect();
        encode_object(&[
            json_field("hostname", encode_string(self.host)),
            json_field("started_at", encode_float(self.started_at as f64 / 1e6)),
            json_field("pid", std::process::id().to_string()),
            json_field("tag", json::encode_string("duly")),
            json_field("concurrency", self.concurrency.to_string()),
            json_field("queues", format!("[{}]", queues.join(","))),
            json_field("labels", "[\"duly\"]"),
            json_field("identity", encode_string(self.identity)),
            json_field("version", encode_string(concat!("duly ", env!("CARGO_PKG_VERSION")))),
            json_field("embedded", "false"),
        ])
    }
}
