//! Verifies all keys of a queue in small requests, then inspects each suspicious job again in one atomic request.
//! While clients work, most suspicious jobs only changed state between two requests.

use std::collections::{BTreeSet, HashMap};

use redis::Value;

use crate::error::{Error, Result};
use crate::job::{JobId, State};
use crate::store::redis::conn::ConnectionRole;
use crate::store::redis::keys::QueueKeys;
use crate::store::redis::maintenance::job_invariants::{
    ObservedJob, ObservedTicket, PRIORITY_LISTS, RecordHead, decode_holder,
};
use crate::store::redis::maintenance::verify_counts;
use crate::store::redis::maintenance::verify_counts::{CheckedQueue, ObservedCounts};
use crate::store::redis::maintenance::verify_cron;
use crate::store::redis::{Redis, script};
use crate::store::{Invariant, VerifyReport};

/// Entries per request.
pub(crate) const ENTRIES_PER_BATCH: usize = 500;
/// Records per request; their args come along.
const RECORDS_PER_BATCH: usize = 100;
/// Maximum suspicious jobs to inspect in one pass; more means that the queue changes too much.
const SUSPECTS_MAX: usize = 2_000;
/// Maximum jobs of a queue that is verified again if it changed during a pass.
const RECHECKED_JOBS_MAX: u64 = 10_000;
/// Maximum passes over a queue.
const PASSES_MAX: usize = 3;

/// The observed jobs of a queue, by the 16 bytes of their ids.
pub(crate) type ObservedJobs = HashMap<[u8; 16], ObservedJob>;

/// Implements `MaintenanceStore::verify`.
pub(crate) async fn verify(store: &Redis) -> Result<VerifyReport> {
    let mut report = VerifyReport::default();
    for queue in store.queue_names("verify").await? {
        let keys = store.keys(&queue);
        verify_queue(store, &keys, &mut report).await?;
        let violations = check_counters(store, &keys, false).await?;
        for (invariant, details) in violations {
            report.add_violation(invariant, Some(queue.clone()), None, details);
        }
        for violation in verify_cron::find_violations(store, &keys).await? {
            report.add_violation(violation.invariant, Some(queue.clone()), None, violation.description);
        }
    }
    report
        .violations
        .sort_by(|a, b| (a.invariant, &a.queue, a.id, &a.details).cmp(&(b.invariant, &b.queue, b.id, &b.details)));
    Ok(report)
}

async fn verify_queue(store: &Redis, keys: &QueueKeys, report: &mut VerifyReport) -> Result<()> {
    for pass in 1..=PASSES_MAX {
        let stored = verify_counts::read_stored_counts(store, keys).await?;
        let jobs = observe_queue(store, keys).await?;
        let is_unchanged = verify_counts::read_stored_counts(store, keys).await?.change_mark == stored.change_mark;
        let CheckedQueue { job_count, suspects, counts } = check_jobs(jobs).await?;
        // Counters can be compared only if the queue did not change: a small queue gets another pass.
        if !is_unchanged && suspects.len() <= SUSPECTS_MAX && job_count <= RECHECKED_JOBS_MAX && pass < PASSES_MAX {
            continue;
        }
        for (id, observed) in suspects.iter().take(SUSPECTS_MAX) {
            let id = *id;
            for (invariant, details) in inspect_job(store, keys, id, observed).await?.check(id) {
                report.add_violation(invariant, Some(keys.queue.to_string()), Some(id), details);
            }
        }
        for (invariant, details) in counts.violations(&stored).into_iter().filter(|_| is_unchanged) {
            report.add_violation(invariant, Some(keys.queue.to_string()), None, details);
        }
        // With a violation the store is not sound, whatever else there may be.
        if suspects.len() <= SUSPECTS_MAX || !report.violations.is_empty() {
            report.jobs += job_count;
            return Ok(());
        }
    }
    let queue = &keys.queue;
    Err(Error::store("verify", format!("queue {queue} changes too much to be verified; pause it and try again")))
}

/// Checks the observed jobs on a blocking thread, so that no attempt waits for it.
async fn check_jobs(jobs: ObservedJobs) -> Result<CheckedQueue> {
    let check = move || {
        let counts = ObservedCounts::from_jobs(&jobs);
        let job_count = jobs.values().filter(|observed| observed.head.is_some()).count() as u64;
        let by_id = jobs.into_iter().map(|(id, observed)| (JobId::from_bytes(id), observed));
        let suspects = by_id.filter(|(id, observed)| !observed.check(*id).is_empty()).take(SUSPECTS_MAX + 1).collect();
        CheckedQueue { job_count, suspects, counts }
    };
    let checked = tokio::task::spawn_blocking(check).await;
    checked.map_err(|e| Error::store("verify", format!("the check of the jobs stopped: {e}; start it again")))
}

