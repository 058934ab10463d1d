//! What attempts say of themselves while they run: gathered here, sent by the worker a few times a second.
//!
//! However chatty a handler is, of its progress only the last word is sent, and of its lines only the newest.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use tokio::sync::Notify;

use crate::job::{Fence, Held, JobId, JobProgress};
use crate::store::{LOG_LINE_BYTES_MAX, LOG_LINES_MAX, NOTES_MAX, Note, cut};
use crate::worker::handler::Own;

/// What one attempt has said and nobody has sent yet.
#[derive(Default)]
struct Said {
    progress: Option<JobProgress>,
    lines: VecDeque<(SystemTime, String)>,
    result: Option<String>,
}

type All = HashMap<(JobId, Fence), (Arc<Held>, Said)>;

/// What all attempts of a worker have said.
#[derive(Default)]
pub(crate) struct Notes {
    said: Mutex<All>,
    news: Notify,
}

impl Notes {
    pub(crate) fn progress(&self, own: &Own, progress: JobProgress) {
        self.add(own, |said| said.progress = Some(progress));
        self.news.notify_one();
    }

    pub(crate) fn line(&self, own: &Own, at: SystemTime, line: &str) {
        let line = cut(line, LOG_LINE_BYTES_MAX).to_owned();
        self.add(own, |said| {
            if said.lines.len() == LOG_LINES_MAX {
                said.lines.pop_front();
            }
            said.lines.push_back((at, line));
        });
        self.news.notify_one();
    }

    pub(crate) fn result(&self, own: &Own, result: String) {
        self.add(own, |said| said.result = Some(result));
    }

    /// Resolves once there is something to send.
    pub(crate) async fn news(&self) {
        self.news.notified().await;
    }

    /// What there is to send, as much as goes into one step.
    pub(crate) fn take(&self) -> Vec<Note> {
        let mut notes = Vec::new();
        // What has been sent is not held any longer; a result goes with the outcome.
        self.said().retain(|_, (held, said)| {
            if notes.len() == NOTES_MAX {
                self.news.notify_one();
                return true;
            }
            notes.extend(note(held, said));
            said.result.is_some()
        });
        notes
    }

    /// The last words of an attempt that has ended, and is marked so: what is left to send, and its result.
    pub(crate) fn end(&self, held: &Held) -> (Option<Note>, Option<String>) {
        let mut all = self.said();
        // Most attempts say nothing.
        if all.is_empty() {
            return (None, None);
        }
        match all.remove(&(held.job.id, held.fence)) {
            Some((held, mut said)) => (note(&held, &mut said), said.result),
            None => (None, None),
        }
    }

    /// Adds to what an attempt has said, unless it has ended: nobody would take that away any more.
    fn add(&self, own: &Own, add: impl FnOnce(&mut Said)) {
        let (held, mut all) = (&own.held, self.said());
        // Looked at in here: what ends an attempt says so first, and takes what it has said after.
        if own.ended.load(Ordering::SeqCst) {
            return;
        }
        let (_, said) = all.entry((held.job.id, held.fence)).or_insert_with(|| (held.clone(), Said::default()));
        add(said);
    }

    fn said(&self) -> MutexGuard<'_, All> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn note(held: &Held, said: &mut Said) -> Option<Note> {
    let (progress, lines) = (said.progress.take(), std::mem::take(&mut said.lines));
    (progress.is_some() || !lines.is_empty()).then(|| Note::of(held, progress, lines.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::tests::held;

    /// A part of a handler that was left behind, a blocking one of an attempt that timed out, say.
    #[test]
    fn what_is_said_after_the_end_is_not_kept() {
        let (notes, own) = (Notes::default(), Own::new(held("mail"), SystemTime::UNIX_EPOCH));
        notes.result(&own, "1".into());
        own.ended.store(true, Ordering::SeqCst);
        assert_eq!(notes.end(&own.held).1.as_deref(), Some("1"), "said in time");

        notes.result(&own, "2".into());
        notes.line(&own, SystemTime::UNIX_EPOCH, "still here");
        assert!(notes.said().is_empty());
        assert!(notes.take().is_empty());
    }
}
