//! The attempts of a worker: starts claimed jobs, keeps the running ones, and records their ends.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::job::{HeldJob, JobId};
use crate::metrics::SettleMetrics;
use crate::peers::RunningJob;
use crate::store::{AttemptEnd, ClaimReply};
use crate::testing::CrashAt;
use crate::worker::WorkerSettings;
use crate::worker::attempt::Attempt;
use crate::worker::attempt_state::AttemptState;
use crate::worker::cancel::cancelled_outcome;
use crate::worker::ctx::{Ctx, WorkerContext};
use crate::worker::end_reason::EndReason;
use crate::worker::event::{Event, RunSummary};
use crate::worker::in_flight::InFlight;
use crate::worker::outcomes::{RecordingState, UnsettledEnd, claim_key};
use crate::worker::phase::Phase;
use crate::worker::process::WorkerProcess;
use crate::worker::progress::ProgressBuffer;
use crate::worker::quarantine::{Admission, AloneReply, CrashSuspect, NodeActivity, Quarantine, QuarantineAction};
use crate::worker::queue_state::QueueState;
use crate::worker::queues::WorkerQueues;
use crate::worker::run_loop::RunMode;
use crate::worker::run_record::RunRecord;

/// Starts attempts and records their ends.
pub(super) struct Attempts {
    settings: Arc<WorkerSettings>,
    /// Shared by all attempts.
    context: Arc<WorkerContext>,
    in_flight: InFlight,
    quarantine: Quarantine,
    record: RunRecord,
}

impl Attempts {
    pub(super) fn new(settings: Arc<WorkerSettings>, mode: RunMode, stopping: CancellationToken) -> Self {
        let context = Arc::new(WorkerContext {
            progress: Arc::new(ProgressBuffer::new(settings.duly.options.attempts)),
            stopping,
            duly: settings.duly.clone(),
            cancelled_outcome: cancelled_outcome(&*settings.duly.store),
            crash: settings.crash.clone(),
        });
        let in_flight = InFlight::new(settings.duly.options.keep_dead, context.cancelled_outcome.clone());
        let process = WorkerProcess::current().join();
        let quarantine = Quarantine::new(settings.max_crashes, mode == RunMode::Serve, process);
        Attempts { settings, context, in_flight, quarantine, record: RunRecord::default() }
    }

    /// Returns the progress that attempts report.
    pub(super) fn progress(&self) -> Arc<ProgressBuffer> {
        self.context.progress.clone()
    }

    pub(super) fn len(&self) -> usize {
        self.in_flight.len()
    }

    /// Returns whether no attempt runs and no suspect waits for its trial.
    pub(super) fn is_empty(&self) -> bool {
        self.in_flight.is_empty() && self.quarantine.is_empty()
    }

    /// Returns how many attempts have not been polled yet.
    pub(super) fn unpolled_count(&self) -> usize {
        self.in_flight.unpolled_count()
    }

    /// Describes the running jobs.
    pub(super) fn snapshot(&self) -> Vec<RunningJob> {
        self.in_flight.snapshot()
    }

    /// Cancels the attempt of a job that must not be retried, or releases the job if it waits for its trial. Returns
    /// whether it is here.
    pub(super) fn cancel_job(&mut self, id: JobId) -> bool {
        self.in_flight.cancel_job(id) || self.quarantine.cancel(id)
    }

    /// Returns how many jobs may be claimed at once; 0 while a crash suspect runs alone.
    pub(super) fn claim_limit(&self) -> usize {
        self.quarantine.claim_limit()
    }

    /// Returns how many crash suspects of a queue wait for their trial.
    pub(super) fn waiting_suspects(&self, index: usize) -> usize {
        self.quarantine.count(index)
    }

    /// Returns the notification that another worker of the process has reserved it, or has ended that.
    pub(super) fn process_changes(&self) -> Arc<Notify> {
        self.quarantine.process_changes()
    }

