//! Counts the jobs of each queue. Scheduled, retried and dead jobs are in sets that all queues share, so these are
//! scanned.

use std::collections::HashMap;

use super::Sidekiq;
use super::entry;
use super::keys::EntryKeys;
use super::scripts::COUNTS;
use crate::clock::from_micros;
use crate::compat::sidekiq::find_job;
use crate::compat::sidekiq::find_job::JobSet;
use crate::error::Result;
use crate::store::redis::ConnectionRole;
use crate::store::{QueueCounts, TransferMark};

/// Entries of a set read at a time.
const ENTRIES_PER_STEP: usize = 1_000;
/// Most entries of a set that are scanned; the rest are not counted.
const SCANNED_MAX: usize = 100_000;

/// Implements `JobStore::counts`.
pub(super) async fn counts(store: &Sidekiq) -> Result<Vec<QueueCounts>> {
    let mut waiting: HashMap<String, u64> = HashMap::new();
    let mut dead: HashMap<String, u64> = HashMap::new();
    for set in JobSet::ALL {
        let counts = if set == JobSet::Dead { &mut dead } else { &mut waiting };
        for from in (0..SCANNED_MAX).step_by(ENTRIES_PER_STEP) {
            let page = find_job::read_set_page(store, "counts", set, from, ENTRIES_PER_STEP).await?;
            let is_last = page.len() < ENTRIES_PER_STEP;
            page.into_iter().for_each(|entry| *counts.entry(entry.queue).or_default() += 1);
            if is_last {
                break;
            }
        }
    }
    let mut queues = store.queue_names("counts").await?;
    queues.extend(waiting.keys().chain(dead.keys()).cloned());
    queues.sort();
    queues.dedup();
    let mut all = Vec::with_capacity(queues.len());
    for queue in queues {
        let mut counts = queue_counts(store, &queue).await?;
        counts.scheduled = waiting.get(&queue).copied().unwrap_or(0);
        counts.dead = dead.get(&queue).copied().unwrap_or(0);
        all.push(counts);
    }
    Ok(all)
}

async fn queue_counts(store: &Sidekiq, queue: &str) -> Result<QueueCounts> {
    let keys = store.redis.keys(queue);
    let mut cmd = COUNTS.call(&EntryKeys::new(&store.keys, &keys));
    cmd.arg(store.manual_now());
    let mut reply = store.run_script("counts", ConnectionRole::Client, &COUNTS, &cmd).await?;
    let paused = reply.int()? == 1;
    let moving = TransferMark::parse(&reply.text()?);
    let mut count = || reply.int().map(|count| u64::try_from(count).unwrap_or(0));
    let (ready, running, done) = (count()?, count()?, count()?);
    let _holders = reply.values()?;
    let first = entry::parse_entry(queue, &reply.bytes()?, None).ok().filter(|first| first.due > 0);
    let oldest_ready = first.map(|first| from_micros(first.due));
    Ok(QueueCounts {
        queue: queue.to_owned(),
        paused,
        moving,
        ready,
        running,
        done,
        oldest_ready,
        ..QueueCounts::default()
    })
}
