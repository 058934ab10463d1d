//! A store on Sidekiq's own keys and JSON: the same queues, sets and counters, beside Ruby's processes.
//!
//! Jobs live where Sidekiq has them. What Sidekiq has no place for is kept under keys of duly's own beside them: what a node
//! holds and under which lease, ids that were pushed, pauses, locks, calls; that part is the Redis store itself, under the
//! prefix `duly:sidekiq`.
//!
//! Life of an entry: `push` puts it into its queue or the schedule; `claim` promotes what is due, in one step for each queue,
//! then moves the oldest entries whose kind the worker knows into a hash of its node, untouched; `settle` takes it from there
//! to nowhere, to the retries, to the dead, or back. A node that dies leaves its hash to whoever looks next.

mod claim;
mod counts;
mod cursor;
mod edit;
mod entry;
mod find_job;
mod id;
mod json;
mod keys;
mod list;
mod process;
mod promote;
mod push;
mod scripts;
mod settle;
mod transfer;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use redis::{Cmd, Value};
use tokio::sync::mpsc;

use self::keys::SidekiqKeys;
use super::url_option;
use crate::admin::token::Token;
use crate::clock::Micros;
use crate::error::{Error, Result};
use crate::job::push::{Due, Push, PushResult, check_name};
use crate::job::{JobId, JobRecord};
use crate::node::{Node, NodeId, NodeRecord};
use crate::store::redis::{ConnectionRole, Redis, RedisUrl, Script, ScriptReply, acl_rules, keyspace_id};
use crate::store::{
    AnnounceReply, AttemptEnd, AuditEntry, AuditRecord, ChangeResult, Claim, ClaimReply, Filter, Health,
    HeartbeatReply, JobPage, LockPage, LockReply, LockRequest, NewToken, Notification, PeerInfo, QueueCounts,
    Recipient, Store, StoreOptions, TransferBatch, TransferBatchResult, TransferMarkReply, Wake,
};

/// What our own keys beside Sidekiq's begin with, behind the prefix of the URL.
const OWN_PREFIX: &str = "sidekiq";

/// Options of its URL.
pub(super) const URL_OPTIONS: &[&str] = &["namespace"];

/// A store on Sidekiq's keys.
pub(crate) struct Sidekiq {
    redis: Redis,
    keys: SidekiqKeys,
    state: Mutex<SidekiqState>,
}

/// What this process remembers; all of it can be learnt again.
#[derive(Default)]
struct SidekiqState {
    /// What nodes of ours hold, by queue.
    held: HashMap<NodeId, HashMap<String, HashMap<HoldId, HeldEntry>>>,
    /// How long a node of ours waits before it looks into an empty queue again.
    poll_waits: HashMap<(NodeId, String), Duration>,
    /// Nodes of ours that Sidekiq can see.
    processes: HashMap<NodeId, process::ProcessStatus>,
    /// Where the entries were that a mover has listed last, by id and the moment of their push: an id may be there twice.
    located: HashMap<(JobId, SystemTime), find_job::LocatedEntry>,
    /// What was said of queues that take nothing.
    warned_queues: promote::WarnedQueues,
}

/// A held entry's name in its queue: fence, number.
type HoldId = (u64, i64);

/// An entry in a node's hands.
struct HeldEntry {
    entry: Vec<u8>,
    claimed_at: Micros,
}

impl SidekiqState {
    /// What this end is about, if a node of ours holds it.
    fn held_entry(&self, node: NodeId, end: &AttemptEnd) -> Option<&HeldEntry> {
        self.held.get(&node)?.get(&end.queue)?.get(&(end.fence.0, end.locator))
    }
}

/// Sidekiq's namespace, and what our own keys beside its begin with.
fn key_prefixes(options: &StoreOptions) -> Result<(&str, String)> {
    let namespace = url_option(&options.system_options, "namespace").unwrap_or_default();
    if namespace.is_empty() {
        return Ok(("", format!("{}:{OWN_PREFIX}", options.prefix)));
    }
    check_name("namespace", namespace)?;
    Ok((namespace, format!("{}:{OWN_PREFIX}:{namespace}", options.prefix)))
}

impl Sidekiq {
    pub(crate) async fn open(place: RedisUrl, options: &StoreOptions) -> Result<Self> {
        let (namespace, prefix) = key_prefixes(options)?;
        let own = StoreOptions { prefix, ..options.clone() };
        let redis = Box::pin(Redis::open(place, &own)).await?;
        Ok(Sidekiq { redis, keys: SidekiqKeys::new(namespace), state: Mutex::default() })
    }

    /// What a user of the server must be allowed.
    pub(crate) fn acl_rules(options: &StoreOptions) -> Result<String> {
        let (namespace, prefix) = key_prefixes(options)?;
        Ok(SidekiqKeys::new(namespace).acl_rules(&acl_rules(&prefix)))
    }

