//! What must hold of a queue before and after every script, and what a script may not do between.

use std::collections::{BTreeMap, BTreeSet};

use super::call::Call;
use super::crons;
use super::peers_check;
use super::pushes::HEARD;
use super::random_state::HISTORY;
use super::record_text::{self, shown};
use super::state::{Place, State};
use super::transfers;

/// Says what is wrong, if anything is.
pub type Verdict = Result<(), String>;

/// Something that holds of a state, or does not.
pub type Invariant = fn(&State) -> Verdict;

/// What holds of every sound state, by name.
pub const INVARIANTS: &[(&str, Invariant)] = &[
    ("what waits, runs or is kept has a record", has_a_record),
    ("a job is in one place", in_one_place),
    ("holds are counted", holds_are_counted),
    ("who holds something has a lease", holders_have_leases),
    ("a held value has the flag of its job, and no fence from the future", held_values_fit),
    ("stale tickets are in a ready list, and known to be there", stale_tickets_are_there),
    ("a ticket is that of its job", tickets_fit),
    ("only jobs in trouble have a history", histories_fit),
    ("a unique key names an unfinished job, and it alone", keys_fit),
    ("what is gone is not there", gone_is_gone),
    ("claims are told of the first tick", crons::ticks_are_told),
    ("what is to be looked at is a rule", crons::ticks_are_of_rules),
    ("groups are counted", groups_are_counted),
    ("what waits or is dead is found by its words", words_are_found),
    ("what was said was said by a job", notes_fit),
    ("a place in a line is somebody's", peers_check::places_are_in_line),
    ("a lock with a line is marked", peers_check::lines_are_marked),
    ("no lock has a fence from the future", peers_check::fences_of_locks_are_past),
    ("a guest has a lease", peers_check::guests_are_present),
];

pub fn none<T>(bad: impl IntoIterator<Item = T>, say: impl Fn(T) -> String) -> Verdict {
    bad.into_iter().next().map_or(Ok(()), |bad| Err(say(bad)))
}

fn has_a_record(state: &State) -> Verdict {
    none(state.places().into_iter().filter(|(id, _)| !state.job.contains_key(id)), |(id, at)| {
        format!("{} in {at:?}", shown(&id))
    })
}

fn in_one_place(state: &State) -> Verdict {
    let places = state.places();
    let alone = |id: &&Vec<u8>| places.get(*id).is_some_and(|places| places.len() == 1);
    none(state.job.keys().filter(|id| !alone(id)), |id| format!("{} is in {:?}", shown(id), places.get(id)))
}

fn holds_are_counted(state: &State) -> Verdict {
    let nodes = state.conf.iter().filter(|(name, _)| name.len() == 36);
    let counts = nodes.map(|(node, count)| (shown(node), String::from_utf8_lossy(count).parse().unwrap_or(-1_000_000)));
    let mut left: BTreeMap<String, i64> = counts.collect();
    for value in state.held.values() {
        *left.entry(record_text::read_held(value).0).or_default() -= 1;
    }
    none(left.into_iter().filter(|(_, left)| *left != 0), |(node, left)| format!("{left} too many for {node}"))
}

fn holders_have_leases(state: &State) -> Verdict {
    let holders = state.held.values().map(|value| record_text::read_held(value).0);
    none(holders.filter(|node| !state.lease.contains_key(node.as_bytes())), |node| node)
}

/// The newest fence.
fn fence(state: &State) -> i64 {
    state.conf.get(&b"fence"[..]).map_or(0, |text| String::from_utf8_lossy(text).parse().unwrap_or(0))
}

fn held_values_fit(state: &State) -> Verdict {
    let last = fence(state);
    let fits = |(id, value): &(&Vec<u8>, &Vec<u8>)| {
        let (_, fence, flag) = record_text::read_held(value);
        let expected =
            state.job.get(*id).map(|r| record_text::flag(record_text::priority_of(r), state.meta.contains_key(*id)));
        fence <= last && expected == Some(flag)
    };
    none(state.held.iter().filter(|entry| !fits(entry)), |(id, value)| {
        format!("{}: {}, last {last}", shown(id), shown(value))
    })
}

