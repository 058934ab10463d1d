//! Jobs to be pushed: their options, and the validation of their input.

use std::time::{Duration, SystemTime};

use crate::clock::{Micros, micros, to_micros};
use crate::error::{Error, Result};
use crate::job::{JobId, Priority};

/// Maximum length of args, in bytes of JSON text.
pub const ARGS_BYTES_MAX: usize = 1024 * 1024;
/// Maximum length of the name of a queue, kind or tag, in bytes.
pub const NAME_BYTES_MAX: usize = 128;
/// Maximum length of a unique key, in bytes.
pub const UNIQUE_BYTES_MAX: usize = 256;
/// Maximum tags of a job.
pub const TAGS_MAX: usize = 16;
/// Maximum jobs in one push.
pub const PUSH_MAX: usize = 10_000;
/// Maximum bytes of args in one push, over all jobs.
pub const PUSH_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The latest due time of a job, in microseconds since 1970: 2223-07-06. Later times lose microsecond precision on a
/// server, which stores them as floating-point numbers.
const DUE_MICROS_MAX: Micros = 8_000_000_000_000_000;
/// The longest delay of a job: 46,296 days.
const DELAY_MICROS_MAX: Micros = DUE_MICROS_MAX / 2;

/// Default number of attempts that may fail before a job is buried.
pub const DEFAULT_MAX_ATTEMPTS: u32 = 25;
/// Default time that one attempt may run.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(3600);
/// The default queue.
pub const DEFAULT_QUEUE: &str = "default";
/// Prefix of kinds reserved by duly: they cannot be pushed, and no handler gets them.
pub(crate) const RESERVED_KIND_PREFIX: &str = "duly:";

/// When a job becomes due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Due {
    /// At once.
    #[default]
    Now,
    /// After this delay, by the store's clock. The pusher's clock does not matter.
    After(Duration),
    /// At this time.
    At(SystemTime),
}

/// The behaviour of a push if an unfinished job with the same unique key exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum UniqueConflict {
    /// Keep the existing job and push nothing.
    #[default]
    Keep,
    /// Replace the existing job, unless it is running.
    Replace,
}

/// A job to be pushed, with its options.
///
/// Created from a value of a type that implements [`Args`](crate::Args), or by [`Push::new`] from a kind and JSON text.
/// With [`PushExt`](crate::PushExt), options can be set on the value itself: `Mail { .. }.after(MINUTE).queue("mail")`.
///
/// Deliberately not `Clone`: a generated id is known to be new, so the store does not look for it.
///
/// ```compile_fail
/// let push = duly::Push::new("mail", "{}");
/// let again = push.clone();
/// ```
///
/// To repeat a push safely after [`Error::Unknown`], set an id with [`Push::id`]:
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> duly::Result<()> {
/// # let duly = duly::Duly::open(":memory:").await?;
/// let mail = || duly::Push::new("mail", "{}").id(duly::JobId::from_name("mail:7"));
/// assert!(duly.push(mail()).await?.is_new());
/// assert!(!duly.push(mail()).await?.is_new());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Push {
    pub(crate) id: JobId,
    /// The id was generated here: no store has seen it, so no lookup is needed.
    pub(crate) has_fresh_id: bool,
    pub(crate) queue: String,
    pub(crate) kind: String,
    /// JSON text, or the serialization error, which the push reports.
    pub(crate) args: Result<String, String>,
    pub(crate) priority: Priority,
    pub(crate) due: Due,
    pub(crate) unique: Option<String>,
    pub(crate) conflict: UniqueConflict,
    pub(crate) max_attempts: u32,
    pub(crate) timeout: Duration,
    pub(crate) keep: Option<Duration>,
    pub(crate) tags: Vec<String>,
    pub(crate) traceparent: Option<String>,
}

