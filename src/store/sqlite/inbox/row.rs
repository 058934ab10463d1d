//! One row of the inbox, and the push that it asks for.

use std::str::FromStr;
use std::time::Duration;

use rusqlite::Row;

use crate::clock::{Micros, from_micros, micros};
use crate::error::{Error, Result};
use crate::job::JobId;
use crate::job::push::{ARGS_BYTES_MAX, Push};
use crate::job::{Priority, UniqueConflict, UniqueScope};
use crate::store::sqlite::rows::RawText;

/// The waiting rows of a queue, oldest first. Args that are too long are not read.
pub(super) const SELECT_ROWS: &str = "SELECT inbox_no, kind, octet_length(args), \
       iif(octet_length(args) <= 1048576, args, NULL), queue, id, due_at, delay_ms, priority, unique_key, unique_scope, \
       on_conflict, max_attempts, timeout_ms, keep_ms, tags, traceparent, inserted_at \
  FROM duly_inbox INDEXED BY duly_inbox_waiting WHERE error IS NULL AND queue = ?1 ORDER BY inbox_no LIMIT ?2";

/// A due time before 1973 is no number of microseconds, but a number of seconds or milliseconds.
const DUE_MICROS_MIN: i64 = 100_000_000_000_000;

/// A row as it was inserted. No column is trusted.
pub(super) struct InboxRow {
    pub(super) number: i64,
    kind: RawText,
    pub(super) args_bytes: usize,
    args: RawText,
    queue: RawText,
    id: Option<RawText>,
    due_at: Option<i64>,
    delay_ms: Option<i64>,
    priority: Option<RawText>,
    unique_key: Option<RawText>,
    unique_scope: Option<RawText>,
    on_conflict: Option<RawText>,
    max_attempts: Option<i64>,
    timeout_ms: Option<i64>,
    keep_ms: Option<i64>,
    tags: Option<RawText>,
    traceparent: Option<RawText>,
    inserted_at: Micros,
}

impl InboxRow {
    pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(InboxRow {
            number: row.get(0)?,
            kind: row.get(1)?,
            args_bytes: row.get(2)?,
            args: row.get(3)?,
            queue: row.get(4)?,
            id: row.get(5)?,
            due_at: row.get(6)?,
            delay_ms: row.get(7)?,
            priority: row.get(8)?,
            unique_key: row.get(9)?,
            unique_scope: row.get(10)?,
            on_conflict: row.get(11)?,
            max_attempts: row.get(12)?,
            timeout_ms: row.get(13)?,
            keep_ms: row.get(14)?,
            tags: row.get(15)?,
            traceparent: row.get(16)?,
            inserted_at: row.get(17)?,
        })
    }

    /// Returns the job, or an error that names the column. Checks as much as every other push does.
    pub(super) fn into_push(self, keep: Duration, now: Micros) -> Result<Push> {
        if self.args_bytes > ARGS_BYTES_MAX {
            let reason = format!("{} bytes; at most {ARGS_BYTES_MAX} are allowed", self.args_bytes);
            return Err(Error::invalid("args", reason));
        }
        let mut job = Push::new(to_text("kind", self.kind)?, to_text("args", self.args)?)
            .queue(to_text("queue", self.queue)?)
            .keep(to_duration("keep_ms", self.keep_ms)?.unwrap_or(keep));
        if let Some(id) = self.id {
            job = job.id(JobId::from_str(&to_text("id", id)?)?);
        }
        if let Some(priority) = self.priority {
            job = job.priority(Priority::from_str(&to_text("priority", priority)?)?);
        }
        if let Some(key) = self.unique_key {
            job = job.unique(to_text("unique_key", key)?);
        }
        if let Some(scope) = self.unique_scope {
            job = job.unique_scope(to_choice("unique_scope", scope, [UniqueScope::Kind, UniqueScope::Queue])?);
        }
        if let Some(conflict) = self.on_conflict {
            job = job.on_conflict(to_choice("on_conflict", conflict, [UniqueConflict::Keep, UniqueConflict::Replace])?);
        }
        if let Some(attempts) = self.max_attempts {
            let attempts = u32::try_from(attempts);
            job = job.max_attempts(attempts.map_err(|_| Error::invalid("max_attempts", "must be 1 to 4294967295"))?);
        }
        if let Some(timeout) = to_duration("timeout_ms", self.timeout_ms)? {
            job = job.timeout(timeout);
        }
        if let Some(tags) = self.tags {
            job = job.tags(to_text("tags", tags)?.split_ascii_whitespace());
        }
        if let Some(traceparent) = self.traceparent {
            job = job.traceparent(to_text("traceparent", traceparent)?);
        }
        if let Some(due) = due_time(self.due_at, self.delay_ms, self.inserted_at.min(now))? {
            job = job.at(from_micros(due));
        }
        job.check()?;
        job.scope_unique_key();
        Ok(job)
    }
}

/// Returns when the job is due; `None` for now.
fn due_time(due_at: Option<i64>, delay_ms: Option<i64>, inserted_at: Micros) -> Result<Option<Micros>> {
    match (due_at, to_duration("delay_ms", delay_ms)?) {
        (None, None) => Ok(None),
        (Some(_), Some(_)) => Err(Error::invalid("due_at", "cannot be given together with delay_ms; leave one out")),
        (None, Some(delay)) => Ok(Some(inserted_at.saturating_add(micros(delay)))),
        (Some(due), None) if due < DUE_MICROS_MIN => Err(Error::invalid(
            "due_at",
            format!("{due} is too small for microseconds since 1970; multiply seconds by 1000000"),
        )),
        (Some(due), None) => Ok(Some(due)),
    }
}

fn to_text(column: &'static str, text: RawText) -> Result<String> {
    String::from_utf8(text.0).map_err(|_| Error::invalid(column, "not UTF-8 text"))
}

fn to_duration(column: &'static str, millis: Option<i64>) -> Result<Option<Duration>> {
    let to_duration = |millis: i64| {
        let millis = u64::try_from(millis).map_err(|_| Error::invalid(column, "must not be negative"))?;
        Ok(Duration::from_millis(millis))
    };
    millis.map(to_duration).transpose()
}

/// Returns the choice that has this name.
fn to_choice<T: NamedChoice + Copy>(column: &'static str, name: RawText, choices: [T; 2]) -> Result<T> {
    let name = to_text(column, name)?;
    let names = choices.map(NamedChoice::name);
    choices
        .into_iter()
        .find(|choice| choice.name() == name)
        .ok_or_else(|| Error::invalid(column, format!("{name:?} is unknown; use {} or {}", names[0], names[1])))
}

/// A value that a column names in one word.
trait NamedChoice {
    fn name(self) -> &'static str;
}

impl NamedChoice for UniqueScope {
    fn name(self) -> &'static str {
        self.as_str()
    }
}

impl NamedChoice for UniqueConflict {
    fn name(self) -> &'static str {
        match self {
            UniqueConflict::Keep => "keep",
            UniqueConflict::Replace => "replace",
        }
    }
}
