//! Invariants of a queue before and after every script, and changes that no script may make.

use std::collections::{BTreeMap, BTreeSet};

use super::call::Call;
use super::crons;
use super::peers_check;
use super::pushes::SUBSCRIBED_KIND;
use super::random_state::HISTORY;
use super::record_text::{self, Meta, shown};
use super::state::{Position, State};
use super::transfers;

/// The violation, if any.
pub type Verdict = Result<(), String>;

/// A condition on a state.
pub type Invariant = fn(&State) -> Verdict;

/// The invariants of every sound state, by name.
pub const INVARIANTS: &[(&str, Invariant)] = &[
    ("every listed job has a record", jobs_have_records),
    ("a job is in one position", jobs_have_one_position),
    ("holds are counted", holds_are_counted),
    ("every holder has a lease", holders_have_leases),
    ("a held value has the flag of its job, and no fence from the future", held_values_fit),
    ("stale tickets are in a ready list, and marked in conf", stale_tickets_are_there),
    ("a ticket is that of its job", tickets_fit),
    ("runs belong to a job", histories_fit),
    ("a unique key names exactly one unfinished job", keys_fit),
    ("removed jobs have no record", removed_jobs_have_no_record),
    ("claims know the first tick", crons::first_tick_is_in_conf),
    ("every tick belongs to a rule", crons::ticks_are_of_rules),
    ("groups are counted", groups_are_counted),
    ("scheduled and dead jobs are indexed", jobs_are_indexed),
    ("progress belongs to a job", progress_fits),
    ("every waiter is in the queue of its lock", peers_check::waiters_are_queued),
    ("a lock with waiters is marked", peers_check::waited_locks_are_marked),
    ("no lock has a fence from the future", peers_check::fences_of_locks_are_past),
    ("a peer has a lease", peers_check::peers_have_leases),
];

pub fn none<T>(bad: impl IntoIterator<Item = T>, describe: impl Fn(T) -> String) -> Verdict {
    bad.into_iter().next().map_or(Ok(()), |bad| Err(describe(bad)))
}

fn jobs_have_records(state: &State) -> Verdict {
    none(state.positions().into_iter().filter(|(id, _)| !state.job.contains_key(id)), |(id, position)| {
        format!("{} in {position:?}", shown(&id))
    })
}

fn jobs_have_one_position(state: &State) -> Verdict {
    let positions = state.positions();
    let alone = |id: &&Vec<u8>| positions.get(*id).is_some_and(|positions| positions.len() == 1);
    none(state.job.keys().filter(|id| !alone(id)), |id| format!("{} is in {:?}", shown(id), positions.get(id)))
}

fn holds_are_counted(state: &State) -> Verdict {
    let nodes = state.conf.iter().filter(|(name, _)| name.len() == 36);
    let counts = nodes.map(|(node, count)| (shown(node), String::from_utf8_lossy(count).parse().unwrap_or(-1_000_000)));
    let mut excess: BTreeMap<String, i64> = counts.collect();
    for value in state.held.values() {
        *excess.entry(record_text::read_held(value).0).or_default() -= 1;
    }
    none(excess.into_iter().filter(|(_, excess)| *excess != 0), |(node, excess)| {
        format!("{excess} too many for {node}")
    })
}

fn holders_have_leases(state: &State) -> Verdict {
    let holders = state.held.values().map(|value| record_text::read_held(value).0);
    none(holders.filter(|node| !state.lease.contains_key(node.as_bytes())), |node| node)
}

/// Returns the newest fence.
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
    let is_marked = state.stale.is_empty() || state.conf.contains_key(&b"has_stale"[..]);
    if is_marked { Ok(()) } else { Err("conf does not mark stale tickets".into()) }
}

