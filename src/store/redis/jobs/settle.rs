//! Settles attempts, each only if its node still holds the job under that fence; and prunes done and dead jobs.

use std::collections::HashSet;
use std::fmt::Write;
use std::time::{Duration, SystemTime};

use redis::Cmd;

use crate::clock::{Micros, micros, to_micros};
use crate::error::{Error, Result};
use crate::job::fingerprint;
use crate::job::{Failure, Fence, JobId, Outcome, UNREADABLE_KIND, UniqueKey};
use crate::node::NodeId;
use crate::store::redis::Redis;
use crate::store::redis::conn::ConnectionRole;
use crate::store::redis::jobs::claim::LocatorParts;
use crate::store::redis::keys::QueueKeys;
use crate::store::redis::record;
use crate::store::redis::record::{COUNT_MAX, DELAY_MAX, JobMeta};
use crate::store::redis::run_text;
use crate::store::redis::script;
use crate::store::redis::script::Script;
use crate::store::{AttemptEnd, PRUNE_MAX, STAT_NUMBERS, outcome_index, timing_indexes};

/// Implements `JobStore::settle`, with one or two operations per queue.
pub(crate) async fn settle(store: &Redis, node: NodeId, ends: Vec<AttemptEnd>) -> Result<Vec<JobId>> {
    let mut lost = Vec::new();
    for (index, (queue, ends)) in AttemptEnd::group_by_queue(&ends).into_iter().enumerate() {
        let settled = settle_queue(store, node, queue, &ends).await;
        // The attempts of earlier queues are settled.
        lost.extend(settled.map_err(|error| if index > 0 { error.into_unknown() } else { error })?);
    }
    Ok(lost)
}

/// Settles the attempts of one queue. Most are acks of jobs without a meta, which cost the server little; all others go
/// in a second, concurrent request.
async fn settle_queue(store: &Redis, node: NodeId, queue: &str, ends: &[&AttemptEnd]) -> Result<Vec<JobId>> {
    let keys = store.keys(queue);
    let (mut plain, mut kept, mut others, mut lost) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut seen = HashSet::with_capacity(ends.len());
    for end in ends {
        let is_plain_ack = end.outcome == Outcome::Ack
            && end.held().job.unique.is_none()
            && LocatorParts::unpack(end.held().locator).is_none()
            && (end.result.is_none() || end.keep.is_zero());
        match is_plain_ack {
            // A second outcome of the same job: the first counts.
            _ if !seen.insert(end.id()) => lost.push(end.id()),
            true if end.keep.is_zero() => plain.push(*end),
            true => kept.push(*end),
            false => others.push(*end),
        }
    }
    let acks = async {
        let acked = !(plain.is_empty() && kept.is_empty());
        if acked { Some(settle_acks(store, node, &keys, &plain, &kept).await) } else { None }
    };
    let rest =
        async { if others.is_empty() { None } else { Some(settle_individually(store, node, &keys, &others).await) } };
    let (acks, rest) = futures_util::join!(acks, rest);
    // Resending both would report the attempts that one of them settled as lost.
    let recorded = |settled: &Result<Vec<JobId>>| matches!(settled, Ok(_) | Err(Error::Unknown { .. }));
    let any_settled = acks.iter().chain(&rest).any(recorded);
    for settled in acks.into_iter().chain(rest) {
        lost.extend(settled.map_err(|error| if any_settled { error.into_unknown() } else { error })?);
    }
    Ok(lost)
}

async fn settle_acks(
    store: &Redis,
    node: NodeId,
    keys: &QueueKeys,
    plain: &[&AttemptEnd],
    kept: &[&AttemptEnd],
) -> Result<Vec<JobId>> {
    let mut cmd = acks_command(store, keys, node, plain.len(), kept.len());
    let acks = || plain.iter().chain(kept).copied();
    append_counters(&mut cmd, acks(), store.options.history);
    for end in acks() {
        cmd.arg(end.id().as_bytes());
    }
    for end in kept {
        cmd.arg(span_micros(end.keep));
    }
    for end in kept {
        cmd.arg(encode_ack(node, end));
    }
    // Jobs of one claim have the same held value and are mostly adjacent.
    let all: Vec<_> = acks().map(|end| (end.fence(), held_flag(end))).collect();
    for run in all.chunk_by(|a, b| a == b) {
        let (fence, flag) = run[0];
        cmd.arg(run.len()).arg(record::encode_held(node, fence, flag));
    }
    send_settle(store, keys, &script::SETTLE, &cmd).await
}

