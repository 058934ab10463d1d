//! Errors, grouped by the reaction they call for.

/// The store operation that is safe to repeat, with the same job id.
const PUSH_OP: &str = "push";

/// The result of every fallible operation of duly.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of another crate. Its type is not part of duly's API.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// An error. Each variant calls for a different reaction of the caller.
///
/// Its text is complete: it contains the text of the cause, so [`source`](std::error::Error::source) is always `None`,
/// and a report that prints all sources prints nothing twice. The fields `cause` have the errors of other crates.
///
/// # Examples
///
/// ```
/// # use duly::{Duly, Error, Push};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> duly::Result<()> {
/// # let duly = Duly::open(":memory:").await?;
/// match duly.push(Push::new("mail", "{}")).await {
///     Ok(pushed) => println!("pushed {}", pushed.id()),
///     Err(Error::Full { capacity, .. }) => println!("the queue has its {capacity} already"),
///     Err(error) if error.is_retryable() => println!("try again later: {error}"),
///     Err(error) => return Err(error),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store refused the request or could not be reached. Nothing was changed; try again later.
    #[error("{op}: {reason}")]
    #[non_exhaustive]
    Store {
        /// The store operation.
        op: &'static str,
        /// The failure and, if known, the remedy.
        reason: String,
        /// The underlying error. Named `cause` because a field `source` would be the source of this error.
        cause: Option<BoxError>,
    },

    /// The request was sent but its outcome is unknown: it may or may not have been applied.
    /// Safe to repeat with the same job id.
    #[error("{op}: outcome unknown: {}; {}", format_cause(cause), repeat_advice(op))]
    #[non_exhaustive]
    Unknown {
        /// The store operation.
        op: &'static str,
        /// Why no reply arrived.
        cause: Option<BoxError>,
    },

    /// There is no such item.
    #[error("{what} {name} not found{}", format_advice(*advice))]
    #[non_exhaustive]
    NotFound {
        /// The type of the missing item.
        what: &'static str,
        /// Its name or id.
        name: String,
        /// The remedy, if there is one.
        advice: Option<&'static str>,
    },

    /// The item exists, but its state does not allow the operation. Nothing was changed.
    #[error("{reason}")]
    #[non_exhaustive]
    Conflict {
        /// The case, to decide by.
        kind: ConflictKind,
        /// The problem and, if known, the remedy.
        reason: String,
    },

    /// The input is invalid. Repeating the same call does not help.
    #[error("{field}: {reason}")]
    #[non_exhaustive]
    Invalid {
        /// The invalid part of the input.
        field: &'static str,
        /// The problem, with valid alternatives.
        reason: String,
    },

    /// The queue is full and nothing was pushed. Try again once there is room, or raise its capacity.
    #[error(
        "queue {queue} is full (capacity: {capacity}); nothing was pushed into it; try again later or raise the capacity"
    )]
    #[non_exhaustive]
    Full {
        /// The queue.
        queue: String,
        /// Its capacity.
        capacity: crate::store::Capacity,
    },

    /// A method called on another node failed, or the node was too busy to run it.
    #[error("{method} on node {node}: {reason}")]
    #[non_exhaustive]
    Remote {
        /// The called method.
        method: String,
        /// The called node.
        node: crate::NodeId,
        /// The error it returned.
        reason: String,
    },

    /// The operation took too long. A wait has changed nothing; a call may have been executed.
    #[error("{op}: {reason}")]
    #[non_exhaustive]
    Timeout {
        /// The operation.
        op: &'static str,
        /// The awaited event, how long it was awaited if that is known, and the remedy.
        reason: String,
    },

    /// This type of store lacks a capability. Use another store, or do without the feature.
    #[error("{store} stores do not support {capability}; {advice}")]
    #[non_exhaustive]
    Unsupported {
        /// The type of store.
        store: &'static str,
        /// The capability that it lacks.
        capability: &'static str,
        /// The alternative.
        advice: &'static str,
    },
}

/// The state that does not allow an operation: the cases of [`Error::Conflict`].
///
/// # Examples
///
/// ```
/// # use duly::{ConflictKind, Duly, Error};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> duly::Result<()> {
/// # let duly = Duly::open(":memory:").await?;
/// # let guard = duly.lock("report").acquire().await?;
/// # guard.release().await?;
/// match guard.release().await {
///     Err(Error::Conflict { kind: ConflictKind::LockLost, .. }) => println!("another owner may have worked meanwhile"),
///     other => other?,
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConflictKind {
    /// The job is running. Wait until its attempt has ended, or cancel it.
    Running,
    /// The queue is moving to another store. Complete that move, or look for the job there.
    Moving,
    /// Another move has taken over this one.
    TakenOver,
    /// The unique key belongs to another unfinished job.
    UniqueKeyTaken,
    /// The item was changed at the same time. Read it again and repeat the change.
    Changed,
    /// The stored job is corrupted: its checksum does not match.
    Corrupted,
    /// The lock is no longer held: it was released or broken, or it expired.
    LockLost,
    /// Another node has the job, or may soon have it: the node that runs this attempt has lost its lease.
    LeaseLost,
    /// An item of this name exists already.
    Exists,
    /// Several items match. Name one of them exactly.
    Ambiguous,
    /// There are too many items of this type. Remove one first.
    LimitReached,
    /// Another program still works with these jobs. Stop it first.
    InUse,
    /// The node that runs the job does not respond.
    Unresponsive,
    /// The node runs no worker.
    NoWorker,
    /// The program's own code refuses the operation, for example a middleware.
    Refused,
}

