//! Claims jobs: takes back entries of dead nodes, promotes due entries, and takes ready entries of the wanted kinds.

use std::time::Duration;

use super::entry::{CrashRecord, SidekiqEntry};
use super::keys::EntryKeys;
use super::scripts::{CLAIM, LEAVE_IDLE, SET_ALONE, TAKE_BACK};
use super::{HeldEntry, HoldId, Sidekiq, entry, mixed_list_error, promote, settle};
use crate::clock::{from_micros, micros};
use crate::compat::sidekiq::find_job;
use crate::error::Result;
use crate::job::push::ARGS_BYTES_MAX;
use crate::job::{Fence, HeldJob, Locator};
use crate::node::NodeId;
use crate::store::redis::{ConnectionRole, QueueKeys, ScriptReply};
use crate::store::{CLAIM_MAX, Claim, ClaimReply, PROMOTE_MAX, PROMOTE_MIN, TAKE_BACK_MAX};

/// A push by Ruby sends no wake, so an idle node polls: first after the shorter time, then less and less often.
const POLL_WAIT_MIN: Duration = Duration::from_millis(10);
const POLL_WAIT_MAX: Duration = Duration::from_millis(100);

/// Implements `JobStore::claim`.
pub(super) async fn claim(store: &Sidekiq, node: NodeId, claim: Claim) -> Result<ClaimReply> {
    let keys = store.redis.join_queue(node, &claim.queue);
    store.redis.ensure_wakes_subscribed(node, &keys).await?;
    let (mut taken_back, mut suspect_has_more) = (0, false);
    if let Some(suspect) = claim.suspect {
        (taken_back, suspect_has_more) = take_back(store, node, suspect, &keys).await?;
    }
    let mut reply = match (claim.resync, claim.max) {
        (true, _) => resync(store, node, &keys, claim.args_bytes_max.is_none()).await?,
        (false, 0) => leave_idle_list(store, node, &keys).await?,
        (false, max) => {
            // The script does not measure entries: it takes as many as fit at their maximum size.
            let fitting = claim.args_bytes_max.map_or(CLAIM_MAX, |bytes| (bytes / ARGS_BYTES_MAX).max(1));
            take_ready(store, node, &keys, max.min(CLAIM_MAX).min(fitting), claim.kinds.as_deref()).await?
        }
    };
    reply.taken_back = taken_back;
    reply.suspect_has_more = suspect_has_more;
    reply.has_more |= suspect_has_more;
    Ok(reply)
}

async fn take_ready(
    store: &Sidekiq,
    node: NodeId,
    keys: &QueueKeys,
    max: usize,
    kinds: Option<&[String]>,
) -> Result<ClaimReply> {
    let mut reply = send_claim(store, node, keys, max, kinds, false).await?;
    let (mut status, mut more_due) = (reply.text()?, false);
    if status == "due" {
        more_due = promote::promote(store, reply.now, PROMOTE_MAX.min(PROMOTE_MIN.max(4 * max))).await?;
        reply = send_claim(store, node, keys, max, kinds, true).await?;
        status = reply.text()?;
    }
    if status != "took" {
        return Err(mixed_list_error(&keys.queue, &status));
    }
    let fence = reply.text()?.parse().map_or(Fence(0), Fence);
    let full = reply.int()? == 1;
    let next_due = reply.optional_int()?.map(|due| Duration::from_micros(u64::try_from(due - reply.now).unwrap_or(0)));
    // Due entries that could not be promoted are tried again with the next poll, not at once.
    let next_due = next_due.filter(|due| !due.is_zero());
    let idle_rank = u32::try_from(reply.int()?).unwrap_or(0);
    let entries: Vec<Vec<u8>> = reply.list()?.into_iter().flatten().collect();
    let crashes = reply.list()?;
    let (now, taken) = (reply.now, entries.len());
    let crash_of = |index: usize| crashes.get(index).and_then(|text| CrashRecord::decode(text.as_deref()?));
    let (mut jobs, mut held, mut unreadable) = (Vec::with_capacity(taken), Vec::with_capacity(taken), Vec::new());
    for (index, bytes) in entries.into_iter().enumerate() {
        let locator = index as i64 + 1;
        match entry::parse_entry(&keys.queue, &bytes, crash_of(index).as_ref()) {
            Ok(parsed) => {
                jobs.push(to_held_job(parsed, fence, locator));
                held.push(((fence.0, locator), HeldEntry { entry: bytes, claimed_at: now }));
            }
            Err(error) => unreadable.push((locator, entry::wrap_unreadable(&keys.queue, &bytes, &error, now))),
        }
    }
    remember_held(store, node, &keys.queue, held);
    settle::bury_unreadable(store, node, keys, fence, &unreadable).await;
    store.redis.swap_idle(node, &keys.queue, !full);
    let next_due = next_poll(store, node, &keys.queue, next_due, taken < max, taken > 0);
    Ok(ClaimReply {
        jobs,
        now: from_micros(now),
        has_more: full || more_due,
        next_due,
        next_tick: None,
        idle_rank,
        taken_back: 0,
        suspect_has_more: false,
    })
}

