//! Claim: take back from the dead, promote what is due, take what is ready and known.

use std::time::Duration;

use super::entry::{Crash, Entry};
use super::keys::EntryKeys;
use super::scripts::{CLAIM, LEAVE_IDLE, TAKE_BACK};
use super::{Hold, Kept, Sidekiq, entry, mixed, promote, settle};
use crate::clock::{Micros, from_micros, micros};
use crate::compat::sidekiq::find_job;
use crate::error::Result;
use crate::job::{Fence, Held};
use crate::node::NodeId;
use crate::store::redis::{QueueKeys, Reply, Way};
use crate::store::{CLAIM_MAX, Claim, Claimed, PROMOTE_MAX, PROMOTE_MIN, TAKE_BACK_MAX};

/// A push by Ruby wakes nobody: a node with nothing to do looks again so soon, and less and less often.
const WAIT_MIN: Duration = Duration::from_millis(10);
const WAIT_MAX: Duration = Duration::from_millis(100);

/// `claim` of the contract.
pub(super) async fn claim(store: &Sidekiq, node: NodeId, claim: Claim) -> Result<Claimed> {
    let keys = store.redis.claiming(node, &claim.queue);
    store.redis.keep_hearing(node, &keys).await?;
    let (mut taken_back, mut left) = (0, false);
    if let Some(suspect) = claim.suspect {
        (taken_back, left) = take_back(store, node, suspect, &keys).await?;
    }
    let mut claimed = match (claim.redo, claim.max) {
        (true, _) => redo(store, node, &keys).await?,
        (false, 0) => step_back(store, node, &keys).await?,
        (false, max) => take(store, node, &keys, max.min(CLAIM_MAX), claim.kinds.as_deref()).await?,
    };
    claimed.taken_back = taken_back;
    claimed.left = left;
    claimed.more |= left;
    Ok(claimed)
}

async fn take(
    store: &Sidekiq,
    node: NodeId,
    keys: &QueueKeys,
    max: usize,
    kinds: Option<&[String]>,
) -> Result<Claimed> {
    let mut reply = ask(store, node, keys, max, kinds, false).await?;
    let (mut answer, mut more_due) = (reply.text()?, false);
    if answer == "due" {
        more_due = promote::promote(store, reply.now, PROMOTE_MAX.min(PROMOTE_MIN.max(4 * max))).await?;
        reply = ask(store, node, keys, max, kinds, true).await?;
        answer = reply.text()?;
    }
    if answer != "took" {
        return Err(mixed(&keys.queue, &answer));
    }
    let fence = reply.text()?.parse().map_or(Fence(0), Fence);
    let full = reply.int()? == 1;
    let next_due = reply.maybe_int()?.map(|due| Duration::from_micros(u64::try_from(due - reply.now).unwrap_or(0)));
    // What is due and could not be moved is tried again with the next look, not at once.
    let next_due = next_due.filter(|due| !due.is_zero());
    let rank = u32::try_from(reply.int()?).unwrap_or(0);
    let entries: Vec<Vec<u8>> = reply.list()?.into_iter().flatten().collect();
    let crashes = reply.list()?;
    let (now, taken) = (reply.now, entries.len());
    let crash_of = |at: usize| crashes.get(at).and_then(|text| Crash::read(text.as_deref()?));
    let (mut jobs, mut kept, mut strange) = (Vec::with_capacity(taken), Vec::with_capacity(taken), Vec::new());
    for (at, bytes) in entries.into_iter().enumerate() {
        let place = at as i64 + 1;
        match entry::read(&keys.queue, &bytes, crash_of(at).as_ref()) {
            Ok(read) => {
                jobs.push(held(read, fence, place));
                kept.push(((fence.0, place), Kept { entry: bytes, since: now }));
            }
            Err(why) => strange.push((place, entry::unreadable(&keys.queue, &bytes, &why, now))),
        }
    }
    keep(store, node, &keys.queue, kept);
    settle::discard(store, node, keys, fence, &strange).await;
    store.redis.swap_idle(node, &keys.queue, !full);
    let next_due = next_look(store, node, &keys.queue, next_due, taken < max, taken > 0);
    Ok(Claimed {
        jobs,
        now: from_micros(now),
        more: full || more_due,
        next_due,
        next_tick: None,
        rank,
        taken_back: 0,
        left: false,
    })
}

