//! What the child has asked for and what it was answered, and so what must and what may be in the store after a cut.

use std::collections::BTreeMap;

use duly::{JobId, State};

use crate::power::child;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// An acknowledged push is not there.
    Lost(JobId),
    /// An acknowledged ack, bury, retry or remove has not happened.
    Undone(JobId),
    /// Something is there that nobody has asked for.
    Unasked(JobId),
    /// Its args are not those that were pushed.
    Args(JobId),
    /// A bulk push is there in part.
    Split(String),
    /// The store does not open, or is damaged.
    Corrupt(String),
}

impl Fault {
    /// Lost work, as a relaxed durability allows; all else must never happen.
    pub fn is_loss(&self) -> bool {
        matches!(self, Fault::Lost(_) | Fault::Undone(_))
    }
}

/// A job as it is in the store after a cut.
#[derive(Clone, Debug)]
pub struct Found {
    pub kind: String,
    pub args: String,
    pub state: State,
    pub attempts: u32,
}

/// How far a job has come: it never goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    #[default]
    Nowhere,
    /// Scheduled, ready or running.
    Unfinished,
    /// Done or dead.
    Ended,
    /// Removed or pruned.
    Gone,
}

#[derive(Debug, Default)]
struct Life {
    /// What was answered: it is at least here.
    acknowledged: Stage,
    /// What was asked for: it is at most here.
    asked: Stage,
    /// How it is to end.
    end: Option<State>,
    /// Failed attempts that were recorded.
    attempts: u32,
    args: String,
}

#[derive(Debug, Default)]
pub struct Ledger(BTreeMap<JobId, Life>);

impl Ledger {
    /// Takes one line of the child; lines of the test harness mean nothing.
    pub fn hear(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let (word, id) = match words[..] {
            [word, id] | [word, id, _] => (word, id),
            _ => return,
        };
        let Ok(id) = id.parse::<JobId>() else { return };
        let life = self.0.entry(id).or_insert_with(|| Life { args: child::args(id), ..Life::default() });
        match word {
            "pushing" => life.asked = life.asked.max(Stage::Unfinished),
            "unknown" => {}
            "pushed" | "existing" => life.acknowledged = life.acknowledged.max(Stage::Unfinished),
            "acking" => (life.asked, life.end) = (Stage::Ended, Some(State::Done)),
            "burying" => (life.asked, life.end) = (Stage::Ended, Some(State::Dead)),
            "acked" | "buried" => life.acknowledged = Stage::Ended,
            "retried" => life.attempts = words[2].parse().expect("a number of attempts"),
            "removing" => life.asked = Stage::Gone,
            "removed" => life.acknowledged = Stage::Gone,
            _ => panic!("the child says what nobody understands: {line}"),
        }
    }

    /// How many pushes were acknowledged.
    pub fn pushed(&self) -> usize {
        self.0.values().filter(|life| life.acknowledged > Stage::Nowhere).count()
    }

    /// Everything that is wrong with what was found.
    pub fn judge(&self, found: &BTreeMap<JobId, Found>) -> Vec<Fault> {
        let mut faults: Vec<Fault> = self.0.iter().filter_map(|(id, life)| life.judge(*id, found.get(id))).collect();
        faults.extend(found.keys().filter(|id| !self.0.contains_key(id)).map(|id| Fault::Unasked(*id)));
        let mut bulks: BTreeMap<&str, usize> = BTreeMap::new();
        for job in found.values().filter(|job| job.kind.starts_with("bulk")) {
            *bulks.entry(&job.kind).or_default() += 1;
        }
        bulks.retain(|_, jobs| *jobs != child::BULK);
        faults.extend(bulks.into_keys().map(|kind| Fault::Split(kind.to_owned())));
        faults
    }
}

impl Life {
    fn judge(&self, id: JobId, found: Option<&Found>) -> Option<Fault> {
        let Some(found) = found else {
            let lost = self.acknowledged > Stage::Nowhere && self.asked < Stage::Gone;
            return lost.then_some(Fault::Lost(id));
        };
        let stage = if found.state.is_final() { Stage::Ended } else { Stage::Unfinished };
        if found.args != self.args {
            Some(Fault::Args(id))
        } else if stage < self.acknowledged || found.attempts < self.attempts {
            Some(Fault::Undone(id))
        } else if stage > self.asked || (stage == Stage::Ended && Some(found.state) != self.end) {
            Some(Fault::Unasked(id))
        } else {
            None
        }
    }
}
