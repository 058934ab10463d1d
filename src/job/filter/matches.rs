//! Matches jobs against a filter.

use serde_json::Value;

use crate::clock::{Micros, to_micros};
use crate::job::filter::{Filter, FilterTerm};
use crate::job::fingerprint;
use crate::job::{Job, JobRecord, State};

/// A filter with absolute times, prepared for many jobs.
#[derive(Clone, Debug)]
pub(crate) struct Matcher {
    filter: Filter,
    since: Option<Micros>,
    until: Option<Micros>,
    /// Lower case, as are the texts.
    error: Option<String>,
    text: Vec<String>,
}

impl Matcher {
    /// Prepares a filter; its relative times count from `now`.
    pub(crate) fn new(filter: &Filter, now: Micros) -> Self {
        let resolve = |time: crate::job::filter::FilterTime| to_micros(time.resolve(crate::clock::from_micros(now)));
        Matcher {
            since: filter.since.map(resolve),
            until: filter.until.map(resolve),
            error: filter.error.as_deref().map(str::to_lowercase),
            text: filter.text.iter().map(|text| text.to_lowercase()).collect(),
            filter: filter.clone(),
        }
    }

    /// Returns the time range: its start, and its exclusive end.
    pub(crate) fn time_range(&self) -> (Option<Micros>, Option<Micros>) {
        (self.since, self.until)
    }

    /// Returns whether the last error of a job must be read.
    pub(crate) fn needs_error(&self) -> bool {
        self.error.is_some()
            || !self.text.is_empty()
            || self.filter.group.is_some()
            || self.filter.not.iter().any(|term| matches!(term, FilterTerm::Error(_) | FilterTerm::Text(_)))
    }

    /// Returns whether there are conditions besides queue, state and time. A list then reads more jobs than it returns.
    pub(crate) fn has_job_conditions(&self) -> bool {
        let Filter { id, kind, tags, priority, args, group, not, .. } = &self.filter;
        id.is_some()
            || kind.is_some()
            || priority.is_some()
            || group.is_some()
            || self.error.is_some()
            || !(tags.is_empty() && args.is_empty() && self.text.is_empty() && not.is_empty())
    }

    /// Returns whether a job may match, by its immutable part alone. This avoids reading the state of other jobs.
    pub(crate) fn may_match(&self, job: &Job) -> bool {
        let filter = &self.filter;
        filter.id.as_ref().is_none_or(|id| id.matches(job.id))
            && filter.kind.as_ref().is_none_or(|kind| *kind == job.kind)
            && filter.priority.is_none_or(|priority| priority == job.priority)
            && filter.tags.iter().all(|tag| job.tags.contains(tag))
            && args_match(&job.args, &filter.args)
    }

    /// Returns whether a job matches. Its last error is the last of its failures, if they are filled.
    #[cfg(feature = "redis")]
    pub(crate) fn matches(&self, record: &JobRecord) -> bool {
        let error = record.failures.last().map_or("", |failure| failure.error.as_str());
        self.matches_with_error(record, error)
    }

    pub(crate) fn matches_with_error(&self, record: &JobRecord, error: &str) -> bool {
        let (filter, job) = (&self.filter, &record.job);
        let equals = |wanted: &Option<String>, value: &str| wanted.as_deref().is_none_or(|wanted| wanted == value);
        let time = to_micros(filter_time_of(record));
        filter.id.as_ref().is_none_or(|id| id.matches(job.id))
            && filter.state.is_none_or(|state| state == record.state)
            && equals(&filter.queue, &job.queue)
            && equals(&filter.kind, &job.kind)
            && filter.priority.is_none_or(|priority| priority == job.priority)
            && filter.tags.iter().all(|tag| job.tags.contains(tag))
            && self.since.is_none_or(|since| time >= since)
            && self.until.is_none_or(|until| time < until)
            && self.error.as_deref().is_none_or(|wanted| error.to_lowercase().contains(wanted))
            && self.text.iter().all(|wanted| contains_text(job, error, wanted))
            && filter.group.as_deref().is_none_or(|group| {
                record.state == State::Dead && fingerprint::group_id(&job.kind, &fingerprint::compute(error)) == group
            })
            && args_match(&job.args, &filter.args)
            && !filter.not.iter().any(|term| term_matches(term, record, error))
    }
}

/// Returns the time that `since` and `until` apply to.
fn filter_time_of(record: &JobRecord) -> std::time::SystemTime {
    match record.state {
        State::Scheduled => record.due,
        State::Done | State::Dead | State::Cancelled => record.ended.unwrap_or(record.due),
        State::Ready | State::Running => record.job.pushed,
    }
}

fn contains_text(job: &Job, error: &str, wanted: &str) -> bool {
    job.args.to_lowercase().contains(wanted) || error.to_lowercase().contains(wanted)
}

fn term_matches(term: &FilterTerm, record: &JobRecord, error: &str) -> bool {
    let job = &record.job;
    match term {
        FilterTerm::Id(id) => id.matches(job.id),
        FilterTerm::State(state) => *state == record.state,
        FilterTerm::Queue(queue) => *queue == job.queue,
        FilterTerm::Kind(kind) => *kind == job.kind,
        FilterTerm::Tag(tag) => job.tags.contains(tag),
        FilterTerm::Priority(priority) => *priority == job.priority,
        FilterTerm::Args(path, needle) => args_match(&job.args, &[(path.clone(), needle.clone())]),
        FilterTerm::Error(wanted) => error.to_lowercase().contains(&wanted.to_lowercase()),
        FilterTerm::Text(wanted) => contains_text(job, error, &wanted.to_lowercase()),
    }
}

/// Returns whether the args have all these values. They are only parsed if there are any.
fn args_match(args: &str, wanted: &[(String, String)]) -> bool {
    if wanted.is_empty() {
        return true;
    }
    let Ok(value) = serde_json::from_str::<Value>(args) else {
        return false;
    };
    wanted.iter().all(|(path, needle)| value_at_path(&value, path).is_some_and(|found| value_matches(found, needle)))
}

fn value_at_path<'v>(value: &'v Value, path: &str) -> Option<&'v Value> {
    path.split('.').try_fold(value, |value, key| match value {
        Value::Object(fields) => fields.get(key),
        Value::Array(items) => items.get(key.parse::<usize>().ok()?),
        _ => None,
    })
}

fn value_matches(value: &Value, needle: &str) -> bool {
    match value {
        Value::String(text) => text.to_lowercase().contains(&needle.to_lowercase()),
        Value::Array(items) => items.iter().any(|item| value_matches(item, needle)),
        Value::Object(_) => false,
        plain => plain.to_string().eq_ignore_ascii_case(needle),
    }
}
