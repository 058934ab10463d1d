//! Finds entries. Sidekiq has no index by id, so a search for one job scans all of them.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::SystemTime;

use crate::clock::{Micros, from_micros, micros};
use crate::compat::sidekiq::entry::CrashRecord;
use crate::compat::sidekiq::{Sidekiq, convert_reply, counts, entry, id, keys, reserved};
use crate::error::{Error, Result};
use crate::job::{Failure, Fence, JobId, JobRecord, JobRun, RunOutcome, State};
use crate::node::NodeId;
use crate::store::redis::{ConnectionRole, QueueKeys, sha1};

/// Entries read at a time.
const ENTRIES_PER_BATCH: usize = 500;
/// Most entries of a queue or a set scanned in the search for one job.
const SCANNED_MAX: usize = 200_000;

/// The position of an entry, with its score or its hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryPosition {
    Ready,
    Schedule(Micros),
    Retry(Micros),
    Dead(Micros),
    Done(Micros),
    Running(NodeId, Fence, i64),
    /// Taken out of its position by a transfer: its state there, and its score if it was in a set.
    Reserved(State, Micros),
}

/// An entry and its position.
#[derive(Clone, Debug)]
pub(super) struct LocatedEntry {
    pub(super) queue: String,
    pub(super) position: EntryPosition,
    pub(super) bytes: Arc<[u8]>,
}

impl LocatedEntry {
    /// Returns the job of the entry; `None` if the entry is unreadable.
    pub(super) fn to_record(&self, crash: Option<&CrashRecord>) -> Option<JobRecord> {
        let entry = entry::parse_entry(&self.queue, &self.bytes, crash).ok()?;
        let (state, node, fence) = match self.position {
            EntryPosition::Ready => (State::Ready, None, None),
            EntryPosition::Schedule(_) | EntryPosition::Retry(_) => (State::Scheduled, None, None),
            EntryPosition::Dead(_) => (State::Dead, None, None),
            EntryPosition::Done(_) => (State::Done, None, None),
            EntryPosition::Running(node, fence, _) => (State::Running, Some(node), Some(fence)),
            EntryPosition::Reserved(state, _) => (state, None, None),
        };
        let due = match self.position {
            EntryPosition::Schedule(due)
            | EntryPosition::Retry(due)
            | EntryPosition::Reserved(State::Scheduled, due) => due,
            _ => entry.due,
        };
        let ended = match self.position {
            EntryPosition::Dead(died) | EntryPosition::Reserved(State::Dead, died) => Some(died),
            // The score is the end of the time to keep the job, which starts when it is done.
            EntryPosition::Done(until) | EntryPosition::Reserved(State::Done, until) => {
                Some(until - micros(entry.job.keep))
            }
            _ => None,
        };
        let ended = ended.map(from_micros);
        let record = JobRecord::new(entry.job, state, from_micros(due), entry.attempts, entry.crashes);
        let mut record = JobRecord { node, fence, ended, ..record };
        record.set_runs(runs_of_failures(entry.failures, state));
        Some(record)
    }

    fn has_id(&self, id: JobId) -> bool {
        entry_job_id(&self.queue, &self.bytes) == Some(id)
    }
}

fn entry_job_id(queue: &str, bytes: &[u8]) -> Option<JobId> {
    entry::parse_entry(queue, bytes, None).ok().map(|entry| entry.job.id)
}

/// Returns the failures of a job in this state as runs. Entries do not have their start, duration and output, nor acks.
fn runs_of_failures(failures: Vec<Failure>, state: State) -> Vec<JobRun> {
    let last = failures.len().saturating_sub(1);
    let to_run = |(index, failure): (usize, Failure)| {
        let outcome = match failure.error.as_str() {
            entry::NODE_DIED_ERROR => RunOutcome::Crash,
            _ if state == State::Dead && index == last => RunOutcome::Bury,
            _ => RunOutcome::Retry,
        };
        JobRun::failed(outcome, failure)
    };
    failures.into_iter().enumerate().map(to_run).collect()
}

/// Implements `JobStore::get`.
pub(super) async fn get(store: &Sidekiq, id: JobId) -> Result<Option<JobRecord>> {
    let Some(found) = find_entry(store, "get", id).await? else {
        return Ok(None);
    };
    let crash = read_crash(store, "get", &found).await?;
    Ok(found.to_record(crash.as_ref()))
}

