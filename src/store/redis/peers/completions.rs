//! Jobs that have ended: each queue has a channel on which they are told of while somebody waits for any.
//!
//! Who waits says so in the queue's `conf`, for a while at a time: a settle reads that beside what it reads anyway.
//! The channel is heard through the connection that beats, and what is heard goes to the node that asked for it.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redis::{PushInfo, PushKind, Value};

use crate::clock::micros;
use crate::error::{Error, Result};
use crate::job::JobId;
use crate::node::NodeId;
use crate::store::redis::conn::Way;
use crate::store::redis::keys::QueueKeys;
use crate::store::redis::peers::messages::Voices;
use crate::store::redis::{Redis, reply, script};
use crate::store::{ENDED_MAX, ENDS_LAST, ENDS_QUEUES_MAX, Heard};

/// Queues asked at a time.
const AT_ONCE: usize = 50;
/// How many bytes an id has.
pub(crate) const ID_BYTES: usize = 16;

/// Which channels are heard for whom, shared with the connections that hear.
#[derive(Clone)]
pub(crate) struct Watches {
    voices: Voices,
    channels: Arc<Mutex<HashMap<String, Watch>>>,
}

struct Watch {
    slot: u16,
    /// The channels of the nodes that are told.
    nodes: BTreeSet<String>,
    /// The connection that listens; 0 if none does.
    heard_by: u64,
}

impl Watches {
    pub(crate) fn new(voices: Voices) -> Self {
        Watches { voices, channels: Arc::default() }
    }

    fn channels(&self) -> MutexGuard<'_, HashMap<String, Watch>> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something has come that nobody asked for.
    pub(crate) fn hear(&self, info: &PushInfo) {
        let mut channels = self.channels();
        if info.kind == PushKind::Disconnection {
            // Whichever it was: to listen twice does no harm, and the nodes learn of it from their own channels.
            return channels.values_mut().for_each(|watch| watch.heard_by = 0);
        }
        let Some(Value::BulkString(channel)) = info.data.first() else {
            return;
        };
        let Some(watch) = std::str::from_utf8(channel).ok().and_then(|channel| channels.get_mut(channel)) else {
            return;
        };
        let heard = match (&info.kind, info.data.get(1)) {
            (PushKind::SMessage, Some(Value::BulkString(ids))) => {
                Heard::Ended(ids.chunks_exact(ID_BYTES).filter_map(reply::id).collect())
            }
            // The slot has moved away: what is said there now goes unheard.
            (PushKind::SUnsubscribe, _) => {
                watch.heard_by = 0;
                Heard::Gap
            }
            _ => return,
        };
        watch.nodes.iter().for_each(|node| self.voices.tell(node, heard.clone()));
    }

    /// From now on this node is told of these channels and no others; answers those of which nobody is told any more.
    fn swap(&self, node: &str, wanted: &HashMap<String, u16>) -> Vec<(String, u16)> {
        let mut channels = self.channels();
        for (channel, slot) in wanted {
            let watch = Watch { slot: *slot, nodes: BTreeSet::new(), heard_by: 0 };
            channels.entry(channel.clone()).or_insert(watch).nodes.insert(node.to_owned());
        }
        let mut over = Vec::new();
        channels.retain(|channel, watch| {
            if !wanted.contains_key(channel) {
                watch.nodes.remove(node);
            }
            if watch.nodes.is_empty() {
                over.push((channel.clone(), watch.slot));
            }
            !watch.nodes.is_empty()
        });
        over
    }
}

/// `watch_ends` of the contract.
pub(crate) async fn watch(store: &Redis, node: NodeId, queues: &[String]) -> Result<()> {
    if queues.len() > ENDS_QUEUES_MAX {
        return Err(Error::invalid("queues", format!("more than {ENDS_QUEUES_MAX} whose ends are waited for")));
    }
    let keys: Vec<Arc<QueueKeys>> = queues.iter().map(|queue| store.keys(queue)).collect();
    let wanted = keys.iter().map(|keys| (keys.ended(), keys.slot)).collect();
    for (channel, slot) in store.watches.swap(&store.hall.channel_of(node), &wanted) {
        let mut cmd = redis::cmd("SUNSUBSCRIBE");
        cmd.arg(channel);
        store.link.ask("watch_ends", Way::Beat, slot, &cmd).await?;
    }
    for some in keys.chunks(AT_ONCE) {
        for watched in futures_util::future::join_all(some.iter().map(|keys| watch_one(store, keys))).await {
            watched?;
        }
    }
    Ok(())
}

/// First listens, then says that somebody does: what ends between is found by whoever looks after this.
async fn watch_one(store: &Redis, keys: &QueueKeys) -> Result<()> {
    let channel = keys.ended();
    let heard_by = store.watches.channels().get(&channel).map_or(0, |watch| watch.heard_by);
    if heard_by == 0 || heard_by != store.link.generation(Way::Beat, keys.slot) {
        let by = store.link.listen(keys.slot, &channel).await?;
        if let Some(watch) = store.watches.channels().get_mut(&channel) {
            watch.heard_by = by;
        }
    }
    let mut cmd = script::WATCH_COMPLETIONS.call(&*keys);
    cmd.arg(store.manual_now()).arg(micros(ENDS_LAST));
    let value = store.link.repeat("watch_ends", Way::Beat, keys.slot, &script::WATCH_COMPLETIONS, &cmd).await?;
    store.reply("watch_ends", value).map(drop)
}

/// `ended` of the contract.
pub(crate) async fn ended(store: &Redis, queue: &str, ids: &[JobId]) -> Result<Vec<JobId>> {
    let keys = store.keys(queue);
    let mut cmd = script::COMPLETED_AMONG.call(&*keys);
    cmd.arg(store.manual_now());
    for id in ids.iter().take(ENDED_MAX) {
        cmd.arg(id.as_bytes());
    }
    let value = store.link.run("ended", Way::Door, keys.slot, &script::COMPLETED_AMONG, &cmd).await?;
    store.reply("ended", value)?.ids()
}
