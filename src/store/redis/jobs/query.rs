//! Reads single jobs and counts, and changes jobs that are not running.

use std::time::SystemTime;

use crate::clock::{Micros, from_micros, micros};
use crate::error::Result;
use crate::job::push::Due;
use crate::job::{JobId, JobRecord, State};
use crate::store::redis::conn::ConnectionRole;
use crate::store::redis::keys::QueueKeys;
use crate::store::redis::record;
use crate::store::redis::record::JobMeta;
use crate::store::redis::reply::ScriptReply;
use crate::store::redis::{Redis, script};
use crate::store::{ChangeResult, QueueCounts, TransferMark};

/// Implements `JobStore::get`. Looks into all queues; if several have the id, returns the oldest job.
pub(crate) async fn get(store: &Redis, id: JobId) -> Result<Option<JobRecord>> {
    Ok(find_job(store, "get", id).await?.map(|(_, record)| record))
}

pub(crate) async fn find_job(
    store: &Redis,
    op: &'static str,
    id: JobId,
) -> Result<Option<(std::sync::Arc<QueueKeys>, JobRecord)>> {
    let queues = store.queue_names(op).await?;
    let requests = queues.iter().map(|queue| get_from_queue(store, op, queue, id));
    let mut found = None;
    for (queue, record) in queues.iter().zip(futures_util::future::join_all(requests).await) {
        if let Some(record) = record? {
            let is_older =
                |other: &(_, JobRecord)| (other.1.job.pushed, &other.1.job.queue) <= (record.job.pushed, queue);
            if !found.as_ref().is_some_and(is_older) {
                found = Some((store.keys(queue), record));
            }
        }
    }
    Ok(found)
}

pub(crate) async fn get_from_queue(
    store: &Redis,
    op: &'static str,
    queue: &str,
    id: JobId,
) -> Result<Option<JobRecord>> {
    let keys = store.keys(queue);
    let mut cmd = script::GET.call(&*keys);
    cmd.arg(store.manual_now()).arg(id.as_bytes());
    let mut reply = store.run_script(op, ConnectionRole::Client, keys.slot, &script::GET, &cmd).await?;
    if reply.is_empty() {
        return Ok(None);
    }
    let (record, meta, held) = (reply.bytes()?, reply.bytes()?, reply.bytes()?);
    let (due, done, dead) = (reply.optional_int()?, reply.optional_int()?, reply.optional_int()?);
    let state = match (&held[..], due, done, dead) {
        (b"", None, None, None) => StateDetail::Ready,
        (b"", Some(due), _, _) => StateDetail::Scheduled(due),
        (b"", _, Some(until), _) => StateDetail::Done(until),
        (b"", _, _, Some(_)) => StateDetail::Dead,
        (held, ..) => StateDetail::Running(held.to_vec()),
    };
    let mut record = build_record(id, queue, &record, Some(&meta), state);
    record.failures = reply.list()?.iter().flatten().filter_map(|text| record::decode_failure(text)).collect();
    record.progress = record::decode_progress(&reply.bytes()?);
    record.result = Some(reply.text()?).filter(|result| !result.is_empty());
    record.log = reply.list()?.iter().flatten().filter_map(|text| record::decode_log_line(text)).collect();
    Ok(Some(record))
}

/// The state of a job, with the value stored for that state.
pub(crate) enum StateDetail {
    Scheduled(Micros),
    Ready,
    Running(Vec<u8>),
    Done(Micros),
    Dead,
}

pub(crate) fn build_record(
    id: JobId,
    queue: &str,
    record: &[u8],
    meta: Option<&[u8]>,
    state_detail: StateDetail,
) -> JobRecord {
    let (job, first_due) = record::decode(id, queue, record);
    let meta = meta.and_then(JobMeta::decode).unwrap_or_default();
    let ended: Option<SystemTime> = match state_detail {
        // It is kept from its end on.
        StateDetail::Done(until) => Some(from_micros(until.saturating_sub(micros(job.keep)))),
        StateDetail::Dead => Some(from_micros(meta.changed_at)),
        _ => None,
    };
    let (node, fence) = match &state_detail {
        StateDetail::Running(value) => record::decode_held(value).map(|(node, fence, _)| (node, fence)).unzip(),
        _ => (None, None),
    };
    let due = match state_detail {
        StateDetail::Scheduled(due) => due,
        _ if meta.due > 0 => meta.due,
        _ => first_due,
    };
    let state = match state_detail {
        StateDetail::Scheduled(_) => State::Scheduled,
        StateDetail::Ready => State::Ready,
        StateDetail::Running(_) => State::Running,
        StateDetail::Done(_) => State::Done,
        StateDetail::Dead => State::Dead,
    };
    let record = JobRecord::new(job, state, from_micros(due), meta.attempts, meta.crashes);
    JobRecord { node, fence, ended, ..record }
}

