//! The channels to which this process is subscribed, and the subscribers that receive their messages.
//!
//! A [`Subscription`] is a set of channels that one connection carries for the same subscribers. It outlives
//! connections: after a reconnect, or after its slot has moved to another server, its user calls
//! [`Subscription::ensure`], which subscribes again and reports the gap. A message is passed on by the task that reads
//! the connection, so it reaches its subscribers before any reply that the server sent later on that connection.
//! Subscribers never block: each has a bounded buffer and decides what a message without room means.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

use redis::{PushInfo, PushKind, Value};

use crate::error::Result;
use crate::node::NodeId;
use crate::store::redis::conn::{ConnectionRole, Servers, SubscribedConnection};
use crate::sync::LockExt;

/// Receives the messages of a subscription. Its methods run on the task that reads the connection and must not block.
pub(super) trait Subscriber: Send + Sync {
    fn receive(&self, message: &[u8]);

    /// Called after a repeated subscription: messages that were sent in between are lost.
    fn note_gap(&self) {}

    /// Called when the server ends the subscription because the slot has moved: messages are lost from now on.
    fn note_end(&self) {}

    /// Returns whether the receiver was dropped.
    fn is_closed(&self) -> bool;
}

/// Channels of one slot that one connection carries for the same subscribers.
pub(super) struct Subscription {
    role: ConnectionRole,
    slot: u16,
    /// `SSUBSCRIBE`, or `SUBSCRIBE` for channels of other systems.
    command: &'static str,
    channels: Vec<String>,
    state: Mutex<SubscriptionState>,
}

struct SubscriptionState {
    /// By the local node that receives the messages; `None` for channels of other systems.
    subscribers: BTreeMap<Option<NodeId>, Arc<dyn Subscriber>>,
    connection: Option<SubscribedConnection>,
    was_subscribed: bool,
}

impl Subscription {
    /// Creates a subscription of a local node. Nothing is sent before [`Subscription::ensure`].
    pub(super) fn new(
        role: ConnectionRole,
        slot: u16,
        channels: Vec<String>,
        node: NodeId,
        subscriber: Arc<dyn Subscriber>,
    ) -> Self {
        let state = SubscriptionState {
            subscribers: BTreeMap::from([(Some(node), subscriber)]),
            connection: None,
            was_subscribed: false,
        };
        Subscription { role, slot, command: "SSUBSCRIBE", channels, state: Mutex::new(state) }
    }

    /// Creates a subscription to a channel of another system, which publishes to the whole Cluster.
    pub(super) fn foreign(slot: u16, channel: &str, subscriber: Arc<dyn Subscriber>) -> Self {
        let state = SubscriptionState {
            subscribers: BTreeMap::from([(None, subscriber)]),
            connection: None,
            was_subscribed: false,
        };
        Subscription {
            role: ConnectionRole::Heartbeat,
            slot,
            command: "SUBSCRIBE",
            channels: vec![channel.to_owned()],
            state: Mutex::new(state),
        }
    }

    fn state(&self) -> MutexGuard<'_, SubscriptionState> {
        self.state.lock_unpoisoned()
    }

    /// Returns whether the connection that carries the subscription is still open, to the server of the slot.
    pub(super) fn is_subscribed(&self, servers: &Servers) -> bool {
        self.state().connection.as_ref().is_some_and(|connection| servers.is_current(connection, self.slot))
    }

    /// Subscribes, unless the connection that carries the subscription is still open or no subscriber is left.
    pub(super) async fn ensure(&self, servers: &Servers) -> Result<()> {
        if self.is_subscribed(servers) || self.open_subscribers() == 0 {
            return Ok(());
        }
        let connection = servers.subscribe(self.role, self.slot, self.command, &self.channels).await?;
        let mut state = self.state();
        state.connection = connection;
        if std::mem::replace(&mut state.was_subscribed, true) {
            state.subscribers.values().for_each(|subscriber| subscriber.note_gap());
        }
        Ok(())
    }

    /// Reports a gap if no open connection carries the subscription.
    pub(super) fn report_gap_unless_subscribed(&self, servers: &Servers) {
        if !self.is_subscribed(servers) {
            self.state().subscribers.values().for_each(|subscriber| subscriber.note_gap());
        }
    }

    /// Returns the number of subscribers that still have a receiver.
    pub(super) fn open_subscribers(&self) -> usize {
        self.state().subscribers.values().filter(|subscriber| !subscriber.is_closed()).count()
    }

    /// Unsubscribes on the server. The subscription must have left the registry.
    pub(super) async fn unsubscribe(&self) {
        let connection = self.state().connection.take();
        if let Some(connection) = connection {
            connection.unsubscribe(&self.channels).await;
        }
    }
}

/// All subscriptions of a store, shared with the connections that receive messages.
///
/// A subscription is registered under its channels and under a name. The name is usually its only channel.
#[derive(Clone, Default)]
pub(super) struct Subscriptions(Arc<Mutex<HashMap<String, Arc<Subscription>>>>);

