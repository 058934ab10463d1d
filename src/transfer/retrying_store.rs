//! One of the two stores, asked with patience: everything that a mover asks can be asked again, also when nobody knows
//! what became of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use crate::error::{Error, Result};
use crate::job::JobId;
use crate::node::{Node, NodeId, NodeRecord};
use crate::store::{
    Capacity, Claim, ClaimReply, CronPage, CronRecord, Filter, HeartbeatReply, JobPage, PutCron, PutCronResult,
    QueueCounts, Store, TransferBatch, TransferBatchResult, TransferMarkReply,
};

/// How often a store that fails is asked.
const TRIES_MAX: u32 = 6;
/// The first wait before it is asked again; doubles.
const RETRY_DELAY_MIN: Duration = Duration::from_millis(100);

/// A store at one end of a move.
#[derive(Clone)]
pub(crate) struct RetryingStore {
    store: Arc<dyn Store>,
    /// How many more questions a test allows, to both sides together.
    calls_left: Option<Arc<AtomicU64>>,
}

macro_rules! with_retries {
    ($store:ident, $request:expr) => {{
        $store.count_call()?;
        let (mut tries, mut pause) = (1, RETRY_DELAY_MIN);
        loop {
            match $request.await {
                Err(error) if error.is_retryable() && tries < TRIES_MAX => {
                    tracing::warn!(%error, again_in = ?pause, "a store failed while jobs were moved");
                    tokio::time::sleep(pause).await;
                    (tries, pause) = (tries + 1, pause * 2);
                }
                answer => break answer,
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
        let one_less = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        one_less.map(drop).map_err(|_| Error::Conflict("killed on demand".to_owned()))
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
        with_retries!(self, self.store.shared_keyspace())
    }

    pub(crate) async fn set_capacity(&self, queue: &str, limit: Capacity) -> Result<Capacity> {
        with_retries!(self, self.store.set_capacity(queue, limit))
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

    pub(crate) async fn transfer_out(
        &self,
        queue: &str,
        mover: NodeId,
        jobs: &[(JobId, SystemTime)],
    ) -> Result<Option<usize>> {
        with_retries!(self, self.store.transfer_out(queue, mover, jobs.to_vec()))
    }

    /// A store that keeps no rules has none to move.
    pub(crate) async fn crons(&self, queue: &str, cursor: Option<&str>) -> Result<CronPage> {
        match with_retries!(self, self.store.crons(Some(queue), cursor)) {
            Err(Error::Unsupported { .. }) => Ok(CronPage::default()),
            answer => answer,
        }
    }

    pub(crate) async fn cron(&self, name: &str) -> Result<Option<CronRecord>> {
        with_retries!(self, self.store.cron(name))
    }

    pub(crate) async fn put_cron(&self, put: PutCron) -> Result<PutCronResult> {
        with_retries!(self, self.store.put_cron(put.clone()))
    }

    pub(crate) async fn remove_cron(&self, name: &str) -> Result<bool> {
        with_retries!(self, self.store.remove_cron(name))
    }
}
