//! Claims jobs: takes back jobs of dead nodes, promotes due jobs, and takes ready ones.

use std::collections::HashSet;

use crate::clock::{from_micros, micros};
use crate::error::{Error, Result};
use crate::job::{Fence, HeldJob, JobId, Locator};
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

/// The error in the history for an attempt whose node died.
const NODE_DIED_ERROR: &str = "the node died while it held this job, or was paused for longer than its lease";
/// Bounds on the due jobs that a claim promotes; between them it promotes as many as it may take. Promoting reads each
/// job and updates the schedule and the index, and the server runs nothing else meanwhile.
const PROMOTED_MIN: usize = 100;
const PROMOTED_MAX: usize = 250;
/// Maximum tickets without a record that are released in one operation.
const ORPHANS_MAX: usize = 100;
/// Bytes of records to read at a time, estimated from the previous ones, and the maximum number of records.
const RECORDS_BYTES_MAX: usize = 1024 * 1024;
const RECORDS_AT_ONCE_MAX: usize = 64;
/// Maximum scan requests over the held jobs when a node resyncs.
const RESYNC_BATCHES_MAX: usize = 10_000;

/// Implements `JobStore::claim`.
pub(crate) async fn claim(store: &Redis, node: NodeId, claim: Claim) -> Result<ClaimReply> {
    let keys = store.join_queue(node, &claim.queue);
    wakes::ensure_subscribed(store, node, &keys).await?;
    let (mut taken_back, mut suspect_has_more) = (0, false);
    if let Some(suspect) = claim.suspect {
        (taken_back, suspect_has_more) = take_back(store, node, suspect, &keys).await?;
    }
    let mut reply = match (claim.resync, claim.max) {
        (true, _) => resync(store, node, &keys, claim.args_bytes_max.is_none()).await?,
        (false, 0) => leave_idle_list(store, node, &keys).await?,
        (false, max) => take_ready(store, node, &keys, &claim, max.min(CLAIM_MAX)).await?,
    };
    reply.taken_back = taken_back;
    reply.suspect_has_more = suspect_has_more;
    reply.has_more |= suspect_has_more;
    Ok(reply)
}

/// Takes ready jobs, and deferred jobs that the node can run if any job was deferred since it last looked.
async fn take_ready(store: &Redis, node: NodeId, keys: &QueueKeys, claim: &Claim, max: usize) -> Result<ClaimReply> {
    let checks_deferred = store.has_unchecked_deferrals(node, keys);
    let mut limits = ClaimLimits { jobs: max, args_bytes: claim.args_bytes_max };
    let mut reply = claim_once(store, node, keys, limits, checks_deferred.then_some(claim)).await?;
    limits.subtract(&reply.jobs);
    if !checks_deferred && limits.have_room() && store.has_unchecked_deferrals(node, keys) {
        match claim_once(store, node, keys, limits, Some(claim)).await {
            Ok(rest) => {
                let jobs = std::mem::take(&mut reply.jobs).into_iter().chain(rest.jobs).collect();
                reply = ClaimReply { jobs, ..rest };
            }
            // The node resyncs and finds the jobs of both operations.
            Err(error @ Error::Unknown { .. }) => return Err(error),
            // The jobs of the first operation are claimed.
            Err(error) => {
                tracing::warn!(%error, "cannot look through the deferred jobs of other nodes");
                reply.has_more = true;
            }
        }
    }
    Ok(reply)
}

/// How much a claim may take.
#[derive(Clone, Copy)]
struct ClaimLimits {
    jobs: usize,
    args_bytes: Option<usize>,
}

impl ClaimLimits {
    /// Subtracts these jobs and their args.
    fn subtract(&mut self, jobs: &[HeldJob]) {
        self.jobs = self.jobs.saturating_sub(jobs.len());
        let used: usize = jobs.iter().map(|held| held.args_bytes).sum();
        self.args_bytes = self.args_bytes.map(|max| max.saturating_sub(used));
    }

    fn have_room(&self) -> bool {
        self.jobs > 0 && self.args_bytes != Some(0)
    }
}