impl Subscriptions {
    fn entries(&self) -> MutexGuard<'_, HashMap<String, Arc<Subscription>>> {
        self.0.lock_unpoisoned()
    }

    pub(super) fn get(&self, name: &str) -> Option<Arc<Subscription>> {
        self.entries().get(name).cloned()
    }

    /// Registers a subscription in place of an earlier one with this name.
    pub(super) fn replace(&self, name: &str, subscription: Subscription) {
        let mut entries = self.entries();
        remove_entry(&mut entries, name);
        insert_entry(&mut entries, name, subscription);
    }

    /// Registers a subscription. If there is one with this name, it gets the subscribers of the new one instead.
    pub(super) fn join(&self, name: &str, subscription: Subscription) -> Arc<Subscription> {
        let mut entries = self.entries();
        if let Some(existing) = entries.get(name) {
            existing.state().subscribers.append(&mut subscription.state().subscribers);
            return existing.clone();
        }
        insert_entry(&mut entries, name, subscription)
    }

    /// Removes a node's subscriber. If it was the last one, unsubscribes on the server.
    pub(super) async fn leave(&self, name: &str, node: NodeId) {
        let unused = {
            let mut entries = self.entries();
            let is_unused = entries.get(name).is_some_and(|subscription| {
                let mut state = subscription.state();
                state.subscribers.remove(&Some(node));
                state.subscribers.is_empty()
            });
            if is_unused { remove_entry(&mut entries, name) } else { None }
        };
        if let Some(unused) = unused {
            unused.unsubscribe().await;
        }
    }

    /// Handles a message that the server pushed.
    pub(super) fn handle_push(&self, info: &PushInfo) {
        match (&info.kind, &info.data[..]) {
            // Whichever connection it was: subscribing twice does no harm, and a job delivered twice counts once.
            (PushKind::Disconnection, _) => {
                self.entries().values().for_each(|subscription| subscription.state().connection = None)
            }
            (PushKind::SMessage | PushKind::Message, [Value::BulkString(channel), Value::BulkString(message), ..]) => {
                if let Some(subscription) = self.get_by_bytes(channel) {
                    subscription.state().subscribers.values().for_each(|subscriber| subscriber.receive(message));
                }
            }
            // The slot has moved to another server.
            (PushKind::SUnsubscribe, [Value::BulkString(channel), ..]) => {
                if let Some(subscription) = self.get_by_bytes(channel) {
                    let mut state = subscription.state();
                    state.connection = None;
                    state.subscribers.values().for_each(|subscriber| subscriber.note_end());
                }
            }
            _ => {}
        }
    }

    fn get_by_bytes(&self, channel: &[u8]) -> Option<Arc<Subscription>> {
        std::str::from_utf8(channel).ok().and_then(|channel| self.get(channel))
    }
}

fn insert_entry(
    entries: &mut HashMap<String, Arc<Subscription>>,
    name: &str,
    subscription: Subscription,
) -> Arc<Subscription> {
    let subscription = Arc::new(subscription);
    for channel in subscription.channels.iter().map(String::as_str).chain([name]) {
        entries.insert(channel.to_owned(), subscription.clone());
    }
    subscription
}

fn remove_entry(entries: &mut HashMap<String, Arc<Subscription>>, name: &str) -> Option<Arc<Subscription>> {
    let removed = entries.remove(name)?;
    removed.channels.iter().for_each(|channel| drop(entries.remove(channel)));
    Some(removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records what it receives.
    #[derive(Default)]
    struct Recorder(Mutex<Vec<String>>);

    impl Recorder {
        fn record(&self, event: &str) {
            self.0.lock_unpoisoned().push(event.to_owned());
        }

        fn take(&self) -> Vec<String> {
            std::mem::take(&mut self.0.lock_unpoisoned())
        }
    }

    impl Subscriber for Recorder {
        fn receive(&self, message: &[u8]) {
            self.record(&String::from_utf8_lossy(message));
        }

        fn note_end(&self) {
            self.record("end");
        }

        fn is_closed(&self) -> bool {
            false
        }
    }

    fn subscription(channels: &[&str], node: NodeId, subscriber: &Arc<Recorder>) -> Subscription {
        let channels = channels.iter().map(|channel| (*channel).to_owned()).collect();
        Subscription::new(ConnectionRole::Heartbeat, 0, channels, node, subscriber.clone())
    }

    fn push(kind: PushKind, words: &[&str]) -> PushInfo {
        PushInfo { kind, data: words.iter().map(|word| Value::BulkString(word.as_bytes().to_vec())).collect() }
    }

    #[tokio::test]
    async fn message_reaches_every_subscriber_of_its_channel_until_it_leaves() {
        let (subscriptions, first, second) = (Subscriptions::default(), Arc::default(), Arc::default());
        let nodes = [NodeId::fresh(), NodeId::fresh()];
        subscriptions.join("a", subscription(&["a"], nodes[0], &first));
        subscriptions.join("a", subscription(&["a"], nodes[1], &second));
        subscriptions.handle_push(&push(PushKind::SMessage, &["a", "one"]));
        subscriptions.handle_push(&push(PushKind::SMessage, &["b", "other"]));
        subscriptions.leave("a", nodes[0]).await;
        subscriptions.handle_push(&push(PushKind::SMessage, &["a", "two"]));
        subscriptions.handle_push(&push(PushKind::SUnsubscribe, &["a"]));
        assert_eq!(first.take(), ["one"]);
        assert_eq!(second.take(), ["one", "two", "end"]);
        subscriptions.leave("a", nodes[1]).await;
        assert!(subscriptions.get("a").is_none(), "no subscriber is left");
    }

    #[test]
    fn replaced_subscription_leaves_no_channel() {
        let (subscriptions, first, second) = (Subscriptions::default(), Arc::default(), Arc::default());
        let node = NodeId::fresh();
        subscriptions.replace("name", subscription(&["a", "b"], node, &first));
        subscriptions.replace("name", subscription(&["b", "c"], node, &second));
        for channel in ["a", "b", "c"] {
            subscriptions.handle_push(&push(PushKind::SMessage, &[channel, channel]));
        }
        assert_eq!(first.take(), [] as [&str; 0]);
        assert_eq!(second.take(), ["b", "c"]);
    }
}
