//! Invariants of a store, and the violations that a verification found.

use std::fmt;

use serde::Serialize;

use crate::job::JobId;

/// Most violations reported. A store with more needs a backup, not a longer list.
pub const VIOLATIONS_MAX: usize = 1_000;

/// A condition that must hold in a store at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Invariant {
    /// A job is in exactly one state.
    OneState,
    /// Every id in a state has a job record.
    HasRecord,
    /// A job's position matches its queue and priority.
    QueuePosition,
    /// The holder of a running job is known, and the count of held jobs is right.
    Holders,
    /// A unique key belongs to the one unfinished job that has it.
    UniqueKeys,
    /// Runs, progress and log lines belong to an existing job.
    AttemptRecords,
    /// Used numbers and fences are below the next ones, and a queue knows its next tick.
    Sequences,
    /// The id of an existing job is not remembered as that of a gone one.
    RememberedIds,
    /// Counts equal the number of existing jobs.
    Counts,
    /// The index finds a scheduled or dead job by its own terms, and by no others.
    JobIndex,
    /// Every active cron rule is scheduled for its next tick.
    CronTicks,
    /// A job's stored data is readable and matches its checksum.
    Readable,
    /// The file is intact: every index matches its table.
    FileIntegrity,
}

impl Invariant {
    /// All invariants.
    pub const ALL: [Invariant; 13] = [
        Invariant::OneState,
        Invariant::HasRecord,
        Invariant::QueuePosition,
        Invariant::Holders,
        Invariant::UniqueKeys,
        Invariant::AttemptRecords,
        Invariant::Sequences,
        Invariant::RememberedIds,
        Invariant::Counts,
        Invariant::JobIndex,
        Invariant::CronTicks,
        Invariant::Readable,
        Invariant::FileIntegrity,
    ];

    /// Returns the stable name of the invariant.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Invariant::OneState => "one_state",
            Invariant::HasRecord => "has_record",
            Invariant::QueuePosition => "queue_position",
            Invariant::Holders => "holders",
            Invariant::UniqueKeys => "unique_keys",
            Invariant::AttemptRecords => "attempt_records",
            Invariant::Sequences => "sequences",
            Invariant::RememberedIds => "remembered_ids",
            Invariant::Counts => "counts",
            Invariant::JobIndex => "job_index",
            Invariant::CronTicks => "cron_ticks",
            Invariant::Readable => "readable",
            Invariant::FileIntegrity => "file_integrity",
        }
    }
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One violation of an invariant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Violation {
    /// The invariant.
    pub invariant: Invariant,
    /// The queue, if it concerns one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// The job, if it concerns one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<JobId>,
    /// A description of the problem.
    pub details: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.invariant)?;
        if let Some(queue) = &self.queue {
            write!(f, "queue {queue}: ")?;
        }
        if let Some(id) = self.id {
            write!(f, "job {id} ")?;
        }
        f.write_str(&self.details)
    }
}

/// The result of verifying a whole store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct VerifyReport {
    /// The number of jobs checked.
    pub jobs: u64,
    /// Violations, at most [`VIOLATIONS_MAX`]; empty if the store is sound.
    pub violations: Vec<Violation>,
    /// The file itself is damaged, not only its data: repair cannot help, restore a backup.
    pub damaged: bool,
}

impl VerifyReport {
    /// Adds a violation, unless the maximum is reached.
    pub(crate) fn add_violation(
        &mut self,
        invariant: Invariant,
        queue: Option<String>,
        id: Option<JobId>,
        details: impl Into<String>,
    ) {
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(Violation { invariant, queue, id, details: details.into() });
        }
    }
}
