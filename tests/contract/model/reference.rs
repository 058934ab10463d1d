//! What a store should do, in the plainest words: jobs in a list, no index, no batch, no file.

use std::collections::{BTreeMap, BTreeSet};

use duly::store::ChangeResult;
use duly::{Capacity, JobId, NodeId, Outcome, Priority, PushResult, State, UniqueConflict};

pub type Micros = i64;

#[derive(Clone, Debug)]
pub struct Pushing {
    pub id: JobId,
    pub queue: &'static str,
    pub priority: Priority,
    /// Microseconds from now; 0 is now.
    pub after: Micros,
    pub unique: Option<&'static str>,
    pub conflict: UniqueConflict,
    pub keep: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum At {
    Scheduled { due: Micros },
    Ready { seq: i64 },
    Held { node: NodeId, fence: u64, seq: i64 },
    Done,
    Dead,
}

#[derive(Clone, Debug)]
pub struct Job {
    pub pushing: Pushing,
    pub at: At,
    pub attempts: u32,
    pub crashes: u32,
    pub args: &'static str,
    pub said: crate::model::admin::Said,
    /// Counts pushes: among jobs that fall due at one moment the older comes first.
    pub no: i64,
}

#[derive(Clone, Default)]
pub struct Model {
    pub now: Micros,
    pub jobs: Vec<Job>,
    pub paused: BTreeSet<&'static str>,
    pub moving: BTreeSet<&'static str>,
    pub rules: crate::model::cron::Rules,
    pub limits: BTreeMap<&'static str, Capacity>,
    gone: BTreeSet<(&'static str, JobId)>,
    counter: i64,
    /// The counter when the push under way began.
    batch: i64,
    /// What the contract leaves to the store.
    pub order: Order,
    head: i64,
}

/// Both are "to the head", and "by due moment": the stores differ in what comes first among such jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Order {
    /// A released job gets its old place back; of those that fall due at one moment the older comes first.
    #[default]
    ByPlace,
    /// A released job comes before all others; of those that fall due at one moment the lesser id comes first.
    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "only servers list so"))]
    ByHead,
}

impl Model {
    pub fn next(&mut self) -> i64 {
        self.counter += 1;
        self.counter
    }

    /// Where a job goes that comes back.
    fn back(&mut self, seq: i64) -> i64 {
        match self.order {
            Order::ByPlace => seq,
            Order::ByHead => {
                self.head -= 1;
                self.head
            }
        }
    }

    pub fn find(&self, id: JobId) -> Option<usize> {
        self.jobs.iter().position(|job| job.pushing.id == id)
    }

    pub fn holder(&self, queue: &str, key: &str) -> Option<usize> {
        self.jobs.iter().position(|job| {
            let unfinished = !matches!(job.at, At::Done | At::Dead);
            unfinished && job.pushing.queue == queue && job.pushing.unique == Some(key)
        })
    }

    /// The jobs that follow are of one push.
    pub fn begin_push(&mut self) {
        self.batch = self.counter;
    }

    pub fn push(&mut self, pushing: Pushing) -> PushResult {
        let known = self.jobs.iter().any(|j| j.pushing.id == pushing.id && j.pushing.queue == pushing.queue);
        if known || self.gone.contains(&(pushing.queue, pushing.id)) {
            return PushResult::Existing(pushing.id);
        }
        let mut replaced = None;
        if let Some(old) = pushing.unique.and_then(|key| self.holder(pushing.queue, key)) {
            let running = matches!(self.jobs[old].at, At::Held { .. });
            let id = self.jobs[old].pushing.id;
            let of_this_push = self.jobs[old].no > self.batch;
            let moving = self.moving.contains(pushing.queue);
            if pushing.conflict == UniqueConflict::Keep || running || of_this_push || moving {
                return PushResult::Existing(id);
            }
            self.forget(old);
            replaced = Some(id);
        }
        let no = self.next();
        let at = match pushing.after {
            0 => At::Ready { seq: no },
            after => At::Scheduled { due: self.now + after },
        };
        let id = pushing.id;
        self.jobs.push(Job { pushing, at, attempts: 0, crashes: 0, args: "{}", said: Default::default(), no });
        match replaced {
            Some(old) => PushResult::Replaced { id, old },
            None => PushResult::New(id),
        }
    }

    fn forget(&mut self, at: usize) {
        let job = self.jobs.remove(at);
        self.gone.insert((job.pushing.queue, job.pushing.id));
    }

    /// The ids a claim must give, in their order; the caller tells the fence that the store drew.
    pub fn claim(&mut self, node: NodeId, queue: &str, max: usize, fence: u64) -> Vec<JobId> {
        if self.paused.contains(queue) || self.moving.contains(queue) {
            return Vec::new();
        }
        self.promote(queue);
        let mut ready: Vec<usize> = (0..self.jobs.len())
            .filter(|at| self.jobs[*at].pushing.queue == queue && matches!(self.jobs[*at].at, At::Ready { .. }))
            .collect();
        ready.sort_by_key(|at| match self.jobs[*at].at {
            At::Ready { seq } => (std::cmp::Reverse(self.jobs[*at].pushing.priority), seq),
            _ => unreachable!("only ready jobs were kept"),
        });
        ready.truncate(max);
        for at in &ready {
            if let At::Ready { seq } = self.jobs[*at].at {
                self.jobs[*at].at = At::Held { node, fence, seq };
            }
        }
        ready.iter().map(|at| self.jobs[*at].pushing.id).collect()
    }

