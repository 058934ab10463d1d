//! Looking after jobs: edits, changes to many, limits, and what attempts say of themselves.

use std::sync::atomic::Ordering;

use crate::error::Result;
use crate::job::push::Due;
use crate::job::{JobId, State};
use crate::node::NodeId;
use crate::store::redis::conn::Way;
use crate::store::redis::jobs::claim::Place;
use crate::store::redis::jobs::query::{find, moved, remove_in, reschedule_in};
use crate::store::redis::{Redis, record, script};
use crate::store::{CHANGE_MAX, Capacity, Edit, Moved, Note, Target};

/// How often an edit looks again because the record has changed meanwhile.
const EDITS_MAX: u32 = 5;
/// Changes sent at a time.
const AT_ONCE: usize = 50;

/// `edit` of the contract.
pub(crate) async fn edit(store: &Redis, id: JobId, edit: &Edit) -> Result<Moved> {
    for _ in 0..EDITS_MAX {
        let Some((keys, found)) = find(store, "edit", id).await? else {
            return Ok(Moved::NotFound);
        };
        let mut look = redis::cmd("HGET");
        look.arg(&keys.job).arg(id.as_bytes());
        let seen = store.link.ask("edit", Way::Door, keys.slot, &look).await?;
        let redis::Value::BulkString(seen) = seen else {
            return Ok(Moved::NotFound);
        };
        let (mut job, first_due) = record::read(id, &keys.queue, &seen);
        if job.kind == crate::job::UNREADABLE {
            return Ok(Moved::Unreadable);
        }
        job.args = edit.args.clone().unwrap_or(job.args);
        job.priority = edit.priority.unwrap_or(job.priority);
        let mut cmd = script::EDIT.call(&*keys);
        cmd.arg(store.manual_now()).arg(found.job.id.as_bytes()).arg(&seen).arg(record::write_again(&job, first_due));
        let value = store.link.run("edit", Way::Door, keys.slot, &script::EDIT, &cmd).await?;
        match moved(&mut store.reply("edit", value)?)? {
            Moved::Changed => {}
            moved => return Ok(moved),
        }
    }
    Ok(Moved::Changed)
}

/// `remove_all` of the contract, and with a due moment `reschedule_all`.
pub(crate) async fn change_all(
    store: &Redis,
    op: &'static str,
    targets: &[Target],
    due: Option<Due>,
) -> Result<Vec<Moved>> {
    let mut all = Vec::with_capacity(targets.len());
    for some in targets[..targets.len().min(CHANGE_MAX)].chunks(AT_ONCE) {
        let changes = some.iter().map(|target| change(store, op, target, due));
        for moved in futures_util::future::join_all(changes).await {
            // What was changed before, or beside it, is changed.
            all.push(moved.map_err(|error| if targets.len() > 1 { error.in_doubt() } else { error })?);
        }
    }
    Ok(all)
}

async fn change(store: &Redis, op: &'static str, target: &Target, due: Option<Due>) -> Result<Moved> {
    let keys = store.keys(&target.queue);
    let mut look = redis::cmd("HGET");
    look.arg(&keys.job).arg(target.id.as_bytes());
    let redis::Value::BulkString(seen) = store.link.ask(op, Way::Door, keys.slot, &look).await? else {
        return Ok(Moved::NotFound);
    };
    let key = record::read(target.id, &target.queue, &seen).0.unique;
    let state = match target.state {
        State::Scheduled => "s",
        State::Ready => "r",
        State::Done => "d",
        State::Dead => "b",
        State::Running => return Ok(Moved::Running),
    };
    match due {
        None => remove_in(store, &keys, target.id, key.as_deref(), state).await,
        Some(due) => reschedule_in(store, &keys, target.id, key.as_deref(), state, due).await,
    }
}

/// `set_capacity` of the contract.
pub(crate) async fn set_capacity(store: &Redis, queue: &str, limit: Capacity) -> Result<Capacity> {
    let keys = store.register("limit", queue).await?;
    let mut cmd = script::SET_CAPACITY.call(&*keys);
    let text = |most: Option<u64>| most.map(|most| most.min(NUMBER_MAX).to_string()).unwrap_or_default();
    cmd.arg(store.manual_now()).arg(text(limit.jobs)).arg(text(limit.bytes));
    let value = store.deliver("limit", &keys, Some(&script::SET_CAPACITY), &[cmd]).await?;
    keys.uncapped_at.store(i64::MIN, Ordering::Relaxed);
    store.reply("limit", value)?.capacity()
}

/// The largest number that scripts can tell from its neighbours.
const NUMBER_MAX: u64 = 1 << 53;

/// `note` of the contract: one step per queue.
pub(crate) async fn note(store: &Redis, node: NodeId, notes: &[Note]) -> Result<Vec<JobId>> {
    let mut queues: Vec<&str> = notes.iter().map(|note| note.queue.as_str()).collect();
    queues.sort_unstable();
    queues.dedup();
    let steps = queues.into_iter().map(async |queue| {
        let keys = store.keys(queue);
        let mut cmd = script::RECORD_PROGRESS.call(&*keys);
        cmd.arg(store.manual_now());
        for note in notes.iter().filter(|note| note.queue == queue) {
            let flag = record::flag(note.priority, Place::unpack(note.place).is_some());
            cmd.arg(note.id.as_bytes()).arg(record::held_value(node, note.fence, flag));
            cmd.arg(note.progress.as_ref().map(record::progress).unwrap_or_default()).arg(note.lines.len());
            for (at, line) in &note.lines {
                cmd.arg(record::line(*at, note.attempt, line));
            }
        }
        let value = store.link.run("note", Way::Work, keys.slot, &script::RECORD_PROGRESS, &cmd).await?;
        store.reply("note", value)?.ids()
    });
    // What one server does not take is no reason not to tell the others.
    let told = futures_util::future::join_all(steps).await;
    told.into_iter().collect::<Result<Vec<_>>>().map(|lost| lost.concat())
}
