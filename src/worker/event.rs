//! What a worker tells while it works, and its sum at the end.

use std::time::Duration;

use crate::error::Error;
use crate::job::{HeldJob, JobId, Outcome};
use crate::node::NodeId;

/// Something that happened in a worker, for whoever wants to show it.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The worker has joined under this identity and begins to claim.
    Joined {
        /// Who it is.
        node: NodeId,
    },
    /// An attempt begins.
    Started {
        /// The job and its claim.
        held: &'a HeldJob,
        /// How long after its due moment it was claimed, by the store's clock.
        lateness: Duration,
    },
    /// An outcome is recorded: it will not be lost any more.
    Settled {
        /// The job and its claim.
        held: &'a HeldJob,
        /// How it ended.
        outcome: &'a Outcome,
        /// Why it was released, where that was not its handler's own wish.
        reason: Option<&'a str>,
        /// How long the attempt ran.
        duration: Duration,
    },
    /// An outcome was refused: the job is another node's by now.
    Lost {
        /// The job.
        id: JobId,
    },
    /// Jobs of a dead node were taken back.
    TakenBack {
        /// The dead node.
        node: NodeId,
        /// How many.
        jobs: usize,
    },
    /// The store failed; the worker tries again.
    StoreFailed {
        /// What it said.
        error: &'a Error,
        /// When the worker tries again.
        retry_in: Duration,
    },
    /// The worker's loop turns. Told as often as [`Worker::alive_every`](crate::Worker::alive_every) says.
    Alive,
    /// The worker claims no more and waits for what runs.
    Stopping {
        /// How many attempts run.
        running: usize,
    },
}

/// How many attempts of a worker ended in which way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunSummary {
    /// Done.
    pub acked: u64,
    /// To be tried again.
    pub retried: u64,
    /// Given up.
    pub buried: u64,
    /// Put back without counting.
    pub released: u64,
    /// Refused: another node had the job by then.
    pub lost: u64,
    /// Not recorded when the worker had to leave, as far as it knows: the store did not answer, and these jobs may run again.
    pub unrecorded: u64,
    /// The worker was ended by a test, as if its process had been killed.
    pub crashed: bool,
}

impl RunSummary {
    /// All attempts whose outcome was recorded.
    #[must_use]
    pub fn settled(&self) -> u64 {
        self.acked + self.retried + self.buried + self.released
    }

    pub(crate) fn record(&mut self, outcome: &Outcome) {
        let field = match outcome {
            Outcome::Ack => &mut self.acked,
            Outcome::Retry { .. } => &mut self.retried,
            Outcome::Bury { .. } => &mut self.buried,
            Outcome::Release { .. } => &mut self.released,
        };
        *field += 1;
    }
}
