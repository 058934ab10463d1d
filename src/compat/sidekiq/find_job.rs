//! Find: Sidekiq has no index by id, so whoever asks for one job looks through them all.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::SystemTime;

use crate::clock::{Micros, from_micros, micros};
use crate::compat::sidekiq::entry::Crash;
use crate::compat::sidekiq::keys::EntryKeys;
use crate::compat::sidekiq::scripts::COUNTS;
use crate::compat::sidekiq::{Sidekiq, entry, id, keys, told};
use crate::error::{Error, Result};
use crate::job::{Fence, JobId, Record, State};
use crate::node::NodeId;
use crate::store::redis::{QueueKeys, Way, sha1};

/// Entries read at a time.
const STEP: usize = 500;
/// Most entries of a queue or a set that are looked through for one.
const LOOK_MAX: usize = 200_000;

/// Where an entry is, with what that place says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    Ready,
    Schedule(Micros),
    Retry(Micros),
    Dead(Micros),
    Done(Micros),
    Running(NodeId, Fence, i64),
}

/// An entry and its place.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) queue: String,
    pub(super) at: At,
    pub(super) bytes: Arc<[u8]>,
}

impl Found {
    /// The job in it; `None` if there is none.
    pub(super) fn record(&self, crash: Option<&Crash>) -> Option<Record> {
        let read = entry::read(&self.queue, &self.bytes, crash).ok()?;
        let (state, node, fence) = match self.at {
            At::Ready => (State::Ready, None, None),
            At::Schedule(_) | At::Retry(_) => (State::Scheduled, None, None),
            At::Dead(_) => (State::Dead, None, None),
            At::Done(_) => (State::Done, None, None),
            At::Running(node, fence, _) => (State::Running, Some(node), Some(fence)),
        };
        let due = match self.at {
            At::Schedule(due) | At::Retry(due) => due,
            _ => read.due,
        };
        let ended = match self.at {
            At::Dead(at) => Some(at),
            // It is kept from its end on.
            At::Done(until) => Some(until - micros(read.job.keep)),
            _ => None,
        };
        Some(Record {
            job: read.job,
            state,
            due: from_micros(due),
            attempts: read.attempts,
            crashes: read.crashes,
            node,
            fence,
            ended: ended.map(from_micros),
            failures: read.failures,
            progress: None,
            result: None,
            log: Vec::new(),
        })
    }

    fn is(&self, id: JobId) -> bool {
        id_of(&self.queue, &self.bytes) == Some(id)
    }
}

fn id_of(queue: &str, bytes: &[u8]) -> Option<JobId> {
    entry::read(queue, bytes, None).ok().map(|read| read.job.id)
}

/// `get` of the contract.
pub(super) async fn get(store: &Sidekiq, id: JobId) -> Result<Option<Record>> {
    let Some(found) = find(store, "get", id).await? else {
        return Ok(None);
    };
    let crash = crash(store, "get", &found).await?;
    Ok(found.record(crash.as_ref()))
}

/// How often everything is gone through for an entry that is found nowhere: one that is retried meanwhile goes back to where
/// was looked already.
const PASSES: usize = 2;

