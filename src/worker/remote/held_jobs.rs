//! The jobs that a remote worker holds, and how a reported outcome becomes the outcome that the store records.
//!
//! Everything here is pure, except for the time.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use crate::error::{Error, Result};
use crate::job::push::Due;
use crate::job::retry::Retry;
use crate::job::{Fence, HeldJob, JobId, Outcome};
use crate::store::{AttemptEnd, AttemptTiming};
use crate::worker::DEFAULT_CRASHES_MAX;
use crate::worker::attempt::{self, CANCELLED_ERROR};
use crate::worker::handler::check_result;

/// A claimed job that the worker has, or is about to receive.
pub(super) struct RemoteJob {
    pub(super) held: Arc<HeldJob>,
    pub(super) since: Instant,
    /// The position in the order of arrival.
    pub(super) sequence: u64,
    /// How long after its due time the job was claimed.
    pub(super) lateness: Duration,
    /// A reply to the worker has contained the job.
    pub(super) delivered: bool,
    /// The number of consecutive heartbeats that did not name the job after it was delivered.
    pub(super) missed_heartbeats: u32,
    /// A client has cancelled the job.
    pub(super) cancelled: bool,
    /// The reply to a settle was lost: if the store refuses the next one, the first may have been recorded.
    pub(super) uncertain: bool,
}

impl RemoteJob {
    pub(super) fn new(held: Arc<HeldJob>, since: Instant, now: SystemTime) -> Self {
        let lateness = now.duration_since(held.due).unwrap_or_default();
        RemoteJob {
            held,
            since,
            sequence: 0,
            lateness,
            delivered: false,
            missed_heartbeats: 0,
            cancelled: false,
            uncertain: false,
        }
    }

    /// Returns whether the attempt has exceeded its timeout.
    pub(super) fn is_overdue(&self, now: Instant) -> bool {
        self.delivered && now.saturating_duration_since(self.since) > self.held.job.timeout
    }
}

/// The outcome that a worker reports for an attempt.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ReportedOutcome {
    /// The job is done.
    Ack,
    /// The attempt failed and counts.
    Retry {
        /// The delay before the next attempt; `None` uses the job's own backoff.
        after: Option<Duration>,
        /// Why the attempt failed.
        error: String,
    },
    /// The job failed for good.
    Bury {
        /// Why the job failed.
        error: String,
    },
    /// The job goes back to its queue, and the attempt does not count.
    Release {
        /// The delay before the job is due again.
        after: Duration,
    },
}

/// A report of how one attempt ended.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settlement {
    /// The job.
    pub id: JobId,
    /// The fence under which the worker claimed the job.
    pub fence: Fence,
    /// How the attempt ended.
    pub outcome: ReportedOutcome,
    /// The result of an acknowledged job, as JSON text.
    pub result: Option<String>,
}

impl Settlement {
    /// Returns the report of an attempt that ended this way.
    #[must_use]
    pub fn new(id: JobId, fence: Fence, outcome: ReportedOutcome) -> Self {
        Settlement { id, fence, outcome, result: None }
    }

    /// Sets the result of an acknowledged job, as JSON text.
    #[must_use]
    pub fn result(self, result: impl Into<Option<String>>) -> Self {
        Settlement { result: result.into(), ..self }
    }

    /// Returns an error if no store accepts this settlement: the result is too long, or the delay exceeds its maximum.
    ///
    /// The rules are those for handlers in this process.
    pub fn check(&self) -> Result<()> {
        if let Some(result) = &self.result {
            check_result(result)?;
        }
        let after = match self.outcome {
            ReportedOutcome::Retry { after, .. } => after,
            ReportedOutcome::Release { after } => Some(after),
            ReportedOutcome::Ack | ReportedOutcome::Bury { .. } => None,
        };
        after.map_or(Ok(()), |after| Due::After(after).check()).map_err(|error| match error {
            Error::Invalid { reason, .. } => Error::Invalid { field: "after_ms", reason },
            other => other,
        })
    }
}

/// Returns the outcome to record, by the rules that apply to every attempt.
pub(super) fn decide_outcome(held: &HeldJob, cancelled: bool, reported: ReportedOutcome) -> Outcome {
    match reported {
        // A cancelled job ends dead, whatever its worker reports.
        _ if cancelled => Outcome::bury(CANCELLED_ERROR),
        ReportedOutcome::Ack => Outcome::Ack,
        ReportedOutcome::Retry { after, error } => attempt::retry_or_bury(held, Retry::default(), after, error),
        ReportedOutcome::Bury { error } => Outcome::Bury { error },
        ReportedOutcome::Release { after } => Outcome::Release { after },
    }
}

/// Returns how a job ends that was just claimed and must not be delivered; `None` if it can be delivered.
pub(super) fn reject_claimed(
    held: &Arc<HeldJob>,
    kinds: &[String],
    now: SystemTime,
    keep_dead: Duration,
) -> Option<AttemptEnd> {
    let has_handler = kinds.is_empty() || kinds.contains(&held.job.kind);
    if has_handler && !held.job.kind.starts_with(crate::job::push::RESERVED_KIND_PREFIX) {
        return attempt::check_crash_limit(held, DEFAULT_CRASHES_MAX)
            .map(|outcome| end_attempt(held, None, outcome, keep_dead));
    }
    let outcome = attempt::defer_unknown_kind(now.duration_since(held.job.pushed).unwrap_or_default());
    Some(AttemptEnd { deferred: true, ..end_attempt(held, None, outcome, keep_dead) })
}

/// Returns the end of an attempt as the store records it; `job` supplies the timing if the attempt ran.
pub(super) fn end_attempt(
    held: &Arc<HeldJob>,
    job: Option<&RemoteJob>,
    outcome: Outcome,
    keep_dead: Duration,
) -> AttemptEnd {
    let timing =
        job.map(|job| AttemptTiming { lateness: job.lateness, duration: crate::clock::monotonic_now() - job.since });
    AttemptEnd { timing, ..AttemptEnd::new(held.clone(), outcome, keep_dead) }
}
