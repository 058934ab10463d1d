//! The attempts under way in one worker.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::attempt::{Attempt, CANCELLED, Ended};
use crate::clock;
use crate::hall::Running as Told;
use crate::handler::{Ctx, Handlers};
use crate::job::{Fence, Held, JobId, Outcome};
use crate::store::Note;

/// How long a job waits whose attempt ended in a way that says nothing about it.
const BROKEN: Duration = Duration::from_secs(1);

/// A job that so many processes have died with may be the cause; after one death it may as well be bad luck.
pub(super) const SUSPECT_CRASHES: u32 = 2;

/// An attempt that has ended and is not recorded yet.
pub(super) struct Finished {
    pub(super) lane: usize,
    pub(super) held: Arc<Held>,
    pub(super) outcome: Outcome,
    /// Why it was released, where that was not its handler's own wish.
    pub(super) why: Option<&'static str>,
    pub(super) took: Duration,
    /// How long after its due moment it started; `None` if it was not.
    pub(super) late: Option<Duration>,
    /// What it has said and nobody has sent yet, and what it gives.
    pub(super) note: Option<Note>,
    pub(super) result: Option<String>,
    /// It was recorded before, and the store has lost that.
    pub(super) again: bool,
}

/// An attempt under way.
struct Running {
    lane: usize,
    held: Arc<Held>,
    abort: AbortHandle,
    cancelled: CancellationToken,
    unwanted: CancellationToken,
    progress: Arc<AtomicU64>,
    started: Instant,
    late: Duration,
}

impl Running {
    /// A job that somebody has cancelled does not come back, however its attempt has ended.
    fn unwanted_or(&self, ended: Ended) -> Ended {
        if self.unwanted.is_cancelled() { (Outcome::bury(CANCELLED), None) } else { ended }
    }

    fn finish(self, (outcome, why): Ended) -> Finished {
        let took = clock::tick() - self.started;
        Finished {
            lane: self.lane,
            held: self.held,
            outcome,
            why,
            took,
            late: Some(self.late),
            note: None,
            result: None,
            again: false,
        }
    }
}

/// The attempts under way in one worker, each a task of its own.
#[derive(Default)]
pub(super) struct Crew {
    tasks: JoinSet<Ended>,
    running: HashMap<Id, Running>,
}

impl Crew {
    pub(super) fn start(&mut self, lane: usize, late: Duration, attempt: Attempt, handlers: Arc<Handlers>) {
        let Ctx { held, cancelled, unwanted, progress, .. } = attempt.ctx.clone();
        let abort = self.tasks.spawn(attempt.run(handlers));
        let running = Running { lane, held, abort, cancelled, unwanted, progress, started: clock::tick(), late };
        self.running.insert(running.abort.id(), running);
    }

    pub(super) fn len(&self) -> usize {
        self.running.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// The next attempt that ends; never resolves while there is none.
    pub(super) async fn next(&mut self) -> Finished {
        while let Some(ended) = self.tasks.join_next_with_id().await {
            if let Some(finished) = self.ended(ended) {
                return finished;
            }
        }
        std::future::pending().await
    }

    /// An attempt that has ended already.
    pub(super) fn try_next(&mut self) -> Option<Finished> {
        while let Some(ended) = self.tasks.try_join_next_with_id() {
            if let Some(finished) = self.ended(ended) {
                return Some(finished);
            }
        }
        None
    }

    fn ended(&mut self, ended: Result<(Id, Ended), JoinError>) -> Option<Finished> {
        let (id, ended) = match ended {
            Ok(ended) => ended,
            // The handler's panics are caught; this is one of something that it left behind, or an abort of ours.
            Err(error) => (error.id(), (Outcome::release(BROKEN), Some("its task ended without an outcome"))),
        };
        let running = self.running.remove(&id)?;
        let ended = running.unwanted_or(ended);
        Some(running.finish(ended))
    }

    /// Whether a job is under way that may take this process down.
    pub(super) fn has_suspect(&self) -> bool {
        self.running.values().any(|running| running.held.crashes >= SUSPECT_CRASHES)
    }

    /// Which jobs of a lane are under way.
    pub(super) fn holds(&self, lane: usize) -> Vec<(JobId, Fence)> {
        let of_lane = self.running.values().filter(|running| running.lane == lane);
        of_lane.map(|running| (running.held.job.id, running.held.fence)).collect()
    }

    /// Tells the attempt at this job that it has lost it. Answers whether that was news.
    pub(super) fn cancel(&self, job: (JobId, Fence)) -> bool {
        let mut all = self.running.values();
        let found = all.find(|running| (running.held.job.id, running.held.fence) == job);
        found.is_some_and(|running| {
            let news = !running.cancelled.is_cancelled();
            running.cancelled.cancel();
            news
        })
    }

    /// What is under way, for those who look.
    pub(super) fn told(&self) -> Vec<Told> {
        let told = |running: &Running| {
            let (held, progress) = (&running.held, f64::from_bits(running.progress.load(Ordering::Relaxed)));
            Told {
                id: held.job.id,
                queue: held.job.queue.clone(),
                kind: held.job.kind.clone(),
                attempt: held.attempt(),
                fence: held.fence,
                running_ms: u64::try_from((clock::tick() - running.started).as_millis()).unwrap_or(u64::MAX),
                progress: Some(progress).filter(|progress| !progress.is_nan()),
            }
        };
        self.running.values().map(told).collect()
    }

    /// Tells the attempt at this job that nobody wants it any more. Answers whether there is one.
    pub(super) fn cancel_for_good(&self, id: JobId) -> bool {
        let mut found = false;
        for running in self.running.values().filter(|running| running.held.job.id == id) {
            running.unwanted.cancel();
            running.cancelled.cancel();
            found = true;
        }
        found
    }

    /// Ends all attempts where they are, to be run again elsewhere.
    pub(super) fn abandon(&mut self) -> Vec<Finished> {
        let running = std::mem::take(&mut self.running).into_values();
        let abandoned = running.map(|running| {
            running.cancelled.cancel();
            running.abort.abort();
            let ended = running.unwanted_or((Outcome::release(Duration::ZERO), Some("its grace time was over")));
            running.finish(ended)
        });
        abandoned.collect()
    }
}
