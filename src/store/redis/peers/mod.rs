//! Peers: which nodes can be called, and with which methods.

pub(crate) mod completions;
pub(crate) mod connections;
pub(crate) mod messages;

use std::collections::BTreeMap;

use async_trait::async_trait;
use redis::Cmd;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::clock::{Micros, from_micros, micros};
use crate::error::Result;
use crate::node::{NodeId, NodeRecord};
use crate::store::redis::conn::ConnectionRole;
use crate::store::redis::locks::waiters;
use crate::store::redis::nodes::TIMES_BYTES;
use crate::store::redis::script;
use crate::store::redis::script::Script;
use crate::store::redis::{Redis, nodes};
use crate::store::{AnnounceReply, CompletionStore, Notification, PeerInfo, PeerStore, Recipient};

/// Interval at which a process cleans up after dead peers.
const CLEANUP_INTERVAL: Micros = 5_000_000;
/// The same for a process without announced peers.
const QUIET_CLEANUP_INTERVAL: Micros = 60_000_000;
/// Maximum requests in which a node removes its waiters and connections; other nodes clean up the rest.
const WITHDRAW_BATCHES_MAX: usize = 100;

/// A peer's description of itself; its methods follow, one per line.
#[derive(Default, Serialize, Deserialize)]
struct PeerDescription {
    host: String,
    pid: u32,
}

/// Position of this process in the cleanup after dead peers.
pub(super) struct PeerCleanup {
    last_run: Micros,
    cursors: [String; 3],
}

impl Default for PeerCleanup {
    fn default() -> Self {
        PeerCleanup { last_run: 0, cursors: ["0", "0", "0"].map(str::to_owned) }
    }
}

#[async_trait]
impl PeerStore for Redis {
    async fn announce(&self, peer: &PeerInfo) -> Result<AnnounceReply> {
        announce(self, peer).await
    }

    async fn withdraw(&self, node: NodeId) -> Result<()> {
        withdraw(self, node).await
    }

    async fn nodes(&self) -> Result<Vec<NodeRecord>> {
        nodes::nodes(self).await
    }

    async fn subscribe_messages(&self, node: NodeId, all: bool) -> Result<mpsc::Receiver<Notification>> {
        Ok(messages::subscribe_messages(self, node, all))
    }

    async fn send(&self, to: Recipient, message: &[u8]) -> Result<u64> {
        messages::send(self, to, message).await
    }

    async fn set_connections(&self, node: NodeId, held: &[String], gone: &[String]) -> Result<()> {
        connections::set_connections(self, node, held, gone).await
    }

    async fn refresh_connections(&self, node: NodeId, held: &[String]) -> Result<()> {
        connections::refresh_connections(self, node, held).await
    }

    async fn connection_holder(&self, connection: &str) -> Result<Option<NodeId>> {
        connections::connection_holder(self, connection).await
    }

    async fn peers_with_method(&self, method: &str) -> Result<Vec<NodeId>> {
        peers_with_method(self, method).await
    }
}

#[async_trait]
impl CompletionStore for Redis {
    async fn watch_completions(&self, node: NodeId, queues: &[String]) -> Result<()> {
        completions::watch_completions(self, node, queues).await
    }
}

/// Implements `PeerStore::announce`.
pub(super) async fn announce(store: &Redis, peer: &PeerInfo) -> Result<AnnounceReply> {
    if peer.listen_only {
        // A peer that was announced before must not be found any more. It may wait for a lock by the time this arrives,
        // or hold a connection, so its lease is left to expire.
        if store.state().announced_peers.remove(&peer.node) {
            let mut cmd = redis::cmd("HDEL");
            cmd.arg(&store.peer_keys.peers).arg(peer.node.to_string());
            store.servers.send_idempotent("announce", ConnectionRole::Heartbeat, store.peer_keys.slot, &cmd).await?;
        }
        messages::ping_and_ensure_subscribed(store, peer.node).await?;
        clean_up_rarely(store).await;
        return Ok(AnnounceReply::default());
    }
    // Before the check of the locks, so that no later change is missed.
    messages::ensure_subscribed(store, peer.node).await?;
    store.state().announced_peers.insert(peer.node);
    let peer_keys = &store.peer_keys;
    let mut cmd = script::ANNOUNCE.call(&store.peer_keys);
    cmd.arg(store.manual_now()).arg(peer.node.to_string()).arg(micros(peer.lease));
    cmd.arg(format!("{:016}{}", micros(peer.lease), encode_description(peer)));
    waiters::append_waits(&mut cmd, peer);
    let mut reply = store
        .run_script_idempotent("announce", ConnectionRole::Heartbeat, peer_keys.slot, &script::ANNOUNCE, &cmd)
        .await?;
    let turns = waiters::lock_turns(&mut reply)?;
    let lost_waits = waiters::find_lost_waiters(&mut reply, peer)?;
    clean_up_if_due(store, reply.now, CLEANUP_INTERVAL).await;
    Ok(AnnounceReply { turns, lost_waits })
}

fn encode_description(peer: &PeerInfo) -> String {
    let description = PeerDescription { host: crate::node::host_name(), pid: std::process::id() };
    let mut text = serde_json::to_string(&description).unwrap_or_default();
    text.push('\n');
    for method in &peer.methods {
        text.push_str(method);
        text.push('\n');
    }
    text
}