/// Passes over all keys before an entry counts as missing: an entry retried during a pass moves back to keys already
/// scanned.
const FIND_PASSES: usize = 2;

/// Finds the entry with this id in all queues and sets.
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
    // In the order of an entry's life, so that an entry that moves on during the search is found later.
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
        let state = counts::read_queue(store, op, &keys).await?;
        let mut held = read_held(store, op, &keys, &state.holders).await?;
        held.extend(reserved::read(store, op, &keys, &state).await?);
        if let Some(found) = held.into_iter().find(|entry| entry.has_id(id)) {
            return Ok(Some(found));
        }
        if let Some(found) = find_done(store, op, &keys, id).await? {
            return Ok(Some(found));
        }
    }
    match find_in_set(store, op, JobSet::Dead, id).await? {
        Some(found) => Ok(Some(found)),
        // The job may have failed during the search.
        None => find_in_set(store, op, JobSet::Retry, id).await,
    }
}

/// Returns the positions of these jobs of a queue, given by id and push time; running and missing jobs are left out.
/// Scans each key once for all jobs, in the order of a transfer.
pub(super) async fn locate_jobs(
    store: &Sidekiq,
    op: &'static str,
    queue: &str,
    mut wanted: HashSet<(JobId, SystemTime)>,
) -> Result<Vec<((JobId, SystemTime), LocatedEntry)>> {
    let mut located = Vec::new();
    let mut collect = |found: Vec<LocatedEntry>, wanted: &mut HashSet<_>| {
        for one in found.into_iter().filter(|one| one.queue == queue) {
            let job = entry::parse_entry(queue, &one.bytes, None).ok().map(|entry| (entry.job.id, entry.job.pushed));
            located.extend(job.filter(|job| wanted.remove(job)).map(|job| (job, one)));
        }
    };
    for set in [None, Some(JobSet::Schedule), Some(JobSet::Retry), Some(JobSet::Dead)] {
        let mut from = 0;
        while !wanted.is_empty() {
            let found = match set {
                Some(set) => read_set_page(store, op, set, from, ENTRIES_PER_BATCH).await?,
                None => read_queue_page(store, op, queue, from, ENTRIES_PER_BATCH).await?,
            };
            from += ENTRIES_PER_BATCH;
            let is_last = found.len() < ENTRIES_PER_BATCH;
            collect(found, &mut wanted);
            if is_last {
                break;
            }
        }
    }
    for (id, _) in wanted.clone() {
        let done = find_done(store, op, &store.redis.keys(queue), id).await?;
        collect(done.into_iter().collect(), &mut wanted);
    }
    Ok(located)
}

/// Returns those of these ids that exist in a queue; only those that a transfer has reserved if the queue and the sets
/// hold more than `max` entries.
pub(super) async fn find_existing_ids(
    store: &Sidekiq,
    op: &'static str,
    queue: &str,
    ids: &HashSet<JobId>,
    max: usize,
) -> Result<HashSet<JobId>> {
    if ids.is_empty() {
        return Ok(HashSet::new());
    }
    let (keys, list) = (store.redis.keys(queue), store.keys.queue_key(queue));
    let state = counts::read_queue(store, op, &keys).await?;
    // Returns those of these entries that have one of the ids.
    let select = |entries: Vec<LocatedEntry>| {
        let of_queue = entries.into_iter().filter(|entry| entry.queue == queue);
        of_queue.filter_map(|entry| entry_job_id(queue, &entry.bytes)).filter(|id| ids.contains(id)).collect()
    };
    // Whatever the size of the queue, a transfer has reserved at most one batch of it.
    let mut existing: HashSet<JobId> = select(reserved::read(store, op, &keys, &state).await?);
    let mut size = 0;
    for (command, key) in
        [("LLEN", &list), ("ZCARD", &store.keys.schedule), ("ZCARD", &store.keys.retry), ("ZCARD", &store.keys.dead)]
    {
        let mut cmd = redis::cmd(command);
        cmd.arg(key);
        size += convert_reply::<usize>(op, store.send_idempotent(op, &cmd).await?)?;
    }
    if size > max {
        return Ok(existing);
    }
    let mut entries: Vec<LocatedEntry> = Vec::new();
    for set in JobSet::ALL {
        entries.extend(read_set_page(store, op, set, 0, max).await?);
    }
    entries.extend(read_queue_page(store, op, queue, 0, max).await?);
    entries.extend(read_held(store, op, &keys, &state.holders).await?);
    existing.extend(select(entries));
    Ok(existing)
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
        let position = match self {
            JobSet::Schedule => EntryPosition::Schedule(score),
            JobSet::Retry => EntryPosition::Retry(score),
            JobSet::Dead => EntryPosition::Dead(score),
        };
        LocatedEntry { queue: entry::parse_queue(&bytes), position, bytes: bytes.into() }
    }
}

