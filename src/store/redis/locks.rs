//! Locks and the lines before them: one script on the keys of the hall for each step.

use std::collections::BTreeMap;
use std::time::Duration;

use redis::Cmd;
use uuid::Uuid;

use super::Redis;
use super::record::DELAY_MAX;
use super::reply::number;
use super::script::{self, Script};
use crate::clock::{Micros, from_micros, micros};
use crate::error::{Error, Result};
use crate::job::Fence;
use crate::store::redis::conn::{Confirm, Way};
use crate::store::{LOCK_SLOTS_MAX, LOCKS_PAGE, LockAsk, LockPage, LockRecord, LockTaken, Owner};

/// How often a step is repeated that was held up by dead nodes at the head of a line: each time it clears some of them.
const CLEARINGS_MAX: usize = 20;
/// Most slots that one step looks through to extend holds.
const EXTEND_SLOTS_MAX: usize = 2_000;
/// What the script says of a hold that it has extended.
const EXTENDED: u32 = 1;
/// Most steps through all locks for one page of them.
const SCANS_MAX: usize = 10_000;

/// `lock` of the contract.
pub(super) async fn lock(store: &Redis, ask: &LockAsk) -> Result<LockTaken> {
    let lease = if ask.wait { span(ask.lease).to_string() } else { String::new() };
    let mut cmd = begin(store, &script::LOCK, &ask.name)?;
    cmd.arg(slots(ask)).arg(span(ask.ttl)).arg(format!("{}{}{}", ask.node, ask.owner, ask.note)).arg(lease);
    let mut taken = LockTaken::default();
    for _ in 0..CLEARINGS_MAX {
        let value = match confirm(store) {
            // An ask may be repeated: it means the same.
            None => store.link.repeat("lock", Way::Door, store.hall.slot, &script::LOCK, &cmd).await?,
            some => {
                let cmds = std::slice::from_ref(&cmd);
                store.link.deliver("lock", store.hall.slot, Some(&script::LOCK), cmds, some).await?
            }
        };
        let mut reply = store.reply("lock", value)?;
        let slot = count(reply.int()?);
        if slot > 0 {
            let hold = Some((Fence(reply.int()?.unsigned_abs()), slot));
            return Ok(LockTaken { hold, ..LockTaken::default() });
        }
        let (ahead, ends) = (count(reply.int()?), reply.maybe_int()?);
        taken = LockTaken { hold: None, ahead, ends: ends.map(|ends| until(ends, reply.now)) };
        if reply.int()? == 0 {
            break;
        }
    }
    Ok(taken)
}

/// `extend_locks` of the contract.
pub(super) async fn extend_locks(store: &Redis, asks: &[LockAsk]) -> Result<Vec<bool>> {
    let looks: Vec<(&LockAsk, u32)> = asks.iter().map(|ask| (ask, slots(ask))).collect();
    let mut answers = extend_among(store, &looks).await?;
    // Whoever asked for fewer slots than the lock has may hold one behind those.
    let wider = |at: &usize| answers[*at] > EXTENDED;
    let again: Vec<usize> = (0..asks.len()).filter(wider).collect();
    if !again.is_empty() {
        let looks: Vec<(&LockAsk, u32)> = again.iter().map(|at| (&asks[*at], answers[*at])).collect();
        for (at, answer) in again.into_iter().zip(extend_among(store, &looks).await?) {
            answers[at] = answer;
        }
    }
    Ok(answers.into_iter().map(|answer| answer == EXTENDED).collect())
}

/// Looks for each among so many slots, and answers what the script says of it.
async fn extend_among(store: &Redis, looks: &[(&LockAsk, u32)]) -> Result<Vec<u32>> {
    let mut answers = Vec::with_capacity(looks.len());
    let mut rest = looks;
    while !rest.is_empty() {
        let mut slots = 0;
        let fits = |(_, width): &&(&LockAsk, u32)| {
            slots += *width as usize;
            slots <= EXTEND_SLOTS_MAX
        };
        // One alone always fits.
        let (some, others) = rest.split_at(rest.iter().take_while(fits).count().max(1));
        answers.extend(extend_some(store, some).await?);
        rest = others;
    }
    Ok(answers)
}

