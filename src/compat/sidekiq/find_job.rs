//! Find: Sidekiq has no index by id, so whoever asks for one job looks through them all.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::SystemTime;

use crate::clock::{Micros, from_micros, micros};
use crate::compat::sidekiq::entry::CrashRecord;
use crate::compat::sidekiq::keys::EntryKeys;
use crate::compat::sidekiq::scripts::COUNTS;
use crate::compat::sidekiq::{Sidekiq, convert_reply, entry, id, keys};
use crate::error::{Error, Result};
use crate::job::{Fence, JobId, JobRecord, State};
use crate::node::NodeId;
use crate::store::redis::{ConnectionRole, QueueKeys, sha1};

/// Entries read at a time.
const ENTRIES_PER_STEP: usize = 500;
/// Most entries of a queue or a set that are looked through for one.
const SCANNED_MAX: usize = 200_000;

/// Where an entry is, with what that place says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryPosition {
    Ready,
    Schedule(Micros),
    Retry(Micros),
    Dead(Micros),
    Done(Micros),
    Running(NodeId, Fence, i64),
}

/// An entry and its place.
#[derive(Clone, Debug)]
pub(super) struct LocatedEntry {
    pub(super) queue: String,
    pub(super) position: EntryPosition,
    pub(super) bytes: Arc<[u8]>,
}

