//! Sends what attempts say of themselves, a few times a second at most.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::job::JobId;
use crate::node::NodeId;
use crate::store::{NOTES_MAX, Note, Store};
use crate::worker::in_flight::Finished;
use crate::worker::progress::Notes;

/// What is said within this time goes in one step.
const EVERY: Duration = Duration::from_millis(250);
/// Most lines in one step.
const LINES_MAX: usize = 2_000;

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
    for some in steps(notes) {
        let ids: Vec<JobId> = some.iter().map(|note| note.id).collect();
        let told = store.note(node, some).await;
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
fn steps(notes: Vec<Note>) -> Vec<Vec<Note>> {
    let mut steps: Vec<Vec<Note>> = Vec::new();
    let mut lines = 0;
    for note in notes {
        lines += note.lines.len();
        match steps.last_mut().filter(|step| step.len() < NOTES_MAX && lines <= LINES_MAX) {
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
    fn what_many_say_at_length_goes_in_several_steps() {
        let note = |lines: usize| Note {
            queue: "q".to_owned(),
            id: JobId::fresh(),
            fence: Fence(1),
            attempt: 1,
            progress: None,
            lines: vec![(std::time::SystemTime::UNIX_EPOCH, String::new()); lines],
            priority: Priority::Normal,
            place: 0,
        };
        let sizes = |notes: Vec<Note>| steps(notes).iter().map(Vec::len).collect::<Vec<_>>();
        assert!(sizes(Vec::new()).is_empty());
        assert_eq!(sizes((0..2 * NOTES_MAX + 1).map(|_| note(1)).collect()), [NOTES_MAX, NOTES_MAX, 1]);
        assert_eq!(sizes((0..50).map(|_| note(LINES_MAX / 20)).collect()), [20, 20, 10]);
    }
}
