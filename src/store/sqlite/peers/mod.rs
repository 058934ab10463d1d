//! The peers of this process: announcements, messages and connections.

pub(crate) mod bus;
pub(crate) mod bus_file;
pub(crate) mod completions;
pub(crate) mod connections;
pub(crate) mod messages;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use rusqlite::Connection;
use tokio::sync::mpsc;

use crate::clock::Micros;
use crate::error::{Error, Result};
use crate::node::{NodeId, NodeRecord};
use crate::store::sqlite::locks::waiters;
use crate::store::sqlite::nodes::datagram::Datagram;
use crate::store::sqlite::nodes::listener;
use crate::store::sqlite::nodes::liveness::LivenessSnapshot;
use crate::store::sqlite::nodes::registry::{NODES_MAX, NodeRegistry};
use crate::store::sqlite::nodes::subscriptions::NOTIFICATIONS_MAX;
use crate::store::sqlite::peers::bus::MessageBus;
use crate::store::sqlite::peers::messages::{BusMessage, MessageReader};
use crate::store::sqlite::tx::Tx;
use crate::store::sqlite::{Sqlite, errors, locks, nodes};
use crate::store::{
    AnnounceReply, CONNECTIONS_BATCH_MAX, CompletionStore, Notification, PeerInfo, PeerStore, Recipient,
};
use crate::sync::LockExt;

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
    pub(super) fn new(registry: Arc<NodeRegistry>) -> Result<Self> {
        let bus = MessageBus::start(registry.slots().current())?;
        Ok(SqlitePeers {
            registry,
            bus,
            sender_id: NodeId::fresh(),
            pending_subscriptions: Mutex::default(),
            discoverable: Mutex::default(),
        })
    }

    /// Runs `run` on the bus of the directory that the processes use now, and returns its value and the inode of the bus.
    async fn run_on_bus<T, F>(&self, op: &'static str, run: F) -> Result<(T, u64)>
    where
        T: Send + 'static,
        F: FnMut(&Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        // If this fails, the bus reports it.
        let _ = self.registry.rejoin_if_deleted();
        self.bus.run(op, run).await
    }

    /// Subscribes a local node to messages, from its next announcement on.
    pub(super) fn subscribe_messages(&self, node: NodeId, all: bool) -> Result<mpsc::Receiver<Notification>> {
        let mut awaited = self.pending_subscriptions();
        awaited.retain(|_, (sender, _)| !sender.is_closed());
        if awaited.len() >= NODES_MAX {
            return Err(Error::store(
                "subscribe_messages",
                format!("{NODES_MAX} nodes are subscribed already, but not announced; try again once they are"),
            ));
        }
        let (sender, notifications) = mpsc::channel(NOTIFICATIONS_MAX);
        awaited.insert(node, (sender, all));
        Ok(notifications)
    }

    /// Records a peer's heartbeat and its methods. Returns whether it was the first.
    pub(super) async fn announce(&self, peer: &PeerInfo, now: Micros) -> Result<bool> {
        let to_error = |e| errors::from_registry("announce", "cannot use a slot in the node registry", e);
        // Runs before anything that may wait: a slow disk must not end the lease.
        let first = self.registry.announce(peer.node, peer.lease).map_err(to_error)?;
        self.start_subscription(peer.node).await?;
        if peer.listen_only && self.discoverable().remove(&peer.node) {
            let node = peer.node;
            self.run_on_bus("announce", move |conn| connections::delete_peer(conn, node)).await?;
        }
        if !peer.listen_only {
            self.discoverable().insert(peer.node);
            let (registry, node, methods) = (self.registry.clone(), peer.node, peer.methods.join("\n"));
            let register = move |conn: &rusqlite::Connection| {
                connections::register_peer(conn, &LivenessSnapshot::new(&registry), now, node, &methods)
            };
            self.run_on_bus("announce", register).await?;
        }
        Ok(first)
    }

    async fn start_subscription(&self, node: NodeId) -> Result<()> {
        let Some((sender, all)) = self.pending_subscriptions().get(&node).cloned() else {
            return Ok(());
        };
        let (Some(slot), Some(subscriptions)) = (self.registry.slot_of(node), self.registry.subscriptions(node)) else {
            return Ok(());
        };
        let reading = match self.registry.slots().current() {
            // Reading starts after the last message before the subscription: none is missed, and none is older.
            Some(slots) => {
                let (last, inode) = self.run_on_bus("announce", messages::read_last_message_no).await?;
                Some(MessageReader::starting_after(last, inode, slots, node, all, self.sender_id))
            }
            None => None,
        };
        subscriptions.subscribe_messages(sender, all, reading);
        let listening =
            listener::start_listener(&self.registry, node).and_then(|()| self.registry.set_subscribed(slot, all));
        listening.map_err(|e| errors::from_registry("announce", "cannot listen for notifications", e))?;
        self.pending_subscriptions().remove(&node);
        Ok(())
    }

    /// Removes a peer. The caller removes its lock waiters.
    pub(super) async fn withdraw(&self, node: NodeId) -> Result<()> {
        self.pending_subscriptions().remove(&node);
        self.discoverable().remove(&node);
        self.registry
            .withdraw(node)
            .map_err(|e| errors::from_registry("withdraw", "cannot use the node registry", e))?;
        self.run_on_bus("withdraw", move |conn| connections::unregister_peer(conn, node)).await.map(drop)
    }

    /// Sends a message: to local nodes by channel, to others over the bus.
    pub(super) async fn send(&self, to: Recipient, message: &[u8]) -> Result<u64> {
        let notification = Notification::Message(message.to_vec());
        let (only, here) = match to {
            Recipient::All => (None, self.registry.notify_broadcast(&notification)),
            Recipient::Node(id) => match self.registry.notify(id, notification) {
                Some(listens) => return Ok(u64::from(listens)),
                None => (Some(id), 0),
            },
        };
        if !self.registry.is_shared() {
            return Ok(here);
        }
        let (registry, sender, body) = (self.registry.clone(), self.sender_id, message.to_vec());
        let put = move |conn: &rusqlite::Connection| {
            let slots = registry.external_subscriber_slots(only);
            if !slots.is_empty() {
                messages::insert_message(
                    conn,
                    registry.uptime(),
                    &BusMessage { recipient: only, sender_id: sender, body: &body },
                )?;
            }
            for slot in &slots {
                // A node with a full socket reads the bus soon anyway.
                let _ = registry.slots().send(*slot, &Datagram::NewMessage);
            }
            Ok(slots.len() as u64)
        };
        let (elsewhere, _) = self.run_on_bus("send", put).await?;
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
        self.run_on_bus("set_connections", set).await.map(drop)
    }

    pub(super) async fn refresh_connections(&self, node: NodeId, held: &[String]) -> Result<()> {
        if held.len() > CONNECTIONS_BATCH_MAX {
            return Err(Error::invalid(
                "connections",
                format!("must not be more than {CONNECTIONS_BATCH_MAX} at a time"),
            ));
        }
        let (registry, held) = (self.registry.clone(), held.to_vec());
        let refresh = move |conn: &rusqlite::Connection| {
            connections::refresh_connections(conn, &LivenessSnapshot::new(&registry), node, &held)
        };
        self.run_on_bus("refresh_connections", refresh).await.map(drop)
    }

    pub(super) async fn connection_holder(&self, name: &str) -> Result<Option<NodeId>> {
        let (registry, name) = (self.registry.clone(), name.to_owned());
        let read = move |conn: &rusqlite::Connection| {
            let holder = connections::connection_holder(conn, &name)?;
            Ok(holder.filter(|node| LivenessSnapshot::new(&registry).is_peer_alive(*node)))
        };
        self.run_on_bus("connection_holder", read).await.map(|(node, _)| node)
    }

    pub(super) async fn peers_with_method(&self, method: &str) -> Result<Vec<NodeId>> {
        let peers = self.find_peers("peers_with_method").await?;
        let able = peers.into_iter().filter(|peer| peer.alive && peer.methods.iter().any(|name| name == method));
        Ok(able.map(|peer| peer.id).collect())
    }

    /// Returns the peers that others can find and that exist.
    pub(super) async fn find_peers(&self, op: &'static str) -> Result<Vec<NodeRecord>> {
        let registry = self.registry.clone();
        let read = move |conn: &rusqlite::Connection| {
            let (liveness, mut peers) = (LivenessSnapshot::new(&registry), connections::read_peers(conn)?);
            peers.retain(|peer| liveness.is_process_alive(peer.id));
            for peer in &mut peers {
                peer.alive = liveness.is_peer_alive(peer.id);
            }
            Ok(peers)
        };
        self.run_on_bus(op, read).await.map(|(peers, _)| peers)
    }

    fn discoverable(&self) -> MutexGuard<'_, HashSet<NodeId>> {
        self.discoverable.lock_unpoisoned()
    }

    fn pending_subscriptions(&self) -> MutexGuard<'_, HashMap<NodeId, PendingSubscription>> {
        self.pending_subscriptions.lock_unpoisoned()
    }
}

