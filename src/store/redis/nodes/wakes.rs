//! Wakes: the channels on which a node receives wakes and delivered jobs, subscribed on the connection that claims.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use redis::{PushInfo, PushKind, Value};
use tokio::sync::mpsc;

use crate::error::Result;
use crate::node::NodeId;
use crate::store::Wake;
use crate::store::redis::Redis;
use crate::store::redis::conn::{ConnectionRole, SubscribedConnection};
use crate::store::redis::jobs::{claim, push};
use crate::store::redis::keys::QueueKeys;
use crate::sync::LockExt;

/// Maximum buffered wakes per node; more carry no information.
const WAKES_MAX: usize = 256;
/// Maximum idle nodes to try until one is subscribed.
const WAKE_TRIES_MAX: usize = 3;
/// Maximum kinds for which jobs are delivered to a node; for other kinds it is woken.
const DELIVERED_KINDS_MAX: usize = 100;

/// The subscriptions by channel, shared with the connections that receive messages.
#[derive(Clone, Default)]
pub(crate) struct WakeSubscriptions {
    channels: Arc<Mutex<HashMap<String, Arc<WakeSubscription>>>>,
}

struct WakeSubscription {
    queue: String,
    sender: mpsc::Sender<Wake>,
    /// Messages here are jobs, not wakes.
    delivers_jobs: bool,
    /// The channels to subscribe to.
    channels: Vec<String>,
    /// The connection subscribed to all of them, if any.
    connection: Mutex<Option<SubscribedConnection>>,
    /// Was subscribed before.
    was_subscribed: AtomicBool,
}

impl WakeSubscription {
    fn new(queue: String, sender: mpsc::Sender<Wake>, delivers_jobs: bool, channels: Vec<String>) -> Self {
        WakeSubscription {
            queue,
            sender,
            delivers_jobs,
            channels,
            connection: Mutex::default(),
            was_subscribed: AtomicBool::default(),
        }
    }

    fn connection(&self) -> MutexGuard<'_, Option<SubscribedConnection>> {
        self.connection.lock_unpoisoned()
    }

    fn is_subscribed(&self) -> bool {
        self.connection().as_ref().is_some_and(SubscribedConnection::is_current)
    }

    /// Returns the wake that covers missed messages.
    fn gap_wake(&self) -> Wake {
        let queue = self.queue.clone();
        if self.delivers_jobs { Wake::Resync(queue) } else { Wake::Queue(queue) }
    }

    fn parse_wake(&self, message: &[u8]) -> Wake {
        match message {
            // An unreadable message is still a job: the node must resync.
            message if self.delivers_jobs => claim::decode_delivered_job(&self.queue, message)
                .map_or_else(|| self.gap_wake(), |held| Wake::Job(Box::new(held))),
            b"heartbeat" => Wake::Heartbeat,
            _ => Wake::Queue(self.queue.clone()),
        }
    }
}

impl WakeSubscriptions {
    fn channels(&self) -> MutexGuard<'_, HashMap<String, Arc<WakeSubscription>>> {
        self.channels.lock_unpoisoned()
    }

    /// Handles a message that the server pushed.
    pub(crate) fn handle_push(&self, info: &PushInfo) {
        if info.kind == PushKind::Disconnection {
            // Whichever connection it was: subscribing twice does no harm, and a job delivered twice counts once.
            return self.channels().values().for_each(|subscription| *subscription.connection() = None);
        }
        let Some(Value::BulkString(channel)) = info.data.first() else {
            return;
        };
        let Some(subscription) =
            std::str::from_utf8(channel).ok().and_then(|channel| self.channels().get(channel).cloned())
        else {
            return;
        };
        match (&info.kind, info.data.get(1)) {
            (PushKind::SMessage, Some(Value::BulkString(message))) => {
                // A slow node has enough wakes; a missed job shows in the held count of its heartbeat.
                let _ = subscription.sender.try_send(subscription.parse_wake(message));
            }
            // The slot has moved to another server.
            (PushKind::SUnsubscribe, _) => *subscription.connection() = None,
            _ => {}
        }
    }

    /// Returns the subscriptions of a node in a queue.
    fn of_node(&self, node: NodeId, keys: &QueueKeys) -> Vec<Arc<WakeSubscription>> {
        let channels = self.channels();
        [keys.wake_channel(node), keys.job_channel(node)]
            .iter()
            .filter_map(|name| channels.get(name).cloned())
            .collect()
    }

    /// Wakes a node without a subscribed connection: its next claim subscribes again.
    pub(crate) fn report_gaps(&self, node: NodeId, keys: &QueueKeys) {
        for subscription in self.of_node(node, keys).iter().filter(|subscription| !subscription.is_subscribed()) {
            let _ = subscription.sender.try_send(subscription.gap_wake());
        }
    }

    /// Removes the subscriptions of a node.
    pub(crate) async fn unsubscribe_node(&self, node: NodeId, keys: &QueueKeys) {
        let removed = self.of_node(node, keys);
        {
            let mut channels = self.channels();
            channels.remove(&keys.job_channel(node));
            for channel in removed.iter().flat_map(|subscription| &subscription.channels) {
                channels.remove(channel);
            }
        }
        for subscription in removed {
            let connection = subscription.connection().take();
            if let Some(connection) = connection {
                connection.unsubscribe(&subscription.channels).await;
            }
        }
    }
}

