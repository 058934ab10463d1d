//! The running attempts of one worker.

use std::collections::{HashSet, VecDeque};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Context;
use std::time::{Duration, SystemTime};

use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::clock;
use crate::job::retry::Retry;
use crate::job::{HeldJob, JobId, Outcome};
use crate::peers::RunningJob;
use crate::store::{AttemptEnd, AttemptTiming};
use crate::sync::LockExt;
use crate::worker::attempt::{Attempt, AttemptResult, retry_or_bury};
use crate::worker::attempt_poll::PollState;
use crate::worker::attempt_state::AttemptState;
use crate::worker::cancel::end_cancelled;
use crate::worker::end_reason::EndReason;
use crate::worker::handler::Handlers;
use crate::worker::outcomes::{ClaimKey, UnsettledEnd, claim_key};

/// Delay of a job if its task broke and gave no outcome.
const BROKEN_TASK_DELAY: Duration = Duration::from_secs(1);

/// How much longer than its timeout a blocked attempt may take: if its thread is free, it times out by itself.
const BLOCKED_TIMEOUT_MARGIN: Duration = Duration::from_secs(1);

/// A running attempt.
struct RunningAttempt {
    /// Sequence number of the attempt; its slot is reused afterwards.
    number: u64,
    queue_index: usize,
    retry: Retry,
    state: Arc<AttemptState>,
    task: JoinHandle<()>,
    started: Instant,
    /// By the store's clock; `None` if attempts are not recorded.
    started_at: Option<SystemTime>,
    lateness: Duration,
}

impl RunningAttempt {
    fn held(&self) -> &HeldJob {
        &self.state.held
    }

    /// Returns the result of the attempt, or how a job ends that was cancelled since the attempt decided it.
    fn cancelled_or(&self, cancelled: &Outcome, result: AttemptResult) -> AttemptResult {
        let is_decided = result.outcome == Outcome::Ack || result.reason == Some(EndReason::Cancelled);
        match !is_decided && self.state.cancellation.is_job_cancelled() {
            true => AttemptResult::cancelled(end_cancelled(cancelled, result.outcome)),
            false => result,
        }
    }

    /// Returns the result of an attempt past its timeout while a handler blocks the runtime.
    fn blocked_result(&self) -> AttemptResult {
        let timeout = self.held().job.timeout;
        let error = match self.state.poll.get() {
            PollState::NeverPolled => return AttemptResult::released(Duration::ZERO, EndReason::WorkerBlocked),
            PollState::Polling => {
                format!(
                    "the handler blocked its thread past its timeout of {timeout:?}; run blocking code with tokio::task::spawn_blocking"
                )
            }
            PollState::Pending => format!("timed out after {timeout:?}: another handler blocked the runtime"),
        };
        retry_or_bury(self.held(), self.retry, None, error).into()
    }

    /// Returns the index of the queue, and how the attempt ended.
    fn into_end(self, result: AttemptResult, keep_dead: Duration) -> (usize, UnsettledEnd) {
        self.state.finished.store(true, Ordering::SeqCst);
        let timing = AttemptTiming { lateness: self.lateness, duration: clock::monotonic_now() - self.started };
        let end = AttemptEnd {
            timing: Some(timing),
            started: self.started_at,
            deferred: result.is_unknown_kind(),
            ..AttemptEnd::new(self.state.held.clone(), result.outcome, keep_dead)
        };
        (self.queue_index, UnsettledEnd::new(end, result.reason, self.started))
    }
}

/// Results of finished attempts. A `JoinSet` would do, but costs several times as much per attempt.
#[derive(Default)]
struct ResultQueue {
    results: Mutex<VecDeque<QueuedResult>>,
    arrived: Notify,
    /// Started attempts that have not been polled yet.
    unpolled: AtomicUsize,
}

/// The slot and number of an attempt, and its result.
type QueuedResult = (usize, u64, AttemptResult);

impl ResultQueue {
    fn lock(&self) -> MutexGuard<'_, VecDeque<QueuedResult>> {
        self.results.lock_unpoisoned()
    }

    fn push(&self, result: QueuedResult) {
        let mut results = self.lock();
        results.push_back(result);
        let first = results.len() == 1;
        drop(results);
        if first {
            self.arrived.notify_one();
        }
    }
}

/// Sends the result of an attempt, even if its task ends early.
struct ResultSender {
    results: Arc<ResultQueue>,
    slot: usize,
    number: u64,
    unpolled: bool,
    sent: bool,
}