/// Returns up to `max` entries of a set in its order, starting at index `from`.
pub(super) async fn read_set_page(
    store: &Sidekiq,
    op: &'static str,
    set: JobSet,
    from: usize,
    max: usize,
) -> Result<Vec<LocatedEntry>> {
    let mut cmd = redis::cmd("ZRANGE");
    cmd.arg(set.key(store)).arg(from).arg(from + max - 1).arg("WITHSCORES");
    let members: Vec<(Vec<u8>, f64)> = convert_reply(op, store.send_idempotent(op, &cmd).await?)?;
    Ok(members.into_iter().map(|member| set.locate(member)).collect())
}

/// Returns up to `max` entries of a set with this score or more, in its order, without the first `offset`.
pub(super) async fn read_set_since(
    store: &Sidekiq,
    op: &'static str,
    set: JobSet,
    score: Micros,
    offset: usize,
    max: usize,
) -> Result<Vec<LocatedEntry>> {
    // Scores are seconds, and may have more digits than microseconds.
    let first = score.saturating_sub(1) as f64 / 1e6;
    let mut cmd = redis::cmd("ZRANGE");
    cmd.arg(set.key(store)).arg(first).arg("+inf").arg("BYSCORE").arg("LIMIT").arg(offset).arg(max).arg("WITHSCORES");
    let members: Vec<(Vec<u8>, f64)> = convert_reply(op, store.send_idempotent(op, &cmd).await?)?;
    Ok(members.into_iter().map(|member| set.locate(member)).collect())
}

/// Returns up to `max` entries of a queue in the order of their claims, which starts at the tail of the list.
pub(super) async fn read_queue_page(
    store: &Sidekiq,
    op: &'static str,
    queue: &str,
    from: usize,
    max: usize,
) -> Result<Vec<LocatedEntry>> {
    let (first, last) = (-(from as i64) - max as i64, -(from as i64) - 1);
    let mut cmd = redis::cmd("LRANGE");
    cmd.arg(store.keys.queue_key(queue)).arg(first).arg(last);
    let entries: Vec<Vec<u8>> = convert_reply(op, store.send_idempotent(op, &cmd).await?)?;
    let found =
        |bytes: Vec<u8>| LocatedEntry { queue: queue.to_owned(), position: EntryPosition::Ready, bytes: bytes.into() };
    Ok(entries.into_iter().rev().map(found).collect())
}

