//! The audit, who has changed what: the words of this chapter.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};

/// How many entries are kept: the newest.
pub const AUDIT_ENTRIES_MAX: usize = 10_000;
/// Most entries on one page.
pub const AUDIT_PAGE_MAX: usize = 200;
/// Longest text of an entry, in bytes: what is longer is cut.
const AUDIT_TEXT_BYTES_MAX: usize = 512;

/// Something that somebody has done, or was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AuditEntry {
    /// Who it was.
    pub actor: String,
    /// What they did.
    pub action: String,
    /// From where, as far as is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
    /// How it was answered, as an HTTP status: 403 was refused.
    pub status: u16,
}

impl AuditEntry {
    /// An entry; long texts are cut.
    #[must_use]
    pub fn new(who: &str, what: impl Into<String>, from: Option<String>, status: u16) -> Self {
        AuditEntry {
            actor: truncate_audit_text(who.to_owned()),
            action: truncate_audit_text(what.into()),
            origin: from.map(truncate_audit_text),
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
    /// Its number: each entry's is one more than that of the one before.
    pub number: u64,
    /// When it was noted, by the store's clock.
    #[serde(serialize_with = "crate::clock::as_micros")]
    pub at: SystemTime,
    /// What was noted.
    #[serde(flatten)]
    pub entry: AuditEntry,
}
