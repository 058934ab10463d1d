//! Looking at jobs, and moving those that are not running.

use std::time::SystemTime;

use crate::clock::{Micros, from_micros, micros};
use crate::error::Result;
use crate::job::push::Due;
use crate::job::{JobId, Record, State};
use crate::store::redis::conn::Way;
use crate::store::redis::keys::QueueKeys;
use crate::store::redis::record;
use crate::store::redis::record::Meta;
use crate::store::redis::reply::Reply;
use crate::store::redis::{Redis, script};
use crate::store::{Moved, Moving, QueueCounts};

/// `get` of the contract. An id without a queue is asked of all of them; of several, the oldest.
pub(crate) async fn get(store: &Redis, id: JobId) -> Result<Option<Record>> {
    Ok(find(store, "get", id).await?.map(|(_, record)| record))
}

pub(crate) async fn find(
    store: &Redis,
    op: &'static str,
    id: JobId,
) -> Result<Option<(std::sync::Arc<QueueKeys>, Record)>> {
    let queues = store.queues(op).await?;
    let asks = queues.iter().map(|queue| get_in(store, op, queue, id));
    let mut found = None;
    for (queue, record) in queues.iter().zip(futures_util::future::join_all(asks).await) {
        if let Some(record) = record? {
            let older = |other: &(_, Record)| (other.1.job.pushed, &other.1.job.queue) <= (record.job.pushed, queue);
            if !found.as_ref().is_some_and(older) {
                found = Some((store.keys(queue), record));
            }
        }
    }
    Ok(found)
}

pub(crate) async fn get_in(store: &Redis, op: &'static str, queue: &str, id: JobId) -> Result<Option<Record>> {
    let keys = store.keys(queue);
    let mut cmd = script::GET.call(&*keys);
    cmd.arg(store.manual_now()).arg(id.as_bytes());
    let mut reply = store.reply(op, store.link.run(op, Way::Door, keys.slot, &script::GET, &cmd).await?)?;
    if reply.is_empty() {
        return Ok(None);
    }
    let (record, meta, held) = (reply.bytes()?, reply.bytes()?, reply.bytes()?);
    let (due, done, dead) = (reply.maybe_int()?, reply.maybe_int()?, reply.maybe_int()?);
    let state = match (&held[..], due, done, dead) {
        (b"", None, None, None) => At::Ready,
        (b"", Some(due), _, _) => At::Scheduled(due),
        (b"", _, Some(until), _) => At::Done(until),
        (b"", _, _, Some(_)) => At::Dead,
        (held, ..) => At::Running(held.to_vec()),
    };
    let mut record = assemble(id, queue, &record, Some(&meta), state);
    record.failures = reply.list()?.iter().flatten().filter_map(|text| record::read_failure(text)).collect();
    record.progress = record::read_progress(&reply.bytes()?);
    record.result = Some(reply.text()?).filter(|result| !result.is_empty());
    record.log = reply.list()?.iter().flatten().filter_map(|text| record::read_line(text)).collect();
    Ok(Some(record))
}

/// Where a job is, with what that place says.
pub(crate) enum At {
    Scheduled(Micros),
    Ready,
    Running(Vec<u8>),
    Done(Micros),
    Dead,
}

pub(crate) fn assemble(id: JobId, queue: &str, record: &[u8], meta: Option<&[u8]>, at: At) -> Record {
    let (job, first_due) = record::read(id, queue, record);
    let meta = meta.and_then(Meta::read).unwrap_or_default();
    let ended: Option<SystemTime> = match at {
        // It was kept from its end on.
        At::Done(until) => Some(from_micros(until.saturating_sub(micros(job.keep)))),
        At::Dead => Some(from_micros(meta.moved)),
        _ => None,
    };
    let (node, fence) = match &at {
        At::Running(value) => record::read_held(value).map(|(node, fence, _)| (node, fence)).unzip(),
        _ => (None, None),
    };
    let due = match at {
        At::Scheduled(due) => due,
        _ if meta.due > 0 => meta.due,
        _ => first_due,
    };
    let state = match at {
        At::Scheduled(_) => State::Scheduled,
        At::Ready => State::Ready,
        At::Running(_) => State::Running,
        At::Done(_) => State::Done,
        At::Dead => State::Dead,
    };
    let (attempts, crashes) = (meta.attempts, meta.crashes);
    let (failures, log) = (Vec::new(), Vec::new());
    let due = from_micros(due);
    Record { job, state, due, attempts, crashes, node, fence, ended, failures, progress: None, result: None, log }
}

