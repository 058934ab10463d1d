//! The audit log: actions and their actors.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};

/// Most entries kept: the newest stay.
pub const AUDIT_ENTRIES_MAX: usize = 10_000;
/// Most entries on one page.
pub const AUDIT_PAGE_MAX: usize = 200;
/// Longest text of an entry, in bytes; longer ones are truncated.
const AUDIT_TEXT_BYTES_MAX: usize = 512;

/// An action that an actor performed or was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AuditEntry {
    /// The actor.
    pub actor: String,
    /// The action.
    pub action: String,
    /// The address of the client, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The HTTP status of the response: 403 means refused.
    pub status: u16,
}

impl AuditEntry {
    /// Returns an entry; long texts are truncated.
    #[must_use]
    pub fn new(actor: &str, action: impl Into<String>, address: Option<String>, status: u16) -> Self {
        AuditEntry {
            actor: truncate_audit_text(actor.to_owned()),
            action: truncate_audit_text(action.into()),
            address: address.map(truncate_audit_text),
            status,
        }
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
    /// Its number: one more than that of the previous entry.
    pub number: u64,
    /// When it was added, by the store's clock.
    #[serde(serialize_with = "crate::clock::as_micros")]
    pub at: SystemTime,
    /// The entry.
    #[serde(flatten)]
    pub entry: AuditEntry,
}
