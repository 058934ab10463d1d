//! Random states: sound ones, as a store leaves them, and flawed ones, as nobody should.

use fastrand::Rng;

use super::crons;
use super::peers;
use super::record_text::{self, Bytes, Meta};
use super::state::{Scores, State};

/// The moment at which all begins.
pub const NOW: i64 = 1_893_456_000_000_000;
pub const SECOND: i64 = 1_000_000;
pub const LEASE: i64 = 3 * SECOND;
pub const HISTORY: u32 = 50;
/// Jobs in most states, and in the few that have more than a script does in one step.
const JOBS_MAX: usize = 12;
pub const CROWD: usize = 1_300;
const CROWD_ONE_IN: usize = 150;
/// The place of jobs that run; those before it wait.
const RUNNING: u8 = 2;

/// What the world around a queue consists of.
pub struct World {
    pub nodes: Vec<String>,
    pub keys: Vec<String>,
    /// Who asks for locks.
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

/// Any bytes: also those that mean something to Lua or in a ticket.
pub fn id(rng: &mut Rng) -> Bytes {
    (0..16).map(|_| if rng.u8(..4) == 0 { *b"%0a\0".get(rng.usize(..4)).expect("four") } else { rng.u8(..) }).collect()
}

/// A moment that is past, present or to come, by up to two leases.
pub fn moment(rng: &mut Rng, now: i64) -> i64 {
    match rng.u8(..8) {
        0 => now,
        1 => now + 1,
        2 => now - 1,
        _ => now + rng.i64(-2 * LEASE..2 * LEASE),
    }
}

/// A state in which everything is as it should be; where it is calm no job waits.
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
        set(&mut state, "half", rng.i64(1..3));
        set(&mut state, "since", NOW - rng.i64(0..3 * LEASE));
    }
    for half in &mut state.gone {
        half.extend((0..rng.usize(..3)).map(|_| id(rng)));
    }
    join(rng, &mut state, world);
    // A crowd is alike in most things: it is there for its number.
    let crowd = (rng.usize(..CROWD_ONE_IN) == 0).then(|| rng.u8(..5));
    let jobs = if crowd.is_some() { CROWD } else { rng.usize(..JOBS_MAX) };
    for _ in 0..jobs {
        let place = crowd.filter(|_| rng.u8(..20) > 0).unwrap_or_else(|| rng.u8(..5));
        let place = if calm { place.max(RUNNING) } else { place };
        job(rng, &mut state, world, place, fence);
    }
    if calm {
        // Nothing is left in the lists but tickets of jobs that have gone elsewhere.
        state.ready.iter_mut().for_each(Vec::clear);
        state.stale.clear();
        state.conf.remove(&b"stale"[..]);
    }
    for node in &world.nodes {
        let holds = state.held.values().filter(|value| record_text::read_held(value).0 == *node).count();
        if holds > 0 || rng.bool() {
            set(&mut state, node, holds as i64);
        }
    }
    group(&mut state);
    if !state.put_off.is_empty() {
        set(&mut state, "put_offs", rng.i64(1..9));
    }
    for id in state.job.keys().filter(|_| rng.u8(..4) == 0).cloned().collect::<Vec<_>>() {
        state.notes.insert([&id[..], b"n"].concat(), "1".into());
        state.notes.insert([&id[..], b"l1"].concat(), "said".into());
    }
    peers::sound(rng, &mut state, world);
    crons::sound(rng, &mut state);
    state
}

fn put_words(find: &mut Scores, members: impl IntoIterator<Item = Bytes>) {
    find.extend(members.into_iter().map(|member| (member, 0)));
}

