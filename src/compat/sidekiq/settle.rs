//! Settles attempts, each only if its node still holds the entry under that fence; and prunes done jobs.

use std::cmp::Reverse;
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

/// Implements `JobStore::settle`, with one operation per queue.
pub(super) async fn settle(store: &Sidekiq, node: NodeId, ends: Vec<AttemptEnd>) -> Result<Vec<JobId>> {
    let mut lost = Vec::new();
    for (queue, ends) in AttemptEnd::group_by_queue(&ends) {
        lost.extend(settle_queue(store, node, queue, &ends).await?);
    }
    Ok(lost)
}

async fn settle_queue(store: &Sidekiq, node: NodeId, queue: &str, ends: &[&AttemptEnd]) -> Result<Vec<JobId>> {
    let keys = store.redis.keys(queue);
    let is_plain = |end: &AttemptEnd| end.outcome == Outcome::Ack && end.keep.is_zero() && end.held().crashes == 0;
    // If an attempt is settled twice in one batch, the first outcome counts.
    let mut seen = HashSet::with_capacity(ends.len());
    let (ends, duplicates): (Vec<&AttemptEnd>, Vec<&AttemptEnd>) =
        ends.iter().copied().partition(|end| seen.insert((end.fence(), end.held().locator.value())));
    let (plain, mut others): (Vec<&AttemptEnd>, Vec<&AttemptEnd>) = ends.iter().copied().partition(|end| is_plain(end));
    // Each release puts its entry at the front of the queue: the one that was claimed first is released last.
    others.sort_by_key(|end| Reverse((end.fence(), end.held().locator.value())));
    // Ids of jobs pushed by Ruby need not be remembered: Ruby does not deduplicate pushes.
    let remembered: Vec<&&AttemptEnd> =
        ends.iter().filter(|end| end.outcome == Outcome::Ack && id::is_duly_id(end.id())).collect();
    let mut cmd = settle_command(store, &keys, node, plain.len(), remembered.len());
    for end in &plain {
        cmd.arg(held_field(end.fence(), end.held().locator.value()));
    }
    for end in remembered {
        cmd.arg(end.id().as_bytes());
    }
    for end in &others {
        append_outcome(store, node, &keys, end, &mut cmd).await?;
    }
    let mut reply = store.run_script("settle", ConnectionRole::Worker, &SETTLE, &cmd).await?;
    let sent: Vec<&AttemptEnd> = plain.into_iter().chain(others).collect();
    let lost_numbers = reply.list()?;
    let parse = |text: &Option<Vec<u8>>| std::str::from_utf8(text.as_deref()?).ok()?.parse::<usize>().ok();
    let mut lost: Vec<JobId> =
        lost_numbers.iter().filter_map(parse).filter_map(|number| sent.get(number - 1)).map(|end| end.id()).collect();
    lost.extend(duplicates.iter().map(|end| end.id()));
    let mut state = store.state();
    if let Some(held) = state.held.get_mut(&node).and_then(|held| held.get_mut(queue)) {
        for end in &ends {
            held.remove(&(end.fence().0, end.held().locator.value()));
        }
    }
    Ok(lost)
}

fn settle_command(store: &Sidekiq, keys: &QueueKeys, node: NodeId, plain: usize, ids: usize) -> Cmd {
    let names = EntryKeys::new(&store.keys, keys).held_by(node).counted_at(store.now());
    let mut cmd = SETTLE.call(&names);
    cmd.arg(store.manual_now())
        .arg(&keys.channel)
        .arg(node.to_string())
        .arg(micros(store.redis.options().remember_ids));
    cmd.arg(plain).arg(ids);
    cmd
}

/// Returns the field of a held entry in the hash of its node.
pub(super) fn held_field(fence: Fence, locator: i64) -> String {
    format!("{:016}:{locator:04}", fence.0)
}

