//! Redis in Action: a store on its delayed items and queues, in its keys and its format.
//!
//! A push to `redis-in-action://host/db` goes into `delayed:` or `queue:NAME`, and the first worker takes it: duly's or
//! another. An item that duly takes moves atomically into duly's own keys, and from then on has a lease, a fence,
//! attempts and a history like any job. duly's workers run it until it is done or dead.

mod import;
mod item;
mod waiting;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tokio::sync::mpsc;

use self::item::Item;
use super::{one_by_one, script, url_option};
use crate::error::{Error, Result};
use crate::job::push::{DEFAULT_MAX_ATTEMPTS, DEFAULT_TIMEOUT, Due, Push, PushResult};
use crate::job::{HeldJob, IdPart, JobId, JobRecord, Priority};
use crate::node::{Node, NodeId};
use crate::store::contract::{self, Capabilities, HealthStore, JobStore, Store};
use crate::store::redis::{QueueKeys, Redis, RedisUrl, key_set, partially_applied, span_micros};
use crate::store::{
    AttemptEnd, ChangeResult, ChangeTarget, Claim, ClaimReply, Filter, FoundIds, Health, HeartbeatReply, JobPage,
    QueueCounts, StoreOptions, Wake,
};
use crate::sync::LockExt;

/// URL options of this system.
pub(super) const URL_OPTIONS: &[&str] = &["lock_limit"];
/// The sorted set of delayed items, and the prefixes of lists and locks.
const DELAYED_KEY: &str = "delayed:";
const QUEUE_PREFIX: &str = "queue:";
const LOCK_PREFIX: &str = "lock:";
/// Sidekiq's set of queue names: lists of those queues are not used.
const SIDEKIQ_QUEUES_KEY: &str = "queues";
/// How long a lock without an expiry is respected: pollers hold one for a few milliseconds.
const DEFAULT_LOCK_LIMIT: Duration = Duration::from_secs(30);
/// Most watched lists; a heartbeat notices new items in the others.
const WATCHED_MAX: usize = 16;

/// A store on the keys of Redis in Action.
pub(crate) struct RedisInAction {
    /// Jobs that duly has taken, and everything else that the format cannot express.
    redis: Arc<Redis>,
    options: StoreOptions,
    lock_limit: Duration,
    /// Hash: the time at which each lock without an expiry was first seen.
    locks_seen_key: String,
    /// Queues with a watched list, and the number of the connection that watches it.
    watched_queues: Arc<Mutex<BTreeMap<String, usize>>>,
}

impl RedisInAction {
    pub(crate) async fn open(server: RedisUrl, options: &StoreOptions) -> Result<Self> {
        let lock_limit = match url_option(&options.system_options, "lock_limit") {
            None => DEFAULT_LOCK_LIMIT,
            Some(text) => crate::store::parse_duration(text)
                .map_err(|error| Error::invalid("lock_limit", format!("{text:?} is {error}")))?,
        };
        let options = StoreOptions { prefix: format!("{}:redis-in-action", options.prefix), ..options.clone() };
        let locks_seen_key = format!("{}:locks", options.prefix);
        let redis = Arc::new(Redis::open(server, &options).await?);
        Ok(RedisInAction { redis, options, lock_limit, locks_seen_key, watched_queues: Arc::default() })
    }

    /// Wakes an idle duly node as soon as an item is in the list of a queue: other programs push without a wake.
    fn watch_list(&self, queue: &str) {
        let connection = {
            let mut watched = self.watched_queues.lock_unpoisoned();
            let free = (0..WATCHED_MAX).find(|connection| !watched.values().any(|used| used == connection));
            match free.filter(|_| !watched.contains_key(queue)) {
                Some(connection) => watched.insert(queue.to_owned(), connection).map_or(connection, |_| connection),
                // The next heartbeat finds new items.
                None => return,
            }
        };
        let (redis, watched, queue) = (self.redis.clone(), self.watched_queues.clone(), queue.to_owned());
        self.redis.spawn_on_runtime(async move {
            let has_items = redis.wait_for_list(&list_key(&queue), connection).await;
            watched.lock_unpoisoned().remove(&queue);
            if has_items.is_ok_and(|has_items| has_items) {
                redis.wake_idle_node(&queue).await;
            }
        });
    }
}

/// Returns the key of the list of a queue.
fn list_key(queue: &str) -> String {
    format!("{QUEUE_PREFIX}{queue}")
}

