//! Its locks: its own key decides, the value is the owner and nothing else. Fence, line and notes are beside, in duly's keys.

use std::collections::BTreeMap;
use std::time::Duration;

use redis::Cmd;

use super::ActionHero;
use crate::clock::{from_micros, micros};
use crate::compat::script;
use crate::error::{Error, Result};
use crate::job::{Fence, JobId};
use crate::node::NodeId;
use crate::store::redis as server;
use crate::store::redis::{
    ConnectionRole, PeerKeys, Script, check_lock_name, key_set, parse_lock_cursor, parse_number, span_micros,
    u32_or_zero,
};
use crate::store::{
    AnnounceReply, LOCK_PAGE_SIZE, LOCK_WAITS_MAX, LockOwner, LockPage, LockRecord, LockReply, LockRequest, LockTurn,
    PeerInfo,
};

/// How often a step is repeated that was held up by dead nodes at the head of a line, or by a node that did not look.
const LOCK_TRIES_MAX: usize = 20;
/// How long a lock is watched in one step: less than the half second in which no other end is the same.
const CONFIRM_STEP: Duration = Duration::from_millis(200);
/// Most holds extended in one step.
const EXTEND_BATCH_MAX: usize = 100;
/// Keys looked at in one step of a search for locks, and most steps.
const KEYS_PER_SCAN: usize = 500;
const SCANS_MAX: usize = 100_000;
/// How long a lock lasts that has no end, as far as anybody can tell.
const NO_EXPIRY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The keys that scripts name: duly's own, and ActionHero's key of one lock.
pub(in crate::compat) struct LockKeys<'k> {
    own: &'k PeerKeys,
    lock: String,
}

impl<'k> LockKeys<'k> {
    fn of(store: &'k ActionHero, name: &str) -> Result<Self> {
        Ok(LockKeys { own: store.redis.peer_keys(), lock: store.lock_key(name)? })
    }

    /// Without one lock: for scripts on several.
    fn of_all(store: &'k ActionHero) -> Self {
        LockKeys { own: store.redis.peer_keys(), lock: String::new() }
    }
}

key_set! { LockKeys<'_>, keys:
    "locks" => &keys.own.locks,
    "lock_waiters" => &keys.own.lock_waiters,
    "waiter_index" => &keys.own.waiter_index,
    "presence" => &keys.own.presence,
    "lock_key" => &keys.lock,
}

/// `lock` of the contract.
pub(super) async fn lock(store: &ActionHero, ask: &LockRequest) -> Result<LockReply> {
    if ask.slots > 1 {
        return Err(Error::invalid("slots", "a lock of ActionHero's has one holder"));
    }
    let lease = if ask.wait { span_micros(ask.lease).to_string() } else { String::new() };
    let mut cmd = lock_command(store, &script::ACTIONHERO_LOCK, &ask.name)?;
    cmd.arg(span_micros(ask.ttl)).arg(format!("{}{}{}", ask.node, ask.owner, ask.note)).arg(lease);
    cmd.arg(u8::from(!store.confirm_delay.is_zero()));
    let mut taken = LockReply::default();
    for _ in 0..LOCK_TRIES_MAX {
        // An ask may be repeated: it means the same.
        let mut reply = store
            .redis
            .run_script_idempotent("lock", ConnectionRole::Client, 0, &script::ACTIONHERO_LOCK, &cmd)
            .await?;
        if reply.int()? == 1 {
            let (fence, ends) = (Fence(reply.int()?.unsigned_abs()), reply.int()?);
            if confirm_lock(store, ask, ends).await? {
                return Ok(LockReply { hold: Some((fence, 1)), ..LockReply::default() });
            }
            continue;
        }
        let (ahead, ends) = (u32_or_zero(reply.int()?), reply.optional_int()?);
        let ends = ends.map(|left| Duration::from_micros(left.unsigned_abs()));
        taken = LockReply { hold: None, waiters_ahead: ahead, expires_in: ends };
        if reply.int()? == 0 {
            break;
        }
    }
    Ok(taken)
}

/// Whether a lock that was just taken counts: in the time in which an old node may take it for its own, none has.
async fn confirm_lock(store: &ActionHero, ask: &LockRequest, mut ends: i64) -> Result<bool> {
    let keys = LockKeys::of(store, &ask.name)?;
    let mut left = store.confirm_delay;
    while !left.is_zero() {
        let step = left.min(CONFIRM_STEP);
        tokio::time::sleep(step).await;
        left -= step;
        let mut cmd = script::ACTIONHERO_CONFIRM_LOCK.call(&keys);
        cmd.arg(store.redis.manual_now()).arg(&ask.name).arg(span_micros(ask.ttl)).arg(ask.owner.to_string()).arg(ends);
        cmd.arg(u8::from(!left.is_zero()));
        // Not repeated: the first one gives it another end itself. If its answer is lost, the ask is.
        let mut reply =
            store.redis.run_script("lock", ConnectionRole::Client, 0, &script::ACTIONHERO_CONFIRM_LOCK, &cmd).await?;
        if reply.int()? == 0 {
            return Ok(false);
        }
        ends = reply.int()?;
    }
    Ok(true)
}

