//! Bulk changes by filter: jobs are counted first, then changed in bounded batches, with a report of those skipped.

use std::collections::HashSet;

use serde::Serialize;

use crate::client::Duly;
use crate::error::{Error, Result};
use crate::job::filter::{Filter, FilterTerm};
use crate::job::push::Due;
use crate::job::{JobId, JobRecord, State};
use crate::store::{BULK_CHANGE_MAX, ChangeResult, ChangeTarget, JobStore, PAGE_SIZE_MAX};

/// Most jobs that one bulk change examines; then it ends and reports that there may be more.
pub const BULK_MAX: usize = 1_000_000;
/// Default for the most jobs that a count examines.
pub const COUNT_SCANNED_MAX: u64 = 1_000_000;
/// Most concurrent cancel requests.
const CANCELS_IN_FLIGHT_MAX: usize = 16;
/// Most errors listed in a report.
const ERRORS_LISTED_MAX: usize = 20;

/// The number of jobs that match a filter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct BulkCount {
    /// Matching jobs found so far.
    pub matching: u64,
    /// Jobs examined; 0 if the store keeps this count.
    pub scanned: u64,
    /// Whether every job that could match was examined.
    pub is_complete: bool,
}

/// The result of a bulk change so far.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct BulkReport {
    /// Jobs examined.
    pub scanned: u64,
    /// Jobs that match the filter.
    pub matching: u64,
    /// Jobs changed.
    pub applied: u64,
    /// Skipped because they were running.
    pub skipped_running: u64,
    /// Skipped because their queue is moving to another store.
    pub skipped_moving: u64,
    /// Skipped because another job has their unique key now.
    pub skipped_unique: u64,
    /// Skipped because they were gone or had changed their state.
    pub skipped_changed: u64,
    /// The first jobs that could not be cancelled, with the error of each.
    pub errors: Vec<(JobId, String)>,
    /// The number of jobs that could not be cancelled.
    pub failed: u64,
    /// Whether it stopped at its maximum, so that there may be more.
    pub has_more: bool,
}

#[derive(Debug)]
enum BulkChange {
    Remove,
    Reschedule(Due),
    Cancel,
}

type OnProgress<'p> = Box<dyn FnMut(&BulkReport) + Send + Sync + 'p>;

/// A bulk change, started with [`run`](BulkOperation::run).
#[must_use = "call `run`"]
pub struct BulkOperation<'p> {
    duly: Duly,
    filter: Filter,
    change: BulkChange,
    on_progress: Option<OnProgress<'p>>,
}

impl std::fmt::Debug for BulkOperation<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BulkOperation")
            .field("change", &self.change)
            .field("filter", &self.filter.to_string())
            .finish_non_exhaustive()
    }
}

impl Duly {
    /// Returns the number of jobs that match a filter. The store keeps counts by queue and state; for other filters, at
    /// most a million jobs are examined.
    pub async fn count(&self, filter: &Filter) -> Result<BulkCount> {
        self.count_up_to(filter, COUNT_SCANNED_MAX).await
    }

    /// Like [`count`](Duly::count), but examines at most `scanned_max` jobs.
    pub async fn count_up_to(&self, filter: &Filter, scanned_max: u64) -> Result<BulkCount> {
        let indexed = Filter { queue: filter.queue.clone(), state: filter.state, ..Filter::default() };
        if *filter == (Filter { limit: filter.limit, with_details: filter.with_details, ..indexed }) {
            let counts = self.counts().await?.into_iter();
            let of_queue = counts.filter(|c| filter.queue.as_ref().is_none_or(|queue| *queue == c.queue));
            let states: &[State] = filter.state.as_slice();
            let states = if states.is_empty() { &State::ALL[..] } else { states };
            let matching = of_queue.map(|c| states.iter().map(|state| c.count_in(*state)).sum::<u64>()).sum();
            return Ok(BulkCount { matching, scanned: 0, is_complete: true });
        }
        let mut count = BulkCount::default();
        let mut filter = self.resolve_filter(filter)?;
        filter.limit = PAGE_SIZE_MAX;
        loop {
            let page = self.store.list(filter.clone()).await?;
            count.matching += page.jobs.len() as u64;
            count.scanned += page.scanned;
            filter.cursor = page.next_cursor;
            count.is_complete = filter.cursor.is_none();
            if count.is_complete || count.scanned >= scanned_max {
                return Ok(count);
            }
        }
    }

    /// Deletes all jobs that match a filter and are not running.
    pub fn remove_all<'p>(&self, filter: Filter) -> BulkOperation<'p> {
        self.bulk_operation(filter, BulkChange::Remove)
    }

    /// Gives all jobs that match a filter and are not running a new due time. Dead jobs start over.
    /// Done jobs start over only if the filter has `state:done`.
    pub fn reschedule_all<'p>(&self, filter: Filter, due: Due) -> BulkOperation<'p> {
        self.bulk_operation(filter, BulkChange::Reschedule(due))
    }