fn stale_tickets_are_there(state: &State) -> Verdict {
    let times = |ticket: &Vec<u8>| state.ready.iter().flatten().filter(|other| *other == ticket).count();
    none(state.stale.iter().filter(|ticket| times(ticket) == 0), |ticket| format!("{} is in none", shown(ticket)))?;
    let told = state.stale.is_empty() || state.conf.contains_key(&b"stale"[..]);
    if told { Ok(()) } else { Err("conf does not say that there are any".into()) }
}

fn tickets_fit(state: &State) -> Verdict {
    let turn = |id: &[u8]| state.meta_of(id).map(|meta| meta.turn);
    let priority = |id: &[u8]| state.job.get(id).map(|record| record_text::priority_of(record));
    for (lane, ticket) in state.live() {
        let (id, lane) = (record_text::id_of(ticket), lane as u8);
        if priority(id) != Some(lane) || *ticket != record_text::ready_ticket(id, lane, turn(id)) {
            return Err(format!("{} in list {lane}, turn {:?}", shown(ticket), turn(id)));
        }
    }
    let fits = |ticket: &Vec<u8>| {
        let id = record_text::id_of(ticket);
        state.job.get(id).is_some_and(|record| *ticket == record_text::due_ticket(id, record, turn(id)))
    };
    none(state.due.keys().filter(|ticket| !fits(ticket)), |ticket| format!("{} in the schedule", shown(ticket)))
}

/// Of each group as many dead jobs as it counts.
fn groups_are_counted(state: &State) -> Verdict {
    let mut left: BTreeMap<Vec<u8>, i64> = BTreeMap::new();
    for (group, text) in &state.groups {
        let count = String::from_utf8_lossy(text.get(..10).unwrap_or_default()).parse().unwrap_or(-1_000_000);
        left.insert(group.clone(), count);
    }
    let metas = state.dead.keys().filter_map(|id| state.meta.get(id));
    for group in metas.filter_map(|meta| meta.get(72..88)).filter(|group| !group.is_empty()) {
        *left.entry(group.to_vec()).or_default() -= 1;
    }
    none(left.into_iter().filter(|(_, left)| *left != 0), |(group, left)| {
        format!("{left} too many of {}", shown(&group))
    })
}

/// Scheduled jobs at the moment at which they are due, dead ones at that at which they died; and nothing else.
fn words_are_found(state: &State) -> Verdict {
    let mut members = BTreeSet::new();
    for (ticket, due) in &state.due {
        let (id, words) = (
            record_text::id_of(ticket),
            state.job.get(record_text::id_of(ticket)).map(|record| record_text::words_of(record)),
        );
        members.extend(record_text::members('s', &words.unwrap_or_default(), &format!("{due:016}"), id));
    }
    for id in state.dead.keys() {
        let (Some(meta), Some(record)) = (state.meta.get(id), state.job.get(id)) else {
            return Err(format!("{} is dead, and has no meta", shown(id)));
        };
        let text = |from: usize, to: usize| String::from_utf8_lossy(&meta[from..to]).into_owned();
        let (died, group, words) = (text(16, 32), text(72, 88), record_text::words_of(record));
        if text(88, meta.len()) != words {
            return Err(format!("{} has noted {}, and is {words}", shown(id), shown(&meta[88..])));
        }
        members.extend(record_text::members('b', &words, &died, id));
        members.extend(
            [String::new(), format!("g{group}")].map(|word| [format!("b{word}\0{died}").as_bytes(), id].concat()),
        );
    }
    none(members.iter().filter(|member| !state.find.contains_key(*member)), |member| {
        format!("{} is not there", shown(member))
    })?;
    none(state.find.keys().filter(|member| !members.contains(*member)), |member| format!("{} is there", shown(member)))
}

fn notes_fit(state: &State) -> Verdict {
    let of_no_job = state.notes.keys().filter(|field| !state.job.contains_key(record_text::id_of(field)));
    none(of_no_job, |field| format!("notes of no job: {}", shown(field)))
}