/// The entry with this id, wherever it is.
pub(super) async fn find(store: &Sidekiq, op: &'static str, id: JobId) -> Result<Option<Found>> {
    for _ in 0..PASSES {
        if let Some(found) = find_once(store, op, id).await? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

async fn find_once(store: &Sidekiq, op: &'static str, id: JobId) -> Result<Option<Found>> {
    let queues = store.queues(op).await?;
    // In the order of an entry's life, so that one that moves on meanwhile is met later.
    for set in Set::WAITING {
        if let Some(found) = in_set(store, op, set, id).await? {
            return Ok(Some(found));
        }
    }
    for queue in &queues {
        if let Some(found) = in_queue(store, op, queue, id).await? {
            return Ok(Some(found));
        }
    }
    for queue in &queues {
        let keys = store.redis.keys(queue);
        let nodes = holders(store, op, &keys).await?;
        let running = held(store, op, &keys, &nodes).await?;
        if let Some(found) = running.into_iter().find(|one| one.is(id)) {
            return Ok(Some(found));
        }
        if let Some(found) = done(store, op, &keys, id).await? {
            return Ok(Some(found));
        }
    }
    match in_set(store, op, Set::Dead, id).await? {
        Some(found) => Ok(Some(found)),
        // It may have failed while we were looking.
        None => in_set(store, op, Set::Retry, id).await,
    }
}

/// Where these jobs of a queue are, by id and the moment of their push, as far as they are there and do not run. However
/// many there are, everything is gone through once, in the order of a move.
pub(super) async fn gather(
    store: &Sidekiq,
    op: &'static str,
    queue: &str,
    mut wanted: HashSet<(JobId, SystemTime)>,
) -> Result<Vec<((JobId, SystemTime), Found)>> {
    let mut all = Vec::new();
    let mut sort = |found: Vec<Found>, wanted: &mut HashSet<_>| {
        for one in found.into_iter().filter(|one| one.queue == queue) {
            let named = entry::read(queue, &one.bytes, None).ok().map(|read| (read.job.id, read.job.pushed));
            all.extend(named.filter(|named| wanted.remove(named)).map(|named| (named, one)));
        }
    };
    for set in [None, Some(Set::Schedule), Some(Set::Retry), Some(Set::Dead)] {
        let mut from = 0;
        while !wanted.is_empty() {
            let found = match set {
                Some(set) => page(store, op, set, from, STEP).await?,
                None => window(store, op, queue, from, STEP).await?,
            };
            from += STEP;
            let short = found.len() < STEP;
            sort(found, &mut wanted);
            if short {
                break;
            }
        }
    }
    for (id, _) in wanted.clone() {
        let kept = done(store, op, &store.redis.keys(queue), id).await?;
        sort(kept.into_iter().collect(), &mut wanted);
    }
    Ok(all)
}

/// Which of these ids a queue has, if it and the sets are small enough to be looked through.
pub(super) async fn among(
    store: &Sidekiq,
    op: &'static str,
    queue: &str,
    ids: &HashSet<JobId>,
    most: usize,
) -> Result<HashSet<JobId>> {
    let mut there = HashSet::new();
    if ids.is_empty() {
        return Ok(there);
    }
    let list = store.keys.queue(queue);
    let mut sizes = 0;
    for (command, key) in
        [("LLEN", &list), ("ZCARD", &store.keys.schedule), ("ZCARD", &store.keys.retry), ("ZCARD", &store.keys.dead)]
    {
        let mut cmd = redis::cmd(command);
        cmd.arg(key);
        sizes += told::<usize>(op, store.ask(op, &cmd).await?)?;
    }
    if sizes > most {
        return Ok(there);
    }
    let mut all: Vec<Found> = Vec::new();
    for set in Set::ALL {
        all.extend(page(store, op, set, 0, most).await?);
    }
    all.extend(window(store, op, queue, 0, most).await?);
    let keys = store.redis.keys(queue);
    all.extend(held(store, op, &keys, &holders(store, op, &keys).await?).await?);
    let here = all.iter().filter(|one| one.queue == queue);
    there.extend(here.filter_map(|one| id_of(queue, &one.bytes)).filter(|id| ids.contains(id)));
    Ok(there)
}

/// The sets that all queues share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Set {
    Schedule,
    Retry,
    Dead,
}

impl Set {
    pub(super) const ALL: [Set; 3] = [Set::Schedule, Set::Retry, Set::Dead];
    const WAITING: [Set; 2] = [Set::Retry, Set::Schedule];

    pub(super) fn key(self, store: &Sidekiq) -> &String {
        match self {
            Set::Schedule => &store.keys.schedule,
            Set::Retry => &store.keys.retry,
            Set::Dead => &store.keys.dead,
        }
    }

    fn found(self, (bytes, score): (Vec<u8>, f64)) -> Found {
        let score = (score * 1e6).round() as Micros;
        let at = match self {
            Set::Schedule => At::Schedule(score),
            Set::Retry => At::Retry(score),
            Set::Dead => At::Dead(score),
        };
        Found { queue: entry::queue_of(&bytes), at, bytes: bytes.into() }
    }
}

/// Entries of a set in its order.
pub(super) async fn page(store: &Sidekiq, op: &'static str, set: Set, from: usize, most: usize) -> Result<Vec<Found>> {
    let mut cmd = redis::cmd("ZRANGE");
    cmd.arg(set.key(store)).arg(from).arg(from + most - 1).arg("WITHSCORES");
    let members: Vec<(Vec<u8>, f64)> = told(op, store.ask(op, &cmd).await?)?;
    Ok(members.into_iter().map(|member| set.found(member)).collect())
}

/// Entries of a set from a moment on, in its order, without the first few.
pub(super) async fn set_since(
    store: &Sidekiq,
    op: &'static str,
    set: Set,
    moment: Micros,
    offset: usize,
    most: usize,
) -> Result<Vec<Found>> {
    // Moments there are seconds, and may have more digits than ours.
    let first = moment.saturating_sub(1) as f64 / 1e6;
    let mut cmd = redis::cmd("ZRANGE");
    cmd.arg(set.key(store)).arg(first).arg("+inf").arg("BYSCORE").arg("LIMIT").arg(offset).arg(most).arg("WITHSCORES");
    let members: Vec<(Vec<u8>, f64)> = told(op, store.ask(op, &cmd).await?)?;
    Ok(members.into_iter().map(|member| set.found(member)).collect())
}

/// Entries of a queue in the order of their claims, which is from the tail on.
pub(super) async fn window(
    store: &Sidekiq,
    op: &'static str,
    queue: &str,
    from: usize,
    most: usize,
) -> Result<Vec<Found>> {
    let (first, last) = (-(from as i64) - most as i64, -(from as i64) - 1);
    let mut cmd = redis::cmd("LRANGE");
    cmd.arg(store.keys.queue(queue)).arg(first).arg(last);
    let entries: Vec<Vec<u8>> = told(op, store.ask(op, &cmd).await?)?;
    let found = |bytes: Vec<u8>| Found { queue: queue.to_owned(), at: At::Ready, bytes: bytes.into() };
    Ok(entries.into_iter().rev().map(found).collect())
}

async fn in_set(store: &Sidekiq, op: &'static str, set: Set, id: JobId) -> Result<Option<Found>> {
    let pattern = id::jid(id).map_or_else(|| "*".to_owned(), |jid| format!("*{jid}*"));
    let (mut cursor, mut looked) = ("0".to_owned(), 0);
    while looked < LOOK_MAX {
        let mut cmd = redis::cmd("ZSCAN");
        cmd.arg(set.key(store)).arg(&cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(STEP);
        let (next, members): (String, Vec<(Vec<u8>, f64)>) = told(op, store.ask(op, &cmd).await?)?;
        if let Some(found) = members.into_iter().map(|member| set.found(member)).find(|one| one.is(id)) {
            return Ok(Some(found));
        }
        if next == "0" {
            return Ok(None);
        }
        (cursor, looked) = (next, looked + STEP);
    }
    Err(too_many(op, set.key(store)))
}

/// From the head on: what comes in meanwhile shows some entries twice, and hides none.
async fn in_queue(store: &Sidekiq, op: &'static str, queue: &str, id: JobId) -> Result<Option<Found>> {
    let list = store.keys.queue(queue);
    for from in (0..LOOK_MAX).step_by(STEP) {
        let mut cmd = redis::cmd("LRANGE");
        cmd.arg(&list).arg(from).arg(from + STEP - 1);
        let entries: Vec<Vec<u8>> = told(op, store.ask(op, &cmd).await?)?;
        let short = entries.len() < STEP;
        let found = |bytes: Vec<u8>| Found { queue: queue.to_owned(), at: At::Ready, bytes: bytes.into() };
        if let Some(found) = entries.into_iter().map(found).find(|one| one.is(id)) {
            return Ok(Some(found));
        }
        if short {
            return Ok(None);
        }
    }
    Err(too_many(op, &list))
}

fn too_many(op: &'static str, key: &str) -> Error {
    Error::store(op, format!("{key} holds more than {LOOK_MAX} entries, and Sidekiq has no index by id"))
}

/// A done job that is still kept.
async fn done(store: &Sidekiq, op: &'static str, keys: &QueueKeys, id: JobId) -> Result<Option<Found>> {
    let mut cmd = redis::cmd("ZSCORE");
    cmd.arg(&keys.done).arg(id.as_bytes());
    let Some(until) = told::<Option<f64>>(op, store.ask(op, &cmd).await?)? else {
        return Ok(None);
    };
    let mut cmd = redis::cmd("HGET");
    cmd.arg(&keys.job).arg(id.as_bytes());
    let bytes: Option<Vec<u8>> = told(op, store.ask(op, &cmd).await?)?;
    let found =
        |bytes: Vec<u8>| Found { queue: keys.queue.to_string(), at: At::Done(until as Micros), bytes: bytes.into() };
    Ok(bytes.map(found))
}

/// Done jobs that are kept until a moment or longer, those first that go next, without the first few.
pub(super) async fn done_since(
    store: &Sidekiq,
    op: &'static str,
    keys: &QueueKeys,
    moment: Micros,
    offset: usize,
    most: usize,
) -> Result<Vec<Found>> {
    let mut cmd = redis::cmd("ZRANGE");
    cmd.arg(&keys.done).arg(moment as f64).arg("+inf").arg("BYSCORE");
    cmd.arg("LIMIT").arg(offset).arg(most).arg("WITHSCORES");
    let ids: Vec<(Vec<u8>, f64)> = told(op, store.ask(op, &cmd).await?)?;
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let mut cmd = redis::cmd("HMGET");
    cmd.arg(&keys.job);
    for (id, _) in &ids {
        cmd.arg(&id[..]);
    }
    let entries: Vec<Option<Vec<u8>>> = told(op, store.ask(op, &cmd).await?)?;
    let found = |((_, until), bytes): ((Vec<u8>, f64), Option<Vec<u8>>)| Found {
        queue: keys.queue.to_string(),
        at: At::Done(until as Micros),
        bytes: bytes.unwrap_or_default().into(),
    };
    Ok(ids.into_iter().zip(entries).map(found).collect())
}

/// The nodes that hold something of a queue.
pub(super) async fn holders(store: &Sidekiq, op: &'static str, keys: &QueueKeys) -> Result<Vec<String>> {
    let mut cmd = COUNTS.call(&EntryKeys::new(&store.keys, keys));
    cmd.arg(store.manual_now());
    let mut reply = store.run(op, Way::Door, &COUNTS, &cmd).await?;
    let _paused = reply.int()?;
    let _moving = reply.text()?;
    let [_ready, _running, _done] = [reply.int()?, reply.int()?, reply.int()?];
    let names = reply.list()?.into_iter().flatten().filter_map(|name| String::from_utf8(name).ok());
    Ok(names.collect())
}

/// What nodes hold of a queue, in the order in which it was claimed.
pub(super) async fn held(store: &Sidekiq, op: &'static str, keys: &QueueKeys, nodes: &[String]) -> Result<Vec<Found>> {
    let mut all = Vec::new();
    for node in nodes {
        let mut cmd = redis::cmd("HGETALL");
        cmd.arg(keys::held_by(keys, node));
        let entries: Vec<(String, Vec<u8>)> = told(op, store.redis.ask(op, Way::Bodies, 0, &cmd).await?)?;
        let Ok(node) = node.parse::<NodeId>() else {
            continue;
        };
        for (field, bytes) in entries {
            let Some((Ok(fence), Ok(place))) = field.split_once(':').map(|(fence, at)| (fence.parse(), at.parse()))
            else {
                continue;
            };
            let at = At::Running(node, Fence(fence), place);
            all.push(Found { queue: keys.queue.to_string(), at, bytes: bytes.into() });
        }
    }
    all.sort_by_key(|one| match one.at {
        At::Running(_, fence, place) => (fence.0, place),
        _ => (0, 0),
    });
    Ok(all)
}

/// How often a node died while it held this entry, as far as the entry does not say so itself.
pub(super) async fn crash(store: &Sidekiq, op: &'static str, found: &Found) -> Result<Option<Crash>> {
    let keys = store.redis.keys(&found.queue);
    Ok(crashes(store, op, &keys, [&found.bytes[..]].into_iter()).await?.pop().flatten())
}

/// The same of many entries of a queue.
pub(super) async fn crashes<'e>(
    store: &Sidekiq,
    op: &'static str,
    keys: &QueueKeys,
    entries: impl Iterator<Item = &'e [u8]>,
) -> Result<Vec<Option<Crash>>> {
    let sums: Vec<String> = entries.map(|bytes| sha1(&String::from_utf8_lossy(bytes))).collect();
    if sums.is_empty() {
        return Ok(Vec::new());
    }
    let mut cmd = redis::cmd("HMGET");
    cmd.arg(keys::crashes(keys)).arg(&sums);
    let noted: Vec<Option<Vec<u8>>> = told(op, store.ask(op, &cmd).await?)?;
    Ok(noted.into_iter().map(|text| Crash::read(&text?)).collect())
}
