//! A store that fails on demand, for tests: it rejects a request, loses its reply, or delays it.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use super::contract::sealed::Sealed;
use super::{Capabilities, Store};
use crate::error::{Error, Result};
use crate::job::JobId;
use crate::sync::LockExt;

/// The kind of failure.
#[derive(Clone, Copy, Debug)]
pub(crate) enum InjectedFault {
    /// The request is rejected and not executed.
    Refuse,
    /// The request is executed and its reply is lost.
    LoseReply,
    /// The request is executed and the call never returns.
    WithholdReply,
    /// The request is executed and the reply is delayed.
    DelayReply(Duration),
    /// The request is executed and the reply arrives after [`FaultyStore::release_replies`].
    HoldReply,
}

#[derive(Default)]
struct FaultPlan {
    /// The fault of each operation, and how often it is still to occur.
    pending: HashMap<&'static str, (InjectedFault, usize)>,
    /// How often each operation was called.
    calls: HashMap<&'static str, usize>,
}

/// A store with injected faults. The macro `capability!` implements every trait of the contract for it.
pub(crate) struct FaultyStore {
    pub(super) inner: Arc<dyn Store>,
    plan: Mutex<FaultPlan>,
    /// Closed once held replies may arrive.
    held_replies: tokio::sync::Semaphore,
}

impl FaultyStore {
    pub(crate) fn new(inner: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(FaultyStore { inner, plan: Mutex::default(), held_replies: tokio::sync::Semaphore::new(0) })
    }

    /// Injects a fault into the next `times` calls of this operation.
    pub(crate) fn inject(&self, op: &'static str, fault: InjectedFault, times: usize) {
        self.plan().pending.insert(op, (fault, times));
    }

    /// Lets the replies arrive that are held, and all later ones.
    pub(crate) fn release_replies(&self) {
        self.held_replies.close();
    }

    /// Returns how often this operation was called.
    pub(crate) fn call_count(&self, op: &'static str) -> usize {
        self.plan().calls.get(op).copied().unwrap_or(0)
    }

    fn plan(&self) -> MutexGuard<'_, FaultPlan> {
        self.plan.lock_unpoisoned()
    }

    fn next_fault(&self, op: &'static str) -> Option<InjectedFault> {
        let mut plan = self.plan();
        *plan.calls.entry(op).or_default() += 1;
        let (fault, remaining) = plan.pending.get_mut(op).filter(|(_, remaining)| *remaining > 0)?;
        *remaining -= 1;
        Some(*fault)
    }

    pub(super) async fn call_with_fault<T>(
        &self,
        op: &'static str,
        request: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        match self.next_fault(op) {
            None => request.await,
            Some(InjectedFault::Refuse) => Err(Error::store(op, "rejected on demand")),
            Some(InjectedFault::LoseReply) => {
                request.await?;
                Err(Error::unknown(op))
            }
            Some(InjectedFault::WithholdReply) => {
                request.await?;
                std::future::pending().await
            }
            Some(InjectedFault::DelayReply(delay)) => {
                let reply = request.await;
                tokio::time::sleep(delay).await;
                reply
            }
            Some(InjectedFault::HoldReply) => {
                let reply = request.await;
                // Waits until the semaphore is closed, which is an error.
                drop(self.held_replies.acquire().await);
                reply
            }
        }
    }
}

impl Sealed for FaultyStore {}

impl Store for FaultyStore {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    /// The same capabilities as those of the inner store.
    fn capabilities(&self) -> Capabilities<'_> {
        let inner = self.inner.capabilities();
        Capabilities {
            jobs: inner.jobs.and(Some(self)),
            admin: inner.admin.and(Some(self)),
            progress: inner.progress.and(Some(self)),
            crons: inner.crons.and(Some(self)),
            locks: inner.locks.and(Some(self)),
            peers: inner.peers.and(Some(self)),
            completions: inner.completions.and(Some(self)),
            stats: inner.stats.and(Some(self)),
            access: inner.access.and(Some(self)),
            transfer: inner.transfer.and(Some(self)),
            shared_keys: inner.shared_keys.and(Some(self)),
            maintenance: inner.maintenance.and(Some(self)),
            health: inner.health.and(Some(self)),
            snapshot: inner.snapshot.and(Some(self)),
            scan: inner.scan.and(Some(self)),
            transactions: inner.transactions.and(Some(self)),
        }
    }

    fn advice(&self, capability: &str) -> &'static str {
        self.inner.advice(capability)
    }

    fn parse_job_id(&self, text: &str) -> Result<JobId> {
        self.inner.parse_job_id(text)
    }

    fn runtime(&self) -> Option<tokio::runtime::Handle> {
        self.inner.runtime()
    }

    fn now(&self) -> SystemTime {
        self.inner.now()
    }

    fn check_files(&self, op: &'static str, seen_id: Option<&str>) -> Result<()> {
        self.inner.check_files(op, seen_id)
    }
}
