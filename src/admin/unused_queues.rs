//! Removes queues that nothing uses any more, so that their number does not grow for ever.

use std::collections::BTreeSet;

use crate::error::Result;
use crate::job::State;
use crate::store::{AdminStore, JobStore, PRUNE_MAX, PeerStore, QueueCounts, RemoveQueueResult, Store};

/// Most queues that one call examines more closely.
const EXAMINED_MAX: usize = 1_000;

/// Removes queues without jobs, settings, cron rules, live nodes, remembered ids and counters of the last day. Returns
/// how many.
pub(crate) async fn remove_unused_queues(store: &dyn Store) -> Result<usize> {
    // Queues on the keys of other systems belong to them.
    if store.capabilities().admin.is_none() {
        return Ok(0);
    }
    let counts = store.counts().await?;
    let empty: Vec<&str> = counts.iter().filter(|queue| is_empty(queue)).map(|queue| queue.queue.as_str()).collect();
    if empty.is_empty() {
        return Ok(0);
    }
    let nodes = store.nodes().await?;
    let worked: BTreeSet<&str> =
        nodes.iter().filter(|node| node.alive).flat_map(|node| &node.queues).map(String::as_str).collect();
    let mut removed = 0;
    for queue in empty.into_iter().filter(|queue| !worked.contains(queue)).take(EXAMINED_MAX) {
        // No worker of the queue prunes it: forgets ids that need not be remembered any more.
        store.prune(queue, PRUNE_MAX).await?;
        if store.remove_queue(queue, true).await? == RemoveQueueResult::Removed {
            tracing::info!(queue, "removed an unused queue");
            removed += 1;
        }
    }
    Ok(removed)
}

/// Returns whether a queue has no jobs and no settings.
fn is_empty(queue: &QueueCounts) -> bool {
    let has_jobs = State::ALL.into_iter().any(|state| queue.count_in(state) > 0);
    !has_jobs && !queue.paused && queue.moving.is_none() && queue.capacity.is_unlimited()
}
