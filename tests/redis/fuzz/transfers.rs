//! Arguments of the scripts that move jobs to another store and from one.

use super::call::{Args, CHANNEL, Client};
use super::random_state::{self, LEASE};
use super::record_text::{self, Bytes};
use super::state::State;

/// The field of the one move into this queue, and the notes that its movers leave.
pub const NOTE: &str = "note:00000000-0000-7000-8000-000000000000";
const NOTES: &[&str] = &["", "one", "two"];

/// Marks the queue for this mover, or takes the mark away.
pub fn mark(client: &mut Client<'_>, mover: &str, args: &mut Args) {
    args.add(CHANNEL).add(mover).add(if client.rng.bool() { "elsewhere" } else { "" });
}

/// The mover for whom the queue is marked, or another.
pub fn mover(client: &mut Client<'_>, other: &str) -> String {
    let mark = client.state.conf.get(&b"moving"[..]).filter(|_| client.rng.u8(..6) > 0);
    mark.map_or_else(|| other.to_owned(), |mark| String::from_utf8_lossy(&mark[..36]).into_owned())
}

/// Some jobs go, each as it is known to have been pushed; some of them are not there, or were pushed again.
pub fn out(client: &mut Client<'_>, mover: &str, args: &mut Args) {
    args.add(mover);
    for _ in 0..client.amount(500) {
        let pushed = if client.rng.u8(..8) == 0 { 6 } else { 5 };
        args.add(client.job()).number(pushed);
    }
}

/// Some jobs come, new ones and such as are here or were; with a note that most often follows the one that is here.
pub fn into(client: &mut Client<'_>, args: &mut Args) {
    let here = note(client.state);
    let was = if client.rng.u8(..6) == 0 { pick(client, NOTES).into() } else { here };
    args.add(CHANNEL).add(NOTE).add(was).add(pick(client, NOTES)).number(client.now + client.rng.i64(-LEASE..LEASE));
    let mut ids: Vec<Bytes> = (0..client.amount(500)).map(|_| coming(client)).collect();
    ids.sort();
    ids.dedup();
    let mut keys = client.world.keys.clone();
    for id in ids {
        // No two unfinished jobs of one store have one key.
        let key = if client.rng.u8(..3) == 0 { keys.pop().unwrap_or_default() } else { String::new() };
        job(client, &id, &key, args);
    }
}

/// The note that is here.
pub fn note(state: &State) -> Bytes {
    state.conf.get(NOTE.as_bytes()).cloned().unwrap_or_default()
}

/// The ids of jobs that come, from the arguments.
pub fn ids(args: &[Bytes]) -> Vec<Bytes> {
    let (mut ids, mut at) = (Vec::new(), 6);
    let number = |at: usize| args.get(at).map(|text| String::from_utf8_lossy(text).parse::<usize>().expect("a number"));
    while let (Some(id), Some(failures), Some(notes)) = (args.get(at), number(at + 7), number(at + 11)) {
        ids.push(id.clone());
        at += 12 + failures + notes;
    }
    ids
}

fn pick<'t>(client: &mut Client<'_>, of: &[&'t str]) -> &'t str {
    of[client.rng.usize(..of.len())]
}

fn coming(client: &mut Client<'_>) -> Bytes {
    if client.rng.bool() { client.job() } else { random_state::id(client.rng) }
}

/// id, ready ticket, record, meta, where it is, due or until, unique key, how many failures, group, what it is, how long it is
/// kept when done, how many fields of notes, each failure, each field.
fn job(client: &mut Client<'_>, id: &[u8], key: &str, args: &mut Args) {
    let (priority, place) = (client.rng.u8(..4), pick(client, &["r", "s", "d", "b"]));
    let failures = if client.rng.u8(..3) == 0 { client.rng.u32(..51) } else { 0 };
    let in_trouble = failures > 0 || place == "b";
    let meta = record_text::Meta {
        due: client.now,
        moved: client.now,
        attempts: failures,
        failures,
        ..record_text::Meta::default()
    };
    let unfinished = ["r", "s"].contains(&place);
    args.add(id).add(record_text::ready_ticket(id, priority, in_trouble.then_some(0)));
    args.add(record_text::record(priority, key, "{}")).add(if in_trouble { meta.text() } else { Bytes::new() });
    args.add(place).number(random_state::moment(client.rng, client.now)).add(if unfinished { key } else { "" });
    let notes = if client.rng.bool() { 0 } else { 2 };
    let (group, what) = if place == "b" { ("00000000000000aa", "kind\toh") } else { ("", "") };
    args.number(failures).add(group).add(what).number(LEASE).number(2 * notes);
    args.add_all((0..failures).map(|n| format!("{:016}{}", client.now, record_text::failure(n + 1, &"n".repeat(36)))));
    args.add_all(["n", "0", "r", "7"].into_iter().take(2 * notes));
}
