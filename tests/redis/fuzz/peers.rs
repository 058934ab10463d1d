//! Random locks and peers, and arguments of their scripts.

use fastrand::Rng;

use super::call::{Args, Client};
use super::random_state::{self, LEASE, NOW, SECOND, World};
use super::record_text::Bytes;
use super::state::State;

/// Locks with a common prefix.
pub const LOCKS: &[&str] = &["l", "lo", "l:1", "l 2"];
const METHODS: &[&str] = &["ping", "pin", "cache.flush"];
const CONNECTIONS: &[&str] = &["one", "two", "three"];
/// How long a hold lasts. Some holds end later: they were extended while the clock was ahead.
pub const HOLD: i64 = 2 * SECOND;
/// Waiters of most locks, and of the few with more than a script examines.
const WAITERS_MAX: usize = 6;
const CROWD: usize = 130;
const CROWD_ONE_IN: usize = 60;

pub fn hold(ends: i64, fence: i64, node: &str, owner: &str) -> Bytes {
    format!("{ends:016}{fence:016}{NOW:016}{node}{owner}{HOLD:016}note").into_bytes()
}

pub fn waiter(name: &str, turn: i64, owner: &str, node: &str, slots: usize) -> Bytes {
    format!("{name}\0{turn:016}{owner}{node}{slots:04}").into_bytes()
}

/// Adds locks, waiters and peers as a store leaves them.
pub fn sound(rng: &mut Rng, state: &mut State, world: &World) {
    for node in &world.nodes {
        let name = Bytes::from(node.as_str());
        let ends = if rng.u8(..6) == 0 { NOW - 70 * SECOND } else { random_state::moment(rng, NOW) };
        if rng.u8(..5) > 0 {
            state.presence.insert(name.clone(), ends);
            if rng.u8(..3) > 0 {
                state.peers.insert(name.clone(), format!("{NOW:016}{LEASE:016}{{}}\n{}\n", pick(rng, METHODS)).into());
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
    let is_crowded = rng.usize(..CROWD_ONE_IN) == 0;
    let waiting = if is_crowded { CROWD } else { rng.usize(..WAITERS_MAX) };
    if slots > 1 || waiting > 0 || rng.u8(..4) == 0 {
        state.locks.insert(format!("{name}\0").into(), slots.to_string().into());
    }
    for turn in 0..waiting {
        let owner =
            if is_crowded { random_state::node(rng) } else { owners.pop().unwrap_or_else(|| random_state::node(rng)) };
        let waiter = waiter(name, NOW - SECOND + turn as i64, &owner, node(rng, world), slots);
        state.lock_waiters.insert(waiter.clone(), 0);
        state.waiter_index.insert(format!("{owner}{name}").into(), waiter);
    }
}

fn node<'w>(rng: &mut Rng, world: &'w World) -> &'w str {
    &world.nodes[rng.usize(..world.nodes.len())]
}

fn pick<'t>(rng: &mut Rng, choices: &[&'t str]) -> &'t str {
    choices[rng.usize(..choices.len())]
}

/// Removes, misplaces or damages something.
pub fn flaw(rng: &mut Rng, state: &mut State, world: &World) {
    let texts: &[&[u8]] = &[b"", b"x", b"9999999999999999", &[b'x'; 130]];
    let text = texts[rng.usize(..texts.len())].to_vec();
    let field = rng.choice(state.locks.keys()).cloned();
    let owned = rng.choice(state.waiter_index.keys()).cloned();
    let name = pick(rng, LOCKS);
    match (rng.u8(..9), field, owned) {
        (0, ..) => state.presence.clear(),
        (1, ..) => state.lock_waiters.clear(),
        (2, ..) => state.waiter_index.clear(),
        (3, ..) => drop(state.locks.remove(&b""[..])),
        (4, Some(field), _) => drop(state.locks.insert(field, text)),
        (5, _, Some(owned)) => drop(state.waiter_index.insert(owned, text)),
        (6, ..) => drop(state.lock_waiters.insert([name.as_bytes(), b"\0", &text[..]].concat(), 0)),
        (7, ..) => {
            let wide = waiter(name, NOW, &random_state::node(rng), node(rng, world), 9_999);
            state.lock_waiters.insert(wide, 0);
        }
        _ => drop(state.locks.insert(format!("{name}\0").into(), text)),
    }
}

