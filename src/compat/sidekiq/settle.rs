//! Settle: record how attempts ended, each only if its node still holds it under that fence; and prune what has ended.

use std::collections::HashSet;

use redis::Cmd;

use super::entry::EntryFailure;
use super::keys::EntryKeys;
use super::scripts::{PRUNE, SETTLE};
use super::{Sidekiq, convert_reply, entry, id, keys};
use crate::clock::micros;
use crate::error::Result;
use crate::job::{Fence, JobId, Outcome};
use crate::node::NodeId;
use crate::store::redis::{ConnectionRole, QueueKeys};
use crate::store::{AttemptEnd, PRUNE_MAX};

/// `settle` of the contract: one step per queue.
pub(super) async fn settle(store: &Sidekiq, node: NodeId, ends: Vec<AttemptEnd>) -> Result<Vec<JobId>> {
    let mut lost = Vec::new();
    for (queue, ends) in AttemptEnd::group_by_queue(&ends) {
        lost.extend(settle_queue(store, node, queue, &ends).await?);
    }
    Ok(lost)
}

async fn settle_queue(store: &Sidekiq, node: NodeId, queue: &str, ends: &[&AttemptEnd]) -> Result<Vec<JobId>> {
    let keys = store.redis.keys(queue);
    let is_plain = |end: &AttemptEnd| end.outcome == Outcome::Ack && end.keep.is_zero() && end.crashes == 0;
    // Said twice: the first counts.
    let mut seen = HashSet::with_capacity(ends.len());
    let (ends, twice): (Vec<&AttemptEnd>, Vec<&AttemptEnd>) =
        ends.iter().copied().partition(|end| seen.insert((end.fence, end.locator)));
    let (plain, others): (Vec<&AttemptEnd>, Vec<&AttemptEnd>) = ends.iter().copied().partition(|end| is_plain(end));
    // Of what Ruby has pushed, Ruby keeps no account either.
    let ours: Vec<&&AttemptEnd> =
        ends.iter().filter(|end| end.outcome == Outcome::Ack && id::is_duly_id(end.id)).collect();
    let mut cmd = settle_command(store, &keys, node, plain.len(), ours.len());
    for end in &plain {
        cmd.arg(held_field(end.fence, end.locator));
    }
    for end in ours {
        cmd.arg(end.id.as_bytes());
    }
    for end in &others {
        append_outcome(store, node, &keys, end, &mut cmd).await?;
    }
    let mut reply = store.run_script("settle", ConnectionRole::Worker, &SETTLE, &cmd).await?;
    let all: Vec<&AttemptEnd> = plain.into_iter().chain(others).collect();
    let places = reply.list()?;
    let place = |text: &Option<Vec<u8>>| std::str::from_utf8(text.as_deref()?).ok()?.parse::<usize>().ok();
    let mut lost: Vec<JobId> =
        places.iter().filter_map(place).filter_map(|place| all.get(place - 1)).map(|end| end.id).collect();
    lost.extend(twice.iter().map(|end| end.id));
    let mut known = store.state();
    if let Some(held) = known.held.get_mut(&node).and_then(|held| held.get_mut(queue)) {
        for end in &ends {
            held.remove(&(end.fence.0, end.locator));
        }
    }
    Ok(lost)
}

fn settle_command(store: &Sidekiq, keys: &QueueKeys, node: NodeId, plain: usize, ids: usize) -> Cmd {
    let names = EntryKeys::new(&store.keys, keys).held_by(node).counted_at(store.now());
    let mut cmd = SETTLE.call(&names);
    cmd.arg(store.manual_now()).arg(&keys.channel).arg(node.to_string()).arg(micros(store.redis.options().remember));
    cmd.arg(plain).arg(ids);
    cmd
}

/// What names a held entry in its hash.
pub(super) fn held_field(fence: Fence, place: i64) -> String {
    format!("{:016}:{place:04}", fence.0)
}

