//! How a reported outcome becomes the outcome that the store records.
//!
//! Everything here is pure.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::accepted_kinds::AcceptedKinds;
use crate::error::{Error, Result};
use crate::job::push::Due;
use crate::job::retry::Retry;
use crate::job::{Fence, HeldJob, JobId, Outcome};
use crate::store::{AttemptEnd, AttemptTiming};
use crate::worker::DEFAULT_CRASHES_MAX;
use crate::worker::attempt;
use crate::worker::cancel::end_cancelled;
use crate::worker::ctx::check_result;

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

    /// Returns an error if no store accepts this settlement. The rules are those for handlers in this process.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Invalid`] if the result is too long or not JSON, or if the delay exceeds its maximum.
    ///
    /// # Examples
    ///
    /// ```
    /// use duly::worker::remote::{ReportedOutcome, Settlement};
    /// use duly::{Fence, JobId};
    ///
    /// let ack = Settlement::new(JobId::fresh(), Fence(7), ReportedOutcome::Ack).result("42".to_owned());
    /// assert!(ack.check().is_ok());
    /// ```
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

/// Returns the outcome to record, by the rules that apply to every attempt. `cancelled` is that of a cancelled job
/// without an error.
pub(super) fn decide_outcome(held: &HeldJob, cancelled: Option<Outcome>, reported: ReportedOutcome) -> Outcome {
    let outcome = match reported {
        ReportedOutcome::Ack => Outcome::Ack,
        ReportedOutcome::Retry { after, error } => attempt::retry_or_bury(held, Retry::default(), after, error),
        ReportedOutcome::Bury { error } => Outcome::Bury { error },
        ReportedOutcome::Release { after } => Outcome::Release { after },
    };
    match cancelled {
        Some(cancelled) => end_cancelled(&cancelled, outcome),
        None => outcome,
    }
}

/// Returns how a job ends that was just claimed and must not be delivered; `None` if it can be delivered.
pub(super) fn reject_claimed(
    held: &Arc<HeldJob>,
    kinds: &AcceptedKinds,
    now: SystemTime,
    keep_dead: Duration,
) -> Option<AttemptEnd> {
    if kinds.contains(&held.job.kind) && !held.job.kind.starts_with(crate::job::push::RESERVED_KIND_PREFIX) {
        return attempt::check_crash_limit(held, DEFAULT_CRASHES_MAX)
            .map(|outcome| end_attempt(held, None, outcome, keep_dead));
    }
    let outcome = attempt::defer_unknown_kind(now.duration_since(held.job.pushed).unwrap_or_default());
    Some(AttemptEnd { deferred: true, ..end_attempt(held, None, outcome, keep_dead) })
}

/// Returns the end of an attempt as the store records it; with its timing if the attempt ran.
pub(super) fn end_attempt(
    held: &Arc<HeldJob>,
    timing: Option<AttemptTiming>,
    outcome: Outcome,
    keep_dead: Duration,
) -> AttemptEnd {
    AttemptEnd { timing, ..AttemptEnd::new(held.clone(), outcome, keep_dead) }
}
