//! Arguments of the scripts that inspect one job and move it to one position.

use super::call::{Args, Client};
use super::record_text;
use super::state::Position;

/// Tickets and keys that a job may have.
pub fn inspect(client: &mut Client<'_>, args: &mut Args) {
    let id = client.job();
    let tickets = tickets(client, &id);
    let key = key(client, &id);
    args.add(&id).number(tickets.len()).number(key.iter().count());
    args.add_all(tickets);
    args.add_all(key);
    args.add_all(index_members(client, &id));
}

/// As the store sends it: a job stays in its position, a held one with its holder.
pub fn repair(client: &mut Client<'_>, args: &mut Args) {
    let (id, state) = (client.job(), client.state);
    let tickets = tickets(client, &id);
    let positions = state.positions().remove(&id).unwrap_or_default();
    let due = positions.iter().find_map(|position| if let Position::Due(due) = position { Some(*due) } else { None });
    let is_in = |position: &Position| positions.contains(position);
    let to = match (state.job.contains_key(&id), state.held.contains_key(&id)) {
        (false, _) => "none",
        (true, true) => "running",
        _ if positions.iter().any(|position| matches!(position, Position::Ready(_))) => "ready",
        _ if due.is_some() => "scheduled",
        _ if is_in(&Position::Dead) => "dead",
        _ if is_in(&Position::Done) => "done",
        _ if is_in(&Position::Cancelled) => "cancelled",
        _ => "ready",
    };
    let until = state.dead.get(&id).or(state.done.get(&id)).or(state.cancelled.get(&id)).copied();
    args.add(&id);
    args.add(state.meta.get(&id).cloned().unwrap_or_default());
    args.add(state.held.get(&id).cloned().unwrap_or_default());
    args.add(to).number(due.or(until).unwrap_or(0));
    let key = key(client, &id);
    args.add(key.clone().unwrap_or_default()).number(tickets.len());
    args.add_all(tickets);
    args.add_all(key.map(|key| format!("={key}")));
    args.add_all(index_members(client, &id).iter().map(|member| [&b"~"[..], member].concat()));
    if to == "none" {
        args.add("#1");
    }
}

/// Returns the job's members in the index.
fn index_members(client: &Client<'_>, id: &[u8]) -> Vec<record_text::Bytes> {
    client.state.job_index.keys().filter(|member| member.ends_with(id)).cloned().collect()
}

fn key(client: &Client<'_>, id: &[u8]) -> Option<String> {
    client.state.job.get(id).map(|record| record_text::key_of(record)).filter(|key| !key.is_empty())
}

fn tickets(client: &Client<'_>, id: &[u8]) -> Vec<record_text::Bytes> {
    let state = client.state;
    let all = state.ready.iter().flatten().chain(state.due.keys()).chain(&state.stale);
    let mut found: Vec<_> = all.filter(|ticket| record_text::id_of(ticket) == id).cloned().collect();
    found.sort();
    found.dedup();
    found
}
