//! Arguments of settle: all outcomes, for jobs that the node holds or has lost.

use super::call::{Args, CHANNEL, Call, Client};
use super::random_state::{self, LEASE};
use super::record_text::{self, Bytes, Meta};

/// Maximum number of outcomes in one settle, and of entries without a record that it releases.
const OUTCOMES_MAX: usize = 1_000;
const ORPHANS_MAX: usize = 100;
/// The counters of the outcomes.
const COUNTERS: [&str; 3] = ["01", "06", "40"];

/// A hold as the node knows it.
struct Hold {
    id: Bytes,
    value: Bytes,
    fence: i64,
    priority: u8,
    key: String,
    /// From the claim.
    meta: Option<Meta>,
}

/// Acks, plain and kept.
pub fn settle(client: &mut Client<'_>, node: &str, args: &mut Args) {
    let (holds, orphans) = holds(client, node);
    let (mut acks, mut kept) = (Vec::new(), Vec::new());
    for hold in holds.into_iter().filter(|hold| hold.key.is_empty() && hold.meta.is_none()) {
        if client.rng.bool() { &mut acks } else { &mut kept }.push((hold.id, hold.value));
    }
    // Entries with a deleted record are released under any flag, since one of them is right.
    for flag in b"0123abcd" {
        acks.extend(orphans.iter().map(|hold| (hold.id.clone(), record_text::held_value(node, hold.fence, *flag))));
    }
    add_common(client, node, Some((acks.len(), kept.len())), acks.len() + kept.len(), args);
    let times: Vec<_> = kept.iter().map(|_| client.rng.i64(1..LEASE).to_string()).collect();
    let kept_count = kept.len();
    acks.extend(kept);
    args.add_all(acks.iter().map(|(id, _)| id));
    args.add_all(times);
    args.add_all((0..kept_count).map(|_| if client.rng.bool() { "n 5 7" } else { "" }));
    for same in acks.chunk_by(|(_, a), (_, b)| a == b) {
        args.number(same.len()).add(&same[0].1);
    }
}

/// Returns the ids of such a settle, each with its held value.
pub fn acks(call: &Call) -> impl Iterator<Item = (&Bytes, &Bytes)> {
    let number = |arg: &Bytes| String::from_utf8_lossy(arg).parse().unwrap_or(0);
    let kept = number(call.arg("kept_count"));
    let (all, first) = (number(call.arg("plain_count")) + kept, 2 * number(call.arg("counter_count")));
    let args = call.rest();
    let runs = args[first + all + 2 * kept..].chunks_exact(2);
    args[first..first + all].iter().zip(runs.flat_map(move |run| std::iter::repeat_n(&run[1], number(&run[0]))))
}

/// All other outcomes.
pub fn settle_others(client: &mut Client<'_>, node: &str, args: &mut Args) {
    let holds = holds(client, node).0;
    add_common(client, node, None, holds.len(), args);
    holds.iter().for_each(|hold| settle_one(client, node, hold, args));
}

/// Adds the common start of both, and the counters; without a history only bytes are counted.
fn add_common(client: &mut Client<'_>, node: &str, acks: Option<(usize, usize)>, all: usize, args: &mut Args) {
    let history = client.rng.u8(..4) > 0;
    let (counters, code) = if history { (&COUNTERS[..], "01064000000002") } else { (&[][..], "------00000002") };
    args.add(CHANNEL).add(node).number(3 * LEASE);
    if let Some((plain, kept)) = acks {
        args.number(plain).number(kept);
    }
    args.number(2 * all).add(code.repeat(all)).number(counters.len());
    for counter in counters {
        args.add(counter).number(all);
    }
}

/// Returns jobs that the node holds, held before or never held, and jobs without a record.
fn holds(client: &mut Client<'_>, node: &str) -> (Vec<Hold>, Vec<Hold>) {
    let state = client.state;
    let (mut holds, mut orphans) = (Vec::new(), Vec::new());
    for (id, value) in &state.held {
        let (holder, mut fence, _) = record_text::read_held(value);
        let is_own = holder == node;
        if holds.len() == OUTCOMES_MAX || client.rng.u8(..8) < if is_own { 1 } else { 6 } {
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

/// id, held value, outcome, time, ticket, due, counts, run, its number, unique key, group, result or deferred
/// kind, description of the group or earlier due time.
fn settle_one(client: &mut Client<'_>, node: &str, hold: &Hold, args: &mut Args) {
    let same = hold.meta.unwrap_or_default();
    let one_more = |count: u32| (count + 1).min(record_text::COUNT_MAX);
    let failed = Meta { attempts: one_more(same.attempts), runs: one_more(same.runs), ..same };
    let released = Meta { attempts: same.attempts, ..failed };
    let run = |outcome: char| record_text::run(failed.attempts, node, outcome);
    let ticket = |has_meta: bool| record_text::ticket(&hold.id, hold.priority, has_meta.then_some(same.turn));
    // As in the schedule; sometimes from a node that cannot read the record.
    let later = record_text::due_ticket(&hold.id, &record_text::record(hold.priority, &hold.key, ""), Some(same.turn));
    let later = if client.rng.u8(..4) == 0 { [&ticket(true)[..], b" "].concat() } else { later };
    let due = format!("{:016}", client.now - 1);
    let time = if client.rng.bool() { 0 } else { client.rng.i64(1..LEASE) };
    args.add(&hold.id).add(&hold.value);
    let outcome = client.rng.u8(..7);
    match outcome {
        0 => args.add("a").number(0).add("").add("").add("").add("").number(0),
        1 => args.add("k").number(time + 1).add("").add("").add("").add(if time > 0 { "n 5 7" } else { "" }).number(0),
        2 => args.add("b").number(time).add(later).add(due).add(failed.counts()).add(run('b')).number(failed.runs),
        3 => {
            let counts = failed.counts();
            let ticket = if time > 0 { later } else { ticket(true) };
            args.add("r").number(time).add(ticket).add("").add(counts).add(run('r')).number(failed.runs)
        }
        4 => {
            let (ticket, due) = if time > 0 { (later, "") } else { (ticket(true), due.as_str()) };
            args.add("l").number(time).add(ticket).add(due).add(released.counts()).add(run('l')).number(released.runs)
        }
        _ if time == 0 => args.add("l").number(0).add(ticket(hold.meta.is_some())).add("").add("").add("").number(0),
        _ => args.add("l").number(time).add(later).add("").add(same.counts()).add("").number(0),
    };
    args.add(&hold.key);
    match outcome {
        // The group of a dead job, or the result.
        0..=3 => args.add(format!("{:016x}", client.rng.u8(1..4))).add("kind\toh"),
        // The kind of a deferred job, and its earlier due time.
        _ => args.add(if client.rng.bool() { "kind" } else { "" }).add(format!("{:016}", same.due)),
    };
}

/// Progress of attempts, some of which the node does not hold.
pub fn record_progress(client: &mut Client<'_>, node: &str, args: &mut Args) {
    for hold in holds(client, node).0 {
        let lines = if client.rng.u8(..10) == 0 { 120 } else { client.rng.usize(..4) };
        args.add(&hold.id).add(&hold.value).add(if client.rng.bool() { "progress" } else { "" }).number(lines);
        args.add_all((0..lines).map(|n| format!("line {n}")));
    }
}