/// Runs a part of the cleanup after dead peers, if it is due.
async fn clean_up_if_due(store: &Redis, now: Micros, interval: Micros) {
    let cursors = {
        let mut state = store.state();
        // A clock that was set back must not delay the cleanup.
        if (now - state.peer_cleanup.last_run).abs() < interval {
            return;
        }
        state.peer_cleanup.last_run = now;
        state.peer_cleanup.cursors.clone()
    };
    if let Err(error) = clean_up_batch(store, &cursors).await {
        tracing::debug!(%error, "cannot clean up after dead peers; retrying later");
    }
}

/// Runs the cleanup rarely, for processes that only hold locks or only work. A new process leaves it to others, and
/// processes that start together run it at different times.
async fn clean_up_rarely(store: &Redis) {
    let now = store.now();
    {
        let mut state = store.state();
        if state.peer_cleanup.last_run == 0 {
            state.peer_cleanup.last_run = now - fastrand::i64(0..QUIET_CLEANUP_INTERVAL / 2);
            return;
        }
    }
    clean_up_if_due(store, now, QUIET_CLEANUP_INTERVAL).await;
}

async fn clean_up_batch(store: &Redis, cursors: &[String; 3]) -> Result<()> {
    let mut cmd = all_peer_keys_command(store, &script::CLEAR_DEAD);
    cmd.arg(cursors);
    let mut reply = store
        .run_script_idempotent("announce", ConnectionRole::Heartbeat, store.peer_keys.slot, &script::CLEAR_DEAD, &cmd)
        .await?;
    store.state().peer_cleanup.cursors = [reply.text()?, reply.text()?, reply.text()?];
    Ok(())
}

/// Returns a call of a script on the peer keys; its own arguments follow.
fn all_peer_keys_command(store: &Redis, script: &Script) -> Cmd {
    let mut cmd = script.call(&store.peer_keys);
    cmd.arg(store.manual_now());
    cmd
}

/// Implements `PeerStore::withdraw`.
pub(super) async fn withdraw(store: &Redis, node: NodeId) -> Result<()> {
    store.state().announced_peers.remove(&node);
    let mut cursors = ["0".to_owned(), "0".to_owned()];
    for _ in 0..WITHDRAW_BATCHES_MAX {
        cursors = withdraw_batch(store, node, &cursors).await?;
        if cursors.iter().all(String::is_empty) {
            break;
        }
    }
    messages::unsubscribe_node(store, node).await;
    Ok(())
}

/// Scans a part of the waiters and connections of all nodes; returns the next cursors.
async fn withdraw_batch(store: &Redis, node: NodeId, cursors: &[String; 2]) -> Result<[String; 2]> {
    let mut cmd = all_peer_keys_command(store, &script::WITHDRAW);
    cmd.arg(node.to_string()).arg(cursors);
    let mut reply = store
        .run_script_idempotent("withdraw", ConnectionRole::Heartbeat, store.peer_keys.slot, &script::WITHDRAW, &cmd)
        .await?;
    Ok([reply.text()?, reply.text()?])
}

/// Returns the records of all peers.
pub(super) async fn peer_records(store: &Redis) -> Result<Vec<NodeRecord>> {
    let (peers, now) = find_peers(store, "nodes", "").await?;
    let mut records = Vec::with_capacity(peers.len());
    for (id, expires, description) in peers {
        let Some((times, description)) = description.split_at_checked(TIMES_BYTES) else {
            continue;
        };
        let (description, methods) = description.split_once('\n').unwrap_or((description, ""));
        let PeerDescription { host, pid } = serde_json::from_str(description).unwrap_or_default();
        records.push(NodeRecord {
            id,
            host,
            pid,
            queues: Vec::new(),
            joined: from_micros(times.get(..16).and_then(|joined| joined.parse().ok()).unwrap_or(0)),
            alive: expires >= now,
            held: 0,
            held_by_queue: BTreeMap::new(),
            profile: crate::node::NodeProfile::default(),
            methods: methods.lines().map(str::to_owned).collect(),
        });
    }
    Ok(records)
}

/// Implements `PeerStore::peers_with_method`.
pub(super) async fn peers_with_method(store: &Redis, method: &str) -> Result<Vec<NodeId>> {
    if method.is_empty() {
        return Ok(Vec::new());
    }
    Ok(find_peers(store, "peers_with_method", method).await?.0.into_iter().map(|(id, ..)| id).collect())
}

/// Returns the node, the end of its lease and its description for each peer, and the store's time.
async fn find_peers(store: &Redis, op: &'static str, method: &str) -> Result<(Vec<(NodeId, Micros, String)>, Micros)> {
    let mut cmd = script::FIND_PEERS.call(&store.peer_keys);
    cmd.arg(store.manual_now()).arg(method);
    let mut reply =
        store.run_script(op, ConnectionRole::Client, store.peer_keys.slot, &script::FIND_PEERS, &cmd).await?;
    let mut peers = Vec::new();
    for mut row in reply.rows()? {
        let (id, expires, description) = (row.text()?, row.int()?, row.text()?);
        peers.extend(id.parse().ok().map(|id| (id, expires, description)));
    }
    Ok((peers, reply.now))
}
