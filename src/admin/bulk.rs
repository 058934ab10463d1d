//! Bulk changes by filter: jobs are counted first, then changed in bounded batches, with a report of those skipped.

use std::collections::HashSet;

use serde::Serialize;

use crate::client::{Duly, Jobs};
use crate::error::{Error, Result};
use crate::job::filter::{Filter, FilterTerm};
use crate::job::push::Due;
use crate::job::{JobId, JobRecord, State};
use crate::store::{BULK_CHANGE_MAX, CancelResult, ChangeResult, ChangeTarget, JobStore, PAGE_SIZE_MAX};

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
///
/// # Examples
///
/// ```
/// # use duly::{Duly, job::Due};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> duly::Result<()> {
/// # let duly = Duly::open(":memory:").await?;
/// let retry = duly.jobs().reschedule_all("state:dead".parse()?, Due::Now);
/// println!("{} jobs match", retry.dry_run().await?.matching);
/// let report = retry.on_progress(|so_far| println!("{} changed so far", so_far.applied)).run().await?;
/// assert_eq!(report.applied, 0);
/// # Ok(())
/// # }
/// ```
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

impl Jobs<'_> {
    /// Returns the number of jobs that match a filter. The store keeps counts by queue and state; for other filters, at
    /// most a million jobs are examined.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Invalid`] if the filter is invalid.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, Push};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// duly.push(Push::new("mail", "{}")).await?;
    /// assert_eq!(duly.jobs().count(&"kind:mail".parse()?).await?.matching, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn count(self, filter: &Filter) -> Result<BulkCount> {
        self.count_up_to(filter, COUNT_SCANNED_MAX).await
    }

    /// Like [`count`](Jobs::count), but examines at most `scanned_max` jobs.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Invalid`] if the filter is invalid.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let count = duly.jobs().count_up_to(&"args.to:ada".parse()?, 10_000).await?;
    /// println!("{}{}", count.matching, if count.is_complete { "" } else { " or more" });
    /// # Ok(())
    /// # }
    /// ```
    pub async fn count_up_to(self, filter: &Filter, scanned_max: u64) -> Result<BulkCount> {
        let filter = &Filter { order: None, reverse: false, ..filter.clone() };
        let indexed = Filter { queue: filter.queue.clone(), state: filter.state, ..Filter::default() };
        if *filter == (Filter { limit: filter.limit, with_details: filter.with_details, ..indexed }) {
            let counts = self.duly.queues().counts().await?.into_iter();
            let of_queue = counts.filter(|c| filter.queue.as_ref().is_none_or(|queue| *queue == c.queue));
            let states: &[State] = filter.state.as_slice();
            let states = if states.is_empty() { &State::ALL[..] } else { states };
            let matching = of_queue.map(|c| states.iter().map(|state| c.count_in(*state)).sum::<u64>()).sum();
            return Ok(BulkCount { matching, scanned: 0, is_complete: true });
        }
        let mut count = BulkCount::default();
        let mut filter = self.duly.resolve_filter(filter)?;
        filter.limit = PAGE_SIZE_MAX;
        loop {
            let page = self.duly.list_page(filter.clone()).await?;
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
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, Push};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// duly.push(Push::new("mail", "{}")).await?;
    /// let report = duly.jobs().remove_all("kind:mail state:ready".parse()?).run().await?;
    /// assert_eq!(report.applied, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn remove_all<'p>(self, filter: Filter) -> BulkOperation<'p> {
        self.bulk_operation(filter, BulkChange::Remove)
    }

    /// Gives all jobs that match a filter and are not running a new due time. Dead jobs start over.
    /// Done and cancelled jobs start over only if the filter has `state:done` or `state:cancelled`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, job::Due};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let retry = duly.jobs().reschedule_all("state:dead error:timeout since:1h".parse()?, Due::Now);
    /// println!("{} jobs match", retry.dry_run().await?.matching);
    /// retry.run().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn reschedule_all<'p>(self, filter: Filter, due: Due) -> BulkOperation<'p> {
        self.bulk_operation(filter, BulkChange::Reschedule(due))
    }

    /// Cancels all jobs that match a filter and are not done or dead; see [`Jobs::cancel`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, Push};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// duly.push(Push::new("mail", "{}")).await?;
    /// assert_eq!(duly.jobs().cancel_all("kind:mail".parse()?).run().await?.applied, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn cancel_all<'p>(self, filter: Filter) -> BulkOperation<'p> {
        self.bulk_operation(filter, BulkChange::Cancel)
    }

    fn bulk_operation<'p>(self, filter: Filter, change: BulkChange) -> BulkOperation<'p> {
        BulkOperation { duly: self.duly.clone(), filter, change, on_progress: None }
    }
}

impl<'p> BulkOperation<'p> {
    /// Sets a callback that receives the report after each batch.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let mut batches = 0;
    /// duly.jobs().remove_all("state:done".parse()?).on_progress(|_| batches += 1).run().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_progress(mut self, progress: impl FnMut(&BulkReport) + Send + Sync + 'p) -> Self {
        self.on_progress = Some(Box::new(progress));
        self
    }

    /// Counts the matching jobs without changing any.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Invalid`] if the filter is invalid.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::Duly;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let removal = duly.jobs().remove_all("state:dead kind:mail".parse()?);
    /// if removal.dry_run().await?.matching < 100 {
    ///     removal.run().await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn dry_run(&self) -> Result<BulkCount> {
        self.duly.jobs().count(&self.effective_filter()).await
    }

    /// Changes the jobs batch by batch. Skips jobs pushed after the start, and changes no job twice.
    ///
    /// If the store fails midway, changes already made stay. The same bulk change can be started again.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Invalid`] if the filter or the due time is invalid, and the errors of the store.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, Push};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// duly.push(Push::new("mail", "{}")).await?;
    /// let report = duly.jobs().cancel_all("kind:mail".parse()?).run().await?;
    /// assert_eq!((report.applied, report.skipped_running), (1, 0));
    /// # Ok(())
    /// # }
    /// ```
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
            let page = self.duly.list_page(filter.clone()).await?;
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

    /// Returns the filter with defaults: a cancel selects unfinished jobs, a reschedule selects done and cancelled jobs
    /// only if requested.
    fn effective_filter(&self) -> Filter {
        let mut filter =
            Filter { order: None, reverse: false, cursor: None, with_details: false, ..self.filter.clone() };
        let state = filter.state;
        let mut exclude = |states: &[State]| filter.not.extend(states.iter().map(|state| FilterTerm::State(*state)));
        match (&self.change, state) {
            (BulkChange::Cancel, None) => exclude(&[State::Done, State::Dead, State::Cancelled]),
            (BulkChange::Reschedule(_), None) => exclude(&[State::Done, State::Cancelled]),
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
            let requests = batch.iter().map(|record| self.duly.jobs().cancel(record.job.id));
            for (record, cancelled) in batch.iter().zip(futures_util::future::join_all(requests).await) {
                match cancelled {
                    Ok(CancelResult::Ended(_)) | Err(Error::NotFound { .. }) => report.skipped_changed += 1,
                    Ok(_) => report.applied += 1,
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