/// Observes all keys of a queue: records first, then the states in the order that a job passes through. Few jobs that
/// change state meanwhile are missed in this order.
pub(crate) async fn observe_queue(store: &Redis, keys: &QueueKeys) -> Result<ObservedJobs> {
    let mut all = ObservedJobs::new();
    scan_pairs(store, keys, "HSCAN", &keys.job, RECORDS_PER_BATCH, |id, record| {
        if let Some(observed) = observed_job_mut(&mut all, &id) {
            observed.head = Some(RecordHead::from_record(JobId::from_bytes(id_bytes(&id)), &record));
        }
    })
    .await?;
    scan_pairs(store, keys, "ZSCAN", &keys.scheduled, ENTRIES_PER_BATCH, |ticket, due| {
        if let Some(observed) = observed_job_mut(&mut all, &ticket) {
            observed.ticket_mut(&ticket).due = Some(crate::store::redis::reply::parse_number(&due));
        }
    })
    .await?;
    for priority_list in 0..PRIORITY_LISTS {
        observe_ready_list(store, keys, priority_list, &mut all).await?;
    }
    scan_entries(store, keys, "SSCAN", &keys.stale, ENTRIES_PER_BATCH, |ticket| {
        if let Some(observed) = observed_job_mut(&mut all, &ticket) {
            observed.ticket_mut(&ticket).is_stale = true;
        }
    })
    .await?;
    let leases = leased_nodes(store, keys).await?;
    scan_pairs(store, keys, "HSCAN", &keys.running, ENTRIES_PER_BATCH, |id, value| {
        if let Some(observed) = observed_job_mut(&mut all, &id) {
            observed.holder_has_lease = decode_holder(&value).is_some_and(|node| leases.contains(&node.to_string()));
            observed.held = Some(value);
        }
    })
    .await?;
    observe_ended(store, keys, &mut all).await?;
    Ok(all)
}

async fn observe_ended(store: &Redis, keys: &QueueKeys, all: &mut ObservedJobs) -> Result<()> {
    for (key, state) in [(&keys.done, State::Done), (&keys.dead, State::Dead), (&keys.cancelled, State::Cancelled)] {
        scan_pairs(store, keys, "ZSCAN", key, ENTRIES_PER_BATCH, |id, until| {
            if let Some(observed) = observed_job_mut(all, &id) {
                let until = Some(crate::store::redis::reply::parse_number(&until));
                match state {
                    State::Done => observed.done = until,
                    State::Cancelled => observed.cancelled = until,
                    _ => observed.dead = until,
                }
            }
        })
        .await?;
    }
    scan_pairs(store, keys, "HSCAN", &keys.meta, ENTRIES_PER_BATCH, |id, meta| {
        if let Some(observed) = observed_job_mut(all, &id) {
            observed.meta = Some(meta);
        }
    })
    .await?;
    scan_pairs(store, keys, "HSCAN", &keys.runs, ENTRIES_PER_BATCH, |field, _| {
        let suffix = field.get(16..).and_then(|suffix| std::str::from_utf8(suffix).ok());
        let number = suffix.and_then(|suffix| if suffix.is_empty() { Some(0) } else { suffix.parse().ok() });
        if let (Some(observed), Some(number)) = (observed_job_mut(all, &field), number)
            && !observed.run_numbers.contains(&number)
        {
            observed.run_numbers.push(number);
        }
    })
    .await?;
    scan_pairs(store, keys, "HSCAN", &keys.progress, ENTRIES_PER_BATCH, |field, _| {
        // A job with any output has this field.
        if field.get(16..) == Some(b"n")
            && let Some(observed) = observed_job_mut(all, &field)
        {
            observed.has_output = true;
        }
    })
    .await?;
    scan_pairs(store, keys, "HSCAN", &keys.unique, ENTRIES_PER_BATCH, |key, id| {
        if let Some(observed) = observed_job_mut(all, &id) {
            let key = String::from_utf8_lossy(&key).into_owned();
            if !observed.unique_keys.contains(&key) {
                observed.unique_keys.push(key);
            }
        }
    })
    .await?;
    scan_pairs(store, keys, "ZSCAN", &keys.job_index, ENTRIES_PER_BATCH, |member, _| {
        if let Some(id) = member.last_chunk::<16>().copied() {
            all.entry(id).or_default().add_index_member(JobId::from_bytes(id), member);
        }
    })
    .await?;
    for half in &keys.removed {
        scan_entries(store, keys, "SSCAN", half, ENTRIES_PER_BATCH, |id| {
            // Only ids of existing jobs matter; most are removed.
            if let Some(observed) = id.first_chunk().and_then(|id: &[u8; 16]| all.get_mut(id)) {
                observed.is_gone = true;
            }
        })
        .await?;
    }
    Ok(())
}

