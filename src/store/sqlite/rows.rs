//! Conversion between rows and values.

use std::cell::Cell;
use std::time::Duration;

use rusqlite::types::{FromSql, FromSqlResult, ToSqlOutput, ValueRef};
use rusqlite::{Row, ToSql};

use crate::clock::{from_micros, to_micros};
use crate::job::{Job, JobId, Priority, UNREADABLE_KIND, UniqueKey};
use crate::store::checksum::crc32;

/// The columns of `duly_job j`, in the order in which [`job`] reads them.
pub(super) const JOB_COLUMNS: &str = "j.id, j.kind, j.args, j.priority, j.pushed_at, j.max_attempts, \
     j.timeout_ms, j.keep_ms, j.unique_key, j.tags, j.traceparent, j.checksum";
/// The number of columns in [`JOB_COLUMNS`].
pub(super) const JOB_COLUMNS_LEN: usize = 12;

/// The columns `due_at, attempts, crashes` of a state, safe to copy to another table: damaged values become 0.
pub(super) const DUE_ATTEMPTS_CRASHES: &str = "iif(typeof(due_at) = 'integer', due_at, 0), \
     iif(typeof(attempts) = 'integer', attempts, 0), iif(typeof(crashes) = 'integer', crashes, 0)";

/// The parts of a job that are written once and that the checksum covers. Queue, priority and unique key are not among
/// them.
pub(super) struct JobBody<'j> {
    pub(super) id: &'j [u8; 16],
    pub(super) kind: &'j str,
    pub(super) args: &'j str,
    /// `pushed_at`, `max_attempts`, `timeout_ms` and `keep_ms`, as stored.
    pub(super) numbers: [i64; 4],
    pub(super) tags: Option<&'j str>,
    pub(super) traceparent: Option<&'j str>,
}

impl<'j> JobBody<'j> {
    /// The body of a job, with its tags as stored.
    pub(super) fn from_job(job: &'j Job, tags: Option<&'j str>) -> Self {
        JobBody {
            id: job.id.as_bytes(),
            kind: &job.kind,
            args: &job.args,
            numbers: [to_micros(job.pushed), i64::from(job.max_attempts), to_millis(job.timeout), to_millis(job.keep)],
            tags,
            traceparent: job.traceparent.as_deref(),
        }
    }

    pub(super) fn checksum(&self) -> u32 {
        let mut numbers = [0; 32];
        for (column, number) in self.numbers.iter().enumerate() {
            numbers[8 * column..8 * column + 8].copy_from_slice(&number.to_le_bytes());
        }
        let text = |text: Option<&'j str>| text.unwrap_or_default().as_bytes();
        let (tags, traceparent) = (text(self.tags), text(self.traceparent));
        crc32(&[self.id, self.kind.as_bytes(), self.args.as_bytes(), &numbers, tags, traceparent])
    }
}

/// Reads a job from a row that starts with [`JOB_COLUMNS`]. A job with a wrong checksum gets a kind that has no
/// handler.
pub(super) fn read_job(row: &Row<'_>, queue: String) -> rusqlite::Result<Job> {
    let (mut job, whole) = read_checked_job(row, queue)?;
    if !whole {
        tracing::error!(id = %job.id, queue = job.queue, "job is corrupted (checksum mismatch) and will not run; run `duly verify`");
        (job.kind, job.args) = (UNREADABLE_KIND.to_owned(), "null".to_owned());
    }
    Ok(job)
}

/// Reads a job unchanged, and whether its checksum matches.
///
/// Damaged columns do not fail: one unreadable job must not keep others from being claimed.
pub(super) fn read_checked_job(row: &Row<'_>, queue: String) -> rusqlite::Result<(Job, bool)> {
    let columns = LenientColumns { row, intact: Cell::new(true) };
    let tags = columns.optional_text(9)?;
    let job = Job {
        id: JobId::from_bytes(row.get(0).unwrap_or_else(|_| columns.mark_damaged())),
        queue,
        kind: columns.text(1)?,
        args: columns.text(2)?,
        priority: priority_from_code(columns.integer(3)),
        pushed: from_micros(columns.integer(4)),
        max_attempts: u32::try_from(columns.integer(5)).unwrap_or_else(|_| columns.mark_damaged()),
        timeout: Duration::from_millis(columns.integer(6).unsigned_abs()),
        keep: Duration::from_millis(columns.integer(7).unsigned_abs()),
        unique: columns.optional_text(8)?.map(UniqueKey::from_stored),
        tags: tags.as_ref().map_or_else(Vec::new, |tags| tags.split(' ').map(str::to_owned).collect()),
        traceparent: columns.optional_text(10)?,
    };
    let sum: u32 = row.get(11).unwrap_or_else(|_| columns.mark_damaged());
    let whole = columns.intact.get() && sum == JobBody::from_job(&job, tags.as_deref()).checksum();
    Ok((job, whole))
}