async fn settle_individually(
    store: &Redis,
    node: NodeId,
    keys: &QueueKeys,
    others: &[&AttemptEnd],
) -> Result<Vec<JobId>> {
    let mut cmd = settle_command(store, keys, node, &script::SETTLE_OTHERS);
    append_counters(&mut cmd, others.iter().copied(), store.options.history);
    for end in others {
        append_outcome(&mut cmd, node, end);
    }
    send_settle(store, keys, &script::SETTLE_OTHERS, &cmd).await
}

/// Sends a settle, and returns the jobs that the node does not hold under that fence.
async fn send_settle(store: &Redis, keys: &QueueKeys, script: &Script, cmd: &Cmd) -> Result<Vec<JobId>> {
    store.run_script("settle", ConnectionRole::Worker, keys.slot, script, cmd).await?.remaining_ids()
}

/// Encodes the run of an ack; empty if it is not recorded.
fn encode_ack(node: NodeId, end: &AttemptEnd) -> String {
    let duration = end.timing.map(|timing| timing.duration).unwrap_or_default();
    end.started.map_or(String::new(), |started| run_text::encode_ack(node, started, duration, end.output.as_deref()))
}

fn settle_command(store: &Redis, keys: &QueueKeys, node: NodeId, script: &Script) -> Cmd {
    let mut cmd = script.call(keys);
    cmd.arg(store.manual_now()).arg(&keys.channel).arg(node.to_string()).arg(micros(store.options.remember_ids));
    cmd
}

fn acks_command(store: &Redis, keys: &QueueKeys, node: NodeId, plain: usize, kept: usize) -> Cmd {
    let mut cmd = settle_command(store, keys, node, &script::SETTLE);
    cmd.arg(plain).arg(kept);
    cmd
}

/// Appends the totals if no job is lost, then the code of each outcome so that the script can subtract lost ones.
/// Without a history only the bytes are counted.
fn append_counters<'e>(cmd: &mut Cmd, attempts: impl Iterator<Item = &'e AttemptEnd>, history: bool) {
    let mut totals = [0u64; STAT_NUMBERS];
    let (mut freed_bytes, mut codes) = (0, String::new());
    for end in attempts {
        let timing = end.timing.map(|timing| timing_indexes(timing.lateness, timing.duration));
        let indexes = [
            Some(outcome_index(&end.outcome)),
            timing.map(|[lateness_index, _]| lateness_index),
            timing.map(|[_, duration_index]| duration_index),
        ];
        for index in indexes.map(|index| index.filter(|_| history)) {
            match index {
                Some(index) => {
                    totals[index] += 1;
                    let _ = write!(codes, "{index:02}");
                }
                None => codes.push_str("--"),
            }
        }
        let is_final = matches!(end.outcome, Outcome::Ack | Outcome::Bury { .. });
        let bytes = if is_final { end.held().args_bytes as u64 } else { 0 };
        freed_bytes += bytes;
        let _ = write!(codes, "{bytes:08}");
    }
    let counted = || totals.iter().enumerate().filter(|(_, totals)| **totals > 0);
    cmd.arg(freed_bytes).arg(codes).arg(counted().count());
    for (index, totals) in counted() {
        cmd.arg(format!("{index:02}")).arg(totals);
    }
}

fn held_flag(end: &AttemptEnd) -> u8 {
    record::priority_flag(end.held().job.priority, LocatorParts::unpack(end.held().locator).is_some())
}

/// Returns a duration in microseconds, bounded so that it can be added to the present.
fn span_micros(time: Duration) -> Micros {
    micros(time).min(DELAY_MAX)
}

