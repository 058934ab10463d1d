//! Wakes: the channels on which a node receives wakes and delivered jobs, subscribed on the connection that claims.

use std::sync::Arc;

use redis::Value;
use tokio::sync::mpsc;

use crate::error::Result;
use crate::node::NodeId;
use crate::store::Wake;
use crate::store::redis::Redis;
use crate::store::redis::conn::ConnectionRole;
use crate::store::redis::jobs::{claim, push};
use crate::store::redis::keys::QueueKeys;
use crate::store::redis::subscriptions::{Subscriber, Subscription};

/// Maximum buffered wakes per node; more carry no information.
const WAKES_MAX: usize = 256;
/// Maximum idle nodes to try until one is subscribed.
const WAKE_TRIES_MAX: usize = 3;
/// Maximum kinds for which jobs are delivered to a node; for other kinds it is woken.
const DELIVERED_KINDS_MAX: usize = 100;

/// Receives the wakes of a node in a queue.
struct WakeSubscriber {
    queue: String,
    sender: mpsc::Sender<Wake>,
}

/// Receives the jobs that pushes deliver to a node in a queue.
struct JobSubscriber {
    queue: String,
    sender: mpsc::Sender<Wake>,
}

impl Subscriber for WakeSubscriber {
    fn receive(&self, message: &[u8]) {
        let wake = if message == b"heartbeat" { Wake::Heartbeat } else { Wake::Queue(self.queue.clone()) };
        // A slow node has enough wakes.
        let _ = self.sender.try_send(wake);
    }

    fn note_gap(&self) {
        let _ = self.sender.try_send(Wake::Queue(self.queue.clone()));
    }

    fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }
}

impl Subscriber for JobSubscriber {
    fn receive(&self, message: &[u8]) {
        match claim::decode_delivered_job(&self.queue, message) {
            // A missed job shows in the held count of the node's heartbeat.
            Some(held) => drop(self.sender.try_send(Wake::Job(Box::new(held)))),
            // An unreadable message is still a job: the node must resync.
            None => self.note_gap(),
        }
    }

    fn note_gap(&self) {
        let _ = self.sender.try_send(Wake::Resync(self.queue.clone()));
    }

    fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }
}

/// Returns the subscriptions of a node in a queue.
fn subscriptions_of_node(store: &Redis, node: NodeId, keys: &QueueKeys) -> impl Iterator<Item = Arc<Subscription>> {
    [keys.wake_channel(node), keys.delivery_channel(node)].into_iter().filter_map(|name| store.subscriptions.get(&name))
}

/// Wakes a node without a subscribed connection: its next claim subscribes again.
pub(crate) fn report_gaps(store: &Redis, node: NodeId, keys: &QueueKeys) {
    subscriptions_of_node(store, node, keys)
        .for_each(|subscription| subscription.report_gap_unless_subscribed(&store.servers));
}

/// Removes the subscriptions of a node in a queue.
pub(crate) async fn unsubscribe_node(store: &Redis, node: NodeId, keys: &QueueKeys) {
    store.subscriptions.leave(&keys.wake_channel(node), node).await;
    store.subscriptions.leave(&keys.delivery_channel(node), node).await;
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
        // A lost wake is harmless: heartbeats find the work too.
        match store.servers.send_idempotent("push", ConnectionRole::Client, keys.slot, &publish).await {
            Ok(Value::Int(0)) => {}
            Ok(_) | Err(_) => return,
        }
        let mut next = redis::cmd("ZPOPMAX");
        next.arg(&keys.idle);
        // Sent once: repeated after a lost reply, it would remove a second node and leave the first without a wake.
        node = store
            .servers
            .send_once("push", ConnectionRole::Client, keys.slot, &next)
            .await
            .ok()
            .and_then(push::popped_member);
    }
}

/// Implements `JobStore::subscribe_wakes`.
pub(crate) async fn subscribe_wakes(store: &Redis, node: NodeId) -> Result<mpsc::Receiver<Wake>> {
    let (sender, receiver) = mpsc::channel(WAKES_MAX);
    for queue in store.queues_of_node(node) {
        let keys = store.keys(&queue);
        let channel = keys.wake_channel(node);
        let subscriber = Arc::new(WakeSubscriber { queue, sender: sender.clone() });
        let channels = vec![channel.clone()];
        let subscription = Subscription::new(ConnectionRole::Worker, keys.slot, channels, node, subscriber);
        store.subscriptions.replace(&channel, subscription);
    }
    store.state().wake_senders.insert(node, sender);
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

/// Implements `JobStore::accept_deliveries`. Each accepted kind is a channel, so a push learns by publishing.
pub(crate) async fn accept_deliveries(store: &Redis, node: NodeId, kinds: Option<Arc<[String]>>) -> Result<()> {
    let sender = store.state().wake_senders.get(&node).cloned();
    let Some(sender) = sender else {
        return Ok(());
    };
    for queue in store.queues_of_node(node) {
        let keys = store.keys(&queue);
        if store.subscriptions.get(&keys.wake_channel(node)).is_none() {
            continue;
        }
        let name = keys.delivery_channel(node);
        let channels = match &kinds {
            Some(kinds) => kinds.iter().take(DELIVERED_KINDS_MAX).map(|kind| format!("{name}{kind}")).collect(),
            None => vec![name.clone()],
        };
        let subscriber = Arc::new(JobSubscriber { queue, sender: sender.clone() });
        let subscription = Subscription::new(ConnectionRole::Worker, keys.slot, channels, node, subscriber);
        store.subscriptions.replace(&name, subscription);
    }
    ensure_subscribed_in_all(store, node).await
}

/// Subscribes a node in a queue on the connection that claims, unless that connection is still subscribed.
///
/// Runs before the claim that puts the node on the idle list, so that every listed node receives its wakes.
pub(crate) async fn ensure_subscribed(store: &Redis, node: NodeId, keys: &QueueKeys) -> Result<()> {
    for subscription in subscriptions_of_node(store, node, keys) {
        subscription.ensure(&store.servers).await?;
    }
    Ok(())
}
