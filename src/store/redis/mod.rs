//! The store on Redis or Valkey: one server, Sentinel, or Cluster.
//!
//! Every operation of the contract is one script on the keys of one queue; `keys.rs` lists the keys, `lua/README.md` describes
//! the scripts.
//! ARGV[1] of every script is empty, or the time that a test has set; nothing else passes "now".

mod access;
mod assemble;
mod clock_offset;
mod conn;
mod contract;
mod cron;
mod foreign_keys;
mod jobs;
mod key_cache;
mod keys;
mod locks;
mod maintenance;
mod nodes;
mod peers;
mod queue_registry;
mod record;
mod reply;
mod script;
mod stats;
mod transfer;
mod url;

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use redis::{Cmd, Value};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use self::clock_offset::ClockOffset;
pub(crate) use self::conn::ConnectionRole;
use self::conn::{ReplicaConfirmation, Servers};
use self::foreign_keys::ForeignSubscriptions;
#[cfg(feature = "compat")]
pub(crate) use self::foreign_keys::{
    dead_group, decode_lock_hold, encode_first_failure, encode_record, parse_lock_owner,
};
#[cfg(feature = "compat")]
pub(crate) use self::jobs::push::partially_applied;
use self::key_cache::KeyCache;
pub(crate) use self::keys::{PeerKeys, QueueKeys};
#[cfg(feature = "compat")]
pub(crate) use self::keys::{hash_tag, slot_of_key};
#[cfg(feature = "compat")]
pub(crate) use self::locks::{check_lock_name, parse_lock_cursor, span_micros, u32_or_zero};
pub(crate) use self::maintenance::acl::rules as acl_rules;
#[cfg(feature = "compat")]
pub(crate) use self::maintenance::health::keyspace_id;
use self::nodes::wakes::WakeSubscriptions;
use self::peers::completions::CompletionSubscriptions;
use self::peers::messages::MessageSubscriptions;
use self::queue_registry::QueueRegistry;
pub(crate) use self::reply::ScriptReply;
#[cfg(feature = "compat")]
pub(crate) use self::reply::parse_number;
pub(crate) use self::script::{KeySet, Script};
#[cfg(feature = "compat")]
pub(crate) use self::script::{key_set, parts, scripts, sha1};
pub(crate) use self::url::RedisUrl;
use super::{
    AnnounceReply, AttemptEnd, AuditEntry, AuditRecord, Capacity, ChangeResult, ChangeTarget, Claim, ClaimReply,
    CronFiring, CronPage, CronRecord, DeadGroup, DueCrons, Filter, FireCronsReply, Health, HeartbeatReply, History,
    HistoryQuery, JobEdit, JobPage, KindStats, LockPage, LockReply, LockRequest, NewToken, Notification, PeerInfo,
    ProgressUpdate, PutCron, PutCronResult, QueueCounts, Recipient, StatCounters, Store, StoreOptions, TransferBatch,
    TransferBatchResult, TransferMarkReply, Wake,
};
use crate::admin::token::Token;
use crate::clock::{Clock, Micros, from_micros};
use crate::error::{Error, Result};
use crate::job::push::{Due, Push, PushResult};
use crate::job::{JobId, JobRecord};
use crate::node::{Node, NodeId, NodeRecord};
use crate::store::redis::maintenance::health;

/// How often Sentinels are asked who the master is, although it still answers; and how often somebody looks for masters of a
/// Cluster that do not.
const MASTER_CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// A store on Redis or Valkey.
pub(crate) struct Redis {
    servers: Arc<Servers>,
    options: StoreOptions,
    prefix: String,
    peer_keys: PeerKeys,
    queue_registry: Arc<QueueRegistry>,
    wake_subscriptions: WakeSubscriptions,
    message_subscriptions: MessageSubscriptions,
    completion_subscriptions: CompletionSubscriptions,
    foreign_subscriptions: ForeignSubscriptions,
    state: Mutex<RedisState>,
    /// How far the store's clock is ahead of ours, as the last answers said.
    clock_offset: ClockOffset,
    /// The thread on which beats are sent and messages are heard.
    runtime: tokio::runtime::Handle,
    /// Ends it.
    stop: CancellationToken,
}

