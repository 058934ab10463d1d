//! Operations for operators: edits of jobs, capacities of queues, groups of dead jobs, lookups of unique keys.

use super::capability;
use crate::error::Result;
use crate::job::JobId;
use crate::store::*;

capability! {
    /// Edits jobs, limits queues, groups dead jobs and finds the holders of unique keys.
    pub trait AdminStore(admin: "job edits, queue capacities, groups of dead jobs and lookups of unique keys") {
        /// Changes a job, unless it is running or its queue is moving.
        async fn edit(&self, id: JobId, change: JobEdit) -> Result<ChangeResult>;

        /// Sets the capacity of a queue, which need not have a job yet. Returns the previous capacity.
        async fn set_capacity(&self, queue: &str, capacity: Capacity) -> Result<Capacity>;

        /// Returns the dead jobs of one queue, or of all, grouped by kind and error, the largest groups first.
        async fn dead_groups(&self, queue: Option<&str>) -> Result<Vec<DeadGroup>>;

        /// Returns the unfinished job of a queue that has this unique key.
        async fn unique_holder(&self, queue: &str, key: &str) -> Result<Option<JobId>>;
    }
}
