//! Ears: who listens to which channel for a node, where it claims.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redis::{PushInfo, PushKind, Value};
use tokio::sync::mpsc;

use crate::error::Result;
use crate::node::NodeId;
use crate::store::Wake;
use crate::store::redis::Redis;
use crate::store::redis::conn::{ConnectionRole, SubscribedConnection};
use crate::store::redis::jobs::{claim, push};
use crate::store::redis::keys::QueueKeys;

/// Wakes that may wait for a node: more would tell it nothing new.
const WAKES_MAX: usize = 256;
/// How many idle nodes are tried for one that listens.
const WAKE_TRIES_MAX: usize = 3;
/// Most kinds of which a node has jobs put into its hands: for those of others it is woken.
const DELIVERED_KINDS_MAX: usize = 100;

/// Who listens to which channel, shared with the connections that hear them.
#[derive(Clone, Default)]
pub(crate) struct WakeSubscriptions {
    channels: Arc<Mutex<HashMap<String, Arc<WakeSubscription>>>>,
}

struct WakeSubscription {
    queue: String,
    sender: mpsc::Sender<Wake>,
    /// What comes here are jobs, not mere wakes.
    delivers_jobs: bool,
    /// What to listen to.
    channels: Vec<String>,
    /// The connection that listens to all of them, if one does.
    connection: Mutex<Option<SubscribedConnection>>,
    /// One has listened before.
    was_subscribed: AtomicBool,
}

impl WakeSubscription {
    fn new(queue: String, wakes: mpsc::Sender<Wake>, jobs: bool, channels: Vec<String>) -> Self {
        WakeSubscription {
            queue,
            sender: wakes,
            delivers_jobs: jobs,
            channels,
            connection: Mutex::default(),
            was_subscribed: AtomicBool::default(),
        }
    }

    fn connection(&self) -> MutexGuard<'_, Option<SubscribedConnection>> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_subscribed(&self) -> bool {
        self.connection().as_ref().is_some_and(SubscribedConnection::is_current)
    }

    /// Whatever was said meanwhile went unheard.
    fn gap_wake(&self) -> Wake {
        let queue = self.queue.clone();
        if self.delivers_jobs { Wake::Resync(queue) } else { Wake::Queue(queue) }
    }

    fn parse_wake(&self, word: &[u8]) -> Wake {
        match word {
            // A word that cannot be read is of a job all the same.
            word if self.delivers_jobs => claim::decode_delivered_job(&self.queue, word)
                .map_or_else(|| self.gap_wake(), |held| Wake::Job(Box::new(held))),
            b"heartbeat" => Wake::Heartbeat,
            _ => Wake::Queue(self.queue.clone()),
        }
    }
}

impl WakeSubscriptions {
    fn channels(&self) -> MutexGuard<'_, HashMap<String, Arc<WakeSubscription>>> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something has come that nobody asked for.
    pub(crate) fn handle_push(&self, info: &PushInfo) {
        if info.kind == PushKind::Disconnection {
            // Whichever it was: to listen twice does no harm, and of a job that is heard of twice one word counts.
            return self.channels().values().for_each(|ear| *ear.connection() = None);
        }
        let Some(Value::BulkString(channel)) = info.data.first() else {
            return;
        };
        let Some(ear) = std::str::from_utf8(channel).ok().and_then(|channel| self.channels().get(channel).cloned())
        else {
            return;
        };
        match (&info.kind, info.data.get(1)) {
            (PushKind::SMessage, Some(Value::BulkString(word))) => {
                // A node that does not keep up has wakes enough; its beat counts a job that it does not hear of.
                let _ = ear.sender.try_send(ear.parse_wake(word));
            }
            // The slot has moved away.
            (PushKind::SUnsubscribe, _) => *ear.connection() = None,
            _ => {}
        }
    }

    /// Those of a node in a queue.
    fn of_node(&self, node: NodeId, keys: &QueueKeys) -> Vec<Arc<WakeSubscription>> {
        let channels = self.channels();
        [keys.wake_channel(node), keys.job_channel(node)]
            .iter()
            .filter_map(|name| channels.get(name).cloned())
            .collect()
    }

    /// Tells a node that nobody listens for: it looks, and by that listens again.
    pub(crate) fn report_gaps(&self, node: NodeId, keys: &QueueKeys) {
        for ear in self.of_node(node, keys).iter().filter(|ear| !ear.is_subscribed()) {
            let _ = ear.sender.try_send(ear.gap_wake());
        }
    }