/// What this process remembers; all of it can be learnt again.
#[derive(Default)]
struct RedisState {
    keys: KeyCache,
    /// In which queues a node of ours beats.
    queues_by_node: HashMap<NodeId, BTreeSet<String>>,
    /// In which queues a node of ours may be on the idle list.
    maybe_idle: BTreeSet<(NodeId, String)>,
    /// The mark of the last put-off in a queue up to which a node of ours has looked for what it knows.
    checked_deferrals: HashMap<(NodeId, Arc<str>), i64>,
    /// How far a dead node's queue has been gone through.
    take_back_cursors: HashMap<(NodeId, String), String>,
    /// Nodes of ours that can be found in the hall.
    announced_peers: BTreeSet<NodeId>,
    peer_cleanup: peers::PeerCleanup,
}

impl Redis {
    /// Connects, and checks that the server can keep what it is given.
    pub(crate) async fn open(place: RedisUrl, options: &StoreOptions) -> Result<Self> {
        let stop = CancellationToken::new();
        // A store that does not come to be leaves no thread behind.
        let ends_it = stop.clone().drop_guard();
        let home = start_runtime(stop.clone())?;
        let hall = PeerKeys::new(&options.prefix);
        let (ears, voices, strangers) =
            (WakeSubscriptions::default(), MessageSubscriptions::new(&hall), ForeignSubscriptions::default());
        let watches = CompletionSubscriptions::new(voices.clone());
        let hearing = (ears.clone(), voices.clone(), strangers.clone(), watches.clone());
        let listener = Arc::new(move |info| {
            hearing.0.handle_push(&info);
            hearing.1.handle_push(&info);
            hearing.2.handle_push(&info);
            hearing.3.handle_push(&info);
        });
        let link = Servers::new(place, options, home.clone(), listener)?;
        home.spawn(check_masters_periodically(link.clone(), stop.clone()));
        let hall = PeerKeys::new(&options.prefix);
        let store = Redis {
            queue_registry: QueueRegistry::new(link.clone(), home.clone(), &hall),
            servers: link,
            options: options.clone(),
            prefix: options.prefix.clone(),
            peer_keys: hall,
            wake_subscriptions: ears,
            message_subscriptions: voices,
            completion_subscriptions: watches,
            foreign_subscriptions: strangers,
            state: Mutex::default(),
            clock_offset: ClockOffset::default(),
            runtime: home,
            stop,
        };
        // From now on that is the store's own to do.
        ends_it.disarm();
        health::check_servers_on_open(&store).await?;
        Ok(store)
    }

    fn state(&self) -> MutexGuard<'_, RedisState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The keys of a queue.
    pub(crate) fn keys(&self, queue: &str) -> Arc<QueueKeys> {
        self.state().keys.get_or_insert(queue, false, || QueueKeys::new(&self.prefix, queue, self.options.history))
    }

    /// The same for a queue that is there, because this process takes part in it.
    fn active_queue_keys(&self, queue: &str) -> Arc<QueueKeys> {
        self.state().keys.get_or_insert(queue, true, || QueueKeys::new(&self.prefix, queue, self.options.history))
    }

    /// The keys of a queue that is about to get something: its name is put where others find it.
    pub(crate) async fn register_queue(&self, op: &'static str, queue: &str) -> Result<Arc<QueueKeys>> {
        self.queue_registry.register(op, queue, self.manual_now()).await?;
        Ok(self.active_queue_keys(queue))
    }

    /// The names of all queues, sorted.
    pub(crate) async fn queue_names(&self, op: &'static str) -> Result<Vec<String>> {
        let mut cmd = redis::cmd("SMEMBERS");
        cmd.arg(&self.peer_keys.queues);
        let names = self.servers.send_idempotent(op, ConnectionRole::Client, self.peer_keys.slot, &cmd).await?;
        let strange =
            |e| Error::Store { op, reason: "the list of queues cannot be read".into(), source: Some(Box::new(e)) };
        let names: BTreeSet<String> = redis::from_redis_value(names).map_err(strange)?;
        Ok(names.into_iter().collect())
    }

    /// The keys of a queue in which a node takes part from now on.
    pub(crate) fn join_queue(&self, node: NodeId, queue: &str) -> Arc<QueueKeys> {
        let works = self.state().queues_by_node.get(&node).is_some_and(|queues| queues.contains(queue));
        if !works {
            self.add_node_queues(node, &[queue.to_owned()]);
        }
        self.active_queue_keys(queue)
    }

    /// Notes that a node works these queues, and answers all that it works.
    fn add_node_queues(&self, node: NodeId, queues: &[String]) -> Vec<String> {
        let mut known = self.state();
        let works = known.queues_by_node.entry(node).or_default();
        works.extend(queues.iter().cloned());
        works.iter().cloned().collect()
    }

    fn queues_of_node(&self, node: NodeId) -> Vec<String> {
        self.state().queues_by_node.get(&node).map(|queues| queues.iter().cloned().collect()).unwrap_or_default()
    }

