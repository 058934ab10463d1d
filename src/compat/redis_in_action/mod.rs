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
use super::{script, url_option};
use crate::error::{Error, Result};
use crate::job::push::{DEFAULT_MAX_ATTEMPTS, DEFAULT_TIMEOUT, Due, Push, PushResult};
use crate::job::{JobId, JobRecord, Priority};
use crate::node::{Node, NodeId, NodeRecord};
use crate::store::redis::{QueueKeys, Redis, RedisUrl, key_set, partially_applied, span_micros};
use crate::store::{
    AnnounceReply, AttemptEnd, ChangeResult, Claim, ClaimReply, Filter, Health, HeartbeatReply, JobPage, LockPage,
    LockReply, LockRequest, Notification, PeerInfo, QueueCounts, Recipient, Store, StoreOptions, TransferBatch,
    TransferBatchResult, TransferMarkReply, Wake,
};

/// Options of its URL.
pub(super) const URL_OPTIONS: &[&str] = &["lock_limit"];
/// The sorted set of its delayed items, and what its lists and locks begin with.
const DELAYED_KEY: &str = "delayed:";
const QUEUE_PREFIX: &str = "queue:";
const LOCK_PREFIX: &str = "lock:";
/// Where Sidekiq keeps the names of its queues: those are not for us.
const SIDEKIQ_QUEUES_KEY: &str = "queues";
/// How long a lock without an end is respected: its pollers hold one for a few milliseconds.
const DEFAULT_LOCK_LIMIT: Duration = Duration::from_secs(30);
/// Most queues at whose lists is waited; in others an item is noticed by the next beat.
const WATCHED_MAX: usize = 16;

/// A store on the keys of Redis in Action.
pub(crate) struct RedisInAction {
    /// What duly has taken, and everything else that the format cannot carry.
    redis: Arc<Redis>,
    options: StoreOptions,
    lock_limit: Duration,
    /// Hash: since when a lock without an end has been seen.
    locks_seen_key: String,
    /// Queues at whose list somebody waits, each with a connection of its own.
    watched_queues: Arc<Mutex<BTreeMap<String, usize>>>,
}

impl RedisInAction {
    pub(crate) async fn open(place: RedisUrl, options: &StoreOptions) -> Result<Self> {
        let lock_limit = match url_option(&options.system_options, "lock_limit") {
            None => DEFAULT_LOCK_LIMIT,
            Some(text) => crate::store::parse_duration(text)
                .map_err(|why| Error::invalid("lock_limit", format!("{text:?} is {why}")))?,
        };
        let options = StoreOptions { prefix: format!("{}:redis-in-action", options.prefix), ..options.clone() };
        let seen = format!("{}:locks", options.prefix);
        let own = Arc::new(Redis::open(place, &options).await?);
        Ok(RedisInAction { redis: own, options, lock_limit, locks_seen_key: seen, watched_queues: Arc::default() })
    }

    /// Wakes an idle node of ours as soon as somebody puts an item into the list of a queue: who pushes there tells nobody.
    fn watch_list(&self, queue: &str) {
        let at = {
            let mut watched = self.watched_queues.lock().unwrap_or_else(PoisonError::into_inner);
            let free = (0..WATCHED_MAX).find(|at| !watched.values().any(|used| used == at));
            match free.filter(|_| !watched.contains_key(queue)) {
                Some(at) => watched.insert(queue.to_owned(), at).map_or(at, |_| at),
                // The next beat finds what is there.
                None => return,
            }
        };
        let (own, watched, queue) = (self.redis.clone(), self.watched_queues.clone(), queue.to_owned());
        self.redis.spawn_on_runtime(async move {
            let there = own.wait_for_list(&list_key(&queue), at).await;
            watched.lock().unwrap_or_else(PoisonError::into_inner).remove(&queue);
            if there.is_ok_and(|there| there) {
                own.wake_idle_node(&queue).await;
            }
        });
    }
}

/// The list of a queue.
fn list_key(queue: &str) -> String {
    format!("{QUEUE_PREFIX}{queue}")
}

/// Why a queue is not for us.
fn mixed_list_error(queue: &str, why: &str) -> Error {
    let reason = match why {
        "sidekiq" => format!(
            "{queue:?} holds jobs of Sidekiq: {QUEUE_PREFIX}{queue} cannot have two formats, each side would destroy what the other puts there. Use another queue, or sidekiq:// for this one"
        ),
        _ => format!("{queue:?}: {QUEUE_PREFIX}{queue} is not a list, so it is no queue of Redis in Action"),
    };
    Error::invalid("queue", reason)
}