async fn send_claim(
    store: &Sidekiq,
    node: NodeId,
    keys: &QueueKeys,
    max: usize,
    kinds: Option<&[String]>,
    ignore_due: bool,
) -> Result<ScriptReply> {
    let mut cmd = CLAIM.call(&EntryKeys::new(&store.keys, keys).held_by(node));
    cmd.arg(store.manual_now()).arg(&keys.channel).arg(node.to_string()).arg(max);
    cmd.arg(micros(store.redis.options().lease)).arg(u8::from(store.redis.swap_idle(node, &keys.queue, true)));
    cmd.arg(u8::from(ignore_due)).arg(u8::from(kinds.is_none()));
    for kind in kinds.unwrap_or_default() {
        cmd.arg(kind);
    }
    store.run_script("claim", ConnectionRole::Worker, &CLAIM, &cmd).await
}

fn to_held_job(entry: SidekiqEntry, fence: Fence, locator: i64) -> HeldJob {
    HeldJob {
        args_bytes: entry.job.args.len(),
        job: entry.job,
        fence,
        due: from_micros(entry.due),
        attempts: entry.attempts,
        crashes: entry.crashes,
        locator: Locator::new(locator),
    }
}

fn remember_held(store: &Sidekiq, node: NodeId, queue: &str, held: Vec<(HoldId, HeldEntry)>) {
    store.state().held.entry(node).or_default().entry(queue.to_owned()).or_default().extend(held);
}

/// Returns the time until the next poll: an entry may arrive without a wake. With a manual clock, tests poll
/// themselves.
fn next_poll(
    store: &Sidekiq,
    node: NodeId,
    queue: &str,
    due: Option<Duration>,
    has_room: bool,
    found: bool,
) -> Option<Duration> {
    if store.redis.options().clock.is_manual() {
        return due;
    }
    let mut state = store.state();
    let wait = state.poll_waits.entry((node, queue.to_owned())).or_insert(POLL_WAIT_MIN);
    if found {
        *wait = POLL_WAIT_MIN;
    }
    if !has_room {
        return due;
    }
    let next_poll = *wait;
    *wait = wait.mul_f64(1.5).min(POLL_WAIT_MAX);
    Some(due.map_or(next_poll, |due| due.min(next_poll)))
}

async fn leave_idle_list(store: &Sidekiq, node: NodeId, keys: &QueueKeys) -> Result<ClaimReply> {
    let mut cmd = LEAVE_IDLE.call(&EntryKeys::new(&store.keys, keys));
    cmd.arg(store.manual_now()).arg(&keys.channel).arg(node.to_string());
    let mut reply = store.run_script("claim", ConnectionRole::Worker, &LEAVE_IDLE, &cmd).await?;
    let has_more = reply.int()? == 1;
    Ok(ClaimReply { has_more, ..ClaimReply::new(reply.now, Vec::new()) })
}

/// Returns all jobs of this queue that the node holds, in the order of their claims.
async fn resync(store: &Sidekiq, node: NodeId, keys: &QueueKeys, with_args: bool) -> Result<ClaimReply> {
    let now = store.now();
    let entries = find_job::read_held(store, "claim", keys, &[node.to_string()]).await?;
    let crashes = find_job::read_crashes(store, "claim", keys, entries.iter().map(|entry| &entry.bytes[..])).await?;
    let (mut jobs, mut held) = (Vec::with_capacity(entries.len()), Vec::with_capacity(entries.len()));
    for (located, crash) in entries.into_iter().zip(crashes) {
        let find_job::EntryPosition::Running(_, fence, locator) = located.position else {
            continue;
        };
        match entry::parse_entry(&keys.queue, &located.bytes, crash.as_ref()) {
            Ok(parsed) => {
                jobs.push(to_held_job(parsed, fence, locator));
                held.push(((fence.0, locator), HeldEntry { entry: located.bytes.to_vec(), claimed_at: now }));
            }
            Err(error) => {
                let unreadable = entry::wrap_unreadable(&keys.queue, &located.bytes, &error, now);
                settle::bury_unreadable(store, node, keys, fence, &[(locator, unreadable)]).await;
            }
        }
    }
    remember_held(store, node, &keys.queue, held);
    if !with_args {
        jobs.iter_mut().for_each(HeldJob::drop_args);
    }
    Ok(ClaimReply::new(now, jobs))
}

/// Implements `JobStore::set_alone`.
pub(super) async fn set_alone(store: &Sidekiq, node: NodeId, held: &HeldJob, alone: bool) -> Result<bool> {
    let keys = store.redis.keys(&held.job.queue);
    let mut cmd = SET_ALONE.call(&EntryKeys::new(&store.keys, &keys).held_by(node));
    cmd.arg(store.manual_now()).arg(node.to_string());
    cmd.arg(settle::held_field(held.fence, held.locator.value())).arg(u8::from(alone));
    let mut reply = store.run_script("set_alone", ConnectionRole::Worker, &SET_ALONE, &cmd).await?;
    Ok(reply.int()? == 1)
}

/// Takes back a bounded number of entries from a node that may be dead. Returns how many, and whether it holds more.
async fn take_back(store: &Sidekiq, node: NodeId, suspect: NodeId, keys: &QueueKeys) -> Result<(usize, bool)> {
    let mut cmd = TAKE_BACK.call(&EntryKeys::new(&store.keys, keys).held_by(suspect));
    cmd.arg(store.manual_now()).arg(&keys.channel).arg(node.to_string()).arg(suspect.to_string());
    cmd.arg(micros(store.redis.options().lease)).arg(TAKE_BACK_MAX);
    let mut reply = store.run_script("claim", ConnectionRole::Worker, &TAKE_BACK, &cmd).await?;
    let (taken, remaining) = (reply.int()?, reply.int()?);
    Ok((usize::try_from(taken).unwrap_or(0), remaining > 0))
}
