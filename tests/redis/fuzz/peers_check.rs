//! Invariants of peers and locks before and after every script, and changes that no script may make.

use super::call::Call;
use super::check::{Verdict, none};
use super::peers::{LOCKS, lock_of};
use super::record_text::{Bytes, shown};
use super::state::State;

fn number(text: Option<&[u8]>) -> i64 {
    text.and_then(|text| std::str::from_utf8(text).ok()).and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// A parsed hold.
struct Hold<'h> {
    ends: i64,
    fence: i64,
    owner: &'h [u8],
    /// All but its end and how long it lasts.
    rest: [&'h [u8]; 2],
    ttl: i64,
}

fn read(hold: &[u8]) -> Hold<'_> {
    let rest = [hold.get(16..120).unwrap_or_default(), hold.get(136..).unwrap_or_default()];
    Hold {
        ends: number(hold.get(..16)),
        fence: number(hold.get(16..32)),
        owner: hold.get(84..120).unwrap_or_default(),
        rest,
        ttl: number(hold.get(120..136)),
    }
}

/// Returns owner, node and lock of a waiter, if it is complete.
fn read_waiter(waiter: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let end = waiter.len().checked_sub(93)?;
    Some((&waiter[end + 17..end + 53], &waiter[end + 53..end + 89], &waiter[..end]))
}

/// Returns the holds of a lock that have not expired.
fn active_holds<'s>(state: &'s State, name: &'s str, now: i64) -> impl Iterator<Item = Hold<'s>> {
    let holds = state.locks.iter().filter(move |(field, _)| lock_of(field) == Some(name));
    holds.map(|(_, hold)| read(hold)).filter(move |hold| hold.ends > now)
}

fn is_alive(state: &State, node: &[u8], now: i64) -> bool {
    state.presence.get(node).is_some_and(|ends| *ends >= now)
}

pub fn waiters_are_queued(state: &State) -> Verdict {
    let field = |waiter: &Bytes| read_waiter(waiter).map(|(owner, _, name)| [owner, name].concat());
    let is_indexed = |waiter: &&Bytes| field(waiter).and_then(|field| state.waiter_index.get(&field)) == Some(*waiter);
    none(state.lock_waiters.keys().filter(|waiter| !is_indexed(waiter)), |waiter| {
        format!("unindexed waiter {}", shown(waiter))
    })?;
    let is_queued = |waiter: &Bytes| state.lock_waiters.contains_key(waiter);
    none(state.waiter_index.iter().filter(|(_, waiter)| !is_queued(waiter)), |(field, _)| {
        format!("no waiter for {}", shown(field))
    })
}

/// Without its mark, a lock is granted without a check of its waiters.
pub fn waited_locks_are_marked(state: &State) -> Verdict {
    let mark = |waiter: &Bytes| read_waiter(waiter).map(|(.., name)| [name, b"\0"].concat());
    let marked = |waiter: &&Bytes| mark(waiter).is_some_and(|mark| state.locks.contains_key(&mark));
    none(state.lock_waiters.keys().filter(|waiter| !marked(waiter)), |waiter| shown(waiter))
}

pub fn fences_of_locks_are_past(state: &State) -> Verdict {
    let last = number(state.locks.get(&b""[..]).map(|text| &text[..]));
    let late = state.locks.iter().filter(|(field, hold)| lock_of(field).is_some() && read(hold).fence > last);
    none(late, |(field, hold)| format!("{}: {}, last {last}", shown(field), shown(hold)))
}

pub fn peers_have_leases(state: &State) -> Verdict {
    none(state.peers.keys().filter(|node| !state.presence.contains_key(*node)), |node| shown(node))
}

/// Changes that no script may make in any state.
pub fn check_change(call: &Call, before: &State, after: &State) -> Verdict {
    holds_are_respected(call, before, after)?;
    waiters_are_respected(call, before, after)?;
    connections_are_respected(call, before, after)
}

/// Changes that no script may make in a sound state.
pub fn check_sound_change(call: &Call, before: &State, after: &State) -> Verdict {
    for name in LOCKS {
        // By the clock of this call, which may have gone back: then some expired holds are valid again.
        let owners_before: Vec<&[u8]> = active_holds(before, name, call.now).map(|hold| hold.owner).collect();
        let owners_after: Vec<&[u8]> = active_holds(after, name, call.now).map(|hold| hold.owner).collect();
        let new = owners_after.iter().filter(|owner| times(owner, &owners_after) > times(owner, &owners_before));
        let is_waiting = |owner: &[u8]| after.waiter_index.contains_key(&[owner, name.as_bytes()].concat());
        none(new.clone().filter(|owner| times(owner, &owners_after) > 1), |owner| {
            format!("{} holds {name} twice", shown(owner))
        })?;
        none(new.filter(|owner| is_waiting(owner)), |owner| format!("{} holds {name} and waits for it", shown(owner)))?;
    }
    if call.script == "lock" { acquired_in_turn(call, before, after) } else { Ok(()) }
}

fn times(owner: &[u8], owners: &[&[u8]]) -> usize {
    owners.iter().filter(|other| **other == owner).count()
}

