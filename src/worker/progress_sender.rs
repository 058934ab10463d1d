//! Sends the progress of attempts, at most a few times a second.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::job::JobId;
use crate::node::NodeId;
use crate::store::{PROGRESS_UPDATES_MAX, ProgressStore, ProgressUpdate, Store};
use crate::worker::outcomes::UnsettledEnd;
use crate::worker::progress::ProgressBuffer;

/// Updates within this time go into one request.
const SEND_INTERVAL: Duration = Duration::from_millis(250);
/// Maximum log lines in one request.
const BATCH_LINES_MAX: usize = 2_000;

/// The background task; dropping it ends the task.
pub(super) struct ProgressSender(tokio::task::JoinHandle<()>);

impl Drop for ProgressSender {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Starts to send progress, until the result is dropped.
pub(super) fn start(buffer: Arc<ProgressBuffer>, store: Arc<dyn Store>, node: NodeId) -> ProgressSender {
    ProgressSender(tokio::spawn(async move {
        loop {
            buffer.changed().await;
            send_updates(&*store, node, buffer.take_batch()).await;
            tokio::time::sleep(SEND_INTERVAL).await;
        }
    }))
}

/// Sends the last updates of finished attempts, before their settle. A recorded update is not sent again if the settle
/// is repeated.
pub(super) async fn send_final_updates(store: &dyn Store, node: NodeId, batch: &mut [UnsettledEnd]) {
    let updates: Vec<_> = batch.iter().filter_map(|finished| finished.progress_update.clone()).collect();
    let recorded = send_updates(store, node, updates).await;
    let is_recorded = |finished: &&mut UnsettledEnd| recorded.contains(&finished.end.id());
    batch.iter_mut().filter(is_recorded).for_each(|finished| finished.progress_update = None);
}

/// Sends updates. Failures are ignored, so that no attempt fails because of them.
/// Returns the jobs whose updates were recorded or may have been.
async fn send_updates(store: &dyn Store, node: NodeId, updates: Vec<ProgressUpdate>) -> Vec<JobId> {
    let mut recorded = Vec::new();
    for batch in split_into_batches(updates) {
        let ids: Vec<JobId> = batch.iter().map(|update| update.id).collect();
        let result = store.record_progress(node, batch).await;
        if let Err(error) = &result {
            tracing::debug!(%error, "progress or log lines were not recorded");
        }
        // Lines that may have been recorded are not sent again: a missing line misleads less than a duplicate.
        if matches!(result, Ok(_) | Err(Error::Unknown { .. })) {
            recorded.extend(ids);
        }
    }
    recorded
}

/// Splits updates into requests small enough that other clients of the store do not wait long.
fn split_into_batches(updates: Vec<ProgressUpdate>) -> Vec<Vec<ProgressUpdate>> {
    let mut batches: Vec<Vec<ProgressUpdate>> = Vec::new();
    let mut lines = 0;
    for update in updates {
        lines += update.lines.len();
        match batches.last_mut().filter(|batch| batch.len() < PROGRESS_UPDATES_MAX && lines <= BATCH_LINES_MAX) {
            Some(batch) => batch.push(update),
            None => {
                lines = update.lines.len();
                batches.push(vec![update]);
            }
        }
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Fence, Locator, Priority};

    #[test]
    fn updates_are_split_by_count_and_by_lines() {
        let update = |lines: usize| ProgressUpdate {
            queue: "q".to_owned(),
            id: JobId::fresh(),
            fence: Fence(1),
            attempt: 1,
            progress: None,
            lines: vec![(std::time::SystemTime::UNIX_EPOCH, String::new()); lines],
            priority: Priority::Normal,
            locator: Locator::new(0),
        };
        let sizes = |updates: Vec<ProgressUpdate>| split_into_batches(updates).iter().map(Vec::len).collect::<Vec<_>>();
        assert!(sizes(Vec::new()).is_empty());
        assert_eq!(
            sizes((0..2 * PROGRESS_UPDATES_MAX + 1).map(|_| update(1)).collect()),
            [PROGRESS_UPDATES_MAX, PROGRESS_UPDATES_MAX, 1]
        );
        assert_eq!(sizes((0..50).map(|_| update(BATCH_LINES_MAX / 20)).collect()), [20, 20, 10]);
    }
}
