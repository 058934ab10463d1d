//! A store on Sidekiq's own keys and JSON. It shares queues, sets and counters with Ruby processes.
//!
//! Jobs stay in Sidekiq's keys. duly's own keys hold what Sidekiq cannot express: held jobs and their leases,
//! pushed ids, pauses, locks and calls. The Redis store manages those, under the prefix `duly:sidekiq`.
//!
//! The life of an entry: `push` adds it to its queue or to the schedule. `claim` promotes due entries, in one operation
//! per queue, then moves the oldest entries with a kind of the worker, unchanged, into a hash of its node. `settle`
//! removes an entry from there, or moves it to the retry set, the dead set or its queue. Another node takes back a dead
//! node's hash.

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
use std::sync::{Mutex, MutexGuard};
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
use crate::sync::LockExt;

/// Prefix of duly's own keys, after the prefix of the URL.
const OWN_PREFIX: &str = "sidekiq";

/// URL options of this system.
pub(super) const URL_OPTIONS: &[&str] = &["namespace"];

/// A store on Sidekiq's keys.
pub(crate) struct Sidekiq {
    redis: Redis,
    keys: SidekiqKeys,
    state: Mutex<SidekiqState>,
}

/// Cached state of this process; all of it can be rebuilt.
#[derive(Default)]
struct SidekiqState {
    /// Entries held by the nodes of this process, by queue.
    held: HashMap<NodeId, HashMap<String, HashMap<HoldId, HeldEntry>>>,
    /// How long each node waits before it polls an empty queue again.
    poll_waits: HashMap<(NodeId, String), Duration>,
    /// The nodes of this process that are registered as Sidekiq processes.
    processes: HashMap<NodeId, process::ProcessStatus>,
    /// Positions of the entries that a transfer listed last, by id and push time: an id may occur twice.
    located: HashMap<(JobId, SystemTime), find_job::LocatedEntry>,
    /// Queues with a recent warning that due jobs cannot enter them.
    warned_queues: promote::WarnedQueues,
}

/// Identifies a held entry in its queue: fence, locator.
type HoldId = (u64, i64);

/// An entry held by a node.
struct HeldEntry {
    entry: Vec<u8>,
    claimed_at: Micros,
}

impl SidekiqState {
    /// Returns the entry of this attempt, if a node of this process holds it.
    fn held_entry(&self, node: NodeId, end: &AttemptEnd) -> Option<&HeldEntry> {
        self.held.get(&node)?.get(end.queue())?.get(&(end.fence().0, end.held().locator.value()))
    }
}

/// Returns Sidekiq's namespace and the prefix of duly's own keys.
fn key_prefixes(options: &StoreOptions) -> Result<(&str, String)> {
    let namespace = url_option(&options.system_options, "namespace").unwrap_or_default();
    if namespace.is_empty() {
        return Ok(("", format!("{}:{OWN_PREFIX}", options.prefix)));
    }
    check_name("namespace", namespace)?;
    Ok((namespace, format!("{}:{OWN_PREFIX}:{namespace}", options.prefix)))
}

impl Sidekiq {
    pub(crate) async fn open(server: RedisUrl, options: &StoreOptions) -> Result<Self> {
        let (namespace, prefix) = key_prefixes(options)?;
        let own = StoreOptions { prefix, ..options.clone() };
        let redis = Box::pin(Redis::open(server, &own)).await?;
        Ok(Sidekiq { redis, keys: SidekiqKeys::new(namespace), state: Mutex::default() })
    }

    /// Returns the ACL rules that a user of the server needs.
    pub(crate) fn acl_rules(options: &StoreOptions) -> Result<String> {
        let (namespace, prefix) = key_prefixes(options)?;
        Ok(SidekiqKeys::new(namespace).acl_rules(&acl_rules(&prefix)))
    }

    fn state(&self) -> MutexGuard<'_, SidekiqState> {
        self.state.lock_unpoisoned()
    }

    fn manual_now(&self) -> String {
        self.redis.manual_now()
    }

    fn now(&self) -> Micros {
        self.redis.now()
    }

    /// Runs a script without retries.
    async fn run_script(
        &self,
        op: &'static str,
        role: ConnectionRole,
        script: &Script,
        cmd: &Cmd,
    ) -> Result<ScriptReply> {
        self.redis.run_script(op, role, 0, script, cmd).await
    }

    /// Sends a read-only command, and retries it if the reply is lost.
    async fn send_idempotent(&self, op: &'static str, cmd: &Cmd) -> Result<Value> {
        self.redis.send_idempotent(op, ConnectionRole::Client, 0, cmd).await
    }

    /// Returns the names of all queues: Sidekiq's, and those that only duly has registered.
    async fn queue_names(&self, op: &'static str) -> Result<Vec<String>> {
        let mut cmd = redis::cmd("SMEMBERS");
        cmd.arg(&self.keys.queues);
        let sidekiq: BTreeSet<String> = convert_reply(op, self.send_idempotent(op, &cmd).await?)?;
        let own = self.redis.queue_names(op).await?;
        Ok(sidekiq.into_iter().chain(own).collect::<BTreeSet<_>>().into_iter().collect())
    }
}

/// Converts a reply of the server to the expected type.
fn convert_reply<T: redis::FromRedisValue>(op: &'static str, value: Value) -> Result<T> {
    redis::from_redis_value(value).map_err(|e| Error::Store {
        op,
        reason: "the server's reply has an unexpected type".into(),
        source: Some(Box::new(e)),
    })
}

/// Returns the error for a list that does not hold Sidekiq jobs; `check_list` in the scripts returns the reason.
fn mixed_list_error(queue: &str, reason: &str) -> Error {
    let reason = match reason {
        "items" => format!(
            "{queue:?} holds items of Redis in Action: a list cannot have two formats, since each system would destroy the entries of the other; use another queue, or redis-in-action:// for this one"
        ),
        _ => format!("{queue:?} is not a Sidekiq queue: its key is not a list"),
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

    async fn set_transfer_mark(&self, queue: &str, transfer_id: NodeId, to: Option<&str>) -> Result<TransferMarkReply> {
        self.redis.set_transfer_mark(queue, transfer_id, to).await
    }

    async fn transfer_in(&self, batch: TransferBatch) -> Result<TransferBatchResult> {
        transfer::transfer_in(self, &batch).await
    }

    async fn transfer_out(&self, queue: &str, id: NodeId, jobs: Vec<(JobId, SystemTime)>) -> Result<Option<usize>> {
        transfer::transfer_out(self, queue, id, &jobs).await
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

    async fn lock(&self, request: &LockRequest) -> Result<LockReply> {
        self.redis.lock(request).await
    }

    async fn extend_locks(&self, requests: &[LockRequest]) -> Result<Vec<bool>> {
        self.redis.extend_locks(requests).await
    }

    async fn unlock(&self, request: &LockRequest) -> Result<bool> {
        self.redis.unlock(request).await
    }

    async fn cancel_wait(&self, request: &LockRequest) -> Result<()> {
        self.redis.cancel_wait(request).await
    }

    async fn locks(&self, name: Option<&str>, cursor: Option<&str>) -> Result<LockPage> {
        self.redis.locks(name, cursor).await
    }

    async fn break_lock(&self, name: &str) -> Result<u64> {
        self.redis.break_lock(name).await
    }

    async fn announce(&self, peer: &PeerInfo) -> Result<AnnounceReply> {
        self.redis.announce(peer).await
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