/// `extend_locks` of the contract.
pub(super) async fn extend_locks(store: &ActionHero, asks: &[LockRequest]) -> Result<Vec<bool>> {
    let mut extended = Vec::with_capacity(asks.len());
    for some in asks.chunks(EXTEND_BATCH_MAX) {
        let keys: Vec<String> = some.iter().map(|ask| store.lock_key(&ask.name)).collect::<Result<_>>()?;
        let mut cmd = script::ACTIONHERO_EXTEND_LOCKS.call_with(&LockKeys::of_all(store), &keys);
        cmd.arg(store.redis.manual_now());
        for ask in some {
            cmd.arg(&ask.name).arg(ask.owner.to_string()).arg(span_micros(ask.ttl));
        }
        let answers = store
            .redis
            .run_script_idempotent("extend_locks", ConnectionRole::Heartbeat, 0, &script::ACTIONHERO_EXTEND_LOCKS, &cmd)
            .await?
            .list()?;
        extended.extend(answers.iter().map(|answer| answer.as_deref() == Some(b"1")));
    }
    Ok(extended)
}

/// `unlock` of the contract.
pub(super) async fn unlock(store: &ActionHero, ask: &LockRequest) -> Result<bool> {
    let mut cmd = lock_command(store, &script::ACTIONHERO_UNLOCK, &ask.name)?;
    cmd.arg(ask.owner.to_string()).arg("");
    Ok(end_hold(store, "unlock", &script::ACTIONHERO_UNLOCK, &cmd).await? > 0)
}

/// `leave_line` of the contract.
pub(super) async fn cancel_wait(store: &ActionHero, ask: &LockRequest) -> Result<()> {
    let mut cmd = lock_command(store, &script::ACTIONHERO_UNLOCK, &ask.name)?;
    cmd.arg(ask.owner.to_string()).arg("1");
    end_hold(store, "leave_line", &script::ACTIONHERO_UNLOCK, &cmd).await.map(drop)
}

/// `break_lock` of the contract.
pub(super) async fn break_lock(store: &ActionHero, name: &str) -> Result<u64> {
    let cmd = lock_command(store, &script::ACTIONHERO_BREAK_LOCK, name)?;
    end_hold(store, "break_lock", &script::ACTIONHERO_BREAK_LOCK, &cmd).await
}

/// A step that ends a hold and tells who is next, again while only dead nodes are found in line.
async fn end_hold(store: &ActionHero, op: &'static str, script: &Script, cmd: &Cmd) -> Result<u64> {
    let mut ended = 0;
    for _ in 0..LOCK_TRIES_MAX {
        let mut reply = match store.redis.run_script(op, ConnectionRole::Client, 0, script, cmd).await {
            // It has ended, and nothing takes that back. Who is next learns of it with its next sign of life.
            Err(error) if ended > 0 => {
                tracing::debug!(%error, "a hold has ended, and the next in line was not told");
                break;
            }
            reply => reply?,
        };
        ended += reply.int()?.unsigned_abs();
        if reply.int()? == 0 {
            break;
        }
    }
    Ok(ended)
}

/// How the locks stand that a node waits for.
pub(super) async fn lock_turns(store: &ActionHero, guest: &PeerInfo) -> Result<AnnounceReply> {
    let names: Vec<&String> = guest.waited_locks.iter().take(LOCK_WAITS_MAX).collect();
    if names.is_empty() || guest.listen_only {
        return Ok(AnnounceReply::default());
    }
    let locks: Vec<String> = names.iter().map(|name| store.lock_key(name)).collect::<Result<_>>()?;
    let mut cmd = script::ACTIONHERO_ANNOUNCE.call_with(&LockKeys::of_all(store), &locks);
    cmd.arg(store.redis.manual_now()).arg(guest.node.to_string()).arg(names);
    let mut reply = store
        .redis
        .run_script_idempotent("attend", ConnectionRole::Heartbeat, 0, &script::ACTIONHERO_ANNOUNCE, &cmd)
        .await?;
    let mut turns = Vec::new();
    for mut row in reply.rows()? {
        let (name, first, left) = (row.text()?, row.text()?, row.int()?);
        turns.push(LockTurn {
            name,
            first_waiter: server::parse_lock_owner(&first),
            expires_in: Duration::from_micros(left.unsigned_abs()),
        });
    }
    Ok(AnnounceReply { turns, lost_waits: Vec::new() })
}

