//! Finds jobs by their ids: whole ones, and parts that people copy from a list.

use crate::client::{Duly, Jobs};
use crate::error::{ConflictKind, Error, Result};
use crate::job::filter::{JobOrder, Matcher};
use crate::job::{IdPart, JobId, JobRecord};
use crate::store::{DEFAULT_PAGE_SIZE, Filter, ID_SCAN_MAX, JobPage, JobStore, PAGE_SIZE_MAX};

/// Most jobs that the error about an ambiguous part of an id lists.
const AMBIGUOUS_LISTED_MAX: usize = 5;

impl Jobs<'_> {
    /// Returns the id of the job that a person names: by its id, or by at least 4 digits of its beginning or end. On
    /// Sidekiq's keys, also by the jid that Ruby gave it.
    ///
    /// A whole id is returned as it is, whether or not the store has such a job.
    ///
    /// # Errors
    ///
    /// - [`Error::Invalid`]: the text is not an id, nor a part of one.
    /// - [`Error::NotFound`]: no job has this part.
    /// - [`Error::Conflict`]: several jobs have this part. The error lists them.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, Push};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let id = duly.push(Push::new("mail", "{}")).await?.id();
    /// let shown = id.to_string();
    /// assert_eq!(duly.jobs().find_id(&shown[28..]).await?, id);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn find_id(self, text: &str) -> Result<JobId> {
        let text = text.trim();
        if let Ok(id) = self.parse_id(text) {
            return Ok(id);
        }
        let part: IdPart = text.parse()?;
        let found = self.duly.store.find_ids(part, AMBIGUOUS_LISTED_MAX).await?;
        match (&found.ids[..], found.is_complete) {
            ([id], true) => Ok(*id),
            ([], true) => Err(Error::not_found_with_advice(
                "job",
                format_args!("with {part} at the beginning or end of its id"),
                "check the digits; it may be done and no longer kept",
            )),
            (ids @ ([] | [_]), false) => {
                let matches = if ids.is_empty() { "none" } else { "only one" };
                Err(Error::conflict(
                    ConflictKind::Ambiguous,
                    format!("{matches} of {ID_SCAN_MAX} jobs has {part}, but there are more jobs; use the whole id"),
                ))
            }
            (ids, is_complete) => Err(self.ambiguous_error(part, ids, is_complete).await?),
        }
    }

    /// Returns the error for a part that several jobs have.
    async fn ambiguous_error(self, part: IdPart, ids: &[JobId], is_complete: bool) -> Result<Error> {
        let mut text = format!("several jobs have {part} at the beginning or end of their id; use more digits:");
        for id in ids {
            if let Some(record) = self.get(*id).await? {
                let JobRecord { job, state, .. } = &record;
                text.push_str(&format!("\n  {id}  {}  {state}  in queue {}", job.kind, job.queue));
            }
        }
        if !is_complete {
            text.push_str("\n  and more");
        }
        Ok(Error::conflict(ConflictKind::Ambiguous, text))
    }
}

impl Duly {
    /// Returns a page of jobs. If few jobs have the id of the filter, only those are read.
    pub(crate) async fn list_page(&self, filter: Filter) -> Result<JobPage> {
        if filter.order.is_some() && self.store.capabilities().admin.is_none() {
            let (store, advice) = (self.store.name(), "list the jobs unsorted");
            return Err(Error::Unsupported { store, capability: "sorted lists", advice });
        }
        let limit = if filter.limit == 0 { DEFAULT_PAGE_SIZE } else { filter.limit.min(PAGE_SIZE_MAX) };
        let Some(part) = filter.id.filter(|_| filter.cursor.is_none()) else {
            return self.store.list(filter).await;
        };
        let ids = match self.store.parse_job_id(&part.to_string()) {
            Ok(id) => vec![id],
            Err(_) => {
                let found = self.store.find_ids(part, limit).await?;
                if !found.is_complete {
                    return self.store.list(filter).await;
                }
                found.ids
            }
        };
        let matcher = Matcher::new(&Filter { id: None, ..filter.clone() }, crate::clock::to_micros(self.store.now()));
        let mut page = JobPage::default();
        for id in ids {
            let Some(mut record) = self.store.get(id).await? else {
                continue;
            };
            page.scanned += 1;
            let error = record.failures.last().map_or("", |failure| failure.error.as_str());
            if !matcher.matches_with_error(&record, error) {
                continue;
            }
            if !filter.with_details {
                record.runs.clear();
                record.failures.clear();
                record.log.clear();
                (record.progress, record.result) = (None, None);
            }
            page.jobs.push(record);
        }
        sort_by_order(&mut page.jobs, &filter);
        Ok(page)
    }
}

/// Sorts jobs in the order of the filter, and leaves out those that do not have it.
fn sort_by_order(jobs: &mut Vec<JobRecord>, filter: &Filter) {
    let Some(order) = filter.order else {
        return;
    };
    jobs.retain(|record| order.states().contains(&record.state));
    jobs.sort_by_key(|record| if order == JobOrder::Due { record.due } else { record.ended.unwrap_or(record.due) });
    if (order == JobOrder::End) != filter.reverse {
        jobs.reverse();
    }
}