fn tickets_fit(state: &State) -> Verdict {
    let turn = |id: &[u8]| state.meta_of(id).map(|meta| meta.turn);
    let priority = |id: &[u8]| state.job.get(id).map(|record| record_text::priority_of(record));
    for (priority_index, ticket) in state.live() {
        let (id, priority_of_list) = (record_text::id_of(ticket), priority_index as u8);
        if priority(id) != Some(priority_of_list)
            || *ticket != record_text::ready_ticket(id, priority_of_list, turn(id))
        {
            return Err(format!("{} in list {priority_of_list}, turn {:?}", shown(ticket), turn(id)));
        }
    }
    let fits = |ticket: &Vec<u8>| {
        let id = record_text::id_of(ticket);
        state.job.get(id).is_some_and(|record| *ticket == record_text::due_ticket(id, record, turn(id)))
    };
    none(state.due.keys().filter(|ticket| !fits(ticket)), |ticket| format!("{} in the schedule", shown(ticket)))
}

/// Each group counts its dead jobs.
fn groups_are_counted(state: &State) -> Verdict {
    let mut excess: BTreeMap<Vec<u8>, i64> = BTreeMap::new();
    for (group, text) in &state.groups {
        let count = String::from_utf8_lossy(text.get(..10).unwrap_or_default()).parse().unwrap_or(-1_000_000);
        excess.insert(group.clone(), count);
    }
    let metas = state.dead.keys().filter_map(|id| state.meta.get(id));
    for group in metas.filter_map(|meta| meta.get(72..88)).filter(|group| !group.is_empty()) {
        *excess.entry(group.to_vec()).or_default() -= 1;
    }
    none(excess.into_iter().filter(|(_, excess)| *excess != 0), |(group, excess)| {
        format!("{excess} too many of {}", shown(&group))
    })
}

/// The index has scheduled jobs by due time, dead ones by time of death, and nothing else.
fn jobs_are_indexed(state: &State) -> Verdict {
    let mut members = BTreeSet::new();
    for (ticket, due) in &state.due {
        let (id, terms) = (
            record_text::id_of(ticket),
            state.job.get(record_text::id_of(ticket)).map(|record| record_text::index_terms(record)),
        );
        members.extend(record_text::members('s', &terms.unwrap_or_default(), &format!("{due:016}"), id));
    }
    for id in state.dead.keys() {
        let (Some(meta), Some(record)) = (state.meta.get(id), state.job.get(id)) else {
            return Err(format!("{} is dead, and has no meta", shown(id)));
        };
        let text = |from: usize, to: usize| String::from_utf8_lossy(&meta[from..to]).into_owned();
        let (died, group, terms) = (text(16, 32), text(72, 88), record_text::index_terms(record));
        if text(88, meta.len()) != terms {
            return Err(format!("{} has recorded {}, and is {terms}", shown(id), shown(&meta[88..])));
        }
        members.extend(record_text::members('b', &terms, &died, id));
        members.extend(
            [String::new(), format!("g{group}")].map(|word| [format!("b{word}\0{died}").as_bytes(), id].concat()),
        );
    }
    none(members.iter().filter(|member| !state.job_index.contains_key(*member)), |member| {
        format!("{} is not there", shown(member))
    })?;
    none(state.job_index.keys().filter(|member| !members.contains(*member)), |member| {
        format!("{} is there", shown(member))
    })
}

fn progress_fits(state: &State) -> Verdict {
    let of_no_job = state.progress.keys().filter(|field| !state.job.contains_key(record_text::id_of(field)));
    none(of_no_job, |field| format!("progress of no job: {}", shown(field)))
}

fn histories_fit(state: &State) -> Verdict {
    let whole = |id: &Vec<u8>| state.job.contains_key(id) && state.meta_of(id).is_some();
    none(state.meta.keys().filter(|id| !whole(id)), |id| format!("a meta of no job, or none: {}", shown(id)))?;
    let fits = |field: &Vec<u8>| {
        let suffix = String::from_utf8_lossy(&field[16..]);
        let n: u32 = if suffix.is_empty() { 0 } else { suffix.parse().unwrap_or(u32::MAX / 2) };
        let is_kept = |meta: Meta| n <= meta.runs && n + HISTORY > meta.runs;
        // The ack of a done job has no number, and the job may have no meta.
        state.job.contains_key(&field[..16]) && (n == 0 || state.meta_of(&field[..16]).is_some_and(is_kept))
    };
    none(state.runs.keys().filter(|field| !fits(field)), |field| format!("a run of no job: {}", shown(field)))
}

