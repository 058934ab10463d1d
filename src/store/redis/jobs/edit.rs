//! Looking after jobs: edits, changes to many, limits, and what attempts say of themselves.

use std::sync::atomic::Ordering;

use crate::error::Result;
use crate::job::push::Due;
use crate::job::{JobId, State};
use crate::node::NodeId;
use crate::store::redis::conn::ConnectionRole;
use crate::store::redis::jobs::claim::LocatorParts;
use crate::store::redis::jobs::query::{find_job, parse_change_result, remove_from_queue, reschedule_in_queue};
use crate::store::redis::{Redis, record, script};
use crate::store::{BULK_CHANGE_MAX, Capacity, ChangeResult, ChangeTarget, JobEdit, ProgressUpdate};

/// How often an edit looks again because the record has changed meanwhile.
const EDIT_TRIES_MAX: u32 = 5;
/// Changes sent at a time.
const CHANGES_AT_ONCE: usize = 50;

/// `edit` of the contract.
pub(crate) async fn edit(store: &Redis, id: JobId, edit: &JobEdit) -> Result<ChangeResult> {
    for _ in 0..EDIT_TRIES_MAX {
        let Some((keys, found)) = find_job(store, "edit", id).await? else {
            return Ok(ChangeResult::NotFound);
        };
        let mut look = redis::cmd("HGET");
        look.arg(&keys.job).arg(id.as_bytes());
        let seen = store.servers.send_idempotent("edit", ConnectionRole::Client, keys.slot, &look).await?;
        let redis::Value::BulkString(seen) = seen else {
            return Ok(ChangeResult::NotFound);
        };
        let (mut job, first_due) = record::decode(id, &keys.queue, &seen);
        if job.kind == crate::job::UNREADABLE_KIND {
            return Ok(ChangeResult::Unreadable);
        }
        job.args = edit.args.clone().unwrap_or(job.args);
        job.priority = edit.priority.unwrap_or(job.priority);
        let mut cmd = script::EDIT.call(&*keys);
        cmd.arg(store.manual_now()).arg(found.job.id.as_bytes()).arg(&seen).arg(record::encode_job(&job, first_due));
        let value = store.servers.run_script("edit", ConnectionRole::Client, keys.slot, &script::EDIT, &cmd).await?;
        match parse_change_result(&mut store.parse_reply("edit", value)?)? {
            ChangeResult::Changed => {}
            moved => return Ok(moved),
        }
    }
    Ok(ChangeResult::Changed)
}

/// `remove_all` of the contract, and with a due moment `reschedule_all`.
pub(crate) async fn change_all(
    store: &Redis,
    op: &'static str,
    targets: &[ChangeTarget],
    due: Option<Due>,
) -> Result<Vec<ChangeResult>> {
    let mut all = Vec::with_capacity(targets.len());
    for some in targets[..targets.len().min(BULK_CHANGE_MAX)].chunks(CHANGES_AT_ONCE) {
        let changes = some.iter().map(|target| change_one(store, op, target, due));
        for moved in futures_util::future::join_all(changes).await {
            // What was changed before, or beside it, is changed.
            all.push(moved.map_err(|error| if targets.len() > 1 { error.into_unknown() } else { error })?);
        }
    }
    Ok(all)
}

async fn change_one(store: &Redis, op: &'static str, target: &ChangeTarget, due: Option<Due>) -> Result<ChangeResult> {
    let keys = store.keys(&target.queue);
    let mut look = redis::cmd("HGET");
    look.arg(&keys.job).arg(target.id.as_bytes());
    let redis::Value::BulkString(seen) =
        store.servers.send_idempotent(op, ConnectionRole::Client, keys.slot, &look).await?
    else {
        return Ok(ChangeResult::NotFound);
    };
    let key = record::decode(target.id, &target.queue, &seen).0.unique;
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

/// `set_capacity` of the contract.
pub(crate) async fn set_capacity(store: &Redis, queue: &str, limit: Capacity) -> Result<Capacity> {
    let keys = store.register_queue("limit", queue).await?;
    let mut cmd = script::SET_CAPACITY.call(&*keys);
    let text = |most: Option<u64>| most.map(|most| most.min(EXACT_INTEGER_MAX).to_string()).unwrap_or_default();
    cmd.arg(store.manual_now()).arg(text(limit.jobs)).arg(text(limit.bytes));
    let value = store.send_replicated("limit", &keys, Some(&script::SET_CAPACITY), &[cmd]).await?;
    keys.uncapped_at.store(i64::MIN, Ordering::Relaxed);
    store.parse_reply("limit", value)?.capacity()
}

/// The largest number that scripts can tell from its neighbours.
const EXACT_INTEGER_MAX: u64 = 1 << 53;

/// `note` of the contract: one step per queue.
pub(crate) async fn record_progress(store: &Redis, node: NodeId, notes: &[ProgressUpdate]) -> Result<Vec<JobId>> {
    let mut queues: Vec<&str> = notes.iter().map(|note| note.queue.as_str()).collect();
    queues.sort_unstable();
    queues.dedup();
    let steps = queues.into_iter().map(async |queue| {
        let keys = store.keys(queue);
        let mut cmd = script::RECORD_PROGRESS.call(&*keys);
        cmd.arg(store.manual_now());
        for note in notes.iter().filter(|note| note.queue == queue) {
            let flag = record::priority_flag(note.priority, LocatorParts::unpack(note.locator).is_some());
            cmd.arg(note.id.as_bytes()).arg(record::encode_held(node, note.fence, flag));
            cmd.arg(note.progress.as_ref().map(record::encode_progress).unwrap_or_default()).arg(note.lines.len());
            for (at, line) in &note.lines {
                cmd.arg(record::encode_log_line(*at, note.attempt, line));
            }
        }
        let value =
            store.servers.run_script("note", ConnectionRole::Worker, keys.slot, &script::RECORD_PROGRESS, &cmd).await?;
        store.parse_reply("note", value)?.ids()
    });
    // What one server does not take is no reason not to tell the others.
    let told = futures_util::future::join_all(steps).await;
    told.into_iter().collect::<Result<Vec<_>>>().map(|lost| lost.concat())
}
