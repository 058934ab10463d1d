//! Locks and the lines before them: one script on the keys of the hall for each step.

use std::collections::BTreeMap;
use std::time::Duration;

use redis::Cmd;
use uuid::Uuid;

use super::Redis;
use super::record::DELAY_MAX;
use super::reply::parse_number;
use super::script::{self, Script};
use crate::clock::{Micros, from_micros, micros};
use crate::error::{Error, Result};
use crate::job::Fence;
use crate::store::redis::conn::{ConnectionRole, ReplicaConfirmation};
use crate::store::{LOCK_PAGE_SIZE, LOCK_SLOTS_MAX, LockOwner, LockPage, LockRecord, LockReply, LockRequest};

/// How often a step is repeated that was held up by dead nodes at the head of a line: each time it clears some of them.
const CLEANUP_ROUNDS_MAX: usize = 20;
/// Most slots that one step looks through to extend holds.
const EXTEND_SLOTS_MAX: usize = 2_000;
/// What the script says of a hold that it has extended.
const HOLD_EXTENDED: u32 = 1;
/// Most steps through all locks for one page of them.
const LOCK_SCANS_MAX: usize = 10_000;

/// `lock` of the contract.
pub(super) async fn lock(store: &Redis, ask: &LockRequest) -> Result<LockReply> {
    let lease = if ask.wait { span_micros(ask.lease).to_string() } else { String::new() };
    let mut cmd = lock_command(store, &script::LOCK, &ask.name)?;
    cmd.arg(slot_count(ask)).arg(span_micros(ask.ttl)).arg(format!("{}{}{}", ask.node, ask.owner, ask.note)).arg(lease);
    let mut taken = LockReply::default();
    for _ in 0..CLEANUP_ROUNDS_MAX {
        let value = match replica_confirmation(store) {
            // An ask may be repeated: it means the same.
            None => {
                store
                    .servers
                    .run_script_idempotent("lock", ConnectionRole::Client, store.peer_keys.slot, &script::LOCK, &cmd)
                    .await?
            }
            some => {
                let cmds = std::slice::from_ref(&cmd);
                store.servers.send_replicated("lock", store.peer_keys.slot, Some(&script::LOCK), cmds, some).await?
            }
        };
        let mut reply = store.parse_reply("lock", value)?;
        let slot = u32_or_zero(reply.int()?);
        if slot > 0 {
            let hold = Some((Fence(reply.int()?.unsigned_abs()), slot));
            return Ok(LockReply { hold, ..LockReply::default() });
        }
        let (ahead, ends) = (u32_or_zero(reply.int()?), reply.optional_int()?);
        taken = LockReply {
            hold: None,
            waiters_ahead: ahead,
            expires_in: ends.map(|ends| duration_until(ends, reply.now)),
        };
        if reply.int()? == 0 {
            break;
        }
    }
    Ok(taken)
}

/// `extend_locks` of the contract.
pub(super) async fn extend_locks(store: &Redis, asks: &[LockRequest]) -> Result<Vec<bool>> {
    let looks: Vec<(&LockRequest, u32)> = asks.iter().map(|ask| (ask, slot_count(ask))).collect();
    let mut answers = extend_in_batches(store, &looks).await?;
    // Whoever asked for fewer slots than the lock has may hold one behind those.
    let wider = |at: &usize| answers[*at] > HOLD_EXTENDED;
    let again: Vec<usize> = (0..asks.len()).filter(wider).collect();
    if !again.is_empty() {
        let looks: Vec<(&LockRequest, u32)> = again.iter().map(|at| (&asks[*at], answers[*at])).collect();
        for (at, answer) in again.into_iter().zip(extend_in_batches(store, &looks).await?) {
            answers[at] = answer;
        }
    }
    Ok(answers.into_iter().map(|answer| answer == HOLD_EXTENDED).collect())
}

/// Looks for each among so many slots, and answers what the script says of it.
async fn extend_in_batches(store: &Redis, looks: &[(&LockRequest, u32)]) -> Result<Vec<u32>> {
    let mut answers = Vec::with_capacity(looks.len());
    let mut rest = looks;
    while !rest.is_empty() {
        let mut slots = 0;
        let fits = |(_, width): &&(&LockRequest, u32)| {
            slots += *width as usize;
            slots <= EXTEND_SLOTS_MAX
        };
        // One alone always fits.
        let (some, others) = rest.split_at(rest.iter().take_while(fits).count().max(1));
        answers.extend(extend_batch(store, some).await?);
        rest = others;
    }
    Ok(answers)
}

