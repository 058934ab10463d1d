//! Messages between peers: one channel per node, and one for broadcasts.
//!
//! Both arrive on the heartbeat connection, which no handler can block.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use redis::{PushInfo, PushKind, Value};
use tokio::sync::mpsc;

use crate::error::Result;
use crate::node::NodeId;
use crate::store::redis::Redis;
use crate::store::redis::conn::ConnectionRole;
use crate::store::redis::keys::PeerKeys;
use crate::store::redis::locks;
use crate::store::{Notification, Recipient};
use crate::sync::LockExt;

/// Maximum buffered notifications per node.
const NOTIFICATIONS_MAX: usize = 1_024;
/// A subscribed connection that has been silent for this long may be broken, so it is pinged.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// The first byte of a message; scripts send lock turns.
const LOCK_TURN_TAG: u8 = b'T';
const MESSAGE_TAG: u8 = b'M';

/// The subscriptions of local nodes, shared with the connections that receive messages.
#[derive(Clone)]
pub(crate) struct MessageSubscriptions {
    /// The channel for broadcasts.
    broadcast_channel: Arc<str>,
    subscribers: Arc<Mutex<MessageSubscribers>>,
}

#[derive(Default)]
struct MessageSubscribers {
    /// By channel.
    by_channel: HashMap<String, MessageSubscriber>,
    /// The generation of the connection subscribed to broadcasts; 0 if there is none.
    broadcast_generation: u64,
}

struct MessageSubscriber {
    sender: mpsc::Sender<Notification>,
    /// Also receives broadcasts.
    wants_broadcasts: bool,
    /// The generation of the connection subscribed to its channel; 0 if there is none.
    subscribed_generation: u64,
    /// Was subscribed before: after a new connection, messages may have been missed.
    was_subscribed: bool,
    /// A notification was dropped because the buffer was full.
    has_gap: bool,
}

impl MessageSubscriber {
    fn notify(&mut self, notification: Notification) {
        self.has_gap |= self.sender.try_send(notification).is_err();
    }

    /// Reports missed notifications as soon as the buffer has room.
    fn report_gap(&mut self) {
        if self.has_gap {
            self.has_gap = self.sender.try_send(Notification::Gap).is_err();
        }
    }
}

impl MessageSubscriptions {
    pub(crate) fn new(peer_keys: &PeerKeys) -> Self {
        MessageSubscriptions { broadcast_channel: peer_keys.all.as_str().into(), subscribers: Arc::default() }
    }

    fn subscribers(&self) -> MutexGuard<'_, MessageSubscribers> {
        self.subscribers.lock_unpoisoned()
    }

    /// Handles a message that the server pushed.
    pub(crate) fn handle_push(&self, info: &PushInfo) {
        if info.kind == PushKind::Disconnection {
            // Whichever connection it was: subscribing twice does no harm.
            return self.subscribers().mark_all_unsubscribed();
        }
        let Some(Value::BulkString(channel)) = info.data.first() else {
            return;
        };
        let is_broadcast = channel == self.broadcast_channel.as_bytes();
        let mut subscribers = self.subscribers();
        let subscriber = std::str::from_utf8(channel).ok().and_then(|channel| subscribers.by_channel.get_mut(channel));
        match (&info.kind, info.data.get(1)) {
            (PushKind::SMessage, Some(Value::BulkString(bytes))) => {
                let Some(notification) = decode_notification(bytes) else {
                    return;
                };
                match subscriber {
                    Some(subscriber) => subscriber.notify(notification),
                    None if is_broadcast => {
                        subscribers.broadcast_subscribers().for_each(|other| other.notify(notification.clone()))
                    }
                    None => {}
                }
            }
            // The slot has moved to another server.
            (PushKind::SUnsubscribe, _) => match subscriber {
                Some(subscriber) => subscriber.subscribed_generation = 0,
                None if is_broadcast => subscribers.broadcast_generation = 0,
                None => {}
            },
            _ => {}
        }
    }

    /// Notifies the local node with this channel, if any.
    pub(crate) fn notify(&self, channel: &str, notification: Notification) {
        if let Some(subscriber) = self.subscribers().by_channel.get_mut(channel) {
            subscriber.notify(notification);
        }
    }

    /// Returns the number of nodes that received a broadcast: the nodes of this process share a connection.
    fn count_receivers(&self, connections: u64) -> u64 {
        let subscribers = self.subscribers();
        let receives = |subscriber: &&MessageSubscriber| {
            subscriber.wants_broadcasts && subscriber.subscribed_generation != 0 && !subscriber.sender.is_closed()
        };
        let local = subscribers.by_channel.values().filter(receives).count() as u64;
        if subscribers.broadcast_generation == 0 { connections } else { connections.saturating_sub(1) + local }
    }
}

