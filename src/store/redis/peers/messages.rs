//! What is said in the hall: every node has a channel of its own, and one is for all.
//!
//! Both are heard through the connection that beats, which no handler can hold up.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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

/// Most that may wait for a node to be taken.
const NOTIFICATIONS_MAX: usize = 1_024;
/// A connection on which nothing has been heard for so long may be broken, and nobody would notice.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// The first byte of what is said; scripts write turns.
const LOCK_TURN_TAG: u8 = b'T';
const MESSAGE_TAG: u8 = b'M';

/// Nodes of this process that listen, shared with the connections that hear.
#[derive(Clone)]
pub(crate) struct MessageSubscriptions {
    /// The channel of all nodes.
    broadcast_channel: Arc<str>,
    subscribers: Arc<Mutex<MessageSubscribers>>,
}

#[derive(Default)]
struct MessageSubscribers {
    /// By their channels.
    by_channel: HashMap<String, MessageSubscriber>,
    /// The connection that listens to the channel of all; 0 if none does.
    broadcast_generation: u64,
}

struct MessageSubscriber {
    sender: mpsc::Sender<Notification>,
    /// It hears also what is said to all.
    wants_broadcasts: bool,
    /// The connection that listens to its channel; 0 if none does.
    subscribed_generation: u64,
    /// It has listened before: a new connection means that something may have been missed.
    was_subscribed: bool,
    /// Something has come that it could not take.
    has_gap: bool,
}

impl MessageSubscriber {
    fn notify(&mut self, heard: Notification) {
        self.has_gap |= self.sender.try_send(heard).is_err();
    }

    /// Tells of what was missed, as soon as it can be told.
    fn report_gap(&mut self) {
        if self.has_gap {
            self.has_gap = self.sender.try_send(Notification::Gap).is_err();
        }
    }
}

impl MessageSubscriptions {
    pub(crate) fn new(hall: &PeerKeys) -> Self {
        MessageSubscriptions { broadcast_channel: hall.all.as_str().into(), subscribers: Arc::default() }
    }

    fn subscribers(&self) -> MutexGuard<'_, MessageSubscribers> {
        self.subscribers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something has come that nobody asked for.
    pub(crate) fn handle_push(&self, info: &PushInfo) {
        if info.kind == PushKind::Disconnection {
            // Whichever it was: to listen twice does no harm.
            return self.subscribers().mark_all_unsubscribed();
        }
        let Some(Value::BulkString(channel)) = info.data.first() else {
            return;
        };
        let for_all = channel == self.broadcast_channel.as_bytes();
        let mut listeners = self.subscribers();
        let one = std::str::from_utf8(channel).ok().and_then(|channel| listeners.by_channel.get_mut(channel));
        match (&info.kind, info.data.get(1)) {
            (PushKind::SMessage, Some(Value::BulkString(bytes))) => {
                let Some(heard) = decode_notification(bytes) else {
                    return;
                };
                match one {
                    Some(listener) => listener.notify(heard),
                    None if for_all => listeners.broadcast_subscribers().for_each(|other| other.notify(heard.clone())),
                    None => {}
                }
            }
            // The slot has moved away.
            (PushKind::SUnsubscribe, _) => match one {
                Some(listener) => listener.subscribed_generation = 0,
                None if for_all => listeners.broadcast_generation = 0,
                None => {}
            },
            _ => {}
        }
    }

    /// Says something to the node that listens on this channel, if one does.
    pub(crate) fn notify(&self, channel: &str, heard: Notification) {
        if let Some(listener) = self.subscribers().by_channel.get_mut(channel) {
            listener.notify(heard);
        }
    }

    /// Of how many nodes a message to all was heard: the nodes of this process share a connection.
    fn count_receivers(&self, connections: u64) -> u64 {
        let listeners = self.subscribers();
        let hears = |one: &&MessageSubscriber| {
            one.wants_broadcasts && one.subscribed_generation != 0 && !one.sender.is_closed()
        };
        let ours = listeners.by_channel.values().filter(hears).count() as u64;
        if listeners.broadcast_generation == 0 { connections } else { connections.saturating_sub(1) + ours }
    }
}

impl MessageSubscribers {
    /// Those who hear what is said to all.
    fn broadcast_subscribers(&mut self) -> impl Iterator<Item = &mut MessageSubscriber> {
        self.by_channel.values_mut().filter(|listener| listener.wants_broadcasts)
    }

