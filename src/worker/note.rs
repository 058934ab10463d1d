//! Sends what attempts say of themselves, a few times a second at most.

use std::sync::Arc;
use std::time::Duration;

use super::crew::Finished;
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

/// No attempt fails because its words could not be kept. Answers whether they were.
pub(super) async fn send(store: &dyn Store, node: NodeId, notes: Vec<Note>) -> bool {
    let mut kept = true;
    for some in notes.chunks(NOTES_MAX) {
        if let Err(error) = store.note(node, some.to_vec()).await {
            tracing::debug!(%error, "progress or log lines were not kept");
            kept = false;
        }
    }
    kept
}
