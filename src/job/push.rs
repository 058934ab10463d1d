//! What goes through the door: a job to be, its options, and the rules its input must keep.

use std::time::{Duration, SystemTime};

use crate::clock::{Micros, micros, to_micros};
use crate::error::{Error, Result};
use crate::job::{JobId, Priority};

/// Longest args, in bytes of JSON text.
pub const ARGS_BYTES_MAX: usize = 1024 * 1024;
/// Longest name of a queue, kind or tag, in bytes.
pub const NAME_BYTES_MAX: usize = 128;
/// Longest unique key, in bytes.
pub const UNIQUE_BYTES_MAX: usize = 256;
/// Most tags of a job.
pub const TAGS_MAX: usize = 16;
/// Most jobs in one push.
pub const PUSH_MAX: usize = 10_000;
/// Most bytes of args in one push, all jobs together.
pub const PUSH_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The last moment at which a job can be due, in microseconds since 1970: 2223-07-06. Beyond it a server could not tell
/// microseconds apart any more.
const DUE_MICROS_MAX: Micros = 8_000_000_000_000_000;
/// The longest time from now after which a job can be due: 46,296 days.
const DELAY_MICROS_MAX: Micros = DUE_MICROS_MAX / 2;

/// Attempts that may fail before a job is buried, unless the push says otherwise.
pub const DEFAULT_MAX_ATTEMPTS: u32 = 25;
/// How long one attempt may run, unless the push says otherwise.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(3600);
/// The queue of a job that names none.
pub const DEFAULT_QUEUE: &str = "default";
/// How kinds begin that duly has made for itself: nobody pushes them, no handler gets them.
pub(crate) const RESERVED_KIND_PREFIX: &str = "duly:";

/// From when a job may be claimed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Due {
    /// At once.
    #[default]
    Now,
    /// So long after the push, by the store's clock: the pusher's own clock does not matter.
    After(Duration),
    /// At this moment.
    At(SystemTime),
}

/// What to do if an unfinished job with the same unique key exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum UniqueConflict {
    /// Keep the old job, push nothing.
    #[default]
    Keep,
    /// Put the new job in its place, unless the old one is running.
    Replace,
}

/// A job to be pushed, with its options.
///
/// Made from a value whose type implements [`Args`](crate::Args), or by [`Push::new`] from a kind and JSON text.
/// The options can be called on the value itself: `Mail { .. }.after(MINUTE).queue("mail")`.
///
/// Not `Clone`, on purpose: the id that it has by itself is new to every store, and is not looked for.
///
/// ```compile_fail
/// let push = duly::Push::new("mail", "{}");
/// let again = push.clone();
/// ```
///
/// A push that is to be repeated safely, after [`Error::Unknown`], is given an id with [`Push::id`]:
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> duly::Result<()> {
/// # let duly = duly::Duly::open(":memory:").await?;
/// let mail = || duly::Push::new("mail", "{}").id(duly::JobId::named("mail:7"));
/// assert!(duly.push(mail()).await?.is_new());
/// assert!(!duly.push(mail()).await?.is_new());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Push {
    pub(crate) id: JobId,
    /// The library made this id just now: no store has seen it, no look-up is needed.
    pub(crate) has_fresh_id: bool,
    pub(crate) queue: String,
    pub(crate) kind: String,
    /// JSON text, or why the value could not be written as JSON: told at the push.
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

/// What became of a pushed job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PushResult {
    /// It is in the store now.
    New(JobId),
    /// Nothing changed: this job is there already, by the same id or the same unique key,
    /// or its id was there within the last ten minutes.
    Existing(JobId),
    /// It is in the store now, and took the place of a waiting job with the same unique key.
    Replaced {
        /// The new job.
        id: JobId,
        /// The one that is gone.
        old: JobId,
    },
}

impl PushResult {
    /// The job that is in the store now.
    #[must_use]
    pub fn id(&self) -> JobId {
        match *self {
            PushResult::New(id) | PushResult::Existing(id) | PushResult::Replaced { id, .. } => id,
        }
    }

    /// Whether the push changed the store.
    #[must_use]
    pub fn is_new(&self) -> bool {
        !matches!(self, PushResult::Existing(_))
    }
}

impl Push {
    /// A job of this kind with args as JSON text. Text that is not JSON is refused at the push.
    #[must_use]
    pub fn new(kind: impl Into<String>, args: impl Into<String>) -> Self {
        Push::with_args(kind.into(), validate_json(args.into()))
    }

    /// A job of this kind with args that are known to be JSON, or the reason why there are none.
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

    /// Of this kind instead.
    #[must_use]
    pub fn kind(mut self, kind: impl Into<String>) -> Self {
        self.kind = kind.into();
        self
    }

    /// With these args instead, as JSON text. Text that is not JSON is refused at the push.
    #[must_use]
    pub fn args(mut self, args: impl Into<String>) -> Self {
        self.args = validate_json(args.into());
        self
    }