/// Returns the error for a list that does not hold items of Redis in Action.
fn mixed_list_error(queue: &str, reason: &str) -> Error {
    let reason = match reason {
        "sidekiq" => format!(
            "{queue:?} holds jobs of Sidekiq: {QUEUE_PREFIX}{queue} cannot have two formats, since each system would destroy the entries of the other; use another queue, or sidekiq:// for this one"
        ),
        _ => format!("{queue:?} is not a Redis in Action queue: the key {QUEUE_PREFIX}{queue} is not a list"),
    };
    Error::invalid("queue", reason)
}

/// Rejects pushes with options that the format cannot express.
fn check_supported(job: &Push) -> Result<()> {
    let unsupported = |field, name: &str| {
        Err(Error::invalid(field, format!("an item of Redis in Action cannot have {name}; leave it out")))
    };
    if job.priority != Priority::Normal {
        return unsupported("priority", "a priority");
    }
    if job.unique.is_some() {
        return unsupported("unique", "a unique key");
    }
    if job.max_attempts != DEFAULT_MAX_ATTEMPTS {
        return unsupported("max_attempts", "a number of attempts");
    }
    if job.timeout != DEFAULT_TIMEOUT {
        return unsupported("timeout", "a timeout");
    }
    if !job.tags.is_empty() || job.traceparent.is_some() {
        return unsupported("tags", "tags or a trace");
    }
    let args = job.args.as_deref().unwrap_or("null");
    if !args.trim_start().starts_with('[') {
        return Err(Error::invalid("args", "must be a JSON array: Redis in Action passes its elements to a function"));
    }
    Ok(())
}

/// The script keys of one queue: those of Redis in Action, and duly's own.
pub(super) struct ItemKeys<'k> {
    own: &'k QueueKeys,
    list: String,
    /// The key that malformed items are taken from.
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
    "runs" => &keys.own.runs,
    "dead" => &keys.own.dead,
    "groups" => &keys.own.groups,
    "job_index" => &keys.own.job_index,
    "idle" => &keys.own.idle,
    "removed[1]" => &keys.own.removed[0],
    "removed[2]" => &keys.own.removed[1],
    "ready[1]" => &keys.own.ready[0],
    "ready[2]" => &keys.own.ready[1],
    "ready[3]" => &keys.own.ready[2],
    "ready[4]" => &keys.own.ready[3],
}

/// The script keys of the delayed items of all queues.
pub(super) struct DelayedKeys<'k> {
    seen_locks: &'k str,
}

key_set! { DelayedKeys<'_>, keys: "delayed" => DELAYED_KEY, "seen_locks" => keys.seen_locks, "sidekiq_queues" => SIDEKIQ_QUEUES_KEY }

impl RedisInAction {
    async fn push_queue(&self, queue: &str, jobs: &[&Push]) -> Result<Vec<bool>> {
        let keys = self.redis.register_queue("push", queue).await?;
        let mut cmd = script::RIA_PUSH.call(&ItemKeys::new(&keys));
        cmd.arg(self.redis.manual_now()).arg(&keys.channel).arg(queue).arg(span_micros(self.options.remember_ids));
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
            "" => Ok(reply.list()?.iter().map(|is_new| is_new.as_deref() == Some(b"1")).collect()),
            reason => Err(mixed_list_error(queue, reason)),
        }
    }
}

/// Returns the script argument for a due time; empty means now.
fn due_argument(due: Due) -> String {
    match due {
        Due::Now => String::new(),
        Due::After(delay) => format!("+{}", span_micros(delay)),
        Due::At(time) => crate::clock::to_micros(time).to_string(),
    }
}

impl contract::sealed::Sealed for RedisInAction {}

impl Store for RedisInAction {
    fn name(&self) -> &'static str {
        "Redis in Action"
    }

    fn capabilities(&self) -> Capabilities<'_> {
        Capabilities {
            jobs: Some(self),
            locks: Some(&*self.redis),
            peers: Some(&*self.redis),
            health: Some(self),
            ..Capabilities::default()
        }
    }

    fn advice(&self, capability: &str) -> &'static str {
        match capability {
            contract::transfer::CAPABILITY => {
                "other programs keep pushing to its queues; let a worker drain them instead"
            }
            contract::maintenance::CAPABILITY => "use the tools of its own system",
            contract::transactions::CAPABILITY => contract::transactions::ADVICE,
            _ => contract::USE_FULL_STORE,
        }
    }

    fn parse_job_id(&self, text: &str) -> Result<JobId> {
        text.parse()
    }

    fn runtime(&self) -> Option<tokio::runtime::Handle> {
        self.redis.runtime()
    }

    fn now(&self) -> SystemTime {
        Store::now(&*self.redis)
    }

    fn check_files(&self, _op: &'static str, _seen_id: Option<&str>) -> Result<()> {
        Ok(())
    }
}

