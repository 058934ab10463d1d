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
use crate::node::{Node, NodeId, NodeRecord, Takes};
use crate::store::Beaten;
use crate::store::redis::conn::Way;
use crate::store::redis::{Redis, peers, script};

/// Once one queue has been heard of, the others are waited for during this part of a beat.
const IN_TIME: f64 = 0.8;

/// What a node says about itself.
#[derive(Default, Serialize, Deserialize)]
struct About {
    host: String,
    pid: u32,
    queues: Vec<String>,
    #[serde(default)]
    takes: Takes,
}

/// `beat` of the contract: one step in each queue that the node works or has claimed from.
pub(super) async fn beat(store: &Redis, node: &Node) -> Result<Beaten> {
    let known = store.works(node.id, &node.queues);
    let queues: BTreeSet<&str> = node.queues.iter().chain(&known).map(String::as_str).collect();
    let mut beats: FuturesUnordered<_> =
        queues.iter().map(async |queue| (*queue, beat_in(store, node, queue).await)).collect();
    let (mut beaten, mut unheard, mut failed) = (Beaten::default(), queues.clone(), None);
    let mut in_time = std::pin::pin!(tokio::time::sleep(node.beat().mul_f64(IN_TIME)));
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
                beaten.ending.extend(one.ending);
                beaten.look.extend(one.look);
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
    beaten.unheard = unheard.into_iter().map(str::to_owned).collect();
    Ok(beaten)
}

async fn beat_in(store: &Redis, node: &Node, queue: &str) -> Result<Beaten> {
    let keys = store.keys(queue);
    let mut cmd = script::HEARTBEAT.call(&*keys);
    let (queues, takes) = (node.queues.clone(), node.takes.clone());
    let about = About { host: crate::node::host(), pid: std::process::id(), queues, takes };
    let about = serde_json::to_string(&about).unwrap_or_default();
    cmd.arg(store.manual_now()).arg(node.id.to_string()).arg(micros(node.lease)).arg(about).arg(micros(node.beat()));
    let mut reply =
        store.reply("beat", store.link.run("beat", Way::Beat, keys.slot, &script::HEARTBEAT, &cmd).await?)?;
    let mut beaten = Beaten::default();
    let holds = u64::try_from(reply.int()?).unwrap_or(0);
    if holds > 0 {
        beaten.held.push((queue.to_owned(), holds));
    }
    if reply.int()? == 1 {
        beaten.look.push(queue.to_owned());
    }
    for mut other in reply.rows()? {
        let (id, left) = (other.text()?, other.int()?);
        match (id.parse(), u64::try_from(left).unwrap_or(0)) {
            (Ok(id), 0) => beaten.suspects.push((id, queue.to_owned())),
            (Ok(id), left) => beaten.ending.push((id, queue.to_owned(), Duration::from_micros(left))),
            (Err(_), _) => {}
        }
    }
    let mark = reply.int()?;
    if mark > 0 {
        keys.deferred_mark.store(mark, Ordering::Relaxed);
        beaten.look.extend(Some(queue.to_owned()).filter(|_| store.has_to_look(node.id, &keys)));
    }
    // Nobody forgets a node that beats: the server has lost what it had, and perhaps the queue's name too.
    if reply.int()? == 1 {
        store.names.doubt(queue);
    }
    store.names.put_after_beat(queue, store.manual_now()).await;
    store.ears.mention_gaps(node.id, &keys);
    Ok(beaten)
}

/// `leave` of the contract.
pub(super) async fn leave(store: &Redis, node: NodeId) -> Result<()> {
    let queues = store.queues_of(node);
    let leaves = queues.iter().map(|queue| leave_in(store, node, queue));
    let left = futures_util::future::join_all(leaves).await;
    store.forget(node);
    left.into_iter().collect()
}

async fn leave_in(store: &Redis, node: NodeId, queue: &str) -> Result<()> {
    let keys = store.keys(queue);
    let mut cmd = script::LEAVE.call(&*keys);
    cmd.arg(store.manual_now()).arg(&keys.channel).arg(node.to_string());
    let left = store.link.run("leave", Way::Beat, keys.slot, &script::LEAVE, &cmd).await;
    // Only now: as long as it was on the list of those who wait, somebody could speak to it.
    store.ears.close(node, &keys).await;
    left.map(drop)
}

/// `nodes` of the contract.
pub(super) async fn nodes(store: &Redis) -> Result<Vec<NodeRecord>> {
    let queues = store.queues("nodes").await?;
    let asks = queues.iter().map(|queue| nodes_of(store, queue));
    let mut all = futures_util::future::join_all(asks).await;
    all.push(peers::guests(store).await);
    let mut nodes: BTreeMap<NodeId, NodeRecord> = BTreeMap::new();
    for some in all {
        for node in some? {
            match nodes.get_mut(&node.id) {
                Some(known) => {
                    known.alive |= node.alive;
                    known.held += node.held;
                    known.holds.extend(node.holds);
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

async fn nodes_of(store: &Redis, queue: &str) -> Result<Vec<NodeRecord>> {
    let keys = store.keys(queue);
    let mut cmd = script::NODES.call(&*keys);
    cmd.arg(store.manual_now());
    let mut reply = store.reply("nodes", store.link.run("nodes", Way::Door, keys.slot, &script::NODES, &cmd).await?)?;
    let mut nodes = Vec::new();
    for mut row in reply.rows()? {
        let (id, about, ends, holds) = (row.text()?, row.text()?, row.int()?, row.int()?);
        let (Ok(id), Some((joined, about))) = (id.parse(), about.split_at_checked(16)) else {
            continue;
        };
        let about: About = serde_json::from_str(about).unwrap_or_default();
        let held = u64::try_from(holds).unwrap_or(0);
        nodes.push(NodeRecord {
            id,
            host: about.host,
            pid: about.pid,
            queues: about.queues,
            joined: from_micros(joined.parse().unwrap_or(0)),
            alive: ends >= reply.now,
            held,
            holds: BTreeMap::from([(queue.to_owned(), held)]).into_iter().filter(|(_, held)| *held > 0).collect(),
            takes: about.takes,
            methods: Vec::new(),
        });
    }
    Ok(nodes)
}
