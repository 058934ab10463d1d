//! Jobs that leave their queue for another store, and come back.

use std::sync::Arc;
use std::time::Duration;

use duly::store::{Store, TransferBatch, TransferBatchResult, TransferCheckpoint};
use duly::{Fence, Filter, JobRecord, NodeId, State};

use crate::model::history::{Difference, History, QUEUES, same};

impl History {
    /// A queue is marked as moving, or is not any more.
    pub async fn set_moving(&mut self, store: &Arc<dyn Store>) -> Result<(), Difference> {
        let (queue, moving) = (*self.random.choice(&QUEUES).expect("some"), self.random.bool());
        let marked = store.set_transfer_mark(queue, self.mover, moving.then_some("elsewhere")).await.expect("marks");
        match moving {
            true => self.model.moving.insert(queue),
            false => self.model.moving.remove(queue),
        };
        same("moving", marked.mark.is_some(), moving)
    }

    /// Some jobs of a queue go, and come back as they were.
    pub async fn travel(&mut self, store: &Arc<dyn Store>) -> Result<(), Difference> {
        let queue = *self.random.choice(&QUEUES).expect("some");
        store.set_transfer_mark(queue, self.mover, Some("elsewhere")).await.expect("marks");
        let mut jobs = waiting(store, queue).await;
        jobs.retain(|_| self.random.bool());
        let named = jobs.iter().map(|record| (record.job.id, record.job.pushed)).collect();
        let gone = store.transfer_out(queue, self.mover, named).await.expect("moves out");
        same("move out", gone, Some(jobs.len()))?;
        let left = waiting(store, queue).await;
        same("what is left", left.iter().any(|left| jobs.iter().any(|job| job.job.id == left.job.id)), false)?;
        let ids: Vec<_> = jobs.iter().map(|record| record.job.id).collect();
        if !self.model.moving.contains(queue) {
            store.set_transfer_mark(queue, self.mover, None).await.expect("unmarks");
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
        // Twice: the answer to the first may be lost.
        for _ in 0..2 {
            let back = store.transfer_in(batch.clone()).await.expect("moves in");
            same("move in", back, TransferBatchResult::Applied { skipped: Vec::new() })?;
        }
        self.model.come_back(&ids);
        Ok(())
    }
}

/// The jobs of a queue that do not run, whole, the ready ones in their order.
async fn waiting(store: &Arc<dyn Store>, queue: &str) -> Vec<JobRecord> {
    let mut found = Vec::new();
    for state in [State::Ready, State::Scheduled, State::Dead, State::Done] {
        let filter = Filter { queue: Some(queue.to_owned()), state: Some(state), limit: 1_000, ..Filter::default() };
        found.extend(store.list(Filter { with_details: true, ..filter }).await.expect("lists").jobs);
    }
    found
}
