//! Keys that other programs use too.

use std::time::SystemTime;

use super::capability;
use crate::error::Result;
use crate::job::JobId;
use crate::node::NodeId;
use crate::store::*;

capability! {
    /// Moves jobs away from keys on which programs of another system work at the same time.
    ///
    /// A store that only duly uses lacks this: there the mark of a moving queue keeps all others away.
    pub trait SharedKeysStore(shared_keys: "keys shared with another system") {
        /// Takes jobs out of reach of other programs before they are copied, each only if it was pushed at the given
        /// time and is still waiting or has ended. Returns these jobs, with those that this mover reserved before;
        /// `None`, reserving nothing, if the queue is not marked for this mover.
        async fn transfer_reserve(
            &self,
            queue: &str,
            mover: NodeId,
            jobs: Vec<(JobId, SystemTime)>,
        ) -> Result<Option<Vec<(JobId, SystemTime)>>>;

        /// Returns the live processes of other programs that take jobs from the queues of this store.
        async fn foreign_processes(&self) -> Result<Vec<ForeignProcess>>;

        /// Returns an identifier of the shared keyspace. Stores with the same identifier have the same jobs, regardless
        /// of their prefixes.
        async fn shared_keyspace(&self) -> Result<String>;
    }
}
