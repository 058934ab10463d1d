//! Claim: take back from the dead, promote what is due, take what is ready and known.

use std::time::Duration;

use super::entry::{CrashRecord, SidekiqEntry};
use super::keys::EntryKeys;
use super::scripts::{CLAIM, LEAVE_IDLE, TAKE_BACK};
use super::{HeldEntry, HoldId, Sidekiq, entry, mixed_list_error, promote, settle};
use crate::clock::{Micros, from_micros, micros};
use crate::compat::sidekiq::find_job;
use crate::error::Result;
use crate::job::{Fence, HeldJob};
use crate::node::NodeId;
use crate::store::redis::{ConnectionRole, QueueKeys, ScriptReply};
use crate::store::{CLAIM_MAX, Claim, ClaimReply, PROMOTE_MAX, PROMOTE_MIN, TAKE_BACK_MAX};

/// A push by Ruby wakes nobody: a node with nothing to do looks again so soon, and less and less often.
const POLL_WAIT_MIN: Duration = Duration::from_millis(10);
const POLL_WAIT_MAX: Duration = Duration::from_millis(100);

/// `claim` of the contract.
pub(super) async fn claim(store: &Sidekiq, node: NodeId, claim: Claim) -> Result<ClaimReply> {
    let keys = store.redis.join_queue(node, &claim.queue);
    store.redis.ensure_wakes_subscribed(node, &keys).await?;
    let (mut taken_back, mut left) = (0, false);
    if let Some(suspect) = claim.suspect {
        (taken_back, left) = take_back(store, node, suspect, &keys).await?;
    }
    let mut claimed = match (claim.resync, claim.max) {
        (true, _) => resync(store, node, &keys).await?,
        (false, 0) => leave_idle_list(store, node, &keys).await?,
        (false, max) => take_ready(store, node, &keys, max.min(CLAIM_MAX), claim.kinds.as_deref()).await?,
    };
    claimed.taken_back = taken_back;
    claimed.suspect_has_more = left;
    claimed.has_more |= left;
    Ok(claimed)
}

