//! One job as Sidekiq keeps it: a JSON object. Read with patience, written as Ruby would.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::id;
use super::json::{self, Fields, float, normal, object, seconds, set, string};
use crate::clock::{Micros, from_micros, to_micros};
use crate::job::push::{Push, TAGS_MAX, TIMEOUT, is_word};
use crate::job::{Failure, Job, JobId, Priority, Record, State};
use crate::node::NodeId;

/// Retries of a job that says only that it has some.
const RETRIES: u32 = 25;
/// Failures that a job carries with it, and how much of each: it is written anew with every one.
const HISTORY_MAX: usize = 10;
const HISTORY_BYTES_MAX: usize = 1_000;
/// What the history says of an attempt whose node died.
const DIED: &str = "the node died, or was paused beyond its lease, while it held this job";
/// What a job that failed carries until it starts over.
const TROUBLE: [&str; 7] =
    ["error_message", "error_class", "error_backtrace", "failed_at", "retry_count", "retried_at", "discarded_at"];

/// What duly adds to a job, under one name of its own. Sidekiq carries it along and does not look at it.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Own {
    /// The args are one value, which Sidekiq has as the only one of a list.
    #[serde(skip_serializing_if = "is_false")]
    one: bool,
    /// The args as they were pushed, where Ruby would write them otherwise.
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

fn is_false(it: &bool) -> bool {
    !it
}

fn is_zero(it: &u32) -> bool {
    *it == 0
}

/// A job as read from its entry.
pub(super) struct Entry {
    pub(super) job: Job,
    /// Attempts that failed.
    pub(super) attempts: u32,
    pub(super) crashes: u32,
    /// Since when it could be claimed, as far as the entry says.
    pub(super) due: Micros,
    pub(super) failures: Vec<Failure>,
    /// Nothing is kept of it when it is given up.
    pub(super) leaves_nothing: bool,
    /// It has failed before.
    pub(super) retried: bool,
}

/// How often a node died while it held an entry, when last, and which.
pub(super) struct Crash {
    count: u32,
    at: Micros,
    node: NodeId,
}

impl Crash {
    /// As the script notes it: count, a space, 16 digits, the node.
    pub(super) fn read(text: &[u8]) -> Option<Self> {
        let (count, rest) = std::str::from_utf8(text).ok()?.split_once(' ')?;
        let (at, node) = rest.split_at_checked(16)?;
        Some(Crash { count: count.parse().ok()?, at: at.parse().ok()?, node: node.parse().ok()? })
    }
}

/// Its tags, as far as duly can have them: a Ruby program may give any number of any texts.
fn tags(fields: &Fields<'_>) -> Vec<String> {
    let all: Vec<String> = fields.read("tags").unwrap_or_default();
    all.into_iter().filter(|tag| is_word(tag)).take(TAGS_MAX).collect()
}

/// Reads an entry of a queue; what is wrong with it if nobody can run it.
pub(super) fn read(queue: &str, bytes: &[u8], crash: Option<&Crash>) -> Result<Entry, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "not UTF-8")?;
    let fields = Fields::parse(text)?;
    let kind: String = fields.read("class").ok_or("names no class")?;
    let own: Own = fields.read("duly").unwrap_or_default();
    let moment = |name: &str| fields.text(name).and_then(micros);
    let id = fields.read::<String>("jid").map_or_else(|| id::of_bytes(bytes), |jid| id::of_jid(&jid));
    let pushed = moment("created_at").or_else(|| moment("enqueued_at")).unwrap_or(0);
    let retried = fields.read::<i64>("retry_count");
    // Whoever retries by hand takes one off first: it may be -1.
    let attempts = retried.map_or(0, |count| u32::try_from(count.saturating_add(1)).unwrap_or(0));
    let retries = retries(fields.text("retry"));
    let mut entry = Entry {
        attempts,
        crashes: own.crashes + crash.map_or(0, |crash| crash.count),
        due: moment("enqueued_at").unwrap_or(pushed),
        failures: failures(&fields, &own, attempts),
        leaves_nothing: retries.is_none() || fields.text("dead") == Some("false"),
        retried: retried.is_some(),
        job: Job {
            id,
            queue: queue.to_owned(),
            kind,
            args: args(&fields, &own),
            priority: Priority::Normal,
            pushed: from_micros(pushed),
            max_attempts: retries.unwrap_or(0).saturating_add(1),
            timeout: own.timeout_ms.map_or(TIMEOUT, Duration::from_millis),
            keep: own.keep_ms.map_or(Duration::ZERO, Duration::from_millis),
            unique: None,
            tags: tags(&fields),
            traceparent: own.traceparent.clone(),
        },
    };
    if let Some(crash) = crash {
        let error = DIED.to_owned();
        entry.failures.push(Failure { at: from_micros(crash.at), attempt: attempts + 1, node: crash.node, error });
    }
    Ok(entry)
}