/// Appends one outcome: id, held value, outcome, time, ticket, due, counters, run, its number, unique key, then the
/// group and its description, or the result, or the deferred kind and its former due time.
fn append_outcome(cmd: &mut Cmd, node: NodeId, end: &AttemptEnd) {
    let locator = LocatorParts::unpack(end.held().locator);
    let LocatorParts { runs, ticket_number } = locator.unwrap_or(LocatorParts { runs: 0, ticket_number: 0 });
    let due = format!("{:016}", to_micros(end.held().due).max(0));
    let unchanged = JobMeta {
        attempts: end.held().attempts,
        crashes: end.held().crashes,
        runs,
        ticket_number,
        ..JobMeta::default()
    };
    let released = JobMeta { runs: (runs + 1).min(COUNT_MAX), ..unchanged };
    let failed = JobMeta { attempts: end.held().attempts.saturating_add(1), ..released };
    // The script adds the time.
    let run = || run_text::encode_run(&end.to_run(node, SystemTime::UNIX_EPOCH));
    let ticket =
        |has_meta: bool| record::encode_ticket(end.id(), end.held().job.priority, has_meta.then_some(ticket_number));
    let later = |time: Micros| if time > 0 { later_ticket(end, ticket_number) } else { ticket(true) };
    cmd.arg(end.id().as_bytes()).arg(record::encode_held(node, end.fence(), held_flag(end)));
    match &end.outcome {
        Outcome::Ack => {
            let kept = !end.keep.is_zero();
            cmd.arg(if kept { "k" } else { "a" }).arg(if kept { span_micros(end.keep) } else { 0 });
            cmd.arg("").arg("").arg("").arg(if kept { encode_ack(node, end) } else { String::new() }).arg(0);
        }
        Outcome::Bury { .. } => {
            cmd.arg("b").arg(span_micros(end.keep)).arg(later(1)).arg(&due).arg(failed.encode_counts());
            cmd.arg(run()).arg(failed.runs);
        }
        Outcome::Retry { after, .. } => {
            let time = span_micros(*after);
            cmd.arg("r").arg(time).arg(later(time)).arg("").arg(failed.encode_counts());
            cmd.arg(run()).arg(failed.runs);
        }
        Outcome::Release { after } if end.is_recorded() => {
            let time = span_micros(*after);
            cmd.arg("l").arg(time).arg(later(time)).arg(if time > 0 { "" } else { &due });
            cmd.arg(released.encode_counts()).arg(run()).arg(released.runs);
        }
        Outcome::Release { after } if after.is_zero() => {
            cmd.arg("l").arg(0).arg(ticket(locator.is_some())).arg("").arg("").arg("").arg(0);
        }
        Outcome::Release { after } => {
            let time = span_micros(*after);
            cmd.arg("l").arg(time).arg(later(time)).arg("").arg(unchanged.encode_counts()).arg("").arg(0);
        }
    }
    cmd.arg(end.held().job.unique.as_ref().map(UniqueKey::as_str).unwrap_or(""));
    match &end.outcome {
        Outcome::Ack if !end.keep.is_zero() => cmd.arg(end.result.as_deref().unwrap_or("")).arg(""),
        Outcome::Bury { error } => {
            let (group, description) = dead_group(&end.held().job.kind, error);
            cmd.arg(group).arg(description)
        }
        Outcome::Release { .. } if end.is_deferred() => cmd.arg(&end.held().job.kind).arg(due),
        _ => cmd.arg("").arg(""),
    };
}

/// Returns the ticket of a job that is scheduled or dies. The script finds the index terms of an unreadable record.
fn later_ticket(end: &AttemptEnd, ticket_number: u32) -> Vec<u8> {
    let kind = if end.held().job.kind == UNREADABLE_KIND { "" } else { &end.held().job.kind };
    record::encode_due_ticket(end.id(), end.held().job.priority, Some(ticket_number), kind, &end.held().job.tags)
}

/// Returns the group of a job that dies of this error, and its description: kind, tab, error.
pub(crate) fn dead_group(kind: &str, error: &str) -> (String, String) {
    // As the history stores it.
    let error = fingerprint::compute(Failure::truncate_error(error));
    (fingerprint::group_id(kind, &error), format!("{kind}\t{error}"))
}

/// Releases held jobs without a record: another client has deleted it, so there is nothing to run.
pub(crate) async fn release_orphans(store: &Redis, node: NodeId, keys: &QueueKeys, fence: Fence, orphans: &[JobId]) {
    tracing::warn!(queue = %keys.queue, jobs = orphans.len(), "claimed jobs have no record: another client has deleted keys");
    // Under every possible flag: it is unknown without the record, and only one matches.
    let flags = b"0123abcd";
    let mut cmd = acks_command(store, keys, node, orphans.len() * flags.len(), 0);
    cmd.arg(0).arg("").arg(0);
    for id in flags.iter().flat_map(|_| orphans) {
        cmd.arg(id.as_bytes());
    }
    for flag in flags {
        cmd.arg(orphans.len()).arg(record::encode_held(node, fence, *flag));
    }
    if let Err(error) =
        store.servers.run_script("settle", ConnectionRole::Worker, keys.slot, &script::SETTLE, &cmd).await
    {
        tracing::warn!(%error, "cannot release them; they stay held until this node stops");
    }
}

/// Implements `JobStore::prune`.
pub(crate) async fn prune(store: &Redis, queue: &str, done_max: usize) -> Result<usize> {
    let keys = store.keys(queue);
    let mut cmd = script::PRUNE.call(&*keys);
    cmd.arg(store.manual_now()).arg(micros(store.options.remember_ids)).arg(done_max).arg(PRUNE_MAX);
    Ok(usize::try_from(
        store.run_script("prune", ConnectionRole::Worker, keys.slot, &script::PRUNE, &cmd).await?.int()?,
    )
    .unwrap_or(0))
}
