//! Pushes jobs into their queues, each queue in one atomic operation.
//!
//! The jobs of a queue take the first of four paths that fits them:
//!
//! 1. **A plain transaction**: jobs that are due at once, with new ids and without unique keys, while this process knows
//!    of no capacity and of no idle node. It costs the server 0.59 to 0.67 times as much CPU per job as path 3.
//! 2. **`deliver_to_idle`**: one such job while a node may be idle. The node receives the job itself and starts it
//!    without a claim, 0.65 ms after the push (p50 of `redis-wake`).
//! 3. **`push`**: such jobs in a batch, and jobs that are due later. It wakes an idle node in the same request. It costs
//!    the server 0.86 times as much CPU per job as path 4, because it has fewer keys and parts, and checks no ids.
//! 4. **`push_checked`**: jobs with chosen ids or unique keys, and every resend. It checks first which of them exist.
//!
//! The benchmark `redis-push-paths` prints the costs; `docs/internals/benchmarks.md` has all figures.
//!
//! Paths 2 and 3 return whether a node was idle and whether the queue has a capacity. The next push of the process
//! decides by that.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;

use redis::{Cmd, Value};

use crate::clock::{Clock, Micros, micros};
use crate::error::{Error, Result};
use crate::job::push::{Due, Push, PushResult};
use crate::job::{JobId, UniqueConflict};
use crate::store::PUSHED_INDEX;
use crate::store::redis::Redis;
use crate::store::redis::keys::QueueKeys;
use crate::store::redis::nodes::wakes;
use crate::store::redis::record;
use crate::store::redis::record::DELAY_MAX;
use crate::store::redis::reply;
use crate::store::redis::reply::ScriptReply;
use crate::store::redis::script;
use crate::store::redis::script::Script;

/// How long a process trusts that a queue is unlimited; a capacity set elsewhere takes effect after this time.
const UNLIMITED_TTL: Micros = 1_000_000;
/// A minute, in microseconds.
pub(crate) const MINUTE_MICROS: Micros = 60_000_000;

/// Maximum resends of a push after lost replies.
const RESENDS_MAX: u32 = 3;

/// Implements `JobStore::push`.
pub(crate) async fn push(store: &Redis, jobs: Vec<Push>) -> Result<Vec<PushResult>> {
    let mut results: Vec<Option<PushResult>> = vec![None; jobs.len()];
    let mut queues: Vec<(String, Vec<usize>)> = Vec::new();
    for (index, job) in jobs.iter().enumerate() {
        match queues.iter_mut().find(|(queue, _)| *queue == job.queue) {
            Some((_, indexes)) => indexes.push(index),
            None => queues.push((job.queue.clone(), vec![index])),
        }
    }
    for (index, (queue, remaining)) in queues.into_iter().enumerate() {
        let pushed = push_queue(store, &queue, &jobs, remaining, &mut results).await;
        pushed.map_err(|error| if index > 0 { partially_applied(error) } else { error })?;
    }
    let missing = || Error::store("push", "a job got no reply; please report this as a bug");
    results.into_iter().map(|result| result.ok_or_else(missing)).collect()
}

/// Turns the error of a push that has partially run into `Unknown`. Jobs of another queue, or of an attempt with a lost
/// reply, may be in the store, so the caller must not assume that nothing was pushed.
pub(crate) fn partially_applied(error: Error) -> Error {
    match error {
        Error::Store { .. } | Error::Unknown { .. } => error.into_unknown(),
        rejected => Error::unknown_with_cause("push", rejected.to_string()),
    }
}

/// Pushes the jobs of one queue. Rejected jobs get their result and the rest is resent, until all of them go in at
/// once.
async fn push_queue(
    store: &Redis,
    queue: &str,
    jobs: &[Push],
    mut remaining: Vec<usize>,
    results: &mut [Option<PushResult>],
) -> Result<()> {
    let keys = store.register_queue("push", queue).await?;
    let mut resent = false;
    while !remaining.is_empty() {
        let (sent_indexes, duplicates) = split_duplicates(jobs, &remaining);
        let batch = QueuePushBatch { keys: &keys, jobs, indexes: &sent_indexes, duplicates: &duplicates, resent };
        let outcome = batch.send(store).await;
        // An attempt with a lost reply may have run, whatever happens to a later one.
        let (mut reply, lost) = outcome.map_err(|error| if resent { error.into_unknown() } else { error })?;
        resent |= lost;
        if let Some(capacity) = reply.take_exceeded_capacity()? {
            return Err(Error::Full { queue: queue.to_owned(), capacity });
        }
        let rejected = id_pairs(&mut reply)?;
        let replaced = id_pairs(&mut reply)?;
        if rejected.is_empty() {
            let replaced: HashMap<JobId, Option<JobId>> = replaced.into_iter().collect();
            for index in &sent_indexes {
                let id = jobs[*index].id;
                let old = replaced.get(&id).copied().flatten();
                results[*index] = Some(old.map_or(PushResult::New(id), |old| PushResult::Replaced { id, old }));
            }
            set_duplicate_results(jobs, &sent_indexes, &duplicates, results);
            return Ok(());
        }
        // Duplicates first: if one has the id of a sent job, the sent job is meant.
        let mut index_of: HashMap<JobId, usize> =
            duplicates.iter().chain(&sent_indexes).map(|index| (jobs[*index].id, *index)).collect();
        for (id, holder) in rejected {
            // A job may be rejected for its id and for its key: the first counts.
            let Some(index) = index_of.remove(&id) else {
                continue;
            };
            results[index] = Some(match holder {
                Some(holder) => PushResult::Existing(holder),
                // A generated id that was sent before: the first attempt has arrived.
                None if resent && jobs[index].has_fresh_id => PushResult::New(id),
                None => PushResult::Existing(id),
            });
        }
        remaining.retain(|index| results[*index].is_none());
    }
    Ok(())
}

