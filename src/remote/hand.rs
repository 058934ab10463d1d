//! What a remote worker holds, and how what it says of a job becomes an outcome. Pure but for the time.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use crate::error::{Error, Result};
use crate::job::push::{Due, check_due};
use crate::job::retry::Retry;
use crate::job::{Fence, Held, JobId, Outcome};
use crate::store::{End, Timing};
use crate::worker::MAX_CRASHES;
use crate::worker::attempt;
use crate::worker::attempt::CANCELLED;
use crate::worker::handler::check_result;

/// A job that was given to a worker, or is about to be.
pub(super) struct Hand {
    pub(super) held: Arc<Held>,
    pub(super) since: Instant,
    /// In which order it came.
    pub(super) no: u64,
    /// How long after its due moment it was claimed.
    pub(super) late: Duration,
    /// Its worker has been told of it.
    pub(super) given: bool,
    /// How many beats in a row did not name it, although it was given before.
    pub(super) unnamed: u32,
    /// Somebody wants it to end for good.
    pub(super) unwanted: bool,
    /// The answer to a settle was lost: what is refused next may have been recorded.
    pub(super) in_doubt: bool,
}

impl Hand {
    pub(super) fn new(held: Held, since: Instant, now: SystemTime) -> Self {
        let late = now.duration_since(held.due).unwrap_or_default();
        Hand { held: Arc::new(held), since, no: 0, late, given: false, unnamed: 0, unwanted: false, in_doubt: false }
    }

    /// Its attempt has taken longer than it may.
    pub(super) fn is_overdue(&self, now: Instant) -> bool {
        self.given && now.saturating_duration_since(self.since) > self.held.job.timeout
    }
}

/// What a worker says of a job.
#[derive(Clone, Debug)]
pub(crate) enum Said {
    Ack,
    /// It has failed; the delay is the job's own unless one is given.
    Retry {
        after: Option<Duration>,
        error: String,
    },
    Bury {
        error: String,
    },
    Release {
        after: Duration,
    },
}

/// Which job, under which claim, and what of it.
#[derive(Clone, Debug)]
pub(crate) struct Settling {
    pub(crate) id: JobId,
    pub(crate) fence: Fence,
    pub(crate) said: Said,
    /// What an ack gives, as JSON text.
    pub(crate) result: Option<String>,
}

impl Settling {
    /// Refuses what no store keeps, by the rules that hold for handlers here: a result that is too long, a due moment too far off.
    pub(crate) fn check(&self) -> Result<()> {
        if let Some(result) = &self.result {
            check_result(result)?;
        }
        let after = match self.said {
            Said::Retry { after, .. } => after,
            Said::Release { after } => Some(after),
            Said::Ack | Said::Bury { .. } => None,
        };
        after.map_or(Ok(()), |after| check_due(Due::After(after))).map_err(|error| match error {
            Error::Invalid { reason, .. } => Error::Invalid { field: "after_ms", reason },
            other => other,
        })
    }
}

/// The outcome of what a worker says, by the rules that hold for every attempt.
pub(super) fn judge(held: &Held, unwanted: bool, said: Said) -> Outcome {
    match said {
        // Whatever it came to: somebody wanted it to end.
        _ if unwanted => Outcome::bury(CANCELLED),
        Said::Ack => Outcome::Ack,
        Said::Retry { after, error } => attempt::again(held, Retry::default(), after, error),
        Said::Bury { error } => Outcome::Bury { error },
        Said::Release { after } => Outcome::Release { after },
    }
}

/// How a job ends that was just claimed, before any worker sees it, if it does.
pub(super) fn refused(held: &Held, kinds: &[String], now: SystemTime, keep_dead: Duration) -> Option<End> {
    let known = kinds.is_empty() || kinds.contains(&held.job.kind);
    if known && !held.job.kind.starts_with(crate::job::push::OWN_KINDS) {
        return attempt::exhausted(held, MAX_CRASHES).map(|outcome| end(held, None, outcome, keep_dead));
    }
    let outcome = attempt::unknown_kind(now.duration_since(held.job.pushed).unwrap_or_default());
    Some(End { put_off: true, ..end(held, None, outcome, keep_dead) })
}

/// How an attempt ended, for the store; `hand` tells when it ran, if it did.
pub(super) fn end(held: &Held, hand: Option<&Hand>, outcome: Outcome, keep_dead: Duration) -> End {
    let keep = match outcome {
        Outcome::Bury { .. } => keep_dead,
        _ => held.job.keep,
    };
    let timing = hand.map(|hand| Timing { lateness: hand.late, duration: crate::clock::tick() - hand.since });
    End { timing, ..End::of(held, outcome, keep) }
}
