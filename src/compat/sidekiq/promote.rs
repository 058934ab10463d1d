//! Promotes due entries from the retry set and the schedule into their queues.
//!
//! Entries are read, rewritten with the time at which they became ready, and moved by one script per queue, each only
//! if it is still in its set. So no entry is lost or duplicated if Ruby's pollers or other nodes promote at the same
//! time.

use std::collections::HashMap;

use super::keys::{EntryKeys, SetKeys};
use super::scripts::{BURY_UNREADABLE, PROMOTE};
use super::{Sidekiq, convert_reply, entry, mixed_list_error};
use crate::clock::Micros;
use crate::error::{Error, Result};
use crate::store::redis::ConnectionRole;

/// The old and the new text of an entry.
type EntryChange = (Vec<u8>, String);

/// Most pages read from a set in one promotion; stuck entries make further pages necessary.
const PAGES_MAX: usize = 20;
/// Shortest time between two warnings about the same queue: one minute.
const WARN_INTERVAL_MICROS: u64 = 60_000_000;
/// Most queues warned about in that time.
const WARNED_QUEUES_MAX: usize = 1_000;

/// Promotes up to `max` entries that are due at `now`. Returns whether more may be due.
///
/// A queue that cannot take entries, because its key is used for something else, does not block the other queues.
pub(super) async fn promote(store: &Sidekiq, now: Micros, max: usize) -> Result<bool> {
    let mut remaining = max;
    for set in [&store.keys.retry, &store.keys.schedule] {
        let mut stuck = 0;
        for _ in 0..PAGES_MAX {
            let due = read_due(store, set, now, stuck, remaining).await?;
            let is_last = due.len() < remaining;
            let page = promote_page(store, set, due, now).await?;
            stuck += page.stuck;
            remaining -= page.promoted.min(remaining);
            if is_last || remaining == 0 || page.stuck == 0 {
                break;
            }
        }
    }
    Ok(remaining == 0)
}

/// Returns up to `max` due entries, after the first `stuck` ones.
async fn read_due(store: &Sidekiq, set: &String, now: Micros, stuck: usize, max: usize) -> Result<Vec<Vec<u8>>> {
    if max == 0 {
        return Ok(Vec::new());
    }
    let mut cmd = redis::cmd("ZRANGE");
    cmd.arg(set).arg("-inf").arg(format!("{:.6}", now as f64 / 1e6)).arg("BYSCORE").arg("LIMIT").arg(stuck).arg(max);
    convert_reply("claim", store.redis.send_idempotent("claim", ConnectionRole::BulkRead, 0, &cmd).await?)
}

/// The times of the last warnings by queue. Every claim finds stuck entries again, so warnings are rate limited.
#[derive(Default)]
pub(super) struct WarnedQueues(HashMap<String, Micros>);

impl WarnedQueues {
    /// Returns whether to warn about this queue now, and records the warning.
    fn should_warn(&mut self, queue: &str, now: Micros) -> bool {
        // The clock may have stepped in either direction.
        self.0.retain(|_, warned_at| warned_at.abs_diff(now) < WARN_INTERVAL_MICROS);
        let should_warn = self.0.len() < WARNED_QUEUES_MAX && !self.0.contains_key(queue);
        if should_warn {
            self.0.insert(queue.to_owned(), now);
        }
        should_warn
    }
}

/// The number of entries that have left their set, and of those that stay in it.
struct PromotedPage {
    promoted: usize,
    stuck: usize,
}

/// Moves each entry into its queue, or into the dead set if it is unreadable.
async fn promote_page(store: &Sidekiq, set: &String, due: Vec<Vec<u8>>, now: Micros) -> Result<PromotedPage> {
    let mut queues: Vec<(String, Vec<EntryChange>)> = Vec::new();
    let mut unreadable = Vec::new();
    let mut page = PromotedPage { promoted: due.len(), stuck: 0 };
    for bytes in due {
        let queue = entry::parse_queue(&bytes);
        match entry::promote_entry(&bytes, now) {
            Ok(new) => match queues.iter_mut().find(|(name, _)| *name == queue) {
                Some((_, entries)) => entries.push((bytes, new)),
                None => queues.push((queue, vec![(bytes, new)])),
            },
            Err(error) => {
                let new = entry::wrap_unreadable(&queue, &bytes, &error, now);
                unreadable.push((bytes, new));
            }
        }
    }
    for (queue, entries) in queues {
        if let Err(error) = move_to_queue(store, set, &queue, &entries).await {
            let Error::Invalid { .. } = error else { return Err(error) };
            if store.state().warned_queues.should_warn(&queue, now) {
                tracing::warn!(queue, %error, jobs = entries.len(), "due jobs cannot enter their queue");
            }
            page.promoted -= entries.len();
            page.stuck += entries.len();
        }
    }
    bury_unreadable(store, set, &unreadable).await?;
    Ok(page)
}

async fn move_to_queue(store: &Sidekiq, set: &str, queue: &str, entries: &[EntryChange]) -> Result<()> {
    let keys = store.redis.keys(queue);
    let mut cmd = PROMOTE.call(&EntryKeys::new(&store.keys, &keys).between(set, ""));
    cmd.arg(store.manual_now()).arg(&keys.channel).arg(queue);
    for (old, new) in entries {
        cmd.arg(&old[..]).arg(new);
    }
    match store.run_script("claim", ConnectionRole::Worker, &PROMOTE, &cmd).await?.text()?.as_str() {
        "" => Ok(()),
        reason => Err(mixed_list_error(queue, reason)),
    }
}

async fn bury_unreadable(store: &Sidekiq, set: &String, entries: &[EntryChange]) -> Result<()> {
    if entries.is_empty() {
        return Ok(());
    }
    tracing::warn!(entries = entries.len(), set, "unreadable entries moved to the dead set");
    let mut cmd = BURY_UNREADABLE.call(&SetKeys { source: set, dead: &store.keys.dead });
    cmd.arg(store.manual_now());
    for (old, new) in entries {
        cmd.arg(&old[..]).arg(new);
    }
    store.run_script("claim", ConnectionRole::Worker, &BURY_UNREADABLE, &cmd).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocked_queue_is_warned_about_once_a_minute() {
        let minute = WARN_INTERVAL_MICROS as Micros;
        let mut warned = WarnedQueues::default();
        assert!(warned.should_warn("a", 5) && !warned.should_warn("a", 5) && !warned.should_warn("a", minute));
        assert!(warned.should_warn("b", minute), "each queue has its own limit");
        assert!(warned.should_warn("a", minute + 5) && !warned.should_warn("b", minute + 5));
        assert!(warned.should_warn("a", -minute), "the clock has stepped back");
        let queues = (0..2 * WARNED_QUEUES_MAX).map(|number| number.to_string());
        let queues = queues.filter(|queue| warned.should_warn(queue, 10 * minute)).count();
        assert_eq!((queues, warned.0.len()), (WARNED_QUEUES_MAX, WARNED_QUEUES_MAX));
        assert!(warned.should_warn("a", 11 * minute) && warned.0.len() == 1);
    }
}
