//! What pushers were promised and what handlers saw, and what follows from both.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::SystemTime;

use duly::{Ctx, Fence, JobId, Outcome};

/// Everything that happened, as the clients saw it.
#[derive(Default)]
pub struct Ledger {
    /// The servers may lose what nobody was promised to find: an outcome that a master took with it, for one.
    forgetful: bool,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// Pushes that were acknowledged, with the number in their args.
    acknowledged: BTreeMap<JobId, u64>,
    attempts: BTreeMap<JobId, Attempts>,
    /// How many attempts have started in each queue.
    started: BTreeMap<String, usize>,
    wrong: Vec<String>,
}

/// What handlers saw of one job.
#[derive(Default)]
struct Attempts {
    /// The number in its args.
    number: u64,
    /// The fence of the latest attempt.
    fence: Option<Fence>,
    /// What its handler wanted: done.
    acked: bool,
    /// A worker was told that this is recorded.
    recorded: bool,
}

impl Ledger {
    pub fn forgetful() -> Ledger {
        Ledger { forgetful: true, ..Ledger::default() }
    }

    fn inner(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().expect("nobody panics with it")
    }

    pub fn acknowledged(&self, id: JobId, number: u64) {
        self.inner().acknowledged.insert(id, number);
    }

    /// An attempt starts, and its handler wants this.
    pub fn started(&self, ctx: &Ctx, number: u64, outcome: &Outcome) {
        let (id, fence, due, now) = (ctx.job().id, ctx.fence(), ctx.due(), SystemTime::now());
        let mut inner = self.inner();
        *inner.started.entry(ctx.job().queue.clone()).or_default() += 1;
        let attempts = inner.attempts.entry(id).or_default();
        let (before, recorded) = (attempts.fence.replace(fence), attempts.recorded);
        (attempts.number, attempts.acked) = (number, *outcome == Outcome::Ack);
        if let Some(before) = before.filter(|before| *before >= fence) {
            inner.wrong.push(format!("{id}: fence {fence} after {before}"));
        }
        if now < due {
            inner.wrong.push(format!("{id}: started {:?} early", due.duration_since(now).unwrap_or_default()));
        }
        if recorded && !self.forgetful {
            inner.wrong.push(format!("{id}: started by fence {fence} although it was done"));
        }
    }

    /// A worker was told that an outcome is recorded.
    pub fn settled(&self, id: JobId, outcome: &Outcome) {
        if *outcome == Outcome::Ack {
            self.inner().attempts.entry(id).or_default().recorded = true;
        }
    }

    /// How many were acknowledged.
    pub fn pushed(&self) -> usize {
        self.inner().acknowledged.len()
    }

    /// How many attempts have started in a queue.
    pub fn started_in(&self, queue: &str) -> usize {
        self.inner().started.get(queue).copied().unwrap_or(0)
    }

    /// Acknowledged jobs that have not started yet.
    pub fn missing(&self) -> Vec<JobId> {
        let inner = self.inner();
        let started = |id: &JobId| inner.attempts.get(id).is_some_and(|attempts| attempts.fence.is_some());
        inner.acknowledged.keys().filter(|id| !started(id)).copied().collect()
    }

    /// Acknowledged jobs that have started and are gone, though they are neither done nor among the dead;
    /// and those that are not what was pushed.
    pub fn vanished(&self, dead: &BTreeSet<JobId>) -> Vec<JobId> {
        let inner = self.inner();
        let ended = |id: &JobId, number: u64| {
            let attempts = inner.attempts.get(id);
            attempts.is_none_or(|attempts| attempts.number == number && (attempts.acked || dead.contains(id)))
        };
        inner.acknowledged.iter().filter(|(id, number)| !ended(id, **number)).map(|(id, _)| *id).collect()
    }

    /// What must never be.
    pub fn wrong(&self) -> Vec<String> {
        self.inner().wrong.clone()
    }
}
