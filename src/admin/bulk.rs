//! Many jobs at once, by filter: counted first, then changed in bounded steps, with a word on each that could not be.

use std::collections::HashSet;

use serde::Serialize;

use crate::client::Duly;
use crate::error::{Error, Result};
use crate::job::filter::{Filter, FilterTerm};
use crate::job::push::Due;
use crate::job::{JobId, JobRecord, State};
use crate::store::{BULK_CHANGE_MAX, ChangeResult, ChangeTarget, PAGE_SIZE_MAX};

/// Most jobs that one bulk change changes: then it ends, and says that there may be more.
pub const BULK_MAX: usize = 1_000_000;
/// Most jobs that a count looks at, unless it is told otherwise.
pub const COUNT_SCANNED_MAX: u64 = 1_000_000;
/// Cancels under way at a time.
const CANCELS_IN_FLIGHT_MAX: usize = 16;
/// Most errors that are told one by one.
const ERRORS_LISTED_MAX: usize = 20;

/// How many jobs a filter means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct BulkCount {
    /// So many, as far as was looked.
    pub matching: u64,
    /// So many jobs were looked at; 0 where the answer is kept ready.
    pub scanned: u64,
    /// All were looked at that could match.
    pub is_complete: bool,
}

/// What a bulk change has done so far, and what it could not do.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct BulkReport {
    /// Jobs looked at.
    pub scanned: u64,
    /// Jobs that the filter means.
    pub matching: u64,
    /// Jobs changed.
    pub applied: u64,
    /// Left alone: they were running.
    pub skipped_running: u64,
    /// Left alone: their queue is moving to another store.
    pub skipped_moving: u64,
    /// Left alone: another job has their unique key now.
    pub skipped_unique: u64,
    /// Left alone: they were gone, or in another state, when their turn came.
    pub skipped_changed: u64,
    /// Not cancelled, each for a reason of its own: the first of them.
    pub errors: Vec<(JobId, String)>,
    /// How many such there were.
    pub failed: u64,
    /// It ended at its maximum: there may be more.
    pub has_more: bool,
}

enum BulkChange {
    Remove,
    Reschedule(Due),
    Cancel,
}

type OnProgress<'p> = Box<dyn FnMut(&BulkReport) + Send + Sync + 'p>;

/// A change to many jobs, to be [`run`](Bulk::run).
#[must_use = "call `run`"]
pub struct BulkOperation<'p> {
    duly: Duly,
    filter: Filter,
    change: BulkChange,
    on_progress: Option<OnProgress<'p>>,
}

impl Duly {
    /// How many jobs a filter means. Kept ready for queue and state; else jobs are looked through, a million at most.
    pub async fn count(&self, filter: &Filter) -> Result<BulkCount> {
        self.count_up_to(filter, COUNT_SCANNED_MAX).await
    }

    /// The same, with at most so many jobs looked at.
    pub async fn count_up_to(&self, filter: &Filter, looked_max: u64) -> Result<BulkCount> {
        let plain = Filter { queue: filter.queue.clone(), state: filter.state, ..Filter::default() };
        if *filter == (Filter { limit: filter.limit, with_details: filter.with_details, ..plain }) {
            let counts = self.counts().await?.into_iter();
            let of_queue = counts.filter(|c| filter.queue.as_ref().is_none_or(|queue| *queue == c.queue));
            let states: &[State] = filter.state.as_slice();
            let states = if states.is_empty() { &State::ALL[..] } else { states };
            let matching = of_queue.map(|c| states.iter().map(|state| c.count_in(*state)).sum::<u64>()).sum();
            return Ok(BulkCount { matching, scanned: 0, is_complete: true });
        }
        let mut counted = BulkCount::default();
        let mut filter = self.resolve_filter(filter)?;
        filter.limit = PAGE_SIZE_MAX;
        loop {
            let page = self.store.list(filter.clone()).await?;
            counted.matching += page.jobs.len() as u64;
            counted.scanned += page.scanned;
            filter.cursor = page.next_cursor;
            counted.is_complete = filter.cursor.is_none();
            if counted.is_complete || counted.scanned >= looked_max {
                return Ok(counted);
            }
        }
    }

    /// Deletes all jobs that a filter means and that are not running.
    pub fn remove_all<'p>(&self, filter: Filter) -> BulkOperation<'p> {
        self.bulk_operation(filter, BulkChange::Remove)
    }

    /// Gives all jobs that a filter means and that are not running a new due moment; dead ones start over, and so do done ones,
    /// which only a filter with `state:done` means.
    pub fn reschedule_all<'p>(&self, filter: Filter, due: Due) -> BulkOperation<'p> {
        self.bulk_operation(filter, BulkChange::Reschedule(due))
    }

