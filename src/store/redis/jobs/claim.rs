//! Claim: take back from the dead, move what is due, take what is ready.

use std::collections::HashSet;

use crate::clock::{from_micros, micros};
use crate::error::{Error, Result};
use crate::job::{Fence, HeldJob, JobId};
use crate::node::NodeId;
use crate::store::redis::conn::ConnectionRole;
use crate::store::redis::jobs::settle;
use crate::store::redis::keys::QueueKeys;
use crate::store::redis::nodes::wakes;
use crate::store::redis::record;
use crate::store::redis::record::{COUNT_MAX, JobMeta};
use crate::store::redis::reply;
use crate::store::redis::reply::ScriptReply;
use crate::store::redis::{Redis, cron, script};
use crate::store::{CLAIM_MAX, Claim, ClaimReply, TAKE_BACK_MAX};

/// What the history says of an attempt whose node died.
const NODE_DIED_ERROR: &str = "the node died, or was paused beyond its lease, while it held this job";
/// Due jobs that a claim moves: as many as it may take, and not fewer or more than these. Each is read, and taken out of
/// the schedule and out of what it is found by, and nobody else is answered meanwhile.
const PROMOTED_MIN: usize = 100;
const PROMOTED_MAX: usize = 250;
/// Most tickets without a record that are let go in one step.
const ORPHANS_MAX: usize = 100;
/// Bytes of records that are read at a time, by the size of those that came before them; and most of them.
const RECORDS_BYTES_MAX: usize = 1024 * 1024;
const RECORDS_AT_ONCE_MAX: usize = 64;
/// Most steps through everything that is held, when a node asks what it holds.
const RESYNC_STEPS_MAX: usize = 10_000;

/// `claim` of the contract.
pub(crate) async fn claim(store: &Redis, node: NodeId, claim: Claim) -> Result<ClaimReply> {
    let keys = store.join_queue(node, &claim.queue);
    wakes::ensure_subscribed(store, node, &keys).await?;
    let (mut taken_back, mut left) = (0, false);
    if let Some(suspect) = claim.suspect {
        (taken_back, left) = take_back(store, node, suspect, &keys).await?;
    }
    let mut claimed = match (claim.resync, claim.max) {
        (true, _) => resync(store, node, &keys).await?,
        (false, 0) => leave_idle_list(store, node, &keys).await?,
        (false, max) => take_ready(store, node, &keys, &claim, max.min(CLAIM_MAX)).await?,
    };
    claimed.taken_back = taken_back;
    claimed.suspect_has_more = left;
    claimed.has_more |= left;
    Ok(claimed)
}

/// Takes what is ready. What others have put off and the node knows is taken with it, if anything was since it last looked.
async fn take_ready(store: &Redis, node: NodeId, keys: &QueueKeys, claim: &Claim, max: usize) -> Result<ClaimReply> {
    let looks = store.has_unchecked_deferrals(node, keys);
    let mut claimed = claim_once(store, node, keys, max, looks.then_some(claim)).await?;
    let room = max - claimed.jobs.len().min(max);
    if !looks && room > 0 && store.has_unchecked_deferrals(node, keys) {
        match claim_once(store, node, keys, room, Some(claim)).await {
            Ok(rest) => {
                let jobs = std::mem::take(&mut claimed.jobs).into_iter().chain(rest.jobs).collect();
                claimed = ClaimReply { jobs, ..rest };
            }
            // Asked again, it tells what both steps took.
            Err(error @ Error::Unknown { .. }) => return Err(error),
            // What the first step took is ours all the same.
            Err(error) => {
                tracing::warn!(%error, "what others have put off could not be looked through");
                claimed.has_more = true;
            }
        }
    }
    Ok(claimed)
}

