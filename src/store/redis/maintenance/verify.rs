//! Verify: goes through all keys of a queue in small steps, then looks once more, at one moment, at every job of which
//! something seemed wrong. While others work most of these are jobs that moved between two steps.

use std::collections::{BTreeSet, HashMap};

use redis::Value;

use crate::error::{Error, Result};
use crate::job::JobId;
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

/// Entries asked for in one step.
pub(crate) const ENTRIES_PER_STEP: usize = 500;
/// Records asked for in one step: their args come along.
const RECORDS_PER_STEP: usize = 100;
/// Most jobs of a queue that are looked at once more in one pass: more means that too much moves.
const SUSPECTS_MAX: usize = 2_000;
/// A queue of so many jobs is gone through again if it did not keep still.
const RECHECKED_JOBS_MAX: u64 = 10_000;
/// Most passes through a queue.
const PASSES_MAX: usize = 3;

/// All that was seen of a queue, by the 16 bytes of each id.
pub(crate) type ObservedJobs = HashMap<[u8; 16], ObservedJob>;

/// `verify` of the contract.
pub(crate) async fn verify(store: &Redis) -> Result<VerifyReport> {
    let mut verified = VerifyReport::default();
    for queue in store.queue_names("verify").await? {
        let keys = store.keys(&queue);
        verify_queue(store, &keys, &mut verified).await?;
        let tally = check_counters(store, &keys, false).await?;
        for (rule, what) in tally {
            verified.add_violation(rule, Some(queue.clone()), None, what);
        }
        for wrong in verify_cron::find_violations(store, &keys).await? {
            verified.add_violation(wrong.invariant, Some(queue.clone()), None, wrong.description);
        }
    }
    verified
        .violations
        .sort_by(|a, b| (a.invariant, &a.queue, a.id, &a.details).cmp(&(b.invariant, &b.queue, b.id, &b.details)));
    Ok(verified)
}

async fn verify_queue(store: &Redis, keys: &QueueKeys, verified: &mut VerifyReport) -> Result<()> {
    for pass in 1..=PASSES_MAX {
        let told = verify_counts::read_stored_counts(store, keys).await?;
        let all = observe_queue(store, keys).await?;
        let still = verify_counts::read_stored_counts(store, keys).await?.change_mark == told.change_mark;
        let CheckedQueue { job_count: jobs, suspects, counts: counted } = check_jobs(all).await?;
        // What is counted can be told only of a queue that keeps still: a small one is given another chance.
        if !still && suspects.len() <= SUSPECTS_MAX && jobs <= RECHECKED_JOBS_MAX && pass < PASSES_MAX {
            continue;
        }
        for (id, seen) in suspects.iter().take(SUSPECTS_MAX) {
            let id = *id;
            for (rule, what) in inspect_job(store, keys, id, seen).await?.check(id) {
                verified.add_violation(rule, Some(keys.queue.to_string()), Some(id), what);
            }
        }
        for (rule, what) in counted.violations(&told).into_iter().filter(|_| still) {
            verified.add_violation(rule, Some(keys.queue.to_string()), None, what);
        }
        // With a breach found the store is not sound, whatever else there may be.
        if suspects.len() <= SUSPECTS_MAX || !verified.violations.is_empty() {
            verified.jobs += jobs;
            return Ok(());
        }
    }
    let queue = &keys.queue;
    Err(Error::store(
        "verify",
        format!("too much moves in queue {queue} to be sure of anything; pause it and try again"),
    ))
}

/// What was seen, judged. Apart, so that no attempt waits for it.
async fn check_jobs(all: ObservedJobs) -> Result<CheckedQueue> {
    let judge = move || {
        let counted = ObservedCounts::from_jobs(&all);
        let jobs = all.values().filter(|seen| seen.head.is_some()).count() as u64;
        let named = all.into_iter().map(|(id, seen)| (JobId::from_bytes(id), seen));
        let suspects = named.filter(|(id, seen)| !seen.check(*id).is_empty()).take(SUSPECTS_MAX + 1).collect();
        CheckedQueue { job_count: jobs, suspects, counts: counted }
    };
    let judged = tokio::task::spawn_blocking(judge).await;
    judged.map_err(|e| Error::store("verify", format!("the look through the jobs has ended: {e}")))
}

