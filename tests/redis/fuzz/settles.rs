//! Arguments of settle: all outcomes, of jobs that are held as the node thinks, or not any more.

use super::call::{Args, CHANNEL, Client};
use super::random_state::{self, LEASE};
use super::record_text::{self, Bytes, Meta};

/// Outcomes in one settle, and entries without a record that the store lets go of at once.
const MOST: usize = 1_000;
const ORPHANS_MAX: usize = 100;
/// Where each outcome is counted.
const PLACES: [&str; 3] = ["01", "06", "40"];

/// What a node believes to hold.
struct Hold {
    id: Bytes,
    value: Bytes,
    fence: i64,
    priority: u8,
    key: String,
    /// As the claim said it.
    meta: Option<Meta>,
}

/// Acks, plain and kept.
pub fn settle(client: &mut Client<'_>, node: &str, args: &mut Args) {
    let (holds, orphans) = holds(client, node);
    let (mut acks, mut kept) = (Vec::new(), Vec::new());
    for hold in holds.into_iter().filter(|hold| hold.key.is_empty() && hold.meta.is_none()) {
        if client.rng.bool() { &mut acks } else { &mut kept }.push((hold.id, hold.value));
    }
    // Entries whose record somebody has deleted are let go of under any flag: one of them is right.
    for flag in b"0123abcd" {
        acks.extend(orphans.iter().map(|hold| (hold.id.clone(), record_text::held_value(node, hold.fence, *flag))));
    }
    begin(client, node, &acks.len().to_string(), &kept.len().to_string(), acks.len() + kept.len(), args);
    let times: Vec<_> = kept.iter().map(|_| client.rng.i64(1..LEASE).to_string()).collect();
    acks.extend(kept);
    args.add_all(acks.iter().map(|(id, _)| id));
    args.add_all(times);
    for same in acks.chunk_by(|(_, a), (_, b)| a == b) {
        args.number(same.len()).add(&same[0].1);
    }
}

/// The ids of such a settle, and what each is said to be held under.
pub fn acks(args: &[Bytes]) -> impl Iterator<Item = (&Bytes, &Bytes)> {
    let number = |arg: &Bytes| String::from_utf8_lossy(arg).parse().unwrap_or(0);
    let (all, kept) = (number(&args[4]) + number(&args[5]), number(&args[5]));
    let first = 9 + 2 * number(&args[8]);
    let runs = args[first + all + kept..].chunks_exact(2);
    args[first..first + all].iter().zip(runs.flat_map(move |run| std::iter::repeat_n(&run[1], number(&run[0]))))
}

/// All other outcomes.
pub fn settle_others(client: &mut Client<'_>, node: &str, args: &mut Args) {
    let holds = holds(client, node).0;
    begin(client, node, "", "", holds.len(), args);
    holds.iter().for_each(|hold| other(client, node, hold, args));
}

/// How both begin, and what so many outcomes count; without a history nothing but bytes.
fn begin(client: &mut Client<'_>, node: &str, plain: &str, kept: &str, all: usize, args: &mut Args) {
    let history = client.rng.u8(..4) > 0;
    let (places, code) = if history { (&PLACES[..], "01064000000002") } else { (&[][..], "------00000002") };
    args.add(CHANNEL).add(node).number(3 * LEASE).add(plain).add(kept);
    args.number(2 * all).add(code.repeat(all)).number(places.len());
    for place in places {
        args.add(place).number(all);
    }
}

