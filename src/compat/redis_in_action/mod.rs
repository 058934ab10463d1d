//! Redis in Action: its delayed items and its queues, on its own keys and in its own bytes.
//!
//! `redis-in-action://host/db` is a store. What is pushed goes into `delayed:` or `queue:NAME` for whoever takes it first.
//! What duly takes from there is in keys of duly's from that very step on, with lease, fence, attempts and history like any job:
//! it is run by duly's workers until it is done or dead.

mod import;
mod item;
mod waiting;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tokio::sync::mpsc;

use self::item::Item;
use super::{option, script};
use crate::error::{Error, Result};
use crate::job::push::{Due, MAX_ATTEMPTS, Push, Pushed, TIMEOUT};
use crate::job::{JobId, Priority, Record};
use crate::node::{Node, NodeId, NodeRecord};
use crate::store::redis::{Place, QueueKeys, Redis, half_way, key_set, span};
use crate::store::{
    Attended, Beaten, Claim, Claimed, End, Filter, Guest, Health, Heard, LockAsk, LockPage, LockTaken, Marked, MoveIn,
    Moved, MovedIn, Options, Page, QueueCounts, Store, To, Wake,
};

/// Options of its URL.
pub(super) const OPTIONS: &[&str] = &["lock_limit"];
/// The sorted set of its delayed items, and what its lists and locks begin with.
const DELAYED: &str = "delayed:";
const QUEUE: &str = "queue:";
const LOCK: &str = "lock:";
/// Where Sidekiq keeps the names of its queues: those are not for us.
const SIDEKIQ_QUEUES: &str = "queues";
/// How long a lock without an end is respected: its pollers hold one for a few milliseconds.
const LOCK_LIMIT: Duration = Duration::from_secs(30);
/// Most queues at whose lists is waited; in others an item is noticed by the next beat.
const WATCHED_MAX: usize = 16;

/// A store on the keys of Redis in Action.
pub(crate) struct RedisInAction {
    /// What duly has taken, and everything else that the format cannot carry.
    own: Arc<Redis>,
    options: Options,
    lock_limit: Duration,
    /// Hash: since when a lock without an end has been seen.
    seen: String,
    /// Queues at whose list somebody waits, each with a connection of its own.
    watched: Arc<Mutex<BTreeMap<String, usize>>>,
}

impl RedisInAction {
    pub(crate) async fn open(place: Place, options: &Options) -> Result<Self> {
        let lock_limit = match option(&options.foreign, "lock_limit") {
            None => LOCK_LIMIT,
            Some(text) => crate::store::duration(text)
                .map_err(|why| Error::invalid("lock_limit", format!("{text:?} is {why}")))?,
        };
        let options = Options { prefix: format!("{}:redis-in-action", options.prefix), ..options.clone() };
        let seen = format!("{}:locks", options.prefix);
        let own = Arc::new(Redis::open(place, &options).await?);
        Ok(RedisInAction { own, options, lock_limit, seen, watched: Arc::default() })
    }

    /// Wakes an idle node of ours as soon as somebody puts an item into the list of a queue: who pushes there tells nobody.
    fn watch(&self, queue: &str) {
        let at = {
            let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
            let free = (0..WATCHED_MAX).find(|at| !watched.values().any(|used| used == at));
            match free.filter(|_| !watched.contains_key(queue)) {
                Some(at) => watched.insert(queue.to_owned(), at).map_or(at, |_| at),
                // The next beat finds what is there.
                None => return,
            }
        };
        let (own, watched, queue) = (self.own.clone(), self.watched.clone(), queue.to_owned());
        self.own.spawn_apart(async move {
            let there = own.wait_at(&list_of(&queue), at).await;
            watched.lock().unwrap_or_else(PoisonError::into_inner).remove(&queue);
            if there.is_ok_and(|there| there) {
                own.wake_one(&queue).await;
            }
        });
    }
}

/// The list of a queue.
fn list_of(queue: &str) -> String {
    format!("{QUEUE}{queue}")
}

/// Why a queue is not for us.
fn mixed(queue: &str, why: &str) -> Error {
    let reason = match why {
        "sidekiq" => format!(
            "{queue:?} holds jobs of Sidekiq: {QUEUE}{queue} cannot have two formats, each side would destroy what the other puts there. Use another queue, or sidekiq:// for this one"
        ),
        _ => format!("{queue:?}: {QUEUE}{queue} is not a list, so it is no queue of Redis in Action"),
    };
    Error::invalid("queue", reason)
}

/// What the format cannot carry is refused rather than lost.
fn admit(job: &Push) -> Result<()> {
    let cannot =
        |field, what: &str| Err(Error::invalid(field, format!("an item of Redis in Action carries no {what}")));
    if job.priority != Priority::Normal {
        return cannot("priority", "priority");
    }
    if job.unique.is_some() {
        return cannot("unique", "unique key");
    }
    if job.max_attempts != MAX_ATTEMPTS {
        return cannot("max_attempts", "number of attempts");
    }
    if job.timeout != TIMEOUT {
        return cannot("timeout", "timeout");
    }
    if !job.tags.is_empty() || job.traceparent.is_some() {
        return cannot("tags", "tags and no trace");
    }
    let args = job.args.as_deref().unwrap_or("null");
    if !args.trim_start().starts_with('[') {
        return Err(Error::invalid("args", "must be a JSON array: Redis in Action hands its elements to a function"));
    }
    Ok(())
}

