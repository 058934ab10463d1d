//! Nodes: heartbeats and registration in each queue that they work on.

pub(crate) mod wakes;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde::{Deserialize, Serialize};

use crate::clock::{from_micros, micros};
use crate::error::Result;
use crate::node::{Node, NodeId, NodeProfile, NodeRecord};
use crate::store::HeartbeatReply;
use crate::store::redis::conn::ConnectionRole;
use crate::store::redis::{Redis, peers, script};

/// Share of the heartbeat interval to wait for slow queues, once one queue has replied.
const HEARTBEAT_WAIT_RATIO: f64 = 0.8;

/// Length of the times before the description of a node: when it joined, and its lease.
pub(super) const TIMES_BYTES: usize = 32;

/// A node's description of itself.
#[derive(Default, Serialize, Deserialize)]
struct NodeDescription {
    host: String,
    pid: u32,
    queues: Vec<String>,
    #[serde(default)]
    profile: NodeProfile,
}

/// Implements `JobStore::heartbeat`, with one request per queue that the node works on or has claimed from.
pub(super) async fn heartbeat(store: &Redis, node: &Node) -> Result<HeartbeatReply> {
    let known_queues = store.add_node_queues(node.id, &node.queues);
    let queues: BTreeSet<&str> = node.queues.iter().chain(&known_queues).map(String::as_str).collect();
    let mut heartbeats: FuturesUnordered<_> =
        queues.iter().map(async |queue| (*queue, heartbeat_in_queue(store, node, queue).await)).collect();
    let (mut reply, mut unreachable, mut last_error) = (HeartbeatReply::default(), queues.clone(), None);
    let mut timeout = std::pin::pin!(tokio::time::sleep(node.heartbeat_interval().mul_f64(HEARTBEAT_WAIT_RATIO)));
    loop {
        let queue_reply = tokio::select! {
            queue_reply = heartbeats.next() => queue_reply,
            () = &mut timeout, if unreachable.len() < queues.len() => None,
        };
        // A server that fails or hangs must not affect the queues of the others.
        match queue_reply {
            Some((queue, Ok(queue_reply))) => {
                unreachable.remove(queue);
                reply.held.extend(queue_reply.held);
                reply.suspects.extend(queue_reply.suspects);
                reply.expiring.extend(queue_reply.expiring);
                reply.queues_to_check.extend(queue_reply.queues_to_check);
                reply.cancelled.extend(queue_reply.cancelled);
            }
            Some((queue, Err(error))) => {
                tracing::warn!(queue, %error, "heartbeat failed");
                last_error = Some(error);
            }
            None => break,
        }
    }
    if let Some(error) = last_error.filter(|_| unreachable.len() == queues.len()) {
        return Err(error);
    }
    reply.unreachable = unreachable.into_iter().map(str::to_owned).collect();
    Ok(reply)
}

async fn heartbeat_in_queue(store: &Redis, node: &Node, queue: &str) -> Result<HeartbeatReply> {
    let keys = store.keys(queue);
    let mut cmd = script::HEARTBEAT.call(&*keys);
    let (queues, profile) = (node.queues.clone(), node.profile.clone());
    let description = NodeDescription { host: crate::node::host_name(), pid: std::process::id(), queues, profile };
    let description = serde_json::to_string(&description).unwrap_or_default();
    let lease = micros(node.lease);
    cmd.arg(store.manual_now())
        .arg(node.id.to_string())
        .arg(lease)
        .arg(format!("{lease:016}{description}"))
        .arg(micros(node.heartbeat_interval()));
    let mut reply =
        store.run_script("heartbeat", ConnectionRole::Heartbeat, keys.slot, &script::HEARTBEAT, &cmd).await?;
    let mut heartbeat = HeartbeatReply::default();
    let holds = u64::try_from(reply.int()?).unwrap_or(0);
    if holds > 0 {
        heartbeat.held.push((queue.to_owned(), holds));
    }
    if reply.int()? == 1 {
        heartbeat.queues_to_check.push(queue.to_owned());
    }
    for mut row in reply.rows()? {
        let (id, remaining) = (row.text()?, row.int()?);
        match (id.parse(), u64::try_from(remaining).unwrap_or(0)) {
            (Ok(id), 0) => heartbeat.suspects.push((id, queue.to_owned())),
            (Ok(id), remaining) => heartbeat.expiring.push((id, queue.to_owned(), Duration::from_micros(remaining))),
            (Err(_), _) => {}
        }
    }
    let mark = reply.int()?;
    if mark > 0 {
        keys.deferred_mark.store(mark, Ordering::Relaxed);
        heartbeat
            .queues_to_check
            .extend(Some(queue.to_owned()).filter(|_| store.has_unchecked_deferrals(node.id, &keys)));
    }
    // No other node forgets a node with heartbeats: the server has lost its data, perhaps with the queue's name.
    if reply.int()? == 1 {
        store.queue_registry.mark_uncertain(queue);
    }
    heartbeat.cancelled = reply.ids()?;
    store.queue_registry.register_after_heartbeat(queue, store.manual_now()).await;
    wakes::report_gaps(store, node.id, &keys);
    Ok(heartbeat)
}

