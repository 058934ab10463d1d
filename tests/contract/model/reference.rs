//! The reference model of a store: jobs in a list, without index, batch or file.

use std::collections::{BTreeMap, BTreeSet};

use duly::admin::Capacity;
use duly::job::UniqueConflict;
use duly::store::{CRASH_SUSPECT_MIN, CancelReply, ChangeResult};
use duly::{JobId, NodeId, Outcome, Priority, PushResult, State};

pub type Micros = i64;

#[derive(Clone, Debug)]
pub struct PushSpec {
    pub id: JobId,
    pub queue: &'static str,
    pub priority: Priority,
    /// Microseconds from now; 0 means now.
    pub after: Micros,
    pub unique: Option<&'static str>,
    pub conflict: UniqueConflict,
    pub keep: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Position {
    Scheduled { due: Micros },
    Ready { seq: i64 },
    Held { node: NodeId, fence: u64, seq: i64 },
    Done,
    Dead,
    Cancelled,
}

impl Position {
    pub fn has_ended(&self) -> bool {
        matches!(self, Position::Done | Position::Dead | Position::Cancelled)
    }
}

#[derive(Clone, Debug)]
pub struct Job {
    pub spec: PushSpec,
    pub position: Position,
    pub attempts: u32,
    pub crashes: u32,
    /// A running job was cancelled.
    pub is_marked: bool,
    /// The node that holds it has said that it runs no other job.
    pub is_alone: bool,
    pub args: &'static str,
    pub report: crate::model::admin::JobReport,
    /// The number of the push. If two jobs have the same due time, the older one is claimed first.
    pub number: i64,
}

#[derive(Clone, Default)]
pub struct Model {
    pub now: Micros,
    pub jobs: Vec<Job>,
    pub paused: BTreeSet<&'static str>,
    pub moving: BTreeSet<&'static str>,
    pub rules: crate::model::cron::Rules,
    pub capacities: BTreeMap<&'static str, Capacity>,
    gone: BTreeSet<(&'static str, JobId)>,
    counter: i64,
    /// The counter at the start of the current push.
    batch: i64,
    /// The order that the contract leaves to the store.
    pub order: Order,
    head: i64,
}

/// The stores differ in the order of released jobs, and of jobs with the same due time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Order {
    /// A released job gets its old position back. If two jobs have the same due time, the older one comes first.
    #[default]
    ByPosition,
    /// A released job goes before all others. If two jobs have the same due time, the smaller id comes first.
    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "only servers use this order"))]
    ByHead,
}

impl Model {
    pub fn next_number(&mut self) -> i64 {
        self.counter += 1;
        self.counter
    }

    /// Returns the position of a job that goes back to its queue.
    fn position_of_returned(&mut self, seq: i64) -> i64 {
        match self.order {
            Order::ByPosition => seq,
            Order::ByHead => {
                self.head -= 1;
                self.head
            }
        }
    }

    pub fn find(&self, id: JobId) -> Option<usize> {
        self.jobs.iter().position(|job| job.spec.id == id)
    }

    pub fn holder(&self, queue: &str, key: &str) -> Option<usize> {
        self.jobs
            .iter()
            .position(|job| !job.position.has_ended() && job.spec.queue == queue && job.spec.unique == Some(key))
    }

    /// Starts a push: the following jobs belong to it.
    pub fn begin_push(&mut self) {
        self.batch = self.counter;
    }

    pub fn push(&mut self, spec: PushSpec) -> PushResult {
        let exists = self.jobs.iter().any(|j| j.spec.id == spec.id && j.spec.queue == spec.queue);
        if exists || self.gone.contains(&(spec.queue, spec.id)) {
            return PushResult::Existing(spec.id);
        }
        let mut replaced = None;
        if let Some(old) = spec.unique.and_then(|key| self.holder(spec.queue, key)) {
            let running = matches!(self.jobs[old].position, Position::Held { .. });
            let id = self.jobs[old].spec.id;
            let of_this_push = self.jobs[old].number > self.batch;
            let moving = self.moving.contains(spec.queue);
            if spec.conflict == UniqueConflict::Keep || running || of_this_push || moving {
                return PushResult::Existing(id);
            }
            self.forget(old);
            replaced = Some(id);
        }
        let number = self.next_number();
        let position = match spec.after {
            0 => Position::Ready { seq: number },
            after => Position::Scheduled { due: self.now + after },
        };
        let id = spec.id;
        self.jobs.push(Job {
            spec,
            position,
            attempts: 0,
            crashes: 0,
            is_marked: false,
            is_alone: false,
            args: "{}",
            report: Default::default(),
            number,
        });
        match replaced {
            Some(old) => PushResult::Replaced { id, old },
            None => PushResult::New(id),
        }
    }

