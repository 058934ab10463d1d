//! Push: jobs into their queues, each queue in one atomic step.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;

use redis::{Cmd, Value};

use crate::clock::{Clock, Micros, micros};
use crate::error::{Error, Result};
use crate::job::JobId;
use crate::job::push::{Due, Push, PushResult, UniqueConflict};
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

/// How long it counts that a queue has no limit: one that is set elsewhere is kept to from then on.
const UNLIMITED_CACHE_TTL: Micros = 1_000_000;
/// A minute, in microseconds.
pub(crate) const MINUTE_MICROS: Micros = 60_000_000;

/// How often a push whose answer was lost is sent again.
const RESENDS_MAX: u32 = 3;

/// `push` of the contract.
pub(crate) async fn push(store: &Redis, jobs: Vec<Push>) -> Result<Vec<PushResult>> {
    let mut answers: Vec<Option<PushResult>> = vec![None; jobs.len()];
    let mut queues: Vec<(String, Vec<usize>)> = Vec::new();
    for (at, job) in jobs.iter().enumerate() {
        match queues.iter_mut().find(|(queue, _)| *queue == job.queue) {
            Some((_, of_queue)) => of_queue.push(at),
            None => queues.push((job.queue.clone(), vec![at])),
        }
    }
    for (at, (queue, waiting)) in queues.into_iter().enumerate() {
        let pushed = push_queue(store, &queue, &jobs, waiting, &mut answers).await;
        pushed.map_err(|error| if at > 0 { partially_applied(error) } else { error })?;
    }
    let missing = || Error::store("push", "a job got no answer");
    answers.into_iter().map(|answer| answer.ok_or_else(missing)).collect()
}

/// What went in before this failed is there: into another queue, or by a sending whose answer was lost. Whatever the error says
/// of its own part, of the whole nobody may take it that nothing was pushed.
pub(crate) fn partially_applied(error: Error) -> Error {
    match error {
        Error::Store { .. } | Error::Unknown { .. } => error.into_unknown(),
        refused => Error::Unknown { op: "push", source: Some(refused.to_string().into()) },
    }
}

/// Pushes the jobs of one queue: what is in the way is answered, the rest sent again without it, until all goes in at once.
async fn push_queue(
    store: &Redis,
    queue: &str,
    jobs: &[Push],
    mut waiting: Vec<usize>,
    answers: &mut [Option<PushResult>],
) -> Result<()> {
    let keys = store.register_queue("push", queue).await?;
    let mut resent = false;
    while !waiting.is_empty() {
        let (first, behind) = split_duplicates(jobs, &waiting);
        let batch = QueuePushBatch { keys: &keys, jobs, indexes: &first, duplicates: &behind, resent };
        let sent = batch.send(store).await;
        // A sending whose answer was lost may be in, whatever becomes of a later one.
        let (mut reply, lost) = sent.map_err(|error| if resent { error.into_unknown() } else { error })?;
        resent |= lost;
        if let Some(capacity) = reply.take_exceeded_capacity()? {
            return Err(Error::Full { queue: queue.to_owned(), capacity });
        }
        let refused = id_pairs(&mut reply)?;
        let replaced = id_pairs(&mut reply)?;
        if refused.is_empty() {
            let replaced: HashMap<JobId, Option<JobId>> = replaced.into_iter().collect();
            for at in &first {
                let id = jobs[*at].id;
                let old = replaced.get(&id).copied().flatten();
                answers[*at] = Some(old.map_or(PushResult::New(id), |old| PushResult::Replaced { id, old }));
            }
            answer_duplicates(jobs, &first, &behind, answers);
            return Ok(());
        }
        // Those behind first: where one has the id of another that was sent, the other is meant.
        let mut sent: HashMap<JobId, usize> = behind.iter().chain(&first).map(|at| (jobs[*at].id, *at)).collect();
        for (id, holder) in refused {
            // Refused for its id and for its key: the first counts.
            let Some(at) = sent.remove(&id) else {
                continue;
            };
            answers[at] = Some(match holder {
                Some(holder) => PushResult::Existing(holder),
                // An id that nobody else can know, sent before: it is the first sending that has arrived.
                None if resent && jobs[at].has_fresh_id => PushResult::New(id),
                None => PushResult::Existing(id),
            });
        }
        waiting.retain(|at| answers[*at].is_none());
    }
    Ok(())
}

