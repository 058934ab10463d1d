//! Counts the jobs of each queue. Scheduled, retried and dead jobs are in sets that all queues share, so these are
//! scanned. Jobs that a transfer has reserved count as what they were before.

use std::collections::HashMap;

use super::Sidekiq;
use super::entry;
use super::keys::EntryKeys;
use super::scripts::COUNTS;
use crate::clock::from_micros;
use crate::compat::sidekiq::find_job;
use crate::compat::sidekiq::find_job::JobSet;
use crate::error::Result;
use crate::store::redis::{ConnectionRole, QueueKeys};
use crate::store::{QueueCounts, TransferMark};

/// Entries of a set read at a time.
const ENTRIES_PER_BATCH: usize = 1_000;
/// Most entries of a set that are scanned; the rest are not counted.
const SCANNED_MAX: usize = 100_000;

/// Implements `JobStore::counts`.
pub(super) async fn counts(store: &Sidekiq) -> Result<Vec<QueueCounts>> {
    let mut waiting: HashMap<String, u64> = HashMap::new();
    let mut dead: HashMap<String, u64> = HashMap::new();
    for set in JobSet::ALL {
        let counts = if set == JobSet::Dead { &mut dead } else { &mut waiting };
        for from in (0..SCANNED_MAX).step_by(ENTRIES_PER_BATCH) {
            let page = find_job::read_set_page(store, "counts", set, from, ENTRIES_PER_BATCH).await?;
            let is_last = page.len() < ENTRIES_PER_BATCH;
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
        let QueueContent { mut counts, reserved, .. } = read_queue(store, "counts", &store.redis.keys(&queue)).await?;
        counts.ready += reserved.ready;
        counts.scheduled = waiting.get(&queue).copied().unwrap_or(0) + reserved.scheduled;
        counts.dead = dead.get(&queue).copied().unwrap_or(0) + reserved.dead;
        counts.done += reserved.done;
        all.push(counts);
    }
    Ok(all)
}

/// The content of one queue, without the entries of the sets that all queues share.
pub(super) struct QueueContent {
    pub(super) counts: QueueCounts,
    /// The nodes that hold entries.
    pub(super) holders: Vec<String>,
    pub(super) reserved: ReservedCounts,
}

/// Entries that a transfer has taken out of their positions and not yet deleted, by their state before.
pub(super) struct ReservedCounts {
    ready: u64,
    scheduled: u64,
    dead: u64,
    done: u64,
}

impl ReservedCounts {
    pub(super) fn total(&self) -> u64 {
        self.ready + self.scheduled + self.dead + self.done
    }
}

/// Reads the content of one queue.
pub(super) async fn read_queue(store: &Sidekiq, op: &'static str, keys: &QueueKeys) -> Result<QueueContent> {
    let mut cmd = COUNTS.call(&EntryKeys::new(&store.keys, keys).reserved());
    cmd.arg(store.manual_now());
    let mut reply = store.run_script(op, ConnectionRole::Client, &COUNTS, &cmd).await?;
    let paused = reply.int()? == 1;
    let moving = TransferMark::parse(&reply.text()?);
    let mut count = || reply.int().map(|count| u64::try_from(count).unwrap_or(0));
    let (ready, running, done) = (count()?, count()?, count()?);
    let holders = reply.list()?.into_iter().flatten().filter_map(|name| String::from_utf8(name).ok()).collect();
    let first = entry::parse_entry(&keys.queue, &reply.bytes()?, None).ok().filter(|first| first.due > 0);
    let oldest_ready = first.map(|first| from_micros(first.due));
    let queue = keys.queue.to_string();
    let counts = QueueCounts { queue, paused, moving, ready, running, done, oldest_ready, ..QueueCounts::default() };
    let mut count = || reply.int().map(|count| u64::try_from(count).unwrap_or(0));
    let reserved = ReservedCounts { ready: count()?, scheduled: count()?, dead: count()?, done: count()? };
    Ok(QueueContent { counts, holders, reserved })
}
