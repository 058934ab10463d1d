//! Promote: what has fallen due goes from the retries and the schedule into its queue.
//!
//! The entries are read, written anew with the moment they became ready, and moved by one script per queue, each only if it is
//! still in its set: whoever else promotes, Ruby's pollers included, no entry is lost between the two or doubled.

use std::collections::HashMap;

use super::keys::{EntryKeys, SetKeys};
use super::scripts::{BURY_UNREADABLE, PROMOTE};
use super::{Sidekiq, convert_reply, entry, mixed_list_error};
use crate::clock::Micros;
use crate::error::{Error, Result};
use crate::store::redis::ConnectionRole;

/// An entry as it is in its set, and as it will be elsewhere.
type EntryChange = (Vec<u8>, String);

/// How often it is looked behind entries that cannot go into their queue.
const PAGES_MAX: usize = 20;
/// How often it is told of a queue that due jobs cannot go there: a minute, in microseconds.
const WARN_INTERVAL_MICROS: u64 = 60_000_000;
/// Most queues of which it is told in that time.
const WARNED_QUEUES_MAX: usize = 1_000;

/// Moves up to so many entries that are due at this moment. Answers whether there may be more.
///
/// A queue that takes nothing, because somebody uses its key in another way, holds up no other.
pub(super) async fn promote(store: &Sidekiq, now: Micros, most: usize) -> Result<bool> {
    let mut left = most;
    for set in [&store.keys.retry, &store.keys.schedule] {
        let mut stuck = 0;
        for _ in 0..PAGES_MAX {
            let page = read_due(store, set, now, stuck, left).await?;
            let last = page.len() < left;
            let held_up = promote_page(store, set, page, now).await?;
            stuck += held_up.stuck;
            left -= held_up.promoted.min(left);
            if last || left == 0 || held_up.stuck == 0 {
                break;
            }
        }
    }
    Ok(left == 0)
}

/// The entries that are due, behind so many that are stuck.
async fn read_due(store: &Sidekiq, set: &String, now: Micros, behind: usize, most: usize) -> Result<Vec<Vec<u8>>> {
    if most == 0 {
        return Ok(Vec::new());
    }
    let mut cmd = redis::cmd("ZRANGE");
    cmd.arg(set).arg("-inf").arg(format!("{:.6}", now as f64 / 1e6)).arg("BYSCORE").arg("LIMIT").arg(behind).arg(most);
    convert_reply("claim", store.redis.send_idempotent("claim", ConnectionRole::BulkRead, 0, &cmd).await?)
}

/// Of which queues it was told lately that due jobs cannot go there: every claim finds them again, and nobody reads that often.
#[derive(Default)]
pub(super) struct WarnedQueues(HashMap<String, Micros>);

impl WarnedQueues {
    /// Whether to tell it of this queue at this moment; if so, it counts as told.
    fn should_warn(&mut self, queue: &str, now: Micros) -> bool {
        // Whichever way the clock has stepped.
        self.0.retain(|_, at| at.abs_diff(now) < WARN_INTERVAL_MICROS);
        let is_news = self.0.len() < WARNED_QUEUES_MAX && !self.0.contains_key(queue);
        if is_news {
            self.0.insert(queue.to_owned(), now);
        }
        is_news
    }
}

/// How many entries have left their set, and how many must stay in it.
struct PromotedPage {
    promoted: usize,
    stuck: usize,
}

/// Puts each entry into its queue, or among the dead if nobody can read it.
async fn promote_page(store: &Sidekiq, set: &String, due: Vec<Vec<u8>>, now: Micros) -> Result<PromotedPage> {
    let mut queues: Vec<(String, Vec<EntryChange>)> = Vec::new();
    let mut unreadable = Vec::new();
    let mut sorted = PromotedPage { promoted: due.len(), stuck: 0 };
    for bytes in due {
        let queue = entry::parse_queue(&bytes);
        match entry::promote_entry(&bytes, now) {
            Ok(new) => match queues.iter_mut().find(|(name, _)| *name == queue) {
                Some((_, of_queue)) => of_queue.push((bytes, new)),
                None => queues.push((queue, vec![(bytes, new)])),
            },
            Err(why) => {
                let new = entry::wrap_unreadable(&queue, &bytes, &why, now);
                unreadable.push((bytes, new));
            }
        }
    }
    for (queue, entries) in queues {
        if let Err(error) = move_to_queue(store, set, &queue, &entries).await {
            let Error::Invalid { .. } = error else { return Err(error) };
            if store.state().warned_queues.should_warn(&queue, now) {
                tracing::warn!(queue, %error, jobs = entries.len(), "due jobs cannot go into their queue");
            }
            sorted.promoted -= entries.len();
            sorted.stuck += entries.len();
        }
    }
    bury_unreadable(store, set, &unreadable).await?;
    Ok(sorted)
}

async fn move_to_queue(store: &Sidekiq, set: &String, queue: &str, entries: &[EntryChange]) -> Result<()> {
    let keys = store.redis.keys(queue);
    let mut cmd = PROMOTE.call(&EntryKeys::new(&store.keys, &keys).between(set, ""));
    cmd.arg(store.manual_now()).arg(&keys.channel).arg(queue);
    for (old, new) in entries {
        cmd.arg(&old[..]).arg(new);
    }
    match store.run_script("claim", ConnectionRole::Worker, &PROMOTE, &cmd).await?.text()?.as_str() {
        "" => Ok(()),
        why => Err(mixed_list_error(queue, why)),
    }
}

async fn bury_unreadable(store: &Sidekiq, set: &String, entries: &[EntryChange]) -> Result<()> {
    if entries.is_empty() {
        return Ok(());
    }
    tracing::warn!(entries = entries.len(), set, "entries that are no jobs: they are among the dead now");
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
        let mut news = WarnedQueues::default();
        assert!(news.should_warn("a", 5) && !news.should_warn("a", 5) && !news.should_warn("a", minute));
        assert!(news.should_warn("b", minute), "another queue is other news");
        assert!(news.should_warn("a", minute + 5) && !news.should_warn("b", minute + 5));
        assert!(news.should_warn("a", -minute), "the clock has stepped back");
        let queues = (0..2 * WARNED_QUEUES_MAX).filter(|no| news.should_warn(&no.to_string(), 10 * minute)).count();
        assert_eq!((queues, news.0.len()), (WARNED_QUEUES_MAX, WARNED_QUEUES_MAX));
        assert!(news.should_warn("a", 11 * minute) && news.0.len() == 1);
    }
}
