//! What must hold of a store at any moment, and what was found that does not.

use std::fmt;

use serde::Serialize;

use crate::job::JobId;

/// Most breaches that are told of: whoever has so many needs a backup, not a longer list.
pub const VIOLATIONS_MAX: usize = 1_000;

/// Something that must hold of a store at any moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Invariant {
    /// A job is in exactly one state.
    OneState,
    /// What is in a state is a job.
    HasRecord,
    /// A job stands where its queue and its priority say.
    QueuePosition,
    /// Who holds a job is known, and holds as many as are counted.
    Holders,
    /// A unique key names the one unfinished job that has it.
    UniqueKeys,
    /// What was noted of failures, progress and lines belongs to a job.
    AttemptRecords,
    /// Numbers and fences that were given are below those that will be, and a queue knows its next tick.
    Sequences,
    /// A job that is there is not remembered as gone.
    RememberedIds,
    /// Counts are those of the jobs that are there.
    Counts,
    /// A scheduled or dead job is found by its words, and by no others.
    JobIndex,
    /// A cron rule is looked at when its tick is due.
    CronTicks,
    /// What is kept of a job can be read, and is what was written.
    Readable,
    /// The file is whole: every index has what its table has.
    FileIntegrity,
}

impl Invariant {
    /// All of them.
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

    /// The rule in one stable word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Invariant::OneState => "one_state",
            Invariant::HasRecord => "has_body",
            Invariant::QueuePosition => "right_place",
            Invariant::Holders => "holders",
            Invariant::UniqueKeys => "unique_keys",
            Invariant::AttemptRecords => "history",
            Invariant::Sequences => "marks",
            Invariant::RememberedIds => "gone",
            Invariant::Counts => "counts",
            Invariant::JobIndex => "words",
            Invariant::CronTicks => "ticks",
            Invariant::Readable => "readable",
            Invariant::FileIntegrity => "file",
        }
    }
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One thing in a store that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Violation {
    /// The rule.
    pub invariant: Invariant,
    /// In which queue, if in one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Which job, if it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<JobId>,
    /// What is wrong.
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

/// What a look through a whole store has found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct VerifyReport {
    /// How many jobs were looked at.
    pub jobs: u64,
    /// What breaks a rule; nothing if the store is sound. At most [`BREACHES_MAX`].
    pub violations: Vec<Violation>,
    /// The file itself is damaged, not only what stands in it: no repair helps, a backup does.
    pub damaged: bool,
}

impl VerifyReport {
    /// Notes a breach, unless there are enough.
    pub(crate) fn add_violation(
        &mut self,
        rule: Invariant,
        queue: Option<String>,
        id: Option<JobId>,
        what: impl Into<String>,
    ) {
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(Violation { invariant: rule, queue, id, details: what.into() });
        }
    }
}