/// Implements `JobStore::leave`.
pub(super) async fn leave(store: &Redis, node: NodeId) -> Result<()> {
    let queues = store.queues_of_node(node);
    let requests = queues.iter().map(|queue| leave_queue(store, node, queue));
    let results = futures_util::future::join_all(requests).await;
    store.forget_node(node);
    results.into_iter().collect()
}

async fn leave_queue(store: &Redis, node: NodeId, queue: &str) -> Result<()> {
    let keys = store.keys(queue);
    let mut cmd = script::LEAVE.call(&*keys);
    cmd.arg(store.manual_now()).arg(&keys.channel).arg(node.to_string());
    let results = store.servers.run_script("leave", ConnectionRole::Heartbeat, keys.slot, &script::LEAVE, &cmd).await;
    // Only now: while the node was on the idle list, a push could have sent it a wake.
    wakes::unsubscribe_node(store, node, &keys).await;
    results.map(drop)
}

/// Implements `PeerStore::nodes`.
pub(super) async fn nodes(store: &Redis) -> Result<Vec<NodeRecord>> {
    let queues = store.queue_names("nodes").await?;
    let requests = queues.iter().map(|queue| nodes_of_queue(store, queue));
    let mut all = futures_util::future::join_all(requests).await;
    all.push(peers::peer_records(store).await);
    let mut nodes: BTreeMap<NodeId, NodeRecord> = BTreeMap::new();
    for records in all {
        for node in records? {
            match nodes.get_mut(&node.id) {
                Some(known_queues) => {
                    known_queues.alive |= node.alive;
                    known_queues.held += node.held;
                    known_queues.held_by_queue.extend(node.held_by_queue);
                    known_queues.joined = known_queues.joined.min(node.joined);
                    known_queues.methods.extend(node.methods);
                }
                None => drop(nodes.insert(node.id, node)),
            }
        }
    }
    let mut nodes: Vec<NodeRecord> = nodes.into_values().collect();
    nodes.sort_by_key(|node| (node.joined, node.id));
    Ok(nodes)
}

async fn nodes_of_queue(store: &Redis, queue: &str) -> Result<Vec<NodeRecord>> {
    let keys = store.keys(queue);
    let mut cmd = script::NODES.call(&*keys);
    cmd.arg(store.manual_now());
    let mut reply = store.run_script("nodes", ConnectionRole::Client, keys.slot, &script::NODES, &cmd).await?;
    let mut nodes = Vec::new();
    for mut row in reply.rows()? {
        let (id, description, expires, held_count) = (row.text()?, row.text()?, row.int()?, row.int()?);
        let (Ok(id), Some((times, description))) = (id.parse(), description.split_at_checked(TIMES_BYTES)) else {
            continue;
        };
        // A node that has claimed since it was forgotten, and has not sent a heartbeat yet.
        if description.is_empty() {
            continue;
        }
        let description: NodeDescription = serde_json::from_str(description).unwrap_or_default();
        let held = u64::try_from(held_count).unwrap_or(0);
        nodes.push(NodeRecord {
            id,
            host: description.profile.host.clone().unwrap_or(description.host),
            pid: description.profile.pid.unwrap_or(description.pid),
            queues: description.queues,
            joined: from_micros(times.get(..16).and_then(|joined| joined.parse().ok()).unwrap_or(0)),
            alive: expires >= reply.now,
            held,
            held_by_queue: BTreeMap::from([(queue.to_owned(), held)])
                .into_iter()
                .filter(|(_, held)| *held > 0)
                .collect(),
            profile: description.profile,
            methods: Vec::new(),
        });
    }
    Ok(nodes)
}
