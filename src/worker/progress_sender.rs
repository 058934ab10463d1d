//! Sends what attempts say of themselves, a few times a second at most.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::job::JobId;
use crate::node::NodeId;
use crate::store::{PROGRESS_UPDATES_MAX, ProgressUpdate, Store};
use crate::worker::in_flight::FinishedAttempt;
use crate::worker::progress::ProgressBuffer;

/// What is said within this time goes in one step.
const SEND_INTERVAL: Duration = Duration::from_millis(250);
/// Most lines in one step.
const BATCH_LINES_MAX: usize = 2_000;

/// Ends with it.
pub(super) struct ProgressSender(tokio::task::JoinHandle<()>);

impl Drop for ProgressSender {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Sends what attempts say, until it is dropped.
pub(super) fn start(notes: Arc<ProgressBuffer>, store: Arc<dyn Store>, node: NodeId) -> ProgressSender {
    ProgressSender(tokio::spawn(async move {
        loop {
            notes.changed().await;
            send_updates(&*store, node, notes.take_batch()).await;
            tokio::time::sleep(SEND_INTERVAL).await;
        }
    }))
}

/// What these attempts have said last: to be sent before they are settled, while they are still held.
pub(super) fn collect_final_updates(batch: &[FinishedAttempt]) -> Vec<ProgressUpdate> {
    batch.iter().filter_map(|finished| finished.progress_update.clone()).collect()
}

/// No attempt fails because its words could not be kept. Answers of which jobs they were, or may have been.
pub(super) async fn send_updates(store: &dyn Store, node: NodeId, notes: Vec<ProgressUpdate>) -> Vec<JobId> {
    let mut kept = Vec::new();
    for some in split_into_batches(notes) {
        let ids: Vec<JobId> = some.iter().map(|note| note.id).collect();
        let told = store.record_progress(node, some).await;
        if let Err(error) = &told {
            tracing::debug!(%error, "progress or log lines were not kept");
        }
        // Lines that may be there are not sent again: one that is missing misleads less than one that is there twice.
        if matches!(told, Ok(_) | Err(Error::Unknown { .. })) {
            kept.extend(ids);
        }
    }
    kept
}

/// Notes as they are sent: in each step so many, and so many lines, that nobody else waits for long.
fn split_into_batches(notes: Vec<ProgressUpdate>) -> Vec<Vec<ProgressUpdate>> {
    let mut steps: Vec<Vec<ProgressUpdate>> = Vec::new();
    let mut lines = 0;
    for note in notes {
        lines += note.lines.len();
        match steps.last_mut().filter(|step| step.len() < PROGRESS_UPDATES_MAX && lines <= BATCH_LINES_MAX) {
            Some(step) => step.push(note),
            None => {
                lines = note.lines.len();
                steps.push(vec![note]);
            }
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Fence, Priority};

    #[test]
    fn updates_are_split_by_count_and_by_lines() {
        let note = |lines: usize| ProgressUpdate {
            queue: "q".to_owned(),
            id: JobId::fresh(),
            fence: Fence(1),
            attempt: 1,
            progress: None,
            lines: vec![(std::time::SystemTime::UNIX_EPOCH, String::new()); lines],
            priority: Priority::Normal,
            locator: 0,
        };
        let sizes = |notes: Vec<ProgressUpdate>| split_into_batches(notes).iter().map(Vec::len).collect::<Vec<_>>();
        assert!(sizes(Vec::new()).is_empty());
        assert_eq!(
            sizes((0..2 * PROGRESS_UPDATES_MAX + 1).map(|_| note(1)).collect()),
            [PROGRESS_UPDATES_MAX, PROGRESS_UPDATES_MAX, 1]
        );
        assert_eq!(sizes((0..50).map(|_| note(BATCH_LINES_MAX / 20)).collect()), [20, 20, 10]);
    }
}
