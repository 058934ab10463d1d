//! Jobs to be pushed: their options, and the validation of their input.

use std::time::{Duration, SystemTime};

use crate::error::{Error, Result};
use crate::job::args::DefaultedOptions;
use crate::job::depth::check_depth;
pub use crate::job::due::Due;
use crate::job::unique::{UniqueConflict, UniqueScope};
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

/// Default number of attempts that may fail before a job is buried.
pub const DEFAULT_MAX_ATTEMPTS: u32 = 25;
/// Default time that one attempt may run.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(3600);
/// The default queue.
pub const DEFAULT_QUEUE: &str = "default";
/// Prefix of kinds reserved by duly: they cannot be pushed, and no handler gets them.
pub(crate) const RESERVED_KIND_PREFIX: &str = "duly:";
/// The kind of a job that this version cannot read. No handler has it, so the job is released.
pub(crate) const UNREADABLE_KIND: &str = "duly:unreadable";

/// A job to be pushed, with its options.
///
/// Created from a value of a type that implements [`Args`](crate::Args), or by [`Push::new`] from a kind and JSON text.
/// With [`PushExt`](crate::PushExt), options can be set on the value itself: `Mail { .. }.after(MINUTE).queue("mail")`.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use duly::{Priority, Push};
///
/// let push = Push::new("mail", r#"{"to":"ada"}"#)
///     .queue("post").priority(Priority::High)
///     .after(Duration::from_secs(60))
///     .max_attempts(5).timeout(Duration::from_secs(30))
///     .unique("welcome:ada").tag("welcome");
/// push.check()?;
/// # Ok::<_, duly::Error>(())
/// ```
///
/// Not `Clone` on purpose: the store does not look for a generated id, because it is known to be new.
/// A clone would have the same id.
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
    /// The unique key. A store gets it with its scope, see [`UniqueKey`](crate::job::UniqueKey).
    pub(crate) unique: Option<String>,
    pub(crate) unique_scope: UniqueScope,
    pub(crate) conflict: UniqueConflict,
    pub(crate) max_attempts: u32,
    pub(crate) timeout: Duration,
    pub(crate) keep: Option<Duration>,
    pub(crate) tags: Vec<String>,
    pub(crate) traceparent: Option<String>,
    /// The options that a cron rule drops, because they come from [`Args::defaults`](crate::Args::defaults).
    pub(crate) defaulted: DefaultedOptions,
}

