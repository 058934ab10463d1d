//! The store on Redis or Valkey: a single server, Sentinel, or Cluster.
//!
//! Each operation of the store contract is one Lua script on the keys of one queue, so it is atomic. Each
//! module implements the traits of its subject, `keys` names the keys, `script` has the scripts (`lua/README.md`), and
//! `conn` sends them.
//! `ARGV[1]` of every script is empty, or the time that a test has set; no script takes the time from anywhere else.

mod access;
mod assemble;
mod clock_offset;
mod conn;
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
mod run_text;
mod script;
mod stats;
mod subscriptions;
mod transfer;
mod url;

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use redis::{Cmd, Value};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use self::clock_offset::ClockOffset;
pub(crate) use self::conn::ConnectionRole;
#[cfg(feature = "compat")]
pub(crate) use self::conn::is_forbidden;
use self::conn::{ReplicaConfirmation, Servers};
#[cfg(feature = "compat")]
pub(crate) use self::foreign_keys::{
    dead_group, decode_lock_hold, encode_first_failure, encode_lock_holder, encode_record, parse_lock_owner,
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
pub(crate) use self::maintenance::health::{has_append_only_file, keyspace_id};
use self::peers::messages::MessageSubscriber;
use self::queue_registry::QueueRegistry;
pub(crate) use self::reply::ScriptReply;
#[cfg(feature = "compat")]
pub(crate) use self::reply::parse_number;
pub(crate) use self::script::{KeySet, Script};
#[cfg(feature = "compat")]
pub(crate) use self::script::{key_set, parts, scripts, sha1};
use self::subscriptions::Subscriptions;
pub(crate) use self::url::RedisUrl;
use super::contract::{self, Capabilities, Store};
use super::{StoreOptions, Wake};
use crate::clock::{Clock, Micros, from_micros};
use crate::error::{Error, Result};
use crate::job::JobId;
use crate::node::NodeId;
use crate::store::redis::maintenance::health;
use crate::sync::{LockExt, build_thread_runtime, start_thread};

/// Interval at which Sentinels are asked for the master, and at which a Cluster is checked for unresponsive masters.
const MASTER_CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// A store on Redis or Valkey.
pub(crate) struct Redis {
    servers: Arc<Servers>,
    options: StoreOptions,
    prefix: String,
    peer_keys: PeerKeys,
    queue_registry: Arc<QueueRegistry>,
    subscriptions: Subscriptions,
    state: Mutex<RedisState>,
    /// Offset of the store's clock from ours, as the latest replies report it.
    clock_offset: ClockOffset,
    /// The store's own thread, which sends heartbeats and receives messages.
    runtime: tokio::runtime::Handle,
    /// Stops that thread.
    stop: CancellationToken,
}

/// State of this process; all of it can be rebuilt.
#[derive(Default)]
struct RedisState {
    keys: KeyCache,
    /// The queues in which a local node sends heartbeats.
    queues_by_node: HashMap<NodeId, BTreeSet<String>>,
    /// The queues in which a local node may be on the idle list.
    maybe_idle: BTreeSet<(NodeId, String)>,
    /// The mark of the last deferral up to which a local node has looked for jobs that it can run.
    checked_deferrals: HashMap<(NodeId, Arc<str>), i64>,
    /// Position in the take-back of a dead node's jobs, per queue.
    take_back_cursors: HashMap<(NodeId, String), String>,
    /// Local nodes that are announced as peers.
    announced_peers: BTreeSet<NodeId>,
    /// The receivers of wakes, by local node.
    wake_senders: HashMap<NodeId, mpsc::Sender<Wake>>,
    /// The receivers of messages, by local node.
    message_subscribers: HashMap<NodeId, Arc<MessageSubscriber>>,
    peer_cleanup: peers::PeerCleanup,
}

impl Redis {
    /// Connects, and checks that the server's settings keep jobs safe.
    pub(crate) async fn open(url: RedisUrl, options: &StoreOptions) -> Result<Self> {
        let stop = CancellationToken::new();
        // A failed open leaves no thread behind.
        let stop_guard = stop.clone().drop_guard();
        let runtime = start_runtime(stop.clone())?;
        let peer_keys = PeerKeys::new(&options.prefix);
        let subscriptions = Subscriptions::default();
        let push_subscriptions = subscriptions.clone();
        let push_handler = Arc::new(move |info| push_subscriptions.handle_push(&info));
        let servers = Servers::new(url, options, runtime.clone(), push_handler)?;
        runtime.spawn(check_masters_periodically(servers.clone(), stop.clone()));
        let store = Redis {
            queue_registry: QueueRegistry::new(servers.clone(), runtime.clone(), &peer_keys),
            servers,
            options: options.clone(),
            prefix: options.prefix.clone(),
            peer_keys,
            subscriptions,
            state: Mutex::default(),
            clock_offset: ClockOffset::default(),
            runtime,
            stop,
        };
        // From now on `Drop` stops the thread.
        stop_guard.disarm();
        health::check_servers_on_open(&store).await?;
        Ok(store)
    }

    fn state(&self) -> MutexGuard<'_, RedisState> {
        self.state.lock_unpoisoned()
    }

    /// Returns the keys of a queue.
    pub(crate) fn keys(&self, queue: &str) -> Arc<QueueKeys> {
        self.state().keys.get_or_insert(queue, false, || QueueKeys::new(&self.prefix, queue, self.options.history))
    }

    /// Returns the keys of a queue that this process pushes to or works on; they stay cached.
    fn active_queue_keys(&self, queue: &str) -> Arc<QueueKeys> {
        self.state().keys.get_or_insert(queue, true, || QueueKeys::new(&self.prefix, queue, self.options.history))
    }

    /// Registers a queue that is about to receive its first job or setting, and returns its keys.
    pub(crate) async fn register_queue(&self, op: &'static str, queue: &str) -> Result<Arc<QueueKeys>> {
        self.queue_registry.register(op, queue, self.manual_now()).await?;
        Ok(self.active_queue_keys(queue))
    }

    /// Returns the names of all queues, sorted.
    pub(crate) async fn queue_names(&self, op: &'static str) -> Result<Vec<String>> {
        let mut cmd = redis::cmd("SMEMBERS");
        cmd.arg(&self.peer_keys.queues);
        let names = self.servers.send_idempotent(op, ConnectionRole::Client, self.peer_keys.slot, &cmd).await?;
        let unreadable = |e| Error::store_with_cause(op, format!("the list of queues cannot be read: {e}"), e);
        let names: BTreeSet<String> = redis::from_redis_value(names).map_err(unreadable)?;
        Ok(names.into_iter().collect())
    }

    /// Records that a node works on a queue, and returns the keys of the queue.
    pub(crate) fn join_queue(&self, node: NodeId, queue: &str) -> Arc<QueueKeys> {
        let node_queues = self.state().queues_by_node.get(&node).is_some_and(|queues| queues.contains(queue));
        if !node_queues {
            self.add_node_queues(node, &[queue.to_owned()]);
        }
        self.active_queue_keys(queue)
    }

    /// Records that a node works on these queues, and returns all of its queues.
    fn add_node_queues(&self, node: NodeId, queues: &[String]) -> Vec<String> {
        let mut state = self.state();
        let node_queues = state.queues_by_node.entry(node).or_default();
        node_queues.extend(queues.iter().cloned());
        node_queues.iter().cloned().collect()
    }

    fn queues_of_node(&self, node: NodeId) -> Vec<String> {
        self.state().queues_by_node.get(&node).map(|queues| queues.iter().cloned().collect()).unwrap_or_default()
    }

    /// Records whether a node may be on the idle list of a queue, and returns whether it may have been before.
    pub(crate) fn swap_idle(&self, node: NodeId, queue: &str, idle: bool) -> bool {
        let (mut state, entry) = (self.state(), (node, queue.to_owned()));
        match idle {
            true => !state.maybe_idle.insert(entry),
            false => state.maybe_idle.remove(&entry),
        }
    }

    /// Returns whether a job was deferred in a queue since this node last looked for jobs that it can run.
    fn has_unchecked_deferrals(&self, node: NodeId, keys: &QueueKeys) -> bool {
        let mark = keys.deferred_mark.load(Ordering::Relaxed);
        mark != 0 && self.state().checked_deferrals.get(&(node, keys.queue.clone())) != Some(&mark)
    }

    /// Records the mark of the last deferral, and whether the node has adopted all of its jobs up to it.
    fn note_checked_deferrals(&self, node: NodeId, keys: &QueueKeys, mark: i64, is_complete: bool) {
        keys.deferred_mark.store(mark, Ordering::Relaxed);
        if is_complete {
            self.state().checked_deferrals.insert((node, keys.queue.clone()), mark);
        }
    }

    fn forget_node(&self, node: NodeId) {
        let mut state = self.state();
        state.queues_by_node.remove(&node);
        state.wake_senders.remove(&node);
        state.maybe_idle.retain(|(other, _)| *other != node);
        state.checked_deferrals.retain(|(other, _), _| *other != node);
    }

    fn message_subscriber(&self, node: NodeId) -> Option<Arc<MessageSubscriber>> {
        self.state().message_subscribers.get(&node).cloned()
    }

    /// Returns the position at which the take-back of a dead node's jobs continues.
    fn take_back_cursor(&self, suspect: NodeId, queue: &str) -> String {
        self.state().take_back_cursors.get(&(suspect, queue.to_owned())).cloned().unwrap_or_else(|| "0".to_owned())
    }

    fn set_take_back_cursor(&self, suspect: NodeId, queue: &str, cursor: Option<String>) {
        let mut state = self.state();
        match cursor {
            Some(cursor) => drop(state.take_back_cursors.insert((suspect, queue.to_owned()), cursor)),
            None => drop(state.take_back_cursors.remove(&(suspect, queue.to_owned()))),
        }
    }

    /// Sends a script, or commands as one transaction, and waits for the configured number of replicas.
    pub(crate) async fn send_replicated(
        &self,
        op: &'static str,
        keys: &QueueKeys,
        script: Option<&Script>,
        cmds: &[Cmd],
    ) -> Result<Value> {
        let mut mark_write = script::MARK_WRITE.call(keys);
        mark_write.arg(self.manual_now());
        let confirmation = ReplicaConfirmation { replicas: self.options.replicas, mark_write: Some(&mark_write) };
        self.servers
            .send_replicated(
                op,
                keys.slot,
                script,
                cmds,
                Some(confirmation).filter(|confirmation| confirmation.replicas > 0),
            )
            .await
    }

    /// Returns the first argument of every script: empty, or the time that a test has set.
    pub(crate) fn manual_now(&self) -> String {
        if self.options.clock.is_manual() { self.options.clock.now_micros().to_string() } else { String::new() }
    }

    /// Returns the store's time without a request; never later than the true time.
    pub(crate) fn now(&self) -> Micros {
        match self.options.clock.is_manual() {
            true => self.options.clock.now_micros(),
            false => Clock::system().since_boot() + self.clock_offset.offset(),
        }
    }

    /// Runs a script that must not run twice.
    pub(crate) async fn run_script(
        &self,
        op: &'static str,
        role: ConnectionRole,
        slot: u16,
        script: &Script,
        cmd: &Cmd,
    ) -> Result<ScriptReply> {
        self.parse_reply(op, self.servers.run_script(op, role, slot, script, cmd).await?)
    }

    /// Runs a script that is safe to run twice.
    pub(crate) async fn run_script_idempotent(
        &self,
        op: &'static str,
        role: ConnectionRole,
        slot: u16,
        script: &Script,
        cmd: &Cmd,
    ) -> Result<ScriptReply> {
        self.parse_reply(op, self.servers.run_script_idempotent(op, role, slot, script, cmd).await?)
    }

    /// Parses a script's reply and records the time in it.
    pub(crate) fn parse_reply(&self, op: &'static str, value: Value) -> Result<ScriptReply> {
        let reply = ScriptReply::new(op, value)?;
        self.note_server_time(reply.now);
        Ok(reply)
    }

    /// Records that the store's time was at least `now` a moment ago.
    fn note_server_time(&self, now: Micros) {
        self.clock_offset.add_sample(now, Clock::system().since_boot());
    }
}

