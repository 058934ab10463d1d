//! Arguments of the scripts that look at one job and put it into one place.

use super::call::{Args, Client};
use super::record_text;
use super::state::Place;

/// Tickets and keys that a job may have, as somebody saw them.
pub fn inspect(client: &mut Client<'_>, args: &mut Args) {
    let id = client.job();
    let tickets = tickets(client, &id);
    let key = key(client, &id);
    args.add(&id).number(tickets.len()).number(key.iter().count());
    args.add_all(tickets);
    args.add_all(key);
    args.add_all(found(client, &id));
}

/// As the store would ask for it: a job stays where it is, a held one with its holder.
pub fn mend(client: &mut Client<'_>, args: &mut Args) {
    let (id, state) = (client.job(), client.state);
    let tickets = tickets(client, &id);
    let at = state.places().remove(&id).unwrap_or_default();
    let due = at.iter().find_map(|place| if let Place::Due(due) = place { Some(*due) } else { None });
    let ended = |place: &Place| at.contains(place);
    let to = match (state.job.contains_key(&id), state.held.contains_key(&id)) {
        (false, _) => "none",
        (true, true) => "held",
        _ if at.iter().any(|place| matches!(place, Place::Ready(_))) => "ready",
        _ if due.is_some() => "due",
        _ if ended(&Place::Dead) => "dead",
        _ if ended(&Place::Done) => "done",
        _ => "ready",
    };
    let until = state.dead.get(&id).or(state.done.get(&id)).copied();
    args.add(&id);
    args.add(state.meta.get(&id).cloned().unwrap_or_default());
    args.add(state.held.get(&id).cloned().unwrap_or_default());
    args.add(to).number(due.or(until).unwrap_or(0));
    let key = key(client, &id);
    args.add(key.clone().unwrap_or_default()).number(tickets.len());
    args.add_all(tickets);
    args.add_all(key.map(|key| format!("={key}")));
    args.add_all(found(client, &id).iter().map(|member| [&b"~"[..], member].concat()));
    if to == "none" {
        args.add("#1");
    }
}

/// Where the index names it.
fn found(client: &Client<'_>, id: &[u8]) -> Vec<record_text::Bytes> {
    client.state.find.keys().filter(|member| member.ends_with(id)).cloned().collect()
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