/// `remove` of the contract.
pub(crate) async fn remove(store: &Redis, id: JobId) -> Result<Moved> {
    match find(store, "remove", id).await? {
        Some((keys, record)) => remove_in(store, &keys, id, record.job.unique.as_deref(), "").await,
        None => Ok(Moved::NotFound),
    }
}

/// Removes a job of this queue, if it is in this state: s, r, d, b, or any.
pub(crate) async fn remove_in(
    store: &Redis,
    keys: &QueueKeys,
    id: JobId,
    key: Option<&str>,
    state: &str,
) -> Result<Moved> {
    let mut cmd = script::REMOVE.call(keys);
    cmd.arg(store.manual_now()).arg(id.as_bytes()).arg(micros(store.options.remember));
    cmd.arg(key.unwrap_or("")).arg(state).arg(&keys.channel);
    let value = store.link.run("remove", Way::Door, keys.slot, &script::REMOVE, &cmd).await?;
    moved(&mut store.reply("remove", value)?)
}

/// `reschedule` of the contract.
pub(crate) async fn reschedule(store: &Redis, id: JobId, to: Due) -> Result<Moved> {
    match find(store, "reschedule", id).await? {
        Some((keys, record)) => reschedule_in(store, &keys, id, record.job.unique.as_deref(), "", to).await,
        None => Ok(Moved::NotFound),
    }
}

/// Reschedules a job of this queue, if it is in this state: s, r, d, b, or any.
pub(crate) async fn reschedule_in(
    store: &Redis,
    keys: &QueueKeys,
    id: JobId,
    key: Option<&str>,
    state: &str,
    to: Due,
) -> Result<Moved> {
    let mut cmd = script::RESCHEDULE.call(keys);
    let to = match to {
        Due::Now => "+0".to_owned(),
        Due::After(delay) => record::delay(delay),
        Due::At(moment) => record::moment(moment).to_string(),
    };
    cmd.arg(store.manual_now()).arg(&keys.channel).arg(id.as_bytes()).arg(to);
    cmd.arg(key.unwrap_or("")).arg(state);
    let value = store.link.run("reschedule", Way::Door, keys.slot, &script::RESCHEDULE, &cmd).await?;
    moved(&mut store.reply("reschedule", value)?)
}

pub(crate) fn moved(reply: &mut Reply) -> Result<Moved> {
    let answer = reply.bytes()?;
    Ok(match &answer[..] {
        b"not_found" => Moved::NotFound,
        b"running" => Moved::Running,
        b"moving" => Moved::Moving,
        b"changed" => Moved::Changed,
        other => crate::store::redis::reply::id(other).map_or(Moved::Yes, Moved::Existing),
    })
}

/// `holder` of the contract.
pub(crate) async fn holder(store: &Redis, queue: &str, key: &str) -> Result<Option<JobId>> {
    let keys = store.keys(queue);
    let mut cmd = redis::cmd("HGET");
    cmd.arg(&keys.unique).arg(key);
    Ok(match store.link.ask("holder", Way::Door, keys.slot, &cmd).await? {
        redis::Value::BulkString(bytes) => crate::store::redis::reply::id(&bytes),
        _ => None,
    })
}

/// `counts` of the contract.
pub(crate) async fn counts(store: &Redis) -> Result<Vec<QueueCounts>> {
    let queues = store.queues("counts").await?;
    let asks = queues.iter().map(|queue| counts_of(store, queue));
    futures_util::future::join_all(asks).await.into_iter().collect()
}

pub(crate) async fn counts_of(store: &Redis, queue: &str) -> Result<QueueCounts> {
    let keys = store.keys(queue);
    let mut cmd = script::COUNTS.call(&*keys);
    cmd.arg(store.manual_now());
    let value = store.link.run("counts", Way::Door, keys.slot, &script::COUNTS, &cmd).await?;
    let mut reply = store.reply("counts", value)?;
    let paused = reply.int()? == 1;
    let moving = Moving::parse(&reply.text()?);
    let mut count = || reply.int().map(|count| u64::try_from(count).unwrap_or(0));
    Ok(QueueCounts {
        queue: queue.to_owned(),
        paused,
        moving,
        scheduled: count()?,
        ready: count()?,
        running: count()?,
        done: count()?,
        dead: count()?,
        bytes: count()?,
        capacity: reply.capacity()?,
        oldest: reply.maybe_int()?.map(from_micros),
    })
}
