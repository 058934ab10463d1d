//! Operations on many jobs for systems that can only find and change one job at a time.

use crate::error::Result;
use crate::job::push::Due;
use crate::job::{IdPart, JobId, State};
use crate::store::{ChangeResult, ChangeTarget, Filter, FoundIds, ID_SCAN_MAX, JobStore, PAGE_SIZE_MAX};

/// Implements `JobStore::remove_all`.
pub(super) async fn remove_all(store: &dyn JobStore, targets: Vec<ChangeTarget>) -> Result<Vec<ChangeResult>> {
    change_all(store, targets, None).await
}

/// Implements `JobStore::reschedule_all`.
pub(super) async fn reschedule_all(
    store: &dyn JobStore,
    targets: Vec<ChangeTarget>,
    due: Due,
) -> Result<Vec<ChangeResult>> {
    change_all(store, targets, Some(due)).await
}

/// Reschedules jobs, or removes them without a due time.
async fn change_all(store: &dyn JobStore, targets: Vec<ChangeTarget>, due: Option<Due>) -> Result<Vec<ChangeResult>> {
    let mut results = Vec::with_capacity(targets.len());
    for target in targets {
        let state = store.get(target.id).await?.map(|record| record.state);
        results.push(match (state, due) {
            (Some(state), Some(due)) if state == target.state => store.reschedule(target.id, due).await?,
            (Some(state), None) if state == target.state => store.remove(target.id).await?,
            (Some(State::Running), _) => ChangeResult::Running,
            (Some(_), _) => ChangeResult::Changed,
            (None, _) => ChangeResult::NotFound,
        });
    }
    Ok(results)
}

/// Implements `JobStore::find_ids` by a list of all jobs.
pub(super) async fn find_ids(store: &dyn JobStore, part: IdPart, max: usize) -> Result<FoundIds> {
    let mut filter = Filter::all().id(part).limit(PAGE_SIZE_MAX);
    let (mut found, mut examined) = (FoundIds::default(), 0);
    loop {
        let page = store.list(filter.clone()).await?;
        examined += page.scanned.max(1);
        for id in page.jobs.iter().map(|record| record.job.id) {
            if found.ids.len() == max && !found.ids.contains(&id) {
                return Ok(found);
            }
            if !found.ids.contains(&id) {
                found.ids.push(id);
            }
        }
        filter.cursor = page.next_cursor;
        found.is_complete = filter.cursor.is_none();
        if found.is_complete || examined >= ID_SCAN_MAX as u64 {
            return Ok(found);
        }
    }
}

/// Implements `JobStore::completed_among`.
pub(super) async fn completed_among(store: &dyn JobStore, ids: Vec<JobId>) -> Result<Vec<JobId>> {
    let mut completed = Vec::new();
    for id in ids {
        if store.get(id).await?.is_none_or(|record| record.state.is_final()) {
            completed.push(id);
        }
    }
    Ok(completed)
}
