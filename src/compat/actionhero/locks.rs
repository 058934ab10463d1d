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
use crate::store::redis::{PeerKeys, Script, Way, count, key_set, named, number, read_cursor, span};
use crate::store::{Attended, Guest, LOCKS_PAGE, LockAsk, LockPage, LockRecord, LockTaken, Owner, Turn, WAITS_MAX};

/// How often a step is repeated that was held up by dead nodes at the head of a line, or by a node that did not look.
const AGAIN_MAX: usize = 20;
/// How long a lock is watched in one step: less than the half second in which no other end is the same.
const WATCH_STEP: Duration = Duration::from_millis(200);
/// Most holds extended in one step.
const EXTEND_STEP: usize = 100;
/// Keys looked at in one step of a search for locks, and most steps.
const SCAN_STEP: usize = 500;
const SCANS_MAX: usize = 100_000;
/// How long a lock lasts that has no end, as far as anybody can tell.
const NO_END: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The keys that scripts name: duly's own, and ActionHero's key of one lock.
pub(in crate::compat) struct LockKeys<'k> {
    own: &'k PeerKeys,
    lock: String,
}

impl<'k> LockKeys<'k> {
    fn of(store: &'k ActionHero, name: &str) -> Result<Self> {
        Ok(LockKeys { own: store.hall.peer_keys(), lock: store.key(name)? })
    }

