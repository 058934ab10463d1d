//! Notifications for callers that wait for jobs.

use super::capability;
use crate::error::Result;
use crate::node::NodeId;

capability! {
    /// Notifies callers of the jobs that they wait for. Without it, they poll
    /// [`JobStore::completed_among`](super::JobStore::completed_among).
    pub trait CompletionStore(completions: "notifications of completed jobs") {
        /// Sends a local listening node a [`Notification::Completed`] for each job of these queues that is done, dead
        /// or removed. The watch lasts [`COMPLETION_WATCH_DURATION`] and replaces the node's previous one. At most
        /// [`COMPLETION_QUEUES_MAX`] queues. A notification may be lost; after a broken connection the node receives
        /// [`Notification::Gap`]. Without a watch, no notifications are sent, and a settle on Redis has no extra cost.
        ///
        /// [`Notification::Completed`]: crate::store::Notification::Completed
        /// [`Notification::Gap`]: crate::store::Notification::Gap
        /// [`COMPLETION_WATCH_DURATION`]: crate::store::COMPLETION_WATCH_DURATION
        /// [`COMPLETION_QUEUES_MAX`]: crate::store::COMPLETION_QUEUES_MAX
        async fn watch_completions(&self, node: NodeId, queues: &[String]) -> Result<()>;
    }
}
