//! Events of a running worker, and the summary of its run.

use std::time::Duration;

use crate::error::Error;
use crate::job::{HeldJob, JobId, Outcome};
use crate::node::NodeId;

/// Something that happened in a worker. [`Worker::on_event`](crate::Worker::on_event) has an example.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The worker has joined and begins to claim.
    #[non_exhaustive]
    Joined {
        /// The identity it runs under.
        node: NodeId,
    },
    /// An attempt has started.
    #[non_exhaustive]
    Started {
        /// The job and its claim.
        held: &'a HeldJob,
        /// How long after its due time the job was claimed, by the store's clock.
        lateness: Duration,
    },
    /// An outcome was recorded durably.
    #[non_exhaustive]
    Settled {
        /// The job and its claim.
        held: &'a HeldJob,
        /// The outcome.
        outcome: &'a Outcome,
        /// Why the job was released, if its handler did not decide that.
        reason: Option<&'a str>,
        /// The job was cancelled and did not succeed: it has ended, whatever the outcome is.
        cancelled: bool,
        /// How long the attempt ran.
        duration: Duration,
    },
    /// An outcome was rejected, or will be: another node has the job.
    #[non_exhaustive]
    Lost {
        /// The job.
        id: JobId,
    },
    /// Jobs of a dead node were taken back.
    #[non_exhaustive]
    TakenBack {
        /// The dead node.
        node: NodeId,
        /// The number of jobs.
        jobs: usize,
    },
    /// A request to the store failed; the worker repeats it.
    #[non_exhaustive]
    StoreFailed {
        /// The error.
        error: &'a Error,
        /// The delay before the next try.
        retry_in: Duration,
    },
    /// The run loop is turning. Emitted at the interval set by
    /// [`Worker::alive_interval`](crate::Worker::alive_interval).
    Alive,
    /// The worker has stopped claiming and waits for running attempts.
    #[non_exhaustive]
    Stopping {
        /// The number of running attempts.
        running: usize,
    },
}

/// The number of attempts of a worker by outcome.
///
/// # Examples
///
/// ```
/// # use duly::{Ctx, Duly, Push};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> duly::Result<()> {
/// # let duly = Duly::open(":memory:").await?;
/// duly.push(Push::new("mail", "{}")).await?;
/// let summary = duly.worker().on_kind("mail", async |_: Ctx| ()).drain().await?;
/// assert_eq!((summary.acked, summary.retried), (1, 0));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunSummary {
    /// Succeeded.
    pub acked: u64,
    /// Failed and scheduled for a retry.
    pub retried: u64,
    /// Buried: the job is dead.
    pub buried: u64,
    /// Released without counting as an attempt.
    pub released: u64,
    /// Unsuccessful attempts of cancelled jobs. They are in none of the other numbers.
    pub cancelled: u64,
    /// Rejected, because another node had taken the job over.
    pub lost: u64,
    /// Not known to be recorded when the worker left, because the store did not reply. These jobs may run again.
    pub unrecorded: u64,
    /// The worker was stopped by a simulated crash; see [`Worker::crash_at`](crate::Worker::crash_at).
    pub crashed: bool,
}

impl RunSummary {
    /// Returns the number of recorded outcomes.
    #[must_use]
    pub fn settled(&self) -> u64 {
        self.acked + self.retried + self.buried + self.released + self.cancelled
    }

    pub(crate) fn record(&mut self, outcome: &Outcome, cancelled: bool) {
        let field = match outcome {
            _ if cancelled => &mut self.cancelled,
            Outcome::Ack => &mut self.acked,
            Outcome::Retry { .. } => &mut self.retried,
            Outcome::Bury { .. } => &mut self.buried,
            Outcome::Release { .. } => &mut self.released,
        };
        *field += 1;
    }
}