fn histories_fit(state: &State) -> Verdict {
    let whole = |id: &Vec<u8>| state.job.contains_key(id) && state.meta_of(id).is_some();
    none(state.meta.keys().filter(|id| !whole(id)), |id| format!("a meta of no job, or none: {}", shown(id)))?;
    let fits = |field: &Vec<u8>| {
        let n: u32 = String::from_utf8_lossy(&field[16..]).parse().unwrap_or(0);
        state.meta_of(&field[..16]).is_some_and(|meta| n <= meta.failures && n + HISTORY > meta.failures)
    };
    none(state.errors.keys().filter(|field| !fits(field)), |field| format!("a failure of no job: {}", shown(field)))
}

fn keys_fit(state: &State) -> Verdict {
    let places = state.places();
    let unfinished = |id: &Vec<u8>| places.get(id).is_some_and(|at| at.iter().all(Place::is_unfinished));
    let key = |id: &Vec<u8>| state.job.get(id).map(|record| record_text::key_of(record)).unwrap_or_default();
    let fits = |(name, id): &(&Vec<u8>, &Vec<u8>)| unfinished(id) && key(id).as_bytes() == &name[..];
    none(state.unique.iter().filter(|entry| !fits(entry)), |(name, id)| {
        format!("{} names {}", shown(name), shown(id))
    })?;
    let keyed = state.job.keys().filter(|id| unfinished(id) && !key(id).is_empty());
    let named = |id: &&Vec<u8>| state.unique.get(key(id).as_bytes()) == Some(*id);
    none(keyed.filter(|id| !named(id)), |id| format!("{} does not name {}", key(id), shown(id)))
}

fn gone_is_gone(state: &State) -> Verdict {
    none(state.gone.iter().flatten().filter(|id| state.job.contains_key(*id)), |id| shown(id))
}

/// What no script may do, whatever state it finds.
pub fn step(call: &Call, before: &State, after: &State) -> Verdict {
    let remembered = |id: &Vec<u8>| after.gone.iter().any(|half| half.contains(id));
    let went = before.job.keys().filter(|id| !after.job.contains_key(*id) && call.script != "move_out");
    none(went.filter(|id| !remembered(id)), |id| format!("{} went and is not remembered", shown(id)))?;
    moves_are_respected(call, before, after)?;
    keys_are_freed_by_their_own(before, after)?;
    peers_check::step(call, before, after)?;
    crons::step(call, before, after)?;
    holds_are_respected(call, before, after)
}

/// What no script may do with a sound state.
pub fn sound_step(call: &Call, before: &State, after: &State) -> Verdict {
    peers_check::sound_step(call, before, after)?;
    let robbed = before.held.iter().filter(|(id, value)| call.script == "claim" && after.held.get(*id) != Some(*value));
    none(robbed, |(id, _)| format!("{} was claimed while it was held", shown(id)))?;
    let (places, claimed) = (before.places(), after.held.keys().filter(|id| !before.held.contains_key(*id)));
    // What others have put off until that very moment goes to a node that knows it.
    let picked = |id: &Vec<u8>, due: i64| {
        let (record, turn) = (&before.job[id], before.meta_of(id).map(|meta| meta.turn));
        let hint = record_text::put_off(
            "kind",
            record_text::priority_of(record),
            &record_text::due_ticket(id, record, turn),
            due,
        );
        before.put_off.contains_key(&hint) && call.args[7..].iter().any(|kind| kind == b"kind" || kind.is_empty())
    };
    let early = |id: &&Vec<u8>| {
        let due = places.get(*id).and_then(|at| if let [Place::Due(due)] = at[..] { Some(due) } else { None });
        due.is_some_and(|due| due > call.now && !(call.script == "claim" && picked(id, due)))
    };
    none(claimed.clone().filter(early), |id| format!("{} was claimed before it was due", shown(id)))?;
    let old = |id: &&Vec<u8>| record_text::read_held(&after.held[*id]).1 <= fence(before);
    none(claimed.clone().filter(old), |id| format!("{} was claimed under a fence that is not new", shown(id)))?;
    if call.script == "hand" { hand_is_fair(call, before, after) } else { Ok(()) }
}

