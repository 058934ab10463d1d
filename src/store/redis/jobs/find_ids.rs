//! Finds jobs by a part of their id. Never writes.
//!
//! A server has no order of ids. It compares the bytes of each id with a pattern and sends only the jobs that match, with
//! their args. A beginning may be that of every job, so the batches start small and grow while nothing matches.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::{Error, Result};
use crate::job::IdPart;
use crate::store::redis::Redis;
use crate::store::redis::conn::ConnectionRole;
use crate::store::redis::reply::parse_job_id;
use crate::store::{FoundIds, ID_SCAN_MAX};

/// Number of concurrent queues.
const QUEUES_AT_ONCE: usize = 50;
/// Ids that one request compares: at first, and at most.
const FIRST_BATCH: usize = 16;
const BATCH_MAX: usize = 4_096;

/// Ids with their records.
type ScannedJobs = Vec<(Vec<u8>, Vec<u8>)>;

/// Implements `JobStore::find_ids`.
pub(crate) async fn find_ids(store: &Redis, part: &IdPart, max: usize) -> Result<FoundIds> {
    let queues = store.queue_names("find_ids").await?;
    let examined = AtomicUsize::new(0);
    let mut all = FoundIds { ids: Vec::new(), is_complete: true };
    for batch in queues.chunks(QUEUES_AT_ONCE) {
        let requests = batch.iter().map(|queue| find_in_queue(store, queue, part, max, &examined));
        for found in futures_util::future::join_all(requests).await {
            let found = found?;
            all.ids.extend(found.ids);
            all.is_complete &= found.is_complete;
        }
        // Two queues may have jobs with the same id.
        all.ids.sort_unstable_by(|a, b| b.cmp(a));
        all.ids.dedup();
        if all.ids.len() > max {
            all.ids.truncate(max);
            return Ok(FoundIds { is_complete: false, ..all });
        }
    }
    Ok(all)
}

/// Finds at most one id more than `max`.
async fn find_in_queue(
    store: &Redis,
    queue: &str,
    part: &IdPart,
    max: usize,
    examined: &AtomicUsize,
) -> Result<FoundIds> {
    let keys = store.keys(queue);
    let current_generation = || store.servers.runtime_generation(ConnectionRole::Client, keys.slot);
    if current_generation() == 0 {
        store.servers.send_idempotent("find_ids", ConnectionRole::Client, keys.slot, &redis::cmd("PING")).await?;
    }
    let generation = current_generation();
    let mut found = FoundIds::default();
    for pattern in patterns(part) {
        let (mut cursor, mut batch) = ("0".to_owned(), FIRST_BATCH);
        loop {
            if examined.fetch_add(batch, Ordering::Relaxed) >= ID_SCAN_MAX {
                return Ok(found);
            }
            let mut cmd = redis::cmd("HSCAN");
            cmd.arg(&keys.job).arg(&cursor).arg("MATCH").arg(&pattern[..]).arg("COUNT").arg(batch);
            let value = store.servers.send_idempotent("find_ids", ConnectionRole::Client, keys.slot, &cmd).await?;
            // Another server scans its keys in another order.
            if generation == 0 || current_generation() != generation {
                return Err(Error::store("find_ids", "the connection was lost during the search; try again"));
            }
            let unreadable = |e| Error::store_with_cause("find_ids", format!("the jobs cannot be read: {e}"), e);
            let (next, jobs): (String, ScannedJobs) = redis::from_redis_value(value).map_err(unreadable)?;
            let before = found.ids.len();
            let ids = jobs.iter().filter_map(|(id, _)| parse_job_id(id)).filter(|id| part.matches(*id));
            for id in ids {
                if !found.ids.contains(&id) {
                    found.ids.push(id);
                }
                if found.ids.len() > max {
                    return Ok(found);
                }
            }
            if next == "0" {
                break;
            }
            cursor = next;
            batch = if found.ids.len() == before { (2 * batch).min(BATCH_MAX) } else { batch };
        }
    }
    found.is_complete = true;
    Ok(found)
}

/// Returns glob patterns of which at least one matches the bytes of every matching id.
fn patterns(part: &IdPart) -> Vec<Vec<u8>> {
    let (start, end) = part.whole_bytes();
    let (start, end) = (escape_glob(&start), escape_glob(&end));
    match part.is_either() {
        true => vec![[&start[..], b"*"].concat(), [b"*", &end[..]].concat()],
        false => vec![[&start[..], b"*", &end[..]].concat()],
    }
}

fn escape_glob(bytes: &[u8]) -> Vec<u8> {
    let escaped = |byte: &u8| if b"*?[]\\".contains(byte) { vec![b'\\', *byte] } else { vec![*byte] };
    bytes.iter().flat_map(escaped).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_compare_whole_bytes_and_escape_special_ones() {
        let patterns_of = |text: &str| patterns(&text.parse().expect("a part of an id"));
        assert_eq!(patterns_of("2a3f5"), [&b"\\*\\?*"[..], &b"*\xa3\xf5"[..]]);
        assert_eq!(patterns_of("5b5c…5d01"), [&b"\\[\\\\*\\]\x01"[..]]);
    }
}
