//! Going through all jobs of a queue, in no order and without missing one that stays.

use crate::error::{Error, Result};
use crate::store::JobPage;
use crate::store::redis::Redis;
use crate::store::redis::conn::ConnectionRole;
use crate::store::redis::jobs::query::get_from_queue;

/// Jobs asked for in one step.
const JOBS_PER_STEP: usize = 100;

/// Ids with their records.
type RecordEntries = Vec<(Vec<u8>, Vec<u8>)>;

/// `scan` of the contract.
pub(crate) async fn scan(store: &Redis, queue: &str, cursor: Option<&str>) -> Result<JobPage> {
    let keys = store.keys(queue);
    let wrong = || Error::invalid("cursor", "not one that a scan has given");
    let here = || store.servers.runtime_generation(ConnectionRole::Client, keys.slot);
    if here() == 0 {
        store.servers.send_idempotent("scan", ConnectionRole::Client, keys.slot, &redis::cmd("PING")).await?;
    }
    let begun = here();
    let again = || Error::store("scan", "the connection was lost on the way; begin again");
    let at = match cursor {
        None => "0",
        Some(cursor) => {
            let (generation, at) = cursor.split_once('.').ok_or_else(wrong)?;
            if generation.parse::<u64>().map_err(|_| wrong())? != begun {
                return Err(again());
            }
            at.parse::<u64>().map_err(|_| wrong())?;
            at
        }
    };
    let mut cmd = redis::cmd("HSCAN");
    cmd.arg(&keys.job).arg(at).arg("COUNT").arg(JOBS_PER_STEP);
    let value = store.servers.send_idempotent("scan", ConnectionRole::Client, keys.slot, &cmd).await?;
    // Another server goes through its keys in another order.
    if begun == 0 || here() != begun {
        return Err(again());
    }
    let strange = |e| Error::Store { op: "scan", reason: "the jobs cannot be read".into(), source: Some(Box::new(e)) };
    let (next, entries): (String, RecordEntries) = redis::from_redis_value(value).map_err(strange)?;
    let ids = entries.iter().filter_map(|(id, _)| crate::store::redis::reply::parse_job_id(id));
    let asks = ids.map(|id| get_from_queue(store, "scan", queue, id));
    let mut page = JobPage::default();
    for record in futures_util::future::join_all(asks).await {
        page.jobs.extend(record?);
    }
    page.next_cursor = (next != "0").then(|| format!("{begun}.{next}"));
    Ok(page)
}