async fn take_ready(
    store: &Sidekiq,
    node: NodeId,
    keys: &QueueKeys,
    max: usize,
    kinds: Option<&[String]>,
) -> Result<ClaimReply> {
    let mut reply = send_claim(store, node, keys, max, kinds, false).await?;
    let (mut answer, mut more_due) = (reply.text()?, false);
    if answer == "due" {
        more_due = promote::promote(store, reply.now, PROMOTE_MAX.min(PROMOTE_MIN.max(4 * max))).await?;
        reply = send_claim(store, node, keys, max, kinds, true).await?;
        answer = reply.text()?;
    }
    if answer != "took" {
        return Err(mixed_list_error(&keys.queue, &answer));
    }
    let fence = reply.text()?.parse().map_or(Fence(0), Fence);
    let full = reply.int()? == 1;
    let next_due = reply.optional_int()?.map(|due| Duration::from_micros(u64::try_from(due - reply.now).unwrap_or(0)));
    // What is due and could not be moved is tried again with the next look, not at once.
    let next_due = next_due.filter(|due| !due.is_zero());
    let rank = u32::try_from(reply.int()?).unwrap_or(0);
    let entries: Vec<Vec<u8>> = reply.list()?.into_iter().flatten().collect();
    let crashes = reply.list()?;
    let (now, taken) = (reply.now, entries.len());
    let crash_of = |at: usize| crashes.get(at).and_then(|text| CrashRecord::decode(text.as_deref()?));
    let (mut jobs, mut kept, mut strange) = (Vec::with_capacity(taken), Vec::with_capacity(taken), Vec::new());
    for (at, bytes) in entries.into_iter().enumerate() {
        let place = at as i64 + 1;
        match entry::parse_entry(&keys.queue, &bytes, crash_of(at).as_ref()) {
            Ok(read) => {
                jobs.push(to_held_job(read, fence, place));
                kept.push(((fence.0, place), HeldEntry { entry: bytes, claimed_at: now }));
            }
            Err(why) => strange.push((place, entry::wrap_unreadable(&keys.queue, &bytes, &why, now))),
        }
    }
    remember_held(store, node, &keys.queue, kept);
    settle::bury_unreadable(store, node, keys, fence, &strange).await;
    store.redis.swap_idle(node, &keys.queue, !full);
    let next_due = next_poll(store, node, &keys.queue, next_due, taken < max, taken > 0);
    Ok(ClaimReply {
        jobs,
        now: from_micros(now),
        has_more: full || more_due,
        next_due,
        next_tick: None,
        idle_rank: rank,
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
    whatever_is_due: bool,
) -> Result<ScriptReply> {
    let mut cmd = CLAIM.call(&EntryKeys::new(&store.keys, keys).held_by(node));
    cmd.arg(store.manual_now()).arg(&keys.channel).arg(node.to_string()).arg(max);
    cmd.arg(micros(store.redis.options().lease)).arg(u8::from(store.redis.swap_idle(node, &keys.queue, true)));
    cmd.arg(u8::from(whatever_is_due)).arg(u8::from(kinds.is_none()));
    for kind in kinds.unwrap_or_default() {
        cmd.arg(kind);
    }
    store.run_script("claim", ConnectionRole::Worker, &CLAIM, &cmd).await
}

fn to_held_job(read: SidekiqEntry, fence: Fence, place: i64) -> HeldJob {
    HeldJob {
        job: read.job,
        fence,
        due: from_micros(read.due),
        attempts: read.attempts,
        crashes: read.crashes,
        locator: place,
    }
}

fn remember_held(store: &Sidekiq, node: NodeId, queue: &str, kept: Vec<(HoldId, HeldEntry)>) {
    store.state().held.entry(node).or_default().entry(queue.to_owned()).or_default().extend(kept);
}

/// When to look again, if something may come without a wake. A test that moves the time itself does so when it likes.
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
    let mut known = store.state();
    let wait = known.poll_waits.entry((node, queue.to_owned())).or_insert(POLL_WAIT_MIN);
    if found {
        *wait = POLL_WAIT_MIN;
    }
    if !has_room {
        return due;
    }
    let look = *wait;
    *wait = wait.mul_f64(1.5).min(POLL_WAIT_MAX);
    Some(due.map_or(look, |due| due.min(look)))
}

async fn leave_idle_list(store: &Sidekiq, node: NodeId, keys: &QueueKeys) -> Result<ClaimReply> {
    let mut cmd = LEAVE_IDLE.call(&EntryKeys::new(&store.keys, keys));
    cmd.arg(store.manual_now()).arg(&keys.channel).arg(node.to_string());
    let mut reply = store.run_script("claim", ConnectionRole::Worker, &LEAVE_IDLE, &cmd).await?;
    let more = reply.int()? == 1;
    Ok(ClaimReply { has_more: more, ..empty_reply(reply.now) })
}

fn empty_reply(now: Micros) -> ClaimReply {
    ClaimReply {
        jobs: Vec::new(),
        now: from_micros(now),
        has_more: false,
        next_due: None,
        next_tick: None,
        idle_rank: 0,
        taken_back: 0,
        suspect_has_more: false,
    }
}

/// Everything the node holds here, in the order in which it was claimed.
async fn resync(store: &Sidekiq, node: NodeId, keys: &QueueKeys) -> Result<ClaimReply> {
    let now = store.now();
    let all = find_job::read_held(store, "claim", keys, &[node.to_string()]).await?;
    let crashes = find_job::read_crashes(store, "claim", keys, all.iter().map(|one| &one.bytes[..])).await?;
    let (mut jobs, mut kept) = (Vec::with_capacity(all.len()), Vec::with_capacity(all.len()));
    for (one, crash) in all.into_iter().zip(crashes) {
        let find_job::EntryPosition::Running(_, fence, place) = one.position else {
            continue;
        };
        match entry::parse_entry(&keys.queue, &one.bytes, crash.as_ref()) {
            Ok(read) => {
                jobs.push(to_held_job(read, fence, place));
                kept.push(((fence.0, place), HeldEntry { entry: one.bytes.to_vec(), claimed_at: now }));
            }
            Err(why) => {
                let strange = entry::wrap_unreadable(&keys.queue, &one.bytes, &why, now);
                settle::bury_unreadable(store, node, keys, fence, &[(place, strange)]).await;
            }
        }
    }
    remember_held(store, node, &keys.queue, kept);
    Ok(ClaimReply { jobs, ..empty_reply(now) })
}

/// Takes back a bounded number of entries from a node that may be dead. Tells how many, and whether there are more.
async fn take_back(store: &Sidekiq, node: NodeId, suspect: NodeId, keys: &QueueKeys) -> Result<(usize, bool)> {
    let mut cmd = TAKE_BACK.call(&EntryKeys::new(&store.keys, keys).held_by(suspect));
    cmd.arg(store.manual_now()).arg(&keys.channel).arg(node.to_string()).arg(suspect.to_string());
    cmd.arg(micros(store.redis.options().lease)).arg(TAKE_BACK_MAX);
    let mut reply = store.run_script("claim", ConnectionRole::Worker, &TAKE_BACK, &cmd).await?;
    let (taken, left) = (reply.int()?, reply.int()?);
    Ok((usize::try_from(taken).unwrap_or(0), left > 0))
}
