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
use crate::store::redis::conn::{Hearing, Way};
use crate::store::redis::jobs::{claim, push};
use crate::store::redis::keys::QueueKeys;

/// Wakes that may wait for a node: more would tell it nothing new.
const WAKES_MAX: usize = 256;
/// How many idle nodes are tried for one that listens.
const WAKE_TRIES: usize = 3;
/// Most kinds of which a node has jobs put into its hands: for those of others it is woken.
const HANDED_KINDS_MAX: usize = 100;

/// Who listens to which channel, shared with the connections that hear them.
#[derive(Clone, Default)]
pub(crate) struct Ears {
    channels: Arc<Mutex<HashMap<String, Arc<Ear>>>>,
}

struct Ear {
    queue: String,
    wakes: mpsc::Sender<Wake>,
    /// What comes here are jobs, not mere wakes.
    jobs: bool,
    /// What to listen to.
    channels: Vec<String>,
    /// The connection that listens to all of them, if one does.
    by: Mutex<Option<Hearing>>,
    /// One has listened before.
    begun: AtomicBool,
}

impl Ear {
    fn new(queue: String, wakes: mpsc::Sender<Wake>, jobs: bool, channels: Vec<String>) -> Self {
        Ear { queue, wakes, jobs, channels, by: Mutex::default(), begun: AtomicBool::default() }
    }

    fn by(&self) -> MutexGuard<'_, Option<Hearing>> {
        self.by.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hears(&self) -> bool {
        self.by().as_ref().is_some_and(Hearing::is_there)
    }

    /// Whatever was said meanwhile went unheard.
    fn missed(&self) -> Wake {
        let queue = self.queue.clone();
        if self.jobs { Wake::Missed(queue) } else { Wake::Queue(queue) }
    }

    fn read(&self, word: &[u8]) -> Wake {
        match word {
            // A word that cannot be read is of a job all the same.
            word if self.jobs => {
                claim::handed(&self.queue, word).map_or_else(|| self.missed(), |held| Wake::Job(Box::new(held)))
            }
            b"heartbeat" => Wake::Beat,
            _ => Wake::Queue(self.queue.clone()),
        }
    }
}

impl Ears {
    fn channels(&self) -> MutexGuard<'_, HashMap<String, Arc<Ear>>> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something has come that nobody asked for.
    pub(crate) fn hear(&self, info: &PushInfo) {
        if info.kind == PushKind::Disconnection {
            // Whichever it was: to listen twice does no harm, and of a job that is heard of twice one word counts.
            return self.channels().values().for_each(|ear| *ear.by() = None);
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
                let _ = ear.wakes.try_send(ear.read(word));
            }
            // The slot has moved away.
            (PushKind::SUnsubscribe, _) => *ear.by() = None,
            _ => {}
        }
    }

    /// Those of a node in a queue.
    fn of(&self, node: NodeId, keys: &QueueKeys) -> Vec<Arc<Ear>> {
        let channels = self.channels();
        [keys.channel_of(node), keys.jobs_of(node)].iter().filter_map(|name| channels.get(name).cloned()).collect()
    }

    /// Tells a node that nobody listens for: it looks, and by that listens again.
    pub(crate) fn mention_gaps(&self, node: NodeId, keys: &QueueKeys) {
        for ear in self.of(node, keys).iter().filter(|ear| !ear.hears()) {
            let _ = ear.wakes.try_send(ear.missed());
        }
    }

    /// Nobody listens for this node any more.
    pub(crate) async fn close(&self, node: NodeId, keys: &QueueKeys) {
        let gone = self.of(node, keys);
        {
            let mut channels = self.channels();
            channels.remove(&keys.jobs_of(node));
            for channel in gone.iter().flat_map(|ear| &ear.channels) {
                channels.remove(channel);
            }
        }
        for ear in gone {
            let by = ear.by().take();
            if let Some(by) = by {
                by.end(&ear.channels).await;
            }
        }
    }
}

/// Tells an idle node that was just taken off the list to look; passes over those that no longer listen.
pub(crate) async fn wake(store: &Redis, keys: &QueueKeys, node: String) {
    let mut node = Some(node);
    for _ in 0..WAKE_TRIES {
        let Some(id) = node.take() else {
            return;
        };
        let mut publish = redis::cmd("SPUBLISH");
        publish.arg(format!("{}{id}", keys.channel)).arg("");
        // A wake may be lost: the node looks once a second besides.
        match store.link.ask("push", Way::Door, keys.slot, &publish).await {
            Ok(Value::Int(0)) => {}
            Ok(_) | Err(_) => return,
        }
        let mut next = redis::cmd("ZPOPMAX");
        next.arg(&keys.idle);
        node = store.link.ask("push", Way::Door, keys.slot, &next).await.ok().and_then(push::first_of);
    }
}

/// `subscribe` of the contract.
pub(crate) async fn subscribe(store: &Redis, node: NodeId) -> Result<mpsc::Receiver<Wake>> {
    let (wakes, receiver) = mpsc::channel(WAKES_MAX);
    for queue in store.queues_of(node) {
        let keys = store.keys(&queue);
        let channel = keys.channel_of(node);
        let ear = Ear::new(queue, wakes.clone(), false, vec![channel.clone()]);
        store.ears.channels().insert(channel, Arc::new(ear));
    }
    listen_in_all(store, node).await?;
    Ok(receiver)
}

/// Listens in all queues of a node. One of a server that is away is listened to before the first claim that it answers.
/// Fails only if that is all of them.
async fn listen_in_all(store: &Redis, node: NodeId) -> Result<()> {
    let queues = store.queues_of(node);
    let listens = queues.iter().map(async |queue| listen(store, node, &store.keys(queue)).await);
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
    for queue in store.queues_of(node) {
        let keys = store.keys(&queue);
        let Some(wakes) = store.ears.channels().get(&keys.channel_of(node)).map(|ear| ear.wakes.clone()) else {
            continue;
        };
        let any = keys.jobs_of(node);
        let channels: Vec<String> = match &kinds {
            Some(kinds) => kinds.iter().take(HANDED_KINDS_MAX).map(|kind| format!("{any}{kind}")).collect(),
            None => vec![any.clone()],
        };
        let ear = Arc::new(Ear::new(queue, wakes, true, channels));
        let names = ear.channels.iter().cloned().chain([any]);
        store.ears.channels().extend(names.map(|name| (name, ear.clone())));
    }
    listen_in_all(store, node).await
}

/// Listens for a node in a queue where it claims, unless the connection that does is still there.
///
/// Before the claim that puts it on the list of those who wait: whoever finds it there can speak to it.
pub(crate) async fn listen(store: &Redis, node: NodeId, keys: &QueueKeys) -> Result<()> {
    for ear in store.ears.of(node, keys).iter().filter(|ear| !ear.wakes.is_closed() && !ear.hears()) {
        let by = store.link.listen_at_work(keys.slot, &ear.channels).await?;
        *ear.by() = by;
        // What was said while nobody listened, nobody has heard.
        if ear.begun.swap(true, Ordering::SeqCst) {
            let _ = ear.wakes.try_send(ear.missed());
        }
    }
    Ok(())
}