/// Of several with one id or one unique key only the first is sent; the others wait for what becomes of it.
fn split_duplicates(jobs: &[Push], waiting: &[usize]) -> (Vec<usize>, Vec<usize>) {
    let plain = |at: &usize| jobs[*at].has_fresh_id && jobs[*at].unique.is_none();
    if waiting.iter().all(plain) {
        return (waiting.to_vec(), Vec::new());
    }
    let (mut ids, mut keys) = (HashSet::new(), HashSet::new());
    waiting.iter().partition(|at| {
        let job = &jobs[**at];
        let new_id = !ids.contains(&job.id);
        let new_key = job.unique.as_ref().is_none_or(|key| !keys.contains(key));
        if new_id && new_key {
            ids.insert(job.id);
            keys.extend(job.unique.as_ref());
        }
        new_id && new_key
    })
}

/// The first of each has gone in: the others are what it has made of them.
fn answer_duplicates(jobs: &[Push], first: &[usize], behind: &[usize], answers: &mut [Option<PushResult>]) {
    if behind.is_empty() {
        return;
    }
    let ids: HashMap<JobId, usize> = first.iter().map(|at| (jobs[*at].id, *at)).collect();
    let keyed = first.iter().filter_map(|at| Some((jobs[*at].unique.as_deref()?, jobs[*at].id)));
    let by_key: HashMap<&str, JobId> = keyed.collect();
    for at in behind {
        let job = &jobs[*at];
        let holder = job.unique.as_deref().and_then(|key| by_key.get(key)).copied();
        // One that comes later in the push with this id has not been in its way.
        let came_before = ids.get(&job.id).is_some_and(|first| first < at);
        let existing = if came_before { job.id } else { holder.unwrap_or(job.id) };
        answers[*at] = Some(PushResult::Existing(existing));
    }
}

/// Ids with another one each, if there is one.
fn id_pairs(reply: &mut ScriptReply) -> Result<Vec<(JobId, Option<JobId>)>> {
    let list = reply.list()?;
    let id_of = |bytes: &Option<Vec<u8>>| bytes.as_deref().and_then(reply::parse_job_id);
    Ok(list.chunks(2).filter_map(|pair| Some((id_of(pair.first()?)?, pair.get(1).and_then(id_of)))).collect())
}

/// What is sent in one step.
struct QueuePushBatch<'b> {
    keys: &'b QueueKeys,
    jobs: &'b [Push],
    indexes: &'b [usize],
    /// Jobs that wait for what becomes of these: only their ids are looked for.
    duplicates: &'b [usize],
    /// The ids may be known because they were sent before.
    resent: bool,
}

