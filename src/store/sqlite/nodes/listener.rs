//! The listener: one thread for each local node that other processes can notify.
//!
//! It receives datagrams from the node's socket, messages from the bus, and the end of other processes from the kernel.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::clock;
use crate::node::NodeId;
use crate::store::sqlite::nodes::datagram::{DATAGRAM_BYTES_MAX, Datagram};
use crate::store::sqlite::nodes::directory::FileId;
use crate::store::sqlite::nodes::process_watch::ProcessWatch;
use crate::store::sqlite::nodes::registry::NodeRegistry;
use crate::store::sqlite::nodes::subscriptions::NodeSubscriptions;
use crate::store::sqlite::peers::messages::MessageReader;
use crate::store::{Notification, Wake};
use crate::sync::spawn_thread;

/// How often to check for new processes to watch, and for messages that came without a datagram.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How soon to read messages again that had no room.
const BACKLOG_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// After this many datagrams at once the socket may have been full, and completions may be lost.
const OVERFLOW_DATAGRAMS_MIN: usize = 8;
/// Most pending wakes of a worker: one for each of its queues.
const WAKES_MAX: usize = 1_024;

/// Subscribes a local node to wakes: from its own process by channel, from other processes by datagram, and from the
/// kernel if another process ends.
pub(crate) fn subscribe_wakes(registry: &Arc<NodeRegistry>, node: NodeId) -> io::Result<mpsc::Receiver<Wake>> {
    let subscriptions =
        registry.subscriptions(node).ok_or_else(|| io::Error::other("the node has not sent a heartbeat yet"))?;
    let (wakes, receiver) = mpsc::channel(WAKES_MAX);
    subscriptions.subscribe_wakes(wakes);
    start_listener(registry, node)?;
    Ok(receiver)
}

/// Starts the listener of a node, unless it is running.
pub(crate) fn start_listener(registry: &Arc<NodeRegistry>, node: NodeId) -> io::Result<()> {
    let (Some(slot), Some(subscriptions)) = (registry.slot_of(node), registry.subscriptions(node)) else {
        return Ok(());
    };
    if !registry.is_shared() || !subscriptions.try_begin_listening() {
        return Ok(());
    }
    let spawn = || {
        let socket = NodeSocket::bind(registry, slot)?;
        let (registry, subscriptions) = (registry.clone(), subscriptions.clone());
        spawn_thread("duly-listen", move || run_listener(&registry, node, socket, &subscriptions))
    };
    spawn().map(drop).inspect_err(|_| subscriptions.end_listening())
}

/// The socket of a node.
struct NodeSocket {
    socket: UnixDatagram,
    slot: usize,
    id: Option<FileId>,
}

impl NodeSocket {
    fn bind(registry: &NodeRegistry, slot: usize) -> io::Result<Self> {
        let (socket, id) = registry.slots().bind_socket(slot)?;
        Ok(NodeSocket { socket, slot, id })
    }

    /// Binds the socket again if it was deleted, or if its node has another slot. Returns whether it did.
    fn rebind_if_deleted(&mut self, registry: &NodeRegistry, node: NodeId) -> bool {
        let Some(slot) = registry.slot_of(node) else {
            return false;
        };
        if slot == self.slot && self.id.is_some() && registry.slots().socket_id(slot) == self.id {
            return false;
        }
        // Without a directory there is no socket: the next heartbeat creates it again.
        NodeSocket::bind(registry, slot).map(|bound| *self = bound).is_ok()
    }
}

/// Waits for notifications and delivers them, until the node has no subscription.
fn run_listener(registry: &NodeRegistry, node: NodeId, mut bound: NodeSocket, subscriptions: &NodeSubscriptions) {
    let mut processes = ProcessWatch::default();
    let mut reading: Option<MessageReader> = None;
    let mut buffer = [0; DATAGRAM_BYTES_MAX];
    let mut at_most = POLL_INTERVAL;
    let mut checked_at = clock::monotonic_now();
    while !subscriptions.end_listening_if_unused() {
        processes.watch_new(registry);
        if clock::monotonic_now() - checked_at >= POLL_INTERVAL {
            checked_at = clock::monotonic_now();
            // A node with a long lease sends few heartbeats. If this fails, the next heartbeat reports it.
            let _ = registry.rejoin_if_deleted();
        }
        if bound.rebind_if_deleted(registry, node) {
            // Datagrams may have been lost.
            subscriptions.wake(Wake::Heartbeat);
            subscriptions.notify(Notification::Gap);
        }
        if processes.wait_for_exit(&bound.socket, at_most) {
            registry.slots().clear_dead();
            subscriptions.wake(Wake::Heartbeat);
            // The locks of the ended process are free, and its waiters are gone.
            subscriptions.notify(Notification::CheckTurns);
        }
        let (mut datagrams, mut has_completions) = (0, false);
        while let Ok(len) = bound.socket.recv(&mut buffer) {
            let datagram = Datagram::parse(&buffer[..len]);
            (datagrams, has_completions) =
                (datagrams + 1, has_completions || matches!(datagram, Some(Datagram::Completed(_))));
            dispatch(datagram, subscriptions);
        }
        if has_completions && datagrams >= OVERFLOW_DATAGRAMS_MIN {
            subscriptions.notify(Notification::Completed(Vec::new()));
        }
        // Must run after the datagrams: a sender that found the socket full has put its message on the bus before.
        reading = subscriptions.take_message_reader().or(reading).filter(|_| subscriptions.is_subscribed_to_messages());
        let more = reading.as_mut().is_some_and(|reading| reading.deliver_new(subscriptions));
        at_most = if more { BACKLOG_POLL_INTERVAL } else { POLL_INTERVAL };
    }
}

fn dispatch(datagram: Option<Datagram>, subscriptions: &NodeSubscriptions) {
    let _ = match datagram {
        Some(Datagram::Wake(queue)) => subscriptions.wake(Wake::Queue(queue)),
        Some(Datagram::LockTurn { name, owner }) => subscriptions.notify(Notification::LockTurn { name, owner }),
        Some(Datagram::Completed(ids)) => subscriptions.notify(Notification::Completed(ids)),
        Some(Datagram::Heartbeat) => subscriptions.wake(Wake::Heartbeat),
        Some(Datagram::Gap) => subscriptions.notify(Notification::Gap),
        // The bus is read after every datagram.
        Some(Datagram::NewMessage) | None => false,
    };
}