    /// Into this queue instead of `default`.
    #[must_use]
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.queue = queue.into();
        self
    }

    /// So long from now, by the store's clock.
    #[must_use]
    pub fn after(mut self, delay: Duration) -> Self {
        self.due = Due::After(delay);
        self
    }

    /// At this moment; at once if it is past.
    #[must_use]
    pub fn at(mut self, moment: SystemTime) -> Self {
        self.due = Due::At(moment);
        self
    }

    /// Before or after other ready jobs of its queue.
    #[must_use]
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Only if no unfinished job of the queue has this key; else the old job stays.
    #[must_use]
    pub fn unique(mut self, key: impl Into<String>) -> Self {
        self.unique = Some(key.into());
        self
    }

    /// What to do if an unfinished job with the same unique key exists.
    #[must_use]
    pub fn on_conflict(mut self, conflict: UniqueConflict) -> Self {
        self.conflict = conflict;
        self
    }

    /// Under this id: pushing the same id again changes nothing and says so.
    #[must_use]
    pub fn id(mut self, id: JobId) -> Self {
        self.id = id;
        self.has_fresh_id = false;
        self
    }

    /// How many attempts may fail before the job is buried (default 25).
    #[must_use]
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts;
        self
    }

    /// How long one attempt may run (default one hour).
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How long the job stays in the store once it is done (default: what the store was opened with).
    #[must_use]
    pub fn keep(mut self, keep: Duration) -> Self {
        self.keep = Some(keep);
        self
    }

    /// A word to find the job by; may be called several times.
    #[must_use]
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.tags.push(tag.into());
        self
    }

    /// Words to find the job by.
    #[must_use]
    pub fn tags<T: Into<String>>(mut self, tags: impl IntoIterator<Item = T>) -> Self {
        self.tags.extend(tags.into_iter().map(Into::into));
        self
    }

    /// The W3C trace context to carry along to the attempt's span.
    #[must_use]
    pub fn traceparent(mut self, traceparent: impl Into<String>) -> Self {
        self.traceparent = Some(traceparent.into());
        self
    }

    /// The id under which it will be pushed.
    #[must_use]
    pub fn job_id(&self) -> JobId {
        self.id
    }

    /// Everything that can be wrong with a push before a store sees it: for who pushes many and wants to know which is wrong.
    /// Every push is checked in any case.
    pub fn check(&self) -> Result<()> {
        check_name("queue", &self.queue)?;
        check_name("kind", &self.kind)?;
        if self.kind.starts_with(RESERVED_KIND_PREFIX) {
            return Err(Error::invalid(
                "kind",
                format!("{:?} begins with {RESERVED_KIND_PREFIX}, which is duly's own", self.kind),
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
            return Err(Error::invalid("timeout", "must be longer than nothing"));
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
            Err(why) => return Err(Error::invalid("args", why.clone())),
        };
        check_args_len(args)
    }
}

impl Due {
    /// Returns an error if the due time is too late for a store to keep.
    pub fn check(self) -> Result<()> {
        let why = match self {
            Due::At(moment) if to_micros(moment) > DUE_MICROS_MAX => "too late; a job can be due until 2223-07-06",
            Due::After(delay) if micros(delay) > DELAY_MICROS_MAX => {
                "too late; a job can be due 46296 days from now at most"
            }
            Due::Now | Due::After(_) | Due::At(_) => return Ok(()),
        };
        Err(Error::invalid("due", why))
    }
}

/// Args that replace others: JSON, and not too long.
pub(crate) fn check_args(args: &str) -> Result<()> {
    serde_json::from_str::<serde::de::IgnoredAny>(args)
        .map_err(|why| Error::invalid("args", format!("are not JSON: {why}")))?;
    check_args_len(args)
}

fn check_args_len(args: &str) -> Result<()> {
    if args.len() > ARGS_BYTES_MAX {
        return Err(Error::invalid(
            "args",
            format!(
                "{} bytes; args have at most {ARGS_BYTES_MAX}: put large data elsewhere and push where it is",
                args.len()
            ),
        ));
    }
    Ok(())
}

/// Args as they are, if they are JSON; else why they are not.
fn validate_json(args: String) -> Result<String, String> {
    match serde_json::from_str::<serde::de::IgnoredAny>(&args) {
        Ok(_) => Ok(args),
        Err(why) => Err(format!("not JSON: {why}")),
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
            format!("{name:?} has {bad:?} in it; only letters, digits and _ . : / - are allowed"),
        )),
    }
}

/// What every store can keep as a kind or a tag, however long. Other systems allow more in theirs than we do in a name.
pub(crate) fn is_word(text: &str) -> bool {
    !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || c.is_control())
}

pub(crate) fn check_text(field: &'static str, text: &str, bytes_max: usize) -> Result<()> {
    if text.is_empty() || text.len() > bytes_max {
        return Err(Error::invalid(field, format!("{} bytes long; must be 1 to {bytes_max}", text.len())));
    }
    if text.chars().any(char::is_control) {
        return Err(Error::invalid(field, format!("{text:?} has a control character in it")));
    }
    Ok(())
}

/// `00-<32 hex>-<16 hex>-<2 hex>`, as the W3C recommendation on trace context has it.
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
        fn no_text_makes_a_check_panic(kind in ".*", args in ".*", queue in ".*", key in ".*", trace in ".*") {
            let push = Push::new(kind, args).queue(queue).unique(key).traceparent(trace);
            let _ = push.check();
        }

        #[test]
        fn good_names_pass(name in "[A-Za-z0-9_.:/-]{1,128}") {
            prop_assert!(check_name("queue", &name).is_ok());
        }
    }
}
