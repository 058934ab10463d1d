//! Scans all jobs of a queue in no particular order, without missing a job that exists throughout.

use crate::error::{Error, Result};
use crate::store::JobPage;
use crate::store::redis::Redis;
use crate::store::redis::conn::ConnectionRole;
use crate::store::redis::jobs::query::get_from_queue;

/// Jobs per request.
const JOBS_PER_BATCH: usize = 100;

/// Ids with their records.
type RecordEntries = Vec<(Vec<u8>, Vec<u8>)>;

/// Implements `ScanStore::scan`.
pub(crate) async fn scan(store: &Redis, queue: &str, cursor: Option<&str>) -> Result<JobPage> {
    let keys = store.keys(queue);
    let invalid = || Error::invalid("cursor", "is not from a scan; use the cursor of the previous page");
    let current_generation = || store.servers.runtime_generation(ConnectionRole::Client, keys.slot);
    if current_generation() == 0 {
        store.servers.send_idempotent("scan", ConnectionRole::Client, keys.slot, &redis::cmd("PING")).await?;
    }
    let generation = current_generation();
    let restart = || Error::store("scan", "the connection was lost during the scan; start again");
    let position = match cursor {
        None => "0",
        Some(cursor) => {
            let (cursor_generation, position) = cursor.split_once('.').ok_or_else(invalid)?;
            if cursor_generation.parse::<u64>().map_err(|_| invalid())? != generation {
                return Err(restart());
            }
            position.parse::<u64>().map_err(|_| invalid())?;
            position
        }
    };
    let mut cmd = redis::cmd("HSCAN");
    cmd.arg(&keys.job).arg(position).arg("COUNT").arg(JOBS_PER_BATCH);
    let value = store.servers.send_idempotent("scan", ConnectionRole::Client, keys.slot, &cmd).await?;
    // Another server scans its keys in another order.
    if generation == 0 || current_generation() != generation {
        return Err(restart());
    }
    let unreadable = |e| Error::store_with_cause("scan", format!("the jobs cannot be read: {e}"), e);
    let (next, entries): (String, RecordEntries) = redis::from_redis_value(value).map_err(unreadable)?;
    let ids = entries.iter().filter_map(|(id, _)| crate::store::redis::reply::parse_job_id(id));
    let requests = ids.map(|id| get_from_queue(store, "scan", queue, id));
    let mut page = JobPage::default();
    for record in futures_util::future::join_all(requests).await {
        page.jobs.extend(record?);
    }
    page.next_cursor = (next != "0").then(|| format!("{generation}.{next}"));
    Ok(page)
}
