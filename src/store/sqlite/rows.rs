//! Between rows and values.

use std::time::Duration;

use rusqlite::Row;

use crate::clock::from_micros;
use crate::job::{Job, JobId, Priority};

/// The columns of `duly_job j` and its queue's name, in the order [`job`] reads them.
pub(super) const JOB_COLUMNS: &str = "j.id, j.kind, j.args, j.priority, j.pushed, j.max_attempts, j.timeout_ms, j.keep_ms, \
     j.unique_key, j.tags, j.traceparent";
/// How many columns [`JOB_COLUMNS`] has.
pub(super) const JOB_COLUMNS_LEN: usize = 11;

/// A job from a row that begins with [`JOB_COLUMNS`].
pub(super) fn job(row: &Row<'_>, queue: String) -> rusqlite::Result<Job> {
    let tags: Option<String> = row.get(9)?;
    Ok(Job {
        id: JobId::from_bytes(row.get(0)?),
        queue,
        kind: row.get(1)?,
        args: row.get(2)?,
        priority: priority(row.get(3)?),
        pushed: from_micros(row.get(4)?),
        max_attempts: row.get(5)?,
        timeout: Duration::from_millis(row.get(6)?),
        keep: Duration::from_millis(row.get(7)?),
        unique: row.get(8)?,
        tags: tags.map_or_else(Vec::new, |t| t.split(' ').map(str::to_owned).collect()),
        traceparent: row.get(10)?,
    })
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
