//! The requests of a worker to the store. The loop continues while they are in flight.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::admin::unused_queues::remove_unused_queues;
use crate::client::Duly;
use crate::clock;
use crate::error::{Error, Result};
use crate::job::{HeldJob, JobId};
use crate::node::NodeId;
use crate::store::{Claim, ClaimReply, JobStore, Store};
use crate::worker::claim_state::ClaimPurpose;
use crate::worker::cron_ticks::{TickReport, fire_batch};
use crate::worker::outcomes::{ClaimKey, UnsettledEnd, claim_key};
use crate::worker::progress_sender;
use crate::worker::queue_state::CLAIM_AHEAD_MIN;

/// A reply of the store, with the index of its queue.
pub(super) enum StoreReply {
    Claimed { queue_index: usize, purpose: ClaimPurpose, sent: Instant, reply: Result<ClaimReply> },
    Settled { queue_index: usize, batch: Vec<UnsettledEnd>, sent: Instant, lost: Result<Vec<JobId>> },
    Pruned { queue_index: usize, deleted: Result<usize> },
    AloneSet { queue_index: usize, claim: ClaimKey, alone: bool, sent: Instant, is_held: Result<bool> },
    TicksFired { queue_index: usize, report: Result<TickReport> },
}

/// The requests in flight.
pub(super) struct StoreRequests {
    store: Arc<dyn Store>,
    node: NodeId,
    /// The kinds with a handler; `None` if any kind can run.
    kinds: Option<Arc<[String]>>,
    in_flight: FuturesUnordered<BoxFuture<'static, StoreReply>>,
}

impl StoreRequests {
    pub(super) fn new(store: Arc<dyn Store>, node: NodeId, kinds: Option<Arc<[String]>>) -> Self {
        StoreRequests { store, node, kinds, in_flight: FuturesUnordered::new() }
    }

    /// Waits for the next reply. Never resolves if no request is in flight.
    pub(super) async fn next_reply(&mut self) -> StoreReply {
        match self.in_flight.next().await {
            Some(reply) => reply,
            None => std::future::pending().await,
        }
    }

    /// Sends new requests, and returns a reply that has arrived: those of one commit arrive together.
    pub(super) fn try_next_reply(&mut self) -> Option<StoreReply> {
        self.in_flight.next().now_or_never().flatten()
    }

    pub(super) fn claim(&self, queue_index: usize, queue: &str, purpose: ClaimPurpose) {
        let max = purpose.reserved_slots();
        let claim = Claim {
            resync: matches!(purpose, ClaimPurpose::Resync),
            suspect: if let ClaimPurpose::TakeJobs(_, suspect) = purpose { suspect } else { None },
            kinds: self.kinds.clone(),
            ..Claim::new(queue, max)
        };
        let (store, node, sent) = (self.store.clone(), self.node, clock::monotonic_now());
        let request = async move { store.claim(node, claim).await };
        // A large reply is decoded in a separate task, not in the loop.
        let is_large = max >= CLAIM_AHEAD_MIN;
        self.in_flight.push(Box::pin(async move {
            let reply = if is_large { spawn_claim(request).await } else { request.await };
            StoreReply::Claimed { queue_index, purpose, sent, reply }
        }));
    }

    /// Sends outcomes of one queue, after the last progress of their attempts: a store accepts progress only while the
    /// node holds the job.
    pub(super) fn settle(&self, queue_index: usize, mut batch: Vec<UnsettledEnd>, sent: Instant) {
        let (store, node) = (self.store.clone(), self.node);
        self.in_flight.push(Box::pin(async move {
            progress_sender::send_final_updates(&*store, node, &mut batch).await;
            let ends = batch.iter().map(|finished| finished.end.clone()).collect();
            let lost = store.settle(node, ends).await;
            StoreReply::Settled { queue_index, batch, sent, lost }
        }));
    }

    pub(super) fn set_alone(&self, queue_index: usize, held: Arc<HeldJob>, alone: bool) {
        let (store, node) = (self.store.clone(), self.node);
        let (claim, sent) = (claim_key(&held), clock::monotonic_now());
        self.in_flight.push(Box::pin(async move {
            let is_held = store.set_alone(node, held, alone).await;
            StoreReply::AloneSet { queue_index, claim, alone, sent, is_held }
        }));
    }

    pub(super) fn prune(&self, queue_index: usize, queue: &str, done_max: usize, removes_queues: bool) {
        let (store, queue) = (self.store.clone(), queue.to_owned());
        self.in_flight.push(Box::pin(async move {
            if removes_queues && let Err(error) = remove_unused_queues(&*store).await {
                tracing::warn!(%error, "cannot remove unused queues");
            }
            StoreReply::Pruned { queue_index, deleted: store.prune(&queue, done_max).await }
        }));
    }

    pub(super) fn fire_ticks(&self, queue_index: usize, queue: &str, duly: Duly, unblocked_rules: Vec<String>) {
        let (store, queue) = (self.store.clone(), queue.to_owned());
        self.in_flight.push(Box::pin(async move {
            StoreReply::TicksFired { queue_index, report: fire_batch(store, duly, &queue, unblocked_rules).await }
        }));
    }
}

/// Runs a claim in a separate task, which is aborted if the caller is dropped.
async fn spawn_claim(claim: impl Future<Output = Result<ClaimReply>> + Send + 'static) -> Result<ClaimReply> {
    let task = AbortOnDropHandle::new(tokio::spawn(claim));
    task.await.unwrap_or_else(|error| Err(Error::unknown_with_cause("claim", error)))
}