    fn forget(&mut self, index: usize) {
        let job = self.jobs.remove(index);
        self.gone.insert((job.spec.queue, job.spec.id));
    }

    /// Returns the ids that a claim must return, in order. `fence` is the fence that the store assigned.
    pub fn claim(&mut self, node: NodeId, queue: &str, max: usize, fence: u64) -> Vec<JobId> {
        if self.paused.contains(queue) || self.moving.contains(queue) {
            return Vec::new();
        }
        self.promote(queue);
        let mut ready: Vec<usize> = (0..self.jobs.len())
            .filter(|index| {
                self.jobs[*index].spec.queue == queue && matches!(self.jobs[*index].position, Position::Ready { .. })
            })
            .collect();
        ready.sort_by_key(|index| match self.jobs[*index].position {
            Position::Ready { seq } => (std::cmp::Reverse(self.jobs[*index].spec.priority), seq),
            _ => unreachable!("only ready jobs were collected"),
        });
        ready.truncate(max);
        for index in &ready {
            if let Position::Ready { seq } = self.jobs[*index].position {
                self.jobs[*index].position = Position::Held { node, fence, seq };
                self.jobs[*index].is_alone = false;
            }
        }
        ready.iter().map(|index| self.jobs[*index].spec.id).collect()
    }

    fn promote(&mut self, queue: &str) {
        let mut due: Vec<(Micros, i64, JobId, usize)> = Vec::new();
        for (index, job) in self.jobs.iter().enumerate() {
            match job.position {
                Position::Scheduled { due: due_at } if job.spec.queue == queue && due_at <= self.now => {
                    let number = if self.order == Order::ByPosition { job.number } else { 0 };
                    due.push((due_at, number, job.spec.id, index));
                }
                _ => {}
            }
        }
        due.sort_unstable();
        for (_, _, _, index) in due {
            let seq = self.next_number();
            self.jobs[index].position = Position::Ready { seq };
        }
    }

    /// Takes the jobs of a dead node in a queue back. Returns how many.
    pub fn take_back(&mut self, dead: NodeId, queue: &str) -> usize {
        let mut taken: Vec<(u64, JobId, usize, i64)> = Vec::new();
        for (index, job) in self.jobs.iter_mut().enumerate() {
            match job.position {
                Position::Held { node, fence, seq } if node == dead && job.spec.queue == queue => {
                    taken.push((fence, job.spec.id, index, seq));
                    let counts = job.is_alone || job.crashes < CRASH_SUSPECT_MIN;
                    job.crashes += u32::from(counts);
                }
                _ => {}
            }
        }
        taken.sort_unstable();
        for (_, _, index, seq) in taken.iter().rev() {
            self.jobs[*index].position = match std::mem::take(&mut self.jobs[*index].is_marked) {
                true => Position::Cancelled,
                false => Position::Ready { seq: self.position_of_returned(*seq) },
            };
        }
        taken.len()
    }

    /// Marks a job that runs alone, or removes the mark. Returns whether the node holds the job.
    pub fn set_alone(&mut self, node: NodeId, id: JobId, fence: u64, alone: bool) -> bool {
        let is_held =
            |job: &Job| matches!(job.position, Position::Held { node: n, fence: f, .. } if (n, f) == (node, fence));
        let Some(index) = self.jobs.iter().position(|job| job.spec.id == id && is_held(job)) else {
            return false;
        };
        let queue = self.jobs[index].spec.queue;
        if alone {
            let of_node = |job: &Job| matches!(job.position, Position::Held { node: holder, .. } if holder == node);
            let others = self.jobs.iter_mut().filter(|job| job.spec.queue == queue && of_node(job));
            others.for_each(|job| job.is_alone = false);
        }
        self.jobs[index].is_alone = alone;
        true
    }