/// Splits off duplicates: of several jobs with the same id or unique key only the first is sent.
fn split_duplicates(jobs: &[Push], remaining: &[usize]) -> (Vec<usize>, Vec<usize>) {
    let needs_no_check = |index: &usize| jobs[*index].has_fresh_id && jobs[*index].unique.is_none();
    if remaining.iter().all(needs_no_check) {
        return (remaining.to_vec(), Vec::new());
    }
    let (mut ids, mut keys) = (HashSet::new(), HashSet::new());
    remaining.iter().partition(|index| {
        let job = &jobs[**index];
        let new_id = !ids.contains(&job.id);
        let new_key = job.unique.as_ref().is_none_or(|key| !keys.contains(key));
        if new_id && new_key {
            ids.insert(job.id);
            keys.extend(job.unique.as_ref());
        }
        new_id && new_key
    })
}

/// Sets the results of duplicates after the first job of each went in.
fn set_duplicate_results(
    jobs: &[Push],
    sent_indexes: &[usize],
    duplicates: &[usize],
    results: &mut [Option<PushResult>],
) {
    if duplicates.is_empty() {
        return;
    }
    let ids: HashMap<JobId, usize> = sent_indexes.iter().map(|index| (jobs[*index].id, *index)).collect();
    let with_key = sent_indexes.iter().filter_map(|index| Some((jobs[*index].unique.as_deref()?, jobs[*index].id)));
    let by_key: HashMap<&str, JobId> = with_key.collect();
    for index in duplicates {
        let job = &jobs[*index];
        let holder = job.unique.as_deref().and_then(|key| by_key.get(key)).copied();
        // A job later in the push with this id did not come before it.
        let came_before = ids.get(&job.id).is_some_and(|sent_index| sent_index < index);
        let existing = if came_before { job.id } else { holder.unwrap_or(job.id) };
        results[*index] = Some(PushResult::Existing(existing));
    }
}

/// Reads pairs of an id and an optional other id.
fn id_pairs(reply: &mut ScriptReply) -> Result<Vec<(JobId, Option<JobId>)>> {
    let list = reply.list()?;
    let id_of = |bytes: &Option<Vec<u8>>| bytes.as_deref().and_then(reply::parse_job_id);
    Ok(list.chunks(2).filter_map(|pair| Some((id_of(pair.first()?)?, pair.get(1).and_then(id_of)))).collect())
}

/// The jobs that one request pushes.
struct QueuePushBatch<'b> {
    keys: &'b QueueKeys,
    jobs: &'b [Push],
    indexes: &'b [usize],
    /// Duplicates of these jobs: the script only checks whether their ids exist.
    duplicates: &'b [usize],
    /// The ids may exist because they were sent before.
    resent: bool,
}

