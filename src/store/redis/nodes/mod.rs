//! Nodes: their signs of life in each queue they work.

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

/// Once one queue has been heard of, the others are waited for during this part of a beat.
const HEARTBEAT_WAIT_RATIO: f64 = 0.8;

/// What a node says about itself.
#[derive(Default, Serialize, Deserialize)]
struct NodeDescription {
    host: String,
    pid: u32,
    queues: Vec<String>,
    #[serde(default)]
    profile: NodeProfile,
}

/// `beat` of the contract: one step in each queue that the node works or has claimed from.
pub(super) async fn heartbeat(store: &Redis, node: &Node) -> Result<HeartbeatReply> {
    let known = store.add_node_queues(node.id, &node.queues);
    let queues: BTreeSet<&str> = node.queues.iter().chain(&known).map(String::as_str).collect();
    let mut beats: FuturesUnordered<_> =
        queues.iter().map(async |queue| (*queue, heartbeat_in_queue(store, node, queue).await)).collect();
    let (mut beaten, mut unheard, mut failed) = (HeartbeatReply::default(), queues.clone(), None);
    let mut in_time = std::pin::pin!(tokio::time::sleep(node.heartbeat_interval().mul_f64(HEARTBEAT_WAIT_RATIO)));
    loop {
        let answer = tokio::select! {
            answer = beats.next() => answer,
            () = &mut in_time, if unheard.len() < queues.len() => None,
        };
        // A shard that fails or hangs says nothing about the others.
        match answer {
            Some((queue, Ok(one))) => {
                unheard.remove(queue);
                beaten.held.extend(one.held);
                beaten.suspects.extend(one.suspects);
                beaten.expiring.extend(one.expiring);
                beaten.queues_to_check.extend(one.queues_to_check);
            }
            Some((queue, Err(error))) => {
                tracing::warn!(queue, %error, "beat failed");
                failed = Some(error);
            }
            None => break,
        }
    }
    if let Some(error) = failed.filter(|_| unheard.len() == queues.len()) {
        return Err(error);
    }
    beaten.unreachable = unheard.into_iter().map(str::to_owned).collect();
    Ok(beaten)
}

async fn heartbeat_in_queue(store: &Redis, node: &Node, queue: &str) -> Result<HeartbeatReply> {
    let keys = store.keys(queue);
    let mut cmd = script::HEARTBEAT.call(&*keys);
    let (queues, takes) = (node.queues.clone(), node.profile.clone());
    let about = NodeDescription { host: crate::node::host_name(), pid: std::process::id(), queues, profile: takes };
    let about = serde_json::to_string(&about).unwrap_or_default();
    cmd.arg(store.manual_now())
        .arg(node.id.to_string())
        .arg(micros(node.lease))
        .arg(about)
        .arg(micros(node.heartbeat_interval()));
    let mut reply = store.parse_reply(
        "beat",
        store.servers.run_script("beat", ConnectionRole::Heartbeat, keys.slot, &script::HEARTBEAT, &cmd).await?,
    )?;
    let mut beaten = HeartbeatReply::default();
    let holds = u64::try_from(reply.int()?).unwrap_or(0);
    if holds > 0 {
        beaten.held.push((queue.to_owned(), holds));
    }
    if reply.int()? == 1 {
        beaten.queues_to_check.push(queue.to_owned());
    }
    for mut other in reply.rows()? {
        let (id, left) = (other.text()?, other.int()?);
        match (id.parse(), u64::try_from(left).unwrap_or(0)) {
            (Ok(id), 0) => beaten.suspects.push((id, queue.to_owned())),
            (Ok(id), left) => beaten.expiring.push((id, queue.to_owned(), Duration::from_micros(left))),
            (Err(_), _) => {}
        }
    }
    let mark = reply.int()?;
    if mark > 0 {
        keys.deferred_mark.store(mark, Ordering::Relaxed);
        beaten.queues_to_check.extend(Some(queue.to_owned()).filter(|_| store.has_unchecked_deferrals(node.id, &keys)));
    }
    // Nobody forgets a node that beats: the server has lost what it had, and perhaps the queue's name too.
    if reply.int()? == 1 {
        store.queue_registry.mark_uncertain(queue);
    }
    store.queue_registry.register_after_heartbeat(queue, store.manual_now()).await;
    store.wake_subscriptions.report_gaps(node.id, &keys);
    Ok(beaten)
}

/// `leave` of the contract.
pub(super) async fn leave(store: &Redis, node: NodeId) -> Result<()> {
    let queues = store.queues_of_node(node);
    let leaves = queues.iter().map(|queue| leave_queue(store, node, queue));
    let left = futures_util::future::join_all(leaves).await;
    store.forget_node(node);
    left.into_iter().collect()
}

async fn leave_queue(store: &Redis, node: NodeId, queue: &str) -> Result<()> {
    let keys = store.keys(queue);
    let mut cmd = script::LEAVE.call(&*keys);
    cmd.arg(store.manual_now()).arg(&keys.channel).arg(node.to_string());
    let left = store.servers.run_script("leave", ConnectionRole::Heartbeat, keys.slot, &script::LEAVE, &cmd).await;
    // Only now: as long as it was on the list of those who wait, somebody could speak to it.
    store.wake_subscriptions.unsubscribe_node(node, &keys).await;
    left.map(drop)
}

/// `nodes` of the contract.
pub(super) async fn nodes(store: &Redis) -> Result<Vec<NodeRecord>> {
    let queues = store.queue_names("nodes").await?;
    let asks = queues.iter().map(|queue| nodes_of_queue(store, queue));
    let mut all = futures_util::future::join_all(asks).await;
    all.push(peers::peer_records(store).await);
    let mut nodes: BTreeMap<NodeId, NodeRecord> = BTreeMap::new();
    for some in all {
        for node in some? {
            match nodes.get_mut(&node.id) {
                Some(known) => {
                    known.alive |= node.alive;
                    known.held += node.held;
                    known.held_by_queue.extend(node.held_by_queue);
                    known.joined = known.joined.min(node.joined);
                    known.methods.extend(node.methods);
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
    let mut reply = store.parse_reply(
        "nodes",
        store.servers.run_script("nodes", ConnectionRole::Client, keys.slot, &script::NODES, &cmd).await?,
    )?;
    let mut nodes = Vec::new();
    for mut row in reply.rows()? {
        let (id, about, ends, holds) = (row.text()?, row.text()?, row.int()?, row.int()?);
        let (Ok(id), Some((joined, about))) = (id.parse(), about.split_at_checked(16)) else {
            continue;
        };
        let about: NodeDescription = serde_json::from_str(about).unwrap_or_default();
        let held = u64::try_from(holds).unwrap_or(0);
        nodes.push(NodeRecord {
            id,
            host: about.host,
            pid: about.pid,
            queues: about.queues,
            joined: from_micros(joined.parse().unwrap_or(0)),
            alive: ends >= reply.now,
            held,
            held_by_queue: BTreeMap::from([(queue.to_owned(), held)])
                .into_iter()
                .filter(|(_, held)| *held > 0)
                .collect(),
            profile: about.profile,
            methods: Vec::new(),
        });
    }
    Ok(nodes)
}