/// All dead jobs have died of the same.
fn group(state: &mut State) {
    const GROUP: &str = "00000000000000aa";
    let mut count = 0;
    for id in state.dead.keys() {
        if let Some(meta) = state.meta.get_mut(id) {
            let (died, words) =
                (String::from_utf8_lossy(&meta[16..32]).into_owned(), record_text::words_of(&state.job[id]));
            meta.extend([GROUP, &words].concat().as_bytes());
            put_words(&mut state.find, record_text::members('b', &words, &died, id));
            let of_all =
                ["b".to_owned(), format!("bg{GROUP}")].map(|word| [format!("{word}\0{died}").as_bytes(), id].concat());
            put_words(&mut state.find, of_all);
            count += 1;
        }
    }
    if count > 0 {
        state.groups.insert(GROUP.into(), format!("{count:010}{NOW:016}{NOW:016}kind\toh").into());
    }
}

/// A queue that is moving to another store.
pub fn mark(state: &mut State, world: &World) {
    let (mover, began) = (&world.nodes[0], &world.nodes[world.nodes.len() - 1]);
    state.conf.insert("moving".into(), format!("{mover}{began}elsewhere").into());
}

/// Nodes whose lease runs, is over, or was given up.
fn join(rng: &mut Rng, state: &mut State, world: &World) {
    for node in &world.nodes {
        let name = Bytes::from(node.as_str());
        let ends = if rng.u8(..5) == 0 { 0 } else { moment(rng, NOW) };
        state.lease.insert(name.clone(), ends);
        state.since.insert(name.clone(), NOW - rng.i64(0..3 * LEASE));
        state.nodes.insert(name.clone(), format!("{NOW:016}{{}}").into());
        if rng.bool() {
            state.idle.insert(name, moment(rng, NOW));
        }
    }
}

fn job(rng: &mut Rng, state: &mut State, world: &World, place: u8, fence: i64) {
    let (id, priority) = (id(rng), rng.u8(..4));
    let key = world.keys[rng.usize(..world.keys.len())].clone();
    let key = if rng.u8(..3) == 0 { key } else { String::new() };
    let dead = place == 4;
    let meta = (dead || rng.u8(..3) == 0).then(|| trouble(rng));
    let finished = place >= 3;
    if !key.is_empty() && !finished && state.unique.contains_key(key.as_bytes()) {
        // Somebody has it: there cannot be another unfinished one.
        return;
    }
    if !key.is_empty() && !finished {
        state.unique.insert(key.clone().into(), id.clone());
    }
    state.job.insert(id.clone(), record_text::record(priority, &key, "{}"));
    if let Some(meta) = &meta {
        state.meta.insert(id.clone(), meta.text());
        let oldest = (meta.failures + 1).saturating_sub(HISTORY).max(1);
        for n in oldest..=meta.failures {
            state.errors.insert([&id[..], n.to_string().as_bytes()].concat(), format!("{NOW:016}").into());
        }
    }
    let turn = meta.map(|meta| meta.turn);
    match place {
        0 => insert(rng, &mut state.ready[usize::from(priority)], record_text::ready_ticket(&id, priority, turn)),
        1 => {
            let (due, record) = (moment(rng, NOW), &state.job[&id]);
            let ticket = record_text::due_ticket(&id, record, turn);
            put_words(
                &mut state.find,
                record_text::members('s', &record_text::words_of(record), &format!("{due:016}"), &id),
            );
            if rng.u8(..3) == 0 {
                // Put off until then, or until another moment once.
                let until = if rng.bool() { due } else { moment(rng, NOW) };
                state.put_off.insert(record_text::put_off("kind", priority, &ticket, until), 0);
            }
            state.due.insert(ticket, due);
        }
        RUNNING => {
            let node = &world.nodes[rng.usize(..world.nodes.len())];
            let flag = record_text::flag(priority, meta.is_some());
            state.held.insert(id.clone(), record_text::held_value(node, fence - rng.i64(0..SECOND), flag));
        }
        3 => drop(state.done.insert(id.clone(), moment(rng, NOW))),
        _ => drop(state.dead.insert(id.clone(), moment(rng, NOW))),
    }
    if rng.u8(..6) == 0 {
        leave_a_ticket(rng, state, &id, priority, turn);
    }
}