/// What the node holds, what it held once, and what it never held; and what has no record any more.
fn holds(client: &mut Client<'_>, node: &str) -> (Vec<Hold>, Vec<Hold>) {
    let state = client.state;
    let (mut holds, mut orphans) = (Vec::new(), Vec::new());
    for (id, value) in &state.held {
        let (holder, mut fence, _) = record_text::read_held(value);
        let mine = holder == node;
        if holds.len() == MOST || client.rng.u8(..8) < if mine { 1 } else { 6 } {
            continue;
        }
        if client.rng.u8(..8) == 0 {
            fence -= 1;
        }
        let Some(record) = state.job.get(id) else {
            if orphans.len() == ORPHANS_MAX {
                continue;
            }
            let hold = Hold { id: id.clone(), value: Bytes::new(), fence, priority: 0, key: String::new(), meta: None };
            orphans.push(hold);
            continue;
        };
        let (priority, key, meta) = (record_text::priority_of(record), record_text::key_of(record), state.meta_of(id));
        let value = record_text::held_value(node, fence, record_text::flag(priority, meta.is_some()));
        holds.push(Hold { id: id.clone(), value, fence, priority, key, meta });
    }
    if client.rng.u8(..4) == 0 {
        let (id, value) = (random_state::id(client.rng), record_text::held_value(node, 1, b'2'));
        let key = if client.rng.bool() { "key 3".into() } else { String::new() };
        holds.push(Hold { id, value, fence: 1, priority: 2, key, meta: None });
    }
    (holds, orphans)
}

/// id, held value, outcome, time, ticket, due, counts, failure, its number, unique key, group, result or kind that is put off, what the
/// group is or when it was due before.
fn other(client: &mut Client<'_>, node: &str, hold: &Hold, args: &mut Args) {
    let same = hold.meta.unwrap_or_default();
    let one_more = |count: u32| (count + 1).min(record_text::COUNT_MAX);
    let failed = Meta { attempts: one_more(same.attempts), failures: one_more(same.failures), ..same };
    let failure = record_text::failure(failed.attempts, node);
    let ticket = |in_trouble: bool| record_text::ticket(&hold.id, hold.priority, in_trouble.then_some(same.turn));
    // As in the schedule; now and then from a node that cannot read the record.
    let later = record_text::due_ticket(&hold.id, &record_text::record(hold.priority, &hold.key, ""), Some(same.turn));
    let later = if client.rng.u8(..4) == 0 { [&ticket(true)[..], b" "].concat() } else { later };
    let due = format!("{:016}", client.now - 1);
    let time = if client.rng.bool() { 0 } else { client.rng.i64(1..LEASE) };
    args.add(&hold.id).add(&hold.value);
    let outcome = client.rng.u8(..6);
    match outcome {
        0 => args.add("a").number(0).add("").add("").add("").add("").number(0),
        1 => args.add("k").number(time + 1).add("").add("").add("").add("").number(0),
        2 => args.add("b").number(time).add(later).add(due).add(failed.counts()).add(failure).number(failed.failures),
        3 => {
            let counts = failed.counts();
            let ticket = if time > 0 { later } else { ticket(true) };
            args.add("r").number(time).add(ticket).add("").add(counts).add(failure).number(failed.failures)
        }
        _ if time == 0 => args.add("l").number(0).add(ticket(hold.meta.is_some())).add("").add("").add("").number(0),
        _ => args.add("l").number(time).add(later).add("").add(same.counts()).add("").number(0),
    };
    args.add(&hold.key);
    match outcome {
        // The group of what dies, or what is given.
        0..=3 => args.add(format!("{:016x}", client.rng.u8(1..4))).add("kind\toh"),
        // The kind of what is put off, and when it was due before.
        _ => args.add(if client.rng.bool() { "kind" } else { "" }).add(format!("{:016}", same.due)),
    };
}

/// What attempts say, some of which the node does not hold.
pub fn note(client: &mut Client<'_>, node: &str, args: &mut Args) {
    for hold in holds(client, node).0 {
        let lines = if client.rng.u8(..10) == 0 { 120 } else { client.rng.usize(..4) };
        args.add(&hold.id).add(&hold.value).add(if client.rng.bool() { "progress" } else { "" }).number(lines);
        args.add_all((0..lines).map(|n| format!("line {n}")));
    }
}
