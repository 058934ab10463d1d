//! Transfer of queues from one store to another.

use std::time::SystemTime;

use super::capability;
use crate::error::Result;
use crate::job::JobId;
use crate::node::NodeId;
use crate::store::*;

capability! {
    /// Moves jobs to and from another store without losing or doubling one.
    pub trait TransferStore(transfer: "moving queues") {
        /// Marks a queue as moving to another store, on behalf of this mover. With `to == None`, removes the mark.
        ///
        /// While a queue is marked, nothing is claimed from it, paused or not, and its jobs do not change. None is
        /// removed, rescheduled or replaced by a push, which returns `Existing`. Running jobs continue, and pushes are
        /// accepted. A queue that is already marked keeps its mark, now for the new mover; only the latest mover
        /// can remove it. Returns the mark after the call.
        async fn set_transfer_mark(
            &self,
            queue: &str,
            mover: NodeId,
            to: Option<&str>,
        ) -> Result<TransferMarkReply>;

        /// Adds jobs to one queue unchanged, the ready ones behind those already there, and updates the checkpoint of
        /// the transfer in the same operation: all or nothing. Changes nothing if the checkpoint differs from the
        /// expected one, or if a unique key is taken.
        ///
        /// Skips a job if its id is in the queue or was there within `remember_ids`. If the checkpoint already equals
        /// the replacement, this batch was applied before: nothing changes, and the result is `Applied`.
        async fn transfer_in(&self, batch: TransferBatch) -> Result<TransferBatchResult>;

        /// Deletes jobs that are now in another store, each only if it was pushed at the given time and is not running.
        /// On keys shared with another system, deletes only reserved jobs, and all other reserved jobs return to their
        /// positions. Returns how many were deleted; `None`, changing nothing, if the queue is not marked for this mover.
        ///
        /// Their ids are not remembered, so the jobs may come back.
        async fn transfer_out(
            &self,
            queue: &str,
            mover: NodeId,
            jobs: Vec<(JobId, SystemTime)>,
        ) -> Result<Option<usize>>;
    }
}
