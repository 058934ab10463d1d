//! What pushers were promised and what handlers saw, and what follows from both.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::SystemTime;

use duly::{Fence, JobId};

/// Everything that happened, as the clients saw it.
#[derive(Default)]
pub struct Ledger {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// Pushes that were acknowledged.
    acknowledged: BTreeSet<JobId>,
    /// The fence of each attempt, in the order in which they started.
    attempts: BTreeMap<JobId, Vec<Fence>>,
    wrong: Vec<String>,
}

impl Ledger {
    fn inner(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().expect("nobody panics with it")
    }

    pub fn acknowledged(&self, id: JobId) {
        self.inner().acknowledged.insert(id);
    }

    /// An attempt starts.
    pub fn started(&self, id: JobId, fence: Fence, due: SystemTime, now: SystemTime) {
        let mut inner = self.inner();
        let attempts = inner.attempts.entry(id).or_default();
        let before = attempts.last().copied();
        attempts.push(fence);
        if before.is_some_and(|before| before >= fence) {
            inner.wrong.push(format!("{id}: fence {fence} after {}", before.expect("just seen")));
        }
        if now < due {
            inner.wrong.push(format!("{id}: started {:?} early", due.duration_since(now).unwrap_or_default()));
        }
    }

    /// How many were acknowledged.
    pub fn pushed(&self) -> usize {
        self.inner().acknowledged.len()
    }

    /// Acknowledged jobs that have not started yet.
    pub fn missing(&self) -> Vec<JobId> {
        let inner = self.inner();
        inner.acknowledged.iter().filter(|id| !inner.attempts.contains_key(id)).copied().collect()
    }

    /// What must never be.
    pub fn wrong(&self) -> Vec<String> {
        self.inner().wrong.clone()
    }
}