impl ConflictKind {
    /// All variants.
    pub const ALL: [ConflictKind; 14] = [
        ConflictKind::Running,
        ConflictKind::Moving,
        ConflictKind::TakenOver,
        ConflictKind::UniqueKeyTaken,
        ConflictKind::Changed,
        ConflictKind::Corrupted,
        ConflictKind::LockLost,
        ConflictKind::LeaseLost,
        ConflictKind::Exists,
        ConflictKind::LimitReached,
        ConflictKind::InUse,
        ConflictKind::Unresponsive,
        ConflictKind::NoWorker,
        ConflictKind::Refused,
    ];

    /// Returns the stable word for this case, as in `conflict` over HTTP.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            ConflictKind::Running => "running",
            ConflictKind::Moving => "moving",
            ConflictKind::TakenOver => "taken_over",
            ConflictKind::UniqueKeyTaken => "unique_key_taken",
            ConflictKind::Changed => "changed",
            ConflictKind::Corrupted => "corrupted",
            ConflictKind::LockLost => "lock_lost",
            ConflictKind::LeaseLost => "lease_lost",
            ConflictKind::Exists => "exists",
            ConflictKind::Ambiguous => "ambiguous",
            ConflictKind::LimitReached => "limit_reached",
            ConflictKind::InUse => "in_use",
            ConflictKind::Unresponsive => "unresponsive",
            ConflictKind::NoWorker => "no_worker",
            ConflictKind::Refused => "refused",
        }
    }
}

impl std::fmt::Display for ConflictKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// Formats a remedy, which follows a semicolon in every error.
fn format_advice(advice: Option<&str>) -> String {
    advice.map_or_else(String::new, |advice| format!("; {advice}"))
}

/// Formats the cause of an unknown outcome.
fn format_cause(cause: &Option<BoxError>) -> String {
    cause.as_ref().map_or("the request was sent but no reply arrived".to_owned(), ToString::to_string)
}

/// Returns the advice for an unknown outcome.
fn repeat_advice(op: &str) -> &'static str {
    if op == PUSH_OP { "safe to repeat with the same id" } else { "check the state before you repeat it" }
}

