//! Arguments of the scripts that transfer jobs to and from another store.

use super::call::{Args, CHANNEL, Client};
use super::random_state::{self, LEASE};
use super::record_text::{self, Bytes};
use super::state::State;

/// The field of the only transfer into this queue, and its checkpoints.
pub const CHECKPOINT_FIELD: &str = "transfer:00000000-0000-7000-8000-000000000000";
const CHECKPOINTS: &[&str] = &["", "one", "two"];

/// Sets or removes the transfer mark of this node.
pub fn mark(client: &mut Client<'_>, node: &str, args: &mut Args) {
    args.add(CHANNEL).add(node).add(if client.rng.bool() { "elsewhere" } else { "" });
}

/// Returns the node with the transfer mark, or another.
pub fn transfer_node(client: &mut Client<'_>, other: &str) -> String {
    let mark = client.state.conf.get(&b"transfer_mark"[..]).filter(|_| client.rng.u8(..6) > 0);
    mark.map_or_else(|| other.to_owned(), |mark| String::from_utf8_lossy(&mark[..36]).into_owned())
}

/// Transfers some jobs out, each with its push time; some of them are missing, or were pushed again.
pub fn out(client: &mut Client<'_>, node: &str, args: &mut Args) {
    args.add(node);
    for _ in 0..client.amount(500) {
        let pushed = if client.rng.u8(..8) == 0 { 6 } else { 5 };
        args.add(client.job()).number(pushed);
    }
}

/// Transfers some jobs in, both new and known ones; the checkpoint usually follows the current one.
pub fn into(client: &mut Client<'_>, args: &mut Args) {
    let current = checkpoint(client.state);
    let expected = if client.rng.u8(..6) == 0 { pick(client, CHECKPOINTS).into() } else { current };
    args.add(CHANNEL)
        .add(CHECKPOINT_FIELD)
        .add(expected)
        .add(pick(client, CHECKPOINTS))
        .number(client.now + client.rng.i64(-LEASE..LEASE));
    let mut ids: Vec<Bytes> = (0..client.amount(500)).map(|_| incoming_id(client)).collect();
    ids.sort();
    ids.dedup();
    let mut keys = client.world.keys.clone();
    for id in ids {
        // No two unfinished jobs of one store have the same key.
        let key = if client.rng.u8(..3) == 0 { keys.pop().unwrap_or_default() } else { String::new() };
        job(client, &id, &key, args);
    }
}

/// Returns the current checkpoint.
pub fn checkpoint(state: &State) -> Bytes {
    state.conf.get(CHECKPOINT_FIELD.as_bytes()).cloned().unwrap_or_default()
}

/// Returns the ids of transferred jobs, from the arguments.
pub fn ids(args: &[Bytes]) -> Vec<Bytes> {
    let (mut ids, mut index) = (Vec::new(), 0);
    let number =
        |index: usize| args.get(index).map(|text| String::from_utf8_lossy(text).parse::<usize>().expect("a number"));
    while let (Some(id), Some(runs), Some(fields)) = (args.get(index), number(index + 7), number(index + 11)) {
        ids.push(id.clone());
        index += 12 + runs + fields;
    }
    ids
}

fn pick<'t>(client: &mut Client<'_>, choices: &[&'t str]) -> &'t str {
    choices[client.rng.usize(..choices.len())]
}

fn incoming_id(client: &mut Client<'_>) -> Bytes {
    if client.rng.bool() { client.job() } else { random_state::id(client.rng) }
}

/// id, ready ticket, record, meta, position, due or until, unique key, number of runs, group or ack, description of the
/// group, retention when done, number of progress fields, each run, each field.
fn job(client: &mut Client<'_>, id: &[u8], key: &str, args: &mut Args) {
    let (priority, position) = (client.rng.u8(..4), pick(client, &["r", "s", "d", "b"]));
    let runs = if client.rng.u8(..3) == 0 { client.rng.u32(..51) } else { 0 };
    let has_meta = runs > 0 || position == "b";
    let meta = record_text::Meta {
        due: client.now,
        changed: client.now,
        attempts: runs,
        runs,
        ..record_text::Meta::default()
    };
    let unfinished = ["r", "s"].contains(&position);
    args.add(id).add(record_text::ready_ticket(id, priority, has_meta.then_some(0)));
    args.add(record_text::record(priority, key, "{}")).add(if has_meta { meta.text() } else { Bytes::new() });
    args.add(position).number(random_state::moment(client.rng, client.now)).add(if unfinished { key } else { "" });
    let fields = if client.rng.bool() { 0 } else { 2 };
    let ack = record_text::ack(&"n".repeat(36));
    let (group, description) = match position {
        "b" => ("00000000000000aa", "kind\toh"),
        "d" if client.rng.bool() => (ack.as_str(), ""),
        _ => ("", ""),
    };
    args.number(runs).add(group).add(description).number(LEASE).number(2 * fields);
    args.add_all((0..runs).map(|n| format!("{:016}{}", client.now, record_text::run(n + 1, &"n".repeat(36), 'r'))));
    args.add_all(["n", "0", "r", "7"].into_iter().take(2 * fields));
}