    fn promote(&mut self, queue: &str) {
        let mut due: Vec<(Micros, i64, JobId, usize)> = Vec::new();
        for (at, job) in self.jobs.iter().enumerate() {
            match job.at {
                At::Scheduled { due: moment } if job.pushing.queue == queue && moment <= self.now => {
                    let no = if self.order == Order::ByPlace { job.no } else { 0 };
                    due.push((moment, no, job.pushing.id, at));
                }
                _ => {}
            }
        }
        due.sort_unstable();
        for (_, _, _, at) in due {
            let seq = self.next();
            self.jobs[at].at = At::Ready { seq };
        }
    }

    /// What a dead node held in a queue goes back to its old place.
    pub fn take_back(&mut self, dead: NodeId, queue: &str) -> usize {
        let mut taken: Vec<(u64, JobId, usize, i64)> = Vec::new();
        for (at, job) in self.jobs.iter_mut().enumerate() {
            match job.at {
                At::Held { node, fence, seq } if node == dead && job.pushing.queue == queue => {
                    taken.push((fence, job.pushing.id, at, seq));
                    job.crashes += 1;
                }
                _ => {}
            }
        }
        taken.sort_unstable();
        for (_, _, at, seq) in taken.iter().rev() {
            self.jobs[*at].at = At::Ready { seq: self.back(*seq) };
        }
        taken.len()
    }

    /// Whether the outcome is recorded.
    pub fn settle(&mut self, node: NodeId, id: JobId, fence: u64, outcome: &Outcome, result: Option<&str>) -> bool {
        let held = |job: &Job| match job.at {
            At::Held { node: holder, fence: held, seq } if (holder, held) == (node, fence) => Some(seq),
            _ => None,
        };
        let Some(at) = self.jobs.iter().position(|job| job.pushing.id == id && held(job).is_some()) else {
            return false;
        };
        let seq = held(&self.jobs[at]).expect("just seen");
        let tail = self.next();
        let head = match outcome {
            Outcome::Release { after } if after.is_zero() => self.back(seq),
            _ => seq,
        };
        let now = self.now;
        let later = |after: std::time::Duration, store_kind: i64| match after.as_micros() as Micros {
            0 => At::Ready { seq: store_kind },
            after => At::Scheduled { due: now + after },
        };
        let job = &mut self.jobs[at];
        match outcome {
            Outcome::Ack if !job.pushing.keep => self.forget(at),
            Outcome::Ack => {
                job.at = At::Done;
                job.said.result = result.map(str::to_owned).or(job.said.result.take());
            }
            Outcome::Bury { .. } => {
                job.attempts += 1;
                job.at = At::Dead;
            }
            Outcome::Retry { after, .. } => {
                job.attempts += 1;
                job.at = later(*after, tail);
            }
            Outcome::Release { after } => job.at = later(*after, head),
        }
        true
    }

    pub fn remove(&mut self, id: JobId) -> ChangeResult {
        match self.find(id) {
            None => ChangeResult::NotFound,
            Some(at) if matches!(self.jobs[at].at, At::Held { .. }) => ChangeResult::Running,
            Some(at) if self.moving.contains(self.jobs[at].pushing.queue) => ChangeResult::Moving,
            Some(at) => {
                self.forget(at);
                ChangeResult::Applied
            }
        }
    }

    pub fn reschedule(&mut self, id: JobId, after: Micros) -> ChangeResult {
        let Some(at) = self.find(id) else {
            return ChangeResult::NotFound;
        };
        if matches!(self.jobs[at].at, At::Held { .. }) {
            return ChangeResult::Running;
        }
        if self.moving.contains(self.jobs[at].pushing.queue) {
            return ChangeResult::Moving;
        }
        if matches!(self.jobs[at].at, At::Done | At::Dead) {
            let (queue, unique) = (self.jobs[at].pushing.queue, self.jobs[at].pushing.unique);
            if let Some(other) = unique.and_then(|key| self.holder(queue, key)) {
                return ChangeResult::Existing(self.jobs[other].pushing.id);
            }
            (self.jobs[at].attempts, self.jobs[at].crashes) = (0, 0);
        }
        let tail = self.next();
        self.jobs[at].at = match after {
            0 => At::Ready { seq: tail },
            after => At::Scheduled { due: self.now + after },
        };
        ChangeResult::Applied
    }

    /// These jobs were gone, and are back in this order: behind all others.
    pub fn come_back(&mut self, ids: &[JobId]) {
        for id in ids {
            let (no, at) = (self.next(), self.find(*id).expect("was there"));
            let mut job = self.jobs.remove(at);
            job.no = no;
            if let At::Ready { seq } = &mut job.at {
                *seq = no;
            }
            self.jobs.push(job);
        }
    }

    /// State, attempts and crashes of every job.
    pub fn summary(&self) -> BTreeMap<JobId, (State, u32, u32)> {
        let state = |at: &At| match at {
            At::Scheduled { .. } => State::Scheduled,
            At::Ready { .. } => State::Ready,
            At::Held { .. } => State::Running,
            At::Done => State::Done,
            At::Dead => State::Dead,
        };
        self.jobs.iter().map(|job| (job.pushing.id, (state(&job.at), job.attempts, job.crashes))).collect()
    }
}
