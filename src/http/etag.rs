//! Which state of a setting somebody has seen: `ETag` on the way out, `If-Match` on the way in.
//!
//! A change that names a state is made only if that is still how things are: of two people who edit the same, the second is told.
//! A cron rule is compared in the step that puts it. The settings of a queue are looked at just before they are set: best effort,
//! and two who send within the same moment may both be let through.

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::problem::Problem;
use crate::store::{CronRecord, Limit};

/// How many bytes of a digest tell states apart.
const TAG_BYTES: usize = 12;

fn tag(state: &impl Serialize) -> String {
    let digest = Sha256::digest(serde_json::to_vec(state).unwrap_or_default());
    let hex: String = digest.iter().take(TAG_BYTES).map(|byte| format!("{byte:02x}")).collect();
    format!("\"{hex}\"")
}

/// The state of a cron rule: what it says and whether it is paused, not when it fires next.
pub(crate) fn of_cron(record: &CronRecord) -> String {
    tag(&(&record.rule, record.paused))
}

/// The state of a queue's settings, not how much is in it.
pub(crate) fn of_queue(paused: bool, limit: Limit) -> String {
    tag(&(paused, limit))
}

/// A header with this tag.
pub(crate) fn header(tag: &str) -> HeaderMap {
    HeaderValue::from_str(tag).map(|tag| HeaderMap::from_iter([(header::ETAG, tag)])).unwrap_or_default()
}

/// The states of which one must be the present one; `None` if any will do.
#[derive(Clone)]
pub(crate) struct IfMatch(Option<String>);

impl IfMatch {
    pub(crate) fn of(headers: &HeaderMap) -> Result<Self, Problem> {
        let Some(value) = headers.get(header::IF_MATCH) else {
            return Ok(IfMatch(None));
        };
        let text = value.to_str().map_err(|_| Problem::invalid("If-Match", "is what an ETag said, or *"))?;
        Ok(IfMatch(Some(text.to_owned())))
    }

    /// Refuses the change unless it may be made, with things as they are; `None`: there is nothing yet.
    pub(crate) fn check(&self, now: Option<&str>) -> Result<(), Problem> {
        match self.admits(now) {
            true => Ok(()),
            false => Err(changed()),
        }
    }

    fn admits(&self, now: Option<&str>) -> bool {
        let Some(wanted) = &self.0 else {
            return true;
        };
        let one = |wanted: &str| now.is_some_and(|now| wanted == "*" || wanted == now);
        wanted.split(',').map(str::trim).any(one)
    }
}

/// Somebody has changed it since it was seen.
fn changed() -> Problem {
    Problem::new(
        StatusCode::PRECONDITION_FAILED,
        "changed",
        "it is not as If-Match says any more; get it again, look at it, and repeat the change with its new ETag",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(value: &str) -> IfMatch {
        let value = HeaderValue::from_str(value).expect("a header");
        IfMatch::of(&HeaderMap::from_iter([(header::IF_MATCH, value)])).expect("text")
    }

    #[test]
    fn only_the_present_state_is_admitted() {
        let (now, other) = (of_queue(false, Limit::default()), "\"00\"".to_owned());
        assert!(IfMatch::of(&HeaderMap::new()).expect("none").admits(Some(&now)), "who does not ask may");
        assert!(of(&now).admits(Some(&now)) && of(&format!("{other}, {now}")).admits(Some(&now)));
        assert!(
            !of(&other).admits(Some(&now)) && !of(&format!("W/{now}")).admits(Some(&now)),
            "a weak one never matches"
        );
        assert!(of("*").admits(Some(&now)) && !of("*").admits(None), "a star means whatever is there");
    }
}