impl contract::sealed::Sealed for Redis {}

impl Store for Redis {
    fn name(&self) -> &'static str {
        "Redis"
    }

    fn capabilities(&self) -> Capabilities<'_> {
        Capabilities {
            jobs: Some(self),
            admin: Some(self),
            progress: Some(self),
            crons: Some(self),
            locks: Some(self),
            peers: Some(self),
            completions: Some(self),
            stats: Some(self),
            access: Some(self),
            transfer: Some(self),
            // Only duly uses its keys.
            shared_keys: None,
            maintenance: Some(self),
            health: Some(self),
            // A server does not write files for its clients; they scan it.
            snapshot: None,
            scan: Some(self),
            // A transaction cannot contain both a server and tables of the caller.
            transactions: None,
        }
    }

    fn advice(&self, capability: &str) -> &'static str {
        match capability {
            contract::transactions::CAPABILITY => contract::transactions::ADVICE,
            _ => "export its jobs instead",
        }
    }

    fn parse_job_id(&self, text: &str) -> Result<JobId> {
        text.parse()
    }

    fn runtime(&self) -> Option<tokio::runtime::Handle> {
        Some(self.runtime.clone())
    }

    fn now(&self) -> SystemTime {
        from_micros(Redis::now(self))
    }

    fn check_files(&self, _op: &'static str, _seen_id: Option<&str>) -> Result<()> {
        Ok(())
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Starts a thread with its own runtime, so that heartbeats are sent however busy the rest of the process is.
fn start_runtime(stop: CancellationToken) -> Result<tokio::runtime::Handle> {
    let runtime = build_thread_runtime("open")?;
    let handle = runtime.handle().clone();
    start_thread("open", "duly-redis", move || runtime.block_on(stop.cancelled()))?;
    Ok(handle)
}

async fn check_masters_periodically(servers: Arc<Servers>, stop: CancellationToken) {
    if servers.url().topology == self::url::Topology::Standalone {
        return;
    }
    while stop.run_until_cancelled(tokio::time::sleep(MASTER_CHECK_INTERVAL)).await.is_some() {
        servers.check_masters().await;
    }
}
