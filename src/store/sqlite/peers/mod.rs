//! The peers of this process: announcements, messages and connections.

pub(crate) mod bus;
pub(crate) mod bus_file;
pub(crate) mod connections;
pub(crate) mod messages;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc;

use crate::clock::Micros;
use crate::error::{Error, Result};
use crate::node::{NodeId, NodeRecord};
use crate::store::sqlite::nodes::datagram;
use crate::store::sqlite::nodes::datagram::Datagram;
use crate::store::sqlite::nodes::listener;
use crate::store::sqlite::nodes::liveness::LivenessSnapshot;
use crate::store::sqlite::nodes::registry::{NODES_MAX, NodeRegistry};
use crate::store::sqlite::nodes::subscriptions::NOTIFICATIONS_MAX;
use crate::store::sqlite::peers::bus::MessageBus;
use crate::store::sqlite::peers::messages::{BusMessage, MessageReader};
use crate::store::{CONNECTIONS_BATCH_MAX, Notification, PeerInfo, Recipient};

/// The channel of a node, and whether it receives broadcasts.
type PendingSubscription = (mpsc::Sender<Notification>, bool);

/// The peers of this process.
pub(super) struct SqlitePeers {
    registry: Arc<NodeRegistry>,
    bus: MessageBus,
    /// The id of this process as the sender of messages.
    sender_id: NodeId,
    /// Nodes that will receive messages from their next announcement on.
    pending_subscriptions: Mutex<HashMap<NodeId, PendingSubscription>>,
    /// Nodes that other nodes can find.
    discoverable: Mutex<HashSet<NodeId>>,
}

impl SqlitePeers {
    pub(super) fn new(board: Arc<NodeRegistry>) -> Result<Self> {
        let bus = MessageBus::start(board.dir())?;
        Ok(SqlitePeers {
            registry: board,
            bus,
            sender_id: NodeId::fresh(),
            pending_subscriptions: Mutex::default(),
            discoverable: Mutex::default(),
        })
    }

    /// Subscribes a local node to messages, from its next announcement on.
    pub(super) fn subscribe_messages(&self, node: NodeId, all: bool) -> Result<mpsc::Receiver<Notification>> {
        let mut awaited = self.pending_subscriptions();
        awaited.retain(|_, (hears, _)| !hears.is_closed());
        if awaited.len() >= NODES_MAX {
            return Err(Error::store(
                "hear",
                format!("{NODES_MAX} nodes are subscribed already, and none of them has announced itself"),
            ));
        }
        let (hears, heard) = mpsc::channel(NOTIFICATIONS_MAX);
        awaited.insert(node, (hears, all));
        Ok(heard)
    }

    /// Records a peer's heartbeat and its methods. Returns whether it was the first.
    pub(super) async fn announce(&self, guest: &PeerInfo, now: Micros) -> Result<bool> {
        let told = |e: std::io::Error| Error::store("attend", format!("cannot use a slot in the node registry: {e}"));
        // Runs before anything that may wait: a slow disk must not end the lease.
        let first = self.registry.announce(guest.node, guest.lease).map_err(told)?;
        self.start_subscription(guest.node).await?;
        if guest.listen_only && self.discoverable().remove(&guest.node) {
            let node = guest.node;
            self.bus.run("attend", move |conn| connections::delete_peer(conn, node)).await?;
        }
        if !guest.listen_only {
            self.discoverable().insert(guest.node);
            let (board, node, methods) = (self.registry.clone(), guest.node, guest.methods.join("\n"));
            let register = move |conn: &rusqlite::Connection| {
                connections::register_peer(conn, &LivenessSnapshot::new(&board), now, node, &methods)
            };
            self.bus.run("attend", register).await?;
        }
        Ok(first)
    }

    async fn start_subscription(&self, node: NodeId) -> Result<()> {
        let Some((hears, all)) = self.pending_subscriptions().get(&node).cloned() else {
            return Ok(());
        };
        let (Some(slot), Some(ears)) = (self.registry.slot_of(node), self.registry.subscriptions(node)) else {
            return Ok(());
        };
        let reading = match self.registry.dir() {
            // Reading starts after the last message before the subscription: none is missed, and none is older.
            Some(dir) => {
                let (last, inode) = self.bus.run("attend", messages::read_last_message_no).await?;
                Some(MessageReader::starting_after(last, inode, dir, node, all, self.sender_id))
            }
            None => None,
        };
        ears.subscribe_messages(hears, all, reading);
        let listening =
            listener::start_listener(&self.registry, node).and_then(|()| self.registry.set_subscribed(slot, all));
        listening.map_err(|e| Error::store("attend", format!("cannot listen for notifications: {e}")))?;
        self.pending_subscriptions().remove(&node);
        Ok(())
    }

