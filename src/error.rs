//! What can go wrong, sorted by what the caller can do about it.

/// The one thing asked of a store that has an id to be repeated with.
const PUSH_OP: &str = "push";

/// The result of everything that can fail in duly.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of another crate, kept only as a cause: its type is not part of duly's interface.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What can go wrong, sorted by what the caller can do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store refused or could not be reached, and nothing was changed: try again later.
    #[error("{op}: {reason}")]
    Store {
        /// What was asked of the store.
        op: &'static str,
        /// What the store said, and what to do about it where that is known.
        reason: String,
        /// The store's own error.
        #[source]
        source: Option<BoxError>,
    },

    /// The request was sent and its answer lost: it may or may not have been carried out.
    /// Safe to repeat with the same job id.
    #[error("{op}: sent, but nobody knows whether it was carried out{}; {}", cause_suffix(source), repeat_advice(op))]
    Unknown {
        /// What was asked of the store.
        op: &'static str,
        /// Why the answer is missing.
        #[source]
        source: Option<BoxError>,
    },

    /// The job is no longer held by this node: another one has it, and nothing was recorded.
    #[error("the lease on job {0} was lost: another node has it now")]
    LeaseLost(crate::JobId),

    /// There is no such thing in the store.
    #[error("no {what} {name} in the store")]
    NotFound {
        /// What kind of thing was looked for.
        what: &'static str,
        /// Its name or id.
        name: String,
    },

    /// It exists, but is in a state that does not allow this.
    #[error("{0}")]
    Conflict(String),

    /// The caller's input is wrong: repeating it will not help.
    #[error("{field}: {reason}")]
    Invalid {
        /// The part of the input that is wrong.
        field: &'static str,
        /// What is wrong with it and what would be right.
        reason: String,
    },

    /// The queue is full: nothing was pushed into it. Try again once there is room, or raise the capacity.
    #[error("queue {queue} is full: at most {capacity} may be unfinished in it; nothing was pushed into it")]
    Full {
        /// The queue.
        queue: String,
        /// How much may be in it.
        capacity: crate::store::Capacity,
    },

    /// The method of another node has failed, or was too busy to be run.
    #[error("{method} on node {node}: {reason}")]
    Remote {
        /// What was called.
        method: String,
        /// Who was called.
        node: crate::NodeId,
        /// What it said.
        reason: String,
    },

    /// It took longer than allowed. What only waits has changed nothing; a call may have been carried out.
    #[error("{op}: timed out; {reason}")]
    Timeout {
        /// What was asked.
        op: &'static str,
        /// What was waited for.
        reason: String,
    },

    /// This store keeps its state in a format that has no place for it: use another store, or do without.
    #[error("this store cannot {what}; a SQLite file, Redis and Valkey can")]
    Unsupported {
        /// What was asked of the store.
        what: &'static str,
    },
}

/// The cause as a part of a sentence, where there is one.
fn cause_suffix(source: &Option<BoxError>) -> String {
    source.as_ref().map_or(String::new(), |source| format!(": {source}"))
}

/// What to do about an outcome that nobody knows.
fn repeat_advice(op: &str) -> &'static str {
    if op == PUSH_OP { "repeat it with the same id" } else { "look before you repeat it" }
}

impl Error {
    /// One stable word per variant, for logs, metrics, HTTP and the command line.
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

    /// Whether the same call may succeed later without any change by the caller.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Error::Store { .. } | Error::Unknown { .. } | Error::Timeout { .. } | Error::Full { .. })
    }

    /// The same of something of which a part may have been carried out before.
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

    pub(crate) fn unsupported(what: &'static str) -> Self {
        Error::Unsupported { what }
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
        let told = |op, source: Option<&str>| Error::Unknown { op, source: source.map(Into::into) }.to_string();
        assert_eq!(
            told("push", Some("0 of 1 replicas")),
            "push: sent, but nobody knows whether it was carried out: 0 of 1 replicas; repeat it with the same id"
        );
        let told = told("pause", None);
        assert_eq!(told, "pause: sent, but nobody knows whether it was carried out; look before you repeat it");
    }
}