/// The result of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PushResult {
    /// The job was pushed.
    New(JobId),
    /// Nothing changed: a job with the same id or unique key exists, or a job with the same id existed within the
    /// time set by [`Builder::remember_ids`](crate::Builder::remember_ids) (default 10 minutes).
    Existing(JobId),
    /// The job was pushed and replaced a waiting job with the same unique key.
    Replaced {
        /// The new job.
        id: JobId,
        /// The replaced job.
        old: JobId,
    },
}

impl PushResult {
    /// Returns the id of the job that is in the store now.
    #[must_use]
    pub fn id(&self) -> JobId {
        match *self {
            PushResult::New(id) | PushResult::Existing(id) | PushResult::Replaced { id, .. } => id,
        }
    }

    /// Returns whether the push changed the store.
    #[must_use]
    pub fn is_new(&self) -> bool {
        !matches!(self, PushResult::Existing(_))
    }
}

impl Push {
    /// Returns a job of this kind with args as JSON text. Invalid JSON is reported by the push.
    #[must_use]
    pub fn new(kind: impl Into<String>, args: impl Into<String>) -> Self {
        Push::with_args(kind.into(), validate_json(args.into()))
    }

    /// Returns a job of this kind with valid JSON args, or with the reason why there are none.
    pub(crate) fn with_args(kind: String, args: Result<String, String>) -> Self {
        Push {
            id: JobId::fresh(),
            has_fresh_id: true,
            queue: DEFAULT_QUEUE.to_owned(),
            kind,
            args,
            priority: Priority::Normal,
            due: Due::Now,
            unique: None,
            conflict: UniqueConflict::Keep,
            max_attempts: DEFAULT_MAX_ATTEMPTS,
            timeout: DEFAULT_TIMEOUT,
            keep: None,
            tags: Vec::new(),
            traceparent: None,
        }
    }

    /// Replaces the kind.
    #[must_use]
    pub fn kind(mut self, kind: impl Into<String>) -> Self {
        self.kind = kind.into();
        self
    }

    /// Replaces the args, as JSON text. Invalid JSON is reported by the push.
    #[must_use]
    pub fn args(mut self, args: impl Into<String>) -> Self {
        self.args = validate_json(args.into());
        self
    }

    /// Sets the queue (default `default`).
    #[must_use]
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.queue = queue.into();
        self
    }

    /// Makes the job due after this delay, by the store's clock.
    #[must_use]
    pub fn after(mut self, delay: Duration) -> Self {
        self.due = Due::After(delay);
        self
    }

    /// Makes the job due at this time; a past time means now.
    #[must_use]
    pub fn at(mut self, time: SystemTime) -> Self {
        self.due = Due::At(time);
        self
    }

    /// Sets the priority among ready jobs of the queue.
    #[must_use]
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Pushes only if no unfinished job of the queue has this key. Otherwise the existing job stays.
    #[must_use]
    pub fn unique(mut self, key: impl Into<String>) -> Self {
        self.unique = Some(key.into());
        self
    }

    /// Sets what happens if an unfinished job with the same unique key exists.
    #[must_use]
    pub fn on_conflict(mut self, conflict: UniqueConflict) -> Self {
        self.conflict = conflict;
        self
    }

    /// Sets the id. Pushing the same id again changes nothing and returns [`PushResult::Existing`].
    #[must_use]
    pub fn id(mut self, id: JobId) -> Self {
        self.id = id;
        self.has_fresh_id = false;
        self
    }

    /// Sets how many attempts may fail before the job is buried (default 25).
    #[must_use]
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts;
        self
    }

    /// Sets how long one attempt may run (default one hour).
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets how long the job is kept once it is done (default: the option of the store).
    #[must_use]
    pub fn keep(mut self, keep: Duration) -> Self {
        self.keep = Some(keep);
        self
    }

    /// Adds a tag to find the job by. Can be called several times.
    #[must_use]
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.tags.push(tag.into());
        self
    }

    /// Adds tags to find the job by.
    #[must_use]
    pub fn tags<T: Into<String>>(mut self, tags: impl IntoIterator<Item = T>) -> Self {
        self.tags.extend(tags.into_iter().map(Into::into));
        self
    }

    /// Sets the W3C trace context that the span of each attempt continues.
    #[must_use]
    pub fn traceparent(mut self, traceparent: impl Into<String>) -> Self {
        self.traceparent = Some(traceparent.into());
        self
    }

    /// Returns the id of the job.
    #[must_use]
    pub fn job_id(&self) -> JobId {
        self.id
    }

    /// Validates everything that does not depend on the store.
    ///
    /// Every push does this itself. Call it to find the invalid job before you push many.
    pub fn check(&self) -> Result<()> {
        check_name("queue", &self.queue)?;
        check_name("kind", &self.kind)?;
        if self.kind.starts_with(RESERVED_KIND_PREFIX) {
            return Err(Error::invalid(
                "kind",
                format!("{:?} begins with {RESERVED_KIND_PREFIX}, which is reserved", self.kind),
            ));
        }
        if self.tags.len() > TAGS_MAX {
            return Err(Error::invalid("tags", format!("{} tags; a job has at most {TAGS_MAX}", self.tags.len())));
        }
        for tag in &self.tags {
            check_name("tags", tag)?;
        }
        if self.max_attempts == 0 {
            return Err(Error::invalid("max_attempts", "must be at least 1"));
        }
        if self.timeout.is_zero() {
            return Err(Error::invalid("timeout", "must be greater than zero"));
        }
        if let Some(key) = &self.unique {
            check_text("unique", key, UNIQUE_BYTES_MAX)?;
        }
        if let Some(trace) = &self.traceparent {
            check_traceparent(trace)?;
        }
        self.due.check()?;
        self.check_args()
    }

    fn check_args(&self) -> Result<()> {
        let args = match &self.args {
            Ok(args) => args,
            Err(reason) => return Err(Error::invalid("args", reason.clone())),
        };
        check_args_len(args)
    }
}

