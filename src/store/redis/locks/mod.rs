//! Locks and their waiters: each operation is one script on the peer keys.

pub(crate) mod waiters;

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use redis::Cmd;
use uuid::Uuid;

use crate::clock::{Micros, from_micros, micros};
use crate::error::{Error, Result};
use crate::job::Fence;
use crate::store::redis::Redis;
use crate::store::redis::conn::{ConnectionRole, ReplicaConfirmation};
use crate::store::redis::record::DELAY_MAX;
use crate::store::redis::reply::parse_number;
use crate::store::redis::script::{self, Script};
use crate::store::{
    LOCK_PAGE_SIZE, LOCK_SLOTS_MAX, LockOwner, LockPage, LockRecord, LockReply, LockRequest, LockStore,
};

/// Maximum repeats of an operation that met dead waiters; each repeat removes some of them.
const CLEANUP_ROUNDS_MAX: usize = 20;
/// Maximum slots that one request searches to extend holds.
const EXTEND_SLOTS_MAX: usize = 2_000;
/// The script's reply for an extended hold.
const HOLD_EXTENDED: u32 = 1;
/// Maximum scan requests over all locks for one page.
const LOCK_SCANS_MAX: usize = 10_000;

#[async_trait]
impl LockStore for Redis {
    async fn lock(&self, request: &LockRequest) -> Result<LockReply> {
        let lease = if request.wait { span_micros(request.lease).to_string() } else { String::new() };
        let mut cmd = lock_command(self, &script::LOCK, &request.name)?;
        cmd.arg(slot_count(request)).arg(span_micros(request.ttl)).arg(encode_holder(request)).arg(lease);
        let mut lock_reply = LockReply::default();
        for _ in 0..CLEANUP_ROUNDS_MAX {
            let value = match replica_confirmation(self) {
                // A request is idempotent: the same owner gets the same slot.
                None => {
                    self.servers
                        .run_script_idempotent("lock", ConnectionRole::Client, self.peer_keys.slot, &script::LOCK, &cmd)
                        .await?
                }
                confirmation => {
                    let cmds = std::slice::from_ref(&cmd);
                    self.servers
                        .send_replicated("lock", self.peer_keys.slot, Some(&script::LOCK), cmds, confirmation)
                        .await?
                }
            };
            let mut reply = self.parse_reply("lock", value)?;
            let slot = u32_or_zero(reply.int()?);
            if slot > 0 {
                let hold = Some((Fence(reply.int()?.unsigned_abs()), slot));
                return Ok(LockReply { hold, ..LockReply::default() });
            }
            let (waiters_ahead, expires) = (u32_or_zero(reply.int()?), reply.optional_int()?);
            lock_reply = LockReply {
                hold: None,
                waiters_ahead,
                expires_in: expires.map(|expires| waiters::duration_until(expires, reply.now)),
            };
            if reply.int()? == 0 {
                break;
            }
        }
        Ok(lock_reply)
    }

    async fn extend_locks(&self, requests: &[LockRequest]) -> Result<Vec<bool>> {
        let searches: Vec<(&LockRequest, u32)> =
            requests.iter().map(|request| (request, slot_count(request))).collect();
        let mut replies = extend_in_batches(self, &searches).await?;
        // An owner that asked for fewer slots than the lock has may hold one of the others.
        let has_more_slots = |index: &usize| replies[*index] > HOLD_EXTENDED;
        let repeated: Vec<usize> = (0..requests.len()).filter(has_more_slots).collect();
        if !repeated.is_empty() {
            let searches: Vec<(&LockRequest, u32)> =
                repeated.iter().map(|index| (&requests[*index], replies[*index])).collect();
            for (index, reply) in repeated.into_iter().zip(extend_in_batches(self, &searches).await?) {
                replies[index] = reply;
            }
        }
        Ok(replies.into_iter().map(|reply| reply == HOLD_EXTENDED).collect())
    }

    async fn unlock(&self, request: &LockRequest) -> Result<bool> {
        release(self, "unlock", request, false).await
    }

    async fn cancel_wait(&self, request: &LockRequest) -> Result<()> {
        release(self, "cancel_wait", request, true).await.map(drop)
    }

