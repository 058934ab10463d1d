//! Sends what attempts say of themselves, a few times a second at most.

use std::sync::Arc;
use std::time::Duration;

use super::crew::Finished;
use crate::error::Error;
use crate::job::JobId;
use crate::node::NodeId;
use crate::notes::Notes;
use crate::store::{NOTES_MAX, Note, Store};

/// What is said within this time goes in one step.
const EVERY: Duration = Duration::from_millis(250);

/// Ends with it.
pub(super) struct Telling(tokio::task::JoinHandle<()>);

impl Drop for Telling {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Sends what attempts say, until it is dropped.
pub(super) fn tell(notes: Arc<Notes>, store: Arc<dyn Store>, node: NodeId) -> Telling {
    Telling(tokio::spawn(async move {
        loop {
            notes.news().await;
            send(&*store, node, notes.take()).await;
            tokio::time::sleep(EVERY).await;
        }
    }))
}

/// What these attempts have said last: to be sent before they are settled, while they are still held.
pub(super) fn last_words(batch: &[Finished]) -> Vec<Note> {
    batch.iter().filter_map(|finished| finished.note.clone()).collect()
}

/// No attempt fails because its words could not be kept. Answers of which jobs they were, or may have been.
pub(super) async fn send(store: &dyn Store, node: NodeId, notes: Vec<Note>) -> Vec<JobId> {
    let mut kept = Vec::new();
    for some in notes.chunks(NOTES_MAX) {
        let told = store.note(node, some.to_vec()).await;
        if let Err(error) = &told {
            tracing::debug!(%error, "progress or log lines were not kept");
        }
        // Lines that may be there are not sent again: one that is missing misleads less than one that is there twice.
        if matches!(told, Ok(_) | Err(Error::Unknown { .. })) {
            kept.extend(some.iter().map(|note| note.id));
        }
    }
    kept
}
