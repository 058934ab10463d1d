//! The attempts under way in one worker.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Context;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::clock;
use crate::job::{Fence, HeldJob, JobId, Outcome};
use crate::peers::RunningJob as Told;
use crate::store::ProgressUpdate;
use crate::worker::attempt::{Attempt, AttemptResult, CANCELLED_ERROR, CRASH_SUSPECT_MIN};
use crate::worker::handler::{AttemptState, Handlers};

/// How long a job waits whose attempt ended in a way that says nothing about it.
const BROKEN_TASK_DELAY: Duration = Duration::from_secs(1);

/// An attempt that has ended and is not recorded yet.
pub(super) struct FinishedAttempt {
    pub(super) queue_index: usize,
    pub(super) held: Arc<HeldJob>,
    pub(super) outcome: Outcome,
    /// Why it was released, where that was not its handler's own wish.
    pub(super) reason: Option<&'static str>,
    pub(super) duration: Duration,
    /// How long after its due moment it started; `None` if it was not.
    pub(super) lateness: Option<Duration>,
    /// What it has said and nobody has sent yet, and what it gives.
    pub(super) progress_update: Option<ProgressUpdate>,
    pub(super) result: Option<String>,
    /// It was recorded before, and the store has lost that.
    pub(super) is_resend: bool,
    /// Since when it has been ours, as far as we know.
    pub(super) held_since: Instant,
    /// It was sent before, and the answer was lost: it may have been recorded then.
    pub(super) may_be_recorded: bool,
}

impl FinishedAttempt {
    /// An outcome of a job that was not run here, now.
    pub(super) fn without_run(lane: usize, held: HeldJob, outcome: Outcome) -> Self {
        FinishedAttempt {
            queue_index: lane,
            held: Arc::new(held),
            outcome,
            reason: None,
            duration: Duration::ZERO,
            lateness: None,
            progress_update: None,
            result: None,
            is_resend: false,
            held_since: clock::monotonic_now(),
            may_be_recorded: false,
        }
    }
}

/// An attempt under way.
struct RunningAttempt {
    /// Which of all attempts of this worker it is: its place is taken by another one after it.
    number: u64,
    queue_index: usize,
    state: Arc<AttemptState>,
    task: JoinHandle<()>,
    started: Instant,
    lateness: Duration,
}

impl RunningAttempt {
    fn held(&self) -> &HeldJob {
        &self.state.held
    }

    /// A job that somebody has cancelled does not come back, however its attempt has ended.
    fn cancelled_or(&self, ended: AttemptResult) -> AttemptResult {
        if self.state.cancellation.is_job_cancelled() { (Outcome::bury(CANCELLED_ERROR), None) } else { ended }
    }

    fn into_finished(self, (outcome, why): AttemptResult) -> FinishedAttempt {
        self.state.finished.store(true, Ordering::SeqCst);
        let took = clock::monotonic_now() - self.started;
        FinishedAttempt {
            queue_index: self.queue_index,
            held: self.state.held.clone(),
            outcome,
            reason: why,
            duration: took,
            lateness: Some(self.lateness),
            progress_update: None,
            result: None,
            is_resend: false,
            held_since: self.started,
            may_be_recorded: false,
        }
    }
}

/// Where attempts tell how they ended. A set of tasks would do it too, at several times the cost for each.
#[derive(Default)]
struct ResultQueue {
    results: Mutex<VecDeque<QueuedResult>>,
    arrived: Notify,
    /// How many were started, and have not had their first turn yet.
    unpolled: AtomicUsize,
}

/// Place and number of an attempt, and how it ended.
type QueuedResult = (usize, u64, AttemptResult);

impl ResultQueue {
    fn lock(&self) -> MutexGuard<'_, VecDeque<QueuedResult>> {
        self.results.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, report: QueuedResult) {
        let mut told = self.lock();
        told.push_back(report);
        let first = told.len() == 1;
        drop(told);
        if first {
            self.arrived.notify_one();
        }
    }
}

