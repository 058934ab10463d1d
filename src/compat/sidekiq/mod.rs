//! A store on Sidekiq's own keys and JSON. It shares queues, sets and counters with Ruby processes.
//!
//! Jobs stay in Sidekiq's keys. duly's own keys hold what Sidekiq cannot express: held jobs and their leases,
//! pushed ids, pauses, locks and calls. The Redis store manages those, under the prefix `duly:sidekiq`.
//!
//! The life of an entry: `push` adds it to its queue or to the schedule. `claim` promotes due entries, in one operation
//! per queue, then moves the oldest entries with a kind of the worker, unchanged, into a hash of its node. `settle`
//! removes an entry from there, or moves it to the retry set, the dead set or its queue. Another node takes back a dead
//! node's hash.

mod active_job;
mod claim;
mod counts;
mod cursor;
mod edit;
mod entry;
mod find_job;
pub(super) mod id;
mod json;
mod keys;
mod list;
mod process;
mod promote;
mod push;
mod reserved;
mod scripts;
mod settle;
mod transfer;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use redis::{Cmd, Value};
use tokio::sync::mpsc;

use self::keys::SidekiqKeys;
use super::{one_by_one, url_option};
use crate::clock::Micros;
use crate::error::{Error, Result};
use crate::job::push::{Due, Push, PushResult, check_name};
use crate::job::{HeldJob, IdPart, JobId, JobRecord};
use crate::node::{Node, NodeId};
use crate::store::contract::{self, Capabilities, HealthStore, JobStore, PeerStore, Store};
use crate::store::redis::{ConnectionRole, Redis, RedisUrl, Script, ScriptReply, acl_rules};
use crate::store::{
    AttemptEnd, ChangeResult, ChangeTarget, Claim, ClaimReply, Filter, FoundIds, Health, HeartbeatReply, JobPage,
    QueueCounts, StoreOptions, Wake,
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
    /// Whether the first worker warns about a server that keeps nothing on its disk.
    warns_about_data_loss: bool,
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
        // Sidekiq's usual server has no append-only file, and reading its queues needs none.
        let allow_data_loss = Some(options.allow_data_loss.unwrap_or(true));
        let own = StoreOptions { prefix, allow_data_loss, ..options.clone() };
        let redis = Box::pin(Redis::open(server, &own)).await?;
        let warns_about_data_loss = options.allow_data_loss.is_none();
        Ok(Sidekiq { redis, keys: SidekiqKeys::new(namespace), state: Mutex::default(), warns_about_data_loss })
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
    redis::from_redis_value(value)
        .map_err(|e| Error::store_with_cause(op, format!("the server's reply has an unexpected type: {e}"), e))
}

/// Returns the error for a list that does not hold Sidekiq jobs; `check_entry_list` in the scripts returns the reason.
fn mixed_list_error(queue: &str, reason: &str) -> Error {
    let reason = match reason {
        "items" => format!(
            "{queue:?} holds items of Redis in Action: a list cannot have two formats, since each system would destroy the entries of the other; use another queue, or redis-in-action:// for this one"
        ),
        _ => format!("{queue:?} is not a Sidekiq queue: its key is not a list"),
    };
    Error::invalid("queue", reason)
}

impl contract::sealed::Sealed for Sidekiq {}

impl Store for Sidekiq {
    fn name(&self) -> &'static str {
        "Sidekiq"
    }

    fn capabilities(&self) -> Capabilities<'_> {
        Capabilities {
            jobs: Some(self),
            locks: Some(&self.redis),
            peers: Some(&self.redis),
            access: Some(&self.redis),
            transfer: Some(self),
            shared_keys: Some(self),
            health: Some(self),
            ..Capabilities::default()
        }
    }

    fn advice(&self, capability: &str) -> &'static str {
        match capability {
            contract::maintenance::CAPABILITY => "use Sidekiq's own tools, or move the jobs to another store",
            contract::transactions::CAPABILITY => contract::transactions::ADVICE,
            _ => contract::USE_FULL_STORE,
        }
    }

    fn parse_job_id(&self, text: &str) -> Result<JobId> {
        text.parse().or_else(|error| id::id_of_jid(text).ok_or(error))
    }

    fn runtime(&self) -> Option<tokio::runtime::Handle> {
        self.redis.runtime()
    }

    fn now(&self) -> SystemTime {
        Store::now(&self.redis)
    }

    fn check_files(&self, _op: &'static str, _seen_id: Option<&str>) -> Result<()> {
        Ok(())
    }
}

#[async_trait]
impl JobStore for Sidekiq {
    async fn push(&self, jobs: Vec<Push>) -> Result<Vec<PushResult>> {
        push::push(self, jobs).await
    }

    async fn claim(&self, node: NodeId, claim: Claim) -> Result<ClaimReply> {
        claim::claim(self, node, claim).await
    }

    async fn settle(&self, node: NodeId, ends: Vec<AttemptEnd>) -> Result<Vec<JobId>> {
        settle::settle(self, node, ends).await
    }

    async fn set_alone(&self, node: NodeId, held: Arc<HeldJob>, alone: bool) -> Result<bool> {
        claim::set_alone(self, node, &held, alone).await
    }

    async fn get(&self, id: JobId) -> Result<Option<JobRecord>> {
        find_job::get(self, id).await
    }

    async fn find_ids(&self, part: IdPart, max: usize) -> Result<FoundIds> {
        one_by_one::find_ids(self, part, max).await
    }

    async fn list(&self, filter: Filter) -> Result<JobPage> {
        list::list(self, &filter).await
    }

    async fn completed_among(&self, _queue: &str, ids: Vec<JobId>) -> Result<Vec<JobId>> {
        one_by_one::completed_among(self, ids).await
    }

    async fn remove(&self, id: JobId) -> Result<ChangeResult> {
        edit::remove(self, id).await
    }

    async fn reschedule(&self, id: JobId, due: Due) -> Result<ChangeResult> {
        edit::reschedule(self, id, due).await
    }

    async fn remove_all(&self, targets: Vec<ChangeTarget>) -> Result<Vec<ChangeResult>> {
        one_by_one::remove_all(self, targets).await
    }

    async fn reschedule_all(&self, targets: Vec<ChangeTarget>, due: Due) -> Result<Vec<ChangeResult>> {
        one_by_one::reschedule_all(self, targets, due).await
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

    async fn heartbeat(&self, node: &Node) -> Result<HeartbeatReply> {
        process::heartbeat(self, node).await
    }

    async fn leave(&self, node: NodeId) -> Result<()> {
        process::leave(self, node).await
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
impl HealthStore for Sidekiq {
    async fn health(&self) -> Result<Health> {
        let mut health = self.redis.health().await?;
        health.facts.push(("format".into(), "Sidekiq's keys and JSON".into()));
        health.acl = health.acl.map(|own| self.keys.acl_rules(&own));
        let ruby = process::ruby_processes(self, "health").await?;
        health.facts.push(("ruby_processes".into(), ruby.len().to_string()));
        let nodes = PeerStore::nodes(&self.redis).await?;
        health.warnings.extend(process::stranded_jobs_warning(&nodes));
        health.warnings.extend(reserved::warnings(self).await?);
        Ok(health)
    }
}