/// The keys of one queue that scripts name: those of Redis in Action, and duly's own.
pub(super) struct ItemKeys<'k> {
    own: &'k QueueKeys,
    list: String,
    /// Where items are taken from.
    source: &'k str,
}

impl<'k> ItemKeys<'k> {
    fn new(own: &'k QueueKeys) -> Self {
        ItemKeys { own, list: list_of(&own.queue), source: "" }
    }
}

key_set! { ItemKeys<'_>, keys:
    "delayed" => DELAYED,
    "list" => &keys.list,
    "sidekiq_queues" => SIDEKIQ_QUEUES,
    "source" => keys.source,
    "conf" => &keys.own.conf,
    "job" => &keys.own.job,
    "meta" => &keys.own.meta,
    "errors" => &keys.own.errors,
    "dead" => &keys.own.dead,
    "groups" => &keys.own.groups,
    "job_index" => &keys.own.job_index,
    "idle" => &keys.own.idle,
    "gone[1]" => &keys.own.gone[0],
    "gone[2]" => &keys.own.gone[1],
    "ready[1]" => &keys.own.ready[0],
    "ready[2]" => &keys.own.ready[1],
    "ready[3]" => &keys.own.ready[2],
    "ready[4]" => &keys.own.ready[3],
}

/// The keys of delayed items of all queues.
pub(super) struct DelayedKeys<'k> {
    seen_locks: &'k str,
}