/// All keys of a queue, in an order in which few jobs are missed that move meanwhile: records first, then the places that
/// a job goes through, each before the next.
pub(crate) async fn observe_queue(store: &Redis, keys: &QueueKeys) -> Result<ObservedJobs> {
    let mut all = ObservedJobs::new();
    scan_pairs(store, keys, "HSCAN", &keys.job, RECORDS_PER_STEP, |id, record| {
        if let Some(seen) = observed_job_mut(&mut all, &id) {
            seen.head = Some(RecordHead::from_record(JobId::from_bytes(id_bytes(&id)), &record));
        }
    })
    .await?;
    scan_pairs(store, keys, "ZSCAN", &keys.due, ENTRIES_PER_STEP, |ticket, due| {
        if let Some(seen) = observed_job_mut(&mut all, &ticket) {
            seen.ticket_mut(&ticket).due = Some(crate::store::redis::reply::parse_number(&due));
        }
    })
    .await?;
    for lane in 0..PRIORITY_LISTS {
        observe_ready_list(store, keys, lane, &mut all).await?;
    }
    scan_entries(store, keys, "SSCAN", &keys.stale, ENTRIES_PER_STEP, |ticket| {
        if let Some(seen) = observed_job_mut(&mut all, &ticket) {
            seen.ticket_mut(&ticket).is_stale = true;
        }
    })
    .await?;
    let leases = leased_nodes(store, keys).await?;
    scan_pairs(store, keys, "HSCAN", &keys.held, ENTRIES_PER_STEP, |id, value| {
        if let Some(seen) = observed_job_mut(&mut all, &id) {
            seen.holder_has_lease = decode_holder(&value).is_some_and(|node| leases.contains(&node.to_string()));
            seen.held = Some(value);
        }
    })
    .await?;
    observe_ended(store, keys, &mut all).await?;
    Ok(all)
}

async fn observe_ended(store: &Redis, keys: &QueueKeys, all: &mut ObservedJobs) -> Result<()> {
    for (key, is_done) in [(&keys.done, true), (&keys.dead, false)] {
        scan_pairs(store, keys, "ZSCAN", key, ENTRIES_PER_STEP, |id, until| {
            if let Some(seen) = observed_job_mut(all, &id) {
                let until = Some(crate::store::redis::reply::parse_number(&until));
                *if is_done { &mut seen.done } else { &mut seen.dead } = until;
            }
        })
        .await?;
    }
    scan_pairs(store, keys, "HSCAN", &keys.meta, ENTRIES_PER_STEP, |id, meta| {
        if let Some(seen) = observed_job_mut(all, &id) {
            seen.meta = Some(meta);
        }
    })
    .await?;
    scan_pairs(store, keys, "HSCAN", &keys.errors, ENTRIES_PER_STEP, |field, _| {
        let number = field.get(16..).and_then(|n| std::str::from_utf8(n).ok()).and_then(|n| n.parse().ok());
        if let (Some(seen), Some(number)) = (observed_job_mut(all, &field), number)
            && !seen.failure_numbers.contains(&number)
        {
            seen.failure_numbers.push(number);
        }
    })
    .await?;
    scan_pairs(store, keys, "HSCAN", &keys.progress, ENTRIES_PER_STEP, |field, _| {
        // Whoever has any has this one.
        if field.get(16..) == Some(b"n")
            && let Some(seen) = observed_job_mut(all, &field)
        {
            seen.has_output = true;
        }
    })
    .await?;
    scan_pairs(store, keys, "HSCAN", &keys.unique, ENTRIES_PER_STEP, |key, id| {
        if let Some(seen) = observed_job_mut(all, &id) {
            let key = String::from_utf8_lossy(&key).into_owned();
            if !seen.unique_keys.contains(&key) {
                seen.unique_keys.push(key);
            }
        }
    })
    .await?;
    scan_pairs(store, keys, "ZSCAN", &keys.job_index, ENTRIES_PER_STEP, |member, _| {
        if let Some(id) = member.last_chunk::<16>().copied() {
            all.entry(id).or_default().add_index_member(JobId::from_bytes(id), member);
        }
    })
    .await?;
    for half in &keys.gone {
        scan_entries(store, keys, "SSCAN", half, ENTRIES_PER_STEP, |id| {
            // Only those that are there are of interest: most are not.
            if let Some(seen) = id.first_chunk().and_then(|id: &[u8; 16]| all.get_mut(id)) {
                seen.is_gone = true;
            }
        })
        .await?;
    }
    Ok(())
}