    fn state(&self) -> MutexGuard<'_, SidekiqState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn manual_now(&self) -> String {
        self.redis.manual_now()
    }

    fn now(&self) -> Micros {
        self.redis.now()
    }

    /// Runs a script once.
    async fn run_script(
        &self,
        op: &'static str,
        way: ConnectionRole,
        script: &Script,
        cmd: &Cmd,
    ) -> Result<ScriptReply> {
        self.redis.run_script(op, way, 0, script, cmd).await
    }

    /// Asks something that changes nothing.
    async fn send_idempotent(&self, op: &'static str, cmd: &Cmd) -> Result<Value> {
        self.redis.send_idempotent(op, ConnectionRole::Client, 0, cmd).await
    }

    /// The names of all queues: Sidekiq's, and those that only nodes of ours know yet.
    async fn queue_names(&self, op: &'static str) -> Result<Vec<String>> {
        let mut cmd = redis::cmd("SMEMBERS");
        cmd.arg(&self.keys.queues);
        let theirs: BTreeSet<String> = convert_reply(op, self.send_idempotent(op, &cmd).await?)?;
        let ours = self.redis.queue_names(op).await?;
        Ok(theirs.into_iter().chain(ours).collect::<BTreeSet<_>>().into_iter().collect())
    }
}

/// An answer of the server as what it should be.
fn convert_reply<T: redis::FromRedisValue>(op: &'static str, value: Value) -> Result<T> {
    redis::from_redis_value(value).map_err(|e| Error::Store {
        op,
        reason: "the server gave an answer that duly does not understand".into(),
        source: Some(Box::new(e)),
    })
}

/// Why a queue is not for us: as `mixed` in the scripts says it.
fn mixed_list_error(queue: &str, why: &str) -> Error {
    let reason = match why {
        "items" => format!(
            "{queue:?} holds items of Redis in Action: a list cannot have two formats, each side would destroy what the other puts there. Use another queue, or redis-in-action:// for this one"
        ),
        _ => format!("{queue:?}: what is in its place is not a list, so it is no queue of Sidekiq"),
    };
    Error::invalid("queue", reason)
}

impl crate::store::sealed::Sealed for Sidekiq {}

#[async_trait]
impl Store for Sidekiq {
    fn runtime(&self) -> Option<tokio::runtime::Handle> {
        Store::runtime(&self.redis)
    }

    async fn push(&self, jobs: Vec<Push>) -> Result<Vec<PushResult>> {
        push::push(self, jobs).await
    }

    async fn claim(&self, node: NodeId, claim: Claim) -> Result<ClaimReply> {
        claim::claim(self, node, claim).await
    }

    async fn settle(&self, node: NodeId, ends: Vec<AttemptEnd>) -> Result<Vec<JobId>> {
        settle::settle(self, node, ends).await
    }

    async fn get(&self, id: JobId) -> Result<Option<JobRecord>> {
        find_job::get(self, id).await
    }

    async fn list(&self, filter: Filter) -> Result<JobPage> {
        list::list(self, &filter).await
    }

    async fn remove(&self, id: JobId) -> Result<ChangeResult> {
        edit::remove(self, id).await
    }

    async fn reschedule(&self, id: JobId, due: Due) -> Result<ChangeResult> {
        edit::reschedule(self, id, due).await
    }

    async fn counts(&self) -> Result<Vec<QueueCounts>> {
        counts::counts(self).await
    }

    async fn set_paused(&self, queue: &str, paused: bool) -> Result<bool> {
        self.redis.set_paused(queue, paused).await
    }

    async fn prune(&self, queue: &str, done_max: usize) -> Result<usize> {
        settle::prune(self, queue, done_max).await
    }

    async fn set_transfer_mark(&self, queue: &str, mover: NodeId, to: Option<&str>) -> Result<TransferMarkReply> {
        self.redis.set_transfer_mark(queue, mover, to).await
    }

    async fn transfer_in(&self, batch: TransferBatch) -> Result<TransferBatchResult> {
        transfer::transfer_in(self, &batch).await
    }

    async fn transfer_out(&self, queue: &str, mover: NodeId, jobs: Vec<(JobId, SystemTime)>) -> Result<Option<usize>> {
        transfer::transfer_out(self, queue, mover, &jobs).await
    }

    async fn heartbeat(&self, node: &Node) -> Result<HeartbeatReply> {
        process::heartbeat(self, node).await
    }

    async fn leave(&self, node: NodeId) -> Result<()> {
        process::leave(self, node).await
    }

    async fn nodes(&self) -> Result<Vec<NodeRecord>> {
        self.redis.nodes().await
    }

    async fn subscribe_wakes(&self, node: NodeId) -> Result<mpsc::Receiver<Wake>> {
        self.redis.subscribe_wakes(node).await
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

    async fn add_token(&self, token: &NewToken) -> Result<bool> {
        self.redis.add_token(token).await
    }

    async fn remove_token(&self, name: &str) -> Result<bool> {
        self.redis.remove_token(name).await
    }

    async fn tokens(&self) -> Result<Vec<Token>> {
        self.redis.tokens().await
    }

    async fn add_audit_entry(&self, entry: &AuditEntry) -> Result<()> {
        self.redis.add_audit_entry(entry).await
    }

    async fn audit_entries(&self, before: Option<u64>, limit: usize) -> Result<Vec<AuditRecord>> {
        self.redis.audit_entries(before, limit).await
    }

    fn now(&self) -> SystemTime {
        Store::now(&self.redis)
    }

    async fn health(&self) -> Result<Health> {
        let mut health = self.redis.health().await?;
        health.facts.push(("format".into(), "Sidekiq's keys and JSON".into()));
        health.acl = health.acl.map(|own| self.keys.acl_rules(&own));
        Ok(health)
    }

    async fn shared_keyspace(&self) -> Result<Option<String>> {
        Ok(Some(format!("{} {}", keyspace_id(&self.redis).await?, self.keys.queues)))
    }
}