/// One step; with a look through what others have put off, if it is said for whom.
async fn claim_once(
    store: &Redis,
    node: NodeId,
    keys: &QueueKeys,
    max: usize,
    look: Option<&Claim>,
) -> Result<ClaimReply> {
    let mut cmd = script::CLAIM.call(keys);
    cmd.arg(store.manual_now()).arg(&keys.channel).arg(node.to_string()).arg(max);
    cmd.arg(max.clamp(PROMOTED_MIN, PROMOTED_MAX)).arg(micros(store.options.lease));
    cmd.arg(u8::from(store.swap_idle(node, &keys.queue, true)));
    match look.map(|claim| &claim.kinds) {
        Some(Some(kinds)) => kinds.iter().for_each(|kind| _ = cmd.arg(kind)),
        Some(None) => _ = cmd.arg(""),
        None => {}
    }
    let mut reply = store.parse_reply(
        "claim",
        store.servers.run_script("claim", ConnectionRole::Worker, keys.slot, &script::CLAIM, &cmd).await?,
    )?;
    let fence = reply.text()?.parse().map_or(Fence(0), Fence);
    let more = reply.int()? == 1;
    let next_due = reply.optional_int()?;
    let rank = u32::try_from(reply.int()?).unwrap_or(0);
    let tick = reply.optional_int()?;
    let (mark, through) = (reply.int()?, reply.int()? == 1);
    let tickets = reply.list()?;
    let mut records = reply.list()?;
    let metas = if reply.is_empty() { Vec::new() } else { reply.list()? };
    let mut metas = metas.into_iter();
    store.note_checked_deferrals(node, keys, mark, through);
    let mut at_once = next_batch_len(&records, records.len());
    while let Some(rest) = tickets.get(records.len()..).filter(|rest| !rest.is_empty()) {
        let found = read_records(store, keys, &rest[..rest.len().min(at_once)]).await?;
        at_once = next_batch_len(&found, at_once);
        records.extend(found);
    }
    let mut jobs = Vec::with_capacity(tickets.len());
    let mut orphans = Vec::new();
    for (ticket, record) in tickets.iter().zip(records) {
        let Some((id, in_trouble)) = ticket.as_deref().and_then(record::decode_ticket) else {
            continue;
        };
        let meta = if in_trouble { metas.next().flatten() } else { None };
        match record {
            Some(record) => jobs.push(decode_held_job(id, &keys.queue, &record, meta.as_deref(), in_trouble, fence)),
            None => orphans.push(id),
        }
    }
    store.swap_idle(node, &keys.queue, tickets.len() < max && !more);
    for some in orphans.chunks(ORPHANS_MAX) {
        settle::release_orphans(store, node, keys, fence, some).await;
    }
    let [next_due, next_tick] = [next_due, tick].map(|at| cron::duration_until(at, reply.now));
    Ok(ClaimReply {
        jobs,
        now: from_micros(reply.now),
        has_more: more,
        next_due,
        next_tick,
        idle_rank: rank,
        taken_back: 0,
        suspect_has_more: false,
    })
}

/// The records of what was claimed and did not fit into the answer. They come by a connection on which nobody listens: a server
/// cuts one off to which it owes more than 32 MB, if it listens (`client-output-buffer-limit`).
async fn read_records(store: &Redis, keys: &QueueKeys, tickets: &[Option<Vec<u8>>]) -> Result<Vec<Option<Vec<u8>>>> {
    let mut cmd = redis::cmd("HMGET");
    cmd.arg(&keys.job);
    for ticket in tickets {
        cmd.arg(ticket.as_deref().and_then(|ticket| ticket.get(..16)).unwrap_or_default());
    }
    // What is claimed is ours, whoever does not tell us of it: asked again, the store does.
    let found = store
        .servers
        .send_idempotent("claim", ConnectionRole::BulkRead, keys.slot, &cmd)
        .await
        .map_err(Error::into_unknown)?;
    let found = reply::byte_list("claim", found).map_err(Error::into_unknown)?;
    if found.len() == tickets.len() { Ok(found) } else { Err(Error::Unknown { op: "claim", source: None }) }
}

/// How many records to read next, after these: as many as would fit if all had the size of the longest, but at most twice as many
/// as before, for those that come may have a megabyte each.
fn next_batch_len(found: &[Option<Vec<u8>>], before: usize) -> usize {
    let longest = found.iter().flatten().map(Vec::len).max().unwrap_or(0);
    (RECORDS_BYTES_MAX / longest.max(1)).min(2 * before).clamp(1, RECORDS_AT_ONCE_MAX)
}