/// A ready list from its tail: what is claimed meanwhile goes at the other end, and moves nothing.
async fn observe_ready_list(store: &Redis, keys: &QueueKeys, lane: usize, all: &mut ObservedJobs) -> Result<()> {
    let mut from_tail = 0;
    loop {
        let mut cmd = redis::cmd("LRANGE");
        let step = ENTRIES_PER_STEP as i64;
        cmd.arg(&keys.ready[lane]).arg(-from_tail - step).arg(-from_tail - 1);
        let tickets =
            parse_byte_list(store.servers.send_idempotent("verify", ConnectionRole::Client, keys.slot, &cmd).await?)?;
        let last = (tickets.len() as i64) < step;
        for ticket in &tickets {
            if let Some(seen) = observed_job_mut(all, ticket) {
                seen.ticket_mut(ticket).list_counts[lane] += 1;
            }
        }
        if last {
            return Ok(());
        }
        from_tail += step;
    }
}

async fn leased_nodes(store: &Redis, keys: &QueueKeys) -> Result<std::collections::HashSet<String>> {
    let mut nodes = std::collections::HashSet::new();
    scan_pairs(store, keys, "ZSCAN", &keys.lease, ENTRIES_PER_STEP, |node, _| {
        nodes.insert(String::from_utf8_lossy(&node).into_owned());
    })
    .await?;
    Ok(nodes)
}

/// One job at one moment, with whatever was seen of it before to look for.
pub(crate) async fn inspect_job(
    store: &Redis,
    keys: &QueueKeys,
    id: JobId,
    before: &ObservedJob,
) -> Result<ObservedJob> {
    let mut cmd = script::INSPECT_JOB.call(keys);
    let mut asked = before.unique_keys.clone();
    asked.extend(before.head.as_ref().map(|head| head.unique_key.clone()).filter(|key| !key.is_empty()));
    asked.dedup();
    cmd.arg(store.manual_now()).arg(id.as_bytes()).arg(before.tickets.len()).arg(asked.len());
    for ticket in &before.tickets {
        cmd.arg(&ticket.text[..]);
    }
    for key in &asked {
        cmd.arg(key);
    }
    for member in &before.unexpected_members {
        cmd.arg(&member[..]);
    }
    let value =
        store.servers.run_script("verify", ConnectionRole::Client, keys.slot, &script::INSPECT_JOB, &cmd).await?;
    let mut reply = store.parse_reply("verify", value)?;
    let some = |bytes: Vec<u8>| Some(bytes).filter(|bytes| !bytes.is_empty());
    let head = some(reply.bytes()?).map(|line| RecordHead {
        // The args are not here, without which nothing is believed: what was seen before with them never changes.
        is_readable: before.head.as_ref().is_none_or(|head| head.is_readable),
        scheduled_due: before.head.as_ref().and_then(|head| head.scheduled_due),
        ..RecordHead::from_record(id, &[&line[..], b"\nnull"].concat())
    });
    let mut seen = ObservedJob { head, ..ObservedJob::default() };
    (seen.meta, seen.held) = (some(reply.bytes()?), some(reply.bytes()?));
    (seen.done, seen.dead) = (reply.optional_int()?, reply.optional_int()?);
    seen.is_gone = reply.int()? == 1;
    let _last_fence = reply.int()?;
    seen.holder_has_lease = reply.int()? == 1;
    for mut row in reply.rows()? {
        let mut ticket = ObservedTicket {
            text: row.bytes()?,
            due: row.optional_int()?,
            is_stale: row.int()? == 1,
            list_counts: [0; PRIORITY_LISTS],
        };
        for times in &mut ticket.list_counts {
            *times = usize::try_from(row.int()?).unwrap_or(0);
        }
        seen.tickets.push(ticket);
    }
    let named = reply.list()?;
    let names = |at: &(usize, &String)| named.get(at.0).is_some_and(|holder| holder.as_deref() == Some(id.as_bytes()));
    seen.unique_keys = asked.iter().enumerate().filter(names).map(|(_, key)| key.clone()).collect();
    let found: BTreeSet<Vec<u8>> = reply.list()?.into_iter().flatten().collect();
    found.into_iter().for_each(|member| seen.add_index_member(id, member));
    seen.failure_numbers = remaining_failures(store, keys, id, &before.failure_numbers).await?;
    if before.has_output {
        let mut cmd = redis::cmd("HEXISTS");
        cmd.arg(&keys.progress).arg([id.as_bytes(), &b"n"[..]].concat());
        seen.has_output =
            store.servers.send_idempotent("verify", ConnectionRole::Client, keys.slot, &cmd).await? == Value::Int(1);
    }
    Ok(seen)
}

