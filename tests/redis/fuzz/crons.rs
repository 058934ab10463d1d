//! Cron rules: random ones, arguments of their scripts, and their invariants.

use fastrand::Rng;

use super::call::{Args, CHANNEL, Call, Client};
use super::check::{Verdict, none};
use super::random_state::{self, LEASE, NOW};
use super::record_text::{self, Bytes, shown};
use super::state::State;

const NAMES: usize = 6;
const NONE: &str = "0000000000000000";
const RULE: &str = "{\"format\":1}";

fn name(rng: &mut Rng) -> String {
    format!("rule {}", rng.usize(..NAMES))
}

fn text(revision: u64, next: &str, last: &str, flags: &str) -> Bytes {
    format!("1{revision:016}{next}{last}{flags}{RULE}").into_bytes()
}

/// Adds some rules: active, waiting for an overlap, paused, under transfer to another queue.
pub fn sound(rng: &mut Rng, state: &mut State) {
    for _ in 0..rng.usize(..5) {
        let name = name(rng);
        let next = random_state::moment(rng, NOW);
        let flags = ["00", "00", "01", "10", "g0"][rng.usize(..5)];
        state.cron.insert(name.clone().into(), text(rng.u64(1..4), &format!("{next:016}"), NONE, flags));
        match flags {
            "10" => drop(state.ticks.remove(name.as_bytes())),
            "01" => drop(state.ticks.insert(name.into(), next + LEASE)),
            _ => drop(state.ticks.insert(name.into(), next)),
        }
    }
    if let Some(first) = state.ticks.values().min() {
        state.conf.insert("next_tick".into(), format!("{first:016}").into());
    }
}

/// Removes or damages something.
pub fn flaw(rng: &mut Rng, state: &mut State) {
    let name = Bytes::from(name(rng));
    match rng.u8(..5) {
        0 => state.cron.clear(),
        1 => state.ticks.clear(),
        2 => drop(state.ticks.insert(name, random_state::moment(rng, NOW))),
        3 => drop(state.cron.insert(name, [&b""[..], b"1", b"2", &[b'x'; 60], &[b'1'; 50]][rng.usize(..5)].to_vec())),
        _ => drop(
            state.conf.insert("next_tick".into(), [&b""[..], b"x", b"inf", b"nan", b"-1"][rng.usize(..5)].to_vec()),
        ),
    }
}

/// Returns the revision of a rule, or a wrong one; empty if there is none.
fn revision(client: &mut Client<'_>, name: &str) -> Bytes {
    let current = client.state.cron.get(name.as_bytes()).and_then(|text| text.get(1..17)).map(<[u8]>::to_vec);
    if client.rng.u8(..4) == 0 { "0000000000000009".into() } else { current.unwrap_or_default() }
}

pub fn call(client: &mut Client<'_>, script: &str, args: &mut Args) -> bool {
    let name = name(client.rng);
    match script {
        "put_cron" => put(client, &name, args),
        "remove_cron" => {
            let revision = if client.rng.bool() { Bytes::new() } else { revision(client, &name) };
            args.add(&name).add(revision).end();
        }
        "crons" => args.add(if client.rng.bool() { &name } else { "" }).number(client.cursor()).end(),
        "due_crons" => {
            args.number(client.amount(500)).number(client.rng.u32(..3));
            (0..client.rng.usize(..4)).for_each(|_| args.add(self::name(client.rng)).end());
        }
        "confirm_ticks" => {
            let planned_at = client.state.conf.get(&b"planned_at"[..]).cloned();
            args.add(planned_at.unwrap_or_else(|| NONE.into())).end();
        }
        "fire_crons" => fire(client, args),
        "repair_tick" => {
            let rule = client.state.cron.get(name.as_bytes()).cloned().unwrap_or_default();
            let next_check =
                if rule.is_empty() { String::new() } else { random_state::moment(client.rng, client.now).to_string() };
            args.add(&name).add(rule).add(next_check).end();
        }
        _ => return false,
    }
    true
}