fn trouble(rng: &mut Rng) -> Meta {
    let failures = if rng.u8(..6) == 0 { rng.u32(45..60) } else { rng.u32(..4) };
    let attempts = failures.min(rng.u32(..4));
    Meta { due: moment(rng, NOW), moved: NOW - 1, attempts, crashes: rng.u32(..3), failures, turn: rng.u32(..12) }
}

/// A ticket of a job that has gone elsewhere since, or is no more; or one of the same name as the present one, of an earlier
/// life of its id.
fn leave_a_ticket(rng: &mut Rng, state: &mut State, id: &[u8], priority: u8, turn: Option<u32>) {
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
    state.conf.insert("stale".into(), "1".into());
}

fn insert(rng: &mut Rng, list: &mut Vec<Bytes>, ticket: Bytes) {
    list.insert(rng.usize(..=list.len()), ticket);
}

/// Breaks something. Scripts must bear it: somebody may have deleted keys, or lost a server's newest writes.
pub fn flaw(rng: &mut Rng, state: &mut State, world: &World) {
    let node = Bytes::from(world.nodes[rng.usize(..world.nodes.len())].as_str());
    let id = rng.choice(state.job.keys()).cloned().unwrap_or_else(|| id(rng));
    match rng.u8(..8) {
        0 | 1 => lose(rng, state, &id, &node),
        2 | 3 => confuse(rng, state, id, node),
        4 | 5 => peers::flaw(rng, state, world),
        6 => crons::flaw(rng, state),
        _ => damage(rng, state, id, node),
    }
}

/// Something is missing, or all of its kind.
fn lose(rng: &mut Rng, state: &mut State, id: &[u8], node: &[u8]) {
    let field = ["fence", "half", "since", "stale"][rng.usize(..4)];
    match rng.u8(..11) {
        10 => state.find.clear(),
        0 => state.job.clear(),
        1 => state.meta.clear(),
        2 => state.lease.clear(),
        3 => state.conf.clear(),
        4 => state.errors.clear(),
        5 => drop(state.meta.remove(id)),
        6 => drop(state.lease.remove(node)),
        7 => drop(state.since.remove(node)),
        8 => drop(state.conf.remove(field.as_bytes())),
        _ => drop(state.job.remove(id)),
    }
}

/// Something is where it should not be, or says what is not so.
fn confuse(rng: &mut Rng, state: &mut State, id: Bytes, node: Bytes) {
    // Most harm is done by a key that names another than the job that is about to end.
    let of_held = state.unique.iter().find(|(_, id)| state.held.contains_key(*id)).map(|(key, _)| key.clone());
    match rng.u8(..9) {
        0 => drop(state.meta.insert(id, trouble(rng).text())),
        1 => drop(state.unique.insert(of_held.unwrap_or_else(|| "key 1".into()), id)),
        2 => drop(state.unique.insert("key 2".into(), self::id(rng))),
        3 => insert(rng, &mut state.ready[2], id),
        4 => drop(state.dead.insert(id, moment(rng, NOW))),
        5 => drop(state.gone[rng.usize(..2)].insert(id)),
        6 => drop(state.stale.insert(id)),
        7 => drop(state.conf.insert("since".into(), (NOW + LEASE).to_string().into())),
        _ => drop(state.conf.insert(node, rng.i64(-2..5).to_string().into())),
    }
}

/// A text is not what it should be.
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
            state.put_off.insert([hint, &id].concat(), 0);
        }
        0 => {
            let (endless, most) = (digits(b"1e99999999"), digits(b"2147483647"));
            let text = [&b""[..], b"00", b"x", &[b'x'; 72], &[b'9'; 72], &endless, &most][rng.usize(..7)];
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
            let field = [&node[..], &node[..], b"half", b"since", b"fence", b"stale"][rng.usize(..6)];
            let text = [&b""[..], b"x", b"7", b"1.5", b"inf", b"nan", b"1e300", b"-"][rng.usize(..8)];
            state.conf.insert(field.to_vec(), text.to_vec());
        }
    }
}
