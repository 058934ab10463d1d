//! Changes jobs and queues: edits, bulk changes, capacities, and the progress that attempts report.

use std::sync::atomic::Ordering;

use async_trait::async_trait;

use crate::error::Result;
use crate::job::push::Due;
use crate::job::{JobId, State};
use crate::node::NodeId;
use crate::store::redis::conn::ConnectionRole;
use crate::store::redis::jobs::claim::LocatorParts;
use crate::store::redis::jobs::query;
use crate::store::redis::jobs::query::{find_job, parse_change_result, remove_from_queue, reschedule_in_queue};
use crate::store::redis::{Redis, record, script, stats};
use crate::store::{
    AdminStore, BULK_CHANGE_MAX, Capacity, ChangeResult, ChangeTarget, DeadGroup, JobEdit, ProgressStore,
    ProgressUpdate,
};

/// Maximum attempts of an edit while other clients change the record.
const EDIT_TRIES_MAX: u32 = 5;
/// Number of concurrent changes.
const CHANGES_AT_ONCE: usize = 50;

#[async_trait]
impl AdminStore for Redis {
    async fn edit(&self, id: JobId, change: JobEdit) -> Result<ChangeResult> {
        edit(self, id, &change).await
    }

    async fn set_capacity(&self, queue: &str, capacity: Capacity) -> Result<Capacity> {
        set_capacity(self, queue, capacity).await
    }

    async fn dead_groups(&self, queue: Option<&str>) -> Result<Vec<DeadGroup>> {
        stats::dead_groups(self, queue).await
    }

    async fn unique_holder(&self, queue: &str, key: &str) -> Result<Option<JobId>> {
        query::unique_holder(self, queue, key).await
    }
}

#[async_trait]
impl ProgressStore for Redis {
    async fn record_progress(&self, node: NodeId, updates: Vec<ProgressUpdate>) -> Result<Vec<JobId>> {
        record_progress(self, node, &updates).await
    }
}

/// Implements `AdminStore::edit`.
pub(crate) async fn edit(store: &Redis, id: JobId, edit: &JobEdit) -> Result<ChangeResult> {
    for _ in 0..EDIT_TRIES_MAX {
        let Some((keys, found)) = find_job(store, "edit", id).await? else {
            return Ok(ChangeResult::NotFound);
        };
        let mut read_record = redis::cmd("HGET");
        read_record.arg(&keys.job).arg(id.as_bytes());
        let stored = store.servers.send_idempotent("edit", ConnectionRole::Client, keys.slot, &read_record).await?;
        let redis::Value::BulkString(stored) = stored else {
            return Ok(ChangeResult::NotFound);
        };
        let (mut job, first_due) = record::decode(id, &keys.queue, &stored);
        if job.kind == crate::job::UNREADABLE_KIND {
            return Ok(ChangeResult::Unreadable);
        }
        job.args = edit.args.clone().unwrap_or(job.args);
        job.priority = edit.priority.unwrap_or(job.priority);
        let mut cmd = script::EDIT.call(&*keys);
        cmd.arg(store.manual_now()).arg(found.job.id.as_bytes()).arg(&stored).arg(record::encode_job(&job, first_due));
        match parse_change_result(
            &mut store.run_script("edit", ConnectionRole::Client, keys.slot, &script::EDIT, &cmd).await?,
        )? {
            ChangeResult::Changed => {}
            result => return Ok(result),
        }
    }
    Ok(ChangeResult::Changed)
}

/// Implements `JobStore::remove_all`, and with a due time `JobStore::reschedule_all`.
pub(crate) async fn change_all(
    store: &Redis,
    op: &'static str,
    targets: &[ChangeTarget],
    due: Option<Due>,
) -> Result<Vec<ChangeResult>> {
    let mut results = Vec::with_capacity(targets.len());
    for batch in targets[..targets.len().min(BULK_CHANGE_MAX)].chunks(CHANGES_AT_ONCE) {
        let changes = batch.iter().map(|target| change_one(store, op, target, due));
        for result in futures_util::future::join_all(changes).await {
            // Earlier and concurrent changes may have been applied.
            results.push(result.map_err(|error| if targets.len() > 1 { error.into_unknown() } else { error })?);
        }
    }
    Ok(results)
}

async fn change_one(store: &Redis, op: &'static str, target: &ChangeTarget, due: Option<Due>) -> Result<ChangeResult> {
    let keys = store.keys(&target.queue);
    let mut read_record = redis::cmd("HGET");
    read_record.arg(&keys.job).arg(target.id.as_bytes());
    let redis::Value::BulkString(stored) =
        store.servers.send_idempotent(op, ConnectionRole::Client, keys.slot, &read_record).await?
    else {
        return Ok(ChangeResult::NotFound);
    };
    let key = record::decode(target.id, &target.queue, &stored).0.unique;
    let state = match target.state {
        State::Scheduled => "s",
        State::Ready => "r",
        State::Done => "d",
        State::Dead => "b",
        State::Running => return Ok(ChangeResult::Running),
    };
    match due {
        None => remove_from_queue(store, &keys, target.id, key.as_deref(), state).await,
        Some(due) => reschedule_in_queue(store, &keys, target.id, key.as_deref(), state, due).await,
    }
}

/// Implements `AdminStore::set_capacity`.
pub(crate) async fn set_capacity(store: &Redis, queue: &str, capacity: Capacity) -> Result<Capacity> {
    let keys = store.register_queue("set_capacity", queue).await?;
    let mut cmd = script::SET_CAPACITY.call(&*keys);
    let text =
        |maximum: Option<u64>| maximum.map(|maximum| maximum.min(EXACT_INTEGER_MAX).to_string()).unwrap_or_default();
    cmd.arg(store.manual_now()).arg(text(capacity.jobs)).arg(text(capacity.bytes));
    let value = store.send_replicated("set_capacity", &keys, Some(&script::SET_CAPACITY), &[cmd]).await?;
    keys.unlimited_at.store(i64::MIN, Ordering::Relaxed);
    store.parse_reply("set_capacity", value)?.capacity()
}

/// The largest integer that scripts represent exactly.
const EXACT_INTEGER_MAX: u64 = 1 << 53;

/// Implements `ProgressStore::record_progress`, with one operation per queue.
pub(crate) async fn record_progress(store: &Redis, node: NodeId, updates: &[ProgressUpdate]) -> Result<Vec<JobId>> {
    let mut queues: Vec<&str> = updates.iter().map(|update| update.queue.as_str()).collect();
    queues.sort_unstable();
    queues.dedup();
    let requests = queues.into_iter().map(async |queue| {
        let keys = store.keys(queue);
        let mut cmd = script::RECORD_PROGRESS.call(&*keys);
        cmd.arg(store.manual_now());
        for update in updates.iter().filter(|update| update.queue == queue) {
            let flag = record::priority_flag(update.priority, LocatorParts::unpack(update.locator).is_some());
            cmd.arg(update.id.as_bytes()).arg(record::encode_held(node, update.fence, flag));
            cmd.arg(update.progress.as_ref().map(record::encode_progress).unwrap_or_default()).arg(update.lines.len());
            for (at, line) in &update.lines {
                cmd.arg(record::encode_log_line(*at, update.attempt, line));
            }
        }
        store
            .run_script("record_progress", ConnectionRole::Worker, keys.slot, &script::RECORD_PROGRESS, &cmd)
            .await?
            .ids()
    });
    // An error of one server must not keep the others from their updates.
    let replies = futures_util::future::join_all(requests).await;
    replies.into_iter().collect::<Result<Vec<_>>>().map(|lost| lost.concat())
}
