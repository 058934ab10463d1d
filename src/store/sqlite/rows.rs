//! Between rows and values.

use std::cell::Cell;
use std::time::Duration;

use rusqlite::types::{FromSql, FromSqlResult, ToSqlOutput, ValueRef};
use rusqlite::{Row, ToSql};

use crate::clock::{from_micros, to_micros};
use crate::job::{Job, JobId, Priority, UNREADABLE};
use crate::store::checksum::sum;

/// The columns of `duly_job j` and its queue's name, in the order [`job`] reads them.
pub(super) const JOB_COLUMNS: &str = "j.id, j.kind, j.args, j.priority, j.pushed_at, j.max_attempts, j.timeout_ms, j.keep_ms, \
     j.unique_key, j.tags, j.traceparent, j.checksum";
/// How many columns [`JOB_COLUMNS`] has.
pub(super) const JOB_COLUMNS_LEN: usize = 12;

/// The columns `due_at, attempts, crashes` of a place, as they can be written to another: a table takes nothing but numbers.
pub(super) const DUE_ATTEMPTS_CRASHES: &str = "iif(typeof(due_at) = 'integer', due_at, 0), \
     iif(typeof(attempts) = 'integer', attempts, 0), iif(typeof(crashes) = 'integer', crashes, 0)";

/// What of a job is written once: this its checksum is made of. Where it stands (queue, priority, unique key) is apart.
pub(super) struct Body<'j> {
    pub(super) id: &'j [u8; 16],
    pub(super) kind: &'j str,
    pub(super) args: &'j str,
    /// When it was pushed, attempts, timeout and keep, as the file has them.
    pub(super) numbers: [i64; 4],
    pub(super) tags: Option<&'j str>,
    pub(super) traceparent: Option<&'j str>,
}

impl<'j> Body<'j> {
    /// Of a job, with its tags as the file has them.
    pub(super) fn of(job: &'j Job, tags: Option<&'j str>) -> Self {
        Body {
            id: job.id.as_bytes(),
            kind: &job.kind,
            args: &job.args,
            numbers: [to_micros(job.pushed), i64::from(job.max_attempts), millis(job.timeout), millis(job.keep)],
            tags,
            traceparent: job.traceparent.as_deref(),
        }
    }

    pub(super) fn sum(&self) -> u32 {
        let mut numbers = [0; 32];
        for (at, number) in self.numbers.iter().enumerate() {
            numbers[8 * at..8 * at + 8].copy_from_slice(&number.to_le_bytes());
        }
        let text = |text: Option<&'j str>| text.unwrap_or_default().as_bytes();
        let (tags, traceparent) = (text(self.tags), text(self.traceparent));
        sum(&[self.id, self.kind.as_bytes(), self.args.as_bytes(), &numbers, tags, traceparent])
    }
}

/// A job from a row that begins with [`JOB_COLUMNS`]. One that is not as it was written goes under a kind that nobody runs.
pub(super) fn job(row: &Row<'_>, queue: String) -> rusqlite::Result<Job> {
    let (mut job, whole) = checked(row, queue)?;
    if !whole {
        tracing::error!(id = %job.id, queue = job.queue, "this job is not as it was written; it is not run: duly verify");
        (job.kind, job.args) = (UNREADABLE.to_owned(), "null".to_owned());
    }
    Ok(job)
}

/// The same as it stands there, and whether it is as it was written. Older builds have left no checksum.
///
/// Never fails: one job that cannot be read must not keep others from being claimed.
pub(super) fn checked(row: &Row<'_>, queue: String) -> rusqlite::Result<(Job, bool)> {
    let columns = Columns { row, sound: Cell::new(true) };
    let tags = columns.maybe_text(9)?;
    let job = Job {
        id: JobId::from_bytes(row.get(0).unwrap_or_else(|_| columns.unsound())),
        queue,
        kind: columns.text(1)?,
        args: columns.text(2)?,
        priority: priority(columns.number(3)),
        pushed: from_micros(columns.number(4)),
        max_attempts: u32::try_from(columns.number(5)).unwrap_or_else(|_| columns.unsound()),
        timeout: Duration::from_millis(columns.number(6).unsigned_abs()),
        keep: Duration::from_millis(columns.number(7).unsigned_abs()),
        unique: columns.maybe_text(8)?,
        tags: tags.as_ref().map_or_else(Vec::new, |tags| tags.split(' ').map(str::to_owned).collect()),
        traceparent: columns.maybe_text(10)?,
    };
    let sum: Option<u32> = row.get(11).unwrap_or_else(|_| columns.unsound());
    let whole = columns.sound.get() && sum.is_none_or(|sum| sum == Body::of(&job, tags.as_deref()).sum());
    Ok((job, whole))
}

