//! Transfer of a queue to another store: the mark in the source, the batches and the checkpoint in the target.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::job::{Fence, JobId, JobRecord};
use crate::node::NodeId;

/// Marks a queue that is moving to another store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TransferMark {
    /// The mover that began. Identifies the transfer and its checkpoint, even if another mover continues it.
    pub begun_by: NodeId,
    /// The current mover: if several tried, the latest.
    pub mover: NodeId,
    /// The target store for people, without the secrets of its URL.
    pub to: String,
}

impl TransferMark {
    /// Length of a node id as text.
    const NODE_ID_CHARS: usize = 36;

    /// Returns the stored text. It starts with the mover, so that a script can compare it.
    pub(crate) fn to_text(&self) -> String {
        format!("{}{}{}", self.mover, self.begun_by, self.to)
    }

    /// Parses the stored text; `None` if it is not a mark.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (mover, rest) = text.split_at_checked(TransferMark::NODE_ID_CHARS)?;
        let (begun_by, to) = rest.split_at_checked(TransferMark::NODE_ID_CHARS)?;
        Some(TransferMark { begun_by: begun_by.parse().ok()?, mover: mover.parse().ok()?, to: to.to_owned() })
    }
}

/// The mark of a queue after the call.
#[derive(Clone, Debug)]
pub struct TransferMarkReply {
    /// The mark, if the queue is moving.
    pub mark: Option<TransferMark>,
    /// The last fence of the queue: claims in the target must have greater ones.
    pub last_fence: Fence,
}

/// A batch of jobs to add to a queue.
#[derive(Clone, Debug)]
pub struct TransferBatch {
    /// The queue.
    pub queue: String,
    /// The jobs unchanged, with their runs. None is running; the ready ones are in claim order.
    pub jobs: Arc<[JobRecord]>,
    /// The checkpoint to update in the same operation.
    pub checkpoint: TransferCheckpoint,
    /// Claims of this queue get greater fences from now on.
    pub fence_floor: Fence,
    /// How long dead jobs are kept after their end.
    pub keep_dead: Duration,
}

/// The checkpoint of a transfer, stored in the target and changed from one text to another.
///
/// It tells a mover that continues the transfer which jobs came last, and rejects a mover that was presumed dead.
#[derive(Clone, Debug)]
pub struct TransferCheckpoint {
    /// Identifies the transfer.
    pub begun_by: NodeId,
    /// The text it must have now: `None` if there must be none.
    pub expected: Option<String>,
    /// The text it gets: `None` removes it.
    pub replacement: Option<String>,
}

/// A live process of another program that takes jobs from queues of this store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignProcess {
    /// Its name in the other program.
    pub name: String,
    /// Its queues; `None` if they are not known.
    pub queues: Option<Vec<String>>,
}

impl ForeignProcess {
    /// Returns whether the process may take jobs from this queue.
    #[must_use]
    pub fn may_work(&self, queue: &str) -> bool {
        self.queues.as_ref().is_none_or(|queues| queues.iter().any(|other| other == queue))
    }
}

/// The result of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TransferBatchResult {
    /// The batch was added, except for these jobs: their ids are there, or were recently.
    Applied {
        /// Their ids.
        skipped: Vec<JobId>,
    },
    /// Nothing changed: other jobs have the unique keys of these jobs.
    UniqueTaken(Vec<JobId>),
    /// Nothing changed: the checkpoint has this text.
    CheckpointMismatch(Option<String>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfer_mark_round_trips_through_text() {
        let mark =
            TransferMark { begun_by: NodeId::fresh(), mover: NodeId::fresh(), to: "redis://höst?prefix=x".into() };
        assert_eq!(TransferMark::parse(&mark.to_text()), Some(mark));
        assert_eq!(TransferMark::parse("nonsense"), None);
        assert_eq!(TransferMark::parse(&"ü".repeat(60)), None);
    }
}
