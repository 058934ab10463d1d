//! Items that wait in the keys of Redis in Action, for duly or another worker: get, list, remove, reschedule, count.
//! These keys have no index, so every operation scans them, up to a bound.

use std::collections::{BTreeMap, BTreeSet};

use redis::Value;

use super::item::Item;
use super::{DELAYED_KEY, QUEUE_PREFIX, RedisInAction, list_key, mixed_list_error};
use crate::clock::{Micros, from_micros};
use crate::compat::redis_in_action::{ItemKeys, import};
use crate::compat::script;
use crate::error::Result;
use crate::job::filter::Matcher;
use crate::job::push::Due;
use crate::job::{JobId, JobRecord, State};
use crate::store::redis::ConnectionRole;
use crate::store::{ChangeResult, DEFAULT_PAGE_SIZE, Filter, JobPage, JobStore, PAGE_SIZE_MAX, QueueCounts};

/// Most items scanned among the delayed, and in each list; an item further back is not found by its id.
const ITEMS_SCANNED_MAX: isize = 10_000;
/// Most lists, and keys per `SCAN`.
const LISTS_MAX: usize = 1_000;
const KEYS_PER_SCAN: usize = 1_000;
/// Prefix of the cursor of a page of waiting items.
const CURSOR_PREFIX: &str = "waiting:";

/// A waiting item and its position.
struct WaitingItem {
    bytes: Vec<u8>,
    /// The due time of a delayed item; `None` if the item is in a list.
    due: Option<Micros>,
    /// The queue of the list that holds the item, or will hold it.
    queue: String,
    item: Option<Item>,
}

impl WaitingItem {
    fn to_record(&self, store: &RedisInAction) -> Option<JobRecord> {
        let item = self.item.as_ref()?;
        // An item does not carry its push time.
        let job = import::build_job(store, &self.queue, item.job_id(), item.name.clone(), item.args.clone(), 0);
        let state = if self.due.is_some() { State::Scheduled } else { State::Ready };
        Some(JobRecord::new(job, state, from_micros(self.due.unwrap_or(0)), 0, 0))
    }
}

/// Reads all waiting items, the delayed ones first.
async fn read_all(store: &RedisInAction, op: &'static str) -> Result<Vec<WaitingItem>> {
    let mut cmd = redis::cmd("ZRANGE");
    cmd.arg(DELAYED_KEY).arg(0).arg(ITEMS_SCANNED_MAX - 1).arg("WITHSCORES");
    let delayed: Vec<(Vec<u8>, f64)> =
        redis::from_redis_value(store.redis.send_idempotent(op, ConnectionRole::Client, 0, &cmd).await?)
            .unwrap_or_default();
    let mut found = Vec::new();
    for (bytes, score) in delayed {
        let item = Item::parse(&bytes).ok();
        let queue = item.as_ref().map_or_else(String::new, |item| item.queue.clone());
        found.push(WaitingItem { bytes, due: Some((score * 1e6) as Micros), queue, item });
    }
    for queue in find_lists(store, op).await? {
        let mut cmd = redis::cmd("LRANGE");
        cmd.arg(list_key(&queue)).arg(0).arg(ITEMS_SCANNED_MAX - 1);
        let items: Vec<Vec<u8>> =
            redis::from_redis_value(store.redis.send_idempotent(op, ConnectionRole::Client, 0, &cmd).await?)
                .unwrap_or_default();
        found.extend(items.into_iter().map(|bytes| {
            let item = Item::parse(&bytes).ok();
            WaitingItem { bytes, due: None, queue: queue.clone(), item }
        }));
    }
    Ok(found)
}

/// Returns the queues whose list starts with an array; lists of Sidekiq start with an object.
async fn find_lists(store: &RedisInAction, op: &'static str) -> Result<BTreeSet<String>> {
    let (mut found, mut cursor) = (BTreeSet::new(), "0".to_owned());
    loop {
        let mut cmd = redis::cmd("SCAN");
        cmd.arg(&cursor)
            .arg("MATCH")
            .arg(format!("{QUEUE_PREFIX}*"))
            .arg("COUNT")
            .arg(KEYS_PER_SCAN)
            .arg("TYPE")
            .arg("list");
        let reply = store.redis.send_idempotent(op, ConnectionRole::Client, 0, &cmd).await?;
        let (next, keys): (String, Vec<Vec<u8>>) = redis::from_redis_value(reply).unwrap_or_default();
        for key in keys.into_iter().filter_map(|key| String::from_utf8(key).ok()) {
            let mut head = redis::cmd("LINDEX");
            head.arg(&key).arg(0);
            let head = store.redis.send_idempotent(op, ConnectionRole::Client, 0, &head).await?;
            let is_array = matches!(&head, Value::BulkString(bytes) if !bytes.trim_ascii_start().starts_with(b"{"));
            found.extend(key.strip_prefix(QUEUE_PREFIX).filter(|_| is_array).map(str::to_owned));
        }
        cursor = next;
        if cursor == "0" || cursor.is_empty() || found.len() >= LISTS_MAX {
            return Ok(found);
        }
    }
}

