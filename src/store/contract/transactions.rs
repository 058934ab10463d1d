//! Work in transactions of the caller.

use std::sync::Arc;

use super::capability;
use crate::error::Result;
use crate::job::HeldJob;

/// The advice for a user of a store that shares no file with tables of the user.
pub(crate) const ADVICE: &str = "use a SQLite file that contains your tables";

capability! {
    /// Shares transactions with the tables of the caller. Pushes and acks in such a transaction need no method here: they
    /// run on the caller's connection.
    pub trait TransactionStore(transactions: "transactions that contain tables of your own") {
        /// Turns the rows of the inbox that wait now into jobs.
        async fn take_inbox(&self) -> Result<()>;

        /// Returns whether a job that a node holds was acked in a transaction that is committed.
        async fn is_acked(&self, held: Arc<HeldJob>) -> Result<bool>;
    }
}