/// Observes a ready list from its tail: claims take from the head and shift nothing.
async fn observe_ready_list(
    store: &Redis,
    keys: &QueueKeys,
    priority_list: usize,
    all: &mut ObservedJobs,
) -> Result<()> {
    let mut from_tail = 0;
    loop {
        let mut cmd = redis::cmd("LRANGE");
        let batch_len = ENTRIES_PER_BATCH as i64;
        cmd.arg(&keys.ready[priority_list]).arg(-from_tail - batch_len).arg(-from_tail - 1);
        let tickets =
            parse_byte_list(store.servers.send_idempotent("verify", ConnectionRole::Client, keys.slot, &cmd).await?)?;
        let is_last = (tickets.len() as i64) < batch_len;
        for ticket in &tickets {
            if let Some(observed) = observed_job_mut(all, ticket) {
                observed.ticket_mut(ticket).list_counts[priority_list] += 1;
            }
        }
        if is_last {
            return Ok(());
        }
        from_tail += batch_len;
    }
}

async fn leased_nodes(store: &Redis, keys: &QueueKeys) -> Result<std::collections::HashSet<String>> {
    let mut nodes = std::collections::HashSet::new();
    scan_pairs(store, keys, "ZSCAN", &keys.lease, ENTRIES_PER_BATCH, |node, _| {
        nodes.insert(String::from_utf8_lossy(&node).into_owned());
    })
    .await?;
    Ok(nodes)
}

/// Inspects one job in one atomic request, including the tickets, keys and members observed before.
pub(crate) async fn inspect_job(
    store: &Redis,
    keys: &QueueKeys,
    id: JobId,
    before: &ObservedJob,
) -> Result<ObservedJob> {
    let mut cmd = script::INSPECT_JOB.call(keys);
    let mut unique_keys = before.unique_keys.clone();
    unique_keys.extend(before.head.as_ref().map(|head| head.unique_key.clone()).filter(|key| !key.is_empty()));
    unique_keys.dedup();
    cmd.arg(store.manual_now()).arg(id.as_bytes()).arg(before.tickets.len()).arg(unique_keys.len());
    for ticket in &before.tickets {
        cmd.arg(&ticket.text[..]);
    }
    for key in &unique_keys {
        cmd.arg(key);
    }
    for member in &before.unexpected_members {
        cmd.arg(&member[..]);
    }
    let mut reply = store.run_script("verify", ConnectionRole::Client, keys.slot, &script::INSPECT_JOB, &cmd).await?;
    let non_empty = |bytes: Vec<u8>| Some(bytes).filter(|bytes| !bytes.is_empty());
    let head = non_empty(reply.bytes()?).map(|line| RecordHead {
        // The args are not part of the reply; the readability and due time observed with them never change.
        is_readable: before.head.as_ref().is_none_or(|head| head.is_readable),
        scheduled_due: before.head.as_ref().and_then(|head| head.scheduled_due),
        ..RecordHead::from_record(id, &[&line[..], b"\nnull"].concat())
    });
    let mut observed = ObservedJob { head, ..ObservedJob::default() };
    (observed.meta, observed.held) = (non_empty(reply.bytes()?), non_empty(reply.bytes()?));
    (observed.done, observed.dead) = (reply.optional_int()?, reply.optional_int()?);
    observed.cancelled = reply.optional_int()?;
    observed.is_gone = reply.int()? == 1;
    let _last_fence = reply.int()?;
    observed.holder_has_lease = reply.int()? == 1;
    for mut row in reply.rows()? {
        let mut ticket = ObservedTicket {
            text: row.bytes()?,
            due: row.optional_int()?,
            is_stale: row.int()? == 1,
            list_counts: [0; PRIORITY_LISTS],
        };
        for count in &mut ticket.list_counts {
            *count = usize::try_from(row.int()?).unwrap_or(0);
        }
        observed.tickets.push(ticket);
    }
    let holders = reply.list()?;
    let is_held = |key_index: &(usize, &String)| {
        holders.get(key_index.0).is_some_and(|holder| holder.as_deref() == Some(id.as_bytes()))
    };
    observed.unique_keys = unique_keys.iter().enumerate().filter(is_held).map(|(_, key)| key.clone()).collect();
    let members: BTreeSet<Vec<u8>> = reply.list()?.into_iter().flatten().collect();
    members.into_iter().for_each(|member| observed.add_index_member(id, member));
    observed.run_numbers = remaining_runs(store, keys, id, &before.run_numbers).await?;
    if before.has_output {
        let mut cmd = redis::cmd("HEXISTS");
        cmd.arg(&keys.progress).arg([id.as_bytes(), &b"n"[..]].concat());
        observed.has_output =
            store.servers.send_idempotent("verify", ConnectionRole::Client, keys.slot, &cmd).await? == Value::Int(1);
    }
    Ok(observed)
}

