//! Job completions: each queue has a channel that announces finished jobs while any node waits for one.
//!
//! A waiting node marks the queue's `conf` for a while at a time; a settle reads the mark along with its other fields.
//! The channel arrives on the heartbeat connection, and each completion goes to the nodes that wait.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

use redis::{PushInfo, PushKind, Value};

use crate::clock::micros;
use crate::error::{Error, Result};
use crate::job::JobId;
use crate::node::NodeId;
use crate::store::redis::conn::ConnectionRole;
use crate::store::redis::keys::QueueKeys;
use crate::store::redis::peers::messages::MessageSubscriptions;
use crate::store::redis::{Redis, reply, script};
use crate::store::{COMPLETION_CHECK_MAX, COMPLETION_QUEUES_MAX, COMPLETION_WATCH_DURATION, Notification};
use crate::sync::LockExt;

/// Number of queues handled concurrently.
const QUEUES_AT_ONCE: usize = 50;
/// Length of a job id in bytes.
pub(crate) const JOB_ID_BYTES: usize = 16;

/// The channels and the nodes that wait on them, shared with the connections that receive messages.
#[derive(Clone)]
pub(crate) struct CompletionSubscriptions {
    messages: MessageSubscriptions,
    channels: Arc<Mutex<HashMap<String, CompletionSubscription>>>,
}

struct CompletionSubscription {
    slot: u16,
    /// The channels of the waiting nodes.
    node_channels: BTreeSet<String>,
    /// The generation of the subscribed connection; 0 if there is none.
    subscribed_generation: u64,
}

impl CompletionSubscriptions {
    pub(crate) fn new(messages: MessageSubscriptions) -> Self {
        CompletionSubscriptions { messages, channels: Arc::default() }
    }

    fn channels(&self) -> MutexGuard<'_, HashMap<String, CompletionSubscription>> {
        self.channels.lock_unpoisoned()
    }

    /// Handles a message that the server pushed.
    pub(crate) fn handle_push(&self, info: &PushInfo) {
        let mut channels = self.channels();
        if info.kind == PushKind::Disconnection {
            // Whichever connection it was: subscribing twice does no harm, and the nodes notice it on their own
            // channels.
            return channels.values_mut().for_each(|subscription| subscription.subscribed_generation = 0);
        }
        let Some(Value::BulkString(channel)) = info.data.first() else {
            return;
        };
        let Some(subscription) = std::str::from_utf8(channel).ok().and_then(|channel| channels.get_mut(channel)) else {
            return;
        };
        let notification = match (&info.kind, info.data.get(1)) {
            (PushKind::SMessage, Some(Value::BulkString(ids))) => {
                Notification::Completed(ids.chunks_exact(JOB_ID_BYTES).filter_map(reply::parse_job_id).collect())
            }
            // The slot has moved to another server: completions are missed until the next subscription.
            (PushKind::SUnsubscribe, _) => {
                subscription.subscribed_generation = 0;
                Notification::Gap
            }
            _ => return,
        };
        subscription.node_channels.iter().for_each(|node| self.messages.notify(node, notification.clone()));
    }

    /// Sets the channels of a node. Returns the channels on which no node waits any more.
    fn set_node_channels(&self, node: &str, wanted: &HashMap<String, u16>) -> Vec<(String, u16)> {
        let mut channels = self.channels();
        for (channel, slot) in wanted {
            let subscription =
                CompletionSubscription { slot: *slot, node_channels: BTreeSet::new(), subscribed_generation: 0 };
            channels.entry(channel.clone()).or_insert(subscription).node_channels.insert(node.to_owned());
        }
        let mut unused = Vec::new();
        channels.retain(|channel, subscription| {
            if !wanted.contains_key(channel) {
                subscription.node_channels.remove(node);
            }
            if subscription.node_channels.is_empty() {
                unused.push((channel.clone(), subscription.slot));
            }
            !subscription.node_channels.is_empty()
        });
        unused
    }
}

/// Implements `Store::watch_completions`.
pub(crate) async fn watch_completions(store: &Redis, node: NodeId, queues: &[String]) -> Result<()> {
    if queues.len() > COMPLETION_QUEUES_MAX {
        return Err(Error::invalid("queues", format!("must be at most {COMPLETION_QUEUES_MAX}")));
    }
    let keys: Vec<Arc<QueueKeys>> = queues.iter().map(|queue| store.keys(queue)).collect();
    let wanted = keys.iter().map(|keys| (keys.completions_channel(), keys.slot)).collect();
    for (channel, slot) in
        store.completion_subscriptions.set_node_channels(&store.peer_keys.node_channel(node), &wanted)
    {
        let mut cmd = redis::cmd("SUNSUBSCRIBE");
        cmd.arg(channel);
        store.servers.send_idempotent("watch_completions", ConnectionRole::Heartbeat, slot, &cmd).await?;
    }
    for batch in keys.chunks(QUEUES_AT_ONCE) {
        for watched in futures_util::future::join_all(batch.iter().map(|keys| watch_queue(store, keys))).await {
            watched?;
        }
    }
    Ok(())
}

/// Subscribes first, then marks the queue: the caller checks afterwards for jobs that finished in between.
async fn watch_queue(store: &Redis, keys: &QueueKeys) -> Result<()> {
    let channel = keys.completions_channel();
    let subscribed_generation = store
        .completion_subscriptions
        .channels()
        .get(&channel)
        .map_or(0, |subscription| subscription.subscribed_generation);
    if subscribed_generation == 0
        || subscribed_generation != store.servers.generation(ConnectionRole::Heartbeat, keys.slot)
    {
        let generation = store.servers.subscribe(keys.slot, &channel).await?;
        if let Some(subscription) = store.completion_subscriptions.channels().get_mut(&channel) {
            subscription.subscribed_generation = generation;
        }
    }
    let mut cmd = script::WATCH_COMPLETIONS.call(keys);
    cmd.arg(store.manual_now()).arg(micros(COMPLETION_WATCH_DURATION));
    store
        .run_script_idempotent(
            "watch_completions",
            ConnectionRole::Heartbeat,
            keys.slot,
            &script::WATCH_COMPLETIONS,
            &cmd,
        )
        .await
        .map(drop)
}

/// Implements `Store::completed_among`.
pub(crate) async fn completed_among(store: &Redis, queue: &str, ids: &[JobId]) -> Result<Vec<JobId>> {
    let keys = store.keys(queue);
    let mut cmd = script::COMPLETED_AMONG.call(&*keys);
    cmd.arg(store.manual_now());
    for id in ids.iter().take(COMPLETION_CHECK_MAX) {
        cmd.arg(id.as_bytes());
    }
    store.run_script("completed_among", ConnectionRole::Client, keys.slot, &script::COMPLETED_AMONG, &cmd).await?.ids()
}
