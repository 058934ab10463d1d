//! Backups job by job, of a store that cannot copy itself.

use super::capability;
use crate::error::Result;
use crate::store::*;

capability! {
    /// Returns every job while others keep working.
    pub trait ScanStore(scan: "job-by-job export") {
        /// Returns some jobs of a queue in no order, with their runs, and a cursor for the next batch.
        /// A job that exists during the whole scan is returned at least once, in a state that it had during the scan.
        /// All calls of one scan must run on one runtime.
        async fn scan(&self, queue: &str, cursor: Option<&str>) -> Result<JobPage>;
    }
}