impl MessageSubscribers {
    /// Returns the subscribers that receive broadcasts.
    fn broadcast_subscribers(&mut self) -> impl Iterator<Item = &mut MessageSubscriber> {
        self.by_channel.values_mut().filter(|subscriber| subscriber.wants_broadcasts)
    }

    fn mark_all_unsubscribed(&mut self) {
        self.broadcast_generation = 0;
        self.by_channel.values_mut().for_each(|subscriber| subscriber.subscribed_generation = 0);
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

/// Implements `Store::subscribe_messages`.
pub(crate) fn subscribe_messages(store: &Redis, node: NodeId, all: bool) -> mpsc::Receiver<Notification> {
    let (sender, receiver) = mpsc::channel(NOTIFICATIONS_MAX);
    let subscriber = MessageSubscriber {
        sender,
        wants_broadcasts: all,
        subscribed_generation: 0,
        was_subscribed: false,
        has_gap: false,
    };
    store.message_subscriptions.subscribers().by_channel.insert(store.peer_keys.node_channel(node), subscriber);
    receiver
}

/// Subscribes a node, unless the subscribed connection is still open.
pub(crate) async fn ensure_subscribed(store: &Redis, node: NodeId) -> Result<()> {
    let (channel, slot) = (store.peer_keys.node_channel(node), store.peer_keys.slot);
    let generation = store.servers.generation(ConnectionRole::Heartbeat, slot);
    let (subscribed_generation, all, broadcast_generation, closed) = {
        let subscribers = store.message_subscriptions.subscribers();
        let Some(subscriber) = subscribers.by_channel.get(&channel) else {
            return Ok(());
        };
        (
            subscriber.subscribed_generation,
            subscriber.wants_broadcasts,
            subscribers.broadcast_generation,
            subscriber.sender.is_closed(),
        )
    };
    if closed {
        return unsubscribe_node(store, node).await;
    }
    if generation == 0 || subscribed_generation != generation {
        let generation = store.servers.subscribe(slot, &channel).await?;
        if let Some(subscriber) = store.message_subscriptions.subscribers().by_channel.get_mut(&channel) {
            subscriber.subscribed_generation = generation;
            subscriber.has_gap |= subscriber.was_subscribed;
            subscriber.was_subscribed = true;
        }
    }
    if all && (generation == 0 || broadcast_generation != generation) {
        let generation = store.servers.subscribe(slot, &store.message_subscriptions.broadcast_channel).await?;
        store.message_subscriptions.subscribers().broadcast_generation = generation;
    }
    if let Some(subscriber) = store.message_subscriptions.subscribers().by_channel.get_mut(&channel) {
        subscriber.report_gap();
    }
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
pub(crate) async fn unsubscribe_node(store: &Redis, node: NodeId) -> Result<()> {
    let channel = store.peer_keys.node_channel(node);
    let mut channels = Vec::new();
    {
        let mut subscribers = store.message_subscriptions.subscribers();
        channels.extend(
            subscribers
                .by_channel
                .remove(&channel)
                .filter(|subscriber| subscriber.subscribed_generation != 0)
                .map(|_| channel.as_str()),
        );
        if subscribers.broadcast_subscribers().next().is_none()
            && std::mem::take(&mut subscribers.broadcast_generation) != 0
        {
            channels.push(&store.message_subscriptions.broadcast_channel);
        }
    }
    for channel in channels {
        let mut cmd = redis::cmd("SUNSUBSCRIBE");
        cmd.arg(channel);
        store.servers.send_idempotent("withdraw", ConnectionRole::Heartbeat, store.peer_keys.slot, &cmd).await?;
    }
    Ok(())
}

/// Implements `Store::send`.
pub(crate) async fn send(store: &Redis, to: Recipient, message: &[u8]) -> Result<u64> {
    let channel = match to {
        Recipient::All => store.peer_keys.all.clone(),
        Recipient::Node(node) => store.peer_keys.node_channel(node),
    };
    let mut cmd = redis::cmd("SPUBLISH");
    cmd.arg(channel).arg([&[MESSAGE_TAG], message].concat());
    let receivers = store.servers.send_once("send", ConnectionRole::Client, store.peer_keys.slot, &cmd).await?;
    let connections = if let Value::Int(receivers) = receivers { receivers.unsigned_abs() } else { 0 };
    Ok(if to == Recipient::All { store.message_subscriptions.count_receivers(connections) } else { connections })
}
