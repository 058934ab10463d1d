//! The requests of the child and their replies, and so the required and allowed content of the store after a cut.

use std::collections::BTreeMap;

use duly::{JobId, State};

use crate::power::child;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// An acknowledged push is missing.
    Lost(JobId),
    /// An acknowledged ack, bury, retry or remove is missing.
    Undone(JobId),
    /// The store has something that was never requested.
    Unrequested(JobId),
    /// The args are not those that were pushed.
    Args(JobId),
    /// A bulk push is present in part.
    Split(String),
    /// The store does not open, or is damaged.
    Corrupt(String),
}

impl Fault {
    /// Lost work, which a relaxed durability allows. No other fault is ever allowed.
    pub fn is_loss(&self) -> bool {
        matches!(self, Fault::Lost(_) | Fault::Undone(_))
    }
}

/// A job in the store after a cut.
#[derive(Clone, Debug)]
pub struct JobAfterCut {
    pub kind: String,
    pub args: String,
    pub state: State,
    pub attempts: u32,
}

/// The progress of a job, which never goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    #[default]
    Absent,
    /// Scheduled, ready or running.
    Unfinished,
    /// Done or dead.
    Finished,
    /// Removed or pruned.
    Removed,
}

#[derive(Debug, Default)]
struct ExpectedJob {
    /// The least progress, from acknowledged requests.
    acknowledged: Stage,
    /// The greatest progress, from all requests.
    requested: Stage,
    /// The expected final state.
    end: Option<State>,
    /// Failed attempts that were recorded.
    attempts: u32,
    args: String,
}

#[derive(Debug, Default)]
pub struct Ledger(BTreeMap<JobId, ExpectedJob>);

impl Ledger {
    /// Records one line of the child; ignores lines of the test harness.
    pub fn record(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let (report, id) = match words[..] {
            [report, id] | [report, id, _] => (report, id),
            _ => return,
        };
        let Ok(id) = id.parse::<JobId>() else { return };
        let expected =
            self.0.entry(id).or_insert_with(|| ExpectedJob { args: child::args(id), ..ExpectedJob::default() });
        match report {
            "pushing" => expected.requested = expected.requested.max(Stage::Unfinished),
            "unknown" => {}
            "pushed" | "existing" => expected.acknowledged = expected.acknowledged.max(Stage::Unfinished),
            "acking" => (expected.requested, expected.end) = (Stage::Finished, Some(State::Done)),
            "burying" => (expected.requested, expected.end) = (Stage::Finished, Some(State::Dead)),
            "acked" | "buried" => expected.acknowledged = Stage::Finished,
            "retried" => expected.attempts = words[2].parse().expect("a number of attempts"),
            "removing" => expected.requested = Stage::Removed,
            "removed" => expected.acknowledged = Stage::Removed,
            _ => panic!("unknown report of the child: {line}"),
        }
    }

    /// Returns the number of acknowledged pushes.
    pub fn pushed(&self) -> usize {
        self.0.values().filter(|expected| expected.acknowledged > Stage::Absent).count()
    }

    /// Returns all faults of the found jobs.
    pub fn check(&self, found: &BTreeMap<JobId, JobAfterCut>) -> Vec<Fault> {
        let mut faults: Vec<Fault> =
            self.0.iter().filter_map(|(id, expected)| expected.check(*id, found.get(id))).collect();
        faults.extend(found.keys().filter(|id| !self.0.contains_key(id)).map(|id| Fault::Unrequested(*id)));
        let mut bulks: BTreeMap<&str, usize> = BTreeMap::new();
        for job in found.values().filter(|job| job.kind.starts_with("bulk")) {
            *bulks.entry(&job.kind).or_default() += 1;
        }
        bulks.retain(|_, jobs| *jobs != child::BULK);
        faults.extend(bulks.into_keys().map(|kind| Fault::Split(kind.to_owned())));
        faults
    }
}

impl ExpectedJob {
    fn check(&self, id: JobId, found: Option<&JobAfterCut>) -> Option<Fault> {
        let Some(found) = found else {
            let is_lost = self.acknowledged > Stage::Absent && self.requested < Stage::Removed;
            return is_lost.then_some(Fault::Lost(id));
        };
        let stage = if found.state.is_final() { Stage::Finished } else { Stage::Unfinished };
        if found.args != self.args {
            Some(Fault::Args(id))
        } else if stage < self.acknowledged || found.attempts < self.attempts {
            Some(Fault::Undone(id))
        } else if stage > self.requested || (stage == Stage::Finished && Some(found.state) != self.end) {
            Some(Fault::Unrequested(id))
        } else {
            None
        }
    }
}
