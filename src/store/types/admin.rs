//! Managing jobs: edits, bulk changes, capacities, progress of attempts, groups of dead jobs.

use std::time::SystemTime;

use serde::Serialize;

use crate::job::{Fence, HeldJob, JobId, JobProgress, JobRecord, Locator, Priority, State};

/// Most jobs changed in one operation of a bulk change.
pub const BULK_CHANGE_MAX: usize = 200;
/// Most jobs that one batch of a list examines.
pub const LIST_BATCH_MAX: usize = 500;
/// Most bytes that one batch of a list reads, not counting its last job.
pub const LIST_BATCH_BYTES_MAX: usize = 1024 * 1024;
/// Most jobs examined for one page of a list. A page that finds too few is short and has a next cursor.
pub const LIST_EXAMINED_MAX: usize = 10_000;
/// Most bytes on one page of a list, not counting its last batch. A page of large jobs is short and has a next cursor.
pub const PAGE_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Most progress updates in one operation.
pub const PROGRESS_UPDATES_MAX: usize = 200;
/// Most log lines kept per job: the newest stay.
pub const LOG_LINES_MAX: usize = 100;
/// Longest log line, in bytes; longer ones are truncated.
pub const LOG_LINE_BYTES_MAX: usize = 1024;
/// Longest progress message, in bytes; longer ones are truncated.
pub const PROGRESS_MESSAGE_BYTES_MAX: usize = 256;
/// Longest result of a job, in bytes of JSON.
pub const RESULT_BYTES_MAX: usize = 64 * 1024;
/// Most groups of dead jobs in one queue. Further jobs share one group with the error `…`.
pub const DEAD_GROUPS_MAX: usize = 1_000;

/// The result of removing a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RemoveQueueResult {
    /// The queue was removed.
    Removed,
    /// There is no such queue.
    NotFound,
    /// The queue stays as it is.
    InUse(QueueUse),
}

/// The reason why a queue is not removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum QueueUse {
    /// It has jobs.
    Jobs,
    /// Cron rules push into it.
    CronRules,
    /// It is moving to or from another store.
    Transfer,
    /// It is paused, or has a capacity.
    Settings,
    /// It remembers ids of removed jobs, or has counters of the last day.
    Activity,
}

/// A change to a job that is not running. A field that is `None` stays as it is.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct JobEdit {
    /// New args, as JSON text.
    pub args: Option<String>,
    /// New priority; a ready job goes to the tail of that priority.
    pub priority: Option<Priority>,
}

impl JobEdit {
    /// Returns an edit that changes nothing yet.
    #[must_use]
    pub fn new() -> Self {
        JobEdit::default()
    }

    /// Sets new args, as JSON text; `None` keeps the current ones.
    #[must_use]
    pub fn args(self, args: impl Into<Option<String>>) -> Self {
        JobEdit { args: args.into(), ..self }
    }

    /// Sets a new priority; `None` keeps the current one.
    #[must_use]
    pub fn priority(self, priority: impl Into<Option<Priority>>) -> Self {
        JobEdit { priority: priority.into(), ..self }
    }
}

/// A job to change, if it is still in the given state.
#[derive(Clone, Debug)]
pub struct ChangeTarget {
    /// Its queue.
    pub queue: String,
    /// The job.
    pub id: JobId,
    /// The state in which the caller saw it.
    pub state: State,
}

impl ChangeTarget {
    /// Returns the target for this record's job and state.
    #[must_use]
    pub fn from_record(record: &JobRecord) -> Self {
        ChangeTarget { queue: record.job.queue.clone(), id: record.job.id, state: record.state }
    }
}

/// How many unfinished jobs a queue accepts. A push beyond it is rejected as a whole; `None` means unlimited.
///
/// # Examples
///
/// ```
/// use duly::admin::Capacity;
///
/// assert_eq!(Capacity::unlimited().jobs(100_000).to_string(), "100000 jobs");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Capacity {
    /// The most jobs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jobs: Option<u64>,
    /// The most bytes of args.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