    async fn locks(&self, name: Option<&str>, cursor: Option<&str>) -> Result<LockPage> {
        // Locks have no order, so that taking one is cheap: a page scans all of them and keeps the first in order.
        let after = cursor.map(parse_lock_cursor).transpose()?;
        let mut holds: BTreeMap<(String, u32), Vec<u8>> = BTreeMap::new();
        let (mode, mut position) = match name {
            Some(name) => ("one", check_lock_name(name)?.to_owned()),
            None => ("all", "0".to_owned()),
        };
        for _ in 0..LOCK_SCANS_MAX {
            let mut cmd = script::LOCKS.call(&self.peer_keys);
            cmd.arg(self.manual_now()).arg(mode).arg(&position);
            let mut reply =
                self.run_script("locks", ConnectionRole::Client, self.peer_keys.slot, &script::LOCKS, &cmd).await?;
            position = reply.text()?;
            let (names, slots, values) = (reply.list()?, reply.list()?, reply.list()?);
            for ((name, slot), hold) in names.into_iter().zip(slots).zip(values) {
                let name = name.and_then(|name| String::from_utf8(name).ok());
                if let (Some(name), Some(slot), Some(hold)) = (name, slot, hold) {
                    holds.insert((name, u32_or_zero(parse_number(&slot))), hold);
                }
            }
            if let Some(after) = &after {
                holds = holds.split_off(after);
                holds.remove(after);
            }
            while holds.len() > LOCK_PAGE_SIZE + 1 {
                holds.pop_last();
            }
            if position == "0" {
                return build_page(self, holds).await;
            }
        }
        Err(Error::store("locks", "too many locks to list them all; ask for one by its name"))
    }

    async fn break_lock(&self, name: &str, owner: Option<LockOwner>) -> Result<u64> {
        let mut cmd = lock_command(self, &script::BREAK_LOCK, name)?;
        cmd.arg(owner.map(|owner| owner.to_string()).unwrap_or_default());
        end_holds(self, "break_lock", &script::BREAK_LOCK, &cmd).await
    }
}

/// Searches each hold in this many slots, and returns the script's reply for it.
async fn extend_in_batches(store: &Redis, searches: &[(&LockRequest, u32)]) -> Result<Vec<u32>> {
    let mut replies = Vec::with_capacity(searches.len());
    let mut rest = searches;
    while !rest.is_empty() {
        let mut slots = 0;
        let fits = |(_, slots_of_lock): &&(&LockRequest, u32)| {
            slots += *slots_of_lock as usize;
            slots <= EXTEND_SLOTS_MAX
        };
        // A single hold always fits.
        let (batch, others) = rest.split_at(rest.iter().take_while(fits).count().max(1));
        replies.extend(extend_batch(store, batch).await?);
        rest = others;
    }
    Ok(replies)
}

async fn extend_batch(store: &Redis, searches: &[(&LockRequest, u32)]) -> Result<Vec<u32>> {
    let mut cmd = script::EXTEND_LOCKS.call(&store.peer_keys);
    cmd.arg(store.manual_now());
    for (request, slots) in searches {
        cmd.arg(check_lock_name(&request.name)?)
            .arg(request.owner.to_string())
            .arg(slots)
            .arg(span_micros(request.ttl));
    }
    // After a failover, an extension that replicas do not have would end earlier than its holder expects.
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
    let replies = store.parse_reply("extend_locks", value)?.list()?;
    let max = i64::from(LOCK_SLOTS_MAX);
    Ok(replies.into_iter().map(|reply| u32_or_zero(parse_number(&reply.unwrap_or_default()).min(max))).collect())
}

/// Releases an owner's slot and wait, or only its wait. Returns whether it held a slot.
async fn release(store: &Redis, op: &'static str, request: &LockRequest, only_wait: bool) -> Result<bool> {
    let mut cmd = lock_command(store, &script::UNLOCK, &request.name)?;
    cmd.arg(slot_count(request)).arg(request.owner.to_string()).arg(if only_wait { "1" } else { "" });
    Ok(end_holds(store, op, &script::UNLOCK, &cmd).await? > 0)
}

