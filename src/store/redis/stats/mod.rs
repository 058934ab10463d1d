//! Statistics: counters per minute, and totals.

pub(crate) mod kinds;

use async_trait::async_trait;

use crate::clock::from_micros;
use crate::error::Result;
use crate::store::redis::conn::ConnectionRole;
use crate::store::redis::jobs::push::MINUTE_MICROS;
use crate::store::redis::{Redis, reply, script};
use crate::store::{
    HISTORY_MINUTES_MAX, History, HistoryPoint, HistoryQuery, KindStats, STAT_NUMBERS, StatCounters, StatsStore,
};

/// Minutes per request.
const MINUTES_PER_BATCH: u32 = 60;
/// Maximum requests to add up minutes: a year of them, in case no worker has run for that long.
const ROLLUP_BATCHES_MAX: usize = 366 * 24;
/// Number of concurrent queues.
const QUEUES_AT_ONCE: usize = 50;

#[async_trait]
impl StatsStore for Redis {
    async fn history(&self, query: HistoryQuery) -> Result<History> {
        history(self, &query).await
    }

    async fn queue_totals(&self) -> Result<Vec<(String, StatCounters)>> {
        queue_totals(self).await
    }

    async fn add_kind_stats(&self, kinds: Vec<(String, StatCounters)>) -> Result<()> {
        kinds::add_kind_stats(self, &kinds).await
    }

    async fn kind_stats(&self, hours: u32) -> Result<Vec<KindStats>> {
        kinds::kind_stats(self, hours).await
    }
}

/// Implements `StatsStore::history`.
pub(super) async fn history(store: &Redis, query: &HistoryQuery) -> Result<History> {
    let minutes = if query.minutes == 0 { HISTORY_MINUTES_MAX } else { query.minutes.min(HISTORY_MINUTES_MAX) };
    let mut queues = store.queue_names("history").await?;
    queues.retain(|queue| query.queue.as_ref().is_none_or(|only| only == queue));
    let mut history = History { now: Some(from_micros(store.now())), ..History::default() };
    for batch in queues.chunks(QUEUES_AT_ONCE) {
        let requests = batch.iter().map(|queue| history_of_queue(store, queue, minutes));
        for points in futures_util::future::join_all(requests).await {
            history.points.extend(points?);
        }
    }
    history.points.sort_by(|a, b| (a.minute, &a.queue).cmp(&(b.minute, &b.queue)));
    Ok(history)
}

async fn history_of_queue(store: &Redis, queue: &str, minutes: u32) -> Result<Vec<HistoryPoint>> {
    let keys = store.keys(queue);
    let mut points = Vec::new();
    let mut ago = minutes;
    while ago > 0 {
        let count = ago.min(MINUTES_PER_BATCH);
        let mut cmd = script::HISTORY.call(&*keys);
        cmd.arg(store.manual_now()).arg(ago - 1).arg(count);
        let mut reply = store.run_script("history", ConnectionRole::Client, keys.slot, &script::HISTORY, &cmd).await?;
        let (first, numbers) = (reply.int()?, reply.list()?);
        for (index, numbers) in numbers.chunks_exact(STAT_NUMBERS).enumerate() {
            let mut counters = [0u64; STAT_NUMBERS];
            for (sum, number) in counters.iter_mut().zip(numbers) {
                *sum = number.as_deref().map_or(0, |text| u64::try_from(reply::parse_number(text)).unwrap_or(0));
            }
            if counters != [0; STAT_NUMBERS] {
                let minute = from_micros((first + index as i64) * MINUTE_MICROS);
                points.push(HistoryPoint {
                    minute,
                    queue: queue.to_owned(),
                    counters: StatCounters::from_numbers(&counters),
                });
            }
        }
        ago -= count;
    }
    Ok(points)
}

/// Implements `StatsStore::queue_totals`.
pub(super) async fn queue_totals(store: &Redis) -> Result<Vec<(String, StatCounters)>> {
    let queues = store.queue_names("queue_totals").await?;
    let mut totals = Vec::with_capacity(queues.len());
    for batch in queues.chunks(QUEUES_AT_ONCE) {
        let requests = batch.iter().map(|queue| totals_of_queue(store, queue));
        for (queue, counters) in batch.iter().zip(futures_util::future::join_all(requests).await) {
            totals.push((queue.clone(), counters?));
        }
    }
    Ok(totals)
}

async fn totals_of_queue(store: &Redis, queue: &str) -> Result<StatCounters> {
    let keys = store.keys(queue);
    let mut cmd = script::QUEUE_TOTALS.call(&*keys);
    cmd.arg(store.manual_now());
    let mut counters = [0u64; STAT_NUMBERS];
    for _ in 0..ROLLUP_BATCHES_MAX {
        let mut reply =
            store.run_script("queue_totals", ConnectionRole::Client, keys.slot, &script::QUEUE_TOTALS, &cmd).await?;
        let (has_more, numbers) = (reply.int()? == 1, reply.list()?);
        for (sum, number) in counters.iter_mut().zip(numbers) {
            *sum = number.as_deref().map_or(0, |text| u64::try_from(reply::parse_number(text)).unwrap_or(0));
        }
        if !has_more {
            break;
        }
    }
    Ok(StatCounters::from_numbers(&counters))
}
