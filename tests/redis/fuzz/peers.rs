//! Random halls, and arguments of the scripts that work on them.

use fastrand::Rng;

use super::call::{Args, Client};
use super::random_state::{self, LEASE, NOW, SECOND, World};
use super::record_text::Bytes;
use super::state::State;

/// Locks whose names begin alike.
pub const LOCKS: &[&str] = &["l", "lo", "l:1", "l 2"];
const METHODS: &[&str] = &["ping", "pin", "cache.flush"];
const CONNECTIONS: &[&str] = &["one", "two", "three"];
/// Places in most lines, and in the few that are longer than a script looks.
const LINE_MAX: usize = 6;
const CROWD: usize = 130;
const CROWD_ONE_IN: usize = 60;

pub fn hold(ends: i64, fence: i64, node: &str, owner: &str) -> Bytes {
    format!("{ends:016}{fence:016}{NOW:016}{node}{owner}note").into_bytes()
}

pub fn place(name: &str, turn: i64, owner: &str, node: &str, slots: usize) -> Bytes {
    format!("{name}\0{turn:016}{owner}{node}{slots:04}").into_bytes()
}

/// Locks, lines and guests as a store leaves them.
pub fn sound(rng: &mut Rng, state: &mut State, world: &World) {
    for node in &world.nodes {
        let name = Bytes::from(node.as_str());
        let ends = if rng.u8(..6) == 0 { NOW - 70 * SECOND } else { random_state::moment(rng, NOW) };
        if rng.u8(..5) > 0 {
            state.presence.insert(name.clone(), ends);
            if rng.u8(..3) > 0 {
                state.guests.insert(name.clone(), format!("{NOW:016}{{}}\n{}\n", pick(rng, METHODS)).into());
            }
        }
        if rng.bool() {
            state.connections.insert(pick(rng, CONNECTIONS).into(), name);
        }
    }
    for name in METHODS.iter().take(rng.usize(..=METHODS.len())) {
        state.kinds.insert(format!("{}.{name}", NOW / 3_600_000_000).into(), "0012 1634 x".into());
        state
            .tokens
            .insert((*name).into(), format!("{NOW:016}{:016}00ff viewer", random_state::moment(rng, NOW)).into());
    }
    let fence = NOW - rng.i64(0..4 * SECOND) + if rng.u8(..8) == 0 { 8 * SECOND } else { 0 };
    state.locks.insert(Bytes::new(), format!("{fence:016}").into());
    for name in LOCKS.iter().take(rng.usize(..=LOCKS.len())) {
        lock(rng, state, world, name, fence);
    }
}

fn lock(rng: &mut Rng, state: &mut State, world: &World, name: &str, fence: i64) {
    let slots = if rng.u8(..3) == 0 { rng.usize(2..5) } else { 1 };
    let mut owners = world.owners.clone();
    rng.shuffle(&mut owners);
    for slot in 1..=slots {
        let (Some(owner), true) = (owners.pop(), rng.u8(..3) > 0) else { continue };
        let ends = if rng.u8(..6) == 0 { NOW - 61 * SECOND } else { random_state::moment(rng, NOW) };
        let held = hold(ends, fence - rng.i64(0..SECOND), node(rng, world), &owner);
        state.locks.insert(format!("{name}\0{slot}").into(), held);
    }
    let crowd = rng.usize(..CROWD_ONE_IN) == 0;
    let waiting = if crowd { CROWD } else { rng.usize(..LINE_MAX) };
    if slots > 1 || waiting > 0 || rng.u8(..4) == 0 {
        state.locks.insert(format!("{name}\0").into(), slots.to_string().into());
    }
    for turn in 0..waiting {
        let owner =
            if crowd { random_state::node(rng) } else { owners.pop().unwrap_or_else(|| random_state::node(rng)) };
        let place = place(name, NOW - SECOND + turn as i64, &owner, node(rng, world), slots);
        state.line.insert(place.clone(), 0);
        state.places.insert(format!("{owner}{name}").into(), place);
    }
}

fn node<'w>(rng: &mut Rng, world: &'w World) -> &'w str {
    &world.nodes[rng.usize(..world.nodes.len())]
}

fn pick<'t>(rng: &mut Rng, of: &[&'t str]) -> &'t str {
    of[rng.usize(..of.len())]
}

/// Something in the hall is missing, not where it should be, or not what it should be.
pub fn flaw(rng: &mut Rng, state: &mut State, world: &World) {
    let texts: &[&[u8]] = &[b"", b"x", b"9999999999999999", &[b'x'; 130]];
    let text = texts[rng.usize(..texts.len())].to_vec();
    let field = rng.choice(state.locks.keys()).cloned();
    let owned = rng.choice(state.places.keys()).cloned();
    let name = pick(rng, LOCKS);
    match (rng.u8(..9), field, owned) {
        (0, ..) => state.presence.clear(),
        (1, ..) => state.line.clear(),
        (2, ..) => state.places.clear(),
        (3, ..) => drop(state.locks.remove(&b""[..])),
        (4, Some(field), _) => drop(state.locks.insert(field, text)),
        (5, _, Some(owned)) => drop(state.places.insert(owned, text)),
        (6, ..) => drop(state.line.insert([name.as_bytes(), b"\0", &text[..]].concat(), 0)),
        (7, ..) => {
            let wide = place(name, NOW, &random_state::node(rng), node(rng, world), 9_999);
            state.line.insert(wide, 0);
        }
        _ => drop(state.locks.insert(format!("{name}\0").into(), text)),
    }
}

