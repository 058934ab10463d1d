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
use crate::store::redis::conn::Way;
use crate::store::redis::keys::PeerKeys;
use crate::store::redis::locks;
use crate::store::{Heard, To};

/// Most that may wait for a node to be taken.
const HEARD_MAX: usize = 1_024;
/// A connection on which nothing has been heard for so long may be broken, and nobody would notice.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// The first byte of what is said; scripts write turns.
const TURN: u8 = b'T';
const MESSAGE: u8 = b'M';

/// Nodes of this process that listen, shared with the connections that hear.
#[derive(Clone)]
pub(crate) struct Voices {
    /// The channel of all nodes.
    all: Arc<str>,
    listeners: Arc<Mutex<Listeners>>,
}

#[derive(Default)]
struct Listeners {
    /// By their channels.
    nodes: HashMap<String, Listener>,
    /// The connection that listens to the channel of all; 0 if none does.
    all_heard_by: u64,
}

struct Listener {
    heard: mpsc::Sender<Heard>,
    /// It hears also what is said to all.
    all: bool,
    /// The connection that listens to its channel; 0 if none does.
    heard_by: u64,
    /// It has listened before: a new connection means that something may have been missed.
    before: bool,
    /// Something has come that it could not take.
    missed: bool,
}

impl Listener {
    fn tell(&mut self, heard: Heard) {
        self.missed |= self.heard.try_send(heard).is_err();
    }

    /// Tells of what was missed, as soon as it can be told.
    fn mention_gap(&mut self) {
        if self.missed {
            self.missed = self.heard.try_send(Heard::Gap).is_err();
        }
    }
}

impl Voices {
    pub(crate) fn new(hall: &PeerKeys) -> Self {
        Voices { all: hall.all.as_str().into(), listeners: Arc::default() }
    }

    fn listeners(&self) -> MutexGuard<'_, Listeners> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something has come that nobody asked for.
    pub(crate) fn hear(&self, info: &PushInfo) {
        if info.kind == PushKind::Disconnection {
            // Whichever it was: to listen twice does no harm.
            return self.listeners().lose_all();
        }
        let Some(Value::BulkString(channel)) = info.data.first() else {
            return;
        };
        let for_all = channel == self.all.as_bytes();
        let mut listeners = self.listeners();
        let one = std::str::from_utf8(channel).ok().and_then(|channel| listeners.nodes.get_mut(channel));
        match (&info.kind, info.data.get(1)) {
            (PushKind::SMessage, Some(Value::BulkString(bytes))) => {
                let Some(heard) = read(bytes) else {
                    return;
                };
                match one {
                    Some(listener) => listener.tell(heard),
                    None if for_all => listeners.of_all().for_each(|other| other.tell(heard.clone())),
                    None => {}
                }
            }
            // The slot has moved away.
            (PushKind::SUnsubscribe, _) => match one {
                Some(listener) => listener.heard_by = 0,
                None if for_all => listeners.all_heard_by = 0,
                None => {}
            },
            _ => {}
        }
    }

    /// Says something to the node that listens on this channel, if one does.
    pub(crate) fn tell(&self, channel: &str, heard: Heard) {
        if let Some(listener) = self.listeners().nodes.get_mut(channel) {
            listener.tell(heard);
        }
    }

    /// Of how many nodes a message to all was heard: the nodes of this process share a connection.
    fn reached(&self, connections: u64) -> u64 {
        let listeners = self.listeners();
        let hears = |one: &&Listener| one.all && one.heard_by != 0 && !one.heard.is_closed();
        let ours = listeners.nodes.values().filter(hears).count() as u64;
        if listeners.all_heard_by == 0 { connections } else { connections.saturating_sub(1) + ours }
    }
}

impl Listeners {
    /// Those who hear what is said to all.
    fn of_all(&mut self) -> impl Iterator<Item = &mut Listener> {
        self.nodes.values_mut().filter(|listener| listener.all)
    }

    fn lose_all(&mut self) {
        self.all_heard_by = 0;
        self.nodes.values_mut().for_each(|listener| listener.heard_by = 0);
    }
}

