//! Promote: what has fallen due goes from the retries and the schedule into its queue.
//!
//! The entries are read, written anew with the moment they became ready, and moved by one script per queue, each only if it is
//! still in its set: whoever else promotes, Ruby's pollers included, no entry is lost between the two or doubled.

use std::collections::HashMap;

use super::keys::{EntryKeys, SetKeys};
use super::scripts::{BURY_UNREADABLE, PROMOTE};
use super::{Sidekiq, entry, mixed, told};
use crate::clock::Micros;
use crate::error::{Error, Result};
use crate::store::redis::Way;

/// An entry as it is in its set, and as it will be elsewhere.
type Change = (Vec<u8>, String);

/// How often it is looked behind entries that cannot go into their queue.
const PAGES_MAX: usize = 20;
/// How often it is told of a queue that due jobs cannot go there: a minute, in microseconds.
const TELL_EVERY: u64 = 60_000_000;
/// Most queues of which it is told in that time.
const TOLD_MAX: usize = 1_000;

/// Moves up to so many entries that are due at this moment. Answers whether there may be more.
///
/// A queue that takes nothing, because somebody uses its key in another way, holds up no other.
pub(super) async fn promote(store: &Sidekiq, now: Micros, most: usize) -> Result<bool> {
    let mut left = most;
    for set in [&store.keys.retry, &store.keys.schedule] {
        let mut stuck = 0;
        for _ in 0..PAGES_MAX {
            let page = due(store, set, now, stuck, left).await?;
            let last = page.len() < left;
            let held_up = sort(store, set, page, now).await?;
            stuck += held_up.stuck;
            left -= held_up.went.min(left);
            if last || left == 0 || held_up.stuck == 0 {
                break;
            }
        }
    }
    Ok(left == 0)
}

/// The entries that are due, behind so many that are stuck.
async fn due(store: &Sidekiq, set: &String, now: Micros, behind: usize, most: usize) -> Result<Vec<Vec<u8>>> {
    if most == 0 {
        return Ok(Vec::new());
    }
    let mut cmd = redis::cmd("ZRANGE");
    cmd.arg(set).arg("-inf").arg(format!("{:.6}", now as f64 / 1e6)).arg("BYSCORE").arg("LIMIT").arg(behind).arg(most);
    told("claim", store.redis.ask("claim", Way::Bodies, 0, &cmd).await?)
}

/// Of which queues it was told lately that due jobs cannot go there: every claim finds them again, and nobody reads that often.
#[derive(Default)]
pub(super) struct News(HashMap<String, Micros>);

impl News {
    /// Whether to tell it of this queue at this moment; if so, it counts as told.
    fn is_news(&mut self, queue: &str, now: Micros) -> bool {
        // Whichever way the clock has stepped.
        self.0.retain(|_, at| at.abs_diff(now) < TELL_EVERY);
        let is_news = self.0.len() < TOLD_MAX && !self.0.contains_key(queue);
        if is_news {
            self.0.insert(queue.to_owned(), now);
        }
        is_news
    }
}

/// How many entries have left their set, and how many must stay in it.
struct Sorted {
    went: usize,
    stuck: usize,
}

/// Puts each entry into its queue, or among the dead if nobody can read it.
async fn sort(store: &Sidekiq, set: &String, due: Vec<Vec<u8>>, now: Micros) -> Result<Sorted> {
    let mut queues: Vec<(String, Vec<Change>)> = Vec::new();
    let mut unreadable = Vec::new();
    let mut sorted = Sorted { went: due.len(), stuck: 0 };
    for bytes in due {
        let queue = entry::queue_of(&bytes);
        match entry::promoted(&bytes, now) {
            Ok(new) => match queues.iter_mut().find(|(name, _)| *name == queue) {
                Some((_, of_queue)) => of_queue.push((bytes, new)),
                None => queues.push((queue, vec![(bytes, new)])),
            },
            Err(why) => {
                let new = entry::unreadable(&queue, &bytes, &why, now);
                unreadable.push((bytes, new));
            }
        }
    }
    for (queue, entries) in queues {
        if let Err(error) = into_queue(store, set, &queue, &entries).await {
            let Error::Invalid { .. } = error else { return Err(error) };
            if store.known().news.is_news(&queue, now) {
                tracing::warn!(queue, %error, jobs = entries.len(), "due jobs cannot go into their queue");
            }
            sorted.went -= entries.len();
            sorted.stuck += entries.len();
        }
    }
    discard(store, set, &unreadable).await?;
    Ok(sorted)
}

async fn into_queue(store: &Sidekiq, set: &String, queue: &str, entries: &[Change]) -> Result<()> {
    let keys = store.redis.keys(queue);
    let mut cmd = PROMOTE.call(&EntryKeys::new(&store.keys, &keys).between(set, ""));
    cmd.arg(store.manual_now()).arg(&keys.channel).arg(queue);
    for (old, new) in entries {
        cmd.arg(&old[..]).arg(new);
    }
    match store.run("claim", Way::Work, &PROMOTE, &cmd).await?.text()?.as_str() {
        "" => Ok(()),
        why => Err(mixed(queue, why)),
    }
}

async fn discard(store: &Sidekiq, set: &String, entries: &[Change]) -> Result<()> {
    if entries.is_empty() {
        return Ok(());
    }
    tracing::warn!(entries = entries.len(), set, "entries that are no jobs: they are among the dead now");
    let mut cmd = BURY_UNREADABLE.call(&SetKeys { source: set, dead: &store.keys.dead });
    cmd.arg(store.manual_now());
    for (old, new) in entries {
        cmd.arg(&old[..]).arg(new);
    }
    store.run("claim", Way::Work, &BURY_UNREADABLE, &cmd).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_queue_that_takes_nothing_it_is_told_once_a_minute() {
        let minute = TELL_EVERY as Micros;
        let mut news = News::default();
        assert!(news.is_news("a", 5) && !news.is_news("a", 5) && !news.is_news("a", minute));
        assert!(news.is_news("b", minute), "another queue is other news");
        assert!(news.is_news("a", minute + 5) && !news.is_news("b", minute + 5));
        assert!(news.is_news("a", -minute), "the clock has stepped back");
        let queues = (0..2 * TOLD_MAX).filter(|no| news.is_news(&no.to_string(), 10 * minute)).count();
        assert_eq!((queues, news.0.len()), (TOLD_MAX, TOLD_MAX));
        assert!(news.is_news("a", 11 * minute) && news.0.len() == 1);
    }
}