    /// Cancels all running jobs that match a filter.
    pub fn cancel_all<'p>(&self, filter: Filter) -> BulkOperation<'p> {
        self.bulk_operation(filter, BulkChange::Cancel)
    }

    /// Deletes all jobs of a queue that are not running: waiting, done and dead ones.
    pub fn clear_queue<'p>(&self, queue: impl Into<String>) -> BulkOperation<'p> {
        self.remove_all(Filter { queue: Some(queue.into()), ..Filter::default() })
    }

    fn bulk_operation<'p>(&self, filter: Filter, change: BulkChange) -> BulkOperation<'p> {
        BulkOperation { duly: self.clone(), filter, change, on_progress: None }
    }
}

impl<'p> BulkOperation<'p> {
    /// Sets a callback that receives the report after each batch.
    pub fn on_progress(mut self, progress: impl FnMut(&BulkReport) + Send + Sync + 'p) -> Self {
        self.on_progress = Some(Box::new(progress));
        self
    }

    /// Counts the matching jobs without changing any.
    pub async fn dry_run(&self) -> Result<BulkCount> {
        self.duly.count(&self.effective_filter()).await
    }

    /// Changes the jobs batch by batch. Skips jobs pushed after the start, and changes no job twice.
    ///
    /// If the store fails midway, changes already made stay. The same bulk change can be started again.
    pub async fn run(mut self) -> Result<BulkReport> {
        if let BulkChange::Reschedule(due) = self.change {
            due.check()?;
        }
        let started = self.duly.store.now();
        let mut filter = self.duly.resolve_filter(&self.effective_filter())?;
        filter.limit = BULK_CHANGE_MAX;
        let mut seen: HashSet<JobId> = HashSet::new();
        let mut report = BulkReport::default();
        loop {
            let page = self.duly.store.list(filter.clone()).await?;
            report.scanned += page.scanned;
            let mut jobs = page.jobs;
            jobs.retain(|record| record.job.pushed <= started && seen.insert(record.job.id));
            report.matching += jobs.len() as u64;
            self.apply(&jobs, &mut report).await?;
            if let Some(progress) = &mut self.on_progress {
                progress(&report);
            }
            filter.cursor = page.next_cursor;
            report.has_more = filter.cursor.is_some();
            if !report.has_more || seen.len() >= BULK_MAX {
                return Ok(report);
            }
        }
    }

    /// Returns the filter with defaults: a cancel selects running jobs, a reschedule selects done jobs only if
    /// requested.
    fn effective_filter(&self) -> Filter {
        let mut filter = Filter { cursor: None, with_details: false, ..self.filter.clone() };
        match (&self.change, filter.state) {
            (BulkChange::Cancel, None) => filter.state = Some(State::Running),
            (BulkChange::Reschedule(_), None) => filter.not.push(FilterTerm::State(State::Done)),
            _ => {}
        }
        filter
    }

    async fn apply(&self, jobs: &[JobRecord], report: &mut BulkReport) -> Result<()> {
        let store = &self.duly.store;
        for batch in jobs.chunks(BULK_CHANGE_MAX) {
            let targets: Vec<ChangeTarget> = batch.iter().map(ChangeTarget::from_record).collect();
            let results = match &self.change {
                BulkChange::Remove => store.remove_all(targets).await?,
                BulkChange::Reschedule(due) => store.reschedule_all(targets, *due).await?,
                BulkChange::Cancel => {
                    self.cancel_jobs(batch, report).await;
                    continue;
                }
            };
            for result in results {
                *match result {
                    ChangeResult::Applied => &mut report.applied,
                    ChangeResult::Running => &mut report.skipped_running,
                    ChangeResult::Moving => &mut report.skipped_moving,
                    ChangeResult::Existing(_) => &mut report.skipped_unique,
                    ChangeResult::NotFound | ChangeResult::Changed | ChangeResult::Unreadable => {
                        &mut report.skipped_changed
                    }
                } += 1;
            }
        }
        Ok(())
    }

    async fn cancel_jobs(&self, jobs: &[JobRecord], report: &mut BulkReport) {
        for batch in jobs.chunks(CANCELS_IN_FLIGHT_MAX) {
            let requests = batch.iter().map(|record| self.duly.cancel(record.job.id));
            for (record, cancelled) in batch.iter().zip(futures_util::future::join_all(requests).await) {
                match cancelled {
                    Ok(()) => report.applied += 1,
                    Err(Error::NotFound { .. }) => report.skipped_changed += 1,
                    Err(error) => {
                        report.failed += 1;
                        if report.errors.len() < ERRORS_LISTED_MAX {
                            report.errors.push((record.job.id, error.to_string()));
                        }
                    }
                }
            }
        }
    }
}
