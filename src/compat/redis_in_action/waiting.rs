//! What waits in its keys, for duly or for others: looked at, counted, removed. The keys have no index: all of it is gone
//! through, up to a bound.

use std::collections::{BTreeMap, BTreeSet};

use redis::Value;

use super::item::Item;
use super::{DELAYED, QUEUE, RedisInAction, list_of, mixed};
use crate::clock::{Micros, from_micros};
use crate::compat::redis_in_action::{ItemKeys, import};
use crate::compat::script;
use crate::error::Result;
use crate::job::filter::Matcher;
use crate::job::push::Due;
use crate::job::{JobId, Record, State};
use crate::store::redis::Way;
use crate::store::{Filter, Moved, PAGE, PAGE_MAX, Page, QueueCounts, Store};

/// Most items that are looked at in the delayed, and in each list: what is behind them is not found by its id.
const LOOK_MAX: isize = 10_000;
/// Most lists that are looked for, and keys gone through in one step.
const LISTS_MAX: usize = 1_000;
const SCAN_STEP: usize = 1_000;
/// How the cursor of a page begins that shows what waits.
const CURSOR: &str = "waiting:";

/// An item where it waits.
struct Waiting {
    bytes: Vec<u8>,
    /// When it is due, if it is delayed.
    due: Option<Micros>,
    /// The list it is in, or will be.
    queue: String,
    item: Option<Item>,
}

impl Waiting {
    fn record(&self, store: &RedisInAction) -> Option<Record> {
        let item = self.item.as_ref()?;
        // When it was pushed nobody has noted.
        let job = import::job(store, &self.queue, item.id(), item.name.clone(), item.args.clone(), 0);
        Some(Record {
            job,
            state: if self.due.is_some() { State::Scheduled } else { State::Ready },
            due: from_micros(self.due.unwrap_or(0)),
            attempts: 0,
            crashes: 0,
            node: None,
            fence: None,
            ended: None,
            failures: Vec::new(),
            progress: None,
            result: None,
            log: Vec::new(),
        })
    }
}

/// Everything that waits, the delayed first.
async fn all(store: &RedisInAction, op: &'static str) -> Result<Vec<Waiting>> {
    let mut cmd = redis::cmd("ZRANGE");
    cmd.arg(DELAYED).arg(0).arg(LOOK_MAX - 1).arg("WITHSCORES");
    let delayed: Vec<(Vec<u8>, f64)> =
        redis::from_redis_value(store.own.ask(op, Way::Door, 0, &cmd).await?).unwrap_or_default();
    let mut found = Vec::new();
    for (bytes, score) in delayed {
        let item = Item::read(&bytes).ok();
        let queue = item.as_ref().map_or_else(String::new, |item| item.queue.clone());
        found.push(Waiting { bytes, due: Some((score * 1e6) as Micros), queue, item });
    }
    for queue in lists(store, op).await? {
        let mut cmd = redis::cmd("LRANGE");
        cmd.arg(list_of(&queue)).arg(0).arg(LOOK_MAX - 1);
        let items: Vec<Vec<u8>> =
            redis::from_redis_value(store.own.ask(op, Way::Door, 0, &cmd).await?).unwrap_or_default();
        found.extend(items.into_iter().map(|bytes| {
            let item = Item::read(&bytes).ok();
            Waiting { bytes, due: None, queue: queue.clone(), item }
        }));
    }
    Ok(found)
}

/// The names of the lists that hold arrays: those of Sidekiq are not ours to look into.
async fn lists(store: &RedisInAction, op: &'static str) -> Result<BTreeSet<String>> {
    let (mut found, mut at) = (BTreeSet::new(), "0".to_owned());
    loop {
        let mut cmd = redis::cmd("SCAN");
        cmd.arg(&at).arg("MATCH").arg(format!("{QUEUE}*")).arg("COUNT").arg(SCAN_STEP).arg("TYPE").arg("list");
        let answer = store.own.ask(op, Way::Door, 0, &cmd).await?;
        let (next, keys): (String, Vec<Vec<u8>>) = redis::from_redis_value(answer).unwrap_or_default();
        for key in keys.into_iter().filter_map(|key| String::from_utf8(key).ok()) {
            let mut head = redis::cmd("LINDEX");
            head.arg(&key).arg(0);
            let head = store.own.ask(op, Way::Door, 0, &head).await?;
            let array = matches!(&head, Value::BulkString(bytes) if !bytes.trim_ascii_start().starts_with(b"{"));
            found.extend(key.strip_prefix(QUEUE).filter(|_| array).map(str::to_owned));
        }
        at = next;
        if at == "0" || at.is_empty() || found.len() >= LISTS_MAX {
            return Ok(found);
        }
    }
}

