//! Job completions: the node registry records which queues a node watches, and a settle notifies those nodes.

use crate::error::{Error, Result};
use crate::node::NodeId;
use crate::store::COMPLETION_QUEUES_MAX;
use crate::store::sqlite::{Sqlite, errors};

/// Implements `CompletionStore::watch_completions`.
pub(super) fn watch_completions(store: &Sqlite, node: NodeId, queues: &[String]) -> Result<()> {
    if queues.len() > COMPLETION_QUEUES_MAX {
        return Err(Error::invalid(
            "queues",
            format!("at most {COMPLETION_QUEUES_MAX} queues can be watched for completions"),
        ));
    }
    store
        .registry
        .watch_completions(node, queues)
        .map_err(|e| errors::from_registry("watch_completions", "cannot use the node registry", e))
}
