//! Statistics: counters per minute and hour, and totals.

pub(crate) mod kinds;

use async_trait::async_trait;

use crate::error::Result;
use crate::store::redis::conn::ConnectionRole;
use crate::store::redis::{Redis, reply, script};
use crate::store::{
    History, HistoryPoints, HistoryQuery, KindStats, KindStatsQuery, Resolution, STAT_NUMBERS, StatCounters, StatsStore,
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

    async fn kind_stats(&self, query: KindStatsQuery) -> Result<Vec<KindStats>> {
        kinds::kind_stats(self, &query).await
    }
}

/// Implements `StatsStore::history`.
pub(super) async fn history(store: &Redis, query: &HistoryQuery) -> Result<History> {
    let mut queues = store.queue_names("history").await?;
    queues.retain(|queue| query.queue.as_ref().is_none_or(|only| only == queue));
    let mut points = HistoryPoints::new(query);
    for batch in queues.chunks(QUEUES_AT_ONCE) {
        let requests = batch.iter().map(|queue| async move {
            match query.resolution {
                Resolution::Minute => minutes_of_queue(store, queue, query.count()).await,
                Resolution::Hour => hours_of_queue(store, queue, query.count()).await,
            }
        });
        for (queue, found) in batch.iter().zip(futures_util::future::join_all(requests).await) {
            found?.iter().for_each(|(number, counters)| points.add(*number, queue, counters));
        }
    }
    Ok(points.into_history(store.now()))
}

/// The number of a minute or hour, and its counters.
type Interval = (i64, [u64; STAT_NUMBERS]);

async fn minutes_of_queue(store: &Redis, queue: &str, minutes: u32) -> Result<Vec<Interval>> {
    let keys = store.keys(queue);
    let mut found = Vec::new();
    let mut ago = minutes;
    while ago > 0 {
        let count = ago.min(MINUTES_PER_BATCH);
        let mut cmd = script::HISTORY.call(&*keys);
        cmd.arg(store.manual_now()).arg(ago - 1).arg(count);
        let mut reply = store.run_script("history", ConnectionRole::Client, keys.slot, &script::HISTORY, &cmd).await?;
        let (first, numbers) = (reply.int()?, reply.list()?);
        found.extend(parse_minutes(first, &numbers));
        ago -= count;
    }
    Ok(found)
}

/// Returns the hours, and the minutes that are not in their hour yet.
async fn hours_of_queue(store: &Redis, queue: &str, hours: u32) -> Result<Vec<Interval>> {
    let keys = store.keys(queue);
    let mut cmd = script::HISTORY_HOURS.call(&*keys);
    cmd.arg(store.manual_now()).arg(hours - 1).arg(hours);
    for _ in 0..ROLLUP_BATCHES_MAX {
        let mut reply =
            store.run_script("history", ConnectionRole::Client, keys.slot, &script::HISTORY_HOURS, &cmd).await?;
        let (has_more, first_hour, first_minute) = (reply.int()? == 1, reply.int()?, reply.int()?);
        if has_more {
            continue;
        }
        let found = reply.list()?;
        let (in_hours, in_minutes) = found.split_at_checked(hours as usize).unwrap_or_default();
        let hours = in_hours.iter().zip(first_hour..).map(|(counters, hour)| {
            let text = String::from_utf8_lossy(counters.as_deref().unwrap_or_default());
            (hour, kinds::decode_counters(&text))
        });
        let minutes = parse_minutes(first_minute, in_minutes);
        return Ok(hours.chain(minutes.map(|(minute, counters)| (minute.div_euclid(60), counters))).collect());
    }
    Ok(Vec::new())
}

fn parse_minutes(first: i64, numbers: &[Option<Vec<u8>>]) -> impl Iterator<Item = Interval> {
    numbers.chunks_exact(STAT_NUMBERS).zip(first..).map(|(numbers, minute)| {
        let mut counters = [0u64; STAT_NUMBERS];
        for (counter, number) in counters.iter_mut().zip(numbers) {
            *counter = number.as_deref().map_or(0, |text| u64::try_from(reply::parse_number(text)).unwrap_or(0));
        }
        (minute, counters)
    })
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
