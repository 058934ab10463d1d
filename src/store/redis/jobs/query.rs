//! Queries: one job, counts, completed jobs. Never writes.

use std::time::SystemTime;

use crate::clock::{Micros, from_micros, micros};
use crate::error::Result;
use crate::job::{JobId, JobRecord, State};
use crate::store::redis::conn::ConnectionRole;
use crate::store::redis::keys::QueueKeys;
use crate::store::redis::record;
use crate::store::redis::record::JobMeta;
use crate::store::redis::run_text;
use crate::store::redis::{Redis, script};
use crate::store::{COMPLETION_CHECK_MAX, QueueCounts, TransferMark};

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
    let (due, done) = (reply.optional_int()?, reply.optional_int()?);
    let (dead, cancelled) = (reply.optional_int()?, reply.optional_int()?);
    let state = match (&held[..], due, done, dead) {
        (b"", None, None, None) if cancelled.is_some() => StateDetail::Cancelled,
        (b"", None, None, None) => StateDetail::Ready,
        (b"", Some(due), _, _) => StateDetail::Scheduled(due),
        (b"", _, Some(until), _) => StateDetail::Done(until),
        (b"", _, _, Some(_)) => StateDetail::Dead,
        (held, ..) => StateDetail::Running(held.to_vec()),
    };
    let mut record = build_record(id, queue, &record, Some(&meta), state);
    let mut runs: Vec<_> = reply.list()?.iter().flatten().filter_map(|text| run_text::decode_run(text)).collect();
    record.progress = record::decode_progress(&reply.bytes()?);
    record.result = Some(reply.text()?).filter(|result| !result.is_empty());
    record.log = reply.list()?.iter().flatten().filter_map(|text| record::decode_log_line(text)).collect();
    let ack = reply.bytes()?;
    runs.extend(run_text::decode_ack(&ack, &record).filter(|_| record.state == State::Done));
    record.set_runs(runs);
    Ok(Some(record))
}

/// The state of a job, with the value stored for that state.
pub(crate) enum StateDetail {
    Scheduled(Micros),
    Ready,
    Running(Vec<u8>),
    Done(Micros),
    Dead,
    Cancelled,
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
        StateDetail::Dead | StateDetail::Cancelled => Some(from_micros(meta.changed_at)),
        _ => None,
    };
    let (held, cancelling) = match &state_detail {
        StateDetail::Running(value) => (record::decode_held(value), record::is_cancelled(value)),
        _ => (None, false),
    };
    let (node, fence) = held.map(|(node, fence, _)| (node, fence)).unzip();
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
        StateDetail::Cancelled => State::Cancelled,
    };
    let record = JobRecord::new(job, state, from_micros(due), meta.attempts, meta.crashes);
    JobRecord { node, fence, cancelling, ended, ..record }
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
        cancelled: count()?,
        bytes: count()?,
        capacity: reply.capacity()?,
        oldest_ready: reply.optional_int()?.map(from_micros),
    })
}

/// Implements `JobStore::completed_among`.
pub(crate) async fn completed_among(store: &Redis, queue: &str, ids: &[JobId]) -> Result<Vec<JobId>> {
    let keys = store.keys(queue);
    let mut cmd = script::COMPLETED_AMONG.call(&*keys);
    cmd.arg(store.manual_now());
    for id in ids.iter().take(COMPLETION_CHECK_MAX) {
        cmd.arg(id.as_bytes());
    }
    store.run_script("completed_among", ConnectionRole::Client, keys.slot, &script::COMPLETED_AMONG, &cmd).await?.ids()
}