impl QueuePushBatch<'_> {
    /// Sends it, again if the answer is lost; tells whether that happened.
    async fn send(&self, store: &Redis) -> Result<(ScriptReply, bool)> {
        let mut lost = false;
        for _ in 0..RESENDS_MAX {
            match self.send_once(store, self.resent || lost).await {
                Err(Error::Unknown { source, .. })
                    if store.options.replicas == 0 && !was_rejected_by_server(source.as_deref()) =>
                {
                    tracing::debug!(?source, "the answer to a push was lost; it is sent again");
                    lost = true;
                }
                Err(error) if lost => return Err(error.into_unknown()),
                other => return Ok((other?, lost)),
            }
        }
        self.send_once(store, true).await.map(|reply| (reply, true)).map_err(Error::into_unknown)
    }

    async fn send_once(&self, store: &Redis, resent: bool) -> Result<ScriptReply> {
        let look = resent || self.indexes.iter().any(|at| !self.jobs[*at].has_fresh_id);
        let checked = look || self.indexes.iter().any(|at| self.jobs[*at].unique.is_some());
        let all_now = self.indexes.iter().all(|at| due_argument(self.jobs[*at].due, 0).is_none());
        // Where nodes are idle there is time for a script, and it wakes one of them on the same way.
        let busy = !self.keys.has_idle.load(Ordering::Relaxed);
        if !checked
            && all_now
            && busy
            && self.is_known_unlimited()
            && let Some(reply) = self.push_in_transaction(store).await?
        {
            return Ok(reply);
        }
        if !checked
            && all_now
            && let [at] = self.indexes
        {
            return self.push_or_deliver_single(store, &self.jobs[*at]).await;
        }
        let (script, mut cmd) = self.push_command(store, checked);
        self.append_jobs(store, &mut cmd);
        if checked {
            cmd.arg(micros(store.options.remember)).arg(u8::from(look)).arg(self.duplicates.len());
            for at in self.duplicates {
                cmd.arg(self.jobs[*at].id.as_bytes());
            }
            for at in self.indexes {
                let job = &self.jobs[*at];
                if let Some(key) = &job.unique {
                    let conflict = if job.conflict == UniqueConflict::Replace { "r" } else { "k" };
                    cmd.arg(key).arg(job.id.as_bytes()).arg(conflict);
                }
            }
        }
        let value = store.send_replicated("push", self.keys, Some(script), &[cmd]).await?;
        let mut reply = store.parse_reply("push", value)?;
        if !checked && all_now {
            self.note_queue_state(&mut reply);
        }
        Ok(reply)
    }

    /// Jobs that are ready at once and in nobody's way need no script: a transaction hands the server what it keeps,
    /// at a third of the cost. `None` if it must be a script all the same.
    async fn push_in_transaction(&self, store: &Redis) -> Result<Option<ScriptReply>> {
        let now = store.now();
        let mut put = redis::cmd("HSET");
        put.arg(&self.keys.job);
        for at in self.indexes {
            put.arg(self.jobs[*at].id.as_bytes()).arg(record::encode_push(&self.jobs[*at], now, now));
        }
        let mut cmds = vec![put];
        for (lane, list) in self.group_by_priority().iter().zip(&self.keys.ready).filter(|(lane, _)| !lane.is_empty()) {
            let mut line_up = redis::cmd("RPUSH");
            line_up.arg(list);
            for at in lane {
                line_up.arg(self.jobs[*at].id.as_bytes());
            }
            cmds.push(line_up);
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
        let answer = store.send_replicated("push", self.keys, None, &cmds).await?;
        let Value::Array(mut answers) = answer else {
            return Ok(None);
        };
        if let Some(node) = answers.pop().and_then(popped_member) {
            self.keys.has_idle.store(true, Ordering::Relaxed);
            wakes::wake_listening_node(store, self.keys, node).await;
        }
        Ok(Some(ScriptReply::push_accepted("push", now)))
    }

    /// One job goes to a node that waits on the shortest way: into its hands, if it accepts it.
    async fn push_or_deliver_single(&self, store: &Redis, push: &Push) -> Result<ScriptReply> {
        let mut cmd = script::DELIVER_TO_IDLE.call(self.keys);
        let (now, lane) = (store.now(), record::priority_digit(push.priority) - b'0');
        cmd.arg(store.manual_now()).arg(&self.keys.channel).arg(&self.keys.jobs);
        cmd.arg(lane)
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

    /// Notes what a script says of a queue beside its answer: whether a node was idle, and whether there is a limit.
    fn note_queue_state(&self, reply: &mut ScriptReply) {
        if reply.is_queue_full() {
            return;
        }
        self.keys.has_idle.store(reply.last_int() == Some(1), Ordering::Relaxed);
        let unlimited = if reply.last_int() == Some(0) { Clock::system().since_boot() } else { i64::MIN };
        self.keys.uncapped_at.store(unlimited, Ordering::Relaxed);
    }

    /// A script has said not long ago that the queue has no limit.
    fn is_known_unlimited(&self) -> bool {
        let said = self.keys.uncapped_at.load(Ordering::Relaxed);
        Clock::system().since_boot().saturating_sub(said) < UNLIMITED_CACHE_TTL
    }

    /// Bytes of all args.
    fn args_bytes(&self) -> usize {
        self.indexes.iter().map(|at| self.jobs[*at].args.as_deref().unwrap_or("null").len()).sum()
    }

    fn group_by_priority(&self) -> [Vec<usize>; 4] {
        let mut lanes: [Vec<usize>; 4] = Default::default();
        for at in self.indexes {
            lanes[usize::from(record::priority_digit(self.jobs[*at].priority) - b'0')].push(*at);
        }
        lanes
    }

    fn push_command(&self, store: &Redis, checked: bool) -> (&'static Script, Cmd) {
        let script: &'static Script = if checked { &script::PUSH_CHECKED } else { &script::PUSH };
        let mut cmd = script.call(self.keys);
        cmd.arg(store.manual_now()).arg(&self.keys.channel);
        (script, cmd)
    }

    /// The batch itself, grouped as the script wants it: it forwards what it gets and takes nothing apart.
    fn append_jobs(&self, store: &Redis, cmd: &mut Cmd) {
        let now = store.now();
        let mut ready: [Vec<usize>; 4] = Default::default();
        let mut scheduled: Vec<(usize, String, Micros)> = Vec::new();
        for at in self.indexes {
            let job = &self.jobs[*at];
            match due_argument(job.due, now) {
                None => ready[usize::from(record::priority_digit(job.priority) - b'0')].push(*at),
                Some((text, moment)) => scheduled.push((*at, text, moment)),
            }
        }
        for lane in &ready {
            cmd.arg(lane.len());
        }
        cmd.arg(scheduled.len()).arg(self.args_bytes());
        for at in ready.iter().flatten() {
            cmd.arg(self.jobs[*at].id.as_bytes()).arg(record::encode_push(&self.jobs[*at], now, now));
        }
        for (at, _, moment) in &scheduled {
            cmd.arg(self.jobs[*at].id.as_bytes()).arg(record::encode_push(&self.jobs[*at], now, *moment));
        }
        for at in ready.iter().flatten() {
            cmd.arg(self.jobs[*at].id.as_bytes());
        }
        for (at, due, _) in &scheduled {
            cmd.arg(due).arg(self.due_ticket(*at));
        }
    }

    fn due_ticket(&self, at: usize) -> Vec<u8> {
        let job = &self.jobs[at];
        record::encode_due_ticket(job.id, job.priority, None, &job.kind, &job.tags)
    }
}

/// Whether the server has said itself why it was not carried out, or only in part: it would say so again.
fn was_rejected_by_server(why: Option<&(dyn std::error::Error + Send + Sync + 'static)>) -> bool {
    let said = why.and_then(|why| why.downcast_ref::<redis::RedisError>());
    said.is_some_and(|error| matches!(error.kind(), redis::ErrorKind::Server(_) | redis::ErrorKind::Extension))
}

/// The member of a sorted set that was popped, if there was one.
pub(crate) fn popped_member(popped: Value) -> Option<String> {
    match popped.into_sequence().ok()?.into_iter().next()? {
        Value::BulkString(node) => String::from_utf8(node).ok(),
        // With its score, as a pair.
        Value::Array(pair) => popped_member(Value::Array(pair)),
        _ => None,
    }
}

/// When a job falls due, as the script takes it and as its record says it; `None` is now.
fn due_argument(due: Due, now: Micros) -> Option<(String, Micros)> {
    match due {
        Due::Now => None,
        Due::After(delay) if delay.is_zero() => None,
        Due::After(delay) => Some((record::encode_delay(delay), now.saturating_add(micros(delay).min(DELAY_MAX)))),
        Due::At(moment) => {
            let moment = record::clamp_moment(moment);
            // One that is past is due since it was pushed.
            Some((moment.to_string(), moment.max(now)))
        }
    }
}
