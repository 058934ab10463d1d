//! Arguments of the scripts that push.

use std::collections::BTreeSet;

use super::call::{Args, CHANNEL, Client};
use super::random_state::{self, LEASE};
use super::record_text::{self, Bytes};

/// The channel of deliveries, and the kind for which nodes are subscribed.
pub const DELIVERY: &str = "{q}:delivery:";
pub const SUBSCRIBED_KIND: &str = "subscribed";

/// More than a script passes to one command.
const MANY: usize = 2_500;
const MANY_ONE_IN: usize = 400;

struct NewJob {
    id: Bytes,
    priority: u8,
    key: String,
    /// `None` for jobs that are ready at once.
    due: Option<String>,
}

/// Jobs with new ids.
pub fn fresh(client: &mut Client<'_>, args: &mut Args) {
    let jobs = jobs(client, |client| (random_state::id(client.rng), String::new()));
    batch(&jobs, args);
}

/// One job with a new id, for an idle node.
pub fn one(client: &mut Client<'_>, args: &mut Args) {
    let (id, priority) = (random_state::id(client.rng), client.rng.u8(..4));
    args.add_all([CHANNEL, DELIVERY]);
    args.number(priority).add(&id).add(record_text::record(priority, "", "{}")).number(2);
    args.add(if client.rng.u8(..4) > 0 { SUBSCRIBED_KIND } else { "other" });
}

/// Jobs that may exist, or conflict with others; as the store sends them, each id and each key once.
pub fn checked(client: &mut Client<'_>, args: &mut Args) {
    let mut jobs = jobs(client, |client| {
        let key = client.world.keys[client.rng.usize(..client.world.keys.len())].clone();
        let id = if client.rng.bool() { random_state::id(client.rng) } else { client.job() };
        (id, if client.rng.bool() { key } else { String::new() })
    });
    let (mut ids, mut keys) = (BTreeSet::new(), BTreeSet::new());
    jobs.retain(|job| ids.insert(job.id.clone()) && (job.key.is_empty() || keys.insert(job.key.clone())));
    batch(&jobs, args);
    let after_ids: Vec<Bytes> = (0..client.rng.usize(..3)).map(|_| client.job()).collect();
    args.number(3 * LEASE).add("1").number(after_ids.len());
    args.add_all(&after_ids);
    for job in jobs.iter().filter(|job| !job.key.is_empty()) {
        args.add(&job.key).add(&job.id).add(if client.rng.bool() { "k" } else { "r" });
    }
}

fn jobs(client: &mut Client<'_>, mut choose: impl FnMut(&mut Client<'_>) -> (Bytes, String)) -> Vec<NewJob> {
    let many = client.rng.usize(..MANY_ONE_IN) == 0;
    let count = if many { MANY } else { client.rng.usize(1..6) };
    let mut jobs = Vec::with_capacity(count);
    for _ in 0..count {
        let (id, key) = choose(client);
        let due = client.rng.bool().then(|| client.due());
        jobs.push(NewJob { id, priority: client.rng.u8(..4), key, due });
    }
    jobs
}

/// Adds the batch in the order of the script: ready jobs by priority, then scheduled ones.
fn batch(jobs: &[NewJob], args: &mut Args) {
    args.add(CHANNEL);
    let (mut ready, scheduled): (Vec<&NewJob>, Vec<&NewJob>) = jobs.iter().partition(|job| job.due.is_none());
    ready.sort_by_key(|job| job.priority);
    for priority in 0..4 {
        args.number(ready.iter().filter(|job| job.priority == priority).count());
    }
    args.number(scheduled.len()).number(2 * jobs.len());
    for job in ready.iter().chain(&scheduled) {
        args.add(&job.id).add(record_text::record(job.priority, &job.key, "{}"));
    }
    for job in &ready {
        args.add(&job.id);
    }
    for job in &scheduled {
        args.add(job.due.as_deref().unwrap_or_default()).add(record_text::due_ticket(
            &job.id,
            &record_text::record(job.priority, &job.key, ""),
            None,
        ));
    }
}
