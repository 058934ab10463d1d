//! Verify: goes through all keys of a queue in small steps, then looks once more, at one moment, at every job of which
//! something seemed wrong. While others work most of these are jobs that moved between two steps.

use std::collections::{BTreeSet, HashMap};

use redis::Value;

use crate::error::{Error, Result};
use crate::job::JobId;
use crate::store::redis::conn::Way;
use crate::store::redis::keys::QueueKeys;
use crate::store::redis::maintenance::job_invariants::{Head, LANES, Seen, Ticket, holder};
use crate::store::redis::maintenance::verify_counts;
use crate::store::redis::maintenance::verify_counts::{Counted, Judged};
use crate::store::redis::maintenance::verify_cron;
use crate::store::redis::{Redis, script};
use crate::store::{Rule, Verified};

/// Entries asked for in one step.
pub(crate) const STEP: usize = 500;
/// Records asked for in one step: their args come along.
const RECORDS: usize = 100;
/// Most jobs of a queue that are looked at once more in one pass: more means that too much moves.
const SUSPECTS_MAX: usize = 2_000;
/// A queue of so many jobs is gone through again if it did not keep still.
const SMALL: u64 = 10_000;
/// Most passes through a queue.
const PASSES_MAX: usize = 3;

/// All that was seen of a queue, by the 16 bytes of each id.
pub(crate) type All = HashMap<[u8; 16], Seen>;

/// `verify` of the contract.
pub(crate) async fn verify(store: &Redis) -> Result<Verified> {
    let mut verified = Verified::default();
    for queue in store.queues("verify").await? {
        let keys = store.keys(&queue);
        verify_queue(store, &keys, &mut verified).await?;
        let tally = tally(store, &keys, false).await?;
        for (rule, what) in tally {
            verified.note(rule, Some(queue.clone()), None, what);
        }
        for wrong in verify_cron::wrong(store, &keys).await? {
            verified.note(wrong.rule, Some(queue.clone()), None, wrong.what);
        }
    }
    verified.breaches.sort_by(|a, b| (a.rule, &a.queue, a.id, &a.what).cmp(&(b.rule, &b.queue, b.id, &b.what)));
    Ok(verified)
}

