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
    wrong: Vec<String>,
}

impl Inner {
    fn has_started(&self, id: JobId) -> bool {
        self.attempts.get(&id).is_some_and(|attempts| attempts.latest.is_some())
    }
}

/// What handlers saw of one job.
#[derive(Default)]
struct Attempts {
    /// The number in its args.
    number: u64,
    /// The fence of the latest attempt, which worker ran it, and since when.
    latest: Option<(Fence, usize, SystemTime)>,
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

    /// An attempt starts in the hands of a worker, and its handler wants this.
    pub fn started(&self, worker: usize, ctx: &Ctx, number: u64, outcome: &Outcome) {
        let (id, fence, due, now) = (ctx.job().id, ctx.fence(), ctx.due(), SystemTime::now());
        let mut inner = self.inner();
        let attempts = inner.attempts.entry(id).or_default();
        let (before, acked, recorded) =
            (attempts.latest.replace((fence, worker, now)), attempts.acked, attempts.recorded);
        (attempts.number, attempts.acked) = (number, *outcome == Outcome::Ack);
        if let Some((last, by, at)) = before.filter(|(last, ..)| *last >= fence) {
            let ago = now.duration_since(at).unwrap_or_default();
            let so = format!("{id}: fence {fence} by worker {worker}, {ago:?} after {last} by worker {by}");
            inner.wrong.push(format!("{so}, which ended it: {acked}, and was told that it is recorded: {recorded}"));
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

    /// Whether a job has started, whoever pushed it.
    pub fn has_started(&self, id: JobId) -> bool {
        self.inner().has_started(id)
    }

    /// Acknowledged jobs that have not started yet.
    pub fn missing(&self) -> Vec<JobId> {
        let inner = self.inner();
        inner.acknowledged.keys().filter(|id| !inner.has_started(**id)).copied().collect()
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