fn keys_fit(state: &State) -> Verdict {
    let positions = state.positions();
    let unfinished = |id: &Vec<u8>| positions.get(id).is_some_and(|at| at.iter().all(Position::is_unfinished));
    let key = |id: &Vec<u8>| state.job.get(id).map(|record| record_text::key_of(record)).unwrap_or_default();
    let fits = |(name, id): &(&Vec<u8>, &Vec<u8>)| unfinished(id) && key(id).as_bytes() == &name[..];
    none(state.unique.iter().filter(|entry| !fits(entry)), |(name, id)| {
        format!("{} names {}", shown(name), shown(id))
    })?;
    let keyed = state.job.keys().filter(|id| unfinished(id) && !key(id).is_empty());
    let named = |id: &&Vec<u8>| state.unique.get(key(id).as_bytes()) == Some(*id);
    none(keyed.filter(|id| !named(id)), |id| format!("{} does not name {}", key(id), shown(id)))
}

fn removed_jobs_have_no_record(state: &State) -> Verdict {
    none(state.gone.iter().flatten().filter(|id| state.job.contains_key(*id)), |id| shown(id))
}

/// Changes that no script may make in any state.
pub fn check_change(call: &Call, before: &State, after: &State) -> Verdict {
    let remembered = |id: &Vec<u8>| after.gone.iter().any(|half| half.contains(id));
    let removed = before.job.keys().filter(|id| !after.job.contains_key(*id) && call.script != "transfer_out");
    none(removed.filter(|id| !remembered(id)), |id| format!("{} was removed and is not remembered", shown(id)))?;
    transfers_are_respected(call, before, after)?;
    keys_are_freed_by_their_own(before, after)?;
    peers_check::check_change(call, before, after)?;
    crons::check_change(call, before, after)?;
    holds_are_respected(call, before, after)
}

/// Changes that no script may make in a sound state.
pub fn check_sound_change(call: &Call, before: &State, after: &State) -> Verdict {
    peers_check::check_sound_change(call, before, after)?;
    let reclaimed =
        before.held.iter().filter(|(id, value)| call.script == "claim" && after.held.get(*id) != Some(*value));
    none(reclaimed, |(id, _)| format!("{} was claimed while it was held", shown(id)))?;
    let (positions, claimed) = (before.positions(), after.held.keys().filter(|id| !before.held.contains_key(*id)));
    // Jobs deferred until that very time are offered to a node that has a handler.
    let is_adopted = |id: &Vec<u8>, due: i64| {
        let (record, turn) = (&before.job[id], before.meta_of(id).map(|meta| meta.turn));
        let hint = record_text::deferred_hint(
            "kind",
            record_text::priority_of(record),
            &record_text::due_ticket(id, record, turn),
            due,
        );
        before.deferred.contains_key(&hint) && call.rest().iter().any(|kind| kind == b"kind" || kind.is_empty())
    };
    let early = |id: &&Vec<u8>| {
        let due = positions.get(*id).and_then(|at| if let [Position::Due(due)] = at[..] { Some(due) } else { None });
        due.is_some_and(|due| due > call.now && !(call.script == "claim" && is_adopted(id, due)))
    };
    none(claimed.clone().filter(early), |id| format!("{} was claimed before it was due", shown(id)))?;
    let old = |id: &&Vec<u8>| record_text::read_held(&after.held[*id]).1 <= fence(before);
    none(claimed.clone().filter(old), |id| format!("{} was claimed under a fence that is not new", shown(id)))?;
    if call.script == "deliver_to_idle" { delivery_is_fair(call, before, after) } else { Ok(()) }
}