async fn find_in_set(store: &Sidekiq, op: &'static str, set: JobSet, id: JobId) -> Result<Option<LocatedEntry>> {
    let pattern = id::jid_from_id(id).map_or_else(|| "*".to_owned(), |jid| format!("*{jid}*"));
    let (mut cursor, mut scanned) = ("0".to_owned(), 0);
    while scanned < SCANNED_MAX {
        let mut cmd = redis::cmd("ZSCAN");
        cmd.arg(set.key(store)).arg(&cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(ENTRIES_PER_BATCH);
        let (next, members): (String, Vec<(Vec<u8>, f64)>) = convert_reply(op, store.send_idempotent(op, &cmd).await?)?;
        if let Some(found) = members.into_iter().map(|member| set.locate(member)).find(|entry| entry.has_id(id)) {
            return Ok(Some(found));
        }
        if next == "0" {
            return Ok(None);
        }
        (cursor, scanned) = (next, scanned + ENTRIES_PER_BATCH);
    }
    Err(too_many_entries(op, set.key(store)))
}

/// Scans from the head: entries pushed during the scan shift others back, so some are seen twice and none is skipped.
async fn find_in_queue(store: &Sidekiq, op: &'static str, queue: &str, id: JobId) -> Result<Option<LocatedEntry>> {
    let list = store.keys.queue_key(queue);
    for from in (0..SCANNED_MAX).step_by(ENTRIES_PER_BATCH) {
        let mut cmd = redis::cmd("LRANGE");
        cmd.arg(&list).arg(from).arg(from + ENTRIES_PER_BATCH - 1);
        let entries: Vec<Vec<u8>> = convert_reply(op, store.send_idempotent(op, &cmd).await?)?;
        let is_last = entries.len() < ENTRIES_PER_BATCH;
        let found = |bytes: Vec<u8>| LocatedEntry {
            queue: queue.to_owned(),
            position: EntryPosition::Ready,
            bytes: bytes.into(),
        };
        if let Some(found) = entries.into_iter().map(found).find(|entry| entry.has_id(id)) {
            return Ok(Some(found));
        }
        if is_last {
            return Ok(None);
        }
    }
    Err(too_many_entries(op, &list))
}

fn too_many_entries(op: &'static str, key: &str) -> Error {
    Error::store(
        op,
        format!(
            "{key} holds more than {SCANNED_MAX} entries, and Sidekiq has no index by id; let workers empty it first"
        ),
    )
}

/// Finds a done job that has not been pruned.
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

/// Returns done jobs that are kept until this time or longer, the next to be pruned first, without the first `offset`.
pub(super) async fn read_done_since(
    store: &Sidekiq,
    op: &'static str,
    keys: &QueueKeys,
    until: Micros,
    offset: usize,
    max: usize,
) -> Result<Vec<LocatedEntry>> {
    let mut cmd = redis::cmd("ZRANGE");
    cmd.arg(&keys.done).arg(until as f64).arg("+inf").arg("BYSCORE");
    cmd.arg("LIMIT").arg(offset).arg(max).arg("WITHSCORES");
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

/// Returns the entries of a queue that these nodes hold, in the order of their claims.
pub(super) async fn read_held(
    store: &Sidekiq,
    op: &'static str,
    keys: &QueueKeys,
    nodes: &[String],
) -> Result<Vec<LocatedEntry>> {
    let mut held = Vec::new();
    for node in nodes {
        let mut cmd = redis::cmd("HGETALL");
        cmd.arg(keys::running_key_of(keys, node));
        let entries: Vec<(String, Vec<u8>)> =
            convert_reply(op, store.redis.send_idempotent(op, ConnectionRole::BulkRead, 0, &cmd).await?)?;
        let Ok(node) = node.parse::<NodeId>() else {
            continue;
        };
        for (field, bytes) in entries {
            let Some((fence, locator)) = field.split_once(':') else {
                continue;
            };
            let (Ok(fence), Ok(locator)) = (fence.parse(), locator.parse()) else {
                continue;
            };
            let position = EntryPosition::Running(node, Fence(fence), locator);
            held.push(LocatedEntry { queue: keys.queue.to_string(), position, bytes: bytes.into() });
        }
    }
    held.sort_by_key(|entry| match entry.position {
        EntryPosition::Running(_, fence, locator) => (fence.0, locator),
        _ => (0, 0),
    });
    Ok(held)
}

/// Returns the crashes of this entry that are not yet written into the entry itself.
pub(super) async fn read_crash(store: &Sidekiq, op: &'static str, found: &LocatedEntry) -> Result<Option<CrashRecord>> {
    let keys = store.redis.keys(&found.queue);
    Ok(read_crashes(store, op, &keys, [&found.bytes[..]].into_iter()).await?.pop().flatten())
}

/// Returns the crashes of several entries of a queue, as [`read_crash`] does.
pub(super) async fn read_crashes<'e>(
    store: &Sidekiq,
    op: &'static str,
    keys: &QueueKeys,
    entries: impl Iterator<Item = &'e [u8]>,
) -> Result<Vec<Option<CrashRecord>>> {
    let digests: Vec<String> = entries.map(|bytes| sha1(&String::from_utf8_lossy(bytes))).collect();
    if digests.is_empty() {
        return Ok(Vec::new());
    }
    let mut cmd = redis::cmd("HMGET");
    cmd.arg(keys::crashes_key(keys)).arg(&digests);
    let crashes: Vec<Option<Vec<u8>>> = convert_reply(op, store.send_idempotent(op, &cmd).await?)?;
    Ok(crashes.into_iter().map(|text| CrashRecord::decode(&text?)).collect())
}
