//! The attempts under way in one worker.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Context;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::clock;
use crate::job::{Fence, Held, JobId, Outcome};
use crate::peers::Running as Told;
use crate::store::Note;
use crate::worker::attempt::{Attempt, CANCELLED, Ended, SUSPECT_CRASHES};
use crate::worker::handler::{Handlers, Own};

/// How long a job waits whose attempt ended in a way that says nothing about it.
const BROKEN: Duration = Duration::from_secs(1);

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
    /// Since when it has been ours, as far as we know.
    pub(super) since: Instant,
    /// It was sent before, and the answer was lost: it may have been recorded then.
    pub(super) doubted: bool,
}

impl Finished {
    /// An outcome of a job that was not run here, now.
    pub(super) fn without_a_run(lane: usize, held: Held, outcome: Outcome) -> Self {
        Finished {
            lane,
            held: Arc::new(held),
            outcome,
            why: None,
            took: Duration::ZERO,
            late: None,
            note: None,
            result: None,
            again: false,
            since: clock::tick(),
            doubted: false,
        }
    }
}

/// An attempt under way.
struct Running {
    /// Which of all attempts of this worker it is: its place is taken by another one after it.
    no: u64,
    lane: usize,
    own: Arc<Own>,
    task: JoinHandle<()>,
    started: Instant,
    late: Duration,
}

impl Running {
    fn held(&self) -> &Held {
        &self.own.held
    }

    /// A job that somebody has cancelled does not come back, however its attempt has ended.
    fn unwanted_or(&self, ended: Ended) -> Ended {
        if self.own.cancel.is_for_good() { (Outcome::bury(CANCELLED), None) } else { ended }
    }

    fn finish(self, (outcome, why): Ended) -> Finished {
        self.own.ended.store(true, Ordering::SeqCst);
        let took = clock::tick() - self.started;
        Finished {
            lane: self.lane,
            held: self.own.held.clone(),
            outcome,
            why,
            took,
            late: Some(self.late),
            note: None,
            result: None,
            again: false,
            since: self.started,
            doubted: false,
        }
    }
}

/// Where attempts tell how they ended. A set of tasks would do it too, at several times the cost for each.
#[derive(Default)]
struct Reports {
    told: Mutex<VecDeque<Report>>,
    news: Notify,
    /// How many were started, and have not had their first turn yet.
    fresh: AtomicUsize,
}

/// Place and number of an attempt, and how it ended.
type Report = (usize, u64, Ended);

impl Reports {
    fn told(&self) -> MutexGuard<'_, VecDeque<Report>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, report: Report) {
        let mut told = self.told();
        told.push_back(report);
        let first = told.len() == 1;
        drop(told);
        if first {
            self.news.notify_one();
        }
    }
}

/// An attempt's promise to tell how it ended, kept also if its task does not live that long.
struct Promise {
    reports: Arc<Reports>,
    at: usize,
    no: u64,
    fresh: bool,
    kept: bool,
}

