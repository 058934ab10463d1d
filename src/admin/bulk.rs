//! Many jobs at once, by filter: counted first, then changed in bounded steps, with a word on each that could not be.

use std::collections::HashSet;

use serde::Serialize;

use crate::client::Duly;
use crate::error::{Error, Result};
use crate::job::filter::{Filter, Term};
use crate::job::push::Due;
use crate::job::{JobId, Record, State};
use crate::store::{CHANGE_MAX, Moved, PAGE_MAX, Target};

/// Most jobs that one bulk change changes: then it ends, and says that there may be more.
pub const BULK_MAX: usize = 1_000_000;
/// Most jobs that a count looks at, unless it is told otherwise.
pub const COUNT_LOOKED_MAX: u64 = 1_000_000;
/// Cancels under way at a time.
const CANCELS: usize = 16;
/// Most errors that are told one by one.
const ERRORS_MAX: usize = 20;

/// How many jobs a filter means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Counted {
    /// So many, as far as was looked.
    pub matching: u64,
    /// So many jobs were looked at; 0 where the answer is kept ready.
    pub looked: u64,
    /// All were looked at that could match.
    pub whole: bool,
}

/// What a bulk change has done so far, and what it could not do.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Done {
    /// Jobs looked at.
    pub looked: u64,
    /// Jobs that the filter means.
    pub matching: u64,
    /// Jobs changed.
    pub done: u64,
    /// Left alone: they were running.
    pub running: u64,
    /// Left alone: their queue is moving to another store.
    pub moving: u64,
    /// Left alone: another job has their unique key now.
    pub existing: u64,
    /// Left alone: they were gone, or in another state, when their turn came.
    pub changed: u64,
    /// Not cancelled, each for a reason of its own: the first of them.
    pub errors: Vec<(JobId, String)>,
    /// How many such there were.
    pub failed: u64,
    /// It ended at its maximum: there may be more.
    pub more: bool,
}

enum What {
    Remove,
    Reschedule(Due),
    Cancel,
}

type OnProgress<'p> = Box<dyn FnMut(&Done) + Send + Sync + 'p>;

/// A change to many jobs, to be [`run`](Bulk::run).
#[must_use = "call `run`"]
pub struct Bulk<'p> {
    duly: Duly,
    filter: Filter,
    what: What,
    progress: Option<OnProgress<'p>>,
}

impl Duly {
    /// How many jobs a filter means. Kept ready for queue and state; else jobs are looked through, a million at most.
    pub async fn count(&self, filter: &Filter) -> Result<Counted> {
        self.count_up_to(filter, COUNT_LOOKED_MAX).await
    }

    /// The same, with at most so many jobs looked at.
    pub async fn count_up_to(&self, filter: &Filter, looked_max: u64) -> Result<Counted> {
        let plain = Filter { queue: filter.queue.clone(), state: filter.state, ..Filter::default() };
        if *filter == (Filter { limit: filter.limit, failures: filter.failures, ..plain }) {
            let counts = self.counts().await?.into_iter();
            let of_queue = counts.filter(|c| filter.queue.as_ref().is_none_or(|queue| *queue == c.queue));
            let states: &[State] = filter.state.as_slice();
            let states = if states.is_empty() { &State::ALL[..] } else { states };
            let matching = of_queue.map(|c| states.iter().map(|state| c.of(*state)).sum::<u64>()).sum();
            return Ok(Counted { matching, looked: 0, whole: true });
        }
        let mut counted = Counted::default();
        let mut filter = self.resolved(filter)?;
        filter.limit = PAGE_MAX;
        loop {
            let page = self.store.list(filter.clone()).await?;
            counted.matching += page.jobs.len() as u64;
            counted.looked += page.looked;
            filter.cursor = page.next;
            counted.whole = filter.cursor.is_none();
            if counted.whole || counted.looked >= looked_max {
                return Ok(counted);
            }
        }
    }

    /// Deletes all jobs that a filter means and that are not running.
    pub fn remove_all<'p>(&self, filter: Filter) -> Bulk<'p> {
        self.bulk(filter, What::Remove)
    }

    /// Gives all jobs that a filter means and that are not running a new due moment; dead ones start over, and so do done ones,
    /// which only a filter with `state:done` means.
    pub fn reschedule_all<'p>(&self, filter: Filter, due: Due) -> Bulk<'p> {
        self.bulk(filter, What::Reschedule(due))
    }

