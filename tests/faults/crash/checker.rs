//! What must be true of everything that all processes have said, whoever was killed when.

use std::collections::{BTreeMap, BTreeSet};

use duly::{JobId, State};

use crate::crash::child::Said;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// An acknowledged push is nowhere.
    Lost(JobId),
    /// An acknowledged push never came to its end although workers lived.
    Unfinished(JobId),
    /// Two acks were recorded.
    SettledTwice(JobId),
    /// It was claimed again after its ack was recorded.
    StartedAfterItsEnd(JobId),
    /// It started before its due moment.
    Early(JobId),
    /// A process that lived and beat was refused its outcome.
    Robbed(JobId),
    /// Two claims had the same fence.
    FenceTwice(JobId),
}

#[derive(Default)]
pub struct History(Vec<Said>);

impl History {
    /// All that one process has said.
    pub fn add(&mut self, said: Vec<Said>) {
        self.0.extend(said);
    }

    pub fn pushed(&self) -> BTreeSet<JobId> {
        self.0.iter().filter_map(|said| if let Said::Pushed(id) = said { Some(*id) } else { None }).collect()
    }

    pub fn attempts(&self) -> usize {
        self.0.iter().filter(|said| matches!(said, Said::Started { .. })).count()
    }

    /// Everything that is wrong, given the final state of each acknowledged push.
    pub fn check(&self, states: BTreeMap<JobId, Option<State>>) -> Vec<Fault> {
        let mut faults = Vec::new();
        for (id, state) in states {
            match state {
                None => faults.push(Fault::Lost(id)),
                Some(State::Done) => {}
                Some(_) => faults.push(Fault::Unfinished(id)),
            }
        }
        let mut acked: BTreeMap<JobId, u64> = BTreeMap::new();
        for said in &self.0 {
            match said {
                Said::Acked(id, fence) if acked.insert(*id, *fence).is_some() => faults.push(Fault::SettledTwice(*id)),
                Said::Lost(id) => faults.push(Fault::Robbed(*id)),
                _ => {}
            }
        }
        let mut fences = BTreeSet::new();
        for said in &self.0 {
            let Said::Started { id, fence, late } = said else { continue };
            if *late < 0 {
                faults.push(Fault::Early(*id));
            }
            if acked.get(id).is_some_and(|end| fence > end) {
                faults.push(Fault::StartedAfterItsEnd(*id));
            }
            if !fences.insert((*id, *fence)) {
                faults.push(Fault::FenceTwice(*id));
            }
        }
        faults
    }
}