impl Promise {
    /// The attempt has had its first turn.
    fn begun(&mut self) {
        if std::mem::take(&mut self.fresh) {
            self.reports.fresh.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn keep(mut self, ended: Ended) {
        self.kept = true;
        self.reports.tell((self.at, self.no, ended));
    }
}

impl Drop for Promise {
    /// The handler's panics are caught; this is one of something that it left behind, or an abort of ours.
    fn drop(&mut self) {
        self.begun();
        if !self.kept {
            let ended = (Outcome::release(BROKEN), Some("its task ended without an outcome"));
            self.reports.tell((self.at, self.no, ended));
        }
    }
}

/// The attempts under way in one worker, each a task of its own.
#[derive(Default)]
pub(super) struct Crew {
    /// By place.
    running: Vec<Option<Running>>,
    free: Vec<usize>,
    started: u64,
    reports: Arc<Reports>,
    /// Reports that were taken from there and not looked at yet.
    taken: VecDeque<Report>,
}

impl Crew {
    pub(super) fn start(&mut self, lane: usize, late: Duration, attempt: Attempt, handlers: Arc<Handlers>) {
        let at = self.free.pop().unwrap_or_else(|| {
            self.running.push(None);
            self.running.len() - 1
        });
        self.started += 1;
        let (no, own, started) = (self.started, attempt.ctx.own.clone(), clock::tick());
        self.reports.fresh.fetch_add(1, Ordering::SeqCst);
        let promise = Promise { reports: self.reports.clone(), at, no, fresh: true, kept: false };
        let task = tokio::spawn(drive(attempt, handlers, promise));
        self.running[at] = Some(Running { no, lane, own, task, started, late });
    }

    pub(super) fn len(&self) -> usize {
        self.running.len() - self.free.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many were started, and have not had their first turn yet: most handlers need no other.
    pub(super) fn fresh(&self) -> usize {
        self.reports.fresh.load(Ordering::SeqCst)
    }

    fn all(&self) -> impl Iterator<Item = &Running> {
        self.running.iter().flatten()
    }

    /// The next attempt that ends; never resolves while there is none.
    pub(super) async fn next(&mut self) -> Finished {
        loop {
            if let Some(finished) = self.try_next() {
                return finished;
            }
            self.reports.news.notified().await;
        }
    }

    /// An attempt that has ended already.
    pub(super) fn try_next(&mut self) -> Option<Finished> {
        loop {
            if self.taken.is_empty() {
                std::mem::swap(&mut self.taken, &mut *self.reports.told());
            }
            let (at, no, ended) = self.taken.pop_front()?;
            // One that was abandoned is told of too, perhaps after another has taken its place.
            if let Some(running) = self.running[at].take_if(|running| running.no == no) {
                self.free.push(at);
                let ended = running.unwanted_or(ended);
                return Some(running.finish(ended));
            }
        }
    }

    /// How long a job has been under way that may take this process down, if there is one.
    pub(super) fn under_suspicion(&self) -> Option<Duration> {
        let suspect = self.all().find(|running| running.held().crashes >= SUSPECT_CRASHES);
        suspect.map(|suspect| clock::tick() - suspect.started)
    }

    /// Which jobs of a lane are under way.
    pub(super) fn holds(&self, lane: usize) -> Vec<(JobId, Fence)> {
        let of_lane = self.all().filter(|running| running.lane == lane);
        of_lane.map(|running| (running.held().job.id, running.held().fence)).collect()
    }

    /// Tells the attempt at this job that it has lost it. Answers whether that was news.
    pub(super) fn cancel(&self, job: (JobId, Fence)) -> bool {
        let found = self.all().find(|running| (running.held().job.id, running.held().fence) == job);
        found.is_some_and(|running| running.own.cancel.say())
    }

    /// What is under way, for those who look.
    pub(super) fn told(&self) -> Vec<Told> {
        let told = |running: &Running| {
            let (held, progress) = (running.held(), f64::from_bits(running.own.progress.load(Ordering::Relaxed)));
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
        self.all().map(told).collect()
    }

    /// Tells the attempt at this job that nobody wants it any more. Answers whether there is one.
    pub(super) fn cancel_for_good(&self, id: JobId) -> bool {
        let mut found = false;
        for running in self.all().filter(|running| running.held().job.id == id) {
            running.own.cancel.say_for_good();
            found = true;
        }
        found
    }

    /// Ends all attempts where they are, to be run again elsewhere; those that have told how they ended, as they did.
    pub(super) fn abandon(&mut self) -> Vec<Finished> {
        let mut finished: Vec<Finished> = std::iter::from_fn(|| self.try_next()).collect();
        let left: Vec<Running> = self.running.iter_mut().filter_map(Option::take).collect();
        self.free = (0..self.running.len()).collect();
        let abandoned = left.into_iter().map(|running| {
            running.own.cancel.say();
            running.task.abort();
            let ended = running.unwanted_or((Outcome::release(Duration::ZERO), Some("its grace time was over")));
            running.finish(ended)
        });
        finished.extend(abandoned);
        finished
    }
}

async fn drive(attempt: Attempt, handlers: Arc<Handlers>, mut promise: Promise) {
    let ended = {
        let mut run = pin!(attempt.run(handlers));
        let turn = |cx: &mut Context<'_>| {
            let polled = run.as_mut().poll(cx);
            promise.begun();
            polled
        };
        poll_fn(turn).await
    };
    promise.keep(ended);
}

impl Drop for Crew {
    /// A worker that is dropped runs no more attempts.
    fn drop(&mut self) {
        self.all().for_each(|running| running.task.abort());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::tests::held;

    /// Puts an attempt among those under way that runs until it is aborted.
    fn run(crew: &mut Crew, no: u64) {
        let own = Arc::new(Own::new(held("mail"), std::time::SystemTime::UNIX_EPOCH));
        let task = tokio::spawn(std::future::pending());
        crew.running.push(Some(Running { no, lane: 0, own, task, started: clock::tick(), late: Duration::ZERO }));
    }

    #[tokio::test]
    async fn what_has_told_how_it_ended_is_not_run_again_when_the_grace_time_is_over() {
        let mut crew = Crew::default();
        (0..3).for_each(|no| run(&mut crew, no));
        // Told at the very moment, and not looked at yet.
        crew.reports.tell((1, 1, (Outcome::Ack, None)));
        let outcomes: Vec<Outcome> = crew.abandon().into_iter().map(|finished| finished.outcome).collect();
        let released = Outcome::release(Duration::ZERO);
        assert_eq!(outcomes, [Outcome::Ack, released.clone(), released]);
        assert!(crew.is_empty());
    }

    /// One is made for every attempt, and the C library's allocator is several times as slow beyond about a kilobyte.
    #[test]
    fn what_drives_an_attempt_is_small() {
        fn size_of_future<F: Future>(_: impl Fn(Attempt, Arc<Handlers>, Promise) -> F) -> usize {
            size_of::<F>()
        }
        let size = size_of_future(drive);
        assert!(size <= 800, "{size} bytes");
    }
}