async fn find_item(store: &RedisInAction, op: &'static str, id: JobId) -> Result<Option<WaitingItem>> {
    let has_id = |waiting: &WaitingItem| waiting.item.as_ref().is_some_and(|item| item.job_id() == id);
    Ok(read_all(store, op).await?.into_iter().find(has_id))
}

pub(super) async fn get(store: &RedisInAction, id: JobId) -> Result<Option<JobRecord>> {
    Ok(find_item(store, "get", id).await?.and_then(|waiting| waiting.to_record(store)))
}

/// Lists the jobs that duly has taken, then the waiting items.
pub(super) async fn list(store: &RedisInAction, filter: Filter) -> Result<JobPage> {
    let limit = if filter.limit == 0 { DEFAULT_PAGE_SIZE } else { filter.limit.min(PAGE_SIZE_MAX) };
    let cursor = filter.cursor.as_deref().and_then(|cursor| cursor.strip_prefix(CURSOR_PREFIX));
    let includes_waiting = filter.state.is_none_or(|state| matches!(state, State::Scheduled | State::Ready));
    let Some(Ok(from)) = cursor.map(str::parse::<usize>) else {
        let mut page = store.redis.list(filter).await?;
        if page.next_cursor.is_none() && includes_waiting {
            page.next_cursor = Some(format!("{CURSOR_PREFIX}0"));
        }
        return Ok(page);
    };
    let matcher = Matcher::new(&filter, store.redis.now());
    let items = read_all(store, "list").await?;
    let records = items.iter().filter_map(|waiting| waiting.to_record(store));
    let mut jobs: Vec<JobRecord> =
        records.filter(|record| matcher.matches(record)).skip(from).take(limit + 1).collect();
    let has_more = jobs.len() > limit;
    jobs.truncate(limit);
    let scanned = jobs.len() as u64;
    Ok(JobPage { jobs, scanned, next_cursor: has_more.then(|| format!("{CURSOR_PREFIX}{}", from + limit)) })
}

pub(super) async fn remove(store: &RedisInAction, id: JobId) -> Result<ChangeResult> {
    let Some(waiting) = find_item(store, "remove", id).await? else {
        return Ok(ChangeResult::NotFound);
    };
    let mut cmd = match waiting.due {
        Some(_) => redis::cmd("ZREM"),
        None => redis::cmd("LREM"),
    };
    match waiting.due {
        Some(_) => cmd.arg(DELAYED_KEY),
        None => cmd.arg(list_key(&waiting.queue)).arg(1),
    };
    cmd.arg(&waiting.bytes);
    match store.redis.send_once("remove", ConnectionRole::Client, 0, &cmd).await? {
        Value::Int(0) => Ok(ChangeResult::NotFound),
        _ => Ok(ChangeResult::Applied),
    }
}

pub(super) async fn reschedule(store: &RedisInAction, id: JobId, due: Due) -> Result<ChangeResult> {
    let Some(waiting) = find_item(store, "reschedule", id).await? else {
        return Ok(ChangeResult::NotFound);
    };
    let due = match super::due_argument(due) {
        now if now.is_empty() => "+0".to_owned(),
        due => due,
    };
    let keys = store.redis.keys(&waiting.queue);
    let mut cmd = script::RIA_RESCHEDULE.call(&ItemKeys::new(&keys));
    cmd.arg(store.redis.manual_now()).arg(&waiting.queue).arg(&waiting.bytes).arg(due);
    let mut reply =
        store.redis.run_script("reschedule", ConnectionRole::Client, 0, &script::RIA_RESCHEDULE, &cmd).await?;
    match (reply.text()?.as_str(), reply.int()?) {
        ("", 1) => Ok(ChangeResult::Applied),
        ("", _) => Ok(ChangeResult::NotFound),
        (reason, _) => Err(mixed_list_error(&waiting.queue, reason)),
    }
}

pub(super) async fn counts(store: &RedisInAction) -> Result<Vec<QueueCounts>> {
    let mut queues: BTreeMap<String, QueueCounts> =
        store.redis.counts().await?.into_iter().map(|counts| (counts.queue.clone(), counts)).collect();
    let mut add_counts = |queue: &str, ready: u64, scheduled: u64| {
        let counts = queues.entry(queue.to_owned()).or_default();
        counts.queue = queue.to_owned();
        counts.ready += ready;
        counts.scheduled += scheduled;
    };
    for queue in find_lists(store, "counts").await? {
        let mut cmd = redis::cmd("LLEN");
        cmd.arg(list_key(&queue));
        let length: u64 =
            redis::from_redis_value(store.redis.send_idempotent("counts", ConnectionRole::Client, 0, &cmd).await?)
                .unwrap_or(0);
        add_counts(&queue, length, 0);
    }
    let mut cmd = redis::cmd("ZRANGE");
    cmd.arg(DELAYED_KEY).arg(0).arg(ITEMS_SCANNED_MAX - 1);
    let delayed: Vec<Vec<u8>> =
        redis::from_redis_value(store.redis.send_idempotent("counts", ConnectionRole::Client, 0, &cmd).await?)
            .unwrap_or_default();
    for item in delayed.iter().filter_map(|bytes| Item::parse(bytes).ok()) {
        add_counts(&item.queue, 0, 1);
    }
    Ok(queues.into_values().collect())
}
