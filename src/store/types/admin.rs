//! What looking after jobs asks of a store: edits, changes to many, limits, notes of attempts, groups of dead jobs.

use std::time::SystemTime;

use serde::Serialize;

use crate::job::{Fence, HeldJob, JobId, JobProgress, JobRecord, Priority, State};

/// Most jobs changed in one step of a change to many.
pub const BULK_CHANGE_MAX: usize = 200;
/// Most jobs that one step of a list looks at.
pub const LIST_BATCH_MAX: usize = 500;
/// Most bytes that one step of a list looks at, beyond the last job.
pub const LIST_BATCH_BYTES_MAX: usize = 1024 * 1024;
/// Most jobs that one page of a list looks at: one that finds too little is short, and says where to go on.
pub const LIST_EXAMINED_MAX: usize = 10_000;
/// Most bytes on one page of a list, beyond those of its last step: one with large jobs is short, and says where to go on.
pub const PAGE_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Most notes in one step.
pub const PROGRESS_UPDATES_MAX: usize = 200;
/// Most lines kept of a job's log: the newest stay.
pub const LOG_LINES_MAX: usize = 100;
/// Longest line of a log, in bytes; what is longer is cut.
pub const LOG_LINE_BYTES_MAX: usize = 1024;
/// Longest text beside a progress, in bytes; what is longer is cut.
pub const PROGRESS_NOTE_BYTES_MAX: usize = 256;
/// Longest result of a job, in bytes of JSON.
pub const RESULT_BYTES_MAX: usize = 64 * 1024;
/// Most groups of dead jobs kept apart in one queue; what comes then goes into one group, whose error is `…`.
pub const DEAD_GROUPS_MAX: usize = 1_000;

/// What to change about a job that is not running. What is `None` stays.
#[derive(Clone, Debug, Default)]
pub struct JobEdit {
    /// Other args, as JSON text.
    pub args: Option<String>,
    /// Another priority; a ready job goes to the tail of its new one.
    pub priority: Option<Priority>,
}

/// A job that is meant, as it was seen: if it is not in that state any more it is left alone.
#[derive(Clone, Debug)]
pub struct ChangeTarget {
    /// Its queue.
    pub queue: String,
    /// The job.
    pub id: JobId,
    /// The state it was seen in.
    pub state: State,
}

impl ChangeTarget {
    /// The job of this record.
    #[must_use]
    pub fn from_record(record: &JobRecord) -> Self {
        ChangeTarget { queue: record.job.queue.clone(), id: record.job.id, state: record.state }
    }
}

/// How much may be unfinished in a queue. A push beyond it is refused as a whole; `None` is no limit.
///
/// Unfinished jobs are scheduled, ready or running.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Capacity {
    /// The most jobs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jobs: Option<u64>,
    /// The most bytes of args.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

impl Capacity {
    /// Nothing is limited.
    #[must_use]
    pub fn is_unlimited(&self) -> bool {
        self.jobs.is_none() && self.bytes.is_none()
    }

    /// Whether so many more fit in where so many are.
    #[must_use]
    pub(crate) fn has_room_for(&self, jobs: (u64, u64), bytes: (u64, u64)) -> bool {
        let fits = |limit: Option<u64>, (is, more): (u64, u64)| {
            limit.is_none_or(|limit| more == 0 || is.saturating_add(more) <= limit)
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

/// What an attempt under way says of itself; recorded only if the node still holds the job under that fence.
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
    /// How far it has come, if that is new.
    pub progress: Option<JobProgress>,
    /// New lines of its log, and when each was said.
    pub lines: Vec<(SystemTime, String)>,
    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "only on a server it is a part of what is held"))]
    pub(crate) priority: Priority,
    pub(crate) locator: i64,
}

impl ProgressUpdate {
    /// What the attempt at this held job says.
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

/// Dead jobs of one kind that died of the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DeadGroup {
    /// Its name: `group:ID` in a filter means these jobs.
    pub id: String,
    /// The queue.
    pub queue: String,
    /// Their kind.
    pub kind: String,
    /// What their last errors have in common: numbers, ids and what is in quotes are left out.
    pub error: String,
    /// How many there are.
    pub count: u64,
    /// When the first of them died, since there last was none.
    #[serde(serialize_with = "crate::clock::as_micros")]
    pub oldest: SystemTime,
    /// When the last of them died.
    #[serde(serialize_with = "crate::clock::as_micros")]
    pub newest: SystemTime,
}

/// A text cut between characters to at most so many bytes.
pub(crate) fn truncate_text(text: &str, max: usize) -> &str {
    let mut end = text.len().min(max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
