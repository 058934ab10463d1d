//! Messages between peers: one channel per node, and one for broadcasts.
//!
//! Both arrive on the heartbeat connection, which no handler can block.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::Value;
use tokio::sync::mpsc;

use crate::error::Result;
use crate::node::NodeId;
use crate::store::redis::Redis;
use crate::store::redis::conn::ConnectionRole;
use crate::store::redis::locks;
use crate::store::redis::subscriptions::{Subscriber, Subscription};
use crate::store::{Notification, Recipient};
use crate::sync::LockExt;

/// Maximum buffered notifications per node.
const NOTIFICATIONS_MAX: usize = 1_024;
/// A subscribed connection that has been silent for this long may be broken, so it is pinged.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// The first byte of a message; scripts send lock turns.
const LOCK_TURN_TAG: u8 = b'T';
const MESSAGE_TAG: u8 = b'M';

/// Receives the notifications of a local node.
pub(crate) struct MessageSubscriber {
    sender: mpsc::Sender<Notification>,
    wants_broadcasts: bool,
    /// A notification was dropped because the buffer was full, or may have been missed.
    has_gap: AtomicBool,
    /// The channels on which the node waits for completions.
    pub(super) completion_channels: Mutex<BTreeSet<String>>,
}

impl MessageSubscriber {
    pub(super) fn notify(&self, notification: Notification) {
        if self.sender.try_send(notification).is_err() {
            self.note_gap();
        }
    }

    fn take_completion_channels(&self) -> BTreeSet<String> {
        std::mem::take(&mut self.completion_channels.lock_unpoisoned())
    }

    /// Reports missed notifications as soon as the buffer has room.
    fn report_gap(&self) {
        if self.has_gap.swap(false, Ordering::Relaxed) {
            self.notify(Notification::Gap);
        }
    }
}

impl Subscriber for MessageSubscriber {
    fn receive(&self, message: &[u8]) {
        if let Some(notification) = decode_notification(message) {
            self.notify(notification);
        }
    }

    fn note_gap(&self) {
        self.has_gap.store(true, Ordering::Relaxed);
    }

    fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }
}

/// Decodes a message; returns `None` for one of a newer version.
fn decode_notification(bytes: &[u8]) -> Option<Notification> {
    let (kind, rest) = bytes.split_first()?;
    match *kind {
        MESSAGE_TAG => Some(Notification::Message(rest.to_vec())),
        LOCK_TURN_TAG => {
            let (owner, name) = std::str::from_utf8(rest).ok()?.split_at_checked(36)?;
            Some(Notification::LockTurn { name: name.to_owned(), owner: locks::parse_owner(owner)? })
        }
        _ => None,
    }
}

/// Implements `PeerStore::subscribe_messages`.
pub(crate) fn subscribe_messages(store: &Redis, node: NodeId, all: bool) -> mpsc::Receiver<Notification> {
    let (sender, receiver) = mpsc::channel(NOTIFICATIONS_MAX);
    let subscriber = {
        let subscribers = &mut store.state().message_subscribers;
        let completion_channels = subscribers.remove(&node).map(|previous| previous.take_completion_channels());
        let subscriber = Arc::new(MessageSubscriber {
            sender,
            wants_broadcasts: all,
            has_gap: AtomicBool::default(),
            completion_channels: Mutex::new(completion_channels.unwrap_or_default()),
        });
        subscribers.insert(node, subscriber.clone());
        subscriber
    };
    let channel = store.peer_keys.node_channel(node);
    store.subscriptions.replace(&channel, subscription(store, &channel, node, subscriber));
    receiver
}

/// Returns a subscription of a node to one of the channels of peers.
fn subscription(store: &Redis, channel: &str, node: NodeId, subscriber: Arc<MessageSubscriber>) -> Subscription {
    Subscription::new(ConnectionRole::Heartbeat, store.peer_keys.slot, vec![channel.to_owned()], node, subscriber)
}

/// Subscribes a node, unless the subscribed connection is still open.
pub(crate) async fn ensure_subscribed(store: &Redis, node: NodeId) -> Result<()> {
    let Some(subscriber) = store.message_subscriber(node) else {
        return Ok(());
    };
    if subscriber.is_closed() {
        unsubscribe_node(store, node).await;
        return Ok(());
    }
    if let Some(own) = store.subscriptions.get(&store.peer_keys.node_channel(node)) {
        own.ensure(&store.servers).await?;
    }
    if subscriber.wants_broadcasts {
        let channel = &store.peer_keys.all;
        let broadcasts = subscription(store, channel, node, subscriber.clone());
        store.subscriptions.join(channel, broadcasts).ensure(&store.servers).await?;
    }
    subscriber.report_gap();
    Ok(())
}

/// Pings a connection that has been silent for long, then renews the subscriptions on it.
pub(crate) async fn ping_and_ensure_subscribed(store: &Redis, node: NodeId) -> Result<()> {
    if store.servers.time_since_received(store.peer_keys.slot).is_some_and(|silence| silence > SILENCE_MAX) {
        store
            .servers
            .send_idempotent("announce", ConnectionRole::Heartbeat, store.peer_keys.slot, &redis::cmd("PING"))
            .await?;
    }
    ensure_subscribed(store, node).await
}

/// Removes the subscriptions of a node.
pub(crate) async fn unsubscribe_node(store: &Redis, node: NodeId) {
    let Some(subscriber) = store.state().message_subscribers.remove(&node) else {
        return;
    };
    let own_channels = [store.peer_keys.node_channel(node), store.peer_keys.all.clone()];
    for channel in subscriber.take_completion_channels().into_iter().chain(own_channels) {
        store.subscriptions.leave(&channel, node).await;
    }
}

/// Returns the number of nodes that received a broadcast: the nodes of this process share a connection.
fn count_receivers(store: &Redis, connections: u64) -> u64 {
    let broadcasts = store.subscriptions.get(&store.peer_keys.all);
    match broadcasts.filter(|broadcasts| broadcasts.is_subscribed(&store.servers)) {
        Some(broadcasts) => connections.saturating_sub(1) + broadcasts.open_subscribers() as u64,
        None => connections,
    }
}

/// Implements `PeerStore::send`.
pub(crate) async fn send(store: &Redis, to: Recipient, message: &[u8]) -> Result<u64> {
    let channel = match to {
        Recipient::All => store.peer_keys.all.clone(),
        Recipient::Node(node) => store.peer_keys.node_channel(node),
    };
    let mut cmd = redis::cmd("SPUBLISH");
    cmd.arg(channel).arg([&[MESSAGE_TAG], message].concat());
    let receivers = store.servers.send_once("send", ConnectionRole::Client, store.peer_keys.slot, &cmd).await?;
    let connections = if let Value::Int(receivers) = receivers { receivers.unsigned_abs() } else { 0 };
    Ok(if to == Recipient::All { count_receivers(store, connections) } else { connections })
}
