//! Progress and log lines of running attempts.

use super::capability;
use crate::error::Result;
use crate::job::JobId;
use crate::node::NodeId;
use crate::store::*;

capability! {
    /// Keeps the reports of running attempts.
    pub trait ProgressStore(progress: "progress and log lines") {
        /// Records progress and log lines of running attempts, at most [`PROGRESS_UPDATES_MAX`] updates.
        /// Returns the jobs that the node no longer holds; nothing is recorded for those.
        /// The last progress replaces earlier ones, and the newest [`LOG_LINES_MAX`] lines are kept.
        async fn record_progress(&self, node: NodeId, updates: Vec<ProgressUpdate>) -> Result<Vec<JobId>>;
    }
}
