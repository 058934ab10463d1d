//! Records of acknowledged pushes and of attempts, and the faults that follow from both.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::SystemTime;

use duly::{Ctx, Fence, JobId, Outcome};

/// All events, as observed by the clients.
#[derive(Default)]
pub struct Ledger {
    /// The servers may lose unacknowledged data, for example outcomes of a failed master.
    may_lose_outcomes: bool,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// Acknowledged pushes, with the number in their args.
    acknowledged: BTreeMap<JobId, u64>,
    attempts: BTreeMap<JobId, Attempts>,
    violations: Vec<String>,
}

impl Inner {
    fn has_started(&self, id: JobId) -> bool {
        self.attempts.get(&id).is_some_and(|attempts| attempts.latest.is_some())
    }
}

/// The attempts of one job.
#[derive(Default)]
struct Attempts {
    /// The number in its args.
    number: u64,
    /// The fence, worker and start time of the latest attempt.
    latest: Option<(Fence, usize, SystemTime)>,
    /// The handler returned an ack.
    acked: bool,
    /// A worker got a confirmation that the ack is recorded.
    recorded: bool,
    /// Fence, worker, start time and outcome of every attempt, and every confirmation, for the report of a failure.
    history: Vec<String>,
}

impl Ledger {
    pub fn may_lose_outcomes() -> Ledger {
        Ledger { may_lose_outcomes: true, ..Ledger::default() }
    }

    fn inner(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().expect("no thread panics while holding it")
    }

    pub fn acknowledged(&self, id: JobId, number: u64) {
        self.inner().acknowledged.insert(id, number);
    }

    /// Records the start of an attempt and the outcome that its handler returns.
    pub fn started(&self, worker: usize, ctx: &Ctx, number: u64, outcome: &Outcome) {
        let (id, fence, due, now) = (ctx.job().id, ctx.fence(), ctx.due(), SystemTime::now());
        let mut inner = self.inner();
        let attempts = inner.attempts.entry(id).or_default();
        let (before, acked, recorded) =
            (attempts.latest.replace((fence, worker, now)), attempts.acked, attempts.recorded);
        (attempts.number, attempts.acked) = (number, *outcome == Outcome::Ack);
        attempts.history.push(format!("{now:?}: fence {fence} by worker {worker}, {outcome:?}"));
        if let Some((last, by, started_at)) = before.filter(|(last, ..)| *last >= fence) {
            let ago = now.duration_since(started_at).unwrap_or_default();
            let order = format!("{id}: fence {fence} by worker {worker}, {ago:?} after {last} by worker {by}");
            inner.violations.push(format!("{order}, which acked it: {acked}, with a confirmation: {recorded}"));
        }
        if now < due {
            inner.violations.push(format!("{id}: started {:?} early", due.duration_since(now).unwrap_or_default()));
        }
        if recorded && !self.may_lose_outcomes {
            inner.violations.push(format!("{id}: started by fence {fence} although it was done"));
        }
    }

    /// Records a worker's confirmation that an outcome is stored.
    pub fn settled(&self, id: JobId, outcome: &Outcome) {
        let mut inner = self.inner();
        let attempts = inner.attempts.entry(id).or_default();
        attempts.recorded |= *outcome == Outcome::Ack;
        attempts.history.push(format!("{:?}: recorded {outcome:?}", SystemTime::now()));
    }

    /// Returns the number of acknowledged pushes.
    pub fn pushed(&self) -> usize {
        self.inner().acknowledged.len()
    }

    /// Returns whether a job has started.
    pub fn has_started(&self, id: JobId) -> bool {
        self.inner().has_started(id)
    }

    /// Returns acknowledged jobs that have not started yet.
    pub fn missing(&self) -> Vec<JobId> {
        let inner = self.inner();
        inner.acknowledged.keys().filter(|id| !inner.has_started(**id)).copied().collect()
    }

    /// Returns acknowledged jobs that have started and are gone although they are neither done nor dead, and jobs with
    /// args other than those pushed.
    ///
    /// A job with a recorded ack is done, whatever its last attempt returned. A master that was paused and replaced
    /// executes the claims in its buffers once it continues, and can start a job again that is done on the new master.
    /// The outcome of that attempt is rejected.
    pub fn vanished(&self, dead: &BTreeSet<JobId>) -> Vec<JobId> {
        let inner = self.inner();
        let ended = |id: &JobId, number: u64| {
            let attempts = inner.attempts.get(id);
            attempts.is_none_or(|attempts| {
                attempts.number == number && (attempts.acked || attempts.recorded || dead.contains(id))
            })
        };
        inner.acknowledged.iter().filter(|(id, number)| !ended(id, **number)).map(|(id, _)| *id).collect()
    }

    /// Returns what happened to a job, in order.
    pub fn history(&self, id: JobId) -> Vec<String> {
        self.inner().attempts.get(&id).map(|attempts| attempts.history.clone()).unwrap_or_default()
    }

    /// Returns the violations found so far.
    pub fn violations(&self) -> Vec<String> {
        self.inner().violations.clone()
    }
}
