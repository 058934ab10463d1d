//! Counts: what is in each queue. What waits and what is dead lies in sets that all queues share, and is looked through.

use std::collections::HashMap;

use super::Sidekiq;
use super::entry;
use super::keys::EntryKeys;
use super::scripts::COUNTS;
use crate::clock::from_micros;
use crate::compat::sidekiq::find_job;
use crate::compat::sidekiq::find_job::Set;
use crate::error::Result;
use crate::store::redis::Way;
use crate::store::{Moving, QueueCounts};

/// Entries of a set read at a time.
const STEP: usize = 1_000;
/// Most entries of a set that are looked through; the rest are not counted.
const LOOK_MAX: usize = 100_000;

/// `counts` of the contract.
pub(super) async fn counts(store: &Sidekiq) -> Result<Vec<QueueCounts>> {
    let mut waiting: HashMap<String, u64> = HashMap::new();
    let mut dead: HashMap<String, u64> = HashMap::new();
    for set in Set::ALL {
        let counts = if set == Set::Dead { &mut dead } else { &mut waiting };
        for from in (0..LOOK_MAX).step_by(STEP) {
            let page = find_job::page(store, "counts", set, from, STEP).await?;
            let short = page.len() < STEP;
            page.into_iter().for_each(|one| *counts.entry(one.queue).or_default() += 1);
            if short {
                break;
            }
        }
    }
    let mut queues = store.queues("counts").await?;
    queues.extend(waiting.keys().chain(dead.keys()).cloned());
    queues.sort();
    queues.dedup();
    let mut all = Vec::with_capacity(queues.len());
    for queue in queues {
        let mut counts = counts_of(store, &queue).await?;
        counts.scheduled = waiting.get(&queue).copied().unwrap_or(0);
        counts.dead = dead.get(&queue).copied().unwrap_or(0);
        all.push(counts);
    }
    Ok(all)
}

async fn counts_of(store: &Sidekiq, queue: &str) -> Result<QueueCounts> {
    let keys = store.redis.keys(queue);
    let mut cmd = COUNTS.call(&EntryKeys::new(&store.keys, &keys));
    cmd.arg(store.manual_now());
    let mut reply = store.run("counts", Way::Door, &COUNTS, &cmd).await?;
    let paused = reply.int()? == 1;
    let moving = Moving::parse(&reply.text()?);
    let mut count = || reply.int().map(|count| u64::try_from(count).unwrap_or(0));
    let (ready, running, done) = (count()?, count()?, count()?);
    let _holders = reply.values()?;
    let first = entry::read(queue, &reply.bytes()?, None).ok().filter(|first| first.due > 0);
    let oldest = first.map(|first| from_micros(first.due));
    Ok(QueueCounts { queue: queue.to_owned(), paused, moving, ready, running, done, oldest, ..QueueCounts::default() })
}
