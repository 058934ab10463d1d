//! Invariants over the reports of all processes, whichever were killed when.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use duly::{JobId, State};

use crate::crash::child::ChildEvent;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// An acknowledged push is missing.
    Lost(JobId),
    /// An acknowledged push never completed although workers were running.
    Unfinished(JobId),
    /// A job was buried that does not kill its process.
    Buried(JobId),
    /// A job of a killed or paused worker was recovered later than its bound.
    RecoveredLate(JobId),
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
pub struct History {
    events: Vec<ChildEvent>,
    /// The jobs of killed and paused workers, how long their recovery took, and its bound.
    recoveries: Vec<(JobId, Duration, Duration)>,
}

/// Returns whether a process ran this job and no other until the process ended or lost the job, by its reports.
pub fn was_alone_at_the_end(events: &[ChildEvent], job: JobId) -> bool {
    let (mut running, mut is_alone) = (BTreeSet::new(), false);
    for event in events {
        match event {
            ChildEvent::Started { id, .. } => {
                running.insert(*id);
                is_alone = *id == job && running.len() == 1;
            }
            ChildEvent::Acked(id, _) => {
                running.remove(id);
                is_alone &= *id != job;
            }
            ChildEvent::Lost(id) if *id == job && is_alone => return true,
            ChildEvent::Lost(id) => {
                running.remove(id);
            }
            ChildEvent::Joined | ChildEvent::Pushed(_) | ChildEvent::Poison(_) => {}
        }
    }
    is_alone
}

/// Returns the job that a killed process ran alone at its end, by its reports.
pub fn lone_job(events: &[ChildEvent]) -> Option<JobId> {
    let started = |event: &ChildEvent| if let ChildEvent::Started { id, .. } = event { Some(*id) } else { None };
    events.iter().rev().find_map(started).filter(|id| was_alone_at_the_end(events, *id))
}

impl History {
    /// Adds all reports of one process.
    pub fn add(&mut self, events: Vec<ChildEvent>) {
        self.events.extend(events);
    }

    /// Adds how long the recovery of a job took that a killed or paused worker had held.
    pub fn add_recovery(&mut self, id: JobId, took: Duration, bound: Duration) {
        self.recoveries.push((id, took, bound));
    }

    pub fn pushed(&self) -> BTreeSet<JobId> {
        self.events
            .iter()
            .filter_map(|event| if let ChildEvent::Pushed(id) = event { Some(*id) } else { None })
            .collect()
    }

    /// Returns the jobs that kill the process that runs them.
    pub fn poisons(&self) -> BTreeSet<JobId> {
        self.events
            .iter()
            .filter_map(|event| if let ChildEvent::Poison(id) = event { Some(*id) } else { None })
            .collect()
    }

    /// Returns the jobs that have started.
    pub fn started(&self) -> BTreeSet<JobId> {
        let id = |event: &ChildEvent| if let ChildEvent::Started { id, .. } = event { Some(*id) } else { None };
        self.events.iter().filter_map(id).collect()
    }

    pub fn attempts(&self) -> usize {
        self.events.iter().filter(|event| matches!(event, ChildEvent::Started { .. })).count()
    }

    /// Returns all faults, given the final state of each acknowledged push.
    pub fn check(&self, states: BTreeMap<JobId, Option<State>>) -> Vec<Fault> {
        let poisons = self.poisons();
        let mut faults = Vec::new();
        for (id, state) in states {
            match (state, poisons.contains(&id)) {
                (Some(State::Done), false) | (Some(State::Dead), true) => {}
                (None, _) => faults.push(Fault::Lost(id)),
                (Some(State::Dead), false) => faults.push(Fault::Buried(id)),
                (Some(_), _) => faults.push(Fault::Unfinished(id)),
            }
        }
        let late = self.recoveries.iter().filter(|(_, took, bound)| took > bound);
        faults.extend(late.map(|(id, ..)| Fault::RecoveredLate(*id)));
        let mut acked: BTreeMap<JobId, u64> = BTreeMap::new();
        for event in &self.events {
            match event {
                ChildEvent::Acked(id, fence) if acked.insert(*id, *fence).is_some() => {
                    faults.push(Fault::SettledTwice(*id))
                }
                ChildEvent::Lost(id) => faults.push(Fault::OutcomeRejected(*id)),
                _ => {}
            }
        }
        let mut fences = BTreeSet::new();
        for event in &self.events {
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