/// `locks` of the contract. ActionHero keeps no list of its locks: all keys of the database are gone through.
pub(super) async fn locks(store: &ActionHero, name: Option<&str>, cursor: Option<&str>) -> Result<LockPage> {
    let behind = cursor.map(parse_lock_cursor).transpose()?.map(|(name, _)| name);
    let mut found: BTreeMap<String, LockRecord> = BTreeMap::new();
    if let Some(name) = name {
        read_holders(store, vec![check_lock_name(name)?.to_owned()], &mut found).await?;
        return build_page(store, found).await;
    }
    let mut at = "0".to_owned();
    for _ in 0..SCANS_MAX {
        let mut cmd = redis::cmd("SCAN");
        cmd.arg(&at).arg("MATCH").arg(format!("{}*", escape_glob(&store.lock_prefix))).arg("COUNT").arg(KEYS_PER_SCAN);
        let answer = store.redis.send_idempotent("locks", ConnectionRole::Client, 0, &cmd).await?;
        let (next, keys): (String, Vec<Vec<u8>>) = redis::from_redis_value(answer)
            .map_err(|_| Error::store("locks", "the server gave a strange answer to SCAN"))?;
        let names = keys.into_iter().filter_map(|key| String::from_utf8(key).ok());
        let names = names.filter_map(|key| key.strip_prefix(&store.lock_prefix).map(str::to_owned));
        let names =
            names.filter(|name| check_lock_name(name).is_ok() && behind.as_ref().is_none_or(|behind| name > behind));
        read_holders(store, names.collect(), &mut found).await?;
        while found.len() > LOCK_PAGE_SIZE + 1 {
            found.pop_last();
        }
        at = next;
        if at == "0" {
            return build_page(store, found).await;
        }
    }
    Err(Error::store("locks", "too many keys to go through all of them"))
}

/// Who holds these.
async fn read_holders(store: &ActionHero, names: Vec<String>, found: &mut BTreeMap<String, LockRecord>) -> Result<()> {
    if names.is_empty() {
        return Ok(());
    }
    let keys: Vec<String> = names.iter().map(|name| store.lock_key(name)).collect::<Result<_>>()?;
    let mut cmd = script::ACTIONHERO_LOCKS.call_with(&LockKeys::of_all(store), &keys);
    cmd.arg(store.redis.manual_now()).arg(&names);
    let mut reply =
        store.redis.run_script_idempotent("locks", ConnectionRole::Client, 0, &script::ACTIONHERO_LOCKS, &cmd).await?;
    let (names, holders, lefts, holds) = (reply.list()?, reply.list()?, reply.list()?, reply.list()?);
    for (((name, holder), left), hold) in names.into_iter().zip(holders).zip(lefts).zip(holds) {
        let name = String::from_utf8(name.unwrap_or_default()).unwrap_or_default();
        let left = parse_number(&left.unwrap_or_default());
        let mut record = server::decode_lock_hold(&name, &hold.unwrap_or_default())
            .unwrap_or_else(|| foreign_lock_record(&name, &holder.unwrap_or_default()));
        let lasts = if left < 0 { NO_EXPIRY } else { Duration::from_millis(left.unsigned_abs()) };
        if left < 0 {
            record.note.push_str(", without an end");
        }
        record.expires = from_micros(reply.now.saturating_add(micros(lasts)));
        found.insert(name, record);
    }
    Ok(())
}

/// What is known of a hold of ActionHero's: its name for itself, and nothing else.
fn foreign_lock_record(name: &str, holder: &[u8]) -> LockRecord {
    let holder = String::from_utf8_lossy(holder);
    // The same holder always gives the same owner.
    let id = *JobId::from_name(&format!("actionhero:{holder}")).as_bytes();
    LockRecord {
        name: name.to_owned(),
        slot: 1,
        owner: LockOwner::from_bytes(id),
        node: NodeId::from_bytes(id),
        note: format!("ActionHero: {holder}"),
        fence: Fence(0),
        since: from_micros(0),
        expires: from_micros(0),
        waiters: 0,
    }
}

/// Of these holds as many as fit on a page.
async fn build_page(store: &ActionHero, mut found: BTreeMap<String, LockRecord>) -> Result<LockPage> {
    let more = found.len() > LOCK_PAGE_SIZE;
    if more {
        found.pop_last();
    }
    let next = found.last_key_value().filter(|_| more).map(|(name, _)| format!("1:{name}"));
    let names: Vec<&str> = found.keys().map(String::as_str).collect();
    let waiting = store.redis.lock_waiter_counts(&names).await?;
    let mut locks: Vec<LockRecord> = found.into_values().collect();
    for lock in &mut locks {
        lock.waiters = waiting.get(&lock.name).copied().unwrap_or(0);
    }
    Ok(LockPage { locks, next_cursor: next })
}

/// A script of the lock of this name; its own arguments follow.
fn lock_command(store: &ActionHero, script: &Script, name: &str) -> Result<Cmd> {
    let mut cmd = script.call(&LockKeys::of(store, name)?);
    cmd.arg(store.redis.manual_now()).arg(name);
    Ok(cmd)
}

/// A text as a pattern that matches nothing else.
fn escape_glob(text: &str) -> String {
    text.chars().flat_map(|c| "*?[]\\^-".contains(c).then_some('\\').into_iter().chain([c])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_glob_matches_only_its_text() {
        assert_eq!(escape_glob("a:lock:[1]*"), "a:lock:\\[1\\]\\*");
    }
}