/// Claims once; with `deferred_for`, also looks through the deferred jobs.
async fn claim_once(
    store: &Redis,
    node: NodeId,
    keys: &QueueKeys,
    limits: ClaimLimits,
    deferred_for: Option<&Claim>,
) -> Result<ClaimReply> {
    let max = limits.jobs;
    let mut cmd = script::CLAIM.call(keys);
    cmd.arg(store.manual_now()).arg(&keys.channel).arg(node.to_string()).arg(max);
    cmd.arg(max.clamp(PROMOTED_MIN, PROMOTED_MAX)).arg(micros(store.options.lease));
    cmd.arg(u8::from(store.swap_idle(node, &keys.queue, true)));
    cmd.arg(limits.args_bytes.map_or_else(String::new, |max| max.to_string()));
    match deferred_for.map(|claim| (&claim.kinds, &claim.excluded_kind)) {
        Some((Some(kinds), _)) => kinds.iter().for_each(|kind| _ = cmd.arg(kind)),
        Some((None, Some(excluded))) => _ = cmd.arg(format!("\0{excluded}")),
        Some((None, None)) => _ = cmd.arg(""),
        None => {}
    }
    let mut reply = store.run_script("claim", ConnectionRole::Worker, keys.slot, &script::CLAIM, &cmd).await?;
    let fence = reply.text()?.parse().map_or(Fence(0), Fence);
    let has_more = reply.int()? == 1;
    let next_due = reply.optional_int()?;
    let idle_rank = u32::try_from(reply.int()?).unwrap_or(0);
    let next_tick = reply.optional_int()?;
    let (mark, is_complete) = (reply.int()?, reply.int()? == 1);
    let tickets = reply.list()?;
    let mut records = reply.list()?;
    let metas = if reply.is_empty() { Vec::new() } else { reply.list()? };
    let mut metas = metas.into_iter();
    store.note_checked_deferrals(node, keys, mark, is_complete);
    let mut batch_len = next_batch_len(&records, records.len());
    while let Some(rest) = tickets.get(records.len()..).filter(|rest| !rest.is_empty()) {
        let batch = read_records(store, keys, &rest[..rest.len().min(batch_len)]).await?;
        batch_len = next_batch_len(&batch, batch_len);
        records.extend(batch);
    }
    let mut jobs = Vec::with_capacity(tickets.len());
    let mut orphans = Vec::new();
    for (ticket, record) in tickets.iter().zip(records) {
        let Some((id, has_meta)) = ticket.as_deref().and_then(record::decode_ticket) else {
            continue;
        };
        let meta = if has_meta { metas.next().flatten() } else { None };
        match record {
            Some(record) => jobs.push(decode_held_job(id, &keys.queue, &record, meta.as_deref(), has_meta, fence)),
            None => orphans.push(id),
        }
    }
    store.swap_idle(node, &keys.queue, tickets.len() < max && !has_more);
    for batch in orphans.chunks(ORPHANS_MAX) {
        settle::release_orphans(store, node, keys, fence, batch).await;
    }
    let [next_due, next_tick] = [next_due, next_tick].map(|time| cron::duration_until(time, reply.now));
    Ok(ClaimReply {
        jobs,
        now: from_micros(reply.now),
        has_more,
        next_due,
        next_tick,
        idle_rank,
        taken_back: 0,
        suspect_has_more: false,
    })
}

/// Reads the records of claimed jobs that did not fit into the reply. Uses a connection without subscriptions, because
/// a server closes a subscribed connection with more than 32 MB of output (`client-output-buffer-limit`).
async fn read_records(store: &Redis, keys: &QueueKeys, tickets: &[Option<Vec<u8>>]) -> Result<Vec<Option<Vec<u8>>>> {
    let mut cmd = redis::cmd("HMGET");
    cmd.arg(&keys.job);
    for ticket in tickets {
        cmd.arg(ticket.as_deref().and_then(|ticket| ticket.get(..16)).unwrap_or_default());
    }
    // The jobs are claimed even if their records cannot be read: the node must resync.
    let found = store
        .servers
        .send_idempotent("claim", ConnectionRole::BulkRead, keys.slot, &cmd)
        .await
        .map_err(Error::into_unknown)?;
    let found = reply::byte_list("claim", found).map_err(Error::into_unknown)?;
    if found.len() == tickets.len() { Ok(found) } else { Err(Error::unknown("claim")) }
}

/// Returns how many records to read next: as many as fit if all are as long as the longest so far. At most twice as
/// many as before, because later records may have a megabyte each.
fn next_batch_len(found: &[Option<Vec<u8>>], previous: usize) -> usize {
    let longest = found.iter().flatten().map(Vec::len).max().unwrap_or(0);
    (RECORDS_BYTES_MAX / longest.max(1)).min(2 * previous).clamp(1, RECORDS_AT_ONCE_MAX)
}