impl Client<'_> {
    /// Arguments of a script of the hall; answers whether it is one.
    pub fn in_the_hall(&mut self, script: &str, node: &str, args: &mut Args) -> bool {
        match script {
            "lock" => self.lock(node, args),
            "unlock" => self.unlock(args),
            "break_lock" => args.add(self.lock_name()).end(),
            "extend_locks" => self.extend_locks(args),
            "locks" if self.rng.bool() => args.add("one").add(self.lock_name()).end(),
            "locks" => args.add("all").number(self.cursor()).end(),
            "waiting" => args.add(LOCKS[0]).add(LOCKS[1]).end(),
            "attend" => self.attend(node, args),
            "clear" => args.number(self.cursor()).number(self.cursor()).number(self.cursor()).end(),
            "depart" => {
                let cursors = [self.departing(), self.departing()];
                args.add(node).add_all(cursors);
            }
            "guests" => args.add(if self.rng.bool() { "" } else { METHODS[0] }).end(),
            "set_connections" => {
                let mut names = CONNECTIONS.to_vec();
                self.rng.shuffle(&mut names);
                args.add(node).number(LEASE).number(self.rng.usize(..=names.len())).add_all(names);
            }
            "keep_connections" => {
                let names = self.rng.usize(..=CONNECTIONS.len());
                args.add(node).number(LEASE).add_all(&CONNECTIONS[..names]);
            }
            "connection" => args.add(pick(self.rng, CONNECTIONS)).end(),
            "put_token" => args.add(pick(self.rng, METHODS)).add("").number(2).add("00ff viewer").end(),
            "remove_token" => args.add(pick(self.rng, METHODS)).end(),
            "tokens" | "kinds" | "totals" => args.end(),
            "add_kinds" => args.number(24).number(2).add("other").add(pick(self.rng, METHODS)).add("001 1612 ").end(),
            "put_audit" => args.number(3).add("{}").end(),
            "audits" => args.add(if self.rng.bool() { "" } else { "2" }).number(2).end(),
            _ => return false,
        }
        true
    }

    fn departing(&mut self) -> String {
        if self.rng.u8(..4) == 0 { String::new() } else { self.cursor().to_string() }
    }

    fn lock_name(&mut self) -> &'static str {
        pick(self.rng, LOCKS)
    }

    /// One who holds this lock, one who stands in its line, or another.
    fn owner_in(&mut self, name: &str) -> String {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let holds = self.state.locks.iter().filter(|(field, hold)| lock_of(field) == Some(name) && hold.len() >= 120);
        let places = self.state.places.keys().filter(|field| field.get(36..) == Some(name.as_bytes()));
        let known: Vec<String> = match self.rng.u8(..3) {
            0 => holds.map(|(_, hold)| text(&hold[84..120])).collect(),
            1 => places.map(|field| text(&field[..36])).collect(),
            _ => self.world.owners.clone(),
        };
        self.rng.choice(known).unwrap_or_else(|| random_state::node(self.rng))
    }

    fn slots(&mut self) -> usize {
        match self.rng.u8(..12) {
            0 => 1_000,
            n if n < 7 => 1,
            _ => self.rng.usize(2..5),
        }
    }

    fn lock(&mut self, node: &str, args: &mut Args) {
        let name = self.lock_name();
        args.add(name).number(self.slots()).number(self.rng.i64(1..4 * LEASE));
        args.add(format!("{node}{}note", self.owner_in(name)));
        args.add(if self.rng.bool() { LEASE.to_string() } else { String::new() });
    }

    fn unlock(&mut self, args: &mut Args) {
        let name = self.lock_name();
        args.add(name).number(self.slots()).add(self.owner_in(name));
        args.add(if self.rng.u8(..3) > 0 { "" } else { "1" });
    }

    fn extend_locks(&mut self, args: &mut Args) {
        for _ in 0..self.rng.usize(1..4) {
            let name = self.lock_name();
            args.add(name).add(self.owner_in(name)).number(self.rng.usize(1..5)).number(self.rng.i64(1..4 * LEASE));
        }
    }

    fn attend(&mut self, node: &str, args: &mut Args) {
        args.add(node).number(LEASE).add(format!("{{}}\n{}\n", pick(self.rng, METHODS)));
        let locks = self.rng.usize(..=LOCKS.len());
        args.number(locks).add_all(&LOCKS[..locks]);
        for _ in 0..self.rng.usize(..3) {
            let name = self.lock_name();
            args.add(format!("{}{name}", self.owner_in(name)));
        }
    }
}

/// The lock of a hold, from its field.
pub fn lock_of(field: &[u8]) -> Option<&str> {
    let (name, slot) = std::str::from_utf8(field).ok()?.split_once('\0')?;
    slot.parse::<usize>().ok().map(|_| name)
}