/// One outcome: field, outcome, time, entry, id.
async fn append_outcome(
    store: &Sidekiq,
    node: NodeId,
    keys: &QueueKeys,
    end: &AttemptEnd,
    cmd: &mut Cmd,
) -> Result<()> {
    let bytes = read_entry(store, node, keys, end).await?;
    let read = entry::parse_entry(&end.queue, &bytes, None).ok();
    let failed = |error: &str| {
        let now = store.now();
        let failed = EntryFailure { queue: &end.queue, now, node, error, crashes: end.crashes };
        entry::fail_entry(&bytes, &failed).unwrap_or_else(|why| entry::wrap_unreadable(&end.queue, &bytes, &why, now))
    };
    let leaves_nothing = read.is_some_and(|read| read.skips_dead_set);
    let (outcome, time, new) = match &end.outcome {
        Outcome::Ack if end.keep.is_zero() => ("a", 0, String::new()),
        Outcome::Ack => ("k", micros(end.keep), String::new()),
        Outcome::Bury { .. } if leaves_nothing => ("d", 0, String::new()),
        Outcome::Bury { error } => ("b", 0, failed(error)),
        Outcome::Retry { after, error } => ("r", micros(*after), failed(error)),
        Outcome::Release { after } if after.is_zero() => ("l", 0, String::new()),
        Outcome::Release { after } => {
            let put_off = entry::schedule_entry(&bytes, end.crashes);
            ("w", micros(*after), put_off.unwrap_or_else(|_| String::from_utf8_lossy(&bytes).into_owned()))
        }
    };
    cmd.arg(held_field(end.fence, end.locator)).arg(outcome).arg(time).arg(new).arg(end.id.as_bytes());
    Ok(())
}

/// The entry that an end is about: as we remember it, or as the store has it. Empty if nobody does: then it is lost.
async fn read_entry(store: &Sidekiq, node: NodeId, keys: &QueueKeys, end: &AttemptEnd) -> Result<Vec<u8>> {
    if let Some(kept) = store.state().held_entry(node, end) {
        return Ok(kept.entry.clone());
    }
    let mut cmd = redis::cmd("HGET");
    cmd.arg(keys::held_key(keys, node)).arg(held_field(end.fence, end.locator));
    let entry: Option<Vec<u8>> =
        convert_reply("settle", store.redis.send_idempotent("settle", ConnectionRole::Worker, 0, &cmd).await?)?;
    Ok(entry.unwrap_or_default())
}

/// Buries what was claimed and is no job. If that fails it stays held, and is tried again by whoever comes next.
pub(super) async fn bury_unreadable(
    store: &Sidekiq,
    node: NodeId,
    keys: &QueueKeys,
    fence: Fence,
    strange: &[(i64, String)],
) {
    if strange.is_empty() {
        return;
    }
    tracing::warn!(queue = %keys.queue, entries = strange.len(), "entries that are no jobs: they are among the dead now");
    let mut cmd = settle_command(store, keys, node, 0, 0);
    for (place, new) in strange {
        cmd.arg(held_field(fence, *place)).arg("b").arg(0).arg(new).arg("");
    }
    if let Err(error) = store.run_script("settle", ConnectionRole::Worker, &SETTLE, &cmd).await {
        tracing::warn!(%error, "they stay held for now");
    }
}

/// `prune` of the contract.
pub(super) async fn prune(store: &Sidekiq, queue: &str, done_max: usize) -> Result<usize> {
    let keys = store.redis.keys(queue);
    let mut cmd = PRUNE.call(&EntryKeys::new(&store.keys, &keys));
    cmd.arg(store.manual_now()).arg(done_max).arg(PRUNE_MAX).arg(micros(store.redis.options().remember));
    let mut reply = store.run_script("prune", ConnectionRole::Worker, &PRUNE, &cmd).await?;
    Ok(usize::try_from(reply.int()?).unwrap_or(0))
}
