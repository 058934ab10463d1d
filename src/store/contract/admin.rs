//! Operations for operators: edits of jobs, cancels, capacities of queues, groups of dead jobs, lookups of unique keys.

use std::time::Duration;

use super::capability;
use crate::error::Result;
use crate::job::JobId;
use crate::store::*;

capability! {
    /// Edits and cancels jobs, sets capacities of queues, groups dead jobs and finds the holders of unique keys.
    pub trait AdminStore(admin: "job edits, cancelled jobs, queue capacities, groups of dead jobs and lookups of unique keys") {
        /// Changes a job, unless it is running or its queue is moving.
        async fn edit(&self, id: JobId, change: JobEdit) -> Result<ChangeResult>;

        /// Cancels an unfinished job, in any state. Idempotent.
        ///
        /// A job that waits ends at once, with the reply `Cancelled`, unless its queue is moving. A running job is
        /// marked, and its node is notified; the reply is `Cancelling`. The mark lasts as long as the claim, and
        /// survives the death of the node. A marked job whose attempt ends in an ack is done. Any other outcome ends it
        /// cancelled, and so does a take back.
        ///
        /// A cancelled job is kept for `keep` and holds no unique key. Cancelling it again returns `Cancelled`; a job that
        /// is done or dead returns `Ended`.
        async fn cancel(&self, id: JobId, keep: Duration) -> Result<CancelReply>;

        /// Sets the capacity of a queue, which need not have a job yet. Returns the previous capacity.
        async fn set_capacity(&self, queue: &str, capacity: Capacity) -> Result<Capacity>;

        /// Removes a queue with its settings, statistics and remembered ids, unless it has jobs in any state or cron rules,
        /// or is moving. With `only_unused`, a queue with settings, remembered ids or counters of the last day stays too.
        ///
        /// A process that uses the queue afterwards creates it again.
        async fn remove_queue(&self, queue: &str, only_unused: bool) -> Result<RemoveQueueResult>;

        /// Returns the dead jobs of one queue, or of all, grouped by kind and error, the largest groups first.
        async fn dead_groups(&self, queue: Option<&str>) -> Result<Vec<DeadGroup>>;

        /// Returns the unfinished job of a queue that has this unique key.
        async fn unique_holder(&self, queue: &str, key: &str) -> Result<Option<JobId>>;
    }
}