impl Client<'_> {
    /// Adds the arguments of a script of peers or locks; returns whether it is one.
    pub fn peer_call(&mut self, script: &str, node: &str, args: &mut Args) -> bool {
        match script {
            "lock" => self.lock(node, args),
            "unlock" => self.unlock(args),
            "break_lock" => self.break_lock(args),
            "extend_locks" => self.extend_locks(args),
            "locks" if self.rng.bool() => args.add("one").add(self.lock_name()).end(),
            "locks" => args.add("all").number(self.cursor()).end(),
            "count_waiters" => args.add(LOCKS[0]).add(LOCKS[1]).end(),
            "announce" => self.announce(node, args),
            "clear_dead" => args.number(self.cursor()).number(self.cursor()).number(self.cursor()).end(),
            "withdraw" => {
                let cursors = [self.withdraw_cursor(), self.withdraw_cursor()];
                args.add(node).add_all(cursors);
            }
            "find_peers" => args.add(if self.rng.bool() { "" } else { METHODS[0] }).end(),
            "set_connections" => {
                let mut names = CONNECTIONS.to_vec();
                self.rng.shuffle(&mut names);
                args.add(node).number(LEASE).number(self.rng.usize(..=names.len())).add_all(names);
            }
            "refresh_connections" => {
                let names = self.rng.usize(..=CONNECTIONS.len());
                args.add(node).number(LEASE).add_all(&CONNECTIONS[..names]);
            }
            "connection_holder" => args.add(pick(self.rng, CONNECTIONS)).end(),
            "add_token" => args.add(pick(self.rng, METHODS)).add("").number(2).add("00ff viewer").end(),
            "remove_token" => args.add(pick(self.rng, METHODS)).end(),
            "tokens" | "queue_totals" => args.end(),
            "kind_stats" => {
                let unit = if self.rng.bool() { "hour" } else { "minute" };
                let kind = if self.rng.bool() { "" } else { pick(self.rng, METHODS) };
                args.add(unit).number(self.rng.u8(..24)).number(self.rng.u8(1..=24)).add(kind).end();
            }
            "add_kind_stats" => {
                args.number(24).number(24).number(2).add("other").add(pick(self.rng, METHODS)).add("001 1612 ").end()
            }
            "add_audit_entry" => args.number(2).number(3).add("a").add(r#"{"actor":"a"}"#).end(),
            "audit_entries" => args.add(if self.rng.bool() { "" } else { "2" }).number(2).end(),
            _ => return false,
        }
        true
    }

    fn withdraw_cursor(&mut self) -> String {
        if self.rng.u8(..4) == 0 { String::new() } else { self.cursor().to_string() }
    }

    fn lock_name(&mut self) -> &'static str {
        pick(self.rng, LOCKS)
    }

    /// Returns a holder of this lock, a waiter of it, or another owner.
    fn owner_in(&mut self, name: &str) -> String {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let holds = self.state.locks.iter().filter(|(field, hold)| lock_of(field) == Some(name) && hold.len() >= 120);
        let waiters = self.state.waiter_index.keys().filter(|field| field.get(36..) == Some(name.as_bytes()));
        let owners: Vec<String> = match self.rng.u8(..3) {
            0 => holds.map(|(_, hold)| text(&hold[84..120])).collect(),
            1 => waiters.map(|field| text(&field[..36])).collect(),
            _ => self.world.owners.clone(),
        };
        self.rng.choice(owners).unwrap_or_else(|| random_state::node(self.rng))
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
        args.add(name).number(self.slots());
        let ttl = self.rng.i64(1..4 * LEASE);
        args.number(ttl).add(format!("{node}{}{ttl:016}note", self.owner_in(name)));
        args.add(if self.rng.bool() { LEASE.to_string() } else { String::new() });
    }

    fn unlock(&mut self, args: &mut Args) {
        let name = self.lock_name();
        args.add(name).number(self.slots()).add(self.owner_in(name));
        args.add(if self.rng.u8(..3) > 0 { "" } else { "1" });
    }

    fn break_lock(&mut self, args: &mut Args) {
        let name = self.lock_name();
        let owner = if self.rng.bool() { String::new() } else { self.owner_in(name) };
        args.add(name).add(owner).end();
    }

    fn extend_locks(&mut self, args: &mut Args) {
        for _ in 0..self.rng.usize(1..4) {
            let name = self.lock_name();
            args.add(name).add(self.owner_in(name)).number(self.rng.usize(1..5)).number(self.rng.i64(1..4 * LEASE));
        }
    }

    fn announce(&mut self, node: &str, args: &mut Args) {
        args.add(node).number(LEASE).add(format!("{LEASE:016}{{}}\n{}\n", pick(self.rng, METHODS)));
        let locks = self.rng.usize(..=LOCKS.len());
        args.number(locks).add_all(&LOCKS[..locks]);
        for _ in 0..self.rng.usize(..3) {
            let name = self.lock_name();
            args.add(format!("{}{name}", self.owner_in(name)));
        }
    }
}

/// Returns the lock of a hold's field.
pub fn lock_of(field: &[u8]) -> Option<&str> {
    let (name, slot) = std::str::from_utf8(field).ok()?.split_once('\0')?;
    slot.parse::<usize>().ok().map(|_| name)
}
