//! Finds jobs by a part of their id. Never writes.
//!
//! The beginning of an id is a range of the index of ids. For the end, that index is scanned in batches, the newest ids
//! first: about 0.2 s for a million jobs.

use rusqlite::{Connection, params};

use crate::error::Result;
use crate::job::{IdPart, JobId};
use crate::store::sqlite::Sqlite;
use crate::store::{FoundIds, ID_SCAN_MAX};

/// Ids that one read examines.
const IDS_PER_BATCH: usize = 20_000;

/// Implements `JobStore::find_ids`.
pub(crate) async fn find_ids(store: &Sqlite, part: IdPart, max: usize) -> Result<FoundIds> {
    if let Some(range) = part.start_range() {
        let found = find_in_range(store, &part, range, max).await?;
        if !part.needs_scan() || !found.is_complete {
            return Ok(found);
        }
    }
    find_in_range(store, &part, (JobId::from_bytes([0; 16]), JobId::from_bytes([0xff; 16])), max).await
}

/// Finds ids from `first` to `last`, both included.
async fn find_in_range(
    store: &Sqlite,
    part: &IdPart,
    (first, mut last): (JobId, JobId),
    max: usize,
) -> Result<FoundIds> {
    let (mut found, mut includes_last) = (FoundIds::default(), true);
    for _ in 0..ID_SCAN_MAX / IDS_PER_BATCH {
        let (part, room) = (*part, max - found.ids.len());
        let batch = store.query("find_ids", move |conn| scan(conn, &part, (first, last, includes_last), room)).await?;
        found.ids.extend(batch.ids);
        (last, includes_last) = match batch.next {
            ScanEnd::RangeEnd => {
                found.is_complete = true;
                return Ok(found);
            }
            ScanEnd::TooMany => return Ok(found),
            ScanEnd::At(id) => (id, false),
        };
    }
    Ok(found)
}

/// The matching ids of one read, and where it ended.
struct IdBatch {
    ids: Vec<JobId>,
    next: ScanEnd,
}

enum ScanEnd {
    /// All ids of the range were examined.
    RangeEnd,
    /// There is another match, but no room for it.
    TooMany,
    /// Ids before this one were not examined.
    At(JobId),
}

fn scan(
    conn: &Connection,
    part: &IdPart,
    (first, last, includes_last): (JobId, JobId, bool),
    room: usize,
) -> rusqlite::Result<IdBatch> {
    let mut select = conn.prepare_cached(
        "SELECT id FROM duly_job WHERE id >= ?1 AND id <= ?2 AND (?3 OR id <> ?2) ORDER BY id DESC LIMIT ?4",
    )?;
    let mut rows = select.query(params![first.as_bytes(), last.as_bytes(), includes_last, IDS_PER_BATCH])?;
    let mut batch = IdBatch { ids: Vec::new(), next: ScanEnd::RangeEnd };
    let (mut count, mut previous) = (0, None);
    while let Some(row) = rows.next()? {
        let id = JobId::from_bytes(row.get(0)?);
        count += 1;
        // Two queues may have jobs with the same id.
        if previous != Some(id) && part.matches(id) {
            if batch.ids.len() == room {
                batch.next = ScanEnd::TooMany;
                return Ok(batch);
            }
            batch.ids.push(id);
        }
        previous = Some(id);
    }
    if let (IDS_PER_BATCH, Some(id)) = (count, previous) {
        batch.next = ScanEnd::At(id);
    }
    Ok(batch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_scanned_in_an_index_alone() {
        let conn = crate::store::sqlite::file::connect_in_memory().expect("opens");
        let sql = "EXPLAIN QUERY PLAN SELECT id FROM duly_job WHERE id >= ?1 AND id <= ?2 AND (?3 OR id <> ?2) ORDER BY id DESC LIMIT ?4";
        let plan: String =
            conn.query_row(sql, params![[0u8; 16], [0u8; 16], true, 1], |row| row.get(3)).expect("explains");
        assert!(plan.contains("COVERING INDEX duly_job_id"), "{plan}");
    }
}