    /// Removes a peer. The caller removes its lock waiters.
    pub(super) async fn withdraw(&self, node: NodeId) -> Result<()> {
        self.pending_subscriptions().remove(&node);
        self.discoverable().remove(&node);
        self.registry.withdraw(node).map_err(|e| Error::store("depart", e.to_string()))?;
        self.bus.run("depart", move |conn| connections::unregister_peer(conn, node)).await.map(drop)
    }

    /// Sends a message: to local nodes by channel, to others over the bus.
    pub(super) async fn send(&self, to: Recipient, message: &[u8]) -> Result<u64> {
        let heard = Notification::Message(message.to_vec());
        let (only, here) = match to {
            Recipient::All => (None, self.registry.notify_broadcast(&heard)),
            Recipient::Node(id) => match self.registry.notify(id, heard) {
                Some(listens) => return Ok(u64::from(listens)),
                None => (Some(id), 0),
            },
        };
        if !self.registry.is_shared() {
            return Ok(here);
        }
        let (board, sender, body) = (self.registry.clone(), self.sender_id, message.to_vec());
        let put = move |conn: &rusqlite::Connection| {
            let hearing = board.external_subscriber_slots(only);
            if !hearing.is_empty() {
                messages::insert_message(
                    conn,
                    board.uptime(),
                    &BusMessage { recipient: only, sender_id: sender, body: &body },
                )?;
            }
            for slot in &hearing {
                // A node with a full socket reads the bus soon anyway.
                let _ = datagram::send(&Datagram::NewMessage, &board.socket_path(*slot));
            }
            Ok(hearing.len() as u64)
        };
        let (elsewhere, _) = self.bus.run("send", put).await?;
        Ok(here + elsewhere)
    }

    pub(super) async fn set_connections(&self, node: NodeId, held: &[String], gone: &[String]) -> Result<()> {
        if held.len() + gone.len() > CONNECTIONS_BATCH_MAX {
            return Err(Error::invalid(
                "connections",
                format!("must not be more than {CONNECTIONS_BATCH_MAX} at a time"),
            ));
        }
        let (held, gone) = (held.to_vec(), gone.to_vec());
        let set = move |conn: &rusqlite::Connection| connections::set_connections(conn, node, &held, &gone);
        self.bus.run("set_connections", set).await.map(drop)
    }

    pub(super) async fn keep_connections(&self, node: NodeId, held: &[String]) -> Result<()> {
        if held.len() > CONNECTIONS_BATCH_MAX {
            return Err(Error::invalid(
                "connections",
                format!("must not be more than {CONNECTIONS_BATCH_MAX} at a time"),
            ));
        }
        let (board, held) = (self.registry.clone(), held.to_vec());
        let keep = move |conn: &rusqlite::Connection| {
            connections::keep_connections(conn, &LivenessSnapshot::new(&board), node, &held)
        };
        self.bus.run("keep_connections", keep).await.map(drop)
    }

    pub(super) async fn connection(&self, name: &str) -> Result<Option<NodeId>> {
        let (board, name) = (self.registry.clone(), name.to_owned());
        let look = move |conn: &rusqlite::Connection| {
            let holder = connections::connection(conn, &name)?;
            Ok(holder.filter(|node| LivenessSnapshot::new(&board).is_peer_alive(*node)))
        };
        self.bus.run("connection", look).await.map(|(node, _)| node)
    }

    pub(super) async fn peers_with_method(&self, method: &str) -> Result<Vec<NodeId>> {
        let guests = self.peers("answering").await?;
        let able = guests.into_iter().filter(|guest| guest.alive && guest.methods.iter().any(|name| name == method));
        Ok(able.map(|guest| guest.id).collect())
    }

    /// Returns the peers that others can find and that exist.
    pub(super) async fn peers(&self, op: &'static str) -> Result<Vec<NodeRecord>> {
        let board = self.registry.clone();
        let look = move |conn: &rusqlite::Connection| {
            let (lives, mut guests) = (LivenessSnapshot::new(&board), connections::read_peers(conn)?);
            guests.retain(|guest| lives.is_process_alive(guest.id));
            for guest in &mut guests {
                guest.alive = lives.is_peer_alive(guest.id);
            }
            Ok(guests)
        };
        self.bus.run(op, look).await.map(|(guests, _)| guests)
    }

    fn discoverable(&self) -> MutexGuard<'_, HashSet<NodeId>> {
        self.discoverable.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pending_subscriptions(&self) -> MutexGuard<'_, HashMap<NodeId, PendingSubscription>> {
        self.pending_subscriptions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
