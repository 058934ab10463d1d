//! Settle: record how attempts ended, each only if its node still holds it under that fence; and prune what has ended.

use std::collections::HashSet;
use std::fmt::Write;
use std::time::Duration;

use redis::Cmd;

use crate::clock::{Micros, micros, to_micros};
use crate::error::{Error, Result};
use crate::job::fingerprint;
use crate::job::{Failure, Fence, JobId, Outcome, UNREADABLE_KIND};
use crate::node::NodeId;
use crate::store::redis::Redis;
use crate::store::redis::conn::ConnectionRole;
use crate::store::redis::jobs::claim::LocatorParts;
use crate::store::redis::keys::QueueKeys;
use crate::store::redis::record;
use crate::store::redis::record::{COUNT_MAX, DELAY_MAX, JobMeta};
use crate::store::redis::script;
use crate::store::redis::script::Script;
use crate::store::{AttemptEnd, PRUNE_MAX, STAT_NUMBERS, outcome_index, timing_indexes};

/// `settle` of the contract: a step or two for each queue.
pub(crate) async fn settle(store: &Redis, node: NodeId, ends: Vec<AttemptEnd>) -> Result<Vec<JobId>> {
    let mut lost = Vec::new();
    for (at, (queue, ends)) in AttemptEnd::group_by_queue(&ends).into_iter().enumerate() {
        let settled = settle_queue(store, node, queue, &ends).await;
        // What went to another queue before is recorded.
        lost.extend(settled.map_err(|error| if at > 0 { error.into_unknown() } else { error })?);
    }
    Ok(lost)
}