/// The queue that an entry of a set belongs to.
pub(super) fn queue_of(bytes: &[u8]) -> String {
    let fields = std::str::from_utf8(bytes).ok().and_then(|text| Fields::parse(text).ok());
    fields.and_then(|fields| fields.read("queue")).unwrap_or_else(|| crate::job::push::DEFAULT_QUEUE.to_owned())
}

/// How often it may be tried again; `None` for one of which nothing is to be left.
/// One that does not say is tried again: Ruby would drop it without a trace.
fn retries(text: Option<&str>) -> Option<u32> {
    match text {
        Some("false" | "null") => None,
        Some(number) => Some(number.parse().unwrap_or(RETRIES)),
        None => Some(RETRIES),
    }
}

/// A moment: a fraction means seconds, a whole number the milliseconds of Sidekiq 8.
fn micros(text: &str) -> Option<Micros> {
    let number: f64 = text.parse().ok().filter(|number: &f64| number.is_finite())?;
    let per = if text.contains(['.', 'e', 'E']) { 1e6 } else { 1e3 };
    Some((number * per).round() as Micros)
}

fn args(fields: &Fields<'_>, own: &Own) -> String {
    let list = fields.text("args").unwrap_or("[]");
    let one = |list: &str| {
        let inner = list.trim().strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        inner.map_or_else(|| list.to_owned(), |inner| inner.trim().to_owned())
    };
    let now = if own.one { one(list) } else { list.to_owned() };
    match &own.args {
        // Only if nobody has changed them since.
        Some(pushed) if normal(pushed).ok() == normal(&now).ok() => pushed.clone(),
        _ => now,
    }
}

/// What is known of failed attempts: what duly has noted, and the last one if that was Ruby's.
fn failures(fields: &Fields<'_>, own: &Own, attempts: u32) -> Vec<Failure> {
    let noted = own.history.iter().map(|(at, attempt, node, error)| Failure {
        at: from_micros(*at),
        attempt: *attempt,
        node: *node,
        error: error.clone(),
    });
    let mut failures: Vec<Failure> = noted.collect();
    let is_known = failures.last().is_some_and(|last| last.attempt >= attempts);
    if attempts > 0 && !is_known {
        let text = |name: &str| fields.read::<String>(name).unwrap_or_default();
        let at = ["retried_at", "failed_at"].iter().find_map(|name| fields.text(name).and_then(micros));
        let error = format!("{}: {}", text("error_class"), text("error_message"));
        let error = Failure::cut(&error).to_owned();
        failures.push(Failure { at: from_micros(at.unwrap_or(0)), attempt: attempts, node: nobody(), error });
    }
    failures
}

/// The node of an attempt that was not duly's.
fn nobody() -> NodeId {
    NodeId::from_bytes([0; 16])
}

/// A field and its text.
type Field = (String, String);

fn field(name: &str, text: impl Into<String>) -> Field {
    (name.to_owned(), text.into())
}

/// A pushed job as an entry; with the moment it became ready, if it is. What is wrong with its args if they cannot be carried.
pub(super) fn write(push: &Push, now: Micros, ready: bool) -> Result<String, String> {
    let text = push.args.as_deref().map_err(Clone::clone)?;
    let own = Own {
        timeout_ms: (push.timeout != TIMEOUT).then(|| millis(push.timeout)),
        keep_ms: push.keep.filter(|keep| !keep.is_zero()).map(millis),
        traceparent: push.traceparent.clone(),
        ..Own::default()
    };
    let about = About {
        id: push.id,
        queue: &push.queue,
        kind: &push.kind,
        max_attempts: push.max_attempts,
        tags: &push.tags,
        pushed: now,
    };
    let mut fields = about.fields(text, own)?;
    if ready {
        fields.push(field("enqueued_at", seconds(now)));
    }
    Ok(object(&fields))
}

/// What is written of every job.
struct About<'j> {
    id: JobId,
    queue: &'j str,
    kind: &'j str,
    max_attempts: u32,
    tags: &'j [String],
    pushed: Micros,
}

