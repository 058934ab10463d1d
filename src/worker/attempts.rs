//! The attempts of a worker: starts claimed jobs, keeps the running ones, and records their ends.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::job::{HeldJob, JobId, Outcome};
use crate::metrics::SettleMetrics;
use crate::peers::RunningJob;
use crate::store::{AttemptEnd, ClaimReply};
use crate::testing::CrashAt;
use crate::worker::WorkerSettings;
use crate::worker::attempt::{Attempt, CRASH_SUSPECT_MIN, QUARANTINE_DELAY_MAX, QUARANTINE_DELAY_MIN};
use crate::worker::event::{Event, RunSummary};
use crate::worker::handler::{AttemptState, Ctx, WorkerContext};
use crate::worker::in_flight::InFlight;
use crate::worker::outcomes::{Recording, UnsettledOutcome, claim_key};
use crate::worker::phase::Phase;
use crate::worker::progress::ProgressBuffer;
use crate::worker::queue_state::QueueState;
use crate::worker::run_record::RunRecord;

/// Starts attempts and records their ends.
pub(super) struct Attempts {
    settings: Arc<WorkerSettings>,
    /// Shared by all attempts.
    context: Arc<WorkerContext>,
    in_flight: InFlight,
    record: RunRecord,
}

impl Attempts {
    pub(super) fn new(settings: Arc<WorkerSettings>, stopping: CancellationToken) -> Self {
        let context = Arc::new(WorkerContext {
            progress: Arc::default(),
            stopping,
            duly: settings.duly.clone(),
            state: settings.state.clone(),
            crash: settings.crash.clone(),
        });
        let in_flight = InFlight::new(settings.duly.options.keep_dead);
        Attempts { settings, context, in_flight, record: RunRecord::default() }
    }

    /// Returns the progress that attempts report.
    pub(super) fn progress(&self) -> Arc<ProgressBuffer> {
        self.context.progress.clone()
    }

