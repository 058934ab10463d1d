//! What moving a queue to another store asks of both: the mark in the store it leaves, the batches and the marker in the other.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::job::{Fence, JobId, JobRecord};
use crate::node::NodeId;

/// That a queue is moving to another store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TransferMark {
    /// The mover that began. It names the move and its marker, also when another takes up what it left off.
    pub begun_by: NodeId,
    /// The mover at work: of several, the last.
    pub mover: NodeId,
    /// Where the queue goes, for people: the other store without what is secret in its URL.
    pub to: String,
}

impl TransferMark {
    /// Length of a node id as text.
    const NODE_ID_CHARS: usize = 36;

    /// As stores keep it: the mover first, so that a script can compare it.
    pub(crate) fn to_text(&self) -> String {
        format!("{}{}{}", self.mover, self.begun_by, self.to)
    }

    /// From its text; `None` if it is none.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (mover, rest) = text.split_at_checked(TransferMark::NODE_ID_CHARS)?;
        let (begun_by, to) = rest.split_at_checked(TransferMark::NODE_ID_CHARS)?;
        Some(TransferMark { begun_by: begun_by.parse().ok()?, mover: mover.parse().ok()?, to: to.to_owned() })
    }
}

/// How a queue is marked now.
#[derive(Clone, Debug)]
pub struct TransferMarkReply {
    /// Where it is moving to, if it is.
    pub mark: Option<TransferMark>,
    /// The last fence of the queue: what is claimed in the other store must have a greater one.
    pub last_fence: Fence,
}

/// A batch of jobs on their way into a queue.
#[derive(Clone, Debug)]
pub struct TransferBatch {
    /// The queue.
    pub queue: String,
    /// The jobs as they are, with their failures, none of them running; the ready ones in the order of their claims.
    pub jobs: Arc<[JobRecord]>,
    /// What is noted in the same step.
    pub checkpoint: TransferCheckpoint,
    /// Claims of this queue draw greater fences from now on.
    pub fence_floor: Fence,
    /// How long dead jobs stay, from their end on.
    pub keep_dead: Duration,
}

/// The note that a mover leaves in the store to which it moves, changed from one text to another.
///
/// It tells whoever takes up the move which jobs came last, and refuses a mover that was thought dead.
#[derive(Clone, Debug)]
pub struct TransferCheckpoint {
    /// The move.
    pub begun_by: NodeId,
    /// The note as it must be: `None` if there is none.
    pub expected: Option<String>,
    /// The note as it will be: `None` if there will be none.
    pub replacement: Option<String>,
}

/// What became of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TransferBatchResult {
    /// It is in, but for these jobs: they were there already, or not long ago.
    Applied {
        /// Their ids.
        skipped: Vec<JobId>,
    },
    /// Nothing was changed: the unique keys of these jobs belong to others.
    UniqueTaken(Vec<JobId>),
    /// Nothing was changed: the note is this one.
    CheckpointMismatch(Option<String>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfer_mark_round_trips_through_text() {
        let moving =
            TransferMark { begun_by: NodeId::fresh(), mover: NodeId::fresh(), to: "redis://höst?prefix=x".into() };
        assert_eq!(TransferMark::parse(&moving.to_text()), Some(moving));
        assert_eq!(TransferMark::parse("nonsense"), None);
        assert_eq!(TransferMark::parse(&"ü".repeat(60)), None);
    }
}