/// What the format cannot carry is refused rather than lost.
fn check_supported(job: &Push) -> Result<()> {
    let cannot =
        |field, what: &str| Err(Error::invalid(field, format!("an item of Redis in Action carries no {what}")));
    if job.priority != Priority::Normal {
        return cannot("priority", "priority");
    }
    if job.unique.is_some() {
        return cannot("unique", "unique key");
    }
    if job.max_attempts != DEFAULT_MAX_ATTEMPTS {
        return cannot("max_attempts", "number of attempts");
    }
    if job.timeout != DEFAULT_TIMEOUT {
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
        ItemKeys { own, list: list_key(&own.queue), source: "" }
    }
}

key_set! { ItemKeys<'_>, keys:
    "delayed" => DELAYED_KEY,
    "list" => &keys.list,
    "sidekiq_queues" => SIDEKIQ_QUEUES_KEY,
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

key_set! { DelayedKeys<'_>, keys: "delayed" => DELAYED_KEY, "seen_locks" => keys.seen_locks, "sidekiq_queues" => SIDEKIQ_QUEUES_KEY }

impl RedisInAction {
    async fn push_queue(&self, queue: &str, jobs: &[&Push]) -> Result<Vec<bool>> {
        let keys = self.redis.register_queue("push", queue).await?;
        let mut cmd = script::RIA_PUSH.call(&ItemKeys::new(&keys));
        cmd.arg(self.redis.manual_now()).arg(&keys.channel).arg(queue).arg(span_micros(self.options.remember));
        for push in jobs {
            let args = push.args.clone().unwrap_or_default();
            let (identifier, name) = (push.id.to_string(), push.kind.clone());
            cmd.arg(Item { identifier, queue: queue.to_owned(), name, args }.encode()).arg(due_argument(push.due));
            match push.has_fresh_id {
                true => cmd.arg(""),
                false => cmd.arg(push.id.as_bytes()),
            };
        }
        let value = self.redis.send_replicated("push", &keys, Some(&script::RIA_PUSH), &[cmd]).await?;
        let mut reply = self.redis.parse_reply("push", value)?;
        match reply.text()?.as_str() {
            "" => Ok(reply.list()?.iter().map(|answer| answer.as_deref() == Some(b"1")).collect()),
            why => Err(mixed_list_error(queue, why)),
        }
    }
}

/// A due moment as scripts take it; empty is now.
fn due_argument(due: Due) -> String {
    match due {
        Due::Now => String::new(),
        Due::After(delay) => format!("+{}", span_micros(delay)),
        Due::At(moment) => crate::clock::to_micros(moment).to_string(),
    }
}

impl crate::store::sealed::Sealed for RedisInAction {}

#[async_trait]
impl Store for RedisInAction {
    fn runtime(&self) -> Option<tokio::runtime::Handle> {
        Store::runtime(&*self.redis)
    }

    async fn push(&self, jobs: Vec<Push>) -> Result<Vec<PushResult>> {
        jobs.iter().try_for_each(check_supported)?;
        let mut queues: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (at, job) in jobs.iter().enumerate() {
            queues.entry(&job.queue).or_default().push(at);
        }
        let mut answers: Vec<PushResult> = jobs.iter().map(|job| PushResult::Existing(job.id)).collect();
        for (no, (queue, of_queue)) in queues.into_iter().enumerate() {
            let some: Vec<&Push> = of_queue.iter().map(|at| &jobs[*at]).collect();
            let pushed = self.push_queue(queue, &some).await;
            let new = pushed.map_err(|error| if no > 0 { partially_applied(error) } else { error })?;
            for at in of_queue.iter().zip(new).filter(|(_, new)| *new).map(|(at, _)| *at) {
                answers[at] = PushResult::New(jobs[at].id);
            }
        }
        Ok(answers)
    }

    async fn claim(&self, node: NodeId, claim: Claim) -> Result<ClaimReply> {
        if claim.resync || claim.max == 0 {
            return self.redis.claim(node, claim).await;
        }
        let (brought, queue) = (import::import_jobs(self, &claim.queue, claim.max).await?, claim.queue.clone());
        let mut claimed = self.redis.claim(node, claim).await?;
        claimed.next_due = claimed.next_due.into_iter().chain(brought.recheck_after).min();
        if brought.is_list_empty && !claimed.has_more {
            self.watch_list(&queue);
        }
        Ok(claimed)
    }

    async fn settle(&self, node: NodeId, ends: Vec<AttemptEnd>) -> Result<Vec<JobId>> {
        self.redis.settle(node, ends).await
    }

    async fn get(&self, id: JobId) -> Result<Option<JobRecord>> {
        match self.redis.get(id).await? {
            Some(record) => Ok(Some(record)),
            None => waiting::get(self, id).await,
        }
    }

    async fn list(&self, filter: Filter) -> Result<JobPage> {
        waiting::list(self, filter).await
    }

    async fn remove(&self, id: JobId) -> Result<ChangeResult> {
        match self.redis.remove(id).await? {
            ChangeResult::NotFound => waiting::remove(self, id).await,
            moved => Ok(moved),
        }
    }

    async fn reschedule(&self, id: JobId, due: Due) -> Result<ChangeResult> {
        match self.redis.reschedule(id, due).await? {
            ChangeResult::NotFound => waiting::reschedule(self, id, due).await,
            moved => Ok(moved),
        }
    }

    async fn counts(&self) -> Result<Vec<QueueCounts>> {
        waiting::counts(self).await
    }

    async fn set_paused(&self, queue: &str, paused: bool) -> Result<bool> {
        self.redis.set_paused(queue, paused).await
    }

    async fn prune(&self, queue: &str, done_max: usize) -> Result<usize> {
        self.redis.prune(queue, done_max).await
    }

    async fn heartbeat(&self, node: &Node) -> Result<HeartbeatReply> {
        let mut beaten = self.redis.heartbeat(node).await?;
        let full = import::queues_with_items(self, &node.queues).await?;
        node.queues.iter().filter(|queue| !full.contains(queue)).for_each(|queue| self.watch_list(queue));
        for queue in full {
            if !beaten.queues_to_check.contains(&queue) {
                beaten.queues_to_check.push(queue);
            }
        }
        Ok(beaten)
    }

    async fn leave(&self, node: NodeId) -> Result<()> {
        self.redis.leave(node).await
    }

    async fn nodes(&self) -> Result<Vec<NodeRecord>> {
        self.redis.nodes().await
    }

    async fn subscribe_wakes(&self, node: NodeId) -> Result<mpsc::Receiver<Wake>> {
        self.redis.subscribe_wakes(node).await
    }

    async fn set_transfer_mark(&self, queue: &str, mover: NodeId, to: Option<&str>) -> Result<TransferMarkReply> {
        match to {
            None => self.redis.set_transfer_mark(queue, mover, to).await,
            Some(_) => Err(transfer_unsupported()),
        }
    }

    async fn transfer_in(&self, _batch: TransferBatch) -> Result<TransferBatchResult> {
        Err(transfer_unsupported())
    }

    async fn transfer_out(
        &self,
        _queue: &str,
        _mover: NodeId,
        _jobs: Vec<(JobId, SystemTime)>,
    ) -> Result<Option<usize>> {
        Err(transfer_unsupported())
    }

    async fn lock(&self, ask: &LockRequest) -> Result<LockReply> {
        self.redis.lock(ask).await
    }

    async fn extend_locks(&self, asks: &[LockRequest]) -> Result<Vec<bool>> {
        self.redis.extend_locks(asks).await
    }

    async fn unlock(&self, ask: &LockRequest) -> Result<bool> {
        self.redis.unlock(ask).await
    }

    async fn cancel_wait(&self, ask: &LockRequest) -> Result<()> {
        self.redis.cancel_wait(ask).await
    }

    async fn locks(&self, name: Option<&str>, cursor: Option<&str>) -> Result<LockPage> {
        self.redis.locks(name, cursor).await
    }

    async fn break_lock(&self, name: &str) -> Result<u64> {
        self.redis.break_lock(name).await
    }

    async fn announce(&self, guest: &PeerInfo) -> Result<AnnounceReply> {
        self.redis.announce(guest).await
    }

    async fn withdraw(&self, node: NodeId) -> Result<()> {
        self.redis.withdraw(node).await
    }

    async fn subscribe_messages(&self, node: NodeId, all: bool) -> Result<mpsc::Receiver<Notification>> {
        self.redis.subscribe_messages(node, all).await
    }

    async fn send(&self, to: Recipient, message: &[u8]) -> Result<u64> {
        self.redis.send(to, message).await
    }

    async fn set_connections(&self, node: NodeId, held: &[String], gone: &[String]) -> Result<()> {
        self.redis.set_connections(node, held, gone).await
    }

    async fn refresh_connections(&self, node: NodeId, held: &[String]) -> Result<()> {
        self.redis.refresh_connections(node, held).await
    }

    async fn connection_holder(&self, connection: &str) -> Result<Option<NodeId>> {
        self.redis.connection_holder(connection).await
    }

    async fn peers_with_method(&self, method: &str) -> Result<Vec<NodeId>> {
        self.redis.peers_with_method(method).await
    }

    fn now(&self) -> SystemTime {
        Store::now(&*self.redis)
    }

    async fn health(&self) -> Result<Health> {
        let mut health = self.redis.health().await?;
        // Written for the keys of duly's own; what is needed here beside them nobody has worked out.
        health.acl = None;
        Ok(health)
    }
}

fn transfer_unsupported() -> Error {
    Error::invalid(
        "store",
        "queues of Redis in Action cannot be moved: others put items there and know nothing of a move. Let a worker drain them",
    )
}
