//! Notifications that a transaction causes, delivered after its commit: by channel within the process, by datagram to
//! others.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::job::JobId;
use crate::node::NodeId;
use crate::store::sqlite::nodes::datagram::{DATAGRAM_IDS_MAX, Datagram};
use crate::store::sqlite::nodes::registry::NodeRegistry;
use crate::store::{LockOwner, Notification};

/// The notifications to deliver after a commit.
#[derive(Debug, Default)]
pub(crate) struct PendingNotifications {
    /// Queues to wake one idle node for.
    pub(crate) wake_one: BTreeSet<String>,
    /// Queues to wake all idle nodes for.
    pub(crate) wake_all: BTreeSet<String>,
    /// Lock waiters that have their turn.
    pub(crate) lock_turns: Vec<LockTurnNotice>,
    /// Nodes that should send a heartbeat now.
    pub(crate) heartbeats: Vec<NodeId>,
    /// Jobs that have ended, by queue.
    pub(crate) completed: Vec<(String, Vec<JobId>)>,
}

/// A lock waiter that has its turn.
#[derive(Debug)]
pub(crate) struct LockTurnNotice {
    pub(crate) node: NodeId,
    pub(crate) lock_name: String,
    pub(crate) owner: LockOwner,
}

/// Delivers notifications: after a push, after a claim that left ready jobs, after a lock became free.
#[derive(Clone)]
pub(crate) struct Notifier {
    registry: Arc<NodeRegistry>,
}

impl Notifier {
    pub(crate) fn new(registry: Arc<NodeRegistry>) -> Self {
        Notifier { registry }
    }

    /// Wakes an idle node for each queue, preferably a local one, or all idle nodes. Also notifies lock waiters and
    /// completions.
    pub(crate) fn deliver(&self, notifications: PendingNotifications) {
        for queue in &notifications.wake_all {
            self.registry.wake_all_local(queue);
            self.external_idle_slots(queue).into_iter().for_each(|slot| drop(self.send_wake(slot, queue)));
        }
        for queue in notifications.wake_one {
            if !self.registry.wake_one_local(&queue) {
                // The first node that receives it is enough. The socket of a dead node refuses.
                let _ = self.external_idle_slots(&queue).into_iter().any(|slot| self.send_wake(slot, &queue).is_ok());
            }
        }
        for turn in notifications.lock_turns {
            self.notify_lock_turn(turn);
        }
        for node in notifications.heartbeats {
            if let Some(slot) = self.registry.request_heartbeat(node) {
                // If the datagram is lost, the next heartbeat is soon enough.
                let _ = self.registry.slots().send(slot, &Datagram::Heartbeat);
            }
        }
        for (queue, ids) in notifications.completed {
            self.notify_completed(&queue, &ids);
        }
    }

    /// Notifies the nodes that wait for jobs of this queue. If a datagram is lost, their next check finds the
    /// completion.
    fn notify_completed(&self, queue: &str, ids: &[JobId]) {
        self.registry.notify_completed(queue, ids);
        for slot in self.registry.external_watcher_slots(queue) {
            for some in ids.chunks(DATAGRAM_IDS_MAX) {
                let _ = self.registry.slots().send(slot, &Datagram::Completed(some.to_vec()));
            }
        }
    }

    fn external_idle_slots(&self, queue: &str) -> Vec<usize> {
        if self.registry.is_shared() { self.registry.external_idle_slots(queue) } else { Vec::new() }
    }

    fn send_wake(&self, slot: usize, queue: &str) -> std::io::Result<()> {
        self.registry.slots().send(slot, &Datagram::Wake(queue.to_owned()))
    }

    fn notify_lock_turn(&self, LockTurnNotice { node, lock_name: name, owner }: LockTurnNotice) {
        let turn = Notification::LockTurn { name: name.clone(), owner };
        if self.registry.notify(node, turn).is_some() || !self.registry.is_shared() {
            return;
        }
        for slot in self.registry.external_subscriber_slots(Some(node)) {
            // If the datagram is lost, the next heartbeat of the node finds its turn.
            let _ = self.registry.slots().send(slot, &Datagram::LockTurn { name: name.clone(), owner });
        }
    }
}