    /// Cancels all running jobs that a filter means.
    pub fn cancel_all<'p>(&self, filter: Filter) -> Bulk<'p> {
        self.bulk(filter, What::Cancel)
    }

    /// Deletes all jobs of a queue that are not running: waiting, done and dead ones.
    pub fn clear<'p>(&self, queue: impl Into<String>) -> Bulk<'p> {
        self.remove_all(Filter { queue: Some(queue.into()), ..Filter::default() })
    }

    fn bulk<'p>(&self, filter: Filter, what: What) -> Bulk<'p> {
        Bulk { duly: self.clone(), filter, what, progress: None }
    }
}

impl<'p> Bulk<'p> {
    /// Tells how far it has come, after each step.
    pub fn on_progress(mut self, progress: impl FnMut(&Done) + Send + Sync + 'p) -> Self {
        self.progress = Some(Box::new(progress));
        self
    }

    /// How many jobs are meant, without changing any.
    pub async fn dry_run(&self) -> Result<Counted> {
        self.duly.count(&self.meant()).await
    }

    /// Changes them, step by step. Jobs that are pushed after it began are left alone, and none is changed twice.
    ///
    /// If the store fails half-way what was changed stays changed: the same change may be started again.
    pub async fn run(mut self) -> Result<Done> {
        if let What::Reschedule(due) = self.what {
            due.check()?;
        }
        let begun = self.duly.store.now();
        let mut filter = self.duly.resolved(&self.meant())?;
        filter.limit = CHANGE_MAX;
        let mut seen: HashSet<JobId> = HashSet::new();
        let mut done = Done::default();
        loop {
            let page = self.duly.store.list(filter.clone()).await?;
            done.looked += page.looked;
            let mut jobs = page.jobs;
            jobs.retain(|record| record.job.pushed <= begun && seen.insert(record.job.id));
            done.matching += jobs.len() as u64;
            self.change(&jobs, &mut done).await?;
            if let Some(progress) = &mut self.progress {
                progress(&done);
            }
            filter.cursor = page.next;
            done.more = filter.cursor.is_some();
            if !done.more || seen.len() >= BULK_MAX {
                return Ok(done);
            }
        }
    }

    /// What is cancelled runs. What is done is not run again unless somebody says so. Else the filter means what it says.
    fn meant(&self) -> Filter {
        let mut filter = Filter { cursor: None, failures: false, ..self.filter.clone() };
        match (&self.what, filter.state) {
            (What::Cancel, None) => filter.state = Some(State::Running),
            (What::Reschedule(_), None) => filter.not.push(Term::State(State::Done)),
            _ => {}
        }
        filter
    }

    async fn change(&self, jobs: &[Record], done: &mut Done) -> Result<()> {
        let store = &self.duly.store;
        for some in jobs.chunks(CHANGE_MAX) {
            let targets: Vec<Target> = some.iter().map(Target::of).collect();
            let moved = match &self.what {
                What::Remove => store.remove_all(targets).await?,
                What::Reschedule(due) => store.reschedule_all(targets, *due).await?,
                What::Cancel => {
                    self.cancel(some, done).await;
                    continue;
                }
            };
            for moved in moved {
                *match moved {
                    Moved::Yes => &mut done.done,
                    Moved::Running => &mut done.running,
                    Moved::Moving => &mut done.moving,
                    Moved::Existing(_) => &mut done.existing,
                    Moved::NotFound | Moved::Changed | Moved::Unreadable => &mut done.changed,
                } += 1;
            }
        }
        Ok(())
    }

    async fn cancel(&self, jobs: &[Record], done: &mut Done) {
        for some in jobs.chunks(CANCELS) {
            let asks = some.iter().map(|record| self.duly.cancel(record.job.id));
            for (record, cancelled) in some.iter().zip(futures_util::future::join_all(asks).await) {
                match cancelled {
                    Ok(()) => done.done += 1,
                    Err(Error::NotFound { .. }) => done.changed += 1,
                    Err(error) => {
                        done.failed += 1;
                        if done.errors.len() < ERRORS_MAX {
                            done.errors.push((record.job.id, error.to_string()));
                        }
                    }
                }
            }
        }
    }
}