    /// Without one lock: for scripts on several.
    fn of_all(store: &'k ActionHero) -> Self {
        LockKeys { own: store.hall.peer_keys(), lock: String::new() }
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
pub(super) async fn lock(store: &ActionHero, ask: &LockAsk) -> Result<LockTaken> {
    if ask.slots > 1 {
        return Err(Error::invalid("slots", "a lock of ActionHero's has one holder"));
    }
    let lease = if ask.wait { span(ask.lease).to_string() } else { String::new() };
    let mut cmd = begin(store, &script::ACTIONHERO_LOCK, &ask.name)?;
    cmd.arg(span(ask.ttl)).arg(format!("{}{}{}", ask.node, ask.owner, ask.note)).arg(lease);
    cmd.arg(u8::from(!store.wary.is_zero()));
    let mut taken = LockTaken::default();
    for _ in 0..AGAIN_MAX {
        // An ask may be repeated: it means the same.
        let mut reply = store.hall.repeat("lock", Way::Door, 0, &script::ACTIONHERO_LOCK, &cmd).await?;
        if reply.int()? == 1 {
            let (fence, ends) = (Fence(reply.int()?.unsigned_abs()), reply.int()?);
            if confirm(store, ask, ends).await? {
                return Ok(LockTaken { hold: Some((fence, 1)), ..LockTaken::default() });
            }
            continue;
        }
        let (ahead, ends) = (count(reply.int()?), reply.maybe_int()?);
        let ends = ends.map(|left| Duration::from_micros(left.unsigned_abs()));
        taken = LockTaken { hold: None, ahead, ends };
        if reply.int()? == 0 {
            break;
        }
    }
    Ok(taken)
}

/// Whether a lock that was just taken counts: in the time in which an old node may take it for its own, none has.
async fn confirm(store: &ActionHero, ask: &LockAsk, mut ends: i64) -> Result<bool> {
    let keys = LockKeys::of(store, &ask.name)?;
    let mut left = store.wary;
    while !left.is_zero() {
        let step = left.min(WATCH_STEP);
        tokio::time::sleep(step).await;
        left -= step;
        let mut cmd = script::ACTIONHERO_CONFIRM_LOCK.call(&keys);
        cmd.arg(store.hall.manual_now()).arg(&ask.name).arg(span(ask.ttl)).arg(ask.owner.to_string()).arg(ends);
        cmd.arg(u8::from(!left.is_zero()));
        // Not repeated: the first one gives it another end itself. If its answer is lost, the ask is.
        let mut reply = store.hall.run("lock", Way::Door, 0, &script::ACTIONHERO_CONFIRM_LOCK, &cmd).await?;
        if reply.int()? == 0 {
            return Ok(false);
        }
        ends = reply.int()?;
    }
    Ok(true)
}

/// `extend_locks` of the contract.
pub(super) async fn extend(store: &ActionHero, asks: &[LockAsk]) -> Result<Vec<bool>> {
    let mut extended = Vec::with_capacity(asks.len());
    for some in asks.chunks(EXTEND_STEP) {
        let keys: Vec<String> = some.iter().map(|ask| store.key(&ask.name)).collect::<Result<_>>()?;
        let mut cmd = script::ACTIONHERO_EXTEND_LOCKS.call_with(&LockKeys::of_all(store), &keys);
        cmd.arg(store.hall.manual_now());
        for ask in some {
            cmd.arg(&ask.name).arg(ask.owner.to_string()).arg(span(ask.ttl));
        }
        let answers =
            store.hall.repeat("extend_locks", Way::Beat, 0, &script::ACTIONHERO_EXTEND_LOCKS, &cmd).await?.list()?;
        extended.extend(answers.iter().map(|answer| answer.as_deref() == Some(b"1")));
    }
    Ok(extended)
}

/// `unlock` of the contract.
pub(super) async fn unlock(store: &ActionHero, ask: &LockAsk) -> Result<bool> {
    let mut cmd = begin(store, &script::ACTIONHERO_UNLOCK, &ask.name)?;
    cmd.arg(ask.owner.to_string()).arg("");
    Ok(hand_on(store, "unlock", &script::ACTIONHERO_UNLOCK, &cmd).await? > 0)
}

/// `leave_line` of the contract.
pub(super) async fn leave_line(store: &ActionHero, ask: &LockAsk) -> Result<()> {
    let mut cmd = begin(store, &script::ACTIONHERO_UNLOCK, &ask.name)?;
    cmd.arg(ask.owner.to_string()).arg("1");
    hand_on(store, "leave_line", &script::ACTIONHERO_UNLOCK, &cmd).await.map(drop)
}

/// `break_lock` of the contract.
pub(super) async fn break_lock(store: &ActionHero, name: &str) -> Result<u64> {
    let cmd = begin(store, &script::ACTIONHERO_BREAK_LOCK, name)?;
    hand_on(store, "break_lock", &script::ACTIONHERO_BREAK_LOCK, &cmd).await
}

/// A step that ends a hold and tells who is next, again while only dead nodes are found in line.
async fn hand_on(store: &ActionHero, op: &'static str, script: &Script, cmd: &Cmd) -> Result<u64> {
    let mut ended = 0;
    for _ in 0..AGAIN_MAX {
        let mut reply = match store.hall.run(op, Way::Door, 0, script, cmd).await {
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
pub(super) async fn turns(store: &ActionHero, guest: &Guest) -> Result<Attended> {
    let names: Vec<&String> = guest.waits.iter().take(WAITS_MAX).collect();
    if names.is_empty() || guest.quiet {
        return Ok(Attended::default());
    }
    let locks: Vec<String> = names.iter().map(|name| store.key(name)).collect::<Result<_>>()?;
    let mut cmd = script::ACTIONHERO_ANNOUNCE.call_with(&LockKeys::of_all(store), &locks);
    cmd.arg(store.hall.manual_now()).arg(guest.node.to_string()).arg(names);
    let mut reply = store.hall.repeat("attend", Way::Beat, 0, &script::ACTIONHERO_ANNOUNCE, &cmd).await?;
    let mut turns = Vec::new();
    for mut row in reply.rows()? {
        let (name, first, left) = (row.text()?, row.text()?, row.int()?);
        turns.push(Turn { name, first: server::read_owner(&first), ends: Duration::from_micros(left.unsigned_abs()) });
    }
    Ok(Attended { turns, lost: Vec::new() })
}

/// `locks` of the contract. ActionHero keeps no list of its locks: all keys of the database are gone through.
pub(super) async fn locks(store: &ActionHero, name: Option<&str>, cursor: Option<&str>) -> Result<LockPage> {
    let behind = cursor.map(read_cursor).transpose()?.map(|(name, _)| name);
    let mut found: BTreeMap<String, LockRecord> = BTreeMap::new();
    if let Some(name) = name {
        look(store, vec![named(name)?.to_owned()], &mut found).await?;
        return page(store, found).await;
    }
    let mut at = "0".to_owned();
    for _ in 0..SCANS_MAX {
        let mut cmd = redis::cmd("SCAN");
        cmd.arg(&at).arg("MATCH").arg(format!("{}*", glob(&store.lock_prefix))).arg("COUNT").arg(SCAN_STEP);
        let answer = store.hall.ask("locks", Way::Door, 0, &cmd).await?;
        let (next, keys): (String, Vec<Vec<u8>>) = redis::from_redis_value(answer)
            .map_err(|_| Error::store("locks", "the server gave a strange answer to SCAN"))?;
        let names = keys.into_iter().filter_map(|key| String::from_utf8(key).ok());
        let names = names.filter_map(|key| key.strip_prefix(&store.lock_prefix).map(str::to_owned));
        let names = names.filter(|name| named(name).is_ok() && behind.as_ref().is_none_or(|behind| name > behind));
        look(store, names.collect(), &mut found).await?;
        while found.len() > LOCKS_PAGE + 1 {
            found.pop_last();
        }
        at = next;
        if at == "0" {
            return page(store, found).await;
        }
    }
    Err(Error::store("locks", "too many keys to go through all of them"))
}

/// Who holds these.
async fn look(store: &ActionHero, names: Vec<String>, found: &mut BTreeMap<String, LockRecord>) -> Result<()> {
    if names.is_empty() {
        return Ok(());
    }
    let keys: Vec<String> = names.iter().map(|name| store.key(name)).collect::<Result<_>>()?;
    let mut cmd = script::ACTIONHERO_LOCKS.call_with(&LockKeys::of_all(store), &keys);
    cmd.arg(store.hall.manual_now()).arg(&names);
    let mut reply = store.hall.repeat("locks", Way::Door, 0, &script::ACTIONHERO_LOCKS, &cmd).await?;
    let (names, holders, lefts, holds) = (reply.list()?, reply.list()?, reply.list()?, reply.list()?);
    for (((name, holder), left), hold) in names.into_iter().zip(holders).zip(lefts).zip(holds) {
        let name = String::from_utf8(name.unwrap_or_default()).unwrap_or_default();
        let left = number(&left.unwrap_or_default());
        let mut record = server::read_hold(&name, &hold.unwrap_or_default())
            .unwrap_or_else(|| of_theirs(&name, &holder.unwrap_or_default()));
        let lasts = if left < 0 { NO_END } else { Duration::from_millis(left.unsigned_abs()) };
        if left < 0 {
            record.note.push_str(", without an end");
        }
        record.ends = from_micros(reply.now.saturating_add(micros(lasts)));
        found.insert(name, record);
    }
    Ok(())
}

/// What is known of a hold of ActionHero's: its name for itself, and nothing else.
fn of_theirs(name: &str, holder: &[u8]) -> LockRecord {
    let holder = String::from_utf8_lossy(holder);
    // The same holder always gives the same owner.
    let id = *JobId::named(&format!("actionhero:{holder}")).as_bytes();
    LockRecord {
        name: name.to_owned(),
        slot: 1,
        owner: Owner::from_bytes(id),
        node: NodeId::from_bytes(id),
        note: format!("ActionHero: {holder}"),
        fence: Fence(0),
        since: from_micros(0),
        ends: from_micros(0),
        waiting: 0,
    }
}

/// Of these holds as many as fit on a page.
async fn page(store: &ActionHero, mut found: BTreeMap<String, LockRecord>) -> Result<LockPage> {
    let more = found.len() > LOCKS_PAGE;
    if more {
        found.pop_last();
    }
    let next = found.last_key_value().filter(|_| more).map(|(name, _)| format!("1:{name}"));
    let names: Vec<&str> = found.keys().map(String::as_str).collect();
    let waiting = store.hall.waiting_for(&names).await?;
    let mut locks: Vec<LockRecord> = found.into_values().collect();
    for lock in &mut locks {
        lock.waiting = waiting.get(&lock.name).copied().unwrap_or(0);
    }
    Ok(LockPage { locks, next })
}

/// A script of the lock of this name; its own arguments follow.
fn begin(store: &ActionHero, script: &Script, name: &str) -> Result<Cmd> {
    let mut cmd = script.call(&LockKeys::of(store, name)?);
    cmd.arg(store.hall.manual_now()).arg(name);
    Ok(cmd)
}

/// A text as a pattern that matches nothing else.
fn glob(text: &str) -> String {
    text.chars().flat_map(|c| "*?[]\\^-".contains(c).then_some('\\').into_iter().chain([c])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_only_its_text() {
        assert_eq!(glob("a:lock:[1]*"), "a:lock:\\[1\\]\\*");
    }
}