impl Due {
    /// Returns an error if the due time is too late for a store to keep.
    pub fn check(self) -> Result<()> {
        let reason = match self {
            Due::At(time) if to_micros(time) > DUE_MICROS_MAX => "too late; a job can be due until 2223-07-06",
            Due::After(delay) if micros(delay) > DELAY_MICROS_MAX => "too late; a job can be due in at most 46296 days",
            Due::Now | Due::After(_) | Due::At(_) => return Ok(()),
        };
        Err(Error::invalid("due", reason))
    }
}

/// Validates args that replace others: they must be JSON and not too long.
pub(crate) fn check_args(args: &str) -> Result<()> {
    serde_json::from_str::<serde::de::IgnoredAny>(args)
        .map_err(|error| Error::invalid("args", format!("not JSON: {error}")))?;
    check_args_len(args)
}

fn check_args_len(args: &str) -> Result<()> {
    if args.len() > ARGS_BYTES_MAX {
        return Err(Error::invalid(
            "args",
            format!(
                "{} bytes; args have at most {ARGS_BYTES_MAX}: store large data elsewhere and push a reference to it",
                args.len()
            ),
        ));
    }
    Ok(())
}

/// Returns the args if they are JSON, and the reason otherwise.
fn validate_json(args: String) -> Result<String, String> {
    match serde_json::from_str::<serde::de::IgnoredAny>(&args) {
        Ok(_) => Ok(args),
        Err(error) => Err(format!("not JSON: {error}")),
    }
}

/// Returns an error about `field` if `name` cannot be the name of a queue, kind, tag, cron rule, method or token.
///
/// A name has 1 to 128 letters, digits and `_ . : / -`. Braces, spaces and control characters are not allowed: names
/// become keys, file names, labels and lines on a terminal.
pub fn check_name(field: &'static str, name: &str) -> Result<()> {
    if name.is_empty() {
        return Err(Error::invalid(field, "must not be empty"));
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(Error::invalid(field, format!("{} bytes long; at most {NAME_BYTES_MAX}", name.len())));
    }
    match name.chars().find(|c| !c.is_ascii_alphanumeric() && !"_.:/-".contains(*c)) {
        None => Ok(()),
        Some(bad) => Err(Error::invalid(
            field,
            format!("{name:?} contains {bad:?}; only letters, digits and _ . : / - are allowed"),
        )),
    }
}

