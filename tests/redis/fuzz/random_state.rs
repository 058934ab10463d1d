//! Random states: sound ones, as a store leaves them, and flawed ones.

use fastrand::Rng;

use super::crons;
use super::peers;
use super::record_text::{self, Bytes, Meta};
use super::state::{Scores, State};

/// The start time of every round.
pub const NOW: i64 = 1_893_456_000_000_000;
pub const SECOND: i64 = 1_000_000;
pub const LEASE: i64 = 3 * SECOND;
pub const HISTORY: u32 = 50;
/// Jobs in most states, and in the few with more than a script handles in one call.
const JOBS_MAX: usize = 12;
pub const CROWD: usize = 1_300;
const CROWD_ONE_IN: usize = 150;
/// The position of running jobs; smaller numbers are waiting jobs.
const RUNNING: u8 = 2;

/// The surroundings of a queue.
pub struct World {
    pub nodes: Vec<String>,
    pub keys: Vec<String>,
    /// Owners of locks.
    pub owners: Vec<String>,
}

pub fn world(rng: &mut Rng) -> World {
    let nodes = (0..rng.usize(1..5)).map(|_| node(rng)).collect();
    let owners = (0..8).map(|_| node(rng)).collect();
    World { nodes, owners, keys: (0..6).map(|n| format!("key {n}")).collect() }
}