/// Returns the end of the field of a run: its number, or nothing for the ack of a done job, which counts as number 0.
pub(crate) fn run_suffix(number: u32) -> String {
    if number == 0 { String::new() } else { number.to_string() }
}

/// Returns which of these runs still exist: a removed job's runs are removed with it.
async fn remaining_runs(store: &Redis, keys: &QueueKeys, id: JobId, numbers: &[u32]) -> Result<Vec<u32>> {
    let mut remaining = Vec::new();
    for number in numbers {
        let mut cmd = redis::cmd("HEXISTS");
        cmd.arg(&keys.runs).arg([id.as_bytes(), run_suffix(*number).as_bytes()].concat());
        if store.servers.send_idempotent("verify", ConnectionRole::Client, keys.slot, &cmd).await? == Value::Int(1) {
            remaining.push(*number);
        }
    }
    Ok(remaining)
}

/// Checks the counters of a queue; with `repair`, also corrects them.
pub(crate) async fn check_counters(store: &Redis, keys: &QueueKeys, repair: bool) -> Result<Vec<(Invariant, String)>> {
    let mut cmd = script::VERIFY_HELD.call(keys);
    cmd.arg(store.manual_now()).arg(u8::from(repair));
    let mut reply =
        store.run_script_idempotent("verify", ConnectionRole::Client, keys.slot, &script::VERIFY_HELD, &cmd).await?;
    let mut violations = Vec::new();
    for mut row in reply.rows()? {
        let (node, held, counted) = (row.text()?, row.int()?, row.int()?);
        violations.push((Invariant::Holders, format!("node {node} holds {held} jobs, but {counted} are counted")));
    }
    let (highest, last) = (reply.int()?, reply.int()?);
    if highest > last {
        violations.push((Invariant::Sequences, format!("fence {highest} is higher than the last one given")));
    }
    if reply.int()? == 1 {
        violations.push((Invariant::Counts, "stale tickets exist, but the queue is not marked".to_owned()));
    }
    Ok(violations)
}

fn id_bytes(bytes: &[u8]) -> [u8; 16] {
    bytes.first_chunk().copied().unwrap_or_default()
}

/// Returns the observed job whose id starts these bytes.
fn observed_job_mut<'a>(all: &'a mut ObservedJobs, bytes: &[u8]) -> Option<&'a mut ObservedJob> {
    Some(all.entry(*bytes.first_chunk::<16>()?).or_default())
}

fn parse_byte_list(value: Value) -> Result<Vec<Vec<u8>>> {
    let wrong_type = |e| Error::store_with_cause("verify", format!("a key has an unexpected type: {e}"), e);
    redis::from_redis_value(value).map_err(wrong_type)
}

/// Scans all entries of a key. An entry that exists all the time is visited at least once.
async fn scan_entries(
    store: &Redis,
    keys: &QueueKeys,
    scan: &str,
    key: &str,
    count: usize,
    mut visit: impl FnMut(Vec<u8>),
) -> Result<()> {
    let mut cursor = b"0".to_vec();
    loop {
        let mut cmd = redis::cmd(scan);
        cmd.arg(key).arg(&cursor[..]).arg("COUNT").arg(count);
        let value = store.servers.send_idempotent("verify", ConnectionRole::Client, keys.slot, &cmd).await?;
        let wrong_type = |e| Error::store_with_cause("verify", format!("{key} has an unexpected type: {e}"), e);
        let (next, entries): (Vec<u8>, Vec<Vec<u8>>) = redis::from_redis_value(value).map_err(wrong_type)?;
        entries.into_iter().for_each(&mut visit);
        if next == b"0" {
            return Ok(());
        }
        cursor = next;
    }
}

/// Scans a key with pairs of entries. A pair may be visited twice.
pub(crate) async fn scan_pairs(
    store: &Redis,
    keys: &QueueKeys,
    scan: &str,
    key: &str,
    count: usize,
    mut visit: impl FnMut(Vec<u8>, Vec<u8>),
) -> Result<()> {
    let mut name = None;
    scan_entries(store, keys, scan, key, count, |entry| match name.take() {
        None => name = Some(entry),
        Some(name) => visit(name, entry),
    })
    .await
}
