//! Locks on ActionHero's keys. ActionHero's key decides who holds a lock; its value is the owner.
//! Fences, waiters and notes are in duly's own keys.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use redis::Cmd;

use super::ActionHero;
use crate::clock::{from_micros, micros};
use crate::compat::script;
use crate::error::{Error, Result};
use crate::job::{Fence, JobId};
use crate::node::NodeId;
use crate::store::redis as server;
use crate::store::redis::{
    ConnectionRole, PeerKeys, Script, ScriptReply, check_lock_name, key_set, parse_lock_cursor, parse_number,
    span_micros, u32_or_zero,
};
use crate::store::{
    AnnounceReply, LOCK_PAGE_SIZE, LOCK_WAITS_MAX, LockOwner, LockPage, LockRecord, LockReply, LockRequest, LockStore,
    LockTurn, PeerInfo,
};

/// Most tries of an operation that meets dead nodes among the waiters, or loses a new lock to an old ActionHero node.
const LOCK_TRIES_MAX: usize = 20;
/// Time between two checks of a new lock: below the half second within which expiry times are kept distinct.
const CONFIRM_STEP: Duration = Duration::from_millis(200);
/// Most locks extended in one operation.
const EXTEND_BATCH_MAX: usize = 100;
/// Keys per `SCAN`, and most scans of one listing.
const KEYS_PER_SCAN: usize = 500;
const SCANS_MAX: usize = 100_000;
/// Time until the expiry that is reported for a lock without one.
const NO_EXPIRY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The keys of the lock scripts: duly's own, and ActionHero's key of one lock.
pub(in crate::compat) struct LockKeys<'k> {
    own: &'k PeerKeys,
    lock: String,
}

impl<'k> LockKeys<'k> {
    fn of(store: &'k ActionHero, name: &str) -> Result<Self> {
        Ok(LockKeys { own: store.redis.peer_keys(), lock: store.lock_key(name)? })
    }

    /// Returns the keys for a script on several locks, whose keys are passed separately.
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

#[async_trait]
impl LockStore for ActionHero {
    async fn lock(&self, request: &LockRequest) -> Result<LockReply> {
        if request.slots > 1 {
            return Err(Error::invalid("slots", "must be 1: an ActionHero lock has one holder"));
        }
        let lease = if request.wait { span_micros(request.lease).to_string() } else { String::new() };
        let mut cmd = lock_command(self, &script::ACTIONHERO_LOCK, &request.name)?;
        cmd.arg(span_micros(request.ttl)).arg(server::encode_lock_holder(request)).arg(lease);
        cmd.arg(u8::from(!self.confirm_delay.is_zero()));
        let mut lock_reply = LockReply::default();
        for _ in 0..LOCK_TRIES_MAX {
            // Safe to repeat: a request of the same owner has the same effect.
            let mut reply = self
                .redis
                .run_script_idempotent("lock", ConnectionRole::Client, 0, &script::ACTIONHERO_LOCK, &cmd)
                .await?;
            if reply.int()? == 1 {
                let (fence, expires) = (Fence(reply.int()?.unsigned_abs()), reply.int()?);
                if confirm_lock(self, request, expires).await? {
                    return Ok(LockReply { hold: Some((fence, 1)), ..LockReply::default() });
                }
                continue;
            }
            let (waiters_ahead, expires_in) = (u32_or_zero(reply.int()?), reply.optional_int()?);
            let expires_in = expires_in.map(|micros| Duration::from_micros(micros.unsigned_abs()));
            lock_reply = LockReply { hold: None, waiters_ahead, expires_in };
            if reply.int()? == 0 {
                break;
            }
        }
        Ok(lock_reply)
    }

