//! What must hold of the hall before and after every script, and what a script may not do between.

use super::call::Call;
use super::check::{Verdict, none};
use super::peers::{LOCKS, lock_of};
use super::record_text::{Bytes, shown};
use super::state::State;

fn number(text: Option<&[u8]>) -> i64 {
    text.and_then(|text| std::str::from_utf8(text).ok()).and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// A hold, taken apart.
struct Hold<'h> {
    ends: i64,
    fence: i64,
    owner: &'h [u8],
    /// All but its end.
    rest: &'h [u8],
}

fn read(hold: &[u8]) -> Hold<'_> {
    let rest = hold.get(16..).unwrap_or_default();
    Hold {
        ends: number(hold.get(..16)),
        fence: number(hold.get(16..32)),
        owner: hold.get(84..120).unwrap_or_default(),
        rest,
    }
}

/// Owner, node and lock of a place, if it is whole.
fn read_place(place: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let at = place.len().checked_sub(93)?;
    Some((&place[at + 17..at + 53], &place[at + 53..at + 89], &place[..at]))
}

/// The holds of a lock that have not ended.
fn running<'s>(state: &'s State, name: &'s str, now: i64) -> impl Iterator<Item = Hold<'s>> {
    let holds = state.locks.iter().filter(move |(field, _)| lock_of(field) == Some(name));
    holds.map(|(_, hold)| read(hold)).filter(move |hold| hold.ends > now)
}

fn is_alive(state: &State, node: &[u8], now: i64) -> bool {
    state.presence.get(node).is_some_and(|ends| *ends >= now)
}

pub fn places_are_in_line(state: &State) -> Verdict {
    let field = |place: &Bytes| read_place(place).map(|(owner, _, name)| [owner, name].concat());
    let known = |place: &&Bytes| field(place).and_then(|field| state.places.get(&field)) == Some(*place);
    none(state.line.keys().filter(|place| !known(place)), |place| format!("nobody's place {}", shown(place)))?;
    let there = |place: &Bytes| state.line.contains_key(place);
    none(state.places.iter().filter(|(_, place)| !there(place)), |(field, _)| format!("no place for {}", shown(field)))
}

/// Without its mark a lock is given to whoever asks, without a look at its line.
pub fn lines_are_marked(state: &State) -> Verdict {
    let mark = |place: &Bytes| read_place(place).map(|(.., name)| [name, b"\0"].concat());
    let marked = |place: &&Bytes| mark(place).is_some_and(|mark| state.locks.contains_key(&mark));
    none(state.line.keys().filter(|place| !marked(place)), |place| shown(place))
}

pub fn fences_of_locks_are_past(state: &State) -> Verdict {
    let last = number(state.locks.get(&b""[..]).map(|text| &text[..]));
    let late = state.locks.iter().filter(|(field, hold)| lock_of(field).is_some() && read(hold).fence > last);
    none(late, |(field, hold)| format!("{}: {}, last {last}", shown(field), shown(hold)))
}

pub fn guests_are_present(state: &State) -> Verdict {
    none(state.guests.keys().filter(|node| !state.presence.contains_key(*node)), |node| shown(node))
}

/// What no script may do in a hall, whatever state it finds.
pub fn step(call: &Call, before: &State, after: &State) -> Verdict {
    holds_last(call, before, after)?;
    places_last(call, before, after)?;
    connections_last(call, before, after)
}

/// What no script may do in a sound hall.
pub fn sound_step(call: &Call, before: &State, after: &State) -> Verdict {
    for name in LOCKS {
        // By the clock of this step, which may have gone back: then some run again that had ended.
        let had: Vec<&[u8]> = running(before, name, call.now).map(|hold| hold.owner).collect();
        let has: Vec<&[u8]> = running(after, name, call.now).map(|hold| hold.owner).collect();
        let new = has.iter().filter(|owner| times(owner, &has) > times(owner, &had));
        let waits = |owner: &[u8]| after.places.contains_key(&[owner, name.as_bytes()].concat());
        none(new.clone().filter(|owner| times(owner, &has) > 1), |owner| {
            format!("{} holds {name} twice", shown(owner))
        })?;
        none(new.filter(|owner| waits(owner)), |owner| {
            format!("{} holds {name} and stands in its line", shown(owner))
        })?;
    }
    if call.script == "lock" { taken_in_turn(call, before, after) } else { Ok(()) }
}