async fn verify_queue(store: &Redis, keys: &QueueKeys, verified: &mut Verified) -> Result<()> {
    for pass in 1..=PASSES_MAX {
        let told = verify_counts::told(store, keys).await?;
        let all = look(store, keys).await?;
        let still = verify_counts::told(store, keys).await?.mark == told.mark;
        let Judged { jobs, suspects, counted } = judge(all).await?;
        // What is counted can be told only of a queue that keeps still: a small one is given another chance.
        if !still && suspects.len() <= SUSPECTS_MAX && jobs <= SMALL && pass < PASSES_MAX {
            continue;
        }
        for (id, seen) in suspects.iter().take(SUSPECTS_MAX) {
            let id = *id;
            for (rule, what) in inspect(store, keys, id, seen).await?.judge(id) {
                verified.note(rule, Some(keys.queue.to_string()), Some(id), what);
            }
        }
        for (rule, what) in counted.breaches(&told).into_iter().filter(|_| still) {
            verified.note(rule, Some(keys.queue.to_string()), None, what);
        }
        // With a breach found the store is not sound, whatever else there may be.
        if suspects.len() <= SUSPECTS_MAX || !verified.breaches.is_empty() {
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
async fn judge(all: All) -> Result<Judged> {
    let judge = move || {
        let counted = Counted::of(&all);
        let jobs = all.values().filter(|seen| seen.head.is_some()).count() as u64;
        let named = all.into_iter().map(|(id, seen)| (JobId::from_bytes(id), seen));
        let suspects = named.filter(|(id, seen)| !seen.judge(*id).is_empty()).take(SUSPECTS_MAX + 1).collect();
        Judged { jobs, suspects, counted }
    };
    let judged = tokio::task::spawn_blocking(judge).await;
    judged.map_err(|e| Error::store("verify", format!("the look through the jobs has ended: {e}")))
}

/// All keys of a queue, in an order in which few jobs are missed that move meanwhile: records first, then the places that
/// a job goes through, each before the next.
pub(crate) async fn look(store: &Redis, keys: &QueueKeys) -> Result<All> {
    let mut all = All::new();
    each_pair(store, keys, "HSCAN", &keys.job, RECORDS, |id, record| {
        if let Some(seen) = entry(&mut all, &id) {
            seen.head = Some(Head::of(JobId::from_bytes(first(&id)), &record));
        }
    })
    .await?;
    each_pair(store, keys, "ZSCAN", &keys.due, STEP, |ticket, due| {
        if let Some(seen) = entry(&mut all, &ticket) {
            seen.ticket(&ticket).due = Some(crate::store::redis::reply::number(&due));
        }
    })
    .await?;
    for lane in 0..LANES {
        look_at_list(store, keys, lane, &mut all).await?;
    }
    each(store, keys, "SSCAN", &keys.stale, STEP, |ticket| {
        if let Some(seen) = entry(&mut all, &ticket) {
            seen.ticket(&ticket).stale = true;
        }
    })
    .await?;
    let leases = leases(store, keys).await?;
    each_pair(store, keys, "HSCAN", &keys.held, STEP, |id, value| {
        if let Some(seen) = entry(&mut all, &id) {
            seen.leased = holder(&value).is_some_and(|node| leases.contains(&node.to_string()));
            seen.held = Some(value);
        }
    })
    .await?;
    look_at_ended(store, keys, &mut all).await?;
    Ok(all)
}

async fn look_at_ended(store: &Redis, keys: &QueueKeys, all: &mut All) -> Result<()> {
    for (key, is_done) in [(&keys.done, true), (&keys.dead, false)] {
        each_pair(store, keys, "ZSCAN", key, STEP, |id, until| {
            if let Some(seen) = entry(all, &id) {
                let until = Some(crate::store::redis::reply::number(&until));
                *if is_done { &mut seen.done } else { &mut seen.dead } = until;
            }
        })
        .await?;
    }
    each_pair(store, keys, "HSCAN", &keys.meta, STEP, |id, meta| {
        if let Some(seen) = entry(all, &id) {
            seen.meta = Some(meta);
        }
    })
    .await?;
    each_pair(store, keys, "HSCAN", &keys.errors, STEP, |field, _| {
        let number = field.get(16..).and_then(|n| std::str::from_utf8(n).ok()).and_then(|n| n.parse().ok());
        if let (Some(seen), Some(number)) = (entry(all, &field), number)
            && !seen.failures.contains(&number)
        {
            seen.failures.push(number);
        }
    })
    .await?;
    each_pair(store, keys, "HSCAN", &keys.progress, STEP, |field, _| {
        // Whoever has any has this one.
        if field.get(16..) == Some(b"n")
            && let Some(seen) = entry(all, &field)
        {
            seen.noted = true;
        }
    })
    .await?;
    each_pair(store, keys, "HSCAN", &keys.unique, STEP, |key, id| {
        if let Some(seen) = entry(all, &id) {
            let key = String::from_utf8_lossy(&key).into_owned();
            if !seen.keys.contains(&key) {
                seen.keys.push(key);
            }
        }
    })
    .await?;
    each_pair(store, keys, "ZSCAN", &keys.job_index, STEP, |member, _| {
        if let Some(id) = member.last_chunk::<16>().copied() {
            all.entry(id).or_default().member(JobId::from_bytes(id), member);
        }
    })
    .await?;
    for half in &keys.gone {
        each(store, keys, "SSCAN", half, STEP, |id| {
            // Only those that are there are of interest: most are not.
            if let Some(seen) = id.first_chunk().and_then(|id: &[u8; 16]| all.get_mut(id)) {
                seen.gone = true;
            }
        })
        .await?;
    }
    Ok(())
}

/// A ready list from its tail: what is claimed meanwhile goes at the other end, and moves nothing.
async fn look_at_list(store: &Redis, keys: &QueueKeys, lane: usize, all: &mut All) -> Result<()> {
    let mut from_tail = 0;
    loop {
        let mut cmd = redis::cmd("LRANGE");
        let step = STEP as i64;
        cmd.arg(&keys.ready[lane]).arg(-from_tail - step).arg(-from_tail - 1);
        let tickets = list(store.link.ask("verify", Way::Door, keys.slot, &cmd).await?)?;
        let last = (tickets.len() as i64) < step;
        for ticket in &tickets {
            if let Some(seen) = entry(all, ticket) {
                seen.ticket(ticket).times[lane] += 1;
            }
        }
        if last {
            return Ok(());
        }
        from_tail += step;
    }
}

async fn leases(store: &Redis, keys: &QueueKeys) -> Result<std::collections::HashSet<String>> {
    let mut nodes = std::collections::HashSet::new();
    each_pair(store, keys, "ZSCAN", &keys.lease, STEP, |node, _| {
        nodes.insert(String::from_utf8_lossy(&node).into_owned());
    })
    .await?;
    Ok(nodes)
}

/// One job at one moment, with whatever was seen of it before to look for.
pub(crate) async fn inspect(store: &Redis, keys: &QueueKeys, id: JobId, before: &Seen) -> Result<Seen> {
    let mut cmd = script::INSPECT_JOB.call(keys);
    let mut asked = before.keys.clone();
    asked.extend(before.head.as_ref().map(|head| head.key.clone()).filter(|key| !key.is_empty()));
    asked.dedup();
    cmd.arg(store.manual_now()).arg(id.as_bytes()).arg(before.tickets.len()).arg(asked.len());
    for ticket in &before.tickets {
        cmd.arg(&ticket.text[..]);
    }
    for key in &asked {
        cmd.arg(key);
    }
    for member in &before.strange {
        cmd.arg(&member[..]);
    }
    let value = store.link.run("verify", Way::Door, keys.slot, &script::INSPECT_JOB, &cmd).await?;
    let mut reply = store.reply("verify", value)?;
    let some = |bytes: Vec<u8>| Some(bytes).filter(|bytes| !bytes.is_empty());
    let head = some(reply.bytes()?).map(|line| Head {
        // The args are not here, without which nothing is believed: what was seen before with them never changes.
        readable: before.head.as_ref().is_none_or(|head| head.readable),
        later: before.head.as_ref().and_then(|head| head.later),
        ..Head::of(id, &[&line[..], b"\nnull"].concat())
    });
    let mut seen = Seen { head, ..Seen::default() };
    (seen.meta, seen.held) = (some(reply.bytes()?), some(reply.bytes()?));
    (seen.done, seen.dead) = (reply.maybe_int()?, reply.maybe_int()?);
    seen.gone = reply.int()? == 1;
    let _last_fence = reply.int()?;
    seen.leased = reply.int()? == 1;
    for mut row in reply.rows()? {
        let mut ticket =
            Ticket { text: row.bytes()?, due: row.maybe_int()?, stale: row.int()? == 1, times: [0; LANES] };
        for times in &mut ticket.times {
            *times = usize::try_from(row.int()?).unwrap_or(0);
        }
        seen.tickets.push(ticket);
    }
    let named = reply.list()?;
    let names = |at: &(usize, &String)| named.get(at.0).is_some_and(|holder| holder.as_deref() == Some(id.as_bytes()));
    seen.keys = asked.iter().enumerate().filter(names).map(|(_, key)| key.clone()).collect();
    let found: BTreeSet<Vec<u8>> = reply.list()?.into_iter().flatten().collect();
    found.into_iter().for_each(|member| seen.member(id, member));
    seen.failures = failures(store, keys, id, &before.failures).await?;
    if before.noted {
        let mut cmd = redis::cmd("HEXISTS");
        cmd.arg(&keys.progress).arg([id.as_bytes(), &b"n"[..]].concat());
        seen.noted = store.link.ask("verify", Way::Door, keys.slot, &cmd).await? == Value::Int(1);
    }
    Ok(seen)
}

/// Which of these failures are still there: those of a job that is gone go with it, in one step.
async fn failures(store: &Redis, keys: &QueueKeys, id: JobId, numbers: &[u32]) -> Result<Vec<u32>> {
    let mut left = Vec::new();
    for number in numbers {
        let mut cmd = redis::cmd("HEXISTS");
        cmd.arg(&keys.errors).arg([id.as_bytes(), number.to_string().as_bytes()].concat());
        if store.link.ask("verify", Way::Door, keys.slot, &cmd).await? == Value::Int(1) {
            left.push(*number);
        }
    }
    Ok(left)
}

/// What is wrong with what is counted in a queue; with `mend` it is put right.
pub(crate) async fn tally(store: &Redis, keys: &QueueKeys, mend: bool) -> Result<Vec<(Rule, String)>> {
    let mut cmd = script::VERIFY_HELD.call(keys);
    cmd.arg(store.manual_now()).arg(u8::from(mend));
    let value = store.link.repeat("verify", Way::Door, keys.slot, &script::VERIFY_HELD, &cmd).await?;
    let mut reply = store.reply("verify", value)?;
    let mut broken = Vec::new();
    for mut row in reply.rows()? {
        let (node, counted, told) = (row.text()?, row.int()?, row.int()?);
        broken.push((Rule::Holders, format!("node {node} holds {counted} jobs, and {told} are counted")));
    }
    let (highest, last) = (reply.int()?, reply.int()?);
    if highest > last {
        broken.push((Rule::Marks, format!("a fence was given that is still to come: {highest}")));
    }
    if reply.int()? == 1 {
        broken.push((Rule::Counts, "there are stale tickets, and nothing says so".to_owned()));
    }
    Ok(broken)
}

fn first(bytes: &[u8]) -> [u8; 16] {
    bytes.first_chunk().copied().unwrap_or_default()
}

/// What is seen of the job whose id something begins with.
fn entry<'a>(all: &'a mut All, bytes: &[u8]) -> Option<&'a mut Seen> {
    Some(all.entry(*bytes.first_chunk::<16>()?).or_default())
}

fn list(value: Value) -> Result<Vec<Vec<u8>>> {
    let strange =
        |e| Error::Store { op: "verify", reason: "a key is not of its kind".into(), source: Some(Box::new(e)) };
    redis::from_redis_value(value).map_err(strange)
}

/// All entries of a key, step by step. One that is there all the time is told of at least once.
async fn each(
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
        let value = store.link.ask("verify", Way::Door, keys.slot, &cmd).await?;
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
pub(crate) async fn each_pair(
    store: &Redis,
    keys: &QueueKeys,
    scan: &str,
    key: &str,
    step: usize,
    mut told: impl FnMut(Vec<u8>, Vec<u8>),
) -> Result<()> {
    let mut name = None;
    each(store, keys, scan, key, step, |entry| match name.take() {
        None => name = Some(entry),
        Some(name) => told(name, entry),
    })
    .await
}