/// Columns that may be damaged.
struct LenientColumns<'r> {
    row: &'r Row<'r>,
    intact: Cell<bool>,
}

impl LenientColumns<'_> {
    fn mark_damaged<T: Default>(&self) -> T {
        self.intact.set(false);
        T::default()
    }

    fn integer(&self, column: usize) -> i64 {
        self.row.get(column).unwrap_or_else(|_| self.mark_damaged())
    }

    fn text(&self, column: usize) -> rusqlite::Result<String> {
        Ok(self.optional_text(column)?.unwrap_or_else(|| self.mark_damaged()))
    }

    fn optional_text(&self, column: usize) -> rusqlite::Result<Option<String>> {
        Ok(match self.row.get_ref(column)? {
            ValueRef::Null => None,
            ValueRef::Text(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => Some(text.to_owned()),
                Err(_) => self.mark_damaged(),
            },
            _ => self.mark_damaged(),
        })
    }
}

/// A text as raw bytes, which may not be UTF-8 on a damaged disk. The same bytes find and delete the row again, so one
/// unreadable row does not stop an operation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RawText(pub(super) Vec<u8>);

impl RawText {
    /// Returns the text for display. Invalid UTF-8 becomes replacement characters.
    pub(super) fn into_lossy_string(self) -> String {
        String::from_utf8(self.0).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned())
    }

    /// Returns whether it is UTF-8, as everything that duly writes.
    pub(super) fn is_utf8(&self) -> bool {
        std::str::from_utf8(&self.0).is_ok()
    }
}

impl FromSql for RawText {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        Ok(RawText(match value {
            ValueRef::Null => Vec::new(),
            ValueRef::Text(bytes) | ValueRef::Blob(bytes) => bytes.to_vec(),
            ValueRef::Integer(number) => number.to_string().into_bytes(),
            ValueRef::Real(number) => number.to_string().into_bytes(),
        }))
    }
}

impl ToSql for RawText {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(ValueRef::Text(&self.0)))
    }
}

/// Reads a text for display.
pub(super) fn read_text(row: &Row<'_>, column: usize) -> rusqlite::Result<String> {
    Ok(row.get::<_, RawText>(column)?.into_lossy_string())
}

/// Reads a number; 0 if the column has another type.
pub(super) fn read_integer(row: &Row<'_>, column: usize) -> i64 {
    row.get(column).unwrap_or_default()
}

/// Reads a number of attempts or crashes, clamped to the possible range.
pub(super) fn read_u32(row: &Row<'_>, column: usize) -> u32 {
    u32::try_from(read_integer(row, column).max(0)).unwrap_or(u32::MAX)
}

/// Reads an amount; negative values become 0.
pub(super) fn read_u64(row: &Row<'_>, column: usize) -> u64 {
    read_integer(row, column).max(0).unsigned_abs()
}

/// Returns the stored number of a priority. The most urgent is 0, so that it sorts first.
pub(super) fn priority_code(priority: Priority) -> i64 {
    match priority {
        Priority::Critical => 0,
        Priority::High => 1,
        Priority::Normal => 2,
        Priority::Low => 3,
    }
}

/// Returns the priority with this stored number.
pub(super) fn priority_from_code(rank: i64) -> Priority {
    match rank {
        0 => Priority::Critical,
        1 => Priority::High,
        2 => Priority::Normal,
        _ => Priority::Low,
    }
}

/// Returns a duration in milliseconds, as stored.
pub(super) fn to_millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX / 1_000_000)
}