async fn extend_batch(store: &Redis, looks: &[(&LockRequest, u32)]) -> Result<Vec<u32>> {
    let mut cmd = script::EXTEND_LOCKS.call(&store.peer_keys);
    cmd.arg(store.manual_now());
    for (ask, slots) in looks {
        cmd.arg(check_lock_name(&ask.name)?).arg(ask.owner.to_string()).arg(slots).arg(span_micros(ask.ttl));
    }
    // What replicas do not know of would end sooner after a failover than its holder believes.
    let value = store
        .servers
        .extend_replicated(
            "extend_locks",
            store.peer_keys.slot,
            &script::EXTEND_LOCKS,
            &cmd,
            replica_confirmation(store),
        )
        .await?;
    let answers = store.parse_reply("extend_locks", value)?.list()?;
    let most = i64::from(LOCK_SLOTS_MAX);
    Ok(answers.into_iter().map(|answer| u32_or_zero(parse_number(&answer.unwrap_or_default()).min(most))).collect())
}

/// `unlock` of the contract.
pub(super) async fn unlock(store: &Redis, ask: &LockRequest) -> Result<bool> {
    release(store, "unlock", ask, false).await
}

/// `leave_line` of the contract.
pub(super) async fn cancel_wait(store: &Redis, ask: &LockRequest) -> Result<()> {
    release(store, "leave_line", ask, true).await.map(drop)
}

/// Gives up what an owner has of a lock, or only its place in the line. Answers whether it held a slot.
async fn release(store: &Redis, op: &'static str, ask: &LockRequest, only_place: bool) -> Result<bool> {
    let mut cmd = lock_command(store, &script::UNLOCK, &ask.name)?;
    cmd.arg(slot_count(ask)).arg(ask.owner.to_string()).arg(if only_place { "1" } else { "" });
    Ok(end_holds(store, op, &script::UNLOCK, &cmd).await? > 0)
}

/// `break_lock` of the contract.
pub(super) async fn break_lock(store: &Redis, name: &str) -> Result<u64> {
    let cmd = lock_command(store, &script::BREAK_LOCK, name)?;
    end_holds(store, "break_lock", &script::BREAK_LOCK, &cmd).await
}

/// A step that ends holds and tells who is next, again while only dead nodes are found in line. Answers how many ended.
async fn end_holds(store: &Redis, op: &'static str, script: &Script, cmd: &Cmd) -> Result<u64> {
    let mut ended = 0;
    for _ in 0..CLEANUP_ROUNDS_MAX {
        let mut reply =
            match store.servers.run_script(op, ConnectionRole::Client, store.peer_keys.slot, script, cmd).await {
                // They have ended, and nothing takes that back. Who is next learns of it with its next sign of life.
                Err(error) if ended > 0 => {
                    tracing::debug!(%error, "holds have ended, and the next in line was not told");
                    break;
                }
                value => store.parse_reply(op, value?)?,
            };
        ended += reply.int()?.unsigned_abs();
        if reply.int()? == 0 {
            break;
        }
    }
    Ok(ended)
}

/// `locks` of the contract.
///
/// Locks are kept in no order, so that taking one is cheap: a page goes through all of them and keeps the first.
pub(super) async fn locks(store: &Redis, name: Option<&str>, cursor: Option<&str>) -> Result<LockPage> {
    let behind = cursor.map(parse_lock_cursor).transpose()?;
    let mut found: BTreeMap<(String, u32), Vec<u8>> = BTreeMap::new();
    let (how, mut at) = match name {
        Some(name) => ("one", check_lock_name(name)?.to_owned()),
        None => ("all", "0".to_owned()),
    };
    for _ in 0..LOCK_SCANS_MAX {
        let mut cmd = script::LOCKS.call(&store.peer_keys);
        cmd.arg(store.manual_now()).arg(how).arg(&at);
        let value = store
            .servers
            .run_script("locks", ConnectionRole::Client, store.peer_keys.slot, &script::LOCKS, &cmd)
            .await?;
        let mut reply = store.parse_reply("locks", value)?;
        at = reply.text()?;
        let (names, slots, holds) = (reply.list()?, reply.list()?, reply.list()?);
        for ((name, slot), hold) in names.into_iter().zip(slots).zip(holds) {
            let name = name.and_then(|name| String::from_utf8(name).ok());
            if let (Some(name), Some(slot), Some(hold)) = (name, slot, hold) {
                found.insert((name, u32_or_zero(parse_number(&slot))), hold);
            }
        }
        if let Some(behind) = &behind {
            found = found.split_off(behind);
            found.remove(behind);
        }
        while found.len() > LOCK_PAGE_SIZE + 1 {
            found.pop_last();
        }
        if at == "0" {
            return build_page(store, found).await;
        }
    }
    Err(Error::store("locks", "too many locks to go through all of them"))
}

