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
use crate::store::sqlite::nodes::datagram::Letter;
use crate::store::sqlite::nodes::listener;
use crate::store::sqlite::nodes::liveness::Lives;
use crate::store::sqlite::nodes::registry::{Board, NODES_MAX};
use crate::store::sqlite::nodes::subscriptions::HEARD_MAX;
use crate::store::sqlite::peers::bus::Bus;
use crate::store::sqlite::peers::messages::{Message, Reading};
use crate::store::{CONNECTIONS_MAX, Guest, Heard, To};

/// The channel of a node, and whether it receives broadcasts.
type Awaited = (mpsc::Sender<Heard>, bool);

/// The peers of this process.
pub(super) struct Hall {
    board: Arc<Board>,
    bus: Bus,
    /// The id of this process as the sender of messages.
    own: NodeId,
    /// Nodes that will receive messages from their next announcement on.
    awaited: Mutex<HashMap<NodeId, Awaited>>,
    /// Nodes that other nodes can find.
    shown: Mutex<HashSet<NodeId>>,
}

impl Hall {
    pub(super) fn new(board: Arc<Board>) -> Result<Self> {
        let bus = Bus::start(board.dir())?;
        Ok(Hall { board, bus, own: NodeId::fresh(), awaited: Mutex::default(), shown: Mutex::default() })
    }

    /// Subscribes a local node to messages, from its next announcement on.
    pub(super) fn hear(&self, node: NodeId, all: bool) -> Result<mpsc::Receiver<Heard>> {
        let mut awaited = self.awaited();
        awaited.retain(|_, (hears, _)| !hears.is_closed());
        if awaited.len() >= NODES_MAX {
            return Err(Error::store(
                "hear",
                format!("{NODES_MAX} nodes are subscribed already, and none of them has announced itself"),
            ));
        }
        let (hears, heard) = mpsc::channel(HEARD_MAX);
        awaited.insert(node, (hears, all));
        Ok(heard)
    }

    /// Records a peer's heartbeat and its methods. Returns whether it was the first.
    pub(super) async fn attend(&self, guest: &Guest, now: Micros) -> Result<bool> {
        let told = |e: std::io::Error| Error::store("attend", format!("cannot use a slot in the node registry: {e}"));
        // Runs before anything that may wait: a slow disk must not end the lease.
        let first = self.board.attend(guest.node, guest.lease).map_err(told)?;
        self.start_hearing(guest.node).await?;
        if guest.quiet && self.shown().remove(&guest.node) {
            let node = guest.node;
            self.bus.run("attend", move |conn| connections::hide(conn, node)).await?;
        }
        if !guest.quiet {
            self.shown().insert(guest.node);
            let (board, node, methods) = (self.board.clone(), guest.node, guest.methods.join("\n"));
            let register =
                move |conn: &rusqlite::Connection| connections::register(conn, &Lives::on(&board), now, node, &methods);
            self.bus.run("attend", register).await?;
        }
        Ok(first)
    }

    async fn start_hearing(&self, node: NodeId) -> Result<()> {
        let Some((hears, all)) = self.awaited().get(&node).cloned() else {
            return Ok(());
        };
        let (Some(slot), Some(ears)) = (self.board.slot_of(node), self.board.ears(node)) else {
            return Ok(());
        };
        let reading = match self.board.dir() {
            // Reading starts after the last message before the subscription: none is missed, and none is older.
            Some(dir) => {
                let (last, inode) = self.bus.run("attend", messages::last).await?;
                Some(Reading::after(last, inode, dir, node, all, self.own))
            }
            None => None,
        };
        ears.start_hearing(hears, all, reading);
        let listening = listener::start(&self.board, node).and_then(|()| self.board.set_hears(slot, all));
        listening.map_err(|e| Error::store("attend", format!("cannot listen for notifications: {e}")))?;
        self.awaited().remove(&node);
        Ok(())
    }