key_set! { DelayedKeys<'_>, keys: "delayed" => DELAYED, "seen_locks" => keys.seen_locks, "sidekiq_queues" => SIDEKIQ_QUEUES }

impl RedisInAction {
    async fn push_queue(&self, queue: &str, jobs: &[&Push]) -> Result<Vec<bool>> {
        let keys = self.own.register("push", queue).await?;
        let mut cmd = script::RIA_PUSH.call(&ItemKeys::new(&keys));
        cmd.arg(self.own.manual_now()).arg(&keys.channel).arg(queue).arg(span(self.options.remember));
        for push in jobs {
            let args = push.args.clone().unwrap_or_default();
            let (identifier, name) = (push.id.to_string(), push.kind.clone());
            cmd.arg(Item { identifier, queue: queue.to_owned(), name, args }.write()).arg(due(push.due));
            match push.fresh {
                true => cmd.arg(""),
                false => cmd.arg(push.id.as_bytes()),
            };
        }
        let value = self.own.deliver("push", &keys, Some(&script::RIA_PUSH), &[cmd]).await?;
        let mut reply = self.own.reply("push", value)?;
        match reply.text()?.as_str() {
            "" => Ok(reply.list()?.iter().map(|answer| answer.as_deref() == Some(b"1")).collect()),
            why => Err(mixed(queue, why)),
        }
    }
}

/// A due moment as scripts take it; empty is now.
fn due(due: Due) -> String {
    match due {
        Due::Now => String::new(),
        Due::After(delay) => format!("+{}", span(delay)),
        Due::At(moment) => crate::clock::to_micros(moment).to_string(),
    }
}

impl crate::store::sealed::Sealed for RedisInAction {}

#[async_trait]
impl Store for RedisInAction {
    fn home(&self) -> Option<tokio::runtime::Handle> {
        Store::home(&*self.own)
    }

    async fn push(&self, jobs: Vec<Push>) -> Result<Vec<Pushed>> {
        jobs.iter().try_for_each(admit)?;
        let mut queues: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (at, job) in jobs.iter().enumerate() {
            queues.entry(&job.queue).or_default().push(at);
        }
        let mut answers: Vec<Pushed> = jobs.iter().map(|job| Pushed::Existing(job.id)).collect();
        for (no, (queue, of_queue)) in queues.into_iter().enumerate() {
            let some: Vec<&Push> = of_queue.iter().map(|at| &jobs[*at]).collect();
            let pushed = self.push_queue(queue, &some).await;
            let new = pushed.map_err(|error| if no > 0 { half_way(error) } else { error })?;
            for at in of_queue.iter().zip(new).filter(|(_, new)| *new).map(|(at, _)| *at) {
                answers[at] = Pushed::New(jobs[at].id);
            }
        }
        Ok(answers)
    }

    async fn claim(&self, node: NodeId, claim: Claim) -> Result<Claimed> {
        if claim.redo || claim.max == 0 {
            return self.own.claim(node, claim).await;
        }
        let (brought, queue) = (import::bring(self, &claim.queue, claim.max).await?, claim.queue.clone());
        let mut claimed = self.own.claim(node, claim).await?;
        claimed.next_due = claimed.next_due.into_iter().chain(brought.look_after).min();
        if brought.empty && !claimed.more {
            self.watch(&queue);
        }
        Ok(claimed)
    }

    async fn settle(&self, node: NodeId, ends: Vec<End>) -> Result<Vec<JobId>> {
        self.own.settle(node, ends).await
    }

    async fn get(&self, id: JobId) -> Result<Option<Record>> {
        match self.own.get(id).await? {
            Some(record) => Ok(Some(record)),
            None => waiting::get(self, id).await,
        }
    }

    async fn list(&self, filter: Filter) -> Result<Page> {
        waiting::list(self, filter).await
    }

    async fn remove(&self, id: JobId) -> Result<Moved> {
        match self.own.remove(id).await? {
            Moved::NotFound => waiting::remove(self, id).await,
            moved => Ok(moved),
        }
    }

    async fn reschedule(&self, id: JobId, due: Due) -> Result<Moved> {
        match self.own.reschedule(id, due).await? {
            Moved::NotFound => waiting::reschedule(self, id, due).await,
            moved => Ok(moved),
        }
    }

    async fn counts(&self) -> Result<Vec<QueueCounts>> {
        waiting::counts(self).await
    }

    async fn pause(&self, queue: &str, paused: bool) -> Result<bool> {
        self.own.pause(queue, paused).await
    }

    async fn prune(&self, queue: &str, done_max: usize) -> Result<usize> {
        self.own.prune(queue, done_max).await
    }

    async fn beat(&self, node: &Node) -> Result<Beaten> {
        let mut beaten = self.own.beat(node).await?;
        let full = import::any(self, &node.queues).await?;
        node.queues.iter().filter(|queue| !full.contains(queue)).for_each(|queue| self.watch(queue));
        for queue in full {
            if !beaten.look.contains(&queue) {
                beaten.look.push(queue);
            }
        }
        Ok(beaten)
    }

    async fn leave(&self, node: NodeId) -> Result<()> {
        self.own.leave(node).await
    }

    async fn nodes(&self) -> Result<Vec<NodeRecord>> {
        self.own.nodes().await
    }

    async fn subscribe(&self, node: NodeId) -> Result<mpsc::Receiver<Wake>> {
        self.own.subscribe(node).await
    }

    async fn set_moving(&self, queue: &str, mover: NodeId, to: Option<&str>) -> Result<Marked> {
        match to {
            None => self.own.set_moving(queue, mover, to).await,
            Some(_) => Err(cannot_move()),
        }
    }

    async fn move_in(&self, _batch: MoveIn) -> Result<MovedIn> {
        Err(cannot_move())
    }

    async fn move_out(&self, _queue: &str, _mover: NodeId, _jobs: Vec<(JobId, SystemTime)>) -> Result<Option<usize>> {
        Err(cannot_move())
    }

    async fn lock(&self, ask: &LockAsk) -> Result<LockTaken> {
        self.own.lock(ask).await
    }

    async fn extend_locks(&self, asks: &[LockAsk]) -> Result<Vec<bool>> {
        self.own.extend_locks(asks).await
    }

    async fn unlock(&self, ask: &LockAsk) -> Result<bool> {
        self.own.unlock(ask).await
    }

    async fn leave_line(&self, ask: &LockAsk) -> Result<()> {
        self.own.leave_line(ask).await
    }

    async fn locks(&self, name: Option<&str>, cursor: Option<&str>) -> Result<LockPage> {
        self.own.locks(name, cursor).await
    }

    async fn break_lock(&self, name: &str) -> Result<u64> {
        self.own.break_lock(name).await
    }

    async fn attend(&self, guest: &Guest) -> Result<Attended> {
        self.own.attend(guest).await
    }

    async fn depart(&self, node: NodeId) -> Result<()> {
        self.own.depart(node).await
    }

    async fn hear(&self, node: NodeId, all: bool) -> Result<mpsc::Receiver<Heard>> {
        self.own.hear(node, all).await
    }

    async fn send(&self, to: To, message: &[u8]) -> Result<u64> {
        self.own.send(to, message).await
    }

    async fn set_connections(&self, node: NodeId, held: &[String], gone: &[String]) -> Result<()> {
        self.own.set_connections(node, held, gone).await
    }

    async fn keep_connections(&self, node: NodeId, held: &[String]) -> Result<()> {
        self.own.keep_connections(node, held).await
    }

    async fn connection(&self, connection: &str) -> Result<Option<NodeId>> {
        self.own.connection(connection).await
    }

    async fn answering(&self, method: &str) -> Result<Vec<NodeId>> {
        self.own.answering(method).await
    }

    fn now(&self) -> SystemTime {
        Store::now(&*self.own)
    }

    async fn health(&self) -> Result<Health> {
        let mut health = self.own.health().await?;
        // Written for the keys of duly's own; what is needed here beside them nobody has worked out.
        health.acl = None;
        Ok(health)
    }
}

fn cannot_move() -> Error {
    Error::invalid(
        "store",
        "queues of Redis in Action cannot be moved: others put items there and know nothing of a move. Let a worker drain them",
    )
}
