//! What attempts say of themselves while they run: gathered here, sent by the worker a few times a second.
//!
//! However chatty a handler is, of its progress only the last word is sent, and of its lines only the newest.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use tokio::sync::Notify;

use crate::job::{Fence, HeldJob, JobId, JobProgress};
use crate::store::{LOG_LINE_BYTES_MAX, LOG_LINES_MAX, PROGRESS_UPDATES_MAX, ProgressUpdate, truncate_text};
use crate::worker::handler::AttemptState;

/// What one attempt has said and nobody has sent yet.
#[derive(Default)]
struct UnsentProgress {
    progress: Option<JobProgress>,
    lines: VecDeque<(SystemTime, String)>,
    result: Option<String>,
}

type UnsentByClaim = HashMap<(JobId, Fence), (Arc<HeldJob>, UnsentProgress)>;

/// What all attempts of a worker have said.
#[derive(Default)]
pub(crate) struct ProgressBuffer {
    unsent: Mutex<UnsentByClaim>,
    changed: Notify,
}

impl ProgressBuffer {
    pub(crate) fn set_progress(&self, own: &AttemptState, progress: JobProgress) {
        self.update(own, |said| said.progress = Some(progress));
        self.changed.notify_one();
    }

    pub(crate) fn add_line(&self, own: &AttemptState, at: SystemTime, line: &str) {
        let line = truncate_text(line, LOG_LINE_BYTES_MAX).to_owned();
        self.update(own, |said| {
            if said.lines.len() == LOG_LINES_MAX {
                said.lines.pop_front();
            }
            said.lines.push_back((at, line));
        });
        self.changed.notify_one();
    }

    pub(crate) fn set_result(&self, own: &AttemptState, result: String) {
        self.update(own, |said| said.result = Some(result));
    }

    /// Resolves once there is something to send.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// What there is to send, as much as goes into one step.
    pub(crate) fn take_batch(&self) -> Vec<ProgressUpdate> {
        let mut notes = Vec::new();
        // What has been sent is not held any longer; a result goes with the outcome.
        self.lock().retain(|_, (held, said)| {
            if notes.len() == PROGRESS_UPDATES_MAX {
                self.changed.notify_one();
                return true;
            }
            notes.extend(take_update(held, said));
            said.result.is_some()
        });
        notes
    }

    /// The last words of an attempt that has ended, and is marked so: what is left to send, and its result.
    pub(crate) fn finish_attempt(&self, held: &HeldJob) -> (Option<ProgressUpdate>, Option<String>) {
        let mut all = self.lock();
        // Most attempts say nothing.
        if all.is_empty() {
            return (None, None);
        }
        match all.remove(&(held.job.id, held.fence)) {
            Some((held, mut said)) => (take_update(&held, &mut said), said.result),
            None => (None, None),
        }
    }

    /// Adds to what an attempt has said, unless it has ended: nobody would take that away any more.
    fn update(&self, own: &AttemptState, add: impl FnOnce(&mut UnsentProgress)) {
        let (held, mut all) = (&own.held, self.lock());
        // Looked at in here: what ends an attempt says so first, and takes what it has said after.
        if own.finished.load(Ordering::SeqCst) {
            return;
        }
        let (_, said) =
            all.entry((held.job.id, held.fence)).or_insert_with(|| (held.clone(), UnsentProgress::default()));
        add(said);
    }

    fn lock(&self) -> MutexGuard<'_, UnsentByClaim> {
        self.unsent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn take_update(held: &HeldJob, said: &mut UnsentProgress) -> Option<ProgressUpdate> {
    let (progress, lines) = (said.progress.take(), std::mem::take(&mut said.lines));
    (progress.is_some() || !lines.is_empty()).then(|| ProgressUpdate::from_held(held, progress, lines.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::tests::held_job;

    /// A part of a handler that was left behind, a blocking one of an attempt that timed out, say.
    #[test]
    fn progress_reported_after_the_attempt_ended_is_dropped() {
        let (notes, own) = (ProgressBuffer::default(), AttemptState::new(held_job("mail"), SystemTime::UNIX_EPOCH));
        notes.set_result(&own, "1".into());
        own.finished.store(true, Ordering::SeqCst);
        assert_eq!(notes.finish_attempt(&own.held).1.as_deref(), Some("1"), "said in time");

        notes.set_result(&own, "2".into());
        notes.add_line(&own, SystemTime::UNIX_EPOCH, "still here");
        assert!(notes.lock().is_empty());
        assert!(notes.take_batch().is_empty());
    }
}
