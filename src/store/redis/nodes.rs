//! Nodes: their signs of life in each queue they work, and the wakes that reach them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{PushInfo, PushKind, Value};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::keys::QueueKeys;
use super::link::{Hearing, Way};
use super::{Redis, call, claim, hall, script};
use crate::clock::{from_micros, micros};
use crate::error::Result;
use crate::node::{Node, NodeId, NodeRecord};
use crate::store::{Beaten, Wake};

/// Wakes that may wait for a node: more would tell it nothing new.
const WAKES_MAX: usize = 256;

/// How many idle nodes are tried for one that listens.
const WAKE_TRIES: usize = 3;

/// What a node says about itself.
#[derive(Serialize, Deserialize)]
struct About {
    host: String,
    pid: u32,
    queues: Vec<String>,
}

/// Who listens to which channel, shared with the connections that hear them.
#[derive(Clone, Default)]
pub(super) struct Ears {
    channels: Arc<Mutex<HashMap<String, Ear>>>,
}

struct Ear {
    queue: String,
    wakes: mpsc::Sender<Wake>,
    /// What comes here are jobs, not mere wakes.
    jobs: bool,
    /// The connection that listens, if one does.
    by: Option<Hearing>,
}

impl Ear {
    fn hears(&self) -> bool {
        self.by.as_ref().is_some_and(Hearing::is_there)
    }

    /// Whatever was said meanwhile went unheard.
    fn missed(&self) -> Wake {
        let queue = self.queue.clone();
        if self.jobs { Wake::Missed(queue) } else { Wake::Queue(queue) }
    }

    fn read(&self, word: &[u8]) -> Wake {
        match word {
            b"beat" => Wake::Beat,
            // A word that cannot be read is of a job all the same.
            word if self.jobs => {
                claim::handed(&self.queue, word).map_or_else(|| self.missed(), |held| Wake::Job(Box::new(held)))
            }
            _ => Wake::Queue(self.queue.clone()),
        }
    }
}

impl Ears {
    fn channels(&self) -> MutexGuard<'_, HashMap<String, Ear>> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something has come that nobody asked for.
    pub(super) fn hear(&self, info: &PushInfo) {
        if info.kind == PushKind::Disconnection {
            // Whichever it was: to listen twice does no harm.
            return self.channels().values_mut().for_each(|ear| ear.by = None);
        }
        let Some(Value::BulkString(channel)) = info.data.first() else {
            return;
        };
        let Ok(channel) = std::str::from_utf8(channel) else {
            return;
        };
        let mut channels = self.channels();
        let Some(ear) = channels.get_mut(channel) else {
            return;
        };
        match (&info.kind, info.data.get(1)) {
            (PushKind::SMessage, Some(Value::BulkString(word))) => {
                // A node that does not keep up has wakes enough; its beat counts a job that it does not hear of.
                let _ = ear.wakes.try_send(ear.read(word));
            }
            // The slot has moved away.
            (PushKind::SUnsubscribe, _) => ear.by = None,
            _ => {}
        }
    }

    /// Tells those that nobody listens for: they look, and by that listen again.
    fn mention_gaps(&self, channels: &[String]) {
        let ears = self.channels();
        for ear in channels.iter().filter_map(|channel| ears.get(channel)).filter(|ear| !ear.hears()) {
            let _ = ear.wakes.try_send(ear.missed());
        }
    }
}

/// Tells an idle node that was just taken off the list to look; passes over those that no longer listen.
pub(super) async fn wake(store: &Redis, keys: &QueueKeys, node: String) {
    let mut node = Some(node);
    for _ in 0..WAKE_TRIES {
        let Some(id) = node.take() else {
            return;
        };
        let mut publish = redis::cmd("SPUBLISH");
        publish.arg(format!("{}{id}", keys.channel)).arg("");
        // A wake may be lost: the node looks once a second besides.
        match store.link.ask("push", Way::Door, keys.slot, &publish).await {
            Ok(Value::Int(0)) => {}
            Ok(_) | Err(_) => return,
        }
        let mut next = redis::cmd("ZPOPMAX");
        next.arg(&keys.idle);
        node = store.link.ask("push", Way::Door, keys.slot, &next).await.ok().and_then(super::push::first_of);
    }
}

/// `subscribe` of the contract.
pub(super) async fn subscribe(store: &Redis, node: NodeId) -> Result<mpsc::Receiver<Wake>> {
    let (sender, receiver) = mpsc::channel(WAKES_MAX);
    for queue in store.queues_of(node) {
        let keys = store.keys(&queue);
        let ear = Ear { queue, wakes: sender.clone(), jobs: false, by: None };
        store.ears.channels().insert(keys.channel_of(node), ear);
        listen(store, node, &keys).await?;
    }
    Ok(receiver)
}

/// `accept` of the contract.
pub(super) async fn accept(store: &Redis, node: NodeId) -> Result<()> {
    for queue in store.queues_of(node) {
        let keys = store.keys(&queue);
        {
            let mut channels = store.ears.channels();
            let Some(wakes) = channels.get(&keys.channel_of(node)).map(|ear| ear.wakes.clone()) else {
                continue;
            };
            channels.insert(keys.jobs_of(node), Ear { queue, wakes, jobs: true, by: None });
        }
        listen(store, node, &keys).await?;
    }
    Ok(())
}