/// A job is delivered only to an idle node with a lease and a handler for the kind, and never ahead of other jobs.
fn delivery_is_fair(call: &Call, before: &State, after: &State) -> Verdict {
    let Some((_, value)) = after.held.iter().find(|(id, _)| !before.held.contains_key(*id)) else {
        return Ok(());
    };
    let node = record_text::read_held(value).0.into_bytes();
    let has_waiting =
        before.ready.iter().any(|list| !list.is_empty()) || before.due.values().any(|due| *due <= call.now);
    let is_alive = before.lease.get(&node).is_some_and(|ends| *ends > call.now);
    let unfair = [
        ("a queue with waiting jobs", has_waiting),
        ("a paused queue", before.conf.contains_key(&b"paused"[..])),
        ("a node without a lease", !is_alive),
        ("a node that is not idle", !before.idle.contains_key(&node)),
        ("a node without a handler", call.arg("kind") != SUBSCRIBED_KIND.as_bytes()),
        ("a node that stays idle", after.idle.contains_key(&node)),
    ];
    none(unfair.iter().filter(|(_, applies)| *applies), |(target, _)| format!("delivered to {target}"))
}

fn keys_are_freed_by_their_own(before: &State, after: &State) -> Verdict {
    let positions = after.positions();
    // A missing job has no key to lose, although its name may be left.
    let remains = |id: &Vec<u8>| before.job.contains_key(id) && after.job.contains_key(id);
    let is_waiting =
        |id: &Vec<u8>| remains(id) && positions.get(id).is_some_and(|at| at.iter().all(Position::is_unfinished));
    let freed = before.unique.iter().filter(|(name, id)| after.unique.get(*name) != Some(*id));
    none(freed.filter(|(_, id)| is_waiting(id)), |(name, id)| {
        format!("{} was taken from {}, which is not finished", shown(name), shown(id))
    })
}

/// A queue under transfer is changed only by its transfer; a transferred batch follows the known checkpoint.
fn transfers_are_respected(call: &Call, before: &State, after: &State) -> Verdict {
    let mark = before.conf.get(&b"transfer_mark"[..]);
    let (held, changed) = (after.held != before.held, after.job != before.job || after.meta != before.meta);
    let by = |script: &str| call.script == script;
    let is_change = by("remove") || by("reschedule") || by("cancel");
    if mark.is_some() && (((by("claim") || by("deliver_to_idle")) && held) || (is_change && changed)) {
        return Err("the queue is under transfer, and was changed".into());
    }
    if by("transfer_out") && changed && mark.is_none_or(|mark| mark[..36] != *call.node.as_bytes()) {
        return Err("transferred out by a node without the transfer mark".into());
    }
    let checkpoint = transfers::checkpoint(before);
    if by("transfer_in")
        && after != before
        && checkpoint != *call.arg("checkpoint_before")
        && checkpoint != *call.arg("checkpoint")
    {
        return Err("transferred in after an unknown checkpoint".into());
    }
    if !by("transfer_in") || after.job.len() == before.job.len() {
        return Ok(());
    }
    let is_known = |id: &Vec<u8>| before.gone.iter().any(|half| half.contains(id)) || after.job.contains_key(id);
    let missing = transfers::ids(call.rest()).into_iter().filter(|id| !is_known(id));
    none(missing, |id| format!("{} is missing from the transferred batch", shown(&id)))
}

/// A hold ends by a settle of its node, or after its lease has expired.
fn holds_are_respected(call: &Call, before: &State, after: &State) -> Verdict {
    // Only a job in two positions can be claimed while it is held: `check_sound_change` covers that.
    if call.script == "claim" {
        return Ok(());
    }
    for (id, value) in before.held.iter().filter(|(id, value)| after.held.get(*id) != Some(*value)) {
        let node = record_text::read_held(value).0;
        // A cancel adds its mark, and the holder does not know of that.
        let value = &value[..value.len().min(65)];
        let is_marked = call.script == "cancel" && after.held.get(id).is_some_and(|marked| marked.starts_with(value));
        if is_marked {
            continue;
        }
        let by_holder = call.script.starts_with("settle") && call.node == node && call.names(id, value);
        let lease_expired =
            call.script == "take_back" && before.lease.get(node.as_bytes()).is_none_or(|end| *end < call.now);
        // A repair drops a hold that belongs to no job.
        let is_orphan = call.script == "repair_job" && !before.job.contains_key(id);
        if !by_holder && !lease_expired && !is_orphan {
            return Err(format!("{} was taken from {node}", shown(id)));
        }
    }
    Ok(())
}