/// Returns whether every store can keep the text as a kind or a tag. Other systems allow more than [`check_name`] does.
pub(crate) fn is_word(text: &str) -> bool {
    !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || c.is_control())
}

pub(crate) fn check_text(field: &'static str, text: &str, bytes_max: usize) -> Result<()> {
    if text.is_empty() || text.len() > bytes_max {
        return Err(Error::invalid(field, format!("{} bytes long; must be 1 to {bytes_max}", text.len())));
    }
    if text.chars().any(char::is_control) {
        return Err(Error::invalid(field, format!("{text:?} contains a control character")));
    }
    Ok(())
}

/// Validates the W3C format `00-<32 hex>-<16 hex>-<2 hex>`.
fn check_traceparent(text: &str) -> Result<()> {
    let hex = |part: &str, len: usize| part.len() == len && part.bytes().all(|b| b.is_ascii_hexdigit());
    let parts: Vec<&str> = text.split('-').collect();
    match parts[..] {
        [version, trace, span, flags] if hex(version, 2) && hex(trace, 32) && hex(span, 16) && hex(flags, 2) => Ok(()),
        _ => Err(Error::invalid("traceparent", "must look like 00-<32 hex digits>-<16 hex digits>-<2 hex digits>")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn invalid_field(push: Push) -> &'static str {
        match push.check() {
            Ok(()) => "",
            Err(Error::Invalid { field, .. }) => field,
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn invalid_push_error_names_its_field() {
        let ok = || Push::new("mail", "{}");
        assert_eq!(invalid_field(ok()), "");
        assert_eq!(invalid_field(Push::new("", "{}")), "kind");
        assert_eq!(invalid_field(Push::new("a b", "{}")), "kind");
        assert_eq!(invalid_field(Push::new("mail", "{")), "args");
        assert_eq!(invalid_field(Push::new("mail", format!("\"{}\"", "x".repeat(ARGS_BYTES_MAX)))), "args");
        assert_eq!(invalid_field(ok().queue("a\nb")), "queue");
        assert_eq!(invalid_field(ok().queue("x".repeat(129))), "queue");
        assert_eq!(invalid_field(ok().queue("a{b}")), "queue");
        assert_eq!(invalid_field(ok().unique("")), "unique");
        assert_eq!(invalid_field(ok().unique("a\u{7}")), "unique");
        assert_eq!(invalid_field(ok().max_attempts(0)), "max_attempts");
        assert_eq!(invalid_field(ok().timeout(Duration::ZERO)), "timeout");
        assert_eq!(invalid_field(ok().tags(vec!["t"; 17])), "tags");
        assert_eq!(invalid_field(ok().tag("with space")), "tags");
        assert_eq!(invalid_field(ok().at(crate::clock::from_micros(DUE_MICROS_MAX))), "");
        assert_eq!(invalid_field(ok().at(crate::clock::from_micros(DUE_MICROS_MAX + 1))), "due");
        assert_eq!(invalid_field(ok().after(Duration::from_micros(DELAY_MICROS_MAX as u64))), "");
        assert_eq!(invalid_field(ok().after(Duration::MAX)), "due");
        assert_eq!(invalid_field(ok().traceparent("nonsense")), "traceparent");
        assert_eq!(invalid_field(ok().traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")), "");
    }

    proptest! {
        #[test]
        fn check_never_panics(kind in ".*", args in ".*", queue in ".*", key in ".*", trace in ".*") {
            let push = Push::new(kind, args).queue(queue).unique(key).traceparent(trace);
            let _ = push.check();
        }

        #[test]
        fn valid_names_pass(name in "[A-Za-z0-9_.:/-]{1,128}") {
            prop_assert!(check_name("queue", &name).is_ok());
        }
    }
}
