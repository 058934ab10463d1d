//! One job that a remote worker holds, or is about to receive.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use crate::job::run::OutputTail;
use crate::job::{HeldJob, JobId};
use crate::peers::RunningJob;
use crate::store::{AttemptEnd, AttemptTiming};
use crate::worker::outcomes::{ClaimKey, RecordingState, claim_key};

/// A delivered job that is missing from this many consecutive heartbeats never reached its worker.
const MISSED_HEARTBEATS_MAX: u32 = 2;

/// Whether the worker has received the job.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DeliveryState {
    /// No reply has contained it.
    Pending,
    /// A reply has contained it. This many consecutive heartbeats since then did not name it.
    Delivered { missed_heartbeats: u32 },
}

/// A claimed job that the worker has, or is about to receive.
pub(super) struct RemoteJob {
    /// Without args once it is delivered: a worker may hold many jobs with large args.
    held: Arc<HeldJob>,
    since: Instant,
    /// The same by the store's clock.
    started: SystemTime,
    /// The end of what the worker has logged.
    output: OutputTail,
    /// How long after its due time the job was claimed.
    lateness: Duration,
    delivery: DeliveryState,
    /// A client has cancelled the job.
    cancelled: bool,
    /// If the store refuses the next settle, the one before may have been recorded.
    recording: RecordingState,
}

impl RemoteJob {
    pub(super) fn new(held: Arc<HeldJob>, since: Instant, now: SystemTime) -> Self {
        let lateness = now.duration_since(held.due).unwrap_or_default();
        let (delivery, recording) = (DeliveryState::Pending, RecordingState::New);
        let output = OutputTail::default();
        RemoteJob { held, since, started: now, output, lateness, delivery, cancelled: false, recording }
    }

    pub(super) fn held(&self) -> &Arc<HeldJob> {
        &self.held
    }

    pub(super) fn id(&self) -> JobId {
        self.held.job.id
    }

    pub(super) fn claim_key(&self) -> ClaimKey {
        claim_key(&self.held)
    }

    pub(super) fn is_in(&self, queue: &str) -> bool {
        self.held.job.queue == queue
    }

    /// Returns when the job was delivered, or claimed if it has not been delivered.
    pub(super) fn since(&self) -> Instant {
        self.since
    }

    /// Marks the job as contained in a reply, and returns it with its args. Its attempt starts now.
    ///
    /// If the reply is lost, the node releases the job, so it needs the args never again.
    pub(super) fn deliver(&mut self, now: Instant) -> Arc<HeldJob> {
        self.delivery = DeliveryState::Delivered { missed_heartbeats: 0 };
        self.started += now.saturating_duration_since(self.since);
        self.since = now;
        let mut delivered = Arc::unwrap_or_clone(self.held.clone());
        let args = std::mem::take(&mut delivered.job.args);
        self.held = Arc::new(delivered.clone());
        delivered.job.args = args;
        Arc::new(delivered)
    }

    pub(super) fn is_delivered(&self) -> bool {
        self.delivery != DeliveryState::Pending
    }

    /// Records a heartbeat of the worker, which names its jobs if it reports them.
    pub(super) fn record_heartbeat(&mut self, named: Option<&[JobId]>) {
        if let DeliveryState::Delivered { missed_heartbeats } = &mut self.delivery {
            let is_missing = named.is_some_and(|named| !named.contains(&self.held.job.id));
            *missed_heartbeats = if is_missing { *missed_heartbeats + 1 } else { 0 };
        }
    }

    /// Returns whether the reply with the job was lost, as the worker does not name it.
    pub(super) fn never_arrived(&self) -> bool {
        matches!(self.delivery, DeliveryState::Delivered { missed_heartbeats: MISSED_HEARTBEATS_MAX.. })
    }

    /// Returns whether the attempt has exceeded its timeout.
    pub(super) fn is_overdue(&self, now: Instant) -> bool {
        self.is_delivered() && now.saturating_duration_since(self.since) > self.held.job.timeout
    }

    pub(super) fn cancel(&mut self) {
        self.cancelled = true;
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled
    }

    /// The reply to a settle was lost.
    pub(super) fn mark_uncertain(&mut self) {
        self.recording = RecordingState::MayBeRecorded;
    }

    /// Returns whether an earlier settle may have been recorded.
    pub(super) fn is_uncertain(&self) -> bool {
        self.recording == RecordingState::MayBeRecorded
    }

    pub(super) fn describe(&self, now: Instant) -> RunningJob {
        RunningJob::new(&self.held, now - self.since, None)
    }

    /// Adds log lines to the output of the attempt.
    pub(super) fn add_output(&mut self, lines: &[String]) {
        lines.iter().for_each(|line| self.output.push_line(line));
    }

    /// Returns the end of an attempt with its start and output.
    pub(super) fn record_attempt(&self, end: AttemptEnd) -> AttemptEnd {
        AttemptEnd { started: Some(self.started), output: self.output.clone().into_text(), ..end }
    }

    pub(super) fn timing(&self, now: Instant) -> AttemptTiming {
        AttemptTiming { lateness: self.lateness, duration: now - self.since }
    }
}