    /// Returns whether the outcome is recorded.
    pub fn settle(&mut self, node: NodeId, id: JobId, fence: u64, outcome: &Outcome, result: Option<&str>) -> bool {
        let held = |job: &Job| match job.position {
            Position::Held { node: holder, fence: held, seq } if (holder, held) == (node, fence) => Some(seq),
            _ => None,
        };
        let Some(index) = self.jobs.iter().position(|job| job.spec.id == id && held(job).is_some()) else {
            return false;
        };
        let seq = held(&self.jobs[index]).expect("is held");
        let tail = self.next_number();
        let head = match outcome {
            Outcome::Release { after } if after.is_zero() => self.position_of_returned(seq),
            _ => seq,
        };
        let now = self.now;
        let later = |after: std::time::Duration, seq: i64| match after.as_micros() as Micros {
            0 => Position::Ready { seq },
            after => Position::Scheduled { due: now + after },
        };
        let job = &mut self.jobs[index];
        let is_marked = std::mem::take(&mut job.is_marked);
        match outcome {
            Outcome::Ack if !job.spec.keep => self.forget(index),
            Outcome::Ack => {
                job.position = Position::Done;
                job.report.result = result.map(str::to_owned).or(job.report.result.take());
            }
            Outcome::Bury { .. } => {
                job.attempts += 1;
                job.position = Position::Dead;
            }
            Outcome::Retry { after, .. } => {
                job.attempts += 1;
                job.position = later(*after, tail);
            }
            Outcome::Release { after } => job.position = later(*after, head),
            _ => unreachable!("the model has no such outcome"),
        }
        if is_marked && *outcome != Outcome::Ack {
            self.jobs[index].position = Position::Cancelled;
        }
        true
    }

    pub fn cancel(&mut self, id: JobId) -> CancelReply {
        let Some(index) = self.find(id) else {
            return CancelReply::NotFound;
        };
        let moving = self.moving.contains(self.jobs[index].spec.queue);
        let job = &mut self.jobs[index];
        match job.position {
            Position::Held { node, .. } => {
                job.is_marked = true;
                CancelReply::Cancelling(node)
            }
            Position::Done => CancelReply::Ended(State::Done),
            Position::Dead => CancelReply::Ended(State::Dead),
            Position::Cancelled => CancelReply::Cancelled,
            Position::Scheduled { .. } | Position::Ready { .. } if moving => CancelReply::Moving,
            Position::Scheduled { .. } | Position::Ready { .. } => {
                job.position = Position::Cancelled;
                CancelReply::Cancelled
            }
        }
    }

    /// Finds a job that may be changed, or returns why it may not.
    pub fn find_changeable(&self, id: JobId) -> Result<usize, ChangeResult> {
        match self.find(id) {
            None => Err(ChangeResult::NotFound),
            Some(index) if matches!(self.jobs[index].position, Position::Held { .. }) => Err(ChangeResult::Running),
            Some(index) if self.moving.contains(self.jobs[index].spec.queue) => Err(ChangeResult::Moving),
            Some(index) => Ok(index),
        }
    }

    pub fn remove(&mut self, id: JobId) -> ChangeResult {
        match self.find_changeable(id) {
            Err(refused) => refused,
            Ok(index) => {
                self.forget(index);
                ChangeResult::Applied
            }
        }
    }

    pub fn reschedule(&mut self, id: JobId, after: Micros) -> ChangeResult {
        let index = match self.find_changeable(id) {
            Ok(index) => index,
            Err(refused) => return refused,
        };
        if self.jobs[index].position.has_ended() {
            let (queue, unique) = (self.jobs[index].spec.queue, self.jobs[index].spec.unique);
            if let Some(other) = unique.and_then(|key| self.holder(queue, key)) {
                return ChangeResult::Existing(self.jobs[other].spec.id);
            }
            (self.jobs[index].attempts, self.jobs[index].crashes) = (0, 0);
        }
        let tail = self.next_number();
        self.jobs[index].position = match after {
            0 => Position::Ready { seq: tail },
            after => Position::Scheduled { due: self.now + after },
        };
        ChangeResult::Applied
    }

    /// Appends jobs that were transferred out and back, in this order, behind all others.
    pub fn append_returned(&mut self, ids: &[JobId]) {
        for id in ids {
            let (number, index) = (self.next_number(), self.find(*id).expect("exists"));
            let mut job = self.jobs.remove(index);
            job.number = number;
            if let Position::Ready { seq } = &mut job.position {
                *seq = number;
            }
            self.jobs.push(job);
        }
    }

    /// Returns state, attempts and crashes of every job.
    pub fn summary(&self) -> BTreeMap<JobId, (State, u32, u32)> {
        let state = |position: &Position| match position {
            Position::Scheduled { .. } => State::Scheduled,
            Position::Ready { .. } => State::Ready,
            Position::Held { .. } => State::Running,
            Position::Done => State::Done,
            Position::Dead => State::Dead,
            Position::Cancelled => State::Cancelled,
        };
        self.jobs.iter().map(|job| (job.spec.id, (state(&job.position), job.attempts, job.crashes))).collect()
    }
}
