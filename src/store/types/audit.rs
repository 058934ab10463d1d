//! The audit log: actions, their actors and their outcomes.

use std::fmt;
use std::str::FromStr;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// The size of the audit log. An actor displaces its own entries only; beyond the total, the actor with the most entries
/// loses its oldest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditBounds {
    /// Most entries of one actor: the newest stay.
    pub per_actor: usize,
    /// Most entries of all actors.
    pub total: usize,
}

impl AuditBounds {
    /// The bounds of every store.
    pub const DEFAULT: AuditBounds = AuditBounds { per_actor: 1_000, total: 100_000 };
}

/// Most entries on one page.
pub const AUDIT_PAGE_MAX: usize = 200;
/// Longest text of an entry, in bytes; longer ones are truncated.
pub const AUDIT_TEXT_BYTES_MAX: usize = 512;

/// How an audited action ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum AuditOutcome {
    /// The action runs in the background; another entry follows at its end.
    Started,
    /// The action was carried out.
    Done,
    /// The actor does not have the right.
    Refused,
    /// The action may have been carried out: it timed out, or the store did not reply.
    Unknown,
}

impl AuditOutcome {
    /// All outcomes.
    pub const ALL: [AuditOutcome; 4] =
        [AuditOutcome::Started, AuditOutcome::Done, AuditOutcome::Refused, AuditOutcome::Unknown];

    /// Returns the name of the outcome.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            AuditOutcome::Started => "started",
            AuditOutcome::Done => "done",
            AuditOutcome::Refused => "refused",
            AuditOutcome::Unknown => "unknown",
        }
    }
}

impl fmt::Display for AuditOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for AuditOutcome {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let found = AuditOutcome::ALL.into_iter().find(|outcome| outcome.as_str() == text);
        found.ok_or_else(|| {
            let valid = AuditOutcome::ALL.map(AuditOutcome::as_str).join(", ");
            Error::invalid("outcome", format!("{text:?} is not an outcome of an audited action; use one of {valid}"))
        })
    }
}

/// An action that an actor performed or was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AuditEntry {
    /// The actor: the name of a token, or a user of the system.
    pub actor: String,
    /// The action, such as `jobs.remove`.
    pub action: String,
    /// The id or the name of the changed thing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// The filter that selected the changed jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// The number of changed things.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// How the action ended.
    pub outcome: AuditOutcome,
    /// The address of the client, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
}

impl AuditEntry {
    /// Returns an entry; long texts are truncated.
    #[must_use]
    pub fn new(actor: &str, action: &str, outcome: AuditOutcome) -> Self {
        // Stores separate an actor from a number by a control character.
        let actor = truncate_audit_text(actor.replace(char::is_control, " "));
        let action = truncate_audit_text(action.to_owned());
        AuditEntry { actor, action, target: None, filter: None, count: None, outcome, address: None }
    }

    /// Sets the id or the name of the changed thing.
    #[must_use]
    pub fn target(self, target: impl Into<Option<String>>) -> Self {
        AuditEntry { target: target.into().map(truncate_audit_text), ..self }
    }

    /// Sets the filter that selected the changed jobs.
    #[must_use]
    pub fn filter(self, filter: impl Into<Option<String>>) -> Self {
        AuditEntry { filter: filter.into().map(truncate_audit_text), ..self }
    }

    /// Sets the number of changed things.
    #[must_use]
    pub fn count(self, count: impl Into<Option<u64>>) -> Self {
        AuditEntry { count: count.into(), ..self }
    }

    /// Sets the address of the client.
    #[must_use]
    pub fn address(self, address: impl Into<Option<String>>) -> Self {
        AuditEntry { address: address.into().map(truncate_audit_text), ..self }
    }
}

fn truncate_audit_text(mut text: String) -> String {
    let mut end = text.len().min(AUDIT_TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
}

/// An entry as the store keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct AuditRecord {
    /// Its number, which grows with each entry.
    pub number: u64,
    /// When it was added, by the store's clock.
    #[serde(serialize_with = "crate::clock::as_micros")]
    pub at: SystemTime,
    /// The entry.
    #[serde(flatten)]
    pub entry: AuditEntry,
}