    /// Cancels all running jobs that a filter means.
    pub fn cancel_all<'p>(&self, filter: Filter) -> BulkOperation<'p> {
        self.bulk_operation(filter, BulkChange::Cancel)
    }

    /// Deletes all jobs of a queue that are not running: waiting, done and dead ones.
    pub fn clear_queue<'p>(&self, queue: impl Into<String>) -> BulkOperation<'p> {
        self.remove_all(Filter { queue: Some(queue.into()), ..Filter::default() })
    }

    fn bulk_operation<'p>(&self, filter: Filter, what: BulkChange) -> BulkOperation<'p> {
        BulkOperation { duly: self.clone(), filter, change: what, on_progress: None }
    }
}

impl<'p> BulkOperation<'p> {
    /// Tells how far it has come, after each step.
    pub fn on_progress(mut self, progress: impl FnMut(&BulkReport) + Send + Sync + 'p) -> Self {
        self.on_progress = Some(Box::new(progress));
        self
    }

    /// How many jobs are meant, without changing any.
    pub async fn dry_run(&self) -> Result<BulkCount> {
        self.duly.count(&self.effective_filter()).await
    }

    /// Changes them, step by step. Jobs that are pushed after it began are left alone, and none is changed twice.
    ///
    /// If the store fails half-way what was changed stays changed: the same change may be started again.
    pub async fn run(mut self) -> Result<BulkReport> {
        if let BulkChange::Reschedule(due) = self.change {
            due.check()?;
        }
        let begun = self.duly.store.now();
        let mut filter = self.duly.resolve_filter(&self.effective_filter())?;
        filter.limit = BULK_CHANGE_MAX;
        let mut seen: HashSet<JobId> = HashSet::new();
        let mut done = BulkReport::default();
        loop {
            let page = self.duly.store.list(filter.clone()).await?;
            done.scanned += page.scanned;
            let mut jobs = page.jobs;
            jobs.retain(|record| record.job.pushed <= begun && seen.insert(record.job.id));
            done.matching += jobs.len() as u64;
            self.apply(&jobs, &mut done).await?;
            if let Some(progress) = &mut self.on_progress {
                progress(&done);
            }
            filter.cursor = page.next_cursor;
            done.has_more = filter.cursor.is_some();
            if !done.has_more || seen.len() >= BULK_MAX {
                return Ok(done);
            }
        }
    }

    /// What is cancelled runs. What is done is not run again unless somebody says so. Else the filter means what it says.
    fn effective_filter(&self) -> Filter {
        let mut filter = Filter { cursor: None, with_details: false, ..self.filter.clone() };
        match (&self.change, filter.state) {
            (BulkChange::Cancel, None) => filter.state = Some(State::Running),
            (BulkChange::Reschedule(_), None) => filter.not.push(FilterTerm::State(State::Done)),
            _ => {}
        }
        filter
    }

    async fn apply(&self, jobs: &[JobRecord], done: &mut BulkReport) -> Result<()> {
        let store = &self.duly.store;
        for some in jobs.chunks(BULK_CHANGE_MAX) {
            let targets: Vec<ChangeTarget> = some.iter().map(ChangeTarget::from_record).collect();
            let moved = match &self.change {
                BulkChange::Remove => store.remove_all(targets).await?,
                BulkChange::Reschedule(due) => store.reschedule_all(targets, *due).await?,
                BulkChange::Cancel => {
                    self.cancel_jobs(some, done).await;
                    continue;
                }
            };
            for moved in moved {
                *match moved {
                    ChangeResult::Applied => &mut done.applied,
                    ChangeResult::Running => &mut done.skipped_running,
                    ChangeResult::Moving => &mut done.skipped_moving,
                    ChangeResult::Existing(_) => &mut done.skipped_unique,
                    ChangeResult::NotFound | ChangeResult::Changed | ChangeResult::Unreadable => {
                        &mut done.skipped_changed
                    }
                } += 1;
            }
        }
        Ok(())
    }

    async fn cancel_jobs(&self, jobs: &[JobRecord], done: &mut BulkReport) {
        for some in jobs.chunks(CANCELS_IN_FLIGHT_MAX) {
            let asks = some.iter().map(|record| self.duly.cancel(record.job.id));
            for (record, cancelled) in some.iter().zip(futures_util::future::join_all(asks).await) {
                match cancelled {
                    Ok(()) => done.applied += 1,
                    Err(Error::NotFound { .. }) => done.skipped_changed += 1,
                    Err(error) => {
                        done.failed += 1;
                        if done.errors.len() < ERRORS_LISTED_MAX {
                            done.errors.push((record.job.id, error.to_string()));
                        }
                    }
                }
            }
        }
    }
}