impl QueuePushBatch<'_> {
    /// Sends the batch, and resends it if the reply is lost. Returns whether a reply was lost.
    async fn send(&self, store: &Redis) -> Result<(ScriptReply, bool)> {
        let mut lost = false;
        for _ in 0..RESENDS_MAX {
            match self.send_once(store, self.resent || lost).await {
                Err(Error::Unknown { cause, .. })
                    if store.options.replicas == 0 && !was_rejected_by_server(cause.as_deref()) =>
                {
                    tracing::debug!(?cause, "the reply to a push was lost; resending it");
                    lost = true;
                }
                Err(error) if lost => return Err(error.into_unknown()),
                other => return Ok((other?, lost)),
            }
        }
        self.send_once(store, true).await.map(|reply| (reply, true)).map_err(Error::into_unknown)
    }

    async fn send_once(&self, store: &Redis, resent: bool) -> Result<ScriptReply> {
        let check_ids = resent || self.indexes.iter().any(|index| !self.jobs[*index].has_fresh_id);
        let needs_checks = check_ids || self.indexes.iter().any(|index| self.jobs[*index].unique.is_some());
        let all_now = self.indexes.iter().all(|index| due_argument(self.jobs[*index].due, 0).is_none());
        // With idle nodes there is time for a script, and the script wakes one of them in the same request.
        let no_idle_nodes = !self.keys.has_idle.load(Ordering::Relaxed);
        if !needs_checks
            && all_now
            && no_idle_nodes
            && self.is_unlimited()
            && let Some(reply) = self.push_in_transaction(store).await?
        {
            return Ok(reply);
        }
        if !needs_checks
            && all_now
            && let [index] = self.indexes
        {
            return self.push_or_deliver_single(store, &self.jobs[*index]).await;
        }
        let (script, mut cmd) = self.push_command(store, needs_checks);
        self.append_jobs(store, &mut cmd);
        if needs_checks {
            cmd.arg(micros(store.options.remember_ids)).arg(u8::from(check_ids)).arg(self.duplicates.len());
            for index in self.duplicates {
                cmd.arg(self.jobs[*index].id.as_bytes());
            }
            for index in self.indexes {
                let job = &self.jobs[*index];
                if let Some(key) = &job.unique {
                    let conflict = if job.conflict == UniqueConflict::Replace { "r" } else { "k" };
                    cmd.arg(key).arg(job.id.as_bytes()).arg(conflict);
                }
            }
        }
        let value = store.send_replicated("push", self.keys, Some(script), &[cmd]).await?;
        let mut reply = store.parse_reply("push", value)?;
        if !needs_checks && all_now {
            self.note_queue_state(&mut reply);
        }
        Ok(reply)
    }

    /// Pushes jobs that are ready at once and need no checks as a plain transaction, which costs less than a script.
    /// Returns `None` if only a script can push them.
    async fn push_in_transaction(&self, store: &Redis) -> Result<Option<ScriptReply>> {
        let now = store.now();
        let mut store_records = redis::cmd("HSET");
        store_records.arg(&self.keys.job);
        for index in self.indexes {
            store_records.arg(self.jobs[*index].id.as_bytes()).arg(record::encode_push(&self.jobs[*index], now, now));
        }
        let mut cmds = vec![store_records];
        for (indexes, list) in
            self.group_by_priority().iter().zip(&self.keys.ready).filter(|(indexes, _)| !indexes.is_empty())
        {
            let mut append_ready = redis::cmd("RPUSH");
            append_ready.arg(list);
            for index in indexes {
                append_ready.arg(self.jobs[*index].id.as_bytes());
            }
            cmds.push(append_ready);
        }
        let mut bytes = redis::cmd("HINCRBY");
        bytes.arg(&self.keys.conf).arg("bytes").arg(self.args_bytes());
        cmds.push(bytes);
        if store.options.history {
            let mut pushed = redis::cmd("HINCRBY");
            pushed
                .arg(&self.keys.history)
                .arg(format!("{}.{PUSHED_INDEX:02}", now.div_euclid(MINUTE_MICROS)))
                .arg(self.indexes.len());
            cmds.push(pushed);
        }
        let mut idle = redis::cmd("ZPOPMAX");
        idle.arg(&self.keys.idle);
        cmds.push(idle);
        let reply = store.send_replicated("push", self.keys, None, &cmds).await?;
        let Value::Array(mut replies) = reply else {
            return Ok(None);
        };
        if let Some(node) = replies.pop().and_then(popped_member) {
            self.keys.has_idle.store(true, Ordering::Relaxed);
            wakes::wake_listening_node(store, self.keys, node).await;
        }
        Ok(Some(ScriptReply::push_accepted("push", now)))
    }

    /// Pushes one job, and delivers it directly to an idle node that accepts it.
    async fn push_or_deliver_single(&self, store: &Redis, push: &Push) -> Result<ScriptReply> {
        let mut cmd = script::DELIVER_TO_IDLE.call(self.keys);
        let (now, priority_list) = (store.now(), record::priority_digit(push.priority) - b'0');
        cmd.arg(store.manual_now()).arg(&self.keys.channel).arg(&self.keys.delivery);
        cmd.arg(priority_list)
            .arg(push.id.as_bytes())
            .arg(record::encode_push(push, now, now))
            .arg(self.args_bytes())
            .arg(&push.kind);
        let value = store.send_replicated("push", self.keys, Some(&script::DELIVER_TO_IDLE), &[cmd]).await?;
        let mut reply = store.parse_reply("push", value)?;
        if reply.is_queue_full() {
            return Ok(reply);
        }
        self.note_queue_state(&mut reply);
        Ok(ScriptReply::push_accepted("push", reply.now))
    }

    /// Records the queue's state from the reply: whether a node was idle, and whether the queue is unlimited.
    fn note_queue_state(&self, reply: &mut ScriptReply) {
        if reply.is_queue_full() {
            return;
        }
        self.keys.has_idle.store(reply.last_int() == Some(1), Ordering::Relaxed);
        let unlimited_at = if reply.last_int() == Some(0) { Clock::system().since_boot() } else { i64::MIN };
        self.keys.unlimited_at.store(unlimited_at, Ordering::Relaxed);
    }

    /// Returns whether a recent reply reported that the queue is unlimited.
    fn is_unlimited(&self) -> bool {
        let reported_at = self.keys.unlimited_at.load(Ordering::Relaxed);
        Clock::system().since_boot().saturating_sub(reported_at) < UNLIMITED_TTL
    }

    /// Returns the bytes of all args.
    fn args_bytes(&self) -> usize {
        self.indexes.iter().map(|index| self.jobs[*index].args.as_deref().unwrap_or("null").len()).sum()
    }

    fn group_by_priority(&self) -> [Vec<usize>; 4] {
        let mut by_priority: [Vec<usize>; 4] = Default::default();
        for index in self.indexes {
            by_priority[usize::from(record::priority_digit(self.jobs[*index].priority) - b'0')].push(*index);
        }
        by_priority
    }

    fn push_command(&self, store: &Redis, needs_checks: bool) -> (&'static Script, Cmd) {
        let script: &'static Script = if needs_checks { &script::PUSH_CHECKED } else { &script::PUSH };
        let mut cmd = script.call(self.keys);
        cmd.arg(store.manual_now()).arg(&self.keys.channel);
        (script, cmd)
    }

    /// Appends the batch, grouped as the script needs it: the script forwards the values without parsing them.
    fn append_jobs(&self, store: &Redis, cmd: &mut Cmd) {
        let now = store.now();
        let mut ready: [Vec<usize>; 4] = Default::default();
        let mut scheduled: Vec<(usize, String, Micros)> = Vec::new();
        for index in self.indexes {
            let job = &self.jobs[*index];
            match due_argument(job.due, now) {
                None => ready[usize::from(record::priority_digit(job.priority) - b'0')].push(*index),
                Some((text, moment)) => scheduled.push((*index, text, moment)),
            }
        }
        for indexes in &ready {
            cmd.arg(indexes.len());
        }
        cmd.arg(scheduled.len()).arg(self.args_bytes());
        for index in ready.iter().flatten() {
            cmd.arg(self.jobs[*index].id.as_bytes()).arg(record::encode_push(&self.jobs[*index], now, now));
        }
        for (index, _, moment) in &scheduled {
            cmd.arg(self.jobs[*index].id.as_bytes()).arg(record::encode_push(&self.jobs[*index], now, *moment));
        }
        for index in ready.iter().flatten() {
            cmd.arg(self.jobs[*index].id.as_bytes());
        }
        for (index, due, _) in &scheduled {
            cmd.arg(due).arg(self.due_ticket(*index));
        }
    }

    fn due_ticket(&self, index: usize) -> Vec<u8> {
        let job = &self.jobs[index];
        record::encode_due_ticket(job.id, job.priority, None, &job.kind, &job.tags)
    }
}