impl About<'_> {
    fn fields(&self, args: &str, mut own: Own) -> Result<Vec<Field>, String> {
        let ruby = normal(args)?;
        own.one = !ruby.starts_with('[');
        own.args = (ruby != args).then(|| args.to_owned());
        let mut fields = vec![
            field("retry", self.max_attempts.saturating_sub(1).to_string()),
            field("queue", string(self.queue)),
            field("class", string(self.kind)),
        ];
        if !self.tags.is_empty() {
            let tags: Vec<String> = self.tags.iter().map(|tag| string(tag)).collect();
            fields.push(field("tags", format!("[{}]", tags.join(","))));
        }
        if own != Own::default() {
            fields.push(field("duly", write_own(&own)));
        }
        fields.push(field("args", if own.one { format!("[{ruby}]") } else { ruby }));
        fields.push(field("jid", string(&id::jid(self.id).unwrap_or_else(|| self.id.to_string()))));
        fields.push(field("created_at", seconds(self.pushed)));
        Ok(fields)
    }
}

fn write_own(own: &Own) -> String {
    serde_json::to_string(own).unwrap_or_else(|_| "{}".to_owned())
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// A job of another store as an entry.
pub(super) fn write_record(record: &Record) -> Result<String, String> {
    let job = &record.job;
    let tail = record.failures.len().saturating_sub(HISTORY_MAX);
    let own = Own {
        timeout_ms: (job.timeout != TIMEOUT).then(|| millis(job.timeout)),
        keep_ms: (!job.keep.is_zero()).then(|| millis(job.keep)),
        traceparent: job.traceparent.clone(),
        crashes: record.crashes,
        history: record.failures[tail..].iter().map(noted).collect(),
        ..Own::default()
    };
    let about = About {
        id: job.id,
        queue: &job.queue,
        kind: &job.kind,
        max_attempts: job.max_attempts,
        tags: &job.tags,
        pushed: to_micros(job.pushed),
    };
    let mut fields = about.fields(&job.args, own)?;
    if record.state != State::Scheduled {
        fields.push(field("enqueued_at", seconds(to_micros(record.due))));
    }
    if record.attempts > 0 {
        let last = record.failures.last();
        let at = seconds(last.map_or(0, |last| to_micros(last.at)));
        let error = last.map_or("", |last| last.error.as_str());
        fields.push(field("error_message", string(error)));
        fields.push(field("error_class", string(class_of(error))));
        fields.push(field("failed_at", at.clone()));
        fields.push(field("retry_count", (record.attempts - 1).to_string()));
        fields.push(field("retried_at", at));
    }
    Ok(object(&fields))
}

fn noted(failure: &Failure) -> (Micros, u32, NodeId, String) {
    let mut end = failure.error.len().min(HISTORY_BYTES_MAX);
    while !failure.error.is_char_boundary(end) {
        end -= 1;
    }
    (to_micros(failure.at), failure.attempt, failure.node, failure.error[..end].to_owned())
}

/// An entry of a set as it goes into its queue.
pub(super) fn promoted(bytes: &[u8], now: Micros) -> Result<String, String> {
    rewritten(bytes, &[], |fields| set(fields, "enqueued_at", seconds(now)))
}

/// The same of one that was in its queue, with how often a node died while it held it.
pub(super) fn at_once(bytes: &[u8], now: Micros, crashes: u32) -> Result<String, String> {
    rewritten(bytes, &[], |fields| {
        carry(fields, crashes);
        set(fields, "enqueued_at", seconds(now));
    })
}

/// An entry of a queue as it waits for a later moment, with how often a node died while it held it.
pub(super) fn put_off(bytes: &[u8], crashes: u32) -> Result<String, String> {
    rewritten(bytes, &["enqueued_at"], |fields| carry(fields, crashes))
}

/// Writes the crashes into the entry itself: they were noted by its text, which changes.
fn carry(fields: &mut Vec<Field>, crashes: u32) {
    let noted = fields.iter().find(|(name, _)| name == "duly");
    let mut own: Own = noted.and_then(|(_, text)| serde_json::from_str(text).ok()).unwrap_or_default();
    if own.crashes != crashes {
        own.crashes = crashes;
        set(fields, "duly", write_own(&own));
    }
}

/// A dead or done entry as it starts over, at once or later.
pub(super) fn anew(bytes: &[u8], now: Option<Micros>) -> Result<String, String> {
    let without: Vec<&str> = TROUBLE.iter().copied().chain(["enqueued_at"]).collect();
    let text = std::str::from_utf8(bytes).map_err(|_| "not UTF-8")?;
    let mut own: Own = Fields::parse(text)?.read("duly").unwrap_or_default();
    own.crashes = 0;
    rewritten(bytes, &without, |fields| {
        if fields.iter().any(|(name, _)| name == "duly") {
            set(fields, "duly", write_own(&own));
        }
        if let Some(now) = now {
            set(fields, "enqueued_at", seconds(now));
        }
    })
}

fn rewritten(bytes: &[u8], without: &[&str], change: impl FnOnce(&mut Vec<Field>)) -> Result<String, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "not UTF-8")?;
    let mut fields = Fields::parse(text)?.rewrite(without);
    change(&mut fields);
    Ok(object(&fields))
}