async fn extend_some(store: &Redis, looks: &[(&LockAsk, u32)]) -> Result<Vec<u32>> {
    let mut cmd = script::EXTEND_LOCKS.call(&store.hall);
    cmd.arg(store.manual_now());
    for (ask, slots) in looks {
        cmd.arg(named(&ask.name)?).arg(ask.owner.to_string()).arg(slots).arg(span(ask.ttl));
    }
    // What replicas do not know of would end sooner after a failover than its holder believes.
    let value = store.link.keep("extend_locks", store.hall.slot, &script::EXTEND_LOCKS, &cmd, confirm(store)).await?;
    let answers = store.reply("extend_locks", value)?.list()?;
    let most = i64::from(LOCK_SLOTS_MAX);
    Ok(answers.into_iter().map(|answer| count(number(&answer.unwrap_or_default()).min(most))).collect())
}

/// `unlock` of the contract.
pub(super) async fn unlock(store: &Redis, ask: &LockAsk) -> Result<bool> {
    give_up(store, "unlock", ask, false).await
}

/// `leave_line` of the contract.
pub(super) async fn leave_line(store: &Redis, ask: &LockAsk) -> Result<()> {
    give_up(store, "leave_line", ask, true).await.map(drop)
}

/// Gives up what an owner has of a lock, or only its place in the line. Answers whether it held a slot.
async fn give_up(store: &Redis, op: &'static str, ask: &LockAsk, only_place: bool) -> Result<bool> {
    let mut cmd = begin(store, &script::UNLOCK, &ask.name)?;
    cmd.arg(slots(ask)).arg(ask.owner.to_string()).arg(if only_place { "1" } else { "" });
    Ok(hand_on(store, op, &script::UNLOCK, &cmd).await? > 0)
}

/// `break_lock` of the contract.
pub(super) async fn break_lock(store: &Redis, name: &str) -> Result<u64> {
    let cmd = begin(store, &script::BREAK_LOCK, name)?;
    hand_on(store, "break_lock", &script::BREAK_LOCK, &cmd).await
}