/// An attempt's promise to tell how it ended, kept also if its task does not live that long.
struct ResultSender {
    results: Arc<ResultQueue>,
    slot: usize,
    number: u64,
    unpolled: bool,
    sent: bool,
}

impl ResultSender {
    /// The attempt has had its first turn.
    fn mark_polled(&mut self) {
        if std::mem::take(&mut self.unpolled) {
            self.results.unpolled.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn send(mut self, ended: AttemptResult) {
        self.sent = true;
        self.results.push((self.slot, self.number, ended));
    }
}

impl Drop for ResultSender {
    /// The handler's panics are caught; this is one of something that it left behind, or an abort of ours.
    fn drop(&mut self) {
        self.mark_polled();
        if !self.sent {
            let ended = (Outcome::release(BROKEN_TASK_DELAY), Some("its task ended without an outcome"));
            self.results.push((self.slot, self.number, ended));
        }
    }
}

/// The attempts under way in one worker, each a task of its own.
#[derive(Default)]
pub(super) struct InFlight {
    /// By place.
    slots: Vec<Option<RunningAttempt>>,
    free_slots: Vec<usize>,
    started_count: u64,
    results: Arc<ResultQueue>,
    /// Reports that were taken from there and not looked at yet.
    received: VecDeque<QueuedResult>,
}

impl InFlight {
    pub(super) fn start(&mut self, lane: usize, late: Duration, attempt: Attempt, handlers: Arc<Handlers>) {
        let at = self.free_slots.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.started_count += 1;
        let (no, own, started) = (self.started_count, attempt.ctx.attempt_state.clone(), clock::monotonic_now());
        self.results.unpolled.fetch_add(1, Ordering::SeqCst);
        let promise = ResultSender { results: self.results.clone(), slot: at, number: no, unpolled: true, sent: false };
        let task = tokio::spawn(run_attempt(attempt, handlers, promise));
        self.slots[at] =
            Some(RunningAttempt { number: no, queue_index: lane, state: own, task, started, lateness: late });
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free_slots.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many were started, and have not had their first turn yet: most handlers need no other.
    pub(super) fn unpolled_count(&self) -> usize {
        self.results.unpolled.load(Ordering::SeqCst)
    }

    fn iter(&self) -> impl Iterator<Item = &RunningAttempt> {
        self.slots.iter().flatten()
    }

    /// The next attempt that ends; never resolves while there is none.
    pub(super) async fn next_finished(&mut self) -> FinishedAttempt {
        loop {
            if let Some(finished) = self.try_next_finished() {
                return finished;
            }
            self.results.arrived.notified().await;
        }
    }

    /// An attempt that has ended already.
    pub(super) fn try_next_finished(&mut self) -> Option<FinishedAttempt> {
        loop {
            if self.received.is_empty() {
                std::mem::swap(&mut self.received, &mut *self.results.lock());
            }
            let (at, no, ended) = self.received.pop_front()?;
            // One that was abandoned is told of too, perhaps after another has taken its place.
            if let Some(running) = self.slots[at].take_if(|running| running.number == no) {
                self.free_slots.push(at);
                let ended = running.cancelled_or(ended);
                return Some(running.into_finished(ended));
            }
        }
    }

    /// How long a job has been under way that may take this process down, if there is one.
    pub(super) fn crash_suspect_elapsed(&self) -> Option<Duration> {
        let suspect = self.iter().find(|running| running.held().crashes >= CRASH_SUSPECT_MIN);
        suspect.map(|suspect| clock::monotonic_now() - suspect.started)
    }

    /// Which jobs of a lane are under way.
    pub(super) fn claim_keys(&self, lane: usize) -> Vec<(JobId, Fence)> {
        let of_lane = self.iter().filter(|running| running.queue_index == lane);
        of_lane.map(|running| (running.held().job.id, running.held().fence)).collect()
    }

    /// Tells the attempt at this job that it has lost it. Answers whether that was news.
    pub(super) fn cancel_lost_job(&self, job: (JobId, Fence)) -> bool {
        let found = self.iter().find(|running| (running.held().job.id, running.held().fence) == job);
        found.is_some_and(|running| running.state.cancellation.cancel_attempt())
    }

    /// What is under way, for those who look.
    pub(super) fn snapshot(&self) -> Vec<Told> {
        let told = |running: &RunningAttempt| {
            let (held, progress) = (running.held(), f64::from_bits(running.state.progress.load(Ordering::Relaxed)));
            Told {
                id: held.job.id,
                queue: held.job.queue.clone(),
                kind: held.job.kind.clone(),
                attempt: held.attempt(),
                fence: held.fence,
                running_ms: u64::try_from((clock::monotonic_now() - running.started).as_millis()).unwrap_or(u64::MAX),
                progress: Some(progress).filter(|progress| !progress.is_nan()),
            }
        };
        self.iter().map(told).collect()
    }

    /// Tells the attempt at this job that nobody wants it any more. Answers whether there is one.
    pub(super) fn cancel_job(&self, id: JobId) -> bool {
        let mut found = false;
        for running in self.iter().filter(|running| running.held().job.id == id) {
            running.state.cancellation.cancel_job();
            found = true;
        }
        found
    }

    /// Ends all attempts where they are, to be run again elsewhere; those that have told how they ended, as they did.
    pub(super) fn abort_all(&mut self) -> Vec<FinishedAttempt> {
        let mut finished: Vec<FinishedAttempt> = std::iter::from_fn(|| self.try_next_finished()).collect();
        let left: Vec<RunningAttempt> = self.slots.iter_mut().filter_map(Option::take).collect();
        self.free_slots = (0..self.slots.len()).collect();
        let abandoned = left.into_iter().map(|running| {
            running.state.cancellation.cancel_attempt();
            running.task.abort();
            let ended = running.cancelled_or((Outcome::release(Duration::ZERO), Some("its grace time was over")));
            running.into_finished(ended)
        });
        finished.extend(abandoned);
        finished
    }
}

async fn run_attempt(attempt: Attempt, handlers: Arc<Handlers>, mut promise: ResultSender) {
    let ended = {
        let mut run = pin!(attempt.run(handlers));
        let turn = |cx: &mut Context<'_>| {
            let polled = run.as_mut().poll(cx);
            promise.mark_polled();
            polled
        };
        poll_fn(turn).await
    };
    promise.send(ended);
}

impl Drop for InFlight {
    /// A worker that is dropped runs no more attempts.
    fn drop(&mut self) {
        self.iter().for_each(|running| running.task.abort());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::tests::held_job;

    /// Puts an attempt among those under way that runs until it is aborted.
    fn add_pending_attempt(crew: &mut InFlight, no: u64) {
        let own = Arc::new(AttemptState::new(held_job("mail"), std::time::SystemTime::UNIX_EPOCH));
        let task = tokio::spawn(std::future::pending());
        crew.slots.push(Some(RunningAttempt {
            number: no,
            queue_index: 0,
            state: own,
            task,
            started: clock::monotonic_now(),
            lateness: Duration::ZERO,
        }));
    }

    #[tokio::test]
    async fn attempt_that_reported_its_result_is_not_released_when_grace_period_ends() {
        let mut crew = InFlight::default();
        (0..3).for_each(|no| add_pending_attempt(&mut crew, no));
        // Told at the very moment, and not looked at yet.
        crew.results.push((1, 1, (Outcome::Ack, None)));
        let outcomes: Vec<Outcome> = crew.abort_all().into_iter().map(|finished| finished.outcome).collect();
        let released = Outcome::release(Duration::ZERO);
        assert_eq!(outcomes, [Outcome::Ack, released.clone(), released]);
        assert!(crew.is_empty());
    }

    /// One is made for every attempt, and the C library's allocator is several times as slow beyond about a kilobyte.
    #[test]
    fn future_of_an_attempt_stays_small() {
        fn size_of_future<F: Future>(_: impl Fn(Attempt, Arc<Handlers>, ResultSender) -> F) -> usize {
            size_of::<F>()
        }
        let size = size_of_future(run_attempt);
        assert!(size <= 800, "{size} bytes");
    }
}