/// Acks of jobs that were never in trouble are most of what there is, and cost the server little; all others go beside them.
async fn settle_queue(store: &Redis, node: NodeId, queue: &str, ends: &[&AttemptEnd]) -> Result<Vec<JobId>> {
    let keys = store.keys(queue);
    let (mut plain, mut kept, mut others, mut lost) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut seen = HashSet::with_capacity(ends.len());
    for end in ends {
        let simple = end.outcome == Outcome::Ack
            && end.unique.is_none()
            && LocatorParts::unpack(end.locator).is_none()
            && (end.result.is_none() || end.keep.is_zero());
        match simple {
            // Said twice: the first counts.
            _ if !seen.insert(end.id) => lost.push(end.id),
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
    // Whoever sends both again is told that what one of them has recorded is not held any more.
    let recorded = |one: &Result<Vec<JobId>>| matches!(one, Ok(_) | Err(Error::Unknown { .. }));
    let any = acks.iter().chain(&rest).any(recorded);
    for refused in acks.into_iter().chain(rest) {
        lost.extend(refused.map_err(|error| if any { error.into_unknown() } else { error })?);
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
        cmd.arg(end.id.as_bytes());
    }
    for end in kept {
        cmd.arg(span_micros(end.keep));
    }
    // Those of one claim are held under the same value, mostly one behind the other.
    let all: Vec<_> = acks().map(|end| (end.fence, held_flag(end))).collect();
    for same in all.chunk_by(|a, b| a == b) {
        let (fence, flag) = same[0];
        cmd.arg(same.len()).arg(record::encode_held(node, fence, flag));
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

/// Sends it; answers the jobs that the node does not hold so.
async fn send_settle(store: &Redis, keys: &QueueKeys, script: &Script, cmd: &Cmd) -> Result<Vec<JobId>> {
    let value = store.servers.run_script("settle", ConnectionRole::Worker, keys.slot, script, cmd).await?;
    store.parse_reply("settle", value)?.remaining_ids()
}

fn settle_command(store: &Redis, keys: &QueueKeys, node: NodeId, script: &Script) -> Cmd {
    let mut cmd = script.call(keys);
    cmd.arg(store.manual_now()).arg(&keys.channel).arg(node.to_string()).arg(micros(store.options.remember));
    cmd
}

fn acks_command(store: &Redis, keys: &QueueKeys, node: NodeId, plain: usize, kept: usize) -> Cmd {
    let mut cmd = settle_command(store, keys, node, &script::SETTLE);
    cmd.arg(plain).arg(kept);
    cmd
}

/// What is counted if nothing is lost, and what each outcome has to do with it, in the order in which they are sent.
/// Without a history bytes alone are counted.
fn append_counters<'e>(cmd: &mut Cmd, ends: impl Iterator<Item = &'e AttemptEnd>, history: bool) {
    let mut times = [0u64; STAT_NUMBERS];
    let (mut ending, mut codes) = (0, String::new());
    for end in ends {
        let timing = end.timing.map(|timing| timing_indexes(timing.lateness, timing.duration));
        let places = [Some(outcome_index(&end.outcome)), timing.map(|[late, _]| late), timing.map(|[_, took]| took)];
        for place in places.map(|place| place.filter(|_| history)) {
            match place {
                Some(place) => {
                    times[place] += 1;
                    let _ = write!(codes, "{place:02}");
                }
                None => codes.push_str("--"),
            }
        }
        let ends = matches!(end.outcome, Outcome::Ack | Outcome::Bury { .. });
        let bytes = if ends { end.args_bytes } else { 0 };
        ending += bytes;
        let _ = write!(codes, "{bytes:08}");
    }
    let counted = || times.iter().enumerate().filter(|(_, times)| **times > 0);
    cmd.arg(ending).arg(codes).arg(counted().count());
    for (place, times) in counted() {
        cmd.arg(format!("{place:02}")).arg(times);
    }
}

fn held_flag(end: &AttemptEnd) -> u8 {
    record::priority_flag(end.priority, LocatorParts::unpack(end.locator).is_some())
}

/// A duration in microseconds that still fits when it is added to the present.
fn span_micros(time: Duration) -> Micros {
    micros(time).min(DELAY_MAX)
}

/// One outcome of a job in trouble, or with a unique key: id, held value, outcome, time, ticket, due, counts, failure, its
/// number, unique key, group, result or kind that is put off, what the group is or when it was due before.
fn append_outcome(cmd: &mut Cmd, node: NodeId, end: &AttemptEnd) {
    let place = LocatorParts::unpack(end.locator);
    let LocatorParts { failures, ticket_number: turn } =
        place.unwrap_or(LocatorParts { failures: 0, ticket_number: 0 });
    let due = format!("{:016}", to_micros(end.due).max(0));
    let same =
        JobMeta { attempts: end.attempts, crashes: end.crashes, failures, ticket_number: turn, ..JobMeta::default() };
    let failed = JobMeta { attempts: end.attempts.saturating_add(1), failures: (failures + 1).min(COUNT_MAX), ..same };
    let failure = |error: &str| record::encode_failure(failed.attempts, node, error);
    let ticket = |in_trouble: bool| record::encode_ticket(end.id, end.priority, in_trouble.then_some(turn));
    let later = |time: Micros| if time > 0 { later_ticket(end, turn) } else { ticket(true) };
    cmd.arg(end.id.as_bytes()).arg(record::encode_held(node, end.fence, held_flag(end)));
    match &end.outcome {
        Outcome::Ack => {
            let (letter, keep) = if end.keep.is_zero() { ("a", 0) } else { ("k", span_micros(end.keep)) };
            cmd.arg(letter).arg(keep).arg("").arg("").arg("").arg("").arg(0);
        }
        Outcome::Bury { error } => {
            cmd.arg("b").arg(span_micros(end.keep)).arg(later(1)).arg(&due).arg(failed.encode_counts());
            cmd.arg(failure(error)).arg(failed.failures);
        }
        Outcome::Retry { after, error } => {
            let time = span_micros(*after);
            cmd.arg("r").arg(time).arg(later(time)).arg("").arg(failed.encode_counts());
            cmd.arg(failure(error)).arg(failed.failures);
        }
        Outcome::Release { after } if after.is_zero() => {
            cmd.arg("l").arg(0).arg(ticket(place.is_some())).arg("").arg("").arg("").arg(0);
        }
        Outcome::Release { after } => {
            let time = span_micros(*after);
            cmd.arg("l").arg(time).arg(later(time)).arg("").arg(same.encode_counts()).arg("").arg(0);
        }
    }
    cmd.arg(end.unique.as_deref().unwrap_or(""));
    match &end.outcome {
        Outcome::Ack if !end.keep.is_zero() => cmd.arg(end.result.as_deref().unwrap_or("")).arg(""),
        Outcome::Bury { error } => {
            let (group, what) = dead_group(&end.kind, error);
            cmd.arg(group).arg(what)
        }
        Outcome::Release { .. } if end.is_deferred() => cmd.arg(&end.kind).arg(due),
        _ => cmd.arg("").arg(""),
    };
}

/// The ticket of a job that is to wait, or that dies. Of a record that we cannot read the script finds the words.
fn later_ticket(end: &AttemptEnd, turn: u32) -> Vec<u8> {
    let kind = if end.kind == UNREADABLE_KIND { "" } else { &end.kind };
    record::encode_due_ticket(end.id, end.priority, Some(turn), kind, &end.tags)
}

/// The group of a job that dies of this, and what it is: kind, tab, error.
pub(crate) fn dead_group(kind: &str, error: &str) -> (String, String) {
    // As it will be read from the history.
    let error = fingerprint::compute(Failure::truncate_error(error));
    (fingerprint::group_id(kind, &error), format!("{kind}\t{error}"))
}

/// Lets go of held entries whose record has been deleted behind our back: there is nothing left to run.
pub(crate) async fn release_orphans(store: &Redis, node: NodeId, keys: &QueueKeys, fence: Fence, orphans: &[JobId]) {
    tracing::warn!(queue = %keys.queue, jobs = orphans.len(), "tickets without a record: somebody has deleted keys of duly's");
    // Under whatever flag they were taken: without the record nobody knows, and only one can be right.
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
        tracing::warn!(%error, "they stay held until this node ends");
    }
}

/// `prune` of the contract.
pub(crate) async fn prune(store: &Redis, queue: &str, done_max: usize) -> Result<usize> {
    let keys = store.keys(queue);
    let mut cmd = script::PRUNE.call(&*keys);
    cmd.arg(store.manual_now()).arg(micros(store.options.remember)).arg(done_max).arg(PRUNE_MAX);
    let value = store.servers.run_script("prune", ConnectionRole::Worker, keys.slot, &script::PRUNE, &cmd).await?;
    Ok(usize::try_from(store.parse_reply("prune", value)?.int()?).unwrap_or(0))
}