    fn mark_all_unsubscribed(&mut self) {
        self.broadcast_generation = 0;
        self.by_channel.values_mut().for_each(|listener| listener.subscribed_generation = 0);
    }
}

/// What a message says; `None` if a later version said it.
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

/// `hear` of the contract.
pub(crate) fn subscribe_messages(store: &Redis, node: NodeId, all: bool) -> mpsc::Receiver<Notification> {
    let (sender, receiver) = mpsc::channel(NOTIFICATIONS_MAX);
    let listener = MessageSubscriber {
        sender,
        wants_broadcasts: all,
        subscribed_generation: 0,
        was_subscribed: false,
        has_gap: false,
    };
    store.message_subscriptions.subscribers().by_channel.insert(store.peer_keys.node_channel(node), listener);
    receiver
}

/// Listens for a node, unless the connection that does is still there.
pub(crate) async fn ensure_subscribed(store: &Redis, node: NodeId) -> Result<()> {
    let (channel, slot) = (store.peer_keys.node_channel(node), store.peer_keys.slot);
    let by = store.servers.generation(ConnectionRole::Heartbeat, slot);
    let (heard_by, all, all_heard_by, closed) = {
        let listeners = store.message_subscriptions.subscribers();
        let Some(listener) = listeners.by_channel.get(&channel) else {
            return Ok(());
        };
        (
            listener.subscribed_generation,
            listener.wants_broadcasts,
            listeners.broadcast_generation,
            listener.sender.is_closed(),
        )
    };
    if closed {
        return unsubscribe_node(store, node).await;
    }
    if by == 0 || heard_by != by {
        let by = store.servers.subscribe(slot, &channel).await?;
        if let Some(listener) = store.message_subscriptions.subscribers().by_channel.get_mut(&channel) {
            listener.subscribed_generation = by;
            listener.has_gap |= listener.was_subscribed;
            listener.was_subscribed = true;
        }
    }
    if all && (by == 0 || all_heard_by != by) {
        let by = store.servers.subscribe(slot, &store.message_subscriptions.broadcast_channel).await?;
        store.message_subscriptions.subscribers().broadcast_generation = by;
    }
    if let Some(listener) = store.message_subscriptions.subscribers().by_channel.get_mut(&channel) {
        listener.report_gap();
    }
    Ok(())
}

/// Makes sure that a connection on which nothing has been heard for long is still there.
pub(crate) async fn ping_and_ensure_subscribed(store: &Redis, node: NodeId) -> Result<()> {
    if store.servers.time_since_received(store.peer_keys.slot).is_some_and(|silence| silence > SILENCE_MAX) {
        store
            .servers
            .send_idempotent("attend", ConnectionRole::Heartbeat, store.peer_keys.slot, &redis::cmd("PING"))
            .await?;
    }
    ensure_subscribed(store, node).await
}

/// Nobody listens for this node any more.
pub(crate) async fn unsubscribe_node(store: &Redis, node: NodeId) -> Result<()> {
    let channel = store.peer_keys.node_channel(node);
    let mut unheard = Vec::new();
    {
        let mut listeners = store.message_subscriptions.subscribers();
        unheard.extend(
            listeners
                .by_channel
                .remove(&channel)
                .filter(|gone| gone.subscribed_generation != 0)
                .map(|_| channel.as_str()),
        );
        if listeners.broadcast_subscribers().next().is_none()
            && std::mem::take(&mut listeners.broadcast_generation) != 0
        {
            unheard.push(&store.message_subscriptions.broadcast_channel);
        }
    }
    for channel in unheard {
        let mut cmd = redis::cmd("SUNSUBSCRIBE");
        cmd.arg(channel);
        store.servers.send_idempotent("depart", ConnectionRole::Heartbeat, store.peer_keys.slot, &cmd).await?;
    }
    Ok(())
}

/// `send` of the contract.
pub(crate) async fn send(store: &Redis, to: Recipient, message: &[u8]) -> Result<u64> {
    let channel = match to {
        Recipient::All => store.peer_keys.all.clone(),
        Recipient::Node(node) => store.peer_keys.node_channel(node),
    };
    let mut cmd = redis::cmd("SPUBLISH");
    cmd.arg(channel).arg([&[MESSAGE_TAG], message].concat());
    let heard = store.servers.send_once("send", ConnectionRole::Client, store.peer_keys.slot, &cmd).await?;
    let connections = if let Value::Int(heard) = heard { heard.unsigned_abs() } else { 0 };
    Ok(if to == Recipient::All { store.message_subscriptions.count_receivers(connections) } else { connections })
}