/// Returns the lock and the owner of a call.
fn requested_lock(call: &Call) -> Option<(&[u8], &[u8])> {
    match call.script.as_str() {
        "lock" => Some((call.arg("name"), &call.arg("holder")[36..72])),
        "unlock" => Some((call.arg("name"), call.arg("owner"))),
        _ => None,
    }
}

/// A hold that has not expired, and is not too long, ends only by its owner's request, or by breaking the lock.
fn holds_are_respected(call: &Call, before: &State, after: &State) -> Verdict {
    let is_requested = |name: &[u8], owner: &[u8]| requested_lock(call) == Some((name, owner));
    for (field, value) in &before.locks {
        let (Some(name), hold, current) = (lock_of(field), read(value), after.locks.get(field)) else { continue };
        if hold.ends <= call.now || current == Some(value) {
            continue;
        }
        let is_extended = current.is_some_and(|current| read(current).rest == hold.rest);
        // It was extended while the clock was ahead, or the call uses the server's clock, which is behind.
        let is_too_long = hold.ttl > 0 && (hold.ends > call.now + hold.ttl || call.args[0].is_empty());
        if is_too_long && is_extended && current.is_some_and(|current| read(current).ends < hold.ends) {
            continue;
        }
        let allowed = match call.script.as_str() {
            "lock" => is_extended && is_requested(name.as_bytes(), hold.owner),
            "extend_locks" => {
                is_extended
                    && call.rest().chunks(4).any(|request| request[0] == name.as_bytes() && request[1] == hold.owner)
            }
            "unlock" => {
                current.is_none() && call.arg("only_wait").is_empty() && is_requested(name.as_bytes(), hold.owner)
            }
            "break_lock" => {
                let is_broken = call.arg("owner").is_empty() || call.arg("owner") == hold.owner;
                current.is_none() && call.arg("name") == name.as_bytes() && is_broken
            }
            _ => false,
        };
        if !allowed {
            return Err(format!(
                "{} was changed: {} to {:?}",
                shown(field),
                shown(value),
                current.map(|current| shown(current))
            ));
        }
    }
    Ok(())
}

/// A waiter is removed with its node, or by its owner's request.
fn waiters_are_respected(call: &Call, before: &State, after: &State) -> Verdict {
    for waiter in before.lock_waiters.keys().filter(|waiter| !after.lock_waiters.contains_key(*waiter)) {
        let Some((owner, node, name)) = read_waiter(waiter) else { continue };
        let by_owner = requested_lock(call) == Some((name, owner));
        let is_withdrawal = call.script == "withdraw" && call.node.as_bytes() == node;
        if !by_owner && !is_withdrawal && is_alive(before, node, call.now) {
            return Err(format!("the waiter {} was taken from a live node", shown(waiter)));
        }
    }
    Ok(())
}

fn connections_are_respected(call: &Call, before: &State, after: &State) -> Verdict {
    let (node, is_update) = (call.node.as_bytes(), call.script == "set_connections");
    for (name, holder) in
        before.connections.iter().filter(|(name, holder)| after.connections.get(*name) != Some(*holder))
    {
        let by_holder =
            (is_update || call.script == "withdraw") && holder == node && !after.connections.contains_key(name);
        // A refreshed connection is taken over only from a dead node.
        let by_update = is_update && after.connections.get(name).is_some_and(|holder| holder == node);
        if !by_holder && !by_update && is_alive(before, holder, call.now) {
            return Err(format!("the connection {} was taken from {}", shown(name), shown(holder)));
        }
    }
    Ok(())
}

/// A slot goes to the first waiter, with a new fence, and never exceeds the number of slots.
fn acquired_in_turn(call: &Call, before: &State, after: &State) -> Verdict {
    let Some((name, owner)) = requested_lock(call) else {
        return Ok(());
    };
    let (text, node) = (String::from_utf8_lossy(name), &call.arg("holder")[..36]);
    let mut acquired = active_holds(after, &text, call.now).filter(|hold| hold.owner == owner);
    let held_before = active_holds(before, &text, call.now).any(|hold| hold.owner == owner);
    let (Some(acquired), false) = (acquired.next(), held_before) else {
        return Ok(());
    };
    let last = number(before.locks.get(&b""[..]).map(|text| &text[..]));
    if acquired.fence <= last {
        return Err(format!("{text} was taken under a fence that is not new: {} after {last}", acquired.fence));
    }
    let slots = number(Some(call.arg("slots")));
    let is_caller = |other: &[u8]| !call.arg("wait_lease").is_empty() && other == node;
    let waiters =
        before.lock_waiters.keys().filter_map(|waiter| read_waiter(waiter)).filter(|(.., lock)| *lock == name);
    let ahead = waiters.take_while(|(other, ..)| *other != owner);
    let ahead = ahead.filter(|(_, other, _)| is_caller(other) || is_alive(before, other, call.now)).count() as i64;
    let held = active_holds(before, &text, call.now).count() as i64;
    if held + ahead >= slots {
        return Err(format!("{text} was taken although others came first: {held} holders, {ahead} earlier waiters"));
    }
    Ok(())
}