    /// Nobody listens for this node any more.
    pub(crate) async fn unsubscribe_node(&self, node: NodeId, keys: &QueueKeys) {
        let gone = self.of_node(node, keys);
        {
            let mut channels = self.channels();
            channels.remove(&keys.job_channel(node));
            for channel in gone.iter().flat_map(|ear| &ear.channels) {
                channels.remove(channel);
            }
        }
        for ear in gone {
            let by = ear.connection().take();
            if let Some(by) = by {
                by.unsubscribe(&ear.channels).await;
            }
        }
    }
}

/// Tells an idle node that was just taken off the list to look; passes over those that no longer listen.
pub(crate) async fn wake_listening_node(store: &Redis, keys: &QueueKeys, node: String) {
    let mut node = Some(node);
    for _ in 0..WAKE_TRIES_MAX {
        let Some(id) = node.take() else {
            return;
        };
        let mut publish = redis::cmd("SPUBLISH");
        publish.arg(format!("{}{id}", keys.channel)).arg("");
        // A wake may be lost: the node looks once a second besides.
        match store.servers.send_idempotent("push", ConnectionRole::Client, keys.slot, &publish).await {
            Ok(Value::Int(0)) => {}
            Ok(_) | Err(_) => return,
        }
        let mut next = redis::cmd("ZPOPMAX");
        next.arg(&keys.idle);
        node = store
            .servers
            .send_idempotent("push", ConnectionRole::Client, keys.slot, &next)
            .await
            .ok()
            .and_then(push::popped_member);
    }
}

/// `subscribe` of the contract.
pub(crate) async fn subscribe_wakes(store: &Redis, node: NodeId) -> Result<mpsc::Receiver<Wake>> {
    let (wakes, receiver) = mpsc::channel(WAKES_MAX);
    for queue in store.queues_of_node(node) {
        let keys = store.keys(&queue);
        let channel = keys.wake_channel(node);
        let ear = WakeSubscription::new(queue, wakes.clone(), false, vec![channel.clone()]);
        store.wake_subscriptions.channels().insert(channel, Arc::new(ear));
    }
    ensure_subscribed_in_all(store, node).await?;
    Ok(receiver)
}

/// Listens in all queues of a node. One of a server that is away is listened to before the first claim that it answers.
/// Fails only if that is all of them.
async fn ensure_subscribed_in_all(store: &Redis, node: NodeId) -> Result<()> {
    let queues = store.queues_of_node(node);
    let listens = queues.iter().map(async |queue| ensure_subscribed(store, node, &store.keys(queue)).await);
    let (mut heard, mut trouble) = (queues.is_empty(), None);
    for (queue, listens) in queues.iter().zip(futures_util::future::join_all(listens).await) {
        match listens {
            Ok(()) => heard = true,
            Err(error) => {
                tracing::warn!(queue, %error, "cannot be woken here yet");
                trouble = Some(error);
            }
        }
    }
    trouble.filter(|_| !heard).map_or(Ok(()), Err)
}

/// `accept` of the contract: the kinds of a node are the channels that it listens to, so a push finds out by speaking.
pub(crate) async fn accept(store: &Redis, node: NodeId, kinds: Option<Arc<[String]>>) -> Result<()> {
    for queue in store.queues_of_node(node) {
        let keys = store.keys(&queue);
        let Some(wakes) =
            store.wake_subscriptions.channels().get(&keys.wake_channel(node)).map(|ear| ear.sender.clone())
        else {
            continue;
        };
        let any = keys.job_channel(node);
        let channels: Vec<String> = match &kinds {
            Some(kinds) => kinds.iter().take(DELIVERED_KINDS_MAX).map(|kind| format!("{any}{kind}")).collect(),
            None => vec![any.clone()],
        };
        let ear = Arc::new(WakeSubscription::new(queue, wakes, true, channels));
        let names = ear.channels.iter().cloned().chain([any]);
        store.wake_subscriptions.channels().extend(names.map(|name| (name, ear.clone())));
    }
    ensure_subscribed_in_all(store, node).await
}

/// Listens for a node in a queue where it claims, unless the connection that does is still there.
///
/// Before the claim that puts it on the list of those who wait: whoever finds it there can speak to it.
pub(crate) async fn ensure_subscribed(store: &Redis, node: NodeId, keys: &QueueKeys) -> Result<()> {
    for ear in store
        .wake_subscriptions
        .of_node(node, keys)
        .iter()
        .filter(|ear| !ear.sender.is_closed() && !ear.is_subscribed())
    {
        let by = store.servers.subscribe_on_worker(keys.slot, &ear.channels).await?;
        *ear.connection() = by;
        // What was said while nobody listened, nobody has heard.
        if ear.was_subscribed.swap(true, Ordering::SeqCst) {
            let _ = ear.sender.try_send(ear.gap_wake());
        }
    }
    Ok(())
}