#[async_trait]
impl JobStore for RedisInAction {
    async fn push(&self, jobs: Vec<Push>) -> Result<Vec<PushResult>> {
        jobs.iter().try_for_each(check_supported)?;
        let mut queues: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (index, job) in jobs.iter().enumerate() {
            queues.entry(&job.queue).or_default().push(index);
        }
        let mut results: Vec<PushResult> = jobs.iter().map(|job| PushResult::Existing(job.id)).collect();
        for (queue_index, (queue, job_indexes)) in queues.into_iter().enumerate() {
            let queue_jobs: Vec<&Push> = job_indexes.iter().map(|index| &jobs[*index]).collect();
            let pushed = self.push_queue(queue, &queue_jobs).await;
            let new = pushed.map_err(|error| if queue_index > 0 { partially_applied(error) } else { error })?;
            for index in job_indexes.iter().zip(new).filter(|(_, new)| *new).map(|(index, _)| *index) {
                results[index] = PushResult::New(jobs[index].id);
            }
        }
        Ok(results)
    }

    async fn claim(&self, node: NodeId, claim: Claim) -> Result<ClaimReply> {
        if claim.resync || claim.max == 0 {
            return self.redis.claim(node, claim).await;
        }
        let (imported, queue) = (import::import_jobs(self, &claim.queue, claim.max).await?, claim.queue.clone());
        let mut reply = self.redis.claim(node, claim).await?;
        reply.next_due = reply.next_due.into_iter().chain(imported.recheck_after).min();
        if imported.is_list_empty && !reply.has_more {
            self.watch_list(&queue);
        }
        Ok(reply)
    }

    async fn settle(&self, node: NodeId, ends: Vec<AttemptEnd>) -> Result<Vec<JobId>> {
        self.redis.settle(node, ends).await
    }

    async fn set_alone(&self, node: NodeId, held: Arc<HeldJob>, alone: bool) -> Result<bool> {
        self.redis.set_alone(node, held, alone).await
    }

    async fn get(&self, id: JobId) -> Result<Option<JobRecord>> {
        match self.redis.get(id).await? {
            Some(record) => Ok(Some(record)),
            None => waiting::get(self, id).await,
        }
    }

    async fn find_ids(&self, part: IdPart, max: usize) -> Result<FoundIds> {
        one_by_one::find_ids(self, part, max).await
    }

    async fn list(&self, filter: Filter) -> Result<JobPage> {
        waiting::list(self, filter).await
    }

    async fn completed_among(&self, _queue: &str, ids: Vec<JobId>) -> Result<Vec<JobId>> {
        one_by_one::completed_among(self, ids).await
    }

    async fn remove(&self, id: JobId) -> Result<ChangeResult> {
        match self.redis.remove(id).await? {
            ChangeResult::NotFound => waiting::remove(self, id).await,
            result => Ok(result),
        }
    }

    async fn reschedule(&self, id: JobId, due: Due) -> Result<ChangeResult> {
        match self.redis.reschedule(id, due).await? {
            ChangeResult::NotFound => waiting::reschedule(self, id, due).await,
            result => Ok(result),
        }
    }

    async fn remove_all(&self, targets: Vec<ChangeTarget>) -> Result<Vec<ChangeResult>> {
        one_by_one::remove_all(self, targets).await
    }

    async fn reschedule_all(&self, targets: Vec<ChangeTarget>, due: Due) -> Result<Vec<ChangeResult>> {
        one_by_one::reschedule_all(self, targets, due).await
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
        let mut reply = self.redis.heartbeat(node).await?;
        let with_items = import::queues_with_items(self, &node.queues).await?;
        node.queues.iter().filter(|queue| !with_items.contains(queue)).for_each(|queue| self.watch_list(queue));
        for queue in with_items {
            if !reply.queues_to_check.contains(&queue) {
                reply.queues_to_check.push(queue);
            }
        }
        Ok(reply)
    }

    async fn leave(&self, node: NodeId) -> Result<()> {
        self.redis.leave(node).await
    }

    async fn subscribe_wakes(&self, node: NodeId) -> Result<mpsc::Receiver<Wake>> {
        self.redis.subscribe_wakes(node).await
    }

    async fn accept_deliveries(&self, _node: NodeId, _kinds: Option<Arc<[String]>>) -> Result<()> {
        // A push writes to the keys of the other system, where every worker may take the job.
        Ok(())
    }
}

#[async_trait]
impl HealthStore for RedisInAction {
    async fn health(&self) -> Result<Health> {
        let mut health = self.redis.health().await?;
        // The rules cover only duly's own keys, not those of Redis in Action.
        health.acl = None;
        Ok(health)
    }
}