/// Columns of which any may be damaged.
struct Columns<'r> {
    row: &'r Row<'r>,
    sound: Cell<bool>,
}

impl Columns<'_> {
    fn unsound<T: Default>(&self) -> T {
        self.sound.set(false);
        T::default()
    }

    fn number(&self, at: usize) -> i64 {
        self.row.get(at).unwrap_or_else(|_| self.unsound())
    }

    fn text(&self, at: usize) -> rusqlite::Result<String> {
        Ok(self.maybe_text(at)?.unwrap_or_else(|| self.unsound()))
    }

    fn maybe_text(&self, at: usize) -> rusqlite::Result<Option<String>> {
        Ok(match self.row.get_ref(at)? {
            ValueRef::Null => None,
            ValueRef::Text(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => Some(text.to_owned()),
                Err(_) => self.unsound(),
            },
            _ => self.unsound(),
        })
    }
}

/// A text byte for byte, whatever a disk has made of it: what stands there is found again and deleted by its bytes, be they
/// UTF-8 or not. One row that cannot be read must not keep a step from going on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Raw(pub(super) Vec<u8>);

impl Raw {
    /// To be shown: what is no UTF-8 is shown as unknown characters.
    pub(super) fn text(self) -> String {
        String::from_utf8(self.0).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned())
    }

    /// Whether it is UTF-8, as all that duly writes.
    pub(super) fn is_text(&self) -> bool {
        std::str::from_utf8(&self.0).is_ok()
    }
}

impl FromSql for Raw {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        Ok(Raw(match value {
            ValueRef::Null => Vec::new(),
            ValueRef::Text(bytes) | ValueRef::Blob(bytes) => bytes.to_vec(),
            ValueRef::Integer(number) => number.to_string().into_bytes(),
            ValueRef::Real(number) => number.to_string().into_bytes(),
        }))
    }
}

impl ToSql for Raw {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(ValueRef::Text(&self.0)))
    }
}

/// A text to be shown, whatever stands there.
pub(super) fn text(row: &Row<'_>, at: usize) -> rusqlite::Result<String> {
    Ok(row.get::<_, Raw>(at)?.text())
}

/// A number as it stands there; 0 if what stands there is none.
pub(super) fn number(row: &Row<'_>, at: usize) -> i64 {
    row.get(at).unwrap_or_default()
}

/// How often something has happened: the nearest to what stands there that can be.
pub(super) fn times(row: &Row<'_>, at: usize) -> u32 {
    u32::try_from(number(row, at).max(0)).unwrap_or(u32::MAX)
}

/// How much there is of something: never less than nothing, whatever stands there.
pub(super) fn many(row: &Row<'_>, at: usize) -> u64 {
    number(row, at).max(0).unsigned_abs()
}

/// The number of a priority in the file: the most urgent is 0, so that it comes first in an ascending tree.
pub(super) fn rank(priority: Priority) -> i64 {
    match priority {
        Priority::Critical => 0,
        Priority::High => 1,
        Priority::Normal => 2,
        Priority::Low => 3,
    }
}

/// The priority with this number in the file.
pub(super) fn priority(rank: i64) -> Priority {
    match rank {
        0 => Priority::Critical,
        1 => Priority::High,
        2 => Priority::Normal,
        _ => Priority::Low,
    }
}

/// A duration in whole milliseconds, as the file keeps it.
pub(super) fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX / 1_000_000)
}