/// Appends the script arguments of one outcome: field, outcome, time, entry, id.
async fn append_outcome(
    store: &Sidekiq,
    node: NodeId,
    keys: &QueueKeys,
    end: &AttemptEnd,
    cmd: &mut Cmd,
) -> Result<()> {
    let bytes = read_entry(store, node, keys, end).await?;
    let parsed = entry::parse_entry(end.queue(), &bytes, None).ok();
    let failed = |error: &str| {
        let now = store.now();
        let failure = EntryFailure { queue: end.queue(), now, node, error, crashes: end.held().crashes };
        entry::fail_entry(&bytes, &failure).unwrap_or_else(|e| entry::wrap_unreadable(end.queue(), &bytes, &e, now))
    };
    let skips_dead_set = parsed.is_some_and(|entry| entry.skips_dead_set);
    let (outcome, time, new) = match &end.outcome {
        Outcome::Ack if end.keep.is_zero() => ("a", 0, String::new()),
        Outcome::Ack => ("k", micros(end.keep), String::new()),
        Outcome::Bury { .. } if skips_dead_set => ("d", 0, String::new()),
        Outcome::Bury { error } => ("b", 0, failed(error)),
        Outcome::Retry { after, error } => ("r", micros(*after), failed(error)),
        Outcome::Release { after } if after.is_zero() => ("l", 0, String::new()),
        Outcome::Release { after } => {
            let scheduled = entry::schedule_entry(&bytes, end.held().crashes);
            ("w", micros(*after), scheduled.unwrap_or_else(|_| String::from_utf8_lossy(&bytes).into_owned()))
        }
    };
    cmd.arg(held_field(end.fence(), end.held().locator.value()))
        .arg(outcome)
        .arg(time)
        .arg(new)
        .arg(end.id().as_bytes());
    Ok(())
}

/// Returns the entry of an attempt, from the cache or from the server. Empty if the node no longer holds it.
async fn read_entry(store: &Sidekiq, node: NodeId, keys: &QueueKeys, end: &AttemptEnd) -> Result<Vec<u8>> {
    if let Some(held) = store.state().held_entry(node, end) {
        return Ok(held.entry.clone());
    }
    let mut cmd = redis::cmd("HGET");
    cmd.arg(keys::running_key(keys, node)).arg(held_field(end.fence(), end.held().locator.value()));
    let entry: Option<Vec<u8>> =
        convert_reply("settle", store.redis.send_idempotent("settle", ConnectionRole::Worker, 0, &cmd).await?)?;
    Ok(entry.unwrap_or_default())
}

/// Buries claimed entries that are not valid jobs. If that fails, they stay held until a node takes them back.
pub(super) async fn bury_unreadable(
    store: &Sidekiq,
    node: NodeId,
    keys: &QueueKeys,
    fence: Fence,
    unreadable: &[(i64, String)],
) {
    if unreadable.is_empty() {
        return;
    }
    tracing::warn!(queue = %keys.queue, entries = unreadable.len(), "moving unreadable entries to the dead set");
    let mut cmd = settle_command(store, keys, node, 0, 0);
    for (locator, new) in unreadable {
        cmd.arg(held_field(fence, *locator)).arg("b").arg(0).arg(new).arg("");
    }
    if let Err(error) = store.run_script("settle", ConnectionRole::Worker, &SETTLE, &cmd).await {
        tracing::warn!(%error, "cannot bury unreadable entries; they stay held");
    }
}

/// Implements `JobStore::prune`.
pub(super) async fn prune(store: &Sidekiq, queue: &str, done_max: usize) -> Result<usize> {
    let keys = store.redis.keys(queue);
    let mut cmd = PRUNE.call(&EntryKeys::new(&store.keys, &keys));
    cmd.arg(store.manual_now()).arg(done_max).arg(PRUNE_MAX).arg(micros(store.redis.options().remember_ids));
    let mut reply = store.run_script("prune", ConnectionRole::Worker, &PRUNE, &cmd).await?;
    Ok(usize::try_from(reply.int()?).unwrap_or(0))
}
