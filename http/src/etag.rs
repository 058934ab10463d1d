//! Conditional changes: the `ETag` of a setting in responses, and `If-Match` in requests.
//!
//! A change with `If-Match` is made only if the setting still has that tag, so that the second of two concurrent edits
//! fails. For a cron rule the check and the write are atomic. For the settings of a queue the check precedes the write:
//! of two requests at the same moment, both may succeed.

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use duly::admin::Capacity;
use duly::cron::CronRecord;
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::problem::{Problem, Result};

/// The number of bytes of the digest in a tag.
const TAG_BYTES: usize = 12;

fn tag(state: &impl Serialize) -> String {
    let digest = Sha256::digest(serde_json::to_vec(state).unwrap_or_default());
    let hex: String = digest.iter().take(TAG_BYTES).map(|byte| format!("{byte:02x}")).collect();
    format!("\"{hex}\"")
}

/// Returns the tag of a cron rule. It depends on the rule and its pause, not on its next tick.
pub(crate) fn for_cron(record: &CronRecord) -> String {
    tag(&(&record.rule, record.paused))
}

/// Returns the tag of a queue's settings. It does not depend on the jobs in the queue.
pub(crate) fn for_queue(paused: bool, capacity: Capacity) -> String {
    tag(&(paused, capacity))
}

/// Returns an `ETag` header.
pub(crate) fn header(tag: &str) -> HeaderMap {
    HeaderValue::from_str(tag).map(|tag| HeaderMap::from_iter([(header::ETAG, tag)])).unwrap_or_default()
}

/// The tags in `If-Match`; `None` if the request has no such header.
#[derive(Clone)]
pub(crate) struct IfMatch(Option<String>);

impl IfMatch {
    pub(crate) fn from_headers(headers: &HeaderMap) -> Result<Self> {
        let Some(value) = headers.get(header::IF_MATCH) else {
            return Ok(IfMatch(None));
        };
        let text = value.to_str().map_err(|_| Problem::invalid("If-Match", "must be an ETag from a response, or *"))?;
        Ok(IfMatch(Some(text.to_owned())))
    }

    /// Returns a 412 unless the current tag matches; `None` if the setting does not exist yet.
    pub(crate) fn check(&self, current: Option<&str>) -> Result<()> {
        match self.matches(current) {
            true => Ok(()),
            false => Err(precondition_failed()),
        }
    }

    fn matches(&self, current: Option<&str>) -> bool {
        let Some(tags) = &self.0 else {
            return true;
        };
        let is_current = |tag: &str| current.is_some_and(|current| tag == "*" || tag == current);
        tags.split(',').map(str::trim).any(is_current)
    }
}

fn precondition_failed() -> Problem {
    Problem::new(
        StatusCode::PRECONDITION_FAILED,
        "changed",
        "the current ETag does not match If-Match; get the current version and repeat the change with its ETag",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn if_match(value: &str) -> IfMatch {
        let value = HeaderValue::from_str(value).expect("a header");
        IfMatch::from_headers(&HeaderMap::from_iter([(header::IF_MATCH, value)])).expect("text")
    }

    #[test]
    fn only_the_current_tag_matches() {
        let (current, other) = (for_queue(false, Capacity::default()), "\"00\"".to_owned());
        let no_header = IfMatch::from_headers(&HeaderMap::new()).expect("none");
        assert!(no_header.matches(Some(&current)), "the header is optional");
        assert!(if_match(&current).matches(Some(&current)));
        assert!(if_match(&format!("{other}, {current}")).matches(Some(&current)));
        assert!(!if_match(&other).matches(Some(&current)));
        assert!(!if_match(&format!("W/{current}")).matches(Some(&current)), "a weak tag never matches");
        assert!(if_match("*").matches(Some(&current)) && !if_match("*").matches(None), "a star matches what exists");
    }
}
