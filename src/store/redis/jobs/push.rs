//! Push: jobs into their queues, each queue in one atomic step.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;

use redis::{Cmd, Value};

use crate::clock::{Clock, Micros, micros};
use crate::error::{Error, Result};
use crate::job::JobId;
use crate::job::push::{Conflict, Due, Push, Pushed};
use crate::store::PUSHED;
use crate::store::redis::Redis;
use crate::store::redis::keys::QueueKeys;
use crate::store::redis::nodes::wakes;
use crate::store::redis::record;
use crate::store::redis::record::DELAY_MAX;
use crate::store::redis::reply;
use crate::store::redis::reply::Reply;
use crate::store::redis::script;
use crate::store::redis::script::Script;

/// How long it counts that a queue has no limit: one that is set elsewhere is kept to from then on.
const LIMIT_KNOWN: Micros = 1_000_000;
/// A minute, in microseconds.
pub(crate) const MINUTE: Micros = 60_000_000;

/// How often a push whose answer was lost is sent again.
const RESENDS_MAX: u32 = 3;

/// `push` of the contract.
pub(crate) async fn push(store: &Redis, jobs: Vec<Push>) -> Result<Vec<Pushed>> {
    let mut answers: Vec<Option<Pushed>> = vec![None; jobs.len()];
    let mut queues: Vec<(String, Vec<usize>)> = Vec::new();
    for (at, job) in jobs.iter().enumerate() {
        match queues.iter_mut().find(|(queue, _)| *queue == job.queue) {
            Some((_, of_queue)) => of_queue.push(at),
            None => queues.push((job.queue.clone(), vec![at])),
        }
    }
    for (at, (queue, waiting)) in queues.into_iter().enumerate() {
        let pushed = push_queue(store, &queue, &jobs, waiting, &mut answers).await;
        pushed.map_err(|error| if at > 0 { half_way(error) } else { error })?;
    }
    let missing = || Error::store("push", "a job got no answer");
    answers.into_iter().map(|answer| answer.ok_or_else(missing)).collect()
}

/// What went in before this failed is there: into another queue, or by a sending whose answer was lost. Whatever the error says
/// of its own part, of the whole nobody may take it that nothing was pushed.
pub(crate) fn half_way(error: Error) -> Error {
    match error {
        Error::Store { .. } | Error::Unknown { .. } => error.in_doubt(),
        refused => Error::Unknown { op: "push", source: Some(refused.to_string().into()) },
    }
}

/// Pushes the jobs of one queue: what is in the way is answered, the rest sent again without it, until all goes in at once.
async fn push_queue(
    store: &Redis,
    queue: &str,
    jobs: &[Push],
    mut waiting: Vec<usize>,
    answers: &mut [Option<Pushed>],
) -> Result<()> {
    let keys = store.register("push", queue).await?;
    let mut resent = false;
    while !waiting.is_empty() {
        let (first, behind) = firsts(jobs, &waiting);
        let batch = Batch { keys: &keys, jobs, of: &first, behind: &behind, resent };
        let sent = batch.send(store).await;
        // A sending whose answer was lost may be in, whatever becomes of a later one.
        let (mut reply, lost) = sent.map_err(|error| if resent { error.in_doubt() } else { error })?;
        resent |= lost;
        if let Some(capacity) = reply.full()? {
            return Err(Error::Full { queue: queue.to_owned(), capacity });
        }
        let refused = pairs(&mut reply)?;
        let replaced = pairs(&mut reply)?;
        if refused.is_empty() {
            let replaced: HashMap<JobId, Option<JobId>> = replaced.into_iter().collect();
            for at in &first {
                let id = jobs[*at].id;
                let old = replaced.get(&id).copied().flatten();
                answers[*at] = Some(old.map_or(Pushed::New(id), |old| Pushed::Replaced { id, old }));
            }
            answer_those_behind(jobs, &first, &behind, answers);
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
                Some(holder) => Pushed::Existing(holder),
                // An id that nobody else can know, sent before: it is the first sending that has arrived.
                None if resent && jobs[at].fresh => Pushed::New(id),
                None => Pushed::Existing(id),
            });
        }
        waiting.retain(|at| answers[*at].is_none());
    }
    Ok(())
}

/// Of several with one id or one unique key only the first is sent; the others wait for what becomes of it.
fn firsts(jobs: &[Push], waiting: &[usize]) -> (Vec<usize>, Vec<usize>) {
    let plain = |at: &usize| jobs[*at].fresh && jobs[*at].unique.is_none();
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
fn answer_those_behind(jobs: &[Push], first: &[usize], behind: &[usize], answers: &mut [Option<Pushed>]) {
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
        answers[*at] = Some(Pushed::Existing(existing));
    }
}

/// Ids with another one each, if there is one.
fn pairs(reply: &mut Reply) -> Result<Vec<(JobId, Option<JobId>)>> {
    let list = reply.list()?;
    let id_of = |bytes: &Option<Vec<u8>>| bytes.as_deref().and_then(reply::id);
    Ok(list.chunks(2).filter_map(|pair| Some((id_of(pair.first()?)?, pair.get(1).and_then(id_of)))).collect())
}