/// Wakes a node that was just popped from the idle list; tries the next one if it is not subscribed.
pub(crate) async fn wake_listening_node(store: &Redis, keys: &QueueKeys, node: String) {
    let mut node = Some(node);
    for _ in 0..WAKE_TRIES_MAX {
        let Some(id) = node.take() else {
            return;
        };
        let mut publish = redis::cmd("SPUBLISH");
        publish.arg(format!("{}{id}", keys.channel)).arg("");
        // A lost wake is harmless: nodes also check once a second.
        match store.servers.send_idempotent("push", ConnectionRole::Client, keys.slot, &publish).await {
            Ok(Value::Int(0)) => {}
            Ok(_) | Err(_) => return,
        }
        let mut next = redis::cmd("ZPOPMAX");
        next.arg(&keys.idle);
        node = store
            .servers
            .send_idempotent("push", ConnectionRole::Client, keys.slot, &next)
            .await
            .ok()
            .and_then(push::popped_member);
    }
}

/// Implements `Store::subscribe_wakes`.
pub(crate) async fn subscribe_wakes(store: &Redis, node: NodeId) -> Result<mpsc::Receiver<Wake>> {
    let (sender, receiver) = mpsc::channel(WAKES_MAX);
    for queue in store.queues_of_node(node) {
        let keys = store.keys(&queue);
        let channel = keys.wake_channel(node);
        let subscription = WakeSubscription::new(queue, sender.clone(), false, vec![channel.clone()]);
        store.wake_subscriptions.channels().insert(channel, Arc::new(subscription));
    }
    ensure_subscribed_in_all(store, node).await?;
    Ok(receiver)
}

/// Subscribes in all queues of a node. A queue on an unreachable server is subscribed before the first claim in it.
/// Fails only if no queue can be subscribed.
async fn ensure_subscribed_in_all(store: &Redis, node: NodeId) -> Result<()> {
    let queues = store.queues_of_node(node);
    let subscribing = queues.iter().map(async |queue| ensure_subscribed(store, node, &store.keys(queue)).await);
    let (mut any_subscribed, mut last_error) = (queues.is_empty(), None);
    for (queue, result) in queues.iter().zip(futures_util::future::join_all(subscribing).await) {
        match result {
            Ok(()) => any_subscribed = true,
            Err(error) => {
                tracing::warn!(queue, %error, "cannot subscribe to the wakes of this queue yet");
                last_error = Some(error);
            }
        }
    }
    last_error.filter(|_| !any_subscribed).map_or(Ok(()), Err)
}

/// Implements `Store::accept_deliveries`. Each accepted kind is a channel, so a push learns by publishing.
pub(crate) async fn accept_deliveries(store: &Redis, node: NodeId, kinds: Option<Arc<[String]>>) -> Result<()> {
    for queue in store.queues_of_node(node) {
        let keys = store.keys(&queue);
        let Some(sender) = store
            .wake_subscriptions
            .channels()
            .get(&keys.wake_channel(node))
            .map(|subscription| subscription.sender.clone())
        else {
            continue;
        };
        let job_channel = keys.job_channel(node);
        let channels: Vec<String> = match &kinds {
            Some(kinds) => kinds.iter().take(DELIVERED_KINDS_MAX).map(|kind| format!("{job_channel}{kind}")).collect(),
            None => vec![job_channel.clone()],
        };
        let subscription = Arc::new(WakeSubscription::new(queue, sender, true, channels));
        let names = subscription.channels.iter().cloned().chain([job_channel]);
        store.wake_subscriptions.channels().extend(names.map(|name| (name, subscription.clone())));
    }
    ensure_subscribed_in_all(store, node).await
}

/// Subscribes a node in a queue on the connection that claims, unless that connection is still subscribed.
///
/// Runs before the claim that puts the node on the idle list, so that every listed node receives its wakes.
pub(crate) async fn ensure_subscribed(store: &Redis, node: NodeId, keys: &QueueKeys) -> Result<()> {
    for subscription in store
        .wake_subscriptions
        .of_node(node, keys)
        .iter()
        .filter(|subscription| !subscription.sender.is_closed() && !subscription.is_subscribed())
    {
        let connection = store.servers.subscribe_on_worker(keys.slot, &subscription.channels).await?;
        *subscription.connection() = connection;
        // Messages that were sent in between are lost.
        if subscription.was_subscribed.swap(true, Ordering::SeqCst) {
            let _ = subscription.sender.try_send(subscription.gap_wake());
        }
    }
    Ok(())
}