/// Decodes a claimed job. `has_meta` determines the held value, even if the meta was deleted by another client.
fn decode_held_job(
    id: JobId,
    queue: &str,
    record: &[u8],
    meta: Option<&[u8]>,
    has_meta: bool,
    fence: Fence,
) -> HeldJob {
    let (job, due) = record::decode(id, queue, record);
    let meta = meta.filter(|_| has_meta).and_then(JobMeta::decode).unwrap_or_default();
    let parts = LocatorParts { runs: meta.runs, ticket_number: meta.ticket_number };
    let locator = if has_meta { parts.pack() } else { LocatorParts::NO_META };
    let due = if meta.due > 0 { meta.due } else { due };
    let args_bytes = job.args.len();
    HeldJob { job, fence, due: from_micros(due), attempts: meta.attempts, crashes: meta.crashes, locator, args_bytes }
}

/// Decodes a job that a push delivered to a node: fence, id, record.
pub(crate) fn decode_delivered_job(queue: &str, message: &[u8]) -> Option<HeldJob> {
    let (fence, rest) = message.split_at_checked(16)?;
    let (id, record) = rest.split_at_checked(16)?;
    let fence = Fence(std::str::from_utf8(fence).ok()?.parse().ok()?);
    Some(decode_held_job(reply::parse_job_id(id)?, queue, record, None, false, fence))
}

/// The data that a settle needs of a job with a meta, packed into the locator of the held job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LocatorParts {
    pub(crate) runs: u32,
    pub(crate) ticket_number: u32,
}

impl LocatorParts {
    const HAS_META: i64 = 1 << 62;
    /// The locator of a job without a meta.
    const NO_META: Locator = Locator::new(0);

    fn pack(self) -> Locator {
        Locator::new(
            LocatorParts::HAS_META
                | i64::from(self.ticket_number.min(COUNT_MAX)) << 31
                | i64::from(self.runs.min(COUNT_MAX)),
        )
    }

    /// Returns `None` for a job without a meta.
    pub(crate) fn unpack(locator: Locator) -> Option<Self> {
        let (bits, part) = (locator.value(), |bits: i64| u32::try_from(bits & i64::from(COUNT_MAX)).unwrap_or(0));
        (bits & LocatorParts::HAS_META != 0).then(|| LocatorParts { runs: part(bits), ticket_number: part(bits >> 31) })
    }
}

async fn leave_idle_list(store: &Redis, node: NodeId, keys: &QueueKeys) -> Result<ClaimReply> {
    let mut cmd = script::LEAVE_IDLE.call(keys);
    cmd.arg(store.manual_now()).arg(&keys.channel).arg(node.to_string()).arg(micros(store.options.lease));
    let mut reply = store.run_script("claim", ConnectionRole::Worker, keys.slot, &script::LEAVE_IDLE, &cmd).await?;
    let has_more = reply.int()? == 1;
    Ok(ClaimReply { has_more, ..ClaimReply::new(reply.now, Vec::new()) })
}

/// Returns all jobs that the node holds in the queue, in the order of their claims.
async fn resync(store: &Redis, node: NodeId, keys: &QueueKeys, with_args: bool) -> Result<ClaimReply> {
    let mut cursor = "0".to_owned();
    let (mut jobs, mut seen): (Vec<HeldJob>, HashSet<JobId>) = Default::default();
    for _ in 0..RESYNC_BATCHES_MAX {
        let mut reply = scan_held(store, "claim", ConnectionRole::BulkRead, keys, &node.to_string(), &cursor).await?;
        cursor = reply.text()?;
        // A hash that grows during a scan returns some fields twice.
        let found = decode_held_jobs(&mut reply, keys)?.into_iter().flatten().map(|found| found.held);
        let before = jobs.len();
        jobs.extend(found.filter(|held| seen.insert(held.job.id)));
        if !with_args {
            jobs[before..].iter_mut().for_each(HeldJob::drop_args);
        }
        if cursor == "0" {
            jobs.sort_by_key(|held| (held.fence, held.job.id));
            return Ok(ClaimReply::new(reply.now, jobs));
        }
    }
    Err(Error::store("claim", "too many jobs of this queue are running to read them all; run fewer at the same time"))
}

/// Scans the held jobs of a node, or of all nodes if `node` is empty.
pub(crate) async fn scan_held(
    store: &Redis,
    op: &'static str,
    role: ConnectionRole,
    keys: &QueueKeys,
    node: &str,
    cursor: &str,
) -> Result<ScriptReply> {
    let mut cmd = script::LIST_HELD.call(keys);
    cmd.arg(store.manual_now()).arg(node).arg(cursor);
    store.run_script(op, role, keys.slot, &script::LIST_HELD, &cmd).await
}