/// What is sent in one step.
struct Batch<'b> {
    keys: &'b QueueKeys,
    jobs: &'b [Push],
    of: &'b [usize],
    /// Jobs that wait for what becomes of these: only their ids are looked for.
    behind: &'b [usize],
    /// The ids may be known because they were sent before.
    resent: bool,
}

impl Batch<'_> {
    /// Sends it, again if the answer is lost; tells whether that happened.
    async fn send(&self, store: &Redis) -> Result<(Reply, bool)> {
        let mut lost = false;
        for _ in 0..RESENDS_MAX {
            match self.send_once(store, self.resent || lost).await {
                Err(Error::Unknown { source, .. })
                    if store.options.replicas == 0 && !was_answered(source.as_deref()) =>
                {
                    tracing::debug!(?source, "the answer to a push was lost; it is sent again");
                    lost = true;
                }
                Err(error) if lost => return Err(error.in_doubt()),
                other => return Ok((other?, lost)),
            }
        }
        self.send_once(store, true).await.map(|reply| (reply, true)).map_err(Error::in_doubt)
    }

    async fn send_once(&self, store: &Redis, resent: bool) -> Result<Reply> {
        let look = resent || self.of.iter().any(|at| !self.jobs[*at].fresh);
        let checked = look || self.of.iter().any(|at| self.jobs[*at].unique.is_some());
        let all_now = self.of.iter().all(|at| due(self.jobs[*at].due, 0).is_none());
        // Where nodes are idle there is time for a script, and it wakes one of them on the same way.
        let busy = !self.keys.has_idle.load(Ordering::Relaxed);
        if !checked
            && all_now
            && busy
            && self.is_unlimited()
            && let Some(reply) = self.put_together(store).await?
        {
            return Ok(reply);
        }
        if !checked
            && all_now
            && let [at] = self.of
        {
            return self.hand(store, &self.jobs[*at]).await;
        }
        let (script, mut cmd) = self.begin(store, checked);
        self.put(store, &mut cmd);
        if checked {
            cmd.arg(micros(store.options.remember)).arg(u8::from(look)).arg(self.behind.len());
            for at in self.behind {
                cmd.arg(self.jobs[*at].id.as_bytes());
            }
            for at in self.of {
                let job = &self.jobs[*at];
                if let Some(key) = &job.unique {
                    let conflict = if job.conflict == Conflict::Replace { "r" } else { "k" };
                    cmd.arg(key).arg(job.id.as_bytes()).arg(conflict);
                }
            }
        }
        let value = store.deliver("push", self.keys, Some(script), &[cmd]).await?;
        let mut reply = store.reply("push", value)?;
        if !checked && all_now {
            self.learn(&mut reply);
        }
        Ok(reply)
    }

    /// Jobs that are ready at once and in nobody's way need no script: a transaction hands the server what it keeps,
    /// at a third of the cost. `None` if it must be a script all the same.
    async fn put_together(&self, store: &Redis) -> Result<Option<Reply>> {
        let now = store.now();
        let mut put = redis::cmd("HSET");
        put.arg(&self.keys.job);
        for at in self.of {
            put.arg(self.jobs[*at].id.as_bytes()).arg(record::write(&self.jobs[*at], now, now));
        }
        let mut cmds = vec![put];
        for (lane, list) in self.by_priority().iter().zip(&self.keys.ready).filter(|(lane, _)| !lane.is_empty()) {
            let mut line_up = redis::cmd("RPUSH");
            line_up.arg(list);
            for at in lane {
                line_up.arg(self.jobs[*at].id.as_bytes());
            }
            cmds.push(line_up);
        }
        let mut bytes = redis::cmd("HINCRBY");
        bytes.arg(&self.keys.conf).arg("bytes").arg(self.bytes());
        cmds.push(bytes);
        if store.options.history {
            let mut pushed = redis::cmd("HINCRBY");
            pushed.arg(&self.keys.history).arg(format!("{}.{PUSHED:02}", now.div_euclid(MINUTE))).arg(self.of.len());
            cmds.push(pushed);
        }
        let mut idle = redis::cmd("ZPOPMAX");
        idle.arg(&self.keys.idle);
        cmds.push(idle);
        let answer = store.deliver("push", self.keys, None, &cmds).await?;
        let Value::Array(mut answers) = answer else {
            return Ok(None);
        };
        if let Some(node) = answers.pop().and_then(first_of) {
            self.keys.has_idle.store(true, Ordering::Relaxed);
            wakes::wake(store, self.keys, node).await;
        }
        Ok(Some(Reply::nothing_in_the_way("push", now)))
    }

    /// One job goes to a node that waits on the shortest way: into its hands, if it accepts it.
    async fn hand(&self, store: &Redis, push: &Push) -> Result<Reply> {
        let mut cmd = script::DELIVER_TO_IDLE.call(self.keys);
        let (now, lane) = (store.now(), record::digit(push.priority) - b'0');
        cmd.arg(store.manual_now()).arg(&self.keys.channel).arg(&self.keys.jobs);
        cmd.arg(lane).arg(push.id.as_bytes()).arg(record::write(push, now, now)).arg(self.bytes()).arg(&push.kind);
        let value = store.deliver("push", self.keys, Some(&script::DELIVER_TO_IDLE), &[cmd]).await?;
        let mut reply = store.reply("push", value)?;
        if reply.is_full() {
            return Ok(reply);
        }
        self.learn(&mut reply);
        Ok(Reply::nothing_in_the_way("push", reply.now))
    }

    /// Notes what a script says of a queue beside its answer: whether a node was idle, and whether there is a limit.
    fn learn(&self, reply: &mut Reply) {
        if reply.is_full() {
            return;
        }
        self.keys.has_idle.store(reply.last_int() == Some(1), Ordering::Relaxed);
        let unlimited = if reply.last_int() == Some(0) { Clock::system().since_boot() } else { i64::MIN };
        self.keys.uncapped_at.store(unlimited, Ordering::Relaxed);
    }

    /// A script has said not long ago that the queue has no limit.
    fn is_unlimited(&self) -> bool {
        let said = self.keys.uncapped_at.load(Ordering::Relaxed);
        Clock::system().since_boot().saturating_sub(said) < LIMIT_KNOWN
    }

    /// Bytes of all args.
    fn bytes(&self) -> usize {
        self.of.iter().map(|at| self.jobs[*at].args.as_deref().unwrap_or("null").len()).sum()
    }

    fn by_priority(&self) -> [Vec<usize>; 4] {
        let mut lanes: [Vec<usize>; 4] = Default::default();
        for at in self.of {
            lanes[usize::from(record::digit(self.jobs[*at].priority) - b'0')].push(*at);
        }
        lanes
    }

    fn begin(&self, store: &Redis, checked: bool) -> (&'static Script, Cmd) {
        let script: &'static Script = if checked { &script::PUSH_CHECKED } else { &script::PUSH };
        let mut cmd = script.call(self.keys);
        cmd.arg(store.manual_now()).arg(&self.keys.channel);
        (script, cmd)
    }

    /// The batch itself, grouped as the script wants it: it forwards what it gets and takes nothing apart.
    fn put(&self, store: &Redis, cmd: &mut Cmd) {
        let now = store.now();
        let mut ready: [Vec<usize>; 4] = Default::default();
        let mut scheduled: Vec<(usize, String, Micros)> = Vec::new();
        for at in self.of {
            let job = &self.jobs[*at];
            match due(job.due, now) {
                None => ready[usize::from(record::digit(job.priority) - b'0')].push(*at),
                Some((text, moment)) => scheduled.push((*at, text, moment)),
            }
        }
        for lane in &ready {
            cmd.arg(lane.len());
        }
        cmd.arg(scheduled.len()).arg(self.bytes());
        for at in ready.iter().flatten() {
            cmd.arg(self.jobs[*at].id.as_bytes()).arg(record::write(&self.jobs[*at], now, now));
        }
        for (at, _, moment) in &scheduled {
            cmd.arg(self.jobs[*at].id.as_bytes()).arg(record::write(&self.jobs[*at], now, *moment));
        }
        for at in ready.iter().flatten() {
            cmd.arg(self.jobs[*at].id.as_bytes());
        }
        for (at, due, _) in &scheduled {
            cmd.arg(due).arg(self.ticket(*at));
        }
    }

    fn ticket(&self, at: usize) -> Vec<u8> {
        let job = &self.jobs[at];
        record::due_ticket(job.id, job.priority, None, &job.kind, &job.tags)
    }
}

