//! Jobs that are transferred out of their queue, and back.

use std::sync::Arc;
use std::time::Duration;

use duly::store::{JobStore, Store, TransferBatch, TransferBatchResult, TransferCheckpoint, TransferStore};
use duly::{Fence, Filter, JobRecord, NodeId, State};

use crate::model::history::{Difference, History, QUEUES, same};
use crate::transfer::reserve;

impl History {
    /// Sets or removes the transfer mark of a queue.
    pub async fn set_transfer_mark(&mut self, store: &Arc<dyn Store>) -> Result<(), Difference> {
        let (queue, moving) = (*self.random.choice(&QUEUES).expect("some"), self.random.bool());
        let marked =
            store.set_transfer_mark(queue, self.transfer_node, moving.then_some("elsewhere")).await.expect("marks");
        match moving {
            true => self.model.moving.insert(queue),
            false => self.model.moving.remove(queue),
        };
        same("moving", marked.mark.is_some(), moving)
    }

    /// Transfers some jobs of a queue out, and back unchanged.
    pub async fn transfer_out_and_in(&mut self, store: &Arc<dyn Store>) -> Result<(), Difference> {
        let queue = *self.random.choice(&QUEUES).expect("some");
        store.set_transfer_mark(queue, self.transfer_node, Some("elsewhere")).await.expect("marks");
        let mut jobs = jobs_not_running(store, queue).await;
        jobs.retain(|_| self.random.bool());
        let ids_and_push_times = jobs.iter().map(|record| (record.job.id, record.job.pushed)).collect();
        let reserved = reserve(store, queue, self.transfer_node, ids_and_push_times).await.expect("marked");
        let deleted = store.transfer_out(queue, self.transfer_node, reserved).await.expect("transfers out");
        same("transfer_out", deleted, Some(jobs.len()))?;
        let remaining = jobs_not_running(store, queue).await;
        same("remaining", remaining.iter().any(|left| jobs.iter().any(|job| job.job.id == left.job.id)), false)?;
        let ids: Vec<_> = jobs.iter().map(|record| record.job.id).collect();
        if !self.model.moving.contains(queue) {
            store.set_transfer_mark(queue, self.transfer_node, None).await.expect("unmarks");
        }
        let batch = TransferBatch {
            queue: queue.to_owned(),
            jobs: jobs.into(),
            checkpoint: TransferCheckpoint {
                begun_by: NodeId::fresh(),
                expected: None,
                replacement: Some("back".to_owned()),
            },
            fence_floor: Fence(0),
            keep_dead: Duration::from_secs(1 << 30),
        };
        // Twice: the reply to the first may be lost.
        for _ in 0..2 {
            let result = store.transfer_in(batch.clone()).await.expect("transfers in");
            same("transfer_in", result, TransferBatchResult::Applied { skipped: Vec::new() })?;
        }
        self.model.append_returned(&ids);
        Ok(())
    }
}

/// Returns the jobs of a queue that are not running, with details, ready jobs in claim order.
async fn jobs_not_running(store: &Arc<dyn Store>, queue: &str) -> Vec<JobRecord> {
    let mut found = Vec::new();
    for state in [State::Ready, State::Scheduled, State::Dead, State::Cancelled, State::Done] {
        let filter = Filter::all().queue(queue).state(state).limit(1_000);
        found.extend(store.list(filter.with_details()).await.expect("lists").jobs);
    }
    found
}