/// A job that is held from now on. Whether it is in trouble says what it is held as, also if somebody has deleted its meta.
fn decode_held_job(
    id: JobId,
    queue: &str,
    record: &[u8],
    meta: Option<&[u8]>,
    in_trouble: bool,
    fence: Fence,
) -> HeldJob {
    let (job, due) = record::decode(id, queue, record);
    let meta = meta.filter(|_| in_trouble).and_then(JobMeta::decode).unwrap_or_default();
    let place =
        if in_trouble { LocatorParts { failures: meta.failures, ticket_number: meta.ticket_number }.pack() } else { 0 };
    let due = if meta.due > 0 { meta.due } else { due };
    HeldJob { job, fence, due: from_micros(due), attempts: meta.attempts, crashes: meta.crashes, locator: place }
}

/// A job that a push has put into a node's hands, as the word of it says: fence, id, record.
pub(crate) fn decode_delivered_job(queue: &str, word: &[u8]) -> Option<HeldJob> {
    let (fence, rest) = word.split_at_checked(16)?;
    let (id, record) = rest.split_at_checked(16)?;
    let fence = Fence(std::str::from_utf8(fence).ok()?.parse().ok()?);
    Some(decode_held_job(reply::parse_job_id(id)?, queue, record, None, false, fence))
}

/// What a settle must know of a job in trouble, carried in the held job as the store's own number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LocatorParts {
    pub(crate) failures: u32,
    pub(crate) ticket_number: u32,
}

impl LocatorParts {
    const HAS_META: i64 = 1 << 62;

    fn pack(self) -> i64 {
        LocatorParts::HAS_META
            | i64::from(self.ticket_number.min(COUNT_MAX)) << 31
            | i64::from(self.failures.min(COUNT_MAX))
    }

    /// `None` for a job that was never in trouble.
    pub(crate) fn unpack(place: i64) -> Option<Self> {
        let part = |bits: i64| u32::try_from(bits & i64::from(COUNT_MAX)).unwrap_or(0);
        (place & LocatorParts::HAS_META != 0)
            .then(|| LocatorParts { failures: part(place), ticket_number: part(place >> 31) })
    }
}

async fn leave_idle_list(store: &Redis, node: NodeId, keys: &QueueKeys) -> Result<ClaimReply> {
    let mut cmd = script::LEAVE_IDLE.call(keys);
    cmd.arg(store.manual_now()).arg(&keys.channel).arg(node.to_string());
    let value = store.servers.run_script("claim", ConnectionRole::Worker, keys.slot, &script::LEAVE_IDLE, &cmd).await?;
    let mut reply = store.parse_reply("claim", value)?;
    let more = reply.int()? == 1;
    Ok(ClaimReply { has_more: more, ..empty_reply(&reply) })
}

fn empty_reply(reply: &ScriptReply) -> ClaimReply {
    ClaimReply {
        jobs: Vec::new(),
        now: from_micros(reply.now),
        has_more: false,
        next_due: None,
        next_tick: None,
        idle_rank: 0,
        taken_back: 0,
        suspect_has_more: false,
    }
}

/// Everything the node holds here, in the order in which it was claimed.
async fn resync(store: &Redis, node: NodeId, keys: &QueueKeys) -> Result<ClaimReply> {
    let mut cursor = "0".to_owned();
    let (mut jobs, mut seen): (Vec<HeldJob>, HashSet<JobId>) = Default::default();
    for _ in 0..RESYNC_STEPS_MAX {
        let mut reply = scan_held(store, "claim", ConnectionRole::BulkRead, keys, &node.to_string(), &cursor).await?;
        cursor = reply.text()?;
        // A hash that grows under a walk through it shows some twice.
        let found = decode_held_jobs(&mut reply, keys)?.into_iter().flatten().map(|(_, held)| held);
        jobs.extend(found.filter(|held| seen.insert(held.job.id)));
        if cursor == "0" {
            jobs.sort_by_key(|held| (held.fence, held.job.id));
            return Ok(ClaimReply { jobs, ..empty_reply(&reply) });
        }
    }
    Err(Error::store("claim", "too much is held in this queue to go through it"))
}