#[async_trait]
impl PeerStore for Sqlite {
    async fn announce(&self, peer: &PeerInfo) -> Result<AnnounceReply> {
        self.check_files_now("announce")?;
        if self.peers.announce(peer, self.clock.now_micros()).await? {
            let registry = self.registry.clone();
            let sweep = move |tx: &Tx<'_>| {
                let liveness = LivenessSnapshot::new(&registry);
                locks::delete_before_boot(tx, &liveness).and_then(|()| waiters::delete_dead_waiters(tx, &liveness))
            };
            self.writer.write("announce", sweep).await?;
        }
        if peer.waited_locks.is_empty() && peer.waiters.is_empty() {
            return Ok(AnnounceReply::default());
        }
        let (registry, peer) = (self.registry.clone(), peer.clone());
        let read = move |conn: &Connection| {
            let lost_waits = waiters::find_lost_waiters(conn, &peer)?;
            Ok((lost_waits, waiters::lock_turns(conn, &LivenessSnapshot::new(&registry), &peer)?))
        };
        let (lost_waits, (turns, stale)) = self.query("announce", read).await?;
        if !stale.is_empty() {
            let registry = self.registry.clone();
            let pass_on = move |tx: &Tx<'_>| {
                let liveness = LivenessSnapshot::new(&registry);
                stale.iter().try_for_each(|name| locks::notify_next_waiters(tx, &liveness, name))
            };
            self.writer.write("announce", pass_on).await?;
        }
        Ok(AnnounceReply { turns, lost_waits })
    }

    async fn withdraw(&self, node: NodeId) -> Result<()> {
        let registry = self.registry.clone();
        // Must run before the slot is released: a node without a slot is dead, and any node could take its locks.
        let withdraw = move |tx: &Tx<'_>| {
            locks::detach_from_node(tx, node)
                .and_then(|()| waiters::withdraw(tx, &LivenessSnapshot::new(&registry), node))
        };
        self.writer.write("withdraw", withdraw).await?;
        self.peers.withdraw(node).await
    }

    async fn nodes(&self) -> Result<Vec<NodeRecord>> {
        let registry = self.registry.clone();
        let workers = self.query("nodes", move |conn| nodes::nodes(conn, &registry)).await?;
        let peers = self.peers.find_peers("nodes").await.unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot list peers");
            Vec::new()
        });
        Ok(nodes::merge_peers(workers, peers))
    }

    async fn subscribe_messages(&self, node: NodeId, all: bool) -> Result<mpsc::Receiver<Notification>> {
        self.peers.subscribe_messages(node, all)
    }

    async fn send(&self, to: Recipient, message: &[u8]) -> Result<u64> {
        self.peers.send(to, message).await
    }

    async fn set_connections(&self, node: NodeId, held: &[String], gone: &[String]) -> Result<()> {
        self.peers.set_connections(node, held, gone).await
    }

    async fn refresh_connections(&self, node: NodeId, held: &[String]) -> Result<()> {
        self.peers.refresh_connections(node, held).await
    }

    async fn connection_holder(&self, connection: &str) -> Result<Option<NodeId>> {
        self.peers.connection_holder(connection).await
    }

    async fn peers_with_method(&self, method: &str) -> Result<Vec<NodeId>> {
        self.peers.peers_with_method(method).await
    }
}

#[async_trait]
impl CompletionStore for Sqlite {
    async fn watch_completions(&self, node: NodeId, queues: &[String]) -> Result<()> {
        completions::watch_completions(self, node, queues)
    }
}