/// Returns whether the server itself reported why the request failed; a resend would fail too.
fn was_rejected_by_server(cause: Option<&(dyn std::error::Error + Send + Sync + 'static)>) -> bool {
    let error = cause.and_then(|cause| cause.downcast_ref::<redis::RedisError>());
    error.is_some_and(|error| matches!(error.kind(), redis::ErrorKind::Server(_) | redis::ErrorKind::Extension))
}

/// Returns the member that was popped from a sorted set, if any.
pub(crate) fn popped_member(popped: Value) -> Option<String> {
    match popped.into_sequence().ok()?.into_iter().next()? {
        Value::BulkString(node) => String::from_utf8(node).ok(),
        // RESP3 returns the member with its score, as a pair.
        Value::Array(pair) => popped_member(Value::Array(pair)),
        _ => None,
    }
}

/// Returns the due time as the script takes it and as the record stores it; `None` means now.
fn due_argument(due: Due, now: Micros) -> Option<(String, Micros)> {
    match due {
        Due::Now => None,
        Due::After(delay) if delay.is_zero() => None,
        Due::After(delay) => Some((record::encode_delay(delay), now.saturating_add(micros(delay).min(DELAY_MAX)))),
        Due::At(moment) => {
            let moment = record::clamp_moment(moment);
            // A time in the past counts as due since the push.
            Some((moment.to_string(), moment.max(now)))
        }
    }
}