    async fn extend_locks(&self, requests: &[LockRequest]) -> Result<Vec<bool>> {
        let mut extended = Vec::with_capacity(requests.len());
        for batch in requests.chunks(EXTEND_BATCH_MAX) {
            let keys: Vec<String> = batch.iter().map(|request| self.lock_key(&request.name)).collect::<Result<_>>()?;
            let mut cmd = script::ACTIONHERO_EXTEND_LOCKS.call_with(&LockKeys::of_all(self), &keys);
            cmd.arg(self.redis.manual_now());
            for request in batch {
                cmd.arg(&request.name).arg(request.owner.to_string()).arg(span_micros(request.ttl));
            }
            let replies = self
                .redis
                .run_script_idempotent(
                    "extend_locks",
                    ConnectionRole::Heartbeat,
                    0,
                    &script::ACTIONHERO_EXTEND_LOCKS,
                    &cmd,
                )
                .await?
                .list()?;
            extended.extend(replies.iter().map(|reply| reply.as_deref() == Some(b"1")));
        }
        Ok(extended)
    }

    async fn unlock(&self, request: &LockRequest) -> Result<bool> {
        let mut cmd = lock_command(self, &script::ACTIONHERO_UNLOCK, &request.name)?;
        cmd.arg(request.owner.to_string()).arg("");
        Ok(end_hold(self, "unlock", &script::ACTIONHERO_UNLOCK, &cmd).await? > 0)
    }

    async fn cancel_wait(&self, request: &LockRequest) -> Result<()> {
        let mut cmd = lock_command(self, &script::ACTIONHERO_UNLOCK, &request.name)?;
        cmd.arg(request.owner.to_string()).arg("1");
        end_hold(self, "cancel_wait", &script::ACTIONHERO_UNLOCK, &cmd).await.map(drop)
    }

    async fn locks(&self, name: Option<&str>, cursor: Option<&str>) -> Result<LockPage> {
        // ActionHero has no index of its locks, so this scans all keys.
        let after = cursor.map(parse_lock_cursor).transpose()?.map(|(name, _)| name);
        let mut found: BTreeMap<String, LockRecord> = BTreeMap::new();
        if let Some(name) = name {
            read_holders(self, vec![check_lock_name(name)?.to_owned()], &mut found).await?;
            return build_page(self, found).await;
        }
        let mut scan_cursor = "0".to_owned();
        for _ in 0..SCANS_MAX {
            let mut cmd = redis::cmd("SCAN");
            cmd.arg(&scan_cursor).arg("MATCH").arg(format!("{}*", escape_glob(&self.lock_prefix)));
            cmd.arg("COUNT").arg(KEYS_PER_SCAN);
            let reply = self.redis.send_idempotent("locks", ConnectionRole::Client, 0, &cmd).await?;
            let (next, keys): (String, Vec<Vec<u8>>) = redis::from_redis_value(reply).map_err(|_| {
                Error::store("locks", "the server's reply to SCAN is malformed; check that it is Redis or Valkey")
            })?;
            let names = keys.into_iter().filter_map(|key| String::from_utf8(key).ok());
            let names = names.filter_map(|key| key.strip_prefix(&self.lock_prefix).map(str::to_owned));
            let names =
                names.filter(|name| check_lock_name(name).is_ok() && after.as_ref().is_none_or(|after| name > after));
            read_holders(self, names.collect(), &mut found).await?;
            while found.len() > LOCK_PAGE_SIZE + 1 {
                found.pop_last();
            }
            scan_cursor = next;
            if scan_cursor == "0" {
                return build_page(self, found).await;
            }
        }
        Err(Error::store("locks", "the database has too many keys to scan all of them; ask for one lock by its name"))
    }