impl Capacity {
    /// Returns the capacity of a queue that accepts any number of jobs.
    #[must_use]
    pub fn unlimited() -> Self {
        Capacity::default()
    }

    /// Sets the most jobs; `None` means unlimited.
    #[must_use]
    pub fn jobs(self, jobs: impl Into<Option<u64>>) -> Self {
        Capacity { jobs: jobs.into(), ..self }
    }

    /// Sets the most bytes of args; `None` means unlimited.
    #[must_use]
    pub fn bytes(self, bytes: impl Into<Option<u64>>) -> Self {
        Capacity { bytes: bytes.into(), ..self }
    }

    /// Returns whether neither jobs nor bytes are limited.
    #[must_use]
    pub fn is_unlimited(&self) -> bool {
        self.jobs.is_none() && self.bytes.is_none()
    }

    /// Returns whether more jobs and bytes fit; each pair is the current number and the number to add.
    #[must_use]
    pub(crate) fn has_room_for(&self, jobs: (u64, u64), bytes: (u64, u64)) -> bool {
        let fits = |maximum: Option<u64>, (current, more): (u64, u64)| {
            maximum.is_none_or(|maximum| more == 0 || current.saturating_add(more) <= maximum)
        };
        fits(self.jobs, jobs) && fits(self.bytes, bytes)
    }
}

impl std::fmt::Display for Capacity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let s = |count: u64| if count == 1 { "" } else { "s" };
        match (self.jobs, self.bytes) {
            (None, None) => f.write_str("no limit"),
            (Some(jobs), None) => write!(f, "{jobs} job{}", s(jobs)),
            (None, Some(bytes)) => write!(f, "{bytes} byte{}", s(bytes)),
            (Some(jobs), Some(bytes)) => write!(f, "{jobs} job{}, {bytes} byte{}", s(jobs), s(bytes)),
        }
    }
}

/// Progress and log lines of a running attempt, recorded only if the node still holds the job under that fence.
#[derive(Clone, Debug)]
pub struct ProgressUpdate {
    /// The job's queue.
    pub queue: String,
    /// The job.
    pub id: JobId,
    /// The claim it is held under.
    pub fence: Fence,
    /// Which attempt, from 1.
    pub attempt: u32,
    /// The new progress, if it changed.
    pub progress: Option<JobProgress>,
    /// New log lines and when each was written.
    pub lines: Vec<(SystemTime, String)>,
    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "only Redis stores it with the held job"))]
    pub(crate) priority: Priority,
    pub(crate) locator: Locator,
}

impl ProgressUpdate {
    /// Returns the update of an attempt at this held job.
    #[must_use]
    pub fn from_held(held: &HeldJob, progress: Option<JobProgress>, lines: Vec<(SystemTime, String)>) -> Self {
        ProgressUpdate {
            queue: held.job.queue.clone(),
            id: held.job.id,
            fence: held.fence,
            attempt: held.attempt(),
            progress,
            lines,
            priority: held.job.priority,
            locator: held.locator,
        }
    }
}

/// Dead jobs of one kind that failed with the same error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DeadGroup {
    /// Its id: `group:ID` in a filter selects these jobs.
    pub id: String,
    /// The queue.
    pub queue: String,
    /// Their kind.
    pub kind: String,
    /// The common part of their last errors, without numbers, ids and quoted text.
    pub error: String,
    /// The number of jobs.
    pub count: u64,
    /// When the first of them died since the group was last empty.
    #[serde(serialize_with = "crate::clock::as_micros")]
    pub oldest: SystemTime,
    /// When the last of them died.
    #[serde(serialize_with = "crate::clock::as_micros")]
    pub newest: SystemTime,
}

/// Truncates a text to at most `max` bytes at a character boundary.
pub(crate) fn truncate_text(text: &str, max: usize) -> &str {
    let mut end = text.len().min(max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
