//! Progress that running attempts report: buffered here, and sent by the worker a few times a second.
//!
//! However often a handler reports, only its latest progress and its newest log lines are sent.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::SystemTime;

use tokio::sync::Notify;

use crate::job::run::OutputTail;
use crate::job::{Fence, HeldJob, JobId, JobProgress};
use crate::store::{LOG_LINE_BYTES_MAX, LOG_LINES_MAX, PROGRESS_UPDATES_MAX, ProgressUpdate, truncate_text};
use crate::sync::LockExt;
use crate::worker::attempt_state::AttemptState;

/// Unsent progress of one attempt, and what its end needs.
#[derive(Default)]
struct UnsentProgress {
    progress: Option<JobProgress>,
    lines: VecDeque<(SystemTime, String)>,
    result: Option<String>,
    /// The end of what the attempt has logged, sent or not.
    output: OutputTail,
}

type UnsentByClaim = HashMap<(JobId, Fence), (Arc<HeldJob>, UnsentProgress)>;

/// Unsent progress of all attempts of a worker.
#[derive(Default)]
pub(crate) struct ProgressBuffer {
    /// Keep the output of attempts until their end.
    keep_output: bool,
    unsent: Mutex<UnsentByClaim>,
    changed: Notify,
}

/// What an attempt reported and the store does not have yet.
#[derive(Debug, Default)]
pub(crate) struct FinalReport {
    pub(crate) update: Option<ProgressUpdate>,
    pub(crate) result: Option<String>,
    pub(crate) output: Option<String>,
}

impl ProgressBuffer {
    pub(crate) fn new(keep_output: bool) -> Self {
        ProgressBuffer { keep_output, ..ProgressBuffer::default() }
    }

    pub(crate) fn set_progress(&self, attempt: &AttemptState, progress: JobProgress) {
        self.update(attempt, |unsent| unsent.progress = Some(progress));
        self.changed.notify_one();
    }

    pub(crate) fn add_line(&self, attempt: &AttemptState, at: SystemTime, line: &str) {
        let line = truncate_text(line, LOG_LINE_BYTES_MAX).to_owned();
        self.update(attempt, |unsent| {
            if self.keep_output {
                unsent.output.push_line(&line);
            }
            if unsent.lines.len() == LOG_LINES_MAX {
                unsent.lines.pop_front();
            }
            unsent.lines.push_back((at, line));
        });
        self.changed.notify_one();
    }

    pub(crate) fn set_result(&self, attempt: &AttemptState, result: String) {
        self.update(attempt, |unsent| unsent.result = Some(result));
    }

    /// Returns the result that a running attempt has set so far.
    pub(crate) fn result(&self, held: &HeldJob) -> Option<String> {
        self.lock().get(&(held.job.id, held.fence)).and_then(|(_, unsent)| unsent.result.clone())
    }

    /// Waits until there is something to send.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Takes the updates for one request.
    pub(crate) fn take_batch(&self) -> Vec<ProgressUpdate> {
        let mut updates = Vec::new();
        // Sent entries are removed; a result and an output stay until the outcome is sent.
        self.lock().retain(|_, (held, unsent)| {
            if updates.len() == PROGRESS_UPDATES_MAX {
                self.changed.notify_one();
                return true;
            }
            updates.extend(take_update(held, unsent));
            unsent.result.is_some() || !unsent.output.is_empty()
        });
        updates
    }

    /// Removes a finished attempt, which must be marked as such. Returns its last report.
    pub(crate) fn finish_attempt(&self, held: &HeldJob) -> FinalReport {
        let mut entries = self.lock();
        // Most attempts report nothing.
        if entries.is_empty() {
            return FinalReport::default();
        }
        match entries.remove(&(held.job.id, held.fence)) {
            Some((held, mut unsent)) => FinalReport {
                update: take_update(&held, &mut unsent),
                result: unsent.result,
                output: unsent.output.into_text(),
            },
            None => FinalReport::default(),
        }
    }

    /// Changes the unsent progress of an attempt, unless it has finished: then it would never be sent.
    fn update(&self, attempt: &AttemptState, add: impl FnOnce(&mut UnsentProgress)) {
        let (held, mut entries) = (&attempt.held, self.lock());
        // Checked under the lock: a finished attempt is marked first and removed afterwards.
        if attempt.finished.load(Ordering::SeqCst) {
            return;
        }
        let (_, unsent) =
            entries.entry((held.job.id, held.fence)).or_insert_with(|| (held.clone(), UnsentProgress::default()));
        add(unsent);
    }

    fn lock(&self) -> MutexGuard<'_, UnsentByClaim> {
        self.unsent.lock_unpoisoned()
    }
}

fn take_update(held: &HeldJob, unsent: &mut UnsentProgress) -> Option<ProgressUpdate> {
    let (progress, lines) = (unsent.progress.take(), std::mem::take(&mut unsent.lines));
    (progress.is_some() || !lines.is_empty()).then(|| ProgressUpdate::from_held(held, progress, lines.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::tests::held_job;

    /// Part of a handler may outlive its attempt, such as a blocking task after a timeout.
    #[test]
    fn progress_reported_after_the_attempt_ended_is_dropped() {
        let (updates, attempt) =
            (ProgressBuffer::default(), AttemptState::new(held_job("mail"), SystemTime::UNIX_EPOCH));
        updates.set_result(&attempt, "1".into());
        attempt.finished.store(true, Ordering::SeqCst);
        assert_eq!(
            updates.finish_attempt(&attempt.held).result.as_deref(),
            Some("1"),
            "set before the attempt finished"
        );

        updates.set_result(&attempt, "2".into());
        updates.add_line(&attempt, SystemTime::UNIX_EPOCH, "still here");
        assert!(updates.lock().is_empty());
        assert!(updates.take_batch().is_empty());
    }

    #[test]
    fn output_stays_until_the_attempt_ends_unless_it_is_switched_off() {
        for keep_output in [true, false] {
            let (updates, attempt) =
                (ProgressBuffer::new(keep_output), AttemptState::new(held_job("mail"), SystemTime::UNIX_EPOCH));
            for line in ["one", "two"] {
                updates.add_line(&attempt, SystemTime::UNIX_EPOCH, line);
                assert_eq!(updates.take_batch()[0].lines.len(), 1);
            }
            assert!(updates.take_batch().is_empty(), "nothing is sent twice");
            let output = updates.finish_attempt(&attempt.held).output;
            assert_eq!(output.as_deref(), keep_output.then_some("one\ntwo"));
            assert!(updates.lock().is_empty());
        }
    }
}