/// What a message says; `None` if a later version said it.
fn read(bytes: &[u8]) -> Option<Heard> {
    let (kind, rest) = bytes.split_first()?;
    match *kind {
        MESSAGE => Some(Heard::Message(rest.to_vec())),
        TURN => {
            let (owner, name) = std::str::from_utf8(rest).ok()?.split_at_checked(36)?;
            Some(Heard::Turn { name: name.to_owned(), owner: locks::owner(owner)? })
        }
        _ => None,
    }
}

/// `hear` of the contract.
pub(crate) fn hear(store: &Redis, node: NodeId, all: bool) -> mpsc::Receiver<Heard> {
    let (sender, receiver) = mpsc::channel(HEARD_MAX);
    let listener = Listener { heard: sender, all, heard_by: 0, before: false, missed: false };
    store.voices.listeners().nodes.insert(store.hall.channel_of(node), listener);
    receiver
}

/// Listens for a node, unless the connection that does is still there.
pub(crate) async fn listen(store: &Redis, node: NodeId) -> Result<()> {
    let (channel, slot) = (store.hall.channel_of(node), store.hall.slot);
    let by = store.link.generation(Way::Beat, slot);
    let (heard_by, all, all_heard_by, closed) = {
        let listeners = store.voices.listeners();
        let Some(listener) = listeners.nodes.get(&channel) else {
            return Ok(());
        };
        (listener.heard_by, listener.all, listeners.all_heard_by, listener.heard.is_closed())
    };
    if closed {
        return close(store, node).await;
    }
    if by == 0 || heard_by != by {
        let by = store.link.listen(slot, &channel).await?;
        if let Some(listener) = store.voices.listeners().nodes.get_mut(&channel) {
            listener.heard_by = by;
            listener.missed |= listener.before;
            listener.before = true;
        }
    }
    if all && (by == 0 || all_heard_by != by) {
        let by = store.link.listen(slot, &store.voices.all).await?;
        store.voices.listeners().all_heard_by = by;
    }
    if let Some(listener) = store.voices.listeners().nodes.get_mut(&channel) {
        listener.mention_gap();
    }
    Ok(())
}

/// Makes sure that a connection on which nothing has been heard for long is still there.
pub(crate) async fn listen_closely(store: &Redis, node: NodeId) -> Result<()> {
    if store.link.silence(store.hall.slot).is_some_and(|silence| silence > SILENCE_MAX) {
        store.link.ask("attend", Way::Beat, store.hall.slot, &redis::cmd("PING")).await?;
    }
    listen(store, node).await
}

/// Nobody listens for this node any more.
pub(crate) async fn close(store: &Redis, node: NodeId) -> Result<()> {
    let channel = store.hall.channel_of(node);
    let mut unheard = Vec::new();
    {
        let mut listeners = store.voices.listeners();
        unheard.extend(listeners.nodes.remove(&channel).filter(|gone| gone.heard_by != 0).map(|_| channel.as_str()));
        if listeners.of_all().next().is_none() && std::mem::take(&mut listeners.all_heard_by) != 0 {
            unheard.push(&store.voices.all);
        }
    }
    for channel in unheard {
        let mut cmd = redis::cmd("SUNSUBSCRIBE");
        cmd.arg(channel);
        store.link.ask("depart", Way::Beat, store.hall.slot, &cmd).await?;
    }
    Ok(())
}

/// `send` of the contract.
pub(crate) async fn send(store: &Redis, to: To, message: &[u8]) -> Result<u64> {
    let channel = match to {
        To::All => store.hall.all.clone(),
        To::Node(node) => store.hall.channel_of(node),
    };
    let mut cmd = redis::cmd("SPUBLISH");
    cmd.arg(channel).arg([&[MESSAGE], message].concat());
    let heard = store.link.tell("send", Way::Door, store.hall.slot, &cmd).await?;
    let connections = if let Value::Int(heard) = heard { heard.unsigned_abs() } else { 0 };
    Ok(if to == To::All { store.voices.reached(connections) } else { connections })
}