    pub(super) fn len(&self) -> usize {
        self.in_flight.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Returns how many attempts have not been polled yet.
    pub(super) fn unpolled_count(&self) -> usize {
        self.in_flight.unpolled_count()
    }

    /// Returns whether a running attempt has not exceeded its timeout.
    pub(super) fn has_time_left(&self) -> bool {
        self.in_flight.has_time_left()
    }

    /// Describes the running jobs.
    pub(super) fn snapshot(&self) -> Vec<RunningJob> {
        self.in_flight.snapshot()
    }

    /// Cancels the attempt of a job that must not be retried. Returns whether there is one.
    pub(super) fn cancel_job(&self, id: JobId) -> bool {
        self.in_flight.cancel_job(id)
    }

    // Jobs that arrive.

    /// Starts a claimed job, or releases it if it must not run now.
    pub(super) fn start_or_release(
        &mut self,
        phase: Phase,
        index: usize,
        queue: &mut QueueState,
        held: HeldJob,
        now: SystemTime,
    ) {
        if let Some(reason) = phase.release_reason() {
            return queue.outcomes.release(held, Duration::ZERO, reason);
        }
        // All jobs that ran during a crash are suspects. They run one by one, so that the next crash identifies the
        // cause.
        let is_suspected = (CRASH_SUSPECT_MIN..=self.settings.max_crashes).contains(&held.crashes);
        let suspect_elapsed = if is_suspected { self.in_flight.crash_suspect_elapsed() } else { None };
        match suspect_elapsed {
            Some(elapsed) => {
                let after = elapsed.clamp(QUARANTINE_DELAY_MIN, QUARANTINE_DELAY_MAX);
                queue.outcomes.release(held, after, "waits for another job that may crash its process");
            }
            None => self.start(index, queue, held, now),
        }
    }

    fn start(&mut self, index: usize, queue: &mut QueueState, held: HeldJob, now: SystemTime) {
        let settings = &self.settings;
        let deadline = settings.duly.options.clock.now() + held.job.timeout;
        let attempt = Attempt {
            retry: *settings.retries.get(&held.job.kind).unwrap_or(&settings.default_retry),
            max_crashes: settings.max_crashes,
            job_age: now.duration_since(held.job.pushed).unwrap_or_default(),
            ctx: Ctx { attempt_state: Arc::new(AttemptState::new(held, deadline)), worker: self.context.clone() },
        };
        let held = &attempt.ctx.attempt_state.held;
        let lateness = now.duration_since(held.due).unwrap_or_default();
        if attempt.check_crash_limit().is_none() {
            settings.emit(&Event::Started { held, lateness });
        }
        queue.record_started();
        self.in_flight.start(index, lateness, attempt, settings.handlers.clone());
    }

    /// Returns whether this claim is known here: running, finished or settled recently.
    pub(super) fn is_known_claim(&self, index: usize, queue: &QueueState, held: &HeldJob) -> bool {
        let key = claim_key(held);
        queue.outcomes.contains(key)
            || self.in_flight.claim_keys(index).contains(&key)
            || self.record.find(key).is_some()
    }

    /// Compares the held jobs listed by the store with our own: starts unknown jobs, cancels attempts that lost theirs.
    pub(super) fn reconcile_held(&mut self, phase: Phase, index: usize, queue: &mut QueueState, reply: ClaimReply) {
        let theirs: HashSet<_> = reply.jobs.iter().map(claim_key).collect();
        let ours = self.in_flight.claim_keys(index);
        theirs.iter().for_each(|(_, fence)| queue.deliveries.record_fence(*fence));
        for attempt in ours.iter().filter(|attempt| !theirs.contains(attempt)) {
            if self.in_flight.cancel_lost_job(*attempt) {
                self.record.report_lost(&self.settings, *attempt);
            }
        }
        for held in reply.jobs {
            let key = claim_key(&held);
            if ours.contains(&key) || queue.outcomes.contains(key) || queue.deliveries.contains(key) {
                continue;
            }
            match self.record.find(key) {
                Some((outcome, result)) => {
                    let keep_dead = self.settings.duly.options.keep_dead;
                    let end = AttemptEnd { result, ..AttemptEnd::new(Arc::new(held), outcome, keep_dead) };
                    let resent = UnsettledOutcome::new(end, None, clock::monotonic_now());
                    queue.outcomes.add(UnsettledOutcome { recording: Recording::Resend, ..resent });
                }
                None => self.start_or_release(phase, index, queue, held, reply.now),
            }
        }
    }

    // Attempts that end.

    /// Waits for the next attempt to finish, and returns its queue index and outcome. Never resolves if there is none.
    pub(super) async fn next_finished(&mut self) -> (usize, UnsettledOutcome) {
        let (index, outcome) = self.in_flight.next_finished().await;
        (index, self.add_progress(outcome))
    }

    /// Returns an attempt that has finished, if there is one.
    pub(super) fn try_next_finished(&mut self) -> Option<(usize, UnsettledOutcome)> {
        let (index, outcome) = self.in_flight.try_next_finished()?;
        Some((index, self.add_progress(outcome)))
    }

    /// Aborts all attempts, so that other nodes can run the jobs. Results that were already sent are kept.
    pub(super) fn abort_all(&mut self) -> Vec<(usize, UnsettledOutcome)> {
        let aborted = self.in_flight.abort_all();
        aborted.into_iter().map(|(index, outcome)| (index, self.add_progress(outcome))).collect()
    }

    fn add_progress(&self, mut finished: UnsettledOutcome) -> UnsettledOutcome {
        (finished.progress_update, finished.end.result) = self.context.progress.finish_attempt(finished.end.held());
        finished
    }

    /// Handles the reply to a settle, which lists the jobs that the node no longer held.
    pub(super) fn handle_settle_reply(
        &mut self,
        queue: &mut QueueState,
        batch: Vec<UnsettledOutcome>,
        lost: &[JobId],
        lease: Duration,
    ) {
        let now = clock::monotonic_now();
        queue.outcomes.confirm_batch();
        if let Some(crash) = self.settings.crash.as_ref().filter(|crash| crash.is_at(&CrashAt::AfterSettle)) {
            crash.crashed.cancel();
        }
        let mut settle_metrics = SettleMetrics::default();
        for outcome in batch {
            queue.count_check.record_changes(1);
            // After a settle with a lost reply: if the lease was valid throughout, that settle recorded the outcome.
            let was_recorded = outcome.recording == Recording::MayBeRecorded
                && queue.lease.is_valid_since(outcome.held_since, now, lease);
            if lost.contains(&outcome.end.id()) && !was_recorded {
                self.record.record_rejected(&self.settings, outcome);
                continue;
            }
            if outcome.recording != Recording::Resend {
                follow_up(queue, &outcome.end);
            }
            self.record.record_settled(&self.settings, &mut settle_metrics, outcome);
        }
    }

    /// Returns the summary of the run.
    pub(super) fn take_summary(&mut self, unrecorded: u64, crashed: bool) -> RunSummary {
        std::mem::take(&mut self.record).into_summary(unrecorded, crashed)
    }
}

/// Acts on an outcome that the store has recorded.
fn follow_up(queue: &mut QueueState, end: &AttemptEnd) {
    let job = &end.held().job;
    queue.ticks.unblock_rule(job.unique.as_deref(), &end.outcome);
    match end.outcome {
        Outcome::Ack if !job.keep.is_zero() => queue.prune.count_done(),
        Outcome::Ack | Outcome::Bury { .. } => {}
        // A claim finds the job, or reports when it becomes due.
        Outcome::Retry { .. } | Outcome::Release { .. } => queue.claims.request_claim(),
    }
}