/// A step that ends holds and tells who is next, again while only dead nodes are found in line. Answers how many ended.
async fn hand_on(store: &Redis, op: &'static str, script: &Script, cmd: &Cmd) -> Result<u64> {
    let mut ended = 0;
    for _ in 0..CLEARINGS_MAX {
        let mut reply = match store.link.run(op, Way::Door, store.hall.slot, script, cmd).await {
            // They have ended, and nothing takes that back. Who is next learns of it with its next sign of life.
            Err(error) if ended > 0 => {
                tracing::debug!(%error, "holds have ended, and the next in line was not told");
                break;
            }
            value => store.reply(op, value?)?,
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
    let behind = cursor.map(read_cursor).transpose()?;
    let mut found: BTreeMap<(String, u32), Vec<u8>> = BTreeMap::new();
    let (how, mut at) = match name {
        Some(name) => ("one", named(name)?.to_owned()),
        None => ("all", "0".to_owned()),
    };
    for _ in 0..SCANS_MAX {
        let mut cmd = script::LOCKS.call(&store.hall);
        cmd.arg(store.manual_now()).arg(how).arg(&at);
        let value = store.link.run("locks", Way::Door, store.hall.slot, &script::LOCKS, &cmd).await?;
        let mut reply = store.reply("locks", value)?;
        at = reply.text()?;
        let (names, slots, holds) = (reply.list()?, reply.list()?, reply.list()?);
        for ((name, slot), hold) in names.into_iter().zip(slots).zip(holds) {
            let name = name.and_then(|name| String::from_utf8(name).ok());
            if let (Some(name), Some(slot), Some(hold)) = (name, slot, hold) {
                found.insert((name, count(number(&slot))), hold);
            }
        }
        if let Some(behind) = &behind {
            found = found.split_off(behind);
            found.remove(behind);
        }
        while found.len() > LOCKS_PAGE + 1 {
            found.pop_last();
        }
        if at == "0" {
            return page(store, found).await;
        }
    }
    Err(Error::store("locks", "too many locks to go through all of them"))
}

/// Of these holds as many as fit on a page.
async fn page(store: &Redis, mut found: BTreeMap<(String, u32), Vec<u8>>) -> Result<LockPage> {
    let more = found.len() > LOCKS_PAGE;
    if more {
        found.pop_last();
    }
    let next = found.last_key_value().filter(|_| more).map(|((name, slot), _)| format!("{slot}:{name}"));
    let mut locks: Vec<LockRecord> = found.iter().filter_map(|((name, slot), hold)| read(name, *slot, hold)).collect();
    let mut names: Vec<&str> = locks.iter().map(|lock| lock.name.as_str()).collect();
    names.dedup();
    let waiting = waiting(store, &names).await?;
    for lock in &mut locks {
        lock.waiting = waiting.get(&lock.name).copied().unwrap_or(0);
    }
    Ok(LockPage { locks, next })
}

pub(super) async fn waiting(store: &Redis, names: &[&str]) -> Result<BTreeMap<String, u64>> {
    if names.is_empty() {
        return Ok(BTreeMap::new());
    }
    let hall = &store.hall;
    let mut cmd = script::COUNT_WAITERS.call(&store.hall);
    cmd.arg(store.manual_now()).arg(names);
    let value = store.link.run("locks", Way::Door, hall.slot, &script::COUNT_WAITERS, &cmd).await?;
    let counts = store.reply("locks", value)?.list()?;
    let counts = counts.into_iter().map(|count| number(&count.unwrap_or_default()).unsigned_abs());
    Ok(names.iter().map(|name| (*name).to_owned()).zip(counts).collect())
}

/// A hold: ends, fence, since (16 digits each), node, owner (36 characters each), note.
pub(super) fn read(name: &str, slot: u32, hold: &[u8]) -> Option<LockRecord> {
    let hold = std::str::from_utf8(hold).ok()?;
    let moment = |from: usize| hold.get(from..from + 16).and_then(|digits| digits.parse::<Micros>().ok());
    Some(LockRecord {
        name: name.to_owned(),
        slot,
        owner: owner(hold.get(84..120)?)?,
        node: hold.get(48..84)?.parse().ok()?,
        note: hold.get(120..)?.to_owned(),
        fence: Fence(moment(16)?.unsigned_abs()),
        since: from_micros(moment(32)?),
        ends: from_micros(moment(0)?),
        waiting: 0,
    })
}

pub(super) fn owner(text: &str) -> Option<Owner> {
    Uuid::parse_str(text).ok().map(|id| Owner::from_bytes(*id.as_bytes()))
}

/// Behind which slot of which lock to go on.
pub(crate) fn read_cursor(cursor: &str) -> Result<(String, u32)> {
    let wrong = || Error::invalid("cursor", "not one that a list of locks has given");
    let (slot, name) = cursor.split_once(':').ok_or_else(wrong)?;
    Ok((name.to_owned(), slot.parse().map_err(|_| wrong())?))
}

/// A script of the lock of this name; its own arguments follow.
fn begin(store: &Redis, script: &Script, name: &str) -> Result<Cmd> {
    let hall = &store.hall;
    let mut cmd = script.call(hall);
    cmd.arg(store.manual_now()).arg(named(name)?);
    Ok(cmd)
}

/// A name that keys can hold: they part it from what follows by a control character.
pub(crate) fn named(name: &str) -> Result<&str> {
    match name.contains(char::is_control) {
        true => Err(Error::invalid("lock", "a name has no control characters")),
        false => Ok(name),
    }
}

fn confirm(store: &Redis) -> Option<Confirm<'static>> {
    let replicas = store.options.replicas;
    // A lock that is granted, and a hold that is extended, is always written: it needs no seal.
    (replicas > 0).then_some(Confirm { replicas, seal: None })
}

fn slots(ask: &LockAsk) -> u32 {
    ask.slots.clamp(1, LOCK_SLOTS_MAX)
}

pub(crate) fn span(time: Duration) -> Micros {
    micros(time).min(DELAY_MAX)
}

pub(crate) fn count(number: i64) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

pub(super) fn until(moment: Micros, now: Micros) -> Duration {
    Duration::from_micros(u64::try_from(moment - now).unwrap_or(0))
}