/// Which of these failures are still there: those of a job that is gone go with it, in one step.
async fn remaining_failures(store: &Redis, keys: &QueueKeys, id: JobId, numbers: &[u32]) -> Result<Vec<u32>> {
    let mut left = Vec::new();
    for number in numbers {
        let mut cmd = redis::cmd("HEXISTS");
        cmd.arg(&keys.errors).arg([id.as_bytes(), number.to_string().as_bytes()].concat());
        if store.servers.send_idempotent("verify", ConnectionRole::Client, keys.slot, &cmd).await? == Value::Int(1) {
            left.push(*number);
        }
    }
    Ok(left)
}

/// What is wrong with what is counted in a queue; with `mend` it is put right.
pub(crate) async fn check_counters(store: &Redis, keys: &QueueKeys, mend: bool) -> Result<Vec<(Invariant, String)>> {
    let mut cmd = script::VERIFY_HELD.call(keys);
    cmd.arg(store.manual_now()).arg(u8::from(mend));
    let value = store
        .servers
        .run_script_idempotent("verify", ConnectionRole::Client, keys.slot, &script::VERIFY_HELD, &cmd)
        .await?;
    let mut reply = store.parse_reply("verify", value)?;
    let mut broken = Vec::new();
    for mut row in reply.rows()? {
        let (node, counted, told) = (row.text()?, row.int()?, row.int()?);
        broken.push((Invariant::Holders, format!("node {node} holds {counted} jobs, and {told} are counted")));
    }
    let (highest, last) = (reply.int()?, reply.int()?);
    if highest > last {
        broken.push((Invariant::Sequences, format!("a fence was given that is still to come: {highest}")));
    }
    if reply.int()? == 1 {
        broken.push((Invariant::Counts, "there are stale tickets, and nothing says so".to_owned()));
    }
    Ok(broken)
}

fn id_bytes(bytes: &[u8]) -> [u8; 16] {
    bytes.first_chunk().copied().unwrap_or_default()
}

/// What is seen of the job whose id something begins with.
fn observed_job_mut<'a>(all: &'a mut ObservedJobs, bytes: &[u8]) -> Option<&'a mut ObservedJob> {
    Some(all.entry(*bytes.first_chunk::<16>()?).or_default())
}

fn parse_byte_list(value: Value) -> Result<Vec<Vec<u8>>> {
    let strange =
        |e| Error::Store { op: "verify", reason: "a key is not of its kind".into(), source: Some(Box::new(e)) };
    redis::from_redis_value(value).map_err(strange)
}

/// All entries of a key, step by step. One that is there all the time is told of at least once.
async fn scan_entries(
    store: &Redis,
    keys: &QueueKeys,
    scan: &str,
    key: &str,
    step: usize,
    mut told: impl FnMut(Vec<u8>),
) -> Result<()> {
    let mut cursor = b"0".to_vec();
    loop {
        let mut cmd = redis::cmd(scan);
        cmd.arg(key).arg(&cursor[..]).arg("COUNT").arg(step);
        let value = store.servers.send_idempotent("verify", ConnectionRole::Client, keys.slot, &cmd).await?;
        let strange =
            |e| Error::Store { op: "verify", reason: format!("{key} is not of its kind"), source: Some(Box::new(e)) };
        let (next, entries): (Vec<u8>, Vec<Vec<u8>>) = redis::from_redis_value(value).map_err(strange)?;
        entries.into_iter().for_each(&mut told);
        if next == b"0" {
            return Ok(());
        }
        cursor = next;
    }
}

/// The same for a key whose entries come in pairs. One that comes twice is told of twice.
pub(crate) async fn scan_pairs(
    store: &Redis,
    keys: &QueueKeys,
    scan: &str,
    key: &str,
    step: usize,
    mut told: impl FnMut(Vec<u8>, Vec<u8>),
) -> Result<()> {
    let mut name = None;
    scan_entries(store, keys, scan, key, step, |entry| match name.take() {
        None => name = Some(entry),
        Some(name) => told(name, entry),
    })
    .await
}