async fn ask(
    store: &Sidekiq,
    node: NodeId,
    keys: &QueueKeys,
    max: usize,
    kinds: Option<&[String]>,
    whatever_is_due: bool,
) -> Result<Reply> {
    let mut cmd = CLAIM.call(&EntryKeys::new(&store.keys, keys).held_by(node));
    cmd.arg(store.manual_now()).arg(&keys.channel).arg(node.to_string()).arg(max);
    cmd.arg(micros(store.redis.options().lease)).arg(u8::from(store.redis.swap_idle(node, &keys.queue, true)));
    cmd.arg(u8::from(whatever_is_due)).arg(u8::from(kinds.is_none()));
    for kind in kinds.unwrap_or_default() {
        cmd.arg(kind);
    }
    store.run("claim", Way::Work, &CLAIM, &cmd).await
}

fn held(read: Entry, fence: Fence, place: i64) -> Held {
    Held { job: read.job, fence, due: from_micros(read.due), attempts: read.attempts, crashes: read.crashes, place }
}

fn keep(store: &Sidekiq, node: NodeId, queue: &str, kept: Vec<(Hold, Kept)>) {
    store.known().held.entry(node).or_default().entry(queue.to_owned()).or_default().extend(kept);
}

/// When to look again, if something may come without a wake. A test that moves the time itself does so when it likes.
fn next_look(
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
    let mut known = store.known();
    let wait = known.waits.entry((node, queue.to_owned())).or_insert(WAIT_MIN);
    if found {
        *wait = WAIT_MIN;
    }
    if !has_room {
        return due;
    }
    let look = *wait;
    *wait = wait.mul_f64(1.5).min(WAIT_MAX);
    Some(due.map_or(look, |due| due.min(look)))
}

async fn step_back(store: &Sidekiq, node: NodeId, keys: &QueueKeys) -> Result<Claimed> {
    let mut cmd = LEAVE_IDLE.call(&EntryKeys::new(&store.keys, keys));
    cmd.arg(store.manual_now()).arg(&keys.channel).arg(node.to_string());
    let mut reply = store.run("claim", Way::Work, &LEAVE_IDLE, &cmd).await?;
    let more = reply.int()? == 1;
    Ok(Claimed { more, ..nothing(reply.now) })
}

fn nothing(now: Micros) -> Claimed {
    Claimed {
        jobs: Vec::new(),
        now: from_micros(now),
        more: false,
        next_due: None,
        next_tick: None,
        rank: 0,
        taken_back: 0,
        left: false,
    }
}

/// Everything the node holds here, in the order in which it was claimed.
async fn redo(store: &Sidekiq, node: NodeId, keys: &QueueKeys) -> Result<Claimed> {
    let now = store.now();
    let all = find_job::held(store, "claim", keys, &[node.to_string()]).await?;
    let crashes = find_job::crashes(store, "claim", keys, all.iter().map(|one| &one.bytes[..])).await?;
    let (mut jobs, mut kept) = (Vec::with_capacity(all.len()), Vec::with_capacity(all.len()));
    for (one, crash) in all.into_iter().zip(crashes) {
        let find_job::At::Running(_, fence, place) = one.at else {
            continue;
        };
        match entry::read(&keys.queue, &one.bytes, crash.as_ref()) {
            Ok(read) => {
                jobs.push(held(read, fence, place));
                kept.push(((fence.0, place), Kept { entry: one.bytes.to_vec(), since: now }));
            }
            Err(why) => {
                let strange = entry::unreadable(&keys.queue, &one.bytes, &why, now);
                settle::discard(store, node, keys, fence, &[(place, strange)]).await;
            }
        }
    }
    keep(store, node, &keys.queue, kept);
    Ok(Claimed { jobs, ..nothing(now) })
}

/// Takes back a bounded number of entries from a node that may be dead. Tells how many, and whether there are more.
async fn take_back(store: &Sidekiq, node: NodeId, suspect: NodeId, keys: &QueueKeys) -> Result<(usize, bool)> {
    let mut cmd = TAKE_BACK.call(&EntryKeys::new(&store.keys, keys).held_by(suspect));
    cmd.arg(store.manual_now()).arg(&keys.channel).arg(node.to_string()).arg(suspect.to_string());
    cmd.arg(micros(store.redis.options().lease)).arg(TAKE_BACK_MAX);
    let mut reply = store.run("claim", Way::Work, &TAKE_BACK, &cmd).await?;
    let (taken, left) = (reply.int()?, reply.int()?);
    Ok((usize::try_from(taken).unwrap_or(0), left > 0))
}