pub fn node(rng: &mut Rng) -> String {
    let hex = format!("{:032x}", rng.u128(..));
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// Returns random bytes, including some with a meaning in Lua or in a ticket.
pub fn id(rng: &mut Rng) -> Bytes {
    (0..16).map(|_| if rng.u8(..4) == 0 { *b"%0a\0".get(rng.usize(..4)).expect("four") } else { rng.u8(..) }).collect()
}

/// Returns a time around now, within two leases.
pub fn moment(rng: &mut Rng, now: i64) -> i64 {
    match rng.u8(..8) {
        0 => now,
        1 => now + 1,
        2 => now - 1,
        _ => now + rng.i64(-2 * LEASE..2 * LEASE),
    }
}

/// Returns a sound state; if `calm`, no job waits.
pub fn sound(rng: &mut Rng, world: &World, calm: bool) -> State {
    let mut state = State::default();
    let set = |state: &mut State, name: &str, value: i64| {
        state.conf.insert(name.into(), value.to_string().into());
    };
    let fence = NOW - rng.i64(0..4 * SECOND);
    set(&mut state, "fence", fence);
    if rng.u8(..6) == 0 {
        set(&mut state, "paused", 1);
    }
    if rng.bool() {
        set(&mut state, "removed_half", rng.i64(1..3));
        set(&mut state, "removed_since", NOW - rng.i64(0..3 * LEASE));
    }
    for half in &mut state.gone {
        half.extend((0..rng.usize(..3)).map(|_| id(rng)));
    }
    add_nodes(rng, &mut state, world);
    // A crowd has mostly equal jobs: only its size matters.
    let crowd = (rng.usize(..CROWD_ONE_IN) == 0).then(|| rng.u8(..6));
    let jobs = if crowd.is_some() { CROWD } else { rng.usize(..JOBS_MAX) };
    for _ in 0..jobs {
        let position = crowd.filter(|_| rng.u8(..20) > 0).unwrap_or_else(|| rng.u8(..6));
        let position = if calm { position.max(RUNNING) } else { position };
        job(rng, &mut state, world, position, fence);
    }
    if calm {
        // Only tickets of jobs in other positions are left in the lists.
        state.ready.iter_mut().for_each(Vec::clear);
        state.stale.clear();
        state.conf.remove(&b"has_stale"[..]);
    }
    for node in &world.nodes {
        let holds = state.held.values().filter(|value| record_text::read_held(value).0 == *node).count();
        if holds > 0 || rng.bool() {
            set(&mut state, node, holds as i64);
        }
    }
    group(&mut state);
    if !state.deferred.is_empty() {
        set(&mut state, "deferred_mark", rng.i64(1..9));
    }
    for id in state.job.keys().filter(|_| rng.u8(..4) == 0).cloned().collect::<Vec<_>>() {
        state.progress.insert([&id[..], b"n"].concat(), "1".into());
        state.progress.insert([&id[..], b"l1"].concat(), "line".into());
    }
    peers::sound(rng, &mut state, world);
    crons::sound(rng, &mut state);
    state
}

fn add_to_index(index: &mut Scores, members: impl IntoIterator<Item = Bytes>) {
    index.extend(members.into_iter().map(|member| (member, 0)));
}

/// All dead jobs belong to one group.
fn group(state: &mut State) {
    const GROUP: &str = "00000000000000aa";
    let mut count = 0;
    for id in state.dead.keys() {
        if let Some(meta) = state.meta.get_mut(id) {
            let (died, terms) =
                (String::from_utf8_lossy(&meta[16..32]).into_owned(), record_text::index_terms(&state.job[id]));
            meta.extend([GROUP, &terms].concat().as_bytes());
            add_to_index(&mut state.job_index, record_text::members('b', &terms, &died, id));
            let group_members =
                ["b".to_owned(), format!("bg{GROUP}")].map(|term| [format!("{term}\0{died}").as_bytes(), id].concat());
            add_to_index(&mut state.job_index, group_members);
            count += 1;
        }
    }
    if count > 0 {
        state.groups.insert(GROUP.into(), format!("{count:010}{NOW:016}{NOW:016}kind\toh").into());
    }
}

/// Marks the queue as under transfer to another store.
pub fn mark(state: &mut State, world: &World) {
    let (holder, started_by) = (&world.nodes[0], &world.nodes[world.nodes.len() - 1]);
    state.conf.insert("transfer_mark".into(), format!("{holder}{started_by}elsewhere").into());
}

/// Adds nodes with active, expired or released leases.
fn add_nodes(rng: &mut Rng, state: &mut State, world: &World) {
    for node in &world.nodes {
        let name = Bytes::from(node.as_str());
        let ends = if rng.u8(..5) == 0 { 0 } else { moment(rng, NOW) };
        state.lease.insert(name.clone(), ends);
        // A time that is still to come was recorded while the clock was ahead.
        state.since.insert(name.clone(), NOW - rng.i64(-LEASE..3 * LEASE));
        let info = if rng.u8(..4) == 0 { String::new() } else { "{}".to_owned() };
        state.nodes.insert(name.clone(), format!("{NOW:016}{LEASE:016}{info}").into());
        if rng.bool() {
            state.idle.insert(name, moment(rng, NOW));
        }
    }
}

fn job(rng: &mut Rng, state: &mut State, world: &World, position: u8, fence: i64) {
    let (id, priority) = (id(rng), rng.u8(..4));
    let key = world.keys[rng.usize(..world.keys.len())].clone();
    let key = if rng.u8(..3) == 0 { key } else { String::new() };
    let has_died = position >= 4;
    let meta = (has_died || rng.u8(..3) == 0).then(|| random_meta(rng));
    let finished = position >= 3;
    if !key.is_empty() && !finished && state.unique.contains_key(key.as_bytes()) {
        // There cannot be another unfinished job with this key.
        return;
    }
    if !key.is_empty() && !finished {
        state.unique.insert(key.clone().into(), id.clone());
    }
    state.job.insert(id.clone(), record_text::record(priority, &key, "{}"));
    if let Some(meta) = &meta {
        state.meta.insert(id.clone(), meta.text());
        let oldest = (meta.runs + 1).saturating_sub(HISTORY).max(1);
        for n in oldest..=meta.runs {
            state.runs.insert([&id[..], n.to_string().as_bytes()].concat(), format!("{NOW:016}").into());
        }
    }
    let turn = meta.map(|meta| meta.turn);
    match position {
        0 => insert(rng, &mut state.ready[usize::from(priority)], record_text::ready_ticket(&id, priority, turn)),
        1 => {
            let (due, record) = (moment(rng, NOW), &state.job[&id]);
            let ticket = record_text::due_ticket(&id, record, turn);
            add_to_index(
                &mut state.job_index,
                record_text::members('s', &record_text::index_terms(record), &format!("{due:016}"), &id),
            );
            if rng.u8(..3) == 0 {
                // Deferred until its due time, or until another time before.
                let until = if rng.bool() { due } else { moment(rng, NOW) };
                state.deferred.insert(record_text::deferred_hint("kind", priority, &ticket, until), 0);
            }
            state.due.insert(ticket, due);
        }
        RUNNING => {
            let node = &world.nodes[rng.usize(..world.nodes.len())];
            let flag = record_text::flag(priority, meta.is_some());
            let value = record_text::held_value(node, fence - rng.i64(0..SECOND), flag);
            let mark = if rng.u8(..4) == 0 { format!("{LEASE:016}") } else { String::new() };
            match rng.u8(..4) {
                _ if mark.is_empty() => {}
                0 => drop(state.conf.insert(format!("cancel_scan:{node}").into(), "0".into())),
                1 => {}
                _ => drop(state.conf.insert(format!("cancelled:{node}").into(), id.clone())),
            }
            state.held.insert(id.clone(), [value.as_ref(), mark.as_bytes()].concat());
        }
        3 => {
            state.done.insert(id.clone(), moment(rng, NOW));
            if rng.bool() {
                state.runs.insert(id.clone(), record_text::ack(&world.nodes[0]).into());
            }
        }
        5 => drop(state.cancelled.insert(id.clone(), moment(rng, NOW))),
        _ => drop(state.dead.insert(id.clone(), moment(rng, NOW))),
    }
    if rng.u8(..6) == 0 {
        add_stale_ticket(rng, state, &id, priority, turn);
    }
}

fn random_meta(rng: &mut Rng) -> Meta {
    let runs = if rng.u8(..6) == 0 { rng.u32(45..60) } else { rng.u32(..4) };
    let attempts = runs.min(rng.u32(..4));
    Meta { due: moment(rng, NOW), changed: NOW - 1, attempts, crashes: rng.u32(..3), runs, turn: rng.u32(..12) }
}

/// Adds an old ticket: of a job that has moved or is removed, or equal to the current one, from an earlier job with
/// the same id.
fn add_stale_ticket(rng: &mut Rng, state: &mut State, id: &[u8], priority: u8, turn: Option<u32>) {
    let old = match turn {
        Some(0) | None => {
            let (gone, forgotten) = (self::id(rng), rng.bool());
            if !forgotten {
                state.gone[rng.usize(..2)].insert(gone.clone());
            }
            record_text::ready_ticket(&gone, priority, rng.bool().then_some(if forgotten { 1 } else { 3 }))
        }
        Some(turn) if rng.u8(..3) == 0 => record_text::ready_ticket(id, priority, Some(turn)),
        Some(turn) => record_text::ready_ticket(id, priority, (turn > 1).then(|| turn - 1)),
    };
    insert(rng, &mut state.ready[usize::from(priority)], old.clone());
    state.stale.insert(old);
    state.conf.insert("has_stale".into(), "1".into());
}

fn insert(rng: &mut Rng, list: &mut Vec<Bytes>, ticket: Bytes) {
    list.insert(rng.usize(..=list.len()), ticket);
}

/// Damages the state. Scripts must tolerate it: keys may be deleted, or a server may lose its latest writes.
pub fn flaw(rng: &mut Rng, state: &mut State, world: &World) {
    let node = Bytes::from(world.nodes[rng.usize(..world.nodes.len())].as_str());
    let id = rng.choice(state.job.keys()).cloned().unwrap_or_else(|| id(rng));
    match rng.u8(..8) {
        0 | 1 => remove_something(rng, state, &id, &node),
        2 | 3 => make_inconsistent(rng, state, id, node),
        4 | 5 => peers::flaw(rng, state, world),
        6 => crons::flaw(rng, state),
        _ => damage(rng, state, id, node),
    }
}

/// Removes one thing, or all of its kind.
fn remove_something(rng: &mut Rng, state: &mut State, id: &[u8], node: &[u8]) {
    let field = ["fence", "removed_half", "removed_since", "has_stale"][rng.usize(..4)];
    match rng.u8(..11) {
        10 => state.job_index.clear(),
        0 => state.job.clear(),
        1 => state.meta.clear(),
        2 => state.lease.clear(),
        3 => state.conf.clear(),
        4 => state.runs.clear(),
        5 => drop(state.meta.remove(id)),
        6 => drop(state.lease.remove(node)),
        7 => drop(state.since.remove(node)),
        8 => drop(state.conf.remove(field.as_bytes())),
        _ => drop(state.job.remove(id)),
    }
}

/// Moves something, or makes it inconsistent.
fn make_inconsistent(rng: &mut Rng, state: &mut State, id: Bytes, node: Bytes) {
    // The most harmful flaw is a unique key that names another job than the one that completes.
    let held_key = state.unique.iter().find(|(_, id)| state.held.contains_key(*id)).map(|(key, _)| key.clone());
    match rng.u8(..9) {
        0 => drop(state.meta.insert(id, random_meta(rng).text())),
        1 => drop(state.unique.insert(held_key.unwrap_or_else(|| "key 1".into()), id)),
        2 => drop(state.unique.insert("key 2".into(), self::id(rng))),
        3 => insert(rng, &mut state.ready[2], id),
        4 => drop(state.dead.insert(id, moment(rng, NOW))),
        5 => drop(state.gone[rng.usize(..2)].insert(id)),
        6 => drop(state.stale.insert(id)),
        7 => drop(state.conf.insert("removed_since".into(), (NOW + LEASE).to_string().into())),
        _ => drop(state.conf.insert(node, rng.i64(-2..5).to_string().into())),
    }
}

/// Damages a text.
fn damage(rng: &mut Rng, state: &mut State, id: Bytes, node: Bytes) {
    let digits = |counts: &[u8]| [&[b'0'; 32][..], &counts.repeat(4)].concat();
    match rng.u8(..7) {
        6 => {
            let field = format!("{}.{}", NOW / 60_000_000, ["00", "01", "06", "40"][rng.usize(..4)]);
            let text = [&b""[..], b"x", b"-7", b"1.5", b"inf", b"1e300", b"9223372036854775807"][rng.usize(..7)];
            state.history.insert(field.into(), text.to_vec());
        }
        5 => {
            let hint = [&b""[..], b"kind", b"kind\0", b"kind\x009", b"kind\x002x", b"\0"][rng.usize(..6)];
            state.deferred.insert([hint, &id].concat(), 0);
        }
        0 => {
            let (endless, largest) = (digits(b"1e99999999"), digits(b"2147483647"));
            let text = [&b""[..], b"00", b"x", &[b'x'; 72], &[b'9'; 72], &endless, &largest][rng.usize(..7)];
            state.meta.insert(id, text.to_vec());
        }
        1 => {
            let text = [&b""[..], b"2", b"29", b"xx"][rng.usize(..4)];
            state.job.insert(id, text.to_vec());
        }
        2 => {
            let flag = [&b""[..], b"9", b"z1", b"e", b"\xff", b" "][rng.usize(..6)];
            state.due.insert([&id[..], flag].concat(), moment(rng, NOW));
        }
        3 => {
            let whole = record_text::held_value(&String::from_utf8_lossy(&node), NOW, b'2');
            let end = [0, 36, 40, 53, 64][rng.usize(..5)];
            let flag = [&b""[..], b"z", b"\xff"][rng.usize(..3)];
            state.held.insert(id, [&whole[..end], flag].concat());
        }
        _ => {
            let field =
                [&node[..], &node[..], b"removed_half", b"removed_since", b"fence", b"has_stale"][rng.usize(..6)];
            let text = [&b""[..], b"x", b"7", b"1.5", b"inf", b"nan", b"1e300", b"-"][rng.usize(..8)];
            state.conf.insert(field.to_vec(), text.to_vec());
        }
    }
}