    /// Removes a peer. The caller removes its lock waiters.
    pub(super) async fn depart(&self, node: NodeId) -> Result<()> {
        self.awaited().remove(&node);
        self.shown().remove(&node);
        self.board.depart(node).map_err(|e| Error::store("depart", e.to_string()))?;
        self.bus.run("depart", move |conn| connections::unregister(conn, node)).await.map(drop)
    }

    /// Sends a message: to local nodes by channel, to others over the bus.
    pub(super) async fn send(&self, to: To, message: &[u8]) -> Result<u64> {
        let heard = Heard::Message(message.to_vec());
        let (only, here) = match to {
            To::All => (None, self.board.tell_all(&heard)),
            To::Node(id) => match self.board.tell(id, heard) {
                Some(listens) => return Ok(u64::from(listens)),
                None => (Some(id), 0),
            },
        };
        if !self.board.is_shared() {
            return Ok(here);
        }
        let (board, sender, body) = (self.board.clone(), self.own, message.to_vec());
        let put = move |conn: &rusqlite::Connection| {
            let hearing = board.hearing_elsewhere(only);
            if !hearing.is_empty() {
                messages::put(conn, board.moment(), &Message { to: only, sender, body: &body })?;
            }
            for slot in &hearing {
                // A node with a full socket reads the bus soon anyway.
                let _ = datagram::send(&Letter::Bus, &board.socket(*slot));
            }
            Ok(hearing.len() as u64)
        };
        let (elsewhere, _) = self.bus.run("send", put).await?;
        Ok(here + elsewhere)
    }

    pub(super) async fn set_connections(&self, node: NodeId, held: &[String], gone: &[String]) -> Result<()> {
        if held.len() + gone.len() > CONNECTIONS_MAX {
            return Err(Error::invalid("connections", format!("must not be more than {CONNECTIONS_MAX} at a time")));
        }
        let (held, gone) = (held.to_vec(), gone.to_vec());
        let set = move |conn: &rusqlite::Connection| connections::set_connections(conn, node, &held, &gone);
        self.bus.run("set_connections", set).await.map(drop)
    }

    pub(super) async fn keep_connections(&self, node: NodeId, held: &[String]) -> Result<()> {
        if held.len() > CONNECTIONS_MAX {
            return Err(Error::invalid("connections", format!("must not be more than {CONNECTIONS_MAX} at a time")));
        }
        let (board, held) = (self.board.clone(), held.to_vec());
        let keep =
            move |conn: &rusqlite::Connection| connections::keep_connections(conn, &Lives::on(&board), node, &held);
        self.bus.run("keep_connections", keep).await.map(drop)
    }

    pub(super) async fn connection(&self, name: &str) -> Result<Option<NodeId>> {
        let (board, name) = (self.board.clone(), name.to_owned());
        let look = move |conn: &rusqlite::Connection| {
            let holder = connections::connection(conn, &name)?;
            Ok(holder.filter(|node| Lives::on(&board).attends(*node)))
        };
        self.bus.run("connection", look).await.map(|(node, _)| node)
    }

    pub(super) async fn answering(&self, method: &str) -> Result<Vec<NodeId>> {
        let guests = self.guests("answering").await?;
        let able = guests.into_iter().filter(|guest| guest.alive && guest.methods.iter().any(|name| name == method));
        Ok(able.map(|guest| guest.id).collect())
    }

    /// Returns the peers that others can find and that exist.
    pub(super) async fn guests(&self, op: &'static str) -> Result<Vec<NodeRecord>> {
        let board = self.board.clone();
        let look = move |conn: &rusqlite::Connection| {
            let (lives, mut guests) = (Lives::on(&board), connections::all(conn)?);
            guests.retain(|guest| lives.is_there(guest.id));
            for guest in &mut guests {
                guest.alive = lives.attends(guest.id);
            }
            Ok(guests)
        };
        self.bus.run(op, look).await.map(|(guests, _)| guests)
    }

    fn shown(&self) -> MutexGuard<'_, HashSet<NodeId>> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn awaited(&self) -> MutexGuard<'_, HashMap<NodeId, Awaited>> {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