fn times(owner: &[u8], of: &[&[u8]]) -> usize {
    of.iter().filter(|other| **other == owner).count()
}

/// The lock and the owner that a script is about.
fn asked_for(call: &Call) -> Option<(&[u8], &[u8])> {
    match call.script.as_str() {
        "lock" => Some((&call.args[1], &call.args[4][36..72])),
        "unlock" => Some((&call.args[1], &call.args[3])),
        _ => None,
    }
}

/// A hold that has not ended goes by its owner's word, or when somebody breaks the lock.
fn holds_last(call: &Call, before: &State, after: &State) -> Verdict {
    let asked = |name: &[u8], owner: &[u8]| asked_for(call) == Some((name, owner));
    for (field, value) in &before.locks {
        let (Some(name), hold, is) = (lock_of(field), read(value), after.locks.get(field)) else { continue };
        if hold.ends <= call.now || is == Some(value) {
            continue;
        }
        let longer = is.is_some_and(|is| read(is).rest == hold.rest);
        let allowed = match call.script.as_str() {
            "lock" => longer && asked(name.as_bytes(), hold.owner),
            "extend_locks" => {
                longer && call.args[1..].chunks(4).any(|ask| ask[0] == name.as_bytes() && ask[1] == hold.owner)
            }
            "unlock" => is.is_none() && call.args[4].is_empty() && asked(name.as_bytes(), hold.owner),
            "break_lock" => is.is_none() && call.args[1] == name.as_bytes(),
            _ => false,
        };
        if !allowed {
            return Err(format!("{} was changed: {} to {:?}", shown(field), shown(value), is.map(|is| shown(is))));
        }
    }
    Ok(())
}

/// A place goes with its node, or by its owner's word.
fn places_last(call: &Call, before: &State, after: &State) -> Verdict {
    for place in before.line.keys().filter(|place| !after.line.contains_key(*place)) {
        let Some((owner, node, name)) = read_place(place) else { continue };
        let own = asked_for(call) == Some((name, owner));
        let departs = call.script == "depart" && call.node.as_bytes() == node;
        if !own && !departs && is_alive(before, node, call.now) {
            return Err(format!("the place {} was taken from one that lives", shown(place)));
        }
    }
    Ok(())
}

fn connections_last(call: &Call, before: &State, after: &State) -> Verdict {
    let (node, told) = (call.node.as_bytes(), call.script == "set_connections");
    for (name, holder) in
        before.connections.iter().filter(|(name, holder)| after.connections.get(*name) != Some(*holder))
    {
        let own = (told || call.script == "depart") && holder == node && !after.connections.contains_key(name);
        // One that is told of again is taken only from the dead.
        let moved = told && after.connections.get(name).is_some_and(|is| is == node);
        if !own && !moved && is_alive(before, holder, call.now) {
            return Err(format!("the connection {} was taken from {}", shown(name), shown(holder)));
        }
    }
    Ok(())
}

/// A slot goes to who comes first, under a new fence, and never one too many.
fn taken_in_turn(call: &Call, before: &State, after: &State) -> Verdict {
    let Some((name, owner)) = asked_for(call) else {
        return Ok(());
    };
    let (text, node) = (String::from_utf8_lossy(name), &call.args[4][..36]);
    let mut taken = running(after, &text, call.now).filter(|hold| hold.owner == owner);
    let had = running(before, &text, call.now).any(|hold| hold.owner == owner);
    let (Some(taken), false) = (taken.next(), had) else {
        return Ok(());
    };
    let last = number(before.locks.get(&b""[..]).map(|text| &text[..]));
    if taken.fence <= last {
        return Err(format!("{text} was taken under a fence that is not new: {} after {last}", taken.fence));
    }
    let slots = number(Some(&call.args[2]));
    let speaker = |other: &[u8]| !call.args[5].is_empty() && other == node;
    let line = before.line.keys().filter_map(|place| read_place(place)).filter(|(.., of)| *of == name);
    let ahead = line.take_while(|(other, ..)| *other != owner);
    let ahead = ahead.filter(|(_, other, _)| speaker(other) || is_alive(before, other, call.now)).count() as i64;
    let held = running(before, &text, call.now).count() as i64;
    if held + ahead >= slots {
        return Err(format!("{text} was taken although others came first: {held} hold it, {ahead} stand ahead"));
    }
    Ok(())
}
