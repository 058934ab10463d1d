//! Changes to jobs that are not running: edits, removals, new due times, and bulk changes.

use std::time::Duration;

use async_trait::async_trait;

use crate::clock::micros;
use crate::error::Result;
use crate::job::push::Due;
use crate::job::{JobId, State, UniqueKey};
use crate::store::redis::conn::ConnectionRole;
use crate::store::redis::jobs::query::find_job;
use crate::store::redis::jobs::{cancel, capacity, job_index, query, remove_queue};
use crate::store::redis::keys::QueueKeys;
use crate::store::redis::reply::ScriptReply;
use crate::store::redis::{Redis, record, reply, script};
use crate::store::{
    AdminStore, BULK_CHANGE_MAX, CancelReply, Capacity, ChangeResult, ChangeTarget, DeadGroup, JobEdit,
    RemoveQueueResult,
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

    async fn cancel(&self, id: JobId, keep: Duration) -> Result<CancelReply> {
        cancel::cancel(self, id, keep).await
    }

    async fn set_capacity(&self, queue: &str, capacity: Capacity) -> Result<Capacity> {
        capacity::set_capacity(self, queue, capacity).await
    }

    async fn remove_queue(&self, queue: &str, only_unused: bool) -> Result<RemoveQueueResult> {
        remove_queue::remove_queue(self, queue, only_unused).await
    }

    async fn dead_groups(&self, queue: Option<&str>) -> Result<Vec<DeadGroup>> {
        job_index::dead_groups(self, queue).await
    }

    async fn unique_holder(&self, queue: &str, key: &str) -> Result<Option<JobId>> {
        query::unique_holder(self, queue, key).await
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

/// Implements `JobStore::remove`.
pub(crate) async fn remove(store: &Redis, id: JobId) -> Result<ChangeResult> {
    match find_job(store, "remove", id).await? {
        Some((keys, record)) => {
            remove_from_queue(store, &keys, id, record.job.unique.as_ref().map(UniqueKey::as_str), "").await
        }
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
    cmd.arg(store.manual_now()).arg(id.as_bytes()).arg(micros(store.options.remember_ids));
    cmd.arg(key.unwrap_or("")).arg(state).arg(&keys.channel);
    parse_change_result(
        &mut store.run_script("remove", ConnectionRole::Client, keys.slot, &script::REMOVE, &cmd).await?,
    )
}

/// Implements `JobStore::reschedule`.
pub(crate) async fn reschedule(store: &Redis, id: JobId, due: Due) -> Result<ChangeResult> {
    match find_job(store, "reschedule", id).await? {
        Some((keys, record)) => {
            reschedule_in_queue(store, &keys, id, record.job.unique.as_ref().map(UniqueKey::as_str), "", due).await
        }
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
        other => reply::parse_job_id(other).map_or(ChangeResult::Applied, ChangeResult::Existing),
    })
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
    let job = record::decode(target.id, &target.queue, &stored).0;
    let key = job.unique.as_ref().map(UniqueKey::as_str);
    let state = match target.state {
        State::Scheduled => "s",
        State::Ready => "r",
        State::Done => "d",
        State::Dead => "b",
        State::Cancelled => "c",
        State::Running => return Ok(ChangeResult::Running),
    };
    match due {
        None => remove_from_queue(store, &keys, target.id, key, state).await,
        Some(due) => reschedule_in_queue(store, &keys, target.id, key, state, due).await,
    }
}