async fn find(store: &RedisInAction, op: &'static str, id: JobId) -> Result<Option<Waiting>> {
    let is_it = |waiting: &Waiting| waiting.item.as_ref().is_some_and(|item| item.id() == id);
    Ok(all(store, op).await?.into_iter().find(is_it))
}

pub(super) async fn get(store: &RedisInAction, id: JobId) -> Result<Option<Record>> {
    Ok(find(store, "get", id).await?.and_then(|waiting| waiting.record(store)))
}

/// What duly has taken first, then what waits.
pub(super) async fn list(store: &RedisInAction, filter: Filter) -> Result<Page> {
    let limit = if filter.limit == 0 { PAGE } else { filter.limit.min(PAGE_MAX) };
    let from = filter.cursor.as_deref().and_then(|cursor| cursor.strip_prefix(CURSOR)).map(str::parse::<usize>);
    let waits = filter.state.is_none_or(|state| matches!(state, State::Scheduled | State::Ready));
    let Some(Ok(from)) = from else {
        let mut page = store.own.list(filter).await?;
        if page.next.is_none() && waits {
            page.next = Some(format!("{CURSOR}0"));
        }
        return Ok(page);
    };
    let matcher = Matcher::new(&filter, store.own.now());
    let fits = |record: &Record| matcher.is_met(record);
    let found = all(store, "list").await?;
    let mut jobs: Vec<Record> =
        found.iter().filter_map(|waiting| waiting.record(store)).filter(fits).skip(from).take(limit + 1).collect();
    let more = jobs.len() > limit;
    jobs.truncate(limit);
    let looked = jobs.len() as u64;
    Ok(Page { jobs, looked, next: more.then(|| format!("{CURSOR}{}", from + limit)) })
}

pub(super) async fn remove(store: &RedisInAction, id: JobId) -> Result<Moved> {
    let Some(waiting) = find(store, "remove", id).await? else {
        return Ok(Moved::NotFound);
    };
    let mut cmd = match waiting.due {
        Some(_) => redis::cmd("ZREM"),
        None => redis::cmd("LREM"),
    };
    match waiting.due {
        Some(_) => cmd.arg(DELAYED),
        None => cmd.arg(list_of(&waiting.queue)).arg(1),
    };
    cmd.arg(&waiting.bytes);
    match store.own.tell("remove", Way::Door, 0, &cmd).await? {
        Value::Int(0) => Ok(Moved::NotFound),
        _ => Ok(Moved::Yes),
    }
}

pub(super) async fn reschedule(store: &RedisInAction, id: JobId, due: Due) -> Result<Moved> {
    let Some(waiting) = find(store, "reschedule", id).await? else {
        return Ok(Moved::NotFound);
    };
    let due = match super::due(due) {
        now if now.is_empty() => "+0".to_owned(),
        due => due,
    };
    let keys = store.own.keys(&waiting.queue);
    let mut cmd = script::RIA_RESCHEDULE.call(&ItemKeys::new(&keys));
    cmd.arg(store.own.manual_now()).arg(&waiting.queue).arg(&waiting.bytes).arg(due);
    let mut reply = store.own.run("reschedule", Way::Door, 0, &script::RIA_RESCHEDULE, &cmd).await?;
    match (reply.text()?.as_str(), reply.int()?) {
        ("", 1) => Ok(Moved::Yes),
        ("", _) => Ok(Moved::NotFound),
        (why, _) => Err(mixed(&waiting.queue, why)),
    }
}

pub(super) async fn counts(store: &RedisInAction) -> Result<Vec<QueueCounts>> {
    let mut queues: BTreeMap<String, QueueCounts> =
        store.own.counts().await?.into_iter().map(|counts| (counts.queue.clone(), counts)).collect();
    let mut of = |queue: &str, ready: u64, scheduled: u64| {
        let counts = queues.entry(queue.to_owned()).or_default();
        counts.queue = queue.to_owned();
        counts.ready += ready;
        counts.scheduled += scheduled;
    };
    for queue in lists(store, "counts").await? {
        let mut cmd = redis::cmd("LLEN");
        cmd.arg(list_of(&queue));
        let length: u64 = redis::from_redis_value(store.own.ask("counts", Way::Door, 0, &cmd).await?).unwrap_or(0);
        of(&queue, length, 0);
    }
    let mut cmd = redis::cmd("ZRANGE");
    cmd.arg(DELAYED).arg(0).arg(LOOK_MAX - 1);
    let delayed: Vec<Vec<u8>> =
        redis::from_redis_value(store.own.ask("counts", Way::Door, 0, &cmd).await?).unwrap_or_default();
    for item in delayed.iter().filter_map(|bytes| Item::read(bytes).ok()) {
        of(&item.queue, 0, 1);
    }
    Ok(queues.into_values().collect())
}
