//! Jobs that have ended: each queue has a channel on which they are told of while somebody waits for any.
//!
//! Who waits says so in the queue's `conf`, for a while at a time: a settle reads that beside what it reads anyway.
//! The channel is heard through the connection that beats, and what is heard goes to the node that asked for it.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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

/// Queues asked at a time.
const QUEUES_AT_ONCE: usize = 50;
/// How many bytes an id has.
pub(crate) const JOB_ID_BYTES: usize = 16;

/// Which channels are heard for whom, shared with the connections that hear.
#[derive(Clone)]
pub(crate) struct CompletionSubscriptions {
    messages: MessageSubscriptions,
    channels: Arc<Mutex<HashMap<String, CompletionSubscription>>>,
}

struct CompletionSubscription {
    slot: u16,
    /// The channels of the nodes that are told.
    node_channels: BTreeSet<String>,
    /// The connection that listens; 0 if none does.
    subscribed_generation: u64,
}

impl CompletionSubscriptions {
    pub(crate) fn new(voices: MessageSubscriptions) -> Self {
        CompletionSubscriptions { messages: voices, channels: Arc::default() }
    }

    fn channels(&self) -> MutexGuard<'_, HashMap<String, CompletionSubscription>> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something has come that nobody asked for.
    pub(crate) fn handle_push(&self, info: &PushInfo) {
        let mut channels = self.channels();
        if info.kind == PushKind::Disconnection {
            // Whichever it was: to listen twice does no harm, and the nodes learn of it from their own channels.
            return channels.values_mut().for_each(|watch| watch.subscribed_generation = 0);
        }
        let Some(Value::BulkString(channel)) = info.data.first() else {
            return;
        };
        let Some(watch) = std::str::from_utf8(channel).ok().and_then(|channel| channels.get_mut(channel)) else {
            return;
        };
        let heard = match (&info.kind, info.data.get(1)) {
            (PushKind::SMessage, Some(Value::BulkString(ids))) => {
                Notification::Completed(ids.chunks_exact(JOB_ID_BYTES).filter_map(reply::parse_job_id).collect())
            }
            // The slot has moved away: what is said there now goes unheard.
            (PushKind::SUnsubscribe, _) => {
                watch.subscribed_generation = 0;
                Notification::Gap
            }
            _ => return,
        };
        watch.node_channels.iter().for_each(|node| self.messages.notify(node, heard.clone()));
    }

    /// From now on this node is told of these channels and no others; answers those of which nobody is told any more.
    fn set_node_channels(&self, node: &str, wanted: &HashMap<String, u16>) -> Vec<(String, u16)> {
        let mut channels = self.channels();
        for (channel, slot) in wanted {
            let watch =
                CompletionSubscription { slot: *slot, node_channels: BTreeSet::new(), subscribed_generation: 0 };
            channels.entry(channel.clone()).or_insert(watch).node_channels.insert(node.to_owned());
        }
        let mut over = Vec::new();
        channels.retain(|channel, watch| {
            if !wanted.contains_key(channel) {
                watch.node_channels.remove(node);
            }
            if watch.node_channels.is_empty() {
                over.push((channel.clone(), watch.slot));
            }
            !watch.node_channels.is_empty()
        });
        over
    }
}

/// `watch_ends` of the contract.
pub(crate) async fn watch_completions(store: &Redis, node: NodeId, queues: &[String]) -> Result<()> {
    if queues.len() > COMPLETION_QUEUES_MAX {
        return Err(Error::invalid("queues", format!("more than {COMPLETION_QUEUES_MAX} whose ends are waited for")));
    }
    let keys: Vec<Arc<QueueKeys>> = queues.iter().map(|queue| store.keys(queue)).collect();
    let wanted = keys.iter().map(|keys| (keys.completions_channel(), keys.slot)).collect();
    for (channel, slot) in
        store.completion_subscriptions.set_node_channels(&store.peer_keys.node_channel(node), &wanted)
    {
        let mut cmd = redis::cmd("SUNSUBSCRIBE");
        cmd.arg(channel);
        store.servers.send_idempotent("watch_ends", ConnectionRole::Heartbeat, slot, &cmd).await?;
    }
    for some in keys.chunks(QUEUES_AT_ONCE) {
        for watched in futures_util::future::join_all(some.iter().map(|keys| watch_queue(store, keys))).await {
            watched?;
        }
    }
    Ok(())
}

/// First listens, then says that somebody does: what ends between is found by whoever looks after this.
async fn watch_queue(store: &Redis, keys: &QueueKeys) -> Result<()> {
    let channel = keys.completions_channel();
    let heard_by =
        store.completion_subscriptions.channels().get(&channel).map_or(0, |watch| watch.subscribed_generation);
    if heard_by == 0 || heard_by != store.servers.generation(ConnectionRole::Heartbeat, keys.slot) {
        let by = store.servers.subscribe(keys.slot, &channel).await?;
        if let Some(watch) = store.completion_subscriptions.channels().get_mut(&channel) {
            watch.subscribed_generation = by;
        }
    }
    let mut cmd = script::WATCH_COMPLETIONS.call(&*keys);
    cmd.arg(store.manual_now()).arg(micros(COMPLETION_WATCH_DURATION));
    let value = store
        .servers
        .run_script_idempotent("watch_ends", ConnectionRole::Heartbeat, keys.slot, &script::WATCH_COMPLETIONS, &cmd)
        .await?;
    store.parse_reply("watch_ends", value).map(drop)
}

/// `ended` of the contract.
pub(crate) async fn completed_among(store: &Redis, queue: &str, ids: &[JobId]) -> Result<Vec<JobId>> {
    let keys = store.keys(queue);
    let mut cmd = script::COMPLETED_AMONG.call(&*keys);
    cmd.arg(store.manual_now());
    for id in ids.iter().take(COMPLETION_CHECK_MAX) {
        cmd.arg(id.as_bytes());
    }
    let value =
        store.servers.run_script("ended", ConnectionRole::Client, keys.slot, &script::COMPLETED_AMONG, &cmd).await?;
    store.parse_reply("ended", value)?.ids()
}