    /// Returns when the quarantine must be looked at again.
    pub(super) fn quarantine_deadline(&self) -> Option<Instant> {
        self.quarantine.deadline()
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
            return queue.release(held, Duration::ZERO, reason);
        }
        match self.quarantine.admit(index, held, now, clock::monotonic_now()) {
            Admission::Start(held) => self.start(index, queue, held, now),
            Admission::Waits => {}
            Admission::Release(held, after) => queue.release(held, after, EndReason::Quarantine),
        }
    }

    /// Starts crash suspects whose trial begins, and releases those that cannot have one.
    pub(super) fn run_quarantine(&mut self, phase: Phase, queues: &mut WorkerQueues, store_now: SystemTime) {
        let now = clock::monotonic_now();
        if !self.runs(queues) {
            self.quarantine.record_idle();
        }
        while !self.quarantine.is_at_rest() {
            let may_have_lost = self.may_have_lost_suspects(queues, now);
            let activity = NodeActivity {
                runs: self.runs(queues),
                only: self.in_flight.only_claim(),
                expects_jobs: queues.iter().any(|queue| queue.expects_jobs()),
                may_have_lost,
                accepts_jobs: phase.is_running(),
            };
            match self.quarantine.next_action(activity, now) {
                None => return,
                Some(QuarantineAction::SetAlone { queue_index, held, alone }) => {
                    queues.set_alone(queue_index, held, alone);
                }
                Some(QuarantineAction::Start(group)) => {
                    for suspect in group {
                        self.start_suspect(suspect, phase, queues, store_now);
                    }
                }
                Some(QuarantineAction::Release(suspects, after)) => {
                    for suspect in suspects {
                        let held = Arc::unwrap_or_clone(suspect.held);
                        queues[suspect.queue_index].release(held, after, EndReason::Quarantine);
                    }
                }
            }
        }
    }

    /// Returns whether another node may have taken a suspect that waits here. A resync shows which.
    fn may_have_lost_suspects(&self, queues: &mut WorkerQueues, now: Instant) -> bool {
        let (mut may_have_lost, lease) = (false, self.settings.duly.options.lease);
        for (index, since) in self.quarantine.waiting() {
            let queue = &mut queues[index];
            let is_held = queue.has_held_since(since, now, lease);
            // A list of held jobs from before the lease is valid again could be out of date.
            if !is_held && queue.has_held_since(now, now, lease) && !queue.is_resyncing() {
                queue.request_resync();
            }
            may_have_lost |= !is_held;
        }
        may_have_lost
    }

    /// Returns whether attempts run, or outcomes are not recorded.
    fn runs(&self, queues: &WorkerQueues) -> bool {
        !self.in_flight.is_empty() || queues.iter().any(|queue| queue.unrecorded_outcomes() > 0)
    }

    /// Handles the reply of the store that a crash suspect does or does not run alone.
    pub(super) fn handle_alone_reply(
        &mut self,
        phase: Phase,
        queues: &mut WorkerQueues,
        reply: AloneReply,
        store_now: SystemTime,
    ) {
        if let Some(suspect) = self.quarantine.record_alone_reply(reply, clock::monotonic_now()) {
            self.start_suspect(suspect, phase, queues, store_now);
        }
    }

    fn start_suspect(&mut self, suspect: CrashSuspect, phase: Phase, queues: &mut WorkerQueues, store_now: SystemTime) {
        let (queue, held) = (&mut queues[suspect.queue_index], Arc::unwrap_or_clone(suspect.held));
        match phase.release_reason() {
            Some(reason) => queue.release(held, Duration::ZERO, reason),
            None => {
                self.quarantine.record_started();
                self.start(suspect.queue_index, queue, held, store_now);
            }
        }
    }

    fn start(&mut self, index: usize, queue: &mut QueueState, held: HeldJob, now: SystemTime) {
        let settings = &self.settings;
        let deadline = settings.duly.options.clock.now() + held.job.timeout;
        let attempt = Attempt {
            retry: settings.retries.get(&held.job.kind),
            max_crashes: settings.max_crashes,
            job_age: now.duration_since(held.job.pushed).unwrap_or_default(),
            ctx: Ctx {
                attempt_state: Arc::new(AttemptState::new(held, deadline)),
                worker: self.context.clone(),
                replaced_job: None,
            },
        };
        let held = &attempt.ctx.attempt_state.held;
        let lateness = now.duration_since(held.due).unwrap_or_default();
        if attempt.check_crash_limit().is_none() {
            settings.emit(&Event::Started { held, lateness });
        }
        queue.record_started();
        self.in_flight.start(index, now, attempt, settings.handlers.clone());
    }

    /// Returns whether this claim is known here: running, finished or settled recently.
    pub(super) fn is_known_claim(&self, index: usize, queue: &QueueState, held: &HeldJob) -> bool {
        let key = claim_key(held);
        queue.has_claim(key)
            || self.quarantine.contains(key)
            || self.in_flight.claim_keys(index).contains(&key)
            || self.record.find(key).is_some()
    }

    /// Compares the held jobs listed by the store with our own: starts unknown jobs, cancels attempts that lost theirs.
    pub(super) fn reconcile_held(
        &mut self,
        phase: Phase,
        index: usize,
        queue: &mut QueueState,
        sent: Instant,
        reply: ClaimReply,
    ) {
        let theirs: HashSet<_> = reply.jobs.iter().map(claim_key).collect();
        let ours = self.in_flight.claim_keys(index);
        theirs.iter().for_each(|(_, fence)| queue.record_fence(*fence));
        for attempt in ours.iter().filter(|attempt| !theirs.contains(attempt)) {
            if self.in_flight.cancel_lost_job(*attempt) {
                self.record.report_lost(&self.settings, *attempt);
            }
        }
        self.quarantine.retain(index, sent, |key| theirs.contains(&key));
        for held in reply.jobs {
            let key = claim_key(&held);
            let is_known = ours.contains(&key) || self.quarantine.contains(key);
            if is_known || queue.has_claim(key) {
                continue;
            }
            match self.record.find(key) {
                Some((outcome, result)) => {
                    let keep_dead = self.settings.duly.options.keep_dead;
                    let end = AttemptEnd { result, ..AttemptEnd::new(Arc::new(held), outcome, keep_dead) };
                    let resent = UnsettledEnd::new(end, None, clock::monotonic_now());
                    queue.resend(UnsettledEnd { recording: RecordingState::Resend, ..resent });
                }
                None => self.start_or_release(phase, index, queue, held, reply.now),
            }
        }
    }

    // Attempts that end.

    /// Waits for the next attempt to finish, and returns its queue index and end. Never resolves if there is none.
    pub(super) async fn next_finished(&mut self) -> (usize, UnsettledEnd) {
        let (index, finished) = self.in_flight.next_finished().await;
        (index, self.add_progress(finished))
    }

    /// Returns an attempt that has finished, if there is one.
    pub(super) fn try_next_finished(&mut self) -> Option<(usize, UnsettledEnd)> {
        let (index, finished) = self.in_flight.try_next_finished()?;
        Some((index, self.add_progress(finished)))
    }

    /// Aborts all attempts, so that other nodes can run the jobs. Results that were already sent are kept.
    pub(super) fn abort_all(&mut self) -> Vec<(usize, UnsettledEnd)> {
        let aborted = self.in_flight.abort_all();
        aborted.into_iter().map(|(index, finished)| (index, self.add_progress(finished))).collect()
    }

    /// Ends the attempts that are past their timeout while a handler blocks the runtime.
    pub(super) fn end_blocked(&mut self) -> Vec<(usize, UnsettledEnd)> {
        let ended = self.in_flight.end_blocked();
        ended.into_iter().map(|(index, finished)| (index, self.add_progress(finished))).collect()
    }

    fn add_progress(&self, mut finished: UnsettledEnd) -> UnsettledEnd {
        let report = self.context.progress.finish_attempt(finished.end.held());
        (finished.progress_update, finished.end.result) = (report.update, report.result);
        finished.end.output = report.output;
        finished
    }

    /// Handles the reply to a settle, which lists the jobs that the node no longer held.
    pub(super) fn handle_settle_reply(
        &mut self,
        queue: &mut QueueState,
        batch: Vec<UnsettledEnd>,
        lost: &[JobId],
        lease: Duration,
    ) {
        let now = clock::monotonic_now();
        queue.confirm_settled(batch.len());
        if let Some(crash) = self.settings.crash.as_ref().filter(|crash| crash.is_at(&CrashAt::AfterSettle)) {
            crash.crashed.cancel();
        }
        let mut settle_metrics = SettleMetrics::default();
        for settled in batch {
            // After a settle with a lost reply: if the lease was valid throughout, that settle recorded the outcome.
            let was_recorded = settled.recording == RecordingState::MayBeRecorded
                && queue.has_held_since(settled.held_since, now, lease);
            if lost.contains(&settled.end.id()) && !was_recorded {
                self.record.record_rejected(&self.settings, settled);
                continue;
            }
            if settled.recording != RecordingState::Resend {
                queue.follow_up(&settled);
            }
            self.record.record_settled(&self.settings, &mut settle_metrics, settled);
        }
    }

    /// Returns the summary of the run.
    pub(super) fn take_summary(&mut self, unrecorded: u64, crashed: bool) -> RunSummary {
        std::mem::take(&mut self.record).into_summary(unrecorded, crashed)
    }
}