impl ResultSender {
    /// Records that the attempt has been polled.
    fn mark_polled(&mut self) {
        if std::mem::take(&mut self.unpolled) {
            self.results.unpolled.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn send(mut self, result: AttemptResult) {
        self.sent = true;
        self.results.push((self.slot, self.number, result));
    }
}

impl Drop for ResultSender {
    /// Panics of the handler are caught elsewhere: this is a panic of a leftover value, or an abort by the worker.
    fn drop(&mut self) {
        self.mark_polled();
        if !self.sent {
            let result = AttemptResult::released(BROKEN_TASK_DELAY, EndReason::TaskBroken);
            self.results.push((self.slot, self.number, result));
        }
    }
}

/// The running attempts of one worker, each in its own task.
pub(super) struct InFlight {
    /// How long dead jobs are kept.
    keep_dead: Duration,
    /// The outcome of an attempt that does not succeed, at a job that was cancelled.
    cancelled_outcome: Outcome,
    /// Running attempts by slot.
    slots: Vec<Option<RunningAttempt>>,
    free_slots: Vec<usize>,
    started_count: u64,
    results: Arc<ResultQueue>,
    /// Results taken from `results` and not processed yet.
    received: VecDeque<QueuedResult>,
}

impl InFlight {
    pub(super) fn new(keep_dead: Duration, cancelled_outcome: Outcome) -> Self {
        InFlight {
            keep_dead,
            cancelled_outcome,
            slots: Vec::new(),
            free_slots: Vec::new(),
            started_count: 0,
            results: Arc::default(),
            received: VecDeque::new(),
        }
    }

    /// Starts an attempt. `now` is the store's time.
    pub(super) fn start(&mut self, queue_index: usize, now: SystemTime, attempt: Attempt, handlers: Arc<Handlers>) {
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.started_count += 1;
        let (number, retry, started) = (self.started_count, attempt.retry, clock::monotonic_now());
        let state = attempt.ctx.attempt_state.clone();
        let lateness = now.duration_since(state.held.due).unwrap_or_default();
        let started_at = attempt.ctx.worker.duly.options.attempts.then_some(now);
        self.results.unpolled.fetch_add(1, Ordering::SeqCst);
        let sender = ResultSender { results: self.results.clone(), slot, number, unpolled: true, sent: false };
        let task = tokio::spawn(run_attempt(attempt, handlers, sender));
        self.slots[slot] =
            Some(RunningAttempt { number, queue_index, retry, state, task, started, started_at, lateness });
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free_slots.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns how many attempts have not been polled yet. Most handlers need only one poll.
    pub(super) fn unpolled_count(&self) -> usize {
        self.results.unpolled.load(Ordering::SeqCst)
    }

    fn iter(&self) -> impl Iterator<Item = &RunningAttempt> {
        self.slots.iter().flatten()
    }

    /// Waits for the next attempt to finish, and returns its queue index and end. Never resolves if there is none.
    pub(super) async fn next_finished(&mut self) -> (usize, UnsettledEnd) {
        loop {
            if let Some(finished) = self.try_next_finished() {
                return finished;
            }
            self.results.arrived.notified().await;
        }
    }

    /// Returns an attempt that has finished, if there is one.
    pub(super) fn try_next_finished(&mut self) -> Option<(usize, UnsettledEnd)> {
        loop {
            if self.received.is_empty() {
                std::mem::swap(&mut self.received, &mut *self.results.lock());
            }
            let (slot, number, result) = self.received.pop_front()?;
            // An aborted attempt also sends a result, perhaps after its slot has been reused.
            if let Some(running) = self.slots[slot].take_if(|running| running.number == number) {
                self.free_slots.push(slot);
                let result = running.cancelled_or(&self.cancelled_outcome, result);
                return Some(running.into_end(result, self.keep_dead));
            }
        }
    }

    /// Ends the attempts that are past their timeout while a handler blocks the runtime, so that nothing else can end
    /// them. The code of the handler may still run; its result is dropped.
    pub(super) fn end_blocked(&mut self) -> Vec<(usize, UnsettledEnd)> {
        let now = clock::monotonic_now();
        // An attempt that has just returned has its own result.
        let mut ended: Vec<(usize, UnsettledEnd)> = std::iter::from_fn(|| self.try_next_finished()).collect();
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let is_overdue = |running: &mut RunningAttempt| {
                now - running.started >= running.held().job.timeout.saturating_add(BLOCKED_TIMEOUT_MARGIN)
            };
            if let Some(running) = slot.take_if(is_overdue) {
                self.free_slots.push(index);
                running.state.cancellation.cancel_attempt();
                running.task.abort();
                let result = running.cancelled_or(&self.cancelled_outcome, running.blocked_result());
                ended.push(running.into_end(result, self.keep_dead));
            }
        }
        ended
    }

    /// Returns the claim of the only running attempt, if exactly one runs.
    pub(super) fn only_claim(&self) -> Option<ClaimKey> {
        let only = if self.len() == 1 { self.iter().next() } else { None };
        only.map(|running| claim_key(running.held()))
    }

    /// Returns the claims of a queue that have a running attempt.
    pub(super) fn claim_keys(&self, queue_index: usize) -> HashSet<ClaimKey> {
        let of_queue = self.iter().filter(|running| running.queue_index == queue_index);
        of_queue.map(|running| claim_key(running.held())).collect()
    }

    /// Cancels the attempt of a job that another node has taken. Returns `false` if it was cancelled before or is gone.
    pub(super) fn cancel_lost_job(&self, job: ClaimKey) -> bool {
        let found = self.iter().find(|running| claim_key(running.held()) == job);
        found.is_some_and(|running| running.state.cancellation.cancel_attempt())
    }

    /// Describes the running jobs.
    pub(super) fn snapshot(&self) -> Vec<RunningJob> {
        let describe = |running: &RunningAttempt| {
            let (held, progress) = (running.held(), f64::from_bits(running.state.progress.load(Ordering::Relaxed)));
            let progress = Some(progress).filter(|progress| !progress.is_nan());
            RunningJob::new(held, clock::monotonic_now() - running.started, progress)
        };
        self.iter().map(describe).collect()
    }

    /// Cancels the attempt of a job that must not be retried. Returns whether there is one.
    pub(super) fn cancel_job(&self, id: JobId) -> bool {
        let mut found = false;
        for running in self.iter().filter(|running| running.held().job.id == id) {
            running.state.cancellation.cancel_job();
            found = true;
        }
        found
    }

    /// Aborts all attempts, so that other nodes can run the jobs. Results that were already sent are kept.
    pub(super) fn abort_all(&mut self) -> Vec<(usize, UnsettledEnd)> {
        let mut finished: Vec<(usize, UnsettledEnd)> = std::iter::from_fn(|| self.try_next_finished()).collect();
        let running: Vec<RunningAttempt> = self.slots.iter_mut().filter_map(Option::take).collect();
        self.free_slots = (0..self.slots.len()).collect();
        let aborted = running.into_iter().map(|running| {
            running.state.cancellation.cancel_attempt();
            running.task.abort();
            let aborted = AttemptResult::released(Duration::ZERO, EndReason::GracePeriodOver);
            let result = running.cancelled_or(&self.cancelled_outcome, aborted);
            running.into_end(result, self.keep_dead)
        });
        finished.extend(aborted);
        finished
    }
}

async fn run_attempt(attempt: Attempt, handlers: Arc<Handlers>, mut sender: ResultSender) {
    let result = {
        let mut run = pin!(attempt.run(handlers));
        let poll = |cx: &mut Context<'_>| {
            let polled = run.as_mut().poll(cx);
            sender.mark_polled();
            polled
        };
        poll_fn(poll).await
    };
    sender.send(result);
}

impl Drop for InFlight {
    /// Aborts the attempts of a dropped worker.
    fn drop(&mut self) {
        self.iter().for_each(|running| running.task.abort());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::tests::held_job;

    /// Adds an attempt that runs until it is aborted.
    fn add_pending_attempt(in_flight: &mut InFlight, number: u64) {
        let state = Arc::new(AttemptState::new(held_job("mail"), std::time::SystemTime::UNIX_EPOCH));
        let task = tokio::spawn(std::future::pending());
        in_flight.slots.push(Some(RunningAttempt {
            number,
            queue_index: 0,
            retry: Retry::default(),
            state,
            task,
            started: clock::monotonic_now(),
            started_at: None,
            lateness: Duration::ZERO,
        }));
    }

    #[tokio::test]
    async fn attempt_that_reported_its_result_is_not_released_when_grace_period_ends() {
        let mut in_flight = InFlight::new(Duration::ZERO, Outcome::release(Duration::ZERO));
        (0..3).for_each(|number| add_pending_attempt(&mut in_flight, number));
        // Sent at the last moment and not received yet.
        in_flight.results.push((1, 1, Outcome::Ack.into()));
        let outcomes: Vec<Outcome> =
            in_flight.abort_all().into_iter().map(|(_, finished)| finished.end.outcome).collect();
        let released = Outcome::release(Duration::ZERO);
        assert_eq!(outcomes, [Outcome::Ack, released.clone(), released]);
        assert!(in_flight.is_empty());
    }

    /// Every attempt allocates one, and the allocator of the C library is several times slower beyond about a kilobyte.
    #[test]
    fn future_of_an_attempt_stays_small() {
        fn size_of_future<F: Future>(_: impl Fn(Attempt, Arc<Handlers>, ResultSender) -> F) -> usize {
            size_of::<F>()
        }
        let size = size_of_future(run_attempt);
        assert!(size <= 800, "{size} bytes");
    }
}
