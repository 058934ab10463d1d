//! What must hold of a store at any moment, and what was found that does not.

use std::fmt;

use serde::Serialize;

use crate::job::JobId;

/// Most breaches that are told of: whoever has so many needs a backup, not a longer list.
pub const BREACHES_MAX: usize = 1_000;

/// Something that must hold of a store at any moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Rule {
    /// A job is in exactly one state.
    OneState,
    /// What is in a state is a job.
    HasBody,
    /// A job stands where its queue and its priority say.
    RightPlace,
    /// Who holds a job is known, and holds as many as are counted.
    Holders,
    /// A unique key names the one unfinished job that has it.
    UniqueKeys,
    /// What was noted of failures, progress and lines belongs to a job.
    History,
    /// Numbers and fences that were given are below those that will be, and a queue knows its next tick.
    Marks,
    /// A job that is there is not remembered as gone.
    Gone,
    /// Counts are those of the jobs that are there.
    Counts,
    /// A scheduled or dead job is found by its words, and by no others.
    Words,
    /// A cron rule is looked at when its tick is due.
    Ticks,
    /// What is kept of a job can be read, and is what was written.
    Readable,
    /// The file is whole: every index has what its table has.
    File,
}

impl Rule {
    /// All of them.
    pub const ALL: [Rule; 13] = [
        Rule::OneState,
        Rule::HasBody,
        Rule::RightPlace,
        Rule::Holders,
        Rule::UniqueKeys,
        Rule::History,
        Rule::Marks,
        Rule::Gone,
        Rule::Counts,
        Rule::Words,
        Rule::Ticks,
        Rule::Readable,
        Rule::File,
    ];

    /// The rule in one stable word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Rule::OneState => "one_state",
            Rule::HasBody => "has_body",
            Rule::RightPlace => "right_place",
            Rule::Holders => "holders",
            Rule::UniqueKeys => "unique_keys",
            Rule::History => "history",
            Rule::Marks => "marks",
            Rule::Gone => "gone",
            Rule::Counts => "counts",
            Rule::Words => "words",
            Rule::Ticks => "ticks",
            Rule::Readable => "readable",
            Rule::File => "file",
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One thing in a store that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Breach {
    /// The rule.
    pub rule: Rule,
    /// In which queue, if in one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Which job, if it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<JobId>,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.rule)?;
        if let Some(queue) = &self.queue {
            write!(f, "queue {queue}: ")?;
        }
        if let Some(id) = self.id {
            write!(f, "job {id} ")?;
        }
        f.write_str(&self.what)
    }
}

/// What a look through a whole store has found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Verified {
    /// How many jobs were looked at.
    pub jobs: u64,
    /// What breaks a rule; nothing if the store is sound. At most [`BREACHES_MAX`].
    pub breaches: Vec<Breach>,
    /// The file itself is damaged, not only what stands in it: no repair helps, a backup does.
    pub damaged: bool,
}

impl Verified {
    /// Notes a breach, unless there are enough.
    pub(crate) fn note(&mut self, rule: Rule, queue: Option<String>, id: Option<JobId>, what: impl Into<String>) {
        if self.breaches.len() < BREACHES_MAX {
            self.breaches.push(Breach { rule, queue, id, what: what.into() });
        }
    }
}