    /// Notes whether a node may be on the idle list of a queue, and answers whether it may have been before.
    pub(crate) fn swap_idle(&self, node: NodeId, queue: &str, idle: bool) -> bool {
        let (mut known, entry) = (self.state(), (node, queue.to_owned()));
        match idle {
            true => !known.maybe_idle.insert(entry),
            false => known.maybe_idle.remove(&entry),
        }
    }

    /// Whether anything was put off in a queue since this node looked for what it knows.
    fn has_unchecked_deferrals(&self, node: NodeId, keys: &QueueKeys) -> bool {
        let mark = keys.deferred_mark.load(Ordering::Relaxed);
        mark != 0 && self.state().checked_deferrals.get(&(node, keys.queue.clone())) != Some(&mark)
    }

    /// A script has told the mark of the last put-off, and whether the node has been given all up to it that it knows.
    fn note_checked_deferrals(&self, node: NodeId, keys: &QueueKeys, mark: i64, through: bool) {
        keys.deferred_mark.store(mark, Ordering::Relaxed);
        if through {
            self.state().checked_deferrals.insert((node, keys.queue.clone()), mark);
        }
    }

    fn forget_node(&self, node: NodeId) {
        let mut known = self.state();
        known.queues_by_node.remove(&node);
        known.maybe_idle.retain(|(other, _)| *other != node);
        known.checked_deferrals.retain(|(other, _), _| *other != node);
    }

    /// Where to go on looking for what a dead node held.
    fn take_back_cursor(&self, suspect: NodeId, queue: &str) -> String {
        self.state().take_back_cursors.get(&(suspect, queue.to_owned())).cloned().unwrap_or_else(|| "0".to_owned())
    }

    fn set_take_back_cursor(&self, suspect: NodeId, queue: &str, cursor: Option<String>) {
        let mut known = self.state();
        match cursor {
            Some(cursor) => drop(known.take_back_cursors.insert((suspect, queue.to_owned()), cursor)),
            None => drop(known.take_back_cursors.remove(&(suspect, queue.to_owned()))),
        }
    }

    /// Sends what must not be lost: a script, or commands that go together; answers once as many replicas have it as should.
    pub(crate) async fn send_replicated(
        &self,
        op: &'static str,
        keys: &QueueKeys,
        script: Option<&Script>,
        cmds: &[Cmd],
    ) -> Result<Value> {
        let mut seal = script::MARK_WRITE.call(keys);
        seal.arg(self.manual_now());
        let confirm = ReplicaConfirmation { replicas: self.options.replicas, seal: Some(&seal) };
        self.servers
            .send_replicated(op, keys.slot, script, cmds, Some(confirm).filter(|confirm| confirm.replicas > 0))
            .await
    }

    /// What scripts take as their first argument: empty, or the time that a test has set.
    pub(crate) fn manual_now(&self) -> String {
        if self.options.clock.is_manual() { self.options.clock.now_micros().to_string() } else { String::new() }
    }

    /// The store's time as far as we know it without asking: never later than it is.
    pub(crate) fn now(&self) -> Micros {
        match self.options.clock.is_manual() {
            true => self.options.clock.now_micros(),
            false => Clock::system().since_boot() + self.clock_offset.offset(),
        }
    }

    /// Takes a script's answer, and notes what time it says it is.
    pub(crate) fn parse_reply(&self, op: &'static str, value: Value) -> Result<ScriptReply> {
        let reply = ScriptReply::new(op, value)?;
        self.note_server_time(reply.now);
        Ok(reply)
    }

    /// The store's time was at least this a moment ago.
    fn note_server_time(&self, now: Micros) {
        self.clock_offset.add_sample(now, Clock::system().since_boot());
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// A thread with a runtime of its own: beats go out from there, however busy the rest of the process is.
fn start_runtime(stop: CancellationToken) -> Result<tokio::runtime::Handle> {
    let failed = |e: std::io::Error| Error::store("open", format!("cannot start a thread: {e}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let handle = runtime.handle().clone();
    let run = move || runtime.block_on(stop.cancelled());
    std::thread::Builder::new().name("duly-redis".into()).spawn(run).map_err(failed)?;
    Ok(handle)
}

async fn check_masters_periodically(link: Arc<Servers>, stop: CancellationToken) {
    if link.url().topology == self::url::Topology::Standalone {
        return;
    }
    while stop.run_until_cancelled(tokio::time::sleep(MASTER_CHECK_INTERVAL)).await.is_some() {
        link.check_masters().await;
    }
}