/// Implements `JobStore::remove`.
pub(crate) async fn remove(store: &Redis, id: JobId) -> Result<ChangeResult> {
    match find_job(store, "remove", id).await? {
        Some((keys, record)) => remove_from_queue(store, &keys, id, record.job.unique.as_deref(), "").await,
        None => Ok(ChangeResult::NotFound),
    }
}

/// Removes a job of this queue, if it is in this state: s, r, d, b, or empty for any.
pub(crate) async fn remove_from_queue(
    store: &Redis,
    keys: &QueueKeys,
    id: JobId,
    key: Option<&str>,
    state: &str,
) -> Result<ChangeResult> {
    let mut cmd = script::REMOVE.call(keys);
    cmd.arg(store.manual_now()).arg(id.as_bytes()).arg(micros(store.options.remember));
    cmd.arg(key.unwrap_or("")).arg(state).arg(&keys.channel);
    parse_change_result(
        &mut store.run_script("remove", ConnectionRole::Client, keys.slot, &script::REMOVE, &cmd).await?,
    )
}

/// Implements `JobStore::reschedule`.
pub(crate) async fn reschedule(store: &Redis, id: JobId, due: Due) -> Result<ChangeResult> {
    match find_job(store, "reschedule", id).await? {
        Some((keys, record)) => reschedule_in_queue(store, &keys, id, record.job.unique.as_deref(), "", due).await,
        None => Ok(ChangeResult::NotFound),
    }
}

/// Reschedules a job of this queue, if it is in this state: s, r, d, b, or empty for any.
pub(crate) async fn reschedule_in_queue(
    store: &Redis,
    keys: &QueueKeys,
    id: JobId,
    key: Option<&str>,
    state: &str,
    due: Due,
) -> Result<ChangeResult> {
    let mut cmd = script::RESCHEDULE.call(keys);
    let due = match due {
        Due::Now => "+0".to_owned(),
        Due::After(delay) => record::encode_delay(delay),
        Due::At(moment) => record::clamp_moment(moment).to_string(),
    };
    cmd.arg(store.manual_now()).arg(&keys.channel).arg(id.as_bytes()).arg(due);
    cmd.arg(key.unwrap_or("")).arg(state);
    parse_change_result(
        &mut store.run_script("reschedule", ConnectionRole::Client, keys.slot, &script::RESCHEDULE, &cmd).await?,
    )
}

pub(crate) fn parse_change_result(reply: &mut ScriptReply) -> Result<ChangeResult> {
    let word = reply.bytes()?;
    Ok(match &word[..] {
        b"not_found" => ChangeResult::NotFound,
        b"running" => ChangeResult::Running,
        b"moving" => ChangeResult::Moving,
        b"changed" => ChangeResult::Changed,
        other => crate::store::redis::reply::parse_job_id(other).map_or(ChangeResult::Applied, ChangeResult::Existing),
    })
}

/// Implements `AdminStore::unique_holder`.
pub(crate) async fn unique_holder(store: &Redis, queue: &str, key: &str) -> Result<Option<JobId>> {
    let keys = store.keys(queue);
    let mut cmd = redis::cmd("HGET");
    cmd.arg(&keys.unique).arg(key);
    Ok(match store.servers.send_idempotent("unique_holder", ConnectionRole::Client, keys.slot, &cmd).await? {
        redis::Value::BulkString(bytes) => crate::store::redis::reply::parse_job_id(&bytes),
        _ => None,
    })
}

/// Implements `JobStore::counts`.
pub(crate) async fn counts(store: &Redis) -> Result<Vec<QueueCounts>> {
    let queues = store.queue_names("counts").await?;
    let requests = queues.iter().map(|queue| queue_counts(store, queue));
    futures_util::future::join_all(requests).await.into_iter().collect()
}

pub(crate) async fn queue_counts(store: &Redis, queue: &str) -> Result<QueueCounts> {
    let keys = store.keys(queue);
    let mut cmd = script::COUNTS.call(&*keys);
    cmd.arg(store.manual_now());
    let mut reply = store.run_script("counts", ConnectionRole::Client, keys.slot, &script::COUNTS, &cmd).await?;
    let paused = reply.int()? == 1;
    let moving = TransferMark::parse(&reply.text()?);
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
        oldest_ready: reply.optional_int()?.map(from_micros),
    })
}