/// A step through what a node, or anybody if it is empty, holds in a queue.
pub(crate) async fn scan_held(
    store: &Redis,
    op: &'static str,
    way: ConnectionRole,
    keys: &QueueKeys,
    node: &str,
    cursor: &str,
) -> Result<ScriptReply> {
    let mut cmd = script::LIST_HELD.call(keys);
    cmd.arg(store.manual_now()).arg(node).arg(cursor);
    store.parse_reply(op, store.servers.run_script(op, way, keys.slot, &script::LIST_HELD, &cmd).await?)
}

/// The held jobs of such a step, with who holds each; `None` in the place of one that cannot be read.
pub(crate) fn decode_held_jobs(reply: &mut ScriptReply, keys: &QueueKeys) -> Result<Vec<Option<(NodeId, HeldJob)>>> {
    let (ids, values, records, metas) = (reply.list()?, reply.list()?, reply.list()?, reply.list()?);
    let mut found = Vec::with_capacity(ids.len());
    for (((id, value), record), meta) in ids.iter().zip(&values).zip(&records).zip(&metas) {
        let id = id.as_deref().and_then(reply::parse_job_id);
        let holder = value.as_deref().and_then(record::decode_held);
        found.push(match (id, holder, record) {
            (Some(id), Some((node, fence, in_trouble)), Some(record)) => {
                Some((node, decode_held_job(id, &keys.queue, record, meta.as_deref(), in_trouble, fence)))
            }
            _ => None,
        });
    }
    Ok(found)
}

/// Takes back a bounded number of jobs from a node that may be dead. Tells how many, and whether there may be more.
async fn take_back(store: &Redis, node: NodeId, suspect: NodeId, keys: &QueueKeys) -> Result<(usize, bool)> {
    let mut cmd = script::TAKE_BACK.call(keys);
    cmd.arg(store.manual_now()).arg(&keys.channel).arg(node.to_string()).arg(suspect.to_string());
    cmd.arg(micros(store.options.lease))
        .arg(store.take_back_cursor(suspect, &keys.queue))
        .arg(TAKE_BACK_MAX)
        .arg(NODE_DIED_ERROR);
    let value = store.servers.run_script("claim", ConnectionRole::Worker, keys.slot, &script::TAKE_BACK, &cmd).await?;
    let mut reply = store.parse_reply("claim", value)?;
    let taken = usize::try_from(reply.int()?).unwrap_or(0);
    let cursor = reply.text()?;
    let counted = reply.int()? > 0;
    // All was gone through and nothing found: whatever the count says, the next beat is soon enough to look again.
    let left = counted && !(taken == 0 && cursor == "0");
    store.set_take_back_cursor(suspect, &keys.queue, left.then_some(cursor));
    Ok((taken, left))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn locators_round_trip(failures in 0u32..1 << 31, ticket_number in 0u32..1 << 31) {
            let parts = LocatorParts { failures, ticket_number };
            prop_assert_eq!(LocatorParts::unpack(parts.pack()), Some(parts));
        }
    }

    #[test]
    fn next_batch_len_follows_the_longest_record() {
        let some = |bytes: usize, times: usize| vec![Some(vec![0; bytes]); times];
        assert_eq!(next_batch_len(&some(200, 1), 1), 2);
        assert_eq!(next_batch_len(&some(200, 400), 400), RECORDS_AT_ONCE_MAX);
        assert_eq!(next_batch_len(&some(64 * 1024, 100), 100), 16);
        assert_eq!(
            next_batch_len(&[Some(vec![0; 200]), Some(vec![0; 2 * RECORDS_BYTES_MAX])], 2),
            1,
            "the longest counts"
        );
        assert_eq!(next_batch_len(&[None], 1), 2);
    }

    #[test]
    fn locator_of_job_without_meta_has_no_parts() {
        assert_eq!(LocatorParts::unpack(0), None);
    }
}