fn put(client: &mut Client<'_>, name: &str, args: &mut Args) {
    let (expected, next) = (revision(client, name), random_state::moment(client.rng, client.now));
    let flags = ["00", "10", "g0"][client.rng.usize(..3)];
    args.add(CHANNEL).add(name).add(expected).add(text(client.rng.u64(4..9), &format!("{next:016}"), NONE, flags));
    args.add(if flags == "10" { String::new() } else { next.to_string() });
}

fn fire(client: &mut Client<'_>, args: &mut Args) {
    args.add(CHANNEL).number(LEASE);
    // No two rules share a key, and no two jobs an id.
    let mut keys = client.world.keys.clone();
    for index in 0..client.rng.usize(1..4) {
        let name = format!("rule {}", (index + client.rng.usize(..2) * 3) % NAMES);
        let current = client.state.cron.get(name.as_bytes()).filter(|text| text.len() > 33).cloned();
        let revision = revision(client, &name);
        let revision = if revision.is_empty() { NONE.as_bytes().to_vec() } else { revision };
        let tick = current.map_or_else(|| format!("{:016}", client.now).into_bytes(), |text| text[17..33].to_vec());
        let tick = if tick.iter().all(u8::is_ascii_digit) { tick } else { NONE.into() };
        let next = if client.rng.u8(..4) == 0 { NONE.into() } else { format!("{:016}", client.now + LEASE) };
        let key = if client.rng.bool() { keys.pop().unwrap_or_default() } else { String::new() };
        let jobs = if key.is_empty() { client.rng.usize(..4) } else { 1 };
        args.add(name).add(revision).add(&tick).add(next).add(if client.rng.bool() {
            &tick[..]
        } else {
            NONE.as_bytes()
        });
        args.add(["n", "r", "t"][client.rng.usize(..3)]).number(jobs);
        for _ in 0..jobs {
            let id = if client.rng.u8(..3) == 0 { client.job() } else { random_state::id(client.rng) };
            let priority = client.rng.u8(..4);
            let due = if client.rng.bool() {
                String::new()
            } else {
                random_state::moment(client.rng, client.now).to_string()
            };
            let record = record_text::record(priority, &key, "{}");
            args.add(&id).add(&record).add(due).add(record_text::due_ticket(&id, &record, None)).add(&key);
        }
    }
}

/// The tick in conf is the earliest tick of all rules.
pub fn first_tick_is_in_conf(state: &State) -> Verdict {
    let in_conf = state.conf.get(&b"next_tick"[..]).map(|text| String::from_utf8_lossy(text).into_owned());
    let first = state.ticks.values().min().map(|first| format!("{first:016}"));
    if in_conf == first { Ok(()) } else { Err(format!("{in_conf:?}, and the first is {first:?}")) }
}

pub fn ticks_are_of_rules(state: &State) -> Verdict {
    none(state.ticks.keys().filter(|name| !state.cron.contains_key(*name)), |name| shown(name))
}

/// A rule fires only with its current revision and tick, if the tick is due, and neither the rule nor the queue is
/// paused or under transfer.
pub fn check_change(call: &Call, before: &State, after: &State) -> Verdict {
    if call.script != "fire_crons" {
        return Ok(());
    }
    if before.conf.contains_key(&b"transfer_mark"[..]) && before.job != after.job {
        return Err("the queue is under transfer, and a tick was fired".into());
    }
    for (name, rule) in before.cron.iter().filter(|(name, rule)| after.cron.get(*name) != Some(*rule)) {
        let tick: i64 = rule.get(17..33).map_or(0, |tick| String::from_utf8_lossy(tick).parse().unwrap_or(0));
        if tick > call.now {
            return Err(format!("{} was fired before its tick", shown(name)));
        }
        if rule.get(49) != Some(&b'0') {
            return Err(format!("{} was fired although it is not active", shown(name)));
        }
        let has_arg = |text: &[u8]| call.args.iter().any(|arg| arg == text);
        if !has_arg(&rule[1..17]) || !has_arg(&rule[17..33]) {
            return Err(format!("{} was fired by a caller with another revision", shown(name)));
        }
    }
    Ok(())
}