    async fn break_lock(&self, name: &str, owner: Option<LockOwner>) -> Result<u64> {
        let mut cmd = lock_command(self, &script::ACTIONHERO_BREAK_LOCK, name)?;
        match owner {
            None => cmd.arg("").arg(""),
            Some(owner) => match value_of_owner(self, name, owner).await? {
                Some(value) => cmd.arg("1").arg(value),
                None => return Ok(0),
            },
        };
        end_hold(self, "break_lock", &script::ACTIONHERO_BREAK_LOCK, &cmd).await
    }
}

/// Watches a new lock for `confirm_delay`. Returns `false` if an old ActionHero node has taken it in that time.
async fn confirm_lock(store: &ActionHero, request: &LockRequest, mut expires: i64) -> Result<bool> {
    let keys = LockKeys::of(store, &request.name)?;
    let mut remaining = store.confirm_delay;
    while !remaining.is_zero() {
        let pause = remaining.min(CONFIRM_STEP);
        tokio::time::sleep(pause).await;
        remaining -= pause;
        let mut cmd = script::ACTIONHERO_CONFIRM_LOCK.call(&keys);
        cmd.arg(store.redis.manual_now()).arg(&request.name).arg(span_micros(request.ttl));
        cmd.arg(request.owner.to_string()).arg(expires).arg(u8::from(!remaining.is_zero()));
        // Not idempotent: the script itself changes the expiry. If its reply is lost, the whole lock request fails.
        let mut reply =
            store.redis.run_script("lock", ConnectionRole::Client, 0, &script::ACTIONHERO_CONFIRM_LOCK, &cmd).await?;
        if reply.int()? == 0 {
            return Ok(false);
        }
        expires = reply.int()?;
    }
    Ok(true)
}

/// Ends a hold and notifies the next waiter; repeats while the script finds only dead nodes among the waiters.
async fn end_hold(store: &ActionHero, op: &'static str, script: &Script, cmd: &Cmd) -> Result<u64> {
    let mut ended = 0;
    for _ in 0..LOCK_TRIES_MAX {
        let mut reply = match store.redis.run_script(op, ConnectionRole::Client, 0, script, cmd).await {
            // The hold has ended. The next waiter learns of its turn with its next announcement.
            Err(error) if ended > 0 => {
                tracing::debug!(%error, "lock released, but the next waiter was not notified");
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

/// Returns the turns of the locks that a node waits for.
pub(super) async fn lock_turns(store: &ActionHero, peer: &PeerInfo) -> Result<AnnounceReply> {
    let names: Vec<&String> = peer.waited_locks.iter().take(LOCK_WAITS_MAX).collect();
    if names.is_empty() || peer.listen_only {
        return Ok(AnnounceReply::default());
    }
    let locks: Vec<String> = names.iter().map(|name| store.lock_key(name)).collect::<Result<_>>()?;
    let mut cmd = script::ACTIONHERO_ANNOUNCE.call_with(&LockKeys::of_all(store), &locks);
    cmd.arg(store.redis.manual_now()).arg(peer.node.to_string()).arg(names);
    let mut reply = store
        .redis
        .run_script_idempotent("announce", ConnectionRole::Heartbeat, 0, &script::ACTIONHERO_ANNOUNCE, &cmd)
        .await?;
    let mut turns = Vec::new();
    for mut row in reply.rows()? {
        let (name, first_waiter, expires_in) = (row.text()?, row.text()?, row.int()?);
        turns.push(LockTurn {
            name,
            first_waiter: server::parse_lock_owner(&first_waiter),
            expires_in: Duration::from_micros(expires_in.unsigned_abs()),
        });
    }
    Ok(AnnounceReply { turns, lost_waits: Vec::new() })
}

/// Reads the holders of these locks into `found`.
async fn read_holders(store: &ActionHero, names: Vec<String>, found: &mut BTreeMap<String, LockRecord>) -> Result<()> {
    if names.is_empty() {
        return Ok(());
    }
    let keys: Vec<String> = names.iter().map(|name| store.lock_key(name)).collect::<Result<_>>()?;
    let mut reply = send_locks(store, &names, &keys).await?;
    let (names, holders, ttls_ms, holds) = (reply.list()?, reply.list()?, reply.list()?, reply.list()?);
    for (((name, holder), ttl_ms), hold) in names.into_iter().zip(holders).zip(ttls_ms).zip(holds) {
        let name = String::from_utf8(name.unwrap_or_default()).unwrap_or_default();
        let ttl_ms = parse_number(&ttl_ms.unwrap_or_default());
        let mut record = server::decode_lock_hold(&name, &hold.unwrap_or_default())
            .unwrap_or_else(|| foreign_lock_record(&name, &holder.unwrap_or_default()));
        let expires_in = if ttl_ms < 0 { NO_EXPIRY } else { Duration::from_millis(ttl_ms.unsigned_abs()) };
        if ttl_ms < 0 {
            record.note.push_str(", never expires");
        }
        record.expires = from_micros(reply.now.saturating_add(micros(expires_in)));
        found.insert(name, record);
    }
    Ok(())
}

/// Sends the script that reads the holders of these locks.
async fn send_locks(store: &ActionHero, names: &[String], keys: &[String]) -> Result<ScriptReply> {
    let mut cmd = script::ACTIONHERO_LOCKS.call_with(&LockKeys::of_all(store), keys);
    cmd.arg(store.redis.manual_now()).arg(names);
    store.redis.run_script_idempotent("locks", ConnectionRole::Client, 0, &script::ACTIONHERO_LOCKS, &cmd).await
}

/// Returns the value of ActionHero's key while this owner holds the lock; `None` if it does not.
///
/// The id of an ActionHero node is derived from its value, which the script cannot do.
async fn value_of_owner(store: &ActionHero, name: &str, owner: LockOwner) -> Result<Option<Vec<u8>>> {
    let mut reply = send_locks(store, &[name.to_owned()], &[store.lock_key(name)?]).await?;
    let (_, holders, _, holds) = (reply.list()?, reply.list()?, reply.list()?, reply.list()?);
    let Some(holder) = holders.into_iter().next().map(Option::unwrap_or_default) else {
        return Ok(None);
    };
    let hold = holds.into_iter().next().flatten().unwrap_or_default();
    let record = server::decode_lock_hold(name, &hold).unwrap_or_else(|| foreign_lock_record(name, &holder));
    Ok((record.owner == owner).then_some(holder))
}

/// Returns the record of a lock that an ActionHero node holds: only the holder's name is known.
fn foreign_lock_record(name: &str, holder: &[u8]) -> LockRecord {
    let holder = String::from_utf8_lossy(holder);
    // Derived from the name, so that the same holder always has the same owner id.
    let id = *JobId::from_name(&format!("actionhero:{holder}")).as_bytes();
    LockRecord {
        name: name.to_owned(),
        slot: 1,
        owner: LockOwner::from_bytes(id),
        node: NodeId::from_bytes(id),
        note: format!("ActionHero: {holder}"),
        fence: Fence(0),
        since: None,
        expires: from_micros(0),
        waiters: 0,
    }
}

/// Returns a page of these locks, with the number of waiters of each.
async fn build_page(store: &ActionHero, mut found: BTreeMap<String, LockRecord>) -> Result<LockPage> {
    let more = found.len() > LOCK_PAGE_SIZE;
    if more {
        found.pop_last();
    }
    let next_cursor = found.last_key_value().filter(|_| more).map(|(name, _)| format!("1:{name}"));
    let names: Vec<&str> = found.keys().map(String::as_str).collect();
    let waiters = store.redis.lock_waiter_counts(&names).await?;
    let mut locks: Vec<LockRecord> = found.into_values().collect();
    for lock in &mut locks {
        lock.waiters = waiters.get(&lock.name).copied().unwrap_or(0);
    }
    Ok(LockPage { locks, next_cursor })
}

/// Returns a call of a script on one lock with the common arguments; the caller appends the others.
fn lock_command(store: &ActionHero, script: &Script, name: &str) -> Result<Cmd> {
    let mut cmd = script.call(&LockKeys::of(store, name)?);
    cmd.arg(store.redis.manual_now()).arg(name);
    Ok(cmd)
}

/// Returns a glob pattern that matches only this text.
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