/// A job goes into the hands only of a node that waits, lives and knows its kind, and past no other.
fn hand_is_fair(call: &Call, before: &State, after: &State) -> Verdict {
    let Some((_, value)) = after.held.iter().find(|(id, _)| !before.held.contains_key(*id)) else {
        return Ok(());
    };
    let node = record_text::read_held(value).0.into_bytes();
    let waits = before.ready.iter().any(|list| !list.is_empty()) || before.due.values().any(|due| *due <= call.now);
    let lives = before.lease.get(&node).is_some_and(|ends| *ends > call.now);
    let unfair = [
        ("a queue in which others wait", waits),
        ("a paused queue", before.conf.contains_key(&b"paused"[..])),
        ("a node without a lease", !lives),
        ("a node that does not wait", !before.idle.contains_key(&node)),
        ("a node that does not know its kind", call.args.last().is_none_or(|kind| kind != HEARD.as_bytes())),
        ("a node that goes on waiting", after.idle.contains_key(&node)),
    ];
    none(unfair.iter().filter(|(_, is)| *is), |(what, _)| format!("given to {what}"))
}

fn keys_are_freed_by_their_own(before: &State, after: &State) -> Verdict {
    let places = after.places();
    // One that was not there has no key to lose, although somebody may have left its name behind.
    let stays = |id: &Vec<u8>| before.job.contains_key(id) && after.job.contains_key(id);
    let waits = |id: &Vec<u8>| stays(id) && places.get(id).is_some_and(|at| at.iter().all(Place::is_unfinished));
    let freed = before.unique.iter().filter(|(name, id)| after.unique.get(*name) != Some(*id));
    none(freed.filter(|(_, id)| waits(id)), |(name, id)| {
        format!("{} was taken from {}, which has not ended", shown(name), shown(id))
    })
}

/// What is moving keeps still, but for its mover; what arrives, arrives behind the note that its mover knows.
fn moves_are_respected(call: &Call, before: &State, after: &State) -> Verdict {
    let mark = before.conf.get(&b"moving"[..]);
    let (held, changed) = (after.held != before.held, after.job != before.job || after.meta != before.meta);
    let by = |script: &str| call.script == script;
    if mark.is_some() && (((by("claim") || by("hand")) && held) || ((by("remove") || by("reschedule")) && changed)) {
        return Err("the queue is moving, and did not keep still".into());
    }
    if by("move_out") && changed && mark.is_none_or(|mark| mark[..36] != *call.node.as_bytes()) {
        return Err("moved out, and not by its mover".into());
    }
    let here = transfers::note(before);
    if by("move_in") && after != before && here != call.args[3] && here != call.args[4] {
        return Err("moved in behind a note that is not here".into());
    }
    if !by("move_in") || after.job.len() == before.job.len() {
        return Ok(());
    }
    let known = |id: &Vec<u8>| before.gone.iter().any(|half| half.contains(id)) || after.job.contains_key(id);
    let left_out = transfers::ids(&call.args).into_iter().filter(|id| !known(id));
    none(left_out, |id| format!("{} did not move in with the others", shown(&id)))
}

/// A hold ends by its node's own word, or when its lease is over.
fn holds_are_respected(call: &Call, before: &State, after: &State) -> Verdict {
    // Only what is in two places can be claimed while it is held: `sound_step` judges that.
    if call.script == "claim" {
        return Ok(());
    }
    for (id, value) in before.held.iter().filter(|(id, value)| after.held.get(*id) != Some(*value)) {
        let node = record_text::read_held(value).0;
        let own = call.script.starts_with("settle") && call.node == node && call.names(id, value);
        let over = call.script == "take_back" && before.lease.get(node.as_bytes()).is_none_or(|at| *at < call.now);
        if !own && !over {
            return Err(format!("{} was taken from {node}", shown(id)));
        }
    }
    Ok(())
}