/// A held job that such a scan found.
pub(crate) struct ScannedHeldJob {
    pub(crate) node: NodeId,
    pub(crate) held: HeldJob,
    /// It was cancelled.
    pub(crate) cancelling: bool,
}

/// Decodes the held jobs of such a scan; `None` for each unreadable one.
pub(crate) fn decode_held_jobs(reply: &mut ScriptReply, keys: &QueueKeys) -> Result<Vec<Option<ScannedHeldJob>>> {
    let (ids, values, records, metas) = (reply.list()?, reply.list()?, reply.list()?, reply.list()?);
    let mut found = Vec::with_capacity(ids.len());
    for (((id, value), record), meta) in ids.iter().zip(&values).zip(&records).zip(&metas) {
        let id = id.as_deref().and_then(reply::parse_job_id);
        let holder = value.as_deref().and_then(record::decode_held);
        found.push(match (id, holder, record) {
            (Some(id), Some((node, fence, has_meta)), Some(record)) => {
                let held = decode_held_job(id, &keys.queue, record, meta.as_deref(), has_meta, fence);
                let cancelling = value.as_deref().is_some_and(record::is_cancelled);
                Some(ScannedHeldJob { node, held, cancelling })
            }
            _ => None,
        });
    }
    Ok(found)
}

/// Implements `JobStore::set_alone`.
pub(crate) async fn set_alone(store: &Redis, node: NodeId, held: &HeldJob, alone: bool) -> Result<bool> {
    let keys = store.keys(&held.job.queue);
    let mut cmd = script::SET_ALONE.call(&*keys);
    cmd.arg(store.manual_now()).arg(node.to_string()).arg(held.job.id.as_bytes());
    cmd.arg(format!("{:016}", held.fence.0)).arg(u8::from(alone));
    let mut reply = store.run_script("set_alone", ConnectionRole::Worker, keys.slot, &script::SET_ALONE, &cmd).await?;
    Ok(reply.int()? == 1)
}

/// Takes back a bounded number of jobs from a node that may be dead. Returns the number, and whether there may be more.
async fn take_back(store: &Redis, node: NodeId, suspect: NodeId, keys: &QueueKeys) -> Result<(usize, bool)> {
    let mut cmd = script::TAKE_BACK.call(keys);
    cmd.arg(store.manual_now()).arg(&keys.channel).arg(node.to_string()).arg(suspect.to_string());
    cmd.arg(micros(store.options.lease))
        .arg(store.take_back_cursor(suspect, &keys.queue))
        .arg(TAKE_BACK_MAX)
        .arg(NODE_DIED_ERROR);
    let mut reply = store.run_script("claim", ConnectionRole::Worker, keys.slot, &script::TAKE_BACK, &cmd).await?;
    let taken = usize::try_from(reply.int()?).unwrap_or(0);
    let cursor = reply.text()?;
    let has_held = reply.int()? > 0;
    // A complete scan without a job: the next heartbeat is soon enough to look again, whatever the counter is.
    let has_more = has_held && !(taken == 0 && cursor == "0");
    store.set_take_back_cursor(suspect, &keys.queue, has_more.then_some(cursor));
    Ok((taken, has_more))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn locators_round_trip(runs in 0u32..1 << 31, ticket_number in 0u32..1 << 31) {
            let parts = LocatorParts { runs, ticket_number };
            prop_assert_eq!(LocatorParts::unpack(parts.pack()), Some(parts));
        }
    }

    #[test]
    fn next_batch_len_follows_the_longest_record() {
        let records = |bytes: usize, times: usize| vec![Some(vec![0; bytes]); times];
        assert_eq!(next_batch_len(&records(200, 1), 1), 2);
        assert_eq!(next_batch_len(&records(200, 400), 400), RECORDS_AT_ONCE_MAX);
        assert_eq!(next_batch_len(&records(64 * 1024, 100), 100), 16);
        assert_eq!(
            next_batch_len(&[Some(vec![0; 200]), Some(vec![0; 2 * RECORDS_BYTES_MAX])], 2),
            1,
            "the longest counts"
        );
        assert_eq!(next_batch_len(&[None], 1), 2);
    }

    #[test]
    fn locator_of_job_without_meta_has_no_parts() {
        assert_eq!(LocatorParts::unpack(LocatorParts::NO_META), None);
    }
}
