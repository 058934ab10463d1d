//! The subscriptions of a local node: wakes and notifications.

use std::sync::{Mutex, MutexGuard};

use tokio::sync::mpsc;

use crate::store::sqlite::peers::messages::MessageReader;
use crate::store::{Notification, Wake};
use crate::sync::LockExt;

/// Most pending notifications of a node. The last one is reserved for the report that some were dropped.
pub(crate) const NOTIFICATIONS_MAX: usize = 1_024;

/// The subscriptions of a local node. One thread serves both kinds if other processes can notify the node.
#[derive(Default)]
pub(crate) struct NodeSubscriptions(Mutex<NodeSubscriptionsInner>);

#[derive(Default)]
struct NodeSubscriptionsInner {
    wakes: Option<mpsc::Sender<Wake>>,
    notifications: Option<mpsc::Sender<Notification>>,
    /// The node receives broadcasts.
    broadcasts: bool,
    /// Reads messages from the bus; the listener thread takes it.
    message_reader: Option<MessageReader>,
    /// The listener thread is running.
    has_listener: bool,
}

impl NodeSubscriptions {
    pub(crate) fn subscribe_wakes(&self, wakes: mpsc::Sender<Wake>) {
        self.inner().wakes = Some(wakes);
    }

    pub(crate) fn unsubscribe_wakes(&self) {
        self.inner().wakes = None;
    }

    /// Starts to deliver notifications. `reading` adds messages of other processes; `None` keeps an earlier one.
    pub(crate) fn subscribe_messages(
        &self,
        sender: mpsc::Sender<Notification>,
        all: bool,
        reading: Option<MessageReader>,
    ) {
        let mut inner = self.inner();
        inner.broadcasts = all;
        inner.notifications = Some(sender);
        if reading.is_some() {
            inner.message_reader = reading;
        }
    }

    pub(crate) fn unsubscribe_messages(&self) {
        let mut inner = self.inner();
        inner.notifications = None;
        inner.message_reader = None;
    }

    pub(crate) fn is_subscribed_to_messages(&self) -> bool {
        self.inner().notifications.as_ref().is_some_and(|sender| !sender.is_closed())
    }

    pub(crate) fn is_subscribed_to_broadcasts(&self) -> bool {
        self.inner().broadcasts
    }

    /// Returns how many notifications fit before one is dropped.
    pub(crate) fn remaining_room(&self) -> usize {
        self.inner().notifications.as_ref().map_or(0, |sender| sender.capacity().saturating_sub(1))
    }

    pub(crate) fn take_message_reader(&self) -> Option<MessageReader> {
        self.inner().message_reader.take()
    }

    /// Delivers a wake. Returns whether the node is subscribed.
    pub(crate) fn wake(&self, wake: Wake) -> bool {
        let inner = self.inner();
        let Some(wakes) = inner.wakes.as_ref().filter(|wakes| !wakes.is_closed()) else {
            return false;
        };
        // A full channel already has enough wakes.
        let _ = wakes.try_send(wake);
        true
    }

    /// Delivers a notification. Returns whether the node is subscribed, even if the notification was dropped for lack
    /// of room.
    pub(crate) fn notify(&self, notification: Notification) -> bool {
        let inner = self.inner();
        let Some(sender) = inner.notifications.as_ref().filter(|sender| !sender.is_closed()) else {
            return false;
        };
        match sender.capacity() {
            0 => {}
            1 => drop(sender.try_send(Notification::Gap)),
            _ => drop(sender.try_send(notification)),
        }
        true
    }

    /// Returns whether the caller must start the listener thread.
    pub(crate) fn try_begin_listening(&self) -> bool {
        !std::mem::replace(&mut self.inner().has_listener, true)
    }

    pub(crate) fn end_listening(&self) {
        self.inner().has_listener = false;
    }

    /// Returns whether no subscription is left. If so, the calling listener thread must end.
    pub(crate) fn end_listening_if_unused(&self) -> bool {
        let mut inner = self.inner();
        let waking = inner.wakes.as_ref().is_some_and(|wakes| !wakes.is_closed());
        let is_listening = inner.notifications.as_ref().is_some_and(|sender| !sender.is_closed());
        inner.has_listener = waking || is_listening;
        !inner.has_listener
    }

    fn inner(&self) -> MutexGuard<'_, NodeSubscriptionsInner> {
        self.0.lock_unpoisoned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overflowing_notifications_are_replaced_by_one_gap() {
        let (sender, mut notifications) = mpsc::channel(4);
        let subscriptions = NodeSubscriptions::default();
        assert!(!subscriptions.notify(Notification::Gap), "not subscribed");
        subscriptions.subscribe_messages(sender, true, None);
        for i in 0..9 {
            assert!(subscriptions.notify(Notification::Message(vec![i])));
        }
        let all: Vec<_> = std::iter::from_fn(|| notifications.try_recv().ok()).collect();
        let message = |i| Notification::Message(vec![i]);
        assert_eq!(all, [message(0), message(1), message(2), Notification::Gap]);
        assert!(subscriptions.notify(message(9)));
        assert_eq!(notifications.try_recv(), Ok(message(9)));
    }

    #[test]
    fn listener_ends_when_both_receivers_are_dropped() {
        let subscriptions = NodeSubscriptions::default();
        let ((wakes, woken), (sender, notifications)) = (mpsc::channel(1), mpsc::channel(1));
        subscriptions.subscribe_wakes(wakes);
        subscriptions.subscribe_messages(sender, true, None);
        assert!(subscriptions.try_begin_listening() && !subscriptions.try_begin_listening());
        drop(woken);
        assert!(!subscriptions.end_listening_if_unused());
        drop(notifications);
        assert!(subscriptions.end_listening_if_unused() && subscriptions.try_begin_listening());
    }
}