/// Listens for a node in a queue where it claims, unless the connection that does is still there.
///
/// Before the claim that puts it on the list of those who wait: whoever finds it there can speak to it.
pub(super) async fn listen(store: &Redis, node: NodeId, keys: &QueueKeys) -> Result<()> {
    let unheard: Vec<String> = {
        let ears = store.ears.channels();
        let deaf = |channel: &String| ears.get(channel).is_some_and(|ear| !ear.wakes.is_closed() && !ear.hears());
        [keys.channel_of(node), keys.jobs_of(node)].into_iter().filter(deaf).collect()
    };
    for channel in unheard {
        let by = store.link.listen_at_work(keys.slot, &channel).await?;
        if let Some(ear) = store.ears.channels().get_mut(&channel) {
            ear.by = by;
        }
    }
    Ok(())
}

/// `beat` of the contract: one step in each queue that the node works or has claimed from.
pub(super) async fn beat(store: &Redis, node: &Node) -> Result<Beaten> {
    let known = store.works(node.id, &node.queues);
    let queues: BTreeSet<&str> = node.queues.iter().chain(&known).map(String::as_str).collect();
    let beats = queues.iter().map(|queue| beat_in(store, node, queue));
    let mut beaten = Beaten::default();
    for (queue, one) in queues.iter().zip(futures_util::future::join_all(beats).await) {
        // A shard that fails says nothing about the others.
        let one = match one {
            Ok(one) => one,
            Err(error) if beaten.unheard.len() + 1 == queues.len() => return Err(error),
            Err(error) => {
                tracing::warn!(queue, %error, "beat failed");
                beaten.unheard.push((*queue).to_owned());
                continue;
            }
        };
        beaten.held.extend(one.held);
        beaten.suspects.extend(one.suspects);
        beaten.ending.extend(one.ending);
        beaten.look.extend(one.look);
    }
    Ok(beaten)
}

async fn beat_in(store: &Redis, node: &Node, queue: &str) -> Result<Beaten> {
    let keys = store.keys(queue);
    let QueueKeys { conf, lease, since, idle, nodes, due, ready: [r0, r1, r2, r3], .. } = &*keys;
    let all = [conf, lease, since, idle, nodes, due, r0, r1, r2, r3];
    let mut cmd = call(&script::BEAT, &all);
    let about = About { host: crate::node::host(), pid: std::process::id(), queues: node.queues.clone() };
    let about = serde_json::to_string(&about).unwrap_or_default();
    cmd.arg(store.manual_now()).arg(node.id.to_string()).arg(micros(node.lease)).arg(about).arg(micros(node.beat()));
    let mut reply = store.reply("beat", store.link.run("beat", Way::Beat, keys.slot, &script::BEAT, &cmd).await?)?;
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
    store.names.put_after_beat(queue, store.manual_now()).await;
    store.ears.mention_gaps(&[keys.channel_of(node.id), keys.jobs_of(node.id)]);
    Ok(beaten)
}

/// `leave` of the contract.
pub(super) async fn leave(store: &Redis, node: NodeId) -> Result<()> {
    let queues = store.queues_of(node);
    let leaves = queues.iter().map(|queue| leave_in(store, node, queue));
    for left in futures_util::future::join_all(leaves).await {
        left?;
    }
    store.forget(node);
    Ok(())
}

async fn leave_in(store: &Redis, node: NodeId, queue: &str) -> Result<()> {
    let keys = store.keys(queue);
    for channel in [keys.channel_of(node), keys.jobs_of(node)] {
        store.ears.channels().remove(&channel);
    }
    let QueueKeys { conf, lease, since, idle, nodes, .. } = &*keys;
    let mut cmd = call(&script::LEAVE, &[conf, lease, since, idle, nodes]);
    cmd.arg(store.manual_now()).arg(&keys.channel).arg(node.to_string());
    store.link.run("leave", Way::Beat, keys.slot, &script::LEAVE, &cmd).await?;
    Ok(())
}

/// `nodes` of the contract.
pub(super) async fn nodes(store: &Redis) -> Result<Vec<NodeRecord>> {
    let queues = store.queues("nodes").await?;
    let asks = queues.iter().map(|queue| nodes_of(store, queue));
    let mut all = futures_util::future::join_all(asks).await;
    all.push(hall::guests(store).await);
    let mut nodes: BTreeMap<NodeId, NodeRecord> = BTreeMap::new();
    for some in all {
        for node in some? {
            match nodes.get_mut(&node.id) {
                Some(known) => {
                    known.alive |= node.alive;
                    known.held += node.held;
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
    let mut cmd = call(&script::NODES, &[&keys.conf, &keys.lease, &keys.nodes]);
    cmd.arg(store.manual_now());
    let mut reply = store.reply("nodes", store.link.run("nodes", Way::Door, keys.slot, &script::NODES, &cmd).await?)?;
    let mut nodes = Vec::new();
    for mut row in reply.rows()? {
        let (id, about, ends, holds) = (row.text()?, row.text()?, row.int()?, row.int()?);
        let (Ok(id), Some((joined, about))) = (id.parse(), about.split_at_checked(16)) else {
            continue;
        };
        let about: About =
            serde_json::from_str(about).unwrap_or(About { host: String::new(), pid: 0, queues: Vec::new() });
        nodes.push(NodeRecord {
            id,
            host: about.host,
            pid: about.pid,
            queues: about.queues,
            joined: from_micros(joined.parse().unwrap_or(0)),
            alive: ends >= reply.now,
            held: u64::try_from(holds).unwrap_or(0),
            methods: Vec::new(),
        });
    }
    Ok(nodes)
}