/// Of these holds as many as fit on a page.
async fn build_page(store: &Redis, mut found: BTreeMap<(String, u32), Vec<u8>>) -> Result<LockPage> {
    let more = found.len() > LOCK_PAGE_SIZE;
    if more {
        found.pop_last();
    }
    let next = found.last_key_value().filter(|_| more).map(|((name, slot), _)| format!("{slot}:{name}"));
    let mut locks: Vec<LockRecord> =
        found.iter().filter_map(|((name, slot), hold)| decode_hold(name, *slot, hold)).collect();
    let mut names: Vec<&str> = locks.iter().map(|lock| lock.name.as_str()).collect();
    names.dedup();
    let waiting = count_waiting(store, &names).await?;
    for lock in &mut locks {
        lock.waiters = waiting.get(&lock.name).copied().unwrap_or(0);
    }
    Ok(LockPage { locks, next_cursor: next })
}

pub(super) async fn count_waiting(store: &Redis, names: &[&str]) -> Result<BTreeMap<String, u64>> {
    if names.is_empty() {
        return Ok(BTreeMap::new());
    }
    let hall = &store.peer_keys;
    let mut cmd = script::COUNT_WAITERS.call(&store.peer_keys);
    cmd.arg(store.manual_now()).arg(names);
    let value =
        store.servers.run_script("locks", ConnectionRole::Client, hall.slot, &script::COUNT_WAITERS, &cmd).await?;
    let counts = store.parse_reply("locks", value)?.list()?;
    let counts = counts.into_iter().map(|count| parse_number(&count.unwrap_or_default()).unsigned_abs());
    Ok(names.iter().map(|name| (*name).to_owned()).zip(counts).collect())
}

/// A hold: ends, fence, since (16 digits each), node, owner (36 characters each), note.
pub(super) fn decode_hold(name: &str, slot: u32, hold: &[u8]) -> Option<LockRecord> {
    let hold = std::str::from_utf8(hold).ok()?;
    let moment = |from: usize| hold.get(from..from + 16).and_then(|digits| digits.parse::<Micros>().ok());
    Some(LockRecord {
        name: name.to_owned(),
        slot,
        owner: parse_owner(hold.get(84..120)?)?,
        node: hold.get(48..84)?.parse().ok()?,
        note: hold.get(120..)?.to_owned(),
        fence: Fence(moment(16)?.unsigned_abs()),
        since: from_micros(moment(32)?),
        expires: from_micros(moment(0)?),
        waiters: 0,
    })
}

pub(super) fn parse_owner(text: &str) -> Option<LockOwner> {
    Uuid::parse_str(text).ok().map(|id| LockOwner::from_bytes(*id.as_bytes()))
}

/// Behind which slot of which lock to go on.
pub(crate) fn parse_lock_cursor(cursor: &str) -> Result<(String, u32)> {
    let wrong = || Error::invalid("cursor", "not one that a list of locks has given");
    let (slot, name) = cursor.split_once(':').ok_or_else(wrong)?;
    Ok((name.to_owned(), slot.parse().map_err(|_| wrong())?))
}

/// A script of the lock of this name; its own arguments follow.
fn lock_command(store: &Redis, script: &Script, name: &str) -> Result<Cmd> {
    let hall = &store.peer_keys;
    let mut cmd = script.call(hall);
    cmd.arg(store.manual_now()).arg(check_lock_name(name)?);
    Ok(cmd)
}

/// A name that keys can hold: they part it from what follows by a control character.
pub(crate) fn check_lock_name(name: &str) -> Result<&str> {
    match name.contains(char::is_control) {
        true => Err(Error::invalid("lock", "a name has no control characters")),
        false => Ok(name),
    }
}

fn replica_confirmation(store: &Redis) -> Option<ReplicaConfirmation<'static>> {
    let replicas = store.options.replicas;
    // A lock that is granted, and a hold that is extended, is always written: it needs no seal.
    (replicas > 0).then_some(ReplicaConfirmation { replicas, seal: None })
}

fn slot_count(ask: &LockRequest) -> u32 {
    ask.slots.clamp(1, LOCK_SLOTS_MAX)
}

pub(crate) fn span_micros(time: Duration) -> Micros {
    micros(time).min(DELAY_MAX)
}

pub(crate) fn u32_or_zero(number: i64) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

pub(super) fn duration_until(moment: Micros, now: Micros) -> Duration {
    Duration::from_micros(u64::try_from(moment - now).unwrap_or(0))
}