/// A failed attempt.
pub(super) struct Failed<'f> {
    /// The queue that the entry was taken from.
    pub(super) queue: &'f str,
    pub(super) now: Micros,
    pub(super) node: NodeId,
    pub(super) error: &'f str,
    /// How often a node died while it held this entry.
    pub(super) crashes: u32,
}

/// An entry whose attempt has failed, with Sidekiq's own fields and one line more in its history.
pub(super) fn failed(bytes: &[u8], failed: &Failed<'_>) -> Result<String, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "not UTF-8")?;
    let read = Fields::parse(text)?;
    let count = read.read::<i64>("retry_count");
    let again = read.text("retry_queue").map(str::to_owned);
    let mut own: Own = read.read("duly").unwrap_or_default();
    own.crashes = failed.crashes;
    let attempt = count.map_or(1, |count| u32::try_from(count.saturating_add(2)).unwrap_or(1));
    let error = Failure::cut(failed.error);
    own.history.push(noted(&Failure { at: at(failed.now), attempt, node: failed.node, error: error.to_owned() }));
    let old = own.history.len().saturating_sub(HISTORY_MAX);
    own.history.drain(..old);
    rewritten(bytes, &["error_backtrace"], |fields| {
        let queue = again.filter(|queue| queue.starts_with('"')).unwrap_or_else(|| string(failed.queue));
        set(fields, "queue", queue);
        set(fields, "duly", write_own(&own));
        set(fields, "error_message", string(error));
        set(fields, "error_class", string(class_of(error)));
        match count {
            None => {
                set(fields, "failed_at", seconds(failed.now));
                set(fields, "retry_count", "0".to_owned());
            }
            Some(count) => {
                set(fields, "retry_count", count.saturating_add(1).to_string());
                set(fields, "retried_at", seconds(failed.now));
            }
        }
    })
}

fn at(now: Micros) -> SystemTime {
    from_micros(now)
}

/// What kind of failure it was, for a page that groups by it.
fn class_of(error: &str) -> &'static str {
    match error {
        _ if error.starts_with("panicked: ") => "Duly::Panic",
        _ if error.starts_with("timed out after ") => "Duly::Timeout",
        "cancelled" => "Duly::Cancelled",
        _ => "Duly::Failure",
    }
}

/// Something that is no job, wrapped in one so that people can look at it.
pub(super) fn unreadable(queue: &str, bytes: &[u8], why: &str, now: Micros) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut fields = vec![
        field("retry", "false"),
        field("queue", string(queue)),
        field("class", string("Duly::Unreadable")),
        field("args", format!("[{}]", string(&text))),
        field("jid", string(&JobId::fresh().to_string())),
        field("created_at", seconds(now)),
        field("error_message", string(&format!("not a job that can be run: {why}"))),
        field("error_class", string("Duly::Unreadable")),
        field("failed_at", seconds(now)),
        field("retry_count", "0"),
    ];
    if matches!(text, std::borrow::Cow::Owned(_)) {
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        fields.push(field("duly", object(&[field("hex", string(&hex))])));
    }
    object(&fields)
}

/// What a process shows of an entry that it runs.
pub(super) fn work(queue: &str, entry: &str, since: Micros) -> String {
    object(&[
        field("queue", string(queue)),
        field("payload", string(entry)),
        field("run_at", (since / 1_000_000).to_string()),
    ])
}

/// What a process says about itself.
pub(super) struct Process<'p> {
    pub(super) identity: &'p str,
    pub(super) host: &'p str,
    pub(super) since: Micros,
    pub(super) concurrency: u64,
    pub(super) queues: &'p [String],
}

impl Process<'_> {
    pub(super) fn text(&self) -> String {
        let queues: Vec<String> = self.queues.iter().map(|queue| string(queue)).collect();
        object(&[
            field("hostname", string(self.host)),
            field("started_at", float(self.since as f64 / 1e6)),
            field("pid", std::process::id().to_string()),
            field("tag", json::string("duly")),
            field("concurrency", self.concurrency.to_string()),
            field("queues", format!("[{}]", queues.join(","))),
            field("labels", "[\"duly\"]"),
            field("identity", string(self.identity)),
            field("version", string(concat!("duly ", env!("CARGO_PKG_VERSION")))),
            field("embedded", "false"),
        ])
    }
}