/// The result of a push.
///
/// # Examples
///
/// ```
/// # use duly::{Duly, Push, PushResult};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> duly::Result<()> {
/// # let duly = Duly::open(":memory:").await?;
/// match duly.push(Push::new("mail", "{}").unique("welcome:ada")).await? {
///     PushResult::New(id) => println!("pushed {id}"),
///     PushResult::Existing(id) => println!("{id} has the same id or unique key"),
///     other => println!("{} is in the store now", other.id()),
/// }
/// # Ok(())
/// # }
/// ```
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
    ///
    /// # Examples
    ///
    /// ```
    /// let push = duly::Push::new("mail", r#"{"to":"ada"}"#);
    /// assert_eq!((push.job_kind(), push.job_args()), ("mail", Some(r#"{"to":"ada"}"#)));
    /// ```
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
            unique_scope: UniqueScope::Kind,
            conflict: UniqueConflict::Keep,
            max_attempts: DEFAULT_MAX_ATTEMPTS,
            timeout: DEFAULT_TIMEOUT,
            keep: None,
            tags: Vec::new(),
            traceparent: None,
            defaulted: DefaultedOptions::default(),
        }
    }

    /// Replaces the kind.
    ///
    /// # Examples
    ///
    /// ```
    /// assert_eq!(duly::Push::new("mail", "{}").kind("letter").job_kind(), "letter");
    /// ```
    #[must_use]
    pub fn kind(mut self, kind: impl Into<String>) -> Self {
        self.kind = kind.into();
        self
    }

    /// Replaces the args, as JSON text. Invalid JSON is reported by the push.
    ///
    /// # Examples
    ///
    /// ```
    /// assert_eq!(duly::Push::new("mail", "{}").args("[1, 2]").job_args(), Some("[1, 2]"));
    /// ```
    #[must_use]
    pub fn args(mut self, args: impl Into<String>) -> Self {
        self.args = validate_json(args.into());
        self
    }

    /// Sets the queue (default `default`).
    ///
    /// # Examples
    ///
    /// ```
    /// assert_eq!(duly::Push::new("mail", "{}").queue("bulk").job_queue(), "bulk");
    /// ```
    #[must_use]
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.queue = queue.into();
        self
    }

    /// Makes the job due after this delay, by the store's clock.
    ///
    /// # Examples
    ///
    /// ```
    /// let in_an_hour = duly::Push::new("mail", "{}").after(std::time::Duration::from_secs(3600));
    /// ```
    #[must_use]
    pub fn after(self, delay: Duration) -> Self {
        self.with_due(Due::After(delay))
    }

    /// Makes the job due at this time; a past time means now.
    ///
    /// # Examples
    ///
    /// ```
    /// let at = std::time::SystemTime::now() + std::time::Duration::from_secs(3600);
    /// let push = duly::Push::new("mail", "{}").at(at);
    /// ```
    #[must_use]
    pub fn at(self, time: SystemTime) -> Self {
        self.with_due(Due::At(time))
    }

    /// Sets the priority among ready jobs of the queue.
    ///
    /// # Examples
    ///
    /// ```
    /// let urgent = duly::Push::new("mail", "{}").priority(duly::Priority::High);
    /// ```
    #[must_use]
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Sets the id. Pushing the same id again changes nothing and returns [`PushResult::Existing`].
    ///
    /// # Examples
    ///
    /// ```
    /// let push = duly::Push::new("mail", "{}").id(duly::JobId::from_name("invoice:7"));
    /// ```
    #[must_use]
    pub fn id(mut self, id: JobId) -> Self {
        self.id = id;
        self.has_fresh_id = false;
        self.defaulted.id = false;
        self
    }

    /// Sets how many attempts may fail before the job is buried (default 25).
    ///
    /// # Examples
    ///
    /// ```
    /// let once = duly::Push::new("mail", "{}").max_attempts(1); // no retry
    /// ```
    #[must_use]
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts;
        self
    }

    /// Sets how long one attempt may run (default one hour).
    ///
    /// # Examples
    ///
    /// ```
    /// let push = duly::Push::new("mail", "{}").timeout(std::time::Duration::from_secs(30));
    /// ```
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets how long the job is kept once it is done (default: the option of the store).
    ///
    /// # Examples
    ///
    /// ```
    /// let push = duly::Push::new("mail", "{}").keep(std::time::Duration::ZERO); // deleted once it is done
    /// ```
    #[must_use]
    pub fn keep(mut self, keep: Duration) -> Self {
        self.keep = Some(keep);
        self
    }

    /// Adds a tag to find the job by. Can be called several times.
    ///
    /// # Examples
    ///
    /// ```
    /// assert_eq!(duly::Push::new("mail", "{}").tag("eu").tag("welcome").job_tags(), ["eu", "welcome"]);
    /// ```
    #[must_use]
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.tags.push(tag.into());
        self
    }

    /// Adds tags to find the job by.
    ///
    /// # Examples
    ///
    /// ```
    /// assert_eq!(duly::Push::new("mail", "{}").tags(["eu", "welcome"]).job_tags(), ["eu", "welcome"]);
    /// ```
    #[must_use]
    pub fn tags<T: Into<String>>(mut self, tags: impl IntoIterator<Item = T>) -> Self {
        self.tags.extend(tags.into_iter().map(Into::into));
        self
    }

    /// Sets the W3C trace context that the span of each attempt continues.
    ///
    /// # Examples
    ///
    /// ```
    /// let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"; // of the request that pushes
    /// assert!(duly::Push::new("mail", "{}").traceparent(trace).check().is_ok());
    /// ```
    #[must_use]
    pub fn traceparent(mut self, traceparent: impl Into<String>) -> Self {
        self.traceparent = Some(traceparent.into());
        self.defaulted.traceparent = false;
        self
    }

    /// Validates everything that does not depend on the store.
    ///
    /// Every push does this itself. Call it to find the invalid job before you push many.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Invalid`] with the name of the first invalid field.
    ///
    /// # Examples
    ///
    /// ```
    /// assert!(duly::Push::new("mail", "{}").check().is_ok());
    /// assert!(duly::Push::new("mail", "not JSON").check().is_err());
    /// ```
    pub fn check(&self) -> Result<()> {
        check_name("queue", &self.queue)?;
        check_name("kind", &self.kind)?;
        if self.kind.starts_with(RESERVED_KIND_PREFIX) {
            return Err(Error::invalid(
                "kind",
                format!(
                    "{:?} begins with {RESERVED_KIND_PREFIX}, which is reserved for duly; choose another name",
                    self.kind
                ),
            ));
        }
        if self.tags.len() > TAGS_MAX {
            return Err(Error::invalid("tags", format!("{} tags; a job can have at most {TAGS_MAX}", self.tags.len())));
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
        check_args_size(args)
    }
}

/// Validates args that replace others: they must be JSON and not too long.
pub(crate) fn check_args(args: &str) -> Result<()> {
    serde_json::from_str::<serde::de::IgnoredAny>(args)
        .map_err(|error| Error::invalid("args", format!("not JSON: {error}")))?;
    check_args_size(args)
}

fn check_args_size(args: &str) -> Result<()> {
    if args.len() > ARGS_BYTES_MAX {
        return Err(Error::invalid(
            "args",
            format!(
                "{} bytes; at most {ARGS_BYTES_MAX} are allowed; store large data elsewhere and push a reference to it",
                args.len()
            ),
        ));
    }
    check_depth("args", args)
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
///
/// # Errors
///
/// Returns [`Error::Invalid`] with this field.
///
/// # Examples
///
/// ```
/// assert!(duly::job::check_name("queue", "mail eu").is_err(), "a space");
/// ```
pub fn check_name(field: &'static str, name: &str) -> Result<()> {
    if name.is_empty() {
        return Err(Error::invalid(field, "must not be empty"));
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(Error::invalid(field, format!("{} bytes long; at most {NAME_BYTES_MAX} are allowed", name.len())));
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
        return Err(Error::invalid(field, format!("{text:?} contains a control character; remove it")));
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
mod tests;