impl LocatedEntry {
    /// The job in it; `None` if there is none.
    pub(super) fn to_record(&self, crash: Option<&CrashRecord>) -> Option<JobRecord> {
        let read = entry::parse_entry(&self.queue, &self.bytes, crash).ok()?;
        let (state, node, fence) = match self.position {
            EntryPosition::Ready => (State::Ready, None, None),
            EntryPosition::Schedule(_) | EntryPosition::Retry(_) => (State::Scheduled, None, None),
            EntryPosition::Dead(_) => (State::Dead, None, None),
            EntryPosition::Done(_) => (State::Done, None, None),
            EntryPosition::Running(node, fence, _) => (State::Running, Some(node), Some(fence)),
        };
        let due = match self.position {
            EntryPosition::Schedule(due) | EntryPosition::Retry(due) => due,
            _ => read.due,
        };
        let ended = match self.position {
            EntryPosition::Dead(at) => Some(at),
            // It is kept from its end on.
            EntryPosition::Done(until) => Some(until - micros(read.job.keep)),
            _ => None,
        };
        Some(JobRecord {
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

    fn has_id(&self, id: JobId) -> bool {
        entry_job_id(&self.queue, &self.bytes) == Some(id)
    }
}

fn entry_job_id(queue: &str, bytes: &[u8]) -> Option<JobId> {
    entry::parse_entry(queue, bytes, None).ok().map(|read| read.job.id)
}

/// `get` of the contract.
pub(super) async fn get(store: &Sidekiq, id: JobId) -> Result<Option<JobRecord>> {
    let Some(found) = find_entry(store, "get", id).await? else {
        return Ok(None);
    };
    let crash = read_crash(store, "get", &found).await?;
    Ok(found.to_record(crash.as_ref()))
}

/// How often everything is gone through for an entry that is found nowhere: one that is retried meanwhile goes back to where
/// was looked already.
const FIND_PASSES: usize = 2;

/// The entry with this id, wherever it is.
pub(super) async fn find_entry(store: &Sidekiq, op: &'static str, id: JobId) -> Result<Option<LocatedEntry>> {
    for _ in 0..FIND_PASSES {
        if let Some(found) = find_entry_once(store, op, id).await? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

async fn find_entry_once(store: &Sidekiq, op: &'static str, id: JobId) -> Result<Option<LocatedEntry>> {
    let queues = store.queue_names(op).await?;
    // In the order of an entry's life, so that one that moves on meanwhile is met later.
    for set in JobSet::WAITING {
        if let Some(found) = find_in_set(store, op, set, id).await? {
            return Ok(Some(found));
        }
    }
    for queue in &queues {
        if let Some(found) = find_in_queue(store, op, queue, id).await? {
            return Ok(Some(found));
        }
    }
    for queue in &queues {
        let keys = store.redis.keys(queue);
        let nodes = read_holding_nodes(store, op, &keys).await?;
        let running = read_held(store, op, &keys, &nodes).await?;
        if let Some(found) = running.into_iter().find(|one| one.has_id(id)) {
            return Ok(Some(found));
        }
        if let Some(found) = find_done(store, op, &keys, id).await? {
            return Ok(Some(found));
        }
    }
    match find_in_set(store, op, JobSet::Dead, id).await? {
        Some(found) => Ok(Some(found)),
        // It may have failed while we were looking.
        None => find_in_set(store, op, JobSet::Retry, id).await,
    }
}

/// Where these jobs of a queue are, by id and the moment of their push, as far as they are there and do not run. However
/// many there are, everything is gone through once, in the order of a move.
pub(super) async fn locate_jobs(
    store: &Sidekiq,
    op: &'static str,
    queue: &str,
    mut wanted: HashSet<(JobId, SystemTime)>,
) -> Result<Vec<((JobId, SystemTime), LocatedEntry)>> {
    let mut all = Vec::new();
    let mut sort = |found: Vec<LocatedEntry>, wanted: &mut HashSet<_>| {
        for one in found.into_iter().filter(|one| one.queue == queue) {
            let named = entry::parse_entry(queue, &one.bytes, None).ok().map(|read| (read.job.id, read.job.pushed));
            all.extend(named.filter(|named| wanted.remove(named)).map(|named| (named, one)));
        }
    };
    for set in [None, Some(JobSet::Schedule), Some(JobSet::Retry), Some(JobSet::Dead)] {
        let mut from = 0;
        while !wanted.is_empty() {
            let found = match set {
                Some(set) => read_set_page(store, op, set, from, ENTRIES_PER_STEP).await?,
                None => read_queue_page(store, op, queue, from, ENTRIES_PER_STEP).await?,
            };
            from += ENTRIES_PER_STEP;
            let short = found.len() < ENTRIES_PER_STEP;
            sort(found, &mut wanted);
            if short {
                break;
            }
        }
    }
    for (id, _) in wanted.clone() {
        let kept = find_done(store, op, &store.redis.keys(queue), id).await?;
        sort(kept.into_iter().collect(), &mut wanted);
    }
    Ok(all)
}

/// Which of these ids a queue has, if it and the sets are small enough to be looked through.
pub(super) async fn find_existing_ids(
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
    let list = store.keys.queue_key(queue);
    let mut sizes = 0;
    for (command, key) in
        [("LLEN", &list), ("ZCARD", &store.keys.schedule), ("ZCARD", &store.keys.retry), ("ZCARD", &store.keys.dead)]
    {
        let mut cmd = redis::cmd(command);
        cmd.arg(key);
        sizes += convert_reply::<usize>(op, store.send_idempotent(op, &cmd).await?)?;
    }
    if sizes > most {
        return Ok(there);
    }
    let mut all: Vec<LocatedEntry> = Vec::new();
    for set in JobSet::ALL {
        all.extend(read_set_page(store, op, set, 0, most).await?);
    }
    all.extend(read_queue_page(store, op, queue, 0, most).await?);
    let keys = store.redis.keys(queue);
    all.extend(read_held(store, op, &keys, &read_holding_nodes(store, op, &keys).await?).await?);
    let here = all.iter().filter(|one| one.queue == queue);
    there.extend(here.filter_map(|one| entry_job_id(queue, &one.bytes)).filter(|id| ids.contains(id)));
    Ok(there)
}

/// The sets that all queues share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JobSet {
    Schedule,
    Retry,
    Dead,
}

impl JobSet {
    pub(super) const ALL: [JobSet; 3] = [JobSet::Schedule, JobSet::Retry, JobSet::Dead];
    const WAITING: [JobSet; 2] = [JobSet::Retry, JobSet::Schedule];

    pub(super) fn key(self, store: &Sidekiq) -> &String {
        match self {
            JobSet::Schedule => &store.keys.schedule,
            JobSet::Retry => &store.keys.retry,
            JobSet::Dead => &store.keys.dead,
        }
    }

    fn locate(self, (bytes, score): (Vec<u8>, f64)) -> LocatedEntry {
        let score = (score * 1e6).round() as Micros;
        let at = match self {
            JobSet::Schedule => EntryPosition::Schedule(score),
            JobSet::Retry => EntryPosition::Retry(score),
            JobSet::Dead => EntryPosition::Dead(score),
        };
        LocatedEntry { queue: entry::parse_queue(&bytes), position: at, bytes: bytes.into() }
    }
}

/// Entries of a set in its order.
pub(super) async fn read_set_page(
    store: &Sidekiq,
    op: &'static str,
    set: JobSet,
    from: usize,
    most: usize,
) -> Result<Vec<LocatedEntry>> {
    let mut cmd = redis::cmd("ZRANGE");
    cmd.arg(set.key(store)).arg(from).arg(from + most - 1).arg("WITHSCORES");
    let members: Vec<(Vec<u8>, f64)> = convert_reply(op, store.send_idempotent(op, &cmd).await?)?;
    Ok(members.into_iter().map(|member| set.locate(member)).collect())
}

/// Entries of a set from a moment on, in its order, without the first few.
pub(super) async fn read_set_since(
    store: &Sidekiq,
    op: &'static str,
    set: JobSet,
    moment: Micros,
    offset: usize,
    most: usize,
) -> Result<Vec<LocatedEntry>> {
    // Moments there are seconds, and may have more digits than ours.
    let first = moment.saturating_sub(1) as f64 / 1e6;
    let mut cmd = redis::cmd("ZRANGE");
    cmd.arg(set.key(store)).arg(first).arg("+inf").arg("BYSCORE").arg("LIMIT").arg(offset).arg(most).arg("WITHSCORES");
    let members: Vec<(Vec<u8>, f64)> = convert_reply(op, store.send_idempotent(op, &cmd).await?)?;
    Ok(members.into_iter().map(|member| set.locate(member)).collect())
}

/// Entries of a queue in the order of their claims, which is from the tail on.
pub(super) async fn read_queue_page(
    store: &Sidekiq,
    op: &'static str,
    queue: &str,
    from: usize,
    most: usize,
) -> Result<Vec<LocatedEntry>> {
    let (first, last) = (-(from as i64) - most as i64, -(from as i64) - 1);
    let mut cmd = redis::cmd("LRANGE");
    cmd.arg(store.keys.queue_key(queue)).arg(first).arg(last);
    let entries: Vec<Vec<u8>> = convert_reply(op, store.send_idempotent(op, &cmd).await?)?;
    let found =
        |bytes: Vec<u8>| LocatedEntry { queue: queue.to_owned(), position: EntryPosition::Ready, bytes: bytes.into() };
    Ok(entries.into_iter().rev().map(found).collect())
}

async fn find_in_set(store: &Sidekiq, op: &'static str, set: JobSet, id: JobId) -> Result<Option<LocatedEntry>> {
    let pattern = id::jid_from_id(id).map_or_else(|| "*".to_owned(), |jid| format!("*{jid}*"));
    let (mut cursor, mut looked) = ("0".to_owned(), 0);
    while looked < SCANNED_MAX {
        let mut cmd = redis::cmd("ZSCAN");
        cmd.arg(set.key(store)).arg(&cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(ENTRIES_PER_STEP);
        let (next, members): (String, Vec<(Vec<u8>, f64)>) = convert_reply(op, store.send_idempotent(op, &cmd).await?)?;
        if let Some(found) = members.into_iter().map(|member| set.locate(member)).find(|one| one.has_id(id)) {
            return Ok(Some(found));
        }
        if next == "0" {
            return Ok(None);
        }
        (cursor, looked) = (next, looked + ENTRIES_PER_STEP);
    }
    Err(too_many_entries(op, set.key(store)))
}

/// From the head on: what comes in meanwhile shows some entries twice, and hides none.
async fn find_in_queue(store: &Sidekiq, op: &'static str, queue: &str, id: JobId) -> Result<Option<LocatedEntry>> {
    let list = store.keys.queue_key(queue);
    for from in (0..SCANNED_MAX).step_by(ENTRIES_PER_STEP) {
        let mut cmd = redis::cmd("LRANGE");
        cmd.arg(&list).arg(from).arg(from + ENTRIES_PER_STEP - 1);
        let entries: Vec<Vec<u8>> = convert_reply(op, store.send_idempotent(op, &cmd).await?)?;
        let short = entries.len() < ENTRIES_PER_STEP;
        let found = |bytes: Vec<u8>| LocatedEntry {
            queue: queue.to_owned(),
            position: EntryPosition::Ready,
            bytes: bytes.into(),
        };
        if let Some(found) = entries.into_iter().map(found).find(|one| one.has_id(id)) {
            return Ok(Some(found));
        }
        if short {
            return Ok(None);
        }
    }
    Err(too_many_entries(op, &list))
}

fn too_many_entries(op: &'static str, key: &str) -> Error {
    Error::store(op, format!("{key} holds more than {SCANNED_MAX} entries, and Sidekiq has no index by id"))
}

/// A done job that is still kept.
async fn find_done(store: &Sidekiq, op: &'static str, keys: &QueueKeys, id: JobId) -> Result<Option<LocatedEntry>> {
    let mut cmd = redis::cmd("ZSCORE");
    cmd.arg(&keys.done).arg(id.as_bytes());
    let Some(until) = convert_reply::<Option<f64>>(op, store.send_idempotent(op, &cmd).await?)? else {
        return Ok(None);
    };
    let mut cmd = redis::cmd("HGET");
    cmd.arg(&keys.job).arg(id.as_bytes());
    let bytes: Option<Vec<u8>> = convert_reply(op, store.send_idempotent(op, &cmd).await?)?;
    let found = |bytes: Vec<u8>| LocatedEntry {
        queue: keys.queue.to_string(),
        position: EntryPosition::Done(until as Micros),
        bytes: bytes.into(),
    };
    Ok(bytes.map(found))
}

/// Done jobs that are kept until a moment or longer, those first that go next, without the first few.
pub(super) async fn read_done_since(
    store: &Sidekiq,
    op: &'static str,
    keys: &QueueKeys,
    moment: Micros,
    offset: usize,
    most: usize,
) -> Result<Vec<LocatedEntry>> {
    let mut cmd = redis::cmd("ZRANGE");
    cmd.arg(&keys.done).arg(moment as f64).arg("+inf").arg("BYSCORE");
    cmd.arg("LIMIT").arg(offset).arg(most).arg("WITHSCORES");
    let ids: Vec<(Vec<u8>, f64)> = convert_reply(op, store.send_idempotent(op, &cmd).await?)?;
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let mut cmd = redis::cmd("HMGET");
    cmd.arg(&keys.job);
    for (id, _) in &ids {
        cmd.arg(&id[..]);
    }
    let entries: Vec<Option<Vec<u8>>> = convert_reply(op, store.send_idempotent(op, &cmd).await?)?;
    let found = |((_, until), bytes): ((Vec<u8>, f64), Option<Vec<u8>>)| LocatedEntry {
        queue: keys.queue.to_string(),
        position: EntryPosition::Done(until as Micros),
        bytes: bytes.unwrap_or_default().into(),
    };
    Ok(ids.into_iter().zip(entries).map(found).collect())
}

/// The nodes that hold something of a queue.
pub(super) async fn read_holding_nodes(store: &Sidekiq, op: &'static str, keys: &QueueKeys) -> Result<Vec<String>> {
    let mut cmd = COUNTS.call(&EntryKeys::new(&store.keys, keys));
    cmd.arg(store.manual_now());
    let mut reply = store.run_script(op, ConnectionRole::Client, &COUNTS, &cmd).await?;
    let _paused = reply.int()?;
    let _moving = reply.text()?;
    let [_ready, _running, _done] = [reply.int()?, reply.int()?, reply.int()?];
    let names = reply.list()?.into_iter().flatten().filter_map(|name| String::from_utf8(name).ok());
    Ok(names.collect())
}

/// What nodes hold of a queue, in the order in which it was claimed.
pub(super) async fn read_held(
    store: &Sidekiq,
    op: &'static str,
    keys: &QueueKeys,
    nodes: &[String],
) -> Result<Vec<LocatedEntry>> {
    let mut all = Vec::new();
    for node in nodes {
        let mut cmd = redis::cmd("HGETALL");
        cmd.arg(keys::held_key_of(keys, node));
        let entries: Vec<(String, Vec<u8>)> =
            convert_reply(op, store.redis.send_idempotent(op, ConnectionRole::BulkRead, 0, &cmd).await?)?;
        let Ok(node) = node.parse::<NodeId>() else {
            continue;
        };
        for (field, bytes) in entries {
            let Some((Ok(fence), Ok(place))) = field.split_once(':').map(|(fence, at)| (fence.parse(), at.parse()))
            else {
                continue;
            };
            let at = EntryPosition::Running(node, Fence(fence), place);
            all.push(LocatedEntry { queue: keys.queue.to_string(), position: at, bytes: bytes.into() });
        }
    }
    all.sort_by_key(|one| match one.position {
        EntryPosition::Running(_, fence, place) => (fence.0, place),
        _ => (0, 0),
    });
    Ok(all)
}

/// How often a node died while it held this entry, as far as the entry does not say so itself.
pub(super) async fn read_crash(store: &Sidekiq, op: &'static str, found: &LocatedEntry) -> Result<Option<CrashRecord>> {
    let keys = store.redis.keys(&found.queue);
    Ok(read_crashes(store, op, &keys, [&found.bytes[..]].into_iter()).await?.pop().flatten())
}

/// The same of many entries of a queue.
pub(super) async fn read_crashes<'e>(
    store: &Sidekiq,
    op: &'static str,
    keys: &QueueKeys,
    entries: impl Iterator<Item = &'e [u8]>,
) -> Result<Vec<Option<CrashRecord>>> {
    let sums: Vec<String> = entries.map(|bytes| sha1(&String::from_utf8_lossy(bytes))).collect();
    if sums.is_empty() {
        return Ok(Vec::new());
    }
    let mut cmd = redis::cmd("HMGET");
    cmd.arg(keys::crashes_key(keys)).arg(&sums);
    let noted: Vec<Option<Vec<u8>>> = convert_reply(op, store.send_idempotent(op, &cmd).await?)?;
    Ok(noted.into_iter().map(|text| CrashRecord::decode(&text?)).collect())
}
