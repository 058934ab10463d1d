//! Errors, grouped by the reaction they call for.

/// The store operation that is safe to repeat, with the same job id.
const PUSH_OP: &str = "push";

/// The result of every fallible operation of duly.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of another crate, exposed only as a source: its type is not part of duly's API.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// An error. The variants differ in the reaction they call for.
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
        /// The underlying error.
        #[source]
        source: Option<BoxError>,
    },

    /// The request was sent but its outcome is unknown: it may or may not have been applied.
    /// Safe to repeat with the same job id.
    #[error("{op}: outcome unknown: {}; {}", format_cause(source), repeat_advice(op))]
    #[non_exhaustive]
    Unknown {
        /// The store operation.
        op: &'static str,
        /// Why no reply arrived.
        #[source]
        source: Option<BoxError>,
    },

    /// This node no longer holds the job: another node has it. Nothing was recorded.
    #[error("lost the lease on job {0}: another node has it now")]
    LeaseLost(crate::JobId),

    /// The store has no such item.
    #[error("no {what} {name} in the store")]
    #[non_exhaustive]
    NotFound {
        /// The type of the missing item.
        what: &'static str,
        /// Its name or id.
        name: String,
    },

    /// The item exists, but its state does not allow the operation.
    #[error("{0}")]
    Conflict(String),

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
    #[error("queue {queue} is full: at most {capacity} may be unfinished; nothing was pushed into it")]
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
    #[error("{op}: timed out; {reason}")]
    #[non_exhaustive]
    Timeout {
        /// The operation.
        op: &'static str,
        /// The awaited event.
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

/// Formats the cause of an unknown outcome.
fn format_cause(source: &Option<BoxError>) -> String {
    source.as_ref().map_or("the request was sent but no reply arrived".to_owned(), ToString::to_string)
}

/// Returns the advice for an unknown outcome.
fn repeat_advice(op: &str) -> &'static str {
    if op == PUSH_OP { "safe to repeat with the same id" } else { "check the state before you repeat it" }
}

impl Error {
    /// Returns one stable word per variant, for logs, metrics, HTTP and the command line.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Error::Store { .. } => "store",
            Error::Unknown { .. } => "unknown",
            Error::LeaseLost(_) => "lease_lost",
            Error::NotFound { .. } => "not_found",
            Error::Conflict(_) => "conflict",
            Error::Invalid { .. } => "invalid",
            Error::Full { .. } => "full",
            Error::Remote { .. } => "remote",
            Error::Timeout { .. } => "timeout",
            Error::Unsupported { .. } => "unsupported",
        }
    }

    /// Returns whether the same call may succeed later without a change by the caller.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Error::Store { .. } | Error::Unknown { .. } | Error::Timeout { .. } | Error::Full { .. })
    }

    /// Converts a store error to [`Error::Unknown`], for operations that may have been partially applied.
    #[cfg(feature = "redis")]
    pub(crate) fn into_unknown(self) -> Self {
        match self {
            Error::Store { op, reason, .. } => Error::Unknown { op, source: Some(reason.into()) },
            other => other,
        }
    }

    /// Returns an [`Error::Invalid`] about this field.
    pub fn invalid(field: &'static str, reason: impl Into<String>) -> Self {
        Error::Invalid { field, reason: reason.into() }
    }

    /// Returns an [`Error::NotFound`] about the item of this type and name.
    pub fn not_found(what: &'static str, name: impl std::fmt::Display) -> Self {
        Error::NotFound { what, name: name.to_string() }
    }

    /// Returns an [`Error::Unknown`] of this operation, without its cause.
    pub fn unknown(op: &'static str) -> Self {
        Error::Unknown { op, source: None }
    }

    pub(crate) fn store(op: &'static str, reason: impl Into<String>) -> Self {
        Error::Store { op, reason: reason.into(), source: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_error_names_cause_and_advice() {
        let message = |op, source: Option<&str>| Error::Unknown { op, source: source.map(Into::into) }.to_string();
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
