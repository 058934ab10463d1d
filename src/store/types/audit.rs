//! The audit, who has changed what: the words of this chapter.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};

/// How many entries are kept: the newest.
pub const AUDIT_MAX: usize = 10_000;
/// Most entries on one page.
pub const AUDIT_PAGE_MAX: usize = 200;
/// Longest text of an entry, in bytes: what is longer is cut.
const TEXT_BYTES_MAX: usize = 512;

/// Something that somebody has done, or was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Audit {
    /// Who it was.
    pub who: String,
    /// What they did.
    pub what: String,
    /// From where, as far as is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// How it was answered, as an HTTP status: 403 was refused.
    pub status: u16,
}

impl Audit {
    /// An entry; long texts are cut.
    #[must_use]
    pub fn new(who: &str, what: impl Into<String>, from: Option<String>, status: u16) -> Self {
        Audit { who: cut(who.to_owned()), what: cut(what.into()), from: from.map(cut), status }
    }
}

fn cut(mut text: String) -> String {
    let mut end = text.len().min(TEXT_BYTES_MAX);
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
    pub no: u64,
    /// When it was noted, by the store's clock.
    #[serde(serialize_with = "crate::clock::as_micros")]
    pub at: SystemTime,
    /// What was noted.
    #[serde(flatten)]
    pub entry: Audit,
}
