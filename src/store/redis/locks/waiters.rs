//! Waiters for a lock: the parts of an announcement that concern them, and their counts.

use std::collections::BTreeMap;
use std::time::Duration;

use redis::Cmd;

use crate::clock::Micros;
use crate::error::Result;
use crate::store::redis::conn::ConnectionRole;
use crate::store::redis::locks::parse_owner;
use crate::store::redis::reply::{ScriptReply, parse_number};
use crate::store::redis::{Redis, script};
use crate::store::{LOCK_WAITS_MAX, LockOwner, LockTurn, PeerInfo};

/// Appends the locks that a peer waits for and its waiters, as the script `announce` takes them.
pub(crate) fn append_waits(cmd: &mut Cmd, peer: &PeerInfo) {
    let waits = &peer.waited_locks[..peer.waited_locks.len().min(LOCK_WAITS_MAX)];
    cmd.arg(waits.len()).arg(waits);
    for (name, owner) in announced_waiters(peer) {
        cmd.arg(format!("{owner}{name}"));
    }
}

/// Reads the first waiter of each lock that the peer waits for.
pub(crate) fn lock_turns(reply: &mut ScriptReply) -> Result<Vec<LockTurn>> {
    let mut turns = Vec::new();
    for mut row in reply.rows()? {
        let (name, first_waiter, expires) = (row.text()?, row.text()?, row.optional_int()?);
        let expires = duration_until(expires.unwrap_or(0), reply.now);
        turns.push(LockTurn { name, first_waiter: parse_owner(&first_waiter), expires_in: expires });
    }
    Ok(turns)
}

/// Reads the owners that should be waiting and are not.
pub(crate) fn find_lost_waiters(reply: &mut ScriptReply, peer: &PeerInfo) -> Result<Vec<LockOwner>> {
    let present = reply.list()?;
    let lost = announced_waiters(peer).iter().zip(present).filter(|(_, waiter)| waiter.is_none());
    Ok(lost.map(|((_, owner), _)| *owner).collect())
}

fn announced_waiters(peer: &PeerInfo) -> &[(String, LockOwner)] {
    &peer.waiters[..peer.waiters.len().min(LOCK_WAITS_MAX)]
}

/// Returns the number of waiters for each of these locks.
pub(crate) async fn count_waiting(store: &Redis, names: &[&str]) -> Result<BTreeMap<String, u64>> {
    if names.is_empty() {
        return Ok(BTreeMap::new());
    }
    let peer_keys = &store.peer_keys;
    let mut cmd = script::COUNT_WAITERS.call(&store.peer_keys);
    cmd.arg(store.manual_now()).arg(names);
    let counts = store
        .run_script("locks", ConnectionRole::Client, peer_keys.slot, &script::COUNT_WAITERS, &cmd)
        .await?
        .list()?;
    let counts = counts.into_iter().map(|count| parse_number(&count.unwrap_or_default()).unsigned_abs());
    Ok(names.iter().map(|name| (*name).to_owned()).zip(counts).collect())
}

pub(super) fn duration_until(moment: Micros, now: Micros) -> Duration {
    Duration::from_micros(u64::try_from(moment - now).unwrap_or(0))
}