/// Ends holds and notifies the next waiter; repeats while it meets only dead waiters. Returns the number of ended
/// holds.
async fn end_holds(store: &Redis, op: &'static str, script: &Script, cmd: &Cmd) -> Result<u64> {
    let mut ended = 0;
    for _ in 0..CLEANUP_ROUNDS_MAX {
        let mut reply =
            match store.servers.run_script(op, ConnectionRole::Client, store.peer_keys.slot, script, cmd).await {
                // The holds have ended for good. The next waiter notices it with its next heartbeat.
                Err(error) if ended > 0 => {
                    tracing::debug!(%error, "holds have ended, but the next waiter was not notified");
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

/// Builds a page from these holds.
async fn build_page(store: &Redis, mut holds: BTreeMap<(String, u32), Vec<u8>>) -> Result<LockPage> {
    let has_more = holds.len() > LOCK_PAGE_SIZE;
    if has_more {
        holds.pop_last();
    }
    let next_cursor = holds.last_key_value().filter(|_| has_more).map(|((name, slot), _)| format!("{slot}:{name}"));
    let mut locks: Vec<LockRecord> =
        holds.iter().filter_map(|((name, slot), hold)| decode_hold(name, *slot, hold)).collect();
    let mut names: Vec<&str> = locks.iter().map(|lock| lock.name.as_str()).collect();
    names.dedup();
    let waiting = waiters::count_waiting(store, &names).await?;
    for lock in &mut locks {
        lock.waiters = waiting.get(&lock.name).copied().unwrap_or(0);
    }
    Ok(LockPage { locks, next_cursor })
}

/// Encodes the holder of a lock, as a hold contains it.
pub(crate) fn encode_holder(request: &LockRequest) -> String {
    format!("{}{}{:016}{}", request.node, request.owner, span_micros(request.ttl), request.note)
}

/// Decodes a hold: expires, fence, since (16 digits each), node, owner (36 characters each), ttl (16 digits), note.
pub(super) fn decode_hold(name: &str, slot: u32, hold: &[u8]) -> Option<LockRecord> {
    let hold = std::str::from_utf8(hold).ok()?;
    let moment = |from: usize| hold.get(from..from + 16).and_then(|digits| digits.parse::<Micros>().ok());
    Some(LockRecord {
        name: name.to_owned(),
        slot,
        owner: parse_owner(hold.get(84..120)?)?,
        node: hold.get(48..84)?.parse().ok()?,
        note: hold.get(136..)?.to_owned(),
        fence: Fence(moment(16)?.unsigned_abs()),
        since: Some(from_micros(moment(32)?)),
        expires: from_micros(moment(0)?),
        waiters: 0,
    })
}

pub(super) fn parse_owner(text: &str) -> Option<LockOwner> {
    Uuid::parse_str(text).ok().map(|id| LockOwner::from_bytes(*id.as_bytes()))
}

/// Parses a cursor: the lock and slot after which to continue.
pub(crate) fn parse_lock_cursor(cursor: &str) -> Result<(String, u32)> {
    let invalid = || Error::invalid("cursor", "is not from a list of locks; use the cursor of the previous page");
    let (slot, name) = cursor.split_once(':').ok_or_else(invalid)?;
    Ok((name.to_owned(), slot.parse().map_err(|_| invalid())?))
}

/// Returns a call of a script on a lock; its own arguments follow.
fn lock_command(store: &Redis, script: &Script, name: &str) -> Result<Cmd> {
    let peer_keys = &store.peer_keys;
    let mut cmd = script.call(peer_keys);
    cmd.arg(store.manual_now()).arg(check_lock_name(name)?);
    Ok(cmd)
}

/// Checks a lock's name: keys separate it from other parts by a control character.
pub(crate) fn check_lock_name(name: &str) -> Result<&str> {
    match name.contains(char::is_control) {
        true => Err(Error::invalid("lock", "must not contain control characters")),
        false => Ok(name),
    }
}

fn replica_confirmation(store: &Redis) -> Option<ReplicaConfirmation<'static>> {
    let replicas = store.options.replicas;
    // A granted lock and an extended hold always write, so no `mark_write` is needed.
    (replicas > 0).then_some(ReplicaConfirmation { replicas, mark_write: None })
}

fn slot_count(request: &LockRequest) -> u32 {
    request.slots.clamp(1, LOCK_SLOTS_MAX)
}

pub(crate) fn span_micros(time: Duration) -> Micros {
    micros(time).min(DELAY_MAX)
}

pub(crate) fn u32_or_zero(number: i64) -> u32 {
    u32::try_from(number).unwrap_or(0)
}