impl Error {
    /// Returns the stable word for this variant, as in logs, metrics, HTTP and the command line.
    ///
    /// # Examples
    ///
    /// ```
    /// assert_eq!(duly::Error::invalid("queue", "must not be empty").code(), "invalid");
    /// ```
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Error::Store { .. } => "store",
            Error::Unknown { .. } => "unknown",
            Error::NotFound { .. } => "not_found",
            Error::Conflict { .. } => "conflict",
            Error::Invalid { .. } => "invalid",
            Error::Full { .. } => "full",
            Error::Remote { .. } => "remote",
            Error::Timeout { .. } => "timeout",
            Error::Unsupported { .. } => "unsupported",
        }
    }

    /// Returns whether the same call may succeed later without a change by the caller.
    ///
    /// # Examples
    ///
    /// ```
    /// assert!(!duly::Error::invalid("queue", "must not be empty").is_retryable());
    /// ```
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Error::Store { .. } | Error::Unknown { .. } | Error::Timeout { .. } | Error::Full { .. })
    }

    /// Converts a store error to [`Error::Unknown`], for operations that may have been partially applied.
    #[cfg(any(feature = "redis", test))]
    pub(crate) fn into_unknown(self) -> Self {
        match self {
            Error::Store { op, reason, .. } => Error::unknown_with_cause(op, reason),
            other => other,
        }
    }

    /// Returns an [`Error::Invalid`] about this field.
    pub fn invalid(field: &'static str, reason: impl Into<String>) -> Self {
        Error::Invalid { field, reason: reason.into() }
    }

    /// Returns an [`Error::Conflict`] of this kind.
    ///
    /// # Examples
    ///
    /// A middleware that refuses a push:
    ///
    /// ```
    /// use duly::{ConflictKind, Error};
    ///
    /// let error = Error::conflict(ConflictKind::Refused, "customer 7 is suspended; push after the payment");
    /// assert_eq!(error.to_string(), "customer 7 is suspended; push after the payment");
    /// ```
    pub fn conflict(kind: ConflictKind, reason: impl Into<String>) -> Self {
        Error::Conflict { kind, reason: reason.into() }
    }

    /// Returns an [`Error::NotFound`] about the item of this type and name.
    pub fn not_found(what: &'static str, name: impl std::fmt::Display) -> Self {
        Error::NotFound { what, name: name.to_string(), advice: None }
    }

    /// Returns an [`Error::NotFound`] with a remedy.
    pub(crate) fn not_found_with_advice(
        what: &'static str,
        name: impl std::fmt::Display,
        advice: &'static str,
    ) -> Self {
        Error::NotFound { what, name: name.to_string(), advice: Some(advice) }
    }

    /// Returns an [`Error::Unknown`] of this operation, without its cause.
    pub fn unknown(op: &'static str) -> Self {
        Error::Unknown { op, cause: None }
    }

    /// Returns an [`Error::Unknown`] of this operation with its cause.
    pub(crate) fn unknown_with_cause(op: &'static str, cause: impl Into<BoxError>) -> Self {
        Error::Unknown { op, cause: Some(cause.into()) }
    }

    pub(crate) fn store(op: &'static str, reason: impl Into<String>) -> Self {
        Error::Store { op, reason: reason.into(), cause: None }
    }

    /// Returns an [`Error::Store`] with the error of another crate. The reason must contain its text.
    #[cfg_attr(not(any(feature = "sqlite", feature = "redis")), allow(dead_code, reason = "only stores have causes"))]
    pub(crate) fn store_with_cause(op: &'static str, reason: impl Into<String>, cause: impl Into<BoxError>) -> Self {
        Error::Store { op, reason: reason.into(), cause: Some(cause.into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns one error of each variant, with a cause if it can have one.
    fn one_of_each() -> Vec<Error> {
        let error = Error::store("claim", "too long");
        // A new variant belongs into the list below.
        match error {
            Error::Store { .. } | Error::Unknown { .. } | Error::NotFound { .. } | Error::Conflict { .. } => {}
            Error::Invalid { .. } | Error::Full { .. } | Error::Remote { .. } => {}
            Error::Timeout { .. } | Error::Unsupported { .. } => {}
        }
        let (node, capacity) = (crate::NodeId::fresh(), crate::store::Capacity::unlimited().jobs(1));
        vec![
            Error::store_with_cause("open", "cannot connect: broken pipe", "broken pipe"),
            Error::store_with_cause("open", "cannot connect: broken pipe", "broken pipe").into_unknown(),
            Error::unknown_with_cause("push", "broken pipe"),
            Error::not_found("job", "7"),
            Error::conflict(ConflictKind::Running, "job 7 is running"),
            Error::invalid("queue", "must not be empty"),
            Error::Full { queue: "mail".into(), capacity },
            Error::Remote { method: "cache.flush".into(), node, reason: "broken pipe".into() },
            Error::Timeout { op: "lock", reason: "timed out after 5s waiting for lock \"deploy\"".into() },
            Error::Unsupported { store: "file", capability: "calls", advice: "use Redis" },
        ]
    }

    #[test]
    fn no_text_is_repeated_along_the_sources_of_an_error() {
        for error in one_of_each() {
            let text = error.to_string();
            let causes = std::iter::successors(std::error::Error::source(&error), |cause| cause.source());
            let repeated: Vec<String> = causes.map(ToString::to_string).filter(|cause| text.contains(cause)).collect();
            assert!(repeated.is_empty(), "{text} repeats {repeated:?}");
            if let Error::Store { cause: Some(cause), .. } | Error::Unknown { cause: Some(cause), .. } = &error {
                assert_eq!(text.matches(&cause.to_string()).count(), 1, "{text}");
            }
        }
    }

    #[test]
    fn missing_item_is_named_with_its_remedy_last() {
        assert_eq!(Error::not_found("method", "cache.flush").to_string(), "method cache.flush not found");
        let error = Error::not_found_with_advice("file", "x.db", "give the path of a store");
        assert_eq!(error.to_string(), "file x.db not found; give the path of a store");
    }

    #[test]
    fn unknown_error_names_cause_and_advice() {
        let message = |op, cause: Option<&str>| Error::Unknown { op, cause: cause.map(Into::into) }.to_string();
        assert_eq!(
            message("push", Some("0 of 1 replicas")),
            "push: outcome unknown: 0 of 1 replicas; safe to repeat with the same id"
        );
        assert_eq!(
            message("pause", None),
            "pause: outcome unknown: the request was sent but no reply arrived; check the state before you repeat it"
        );
    }
}
