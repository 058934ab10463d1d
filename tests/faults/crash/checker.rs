//! Invariants over the reports of all processes, whichever were killed when.

use std::collections::{BTreeMap, BTreeSet};

use duly::{JobId, State};

use crate::crash::child::ChildEvent;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// An acknowledged push is missing.
    Lost(JobId),
    /// An acknowledged push never completed although workers were running.
    Unfinished(JobId),
    /// Two acks were recorded.
    SettledTwice(JobId),
    /// The job was claimed again after its ack was recorded.
    StartedAfterAck(JobId),
    /// The job started before its due time.
    Early(JobId),
    /// A running process that sent heartbeats had its outcome rejected.
    OutcomeRejected(JobId),
    /// Two claims had the same fence.
    FenceTwice(JobId),
}

#[derive(Default)]
pub struct History(Vec<ChildEvent>);

impl History {
    /// Adds all reports of one process.
    pub fn add(&mut self, events: Vec<ChildEvent>) {
        self.0.extend(events);
    }

    pub fn pushed(&self) -> BTreeSet<JobId> {
        self.0.iter().filter_map(|event| if let ChildEvent::Pushed(id) = event { Some(*id) } else { None }).collect()
    }

    pub fn attempts(&self) -> usize {
        self.0.iter().filter(|event| matches!(event, ChildEvent::Started { .. })).count()
    }

    /// Returns all faults, given the final state of each acknowledged push.
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
        for event in &self.0 {
            match event {
                ChildEvent::Acked(id, fence) if acked.insert(*id, *fence).is_some() => {
                    faults.push(Fault::SettledTwice(*id))
                }
                ChildEvent::Lost(id) => faults.push(Fault::OutcomeRejected(*id)),
                _ => {}
            }
        }
        let mut fences = BTreeSet::new();
        for event in &self.0 {
            let ChildEvent::Started { id, fence, late } = event else { continue };
            if *late < 0 {
                faults.push(Fault::Early(*id));
            }
            if acked.get(id).is_some_and(|acked_fence| fence > acked_fence) {
                faults.push(Fault::StartedAfterAck(*id));
            }
            if !fences.insert((*id, *fence)) {
                faults.push(Fault::FenceTwice(*id));
            }
        }
        faults
    }
}
