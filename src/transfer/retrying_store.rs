//! One of the two stores, with retries: every request of a mover is idempotent, even if its outcome is unknown.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use crate::error::{ConflictKind, Error, Result};
use crate::job::JobId;
use crate::node::{Node, NodeId, NodeRecord};
use crate::store::contract;
use crate::store::{
    AdminStore, Capabilities, Capacity, Claim, ClaimReply, CronPage, CronRecord, CronStore, Filter, ForeignProcess,
    HeartbeatReply, JobPage, JobStore, PeerStore, PutCron, PutCronResult, QueueCounts, SharedKeysStore, Store,
    TransferBatch, TransferBatchResult, TransferMarkReply, TransferStore,
};

/// Attempts per request.
const TRIES_MAX: u32 = 6;
/// Delay before the first retry; doubles.
const RETRY_DELAY_MIN: Duration = Duration::from_millis(100);

/// The source or the target of a transfer.
#[derive(Clone)]
pub(crate) struct RetryingStore {
    store: Arc<dyn Store>,
    /// How many more requests a test allows to both stores in total.
    calls_left: Option<Arc<AtomicU64>>,
}

macro_rules! with_retries {
    ($store:ident, $request:expr) => {{
        $store.count_call()?;
        let (mut tries, mut delay, mut may_have_run) = (1, RETRY_DELAY_MIN, false);
        loop {
            match $request.await {
                Err(error) if error.is_retryable() && tries < TRIES_MAX => {
                    tracing::warn!(%error, retry_in = ?delay, "a store request of a transfer failed; retrying");
                    may_have_run |= matches!(error, Error::Unknown { .. });
                    tokio::time::sleep(delay).await;
                    (tries, delay) = (tries + 1, delay * 2);
                }
                // The last try changed nothing, but an earlier one may have.
                Err(error) if may_have_run => {
                    break Err(Error::unknown_with_cause("transfer", error));
                }
                reply => break reply,
            }
        }
    }};
}

impl RetryingStore {
    pub(crate) fn new(store: Arc<dyn Store>, calls_left: Option<Arc<AtomicU64>>) -> Self {
        RetryingStore { store, calls_left }
    }

    fn count_call(&self) -> Result<()> {
        let Some(left) = &self.calls_left else {
            return Ok(());
        };
        let decremented = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        decremented.map(drop).map_err(|_| Error::conflict(ConflictKind::Refused, "killed on demand"))
    }

    pub(crate) fn capabilities(&self) -> Capabilities<'_> {
        self.store.capabilities()
    }

    /// Returns an error if this store cannot take part in a transfer.
    pub(crate) fn check_transfer_support(&self) -> Result<()> {
        match self.store.capabilities().transfer {
            Some(_) => Ok(()),
            None => Err(contract::unsupported(&*self.store, contract::transfer::CAPABILITY)),
        }
    }

    pub(crate) async fn counts(&self) -> Result<Vec<QueueCounts>> {
        with_retries!(self, self.store.counts())
    }

    pub(crate) async fn list(&self, filter: Filter) -> Result<JobPage> {
        with_retries!(self, self.store.list(filter.clone()))
    }

    pub(crate) async fn claim(&self, node: NodeId, claim: Claim) -> Result<ClaimReply> {
        with_retries!(self, self.store.claim(node, claim.clone()))
    }

    pub(crate) async fn heartbeat(&self, node: &Node) -> Result<HeartbeatReply> {
        with_retries!(self, self.store.heartbeat(node))
    }

    pub(crate) async fn nodes(&self) -> Result<Vec<NodeRecord>> {
        with_retries!(self, self.store.nodes())
    }

    pub(crate) async fn shared_keyspace(&self) -> Result<Option<String>> {
        if self.store.capabilities().shared_keys.is_none() {
            return Ok(None);
        }
        let keyspace: Result<String> = with_retries!(self, self.store.shared_keyspace());
        Ok(Some(keyspace?))
    }

    pub(crate) async fn set_capacity(&self, queue: &str, capacity: Capacity) -> Result<Capacity> {
        with_retries!(self, self.store.set_capacity(queue, capacity))
    }

    pub(crate) async fn pause(&self, queue: &str) -> Result<bool> {
        with_retries!(self, self.store.set_paused(queue, true))
    }

    pub(crate) async fn set_transfer_mark(
        &self,
        queue: &str,
        mover: NodeId,
        to: Option<&str>,
    ) -> Result<TransferMarkReply> {
        with_retries!(self, self.store.set_transfer_mark(queue, mover, to))
    }

    pub(crate) async fn transfer_in(&self, batch: &TransferBatch) -> Result<TransferBatchResult> {
        with_retries!(self, self.store.transfer_in(batch.clone()))
    }

    /// Only a store on shared keys has to reserve jobs; elsewhere the mark keeps every other node away.
    pub(crate) async fn transfer_reserve(
        &self,
        queue: &str,
        mover: NodeId,
        jobs: &[(JobId, SystemTime)],
    ) -> Result<Option<Vec<(JobId, SystemTime)>>> {
        if self.store.capabilities().shared_keys.is_none() {
            return Ok(Some(jobs.to_vec()));
        }
        with_retries!(self, self.store.transfer_reserve(queue, mover, jobs.to_vec()))
    }

    pub(crate) async fn foreign_processes(&self) -> Result<Vec<ForeignProcess>> {
        if self.store.capabilities().shared_keys.is_none() {
            return Ok(Vec::new());
        }
        with_retries!(self, self.store.foreign_processes())
    }

    pub(crate) async fn transfer_out(
        &self,
        queue: &str,
        mover: NodeId,
        jobs: &[(JobId, SystemTime)],
    ) -> Result<Option<usize>> {
        with_retries!(self, self.store.transfer_out(queue, mover, jobs.to_vec()))
    }

    /// A store without support for cron rules has none to transfer.
    pub(crate) async fn crons(&self, queue: &str, cursor: Option<&str>) -> Result<CronPage> {
        if self.store.capabilities().crons.is_none() {
            return Ok(CronPage::default());
        }
        with_retries!(self, self.store.crons(Some(queue), cursor))
    }

    pub(crate) async fn cron(&self, name: &str) -> Result<Option<CronRecord>> {
        with_retries!(self, self.store.cron(name))
    }

    pub(crate) async fn put_cron(&self, change: PutCron) -> Result<PutCronResult> {
        with_retries!(self, self.store.put_cron(change.clone()))
    }

    pub(crate) async fn remove_cron(&self, name: &str) -> Result<bool> {
        with_retries!(self, self.store.remove_cron(name))
    }
}