/// Whether the server has said itself why it was not carried out, or only in part: it would say so again.
fn was_answered(why: Option<&(dyn std::error::Error + Send + Sync + 'static)>) -> bool {
    let said = why.and_then(|why| why.downcast_ref::<redis::RedisError>());
    said.is_some_and(|error| matches!(error.kind(), redis::ErrorKind::Server(_) | redis::ErrorKind::Extension))
}

/// The member of a sorted set that was popped, if there was one.
pub(crate) fn first_of(popped: Value) -> Option<String> {
    match popped.into_sequence().ok()?.into_iter().next()? {
        Value::BulkString(node) => String::from_utf8(node).ok(),
        // With its score, as a pair.
        Value::Array(pair) => first_of(Value::Array(pair)),
        _ => None,
    }
}

/// When a job falls due, as the script takes it and as its record says it; `None` is now.
fn due(due: Due, now: Micros) -> Option<(String, Micros)> {
    match due {
        Due::Now => None,
        Due::After(delay) if delay.is_zero() => None,
        Due::After(delay) => Some((record::delay(delay), now.saturating_add(micros(delay).min(DELAY_MAX)))),
        Due::At(moment) => {
            let moment = record::moment(moment);
            // One that is past is due since it was pushed.
            Some((moment.to_string(), moment.max(now)))
        }
    }
}
