//! Checks and repairs of all data.

use super::capability;
use crate::error::Result;
use crate::store::*;

capability! {
    /// Checks the invariants of the stored data, and restores them.
    pub trait MaintenanceStore(maintenance: "verification and repair") {
        /// Checks all data and reports violated invariants. Changes nothing and does not block other operations for
        /// long. The report is consistent with one point in time, even under concurrent changes.
        async fn verify(&self) -> Result<VerifyReport>;

        /// Repairs what [`MaintenanceStore::verify`] finds, as far as possible without losing a job.
        /// A job that may have run already is run again rather than lost.
        async fn repair(&self) -> Result<()>;
    }
}
