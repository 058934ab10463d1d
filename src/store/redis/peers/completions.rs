//! Job completions: each queue has a channel that announces finished jobs while any node waits for one.
//!
//! A waiting node marks the queue's `conf` for a while at a time; a settle reads the mark along with its other fields.
//! The channel arrives on the heartbeat connection, and each completion goes to the nodes that wait.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::clock::micros;
use crate::error::{Error, Result};
use crate::node::NodeId;
use crate::store::redis::conn::ConnectionRole;
use crate::store::redis::keys::QueueKeys;
use crate::store::redis::peers::messages::MessageSubscriber;
use crate::store::redis::subscriptions::{Subscriber, Subscription};
use crate::store::redis::{Redis, reply, script};
use crate::store::{COMPLETION_QUEUES_MAX, COMPLETION_WATCH_DURATION, Notification};
use crate::sync::LockExt;

/// Number of queues handled concurrently.
const QUEUES_AT_ONCE: usize = 50;
/// Length of a job id in bytes.
pub(crate) const JOB_ID_BYTES: usize = 16;

/// Receives the completions of a queue for a node that waits. They share the buffer of the node's messages.
struct CompletionSubscriber(Arc<MessageSubscriber>);

impl Subscriber for CompletionSubscriber {
    fn receive(&self, ids: &[u8]) {
        let ids = ids.chunks_exact(JOB_ID_BYTES).filter_map(reply::parse_job_id).collect();
        self.0.notify(Notification::Completed(ids));
    }

    /// Makes the node watch the queue again at once. After a reconnect, the node notices the gap on its own channel.
    fn note_end(&self) {
        self.0.notify(Notification::Gap);
    }

    fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

/// Implements `CompletionStore::watch_completions`.
pub(crate) async fn watch_completions(store: &Redis, node: NodeId, queues: &[String]) -> Result<()> {
    if queues.len() > COMPLETION_QUEUES_MAX {
        return Err(Error::invalid("queues", format!("must be at most {COMPLETION_QUEUES_MAX}")));
    }
    let keys: Vec<Arc<QueueKeys>> = queues.iter().map(|queue| store.keys(queue)).collect();
    let Some(subscriber) = store.message_subscriber(node) else {
        return Ok(());
    };
    let wanted: BTreeSet<String> = keys.iter().map(|keys| keys.completions_channel()).collect();
    let previous = std::mem::replace(&mut *subscriber.completion_channels.lock_unpoisoned(), wanted.clone());
    for channel in previous.difference(&wanted) {
        store.subscriptions.leave(channel, node).await;
    }
    for batch in keys.chunks(QUEUES_AT_ONCE) {
        let watches = batch.iter().map(|keys| watch_queue(store, node, &subscriber, keys));
        for watched in futures_util::future::join_all(watches).await {
            watched?;
        }
    }
    Ok(())
}

/// Subscribes first, then marks the queue: the caller checks afterwards for jobs that finished in between.
async fn watch_queue(store: &Redis, node: NodeId, to: &Arc<MessageSubscriber>, keys: &QueueKeys) -> Result<()> {
    let channel = keys.completions_channel();
    let subscriber = Arc::new(CompletionSubscriber(to.clone()));
    let channels = vec![channel.clone()];
    let subscription = Subscription::new(ConnectionRole::Heartbeat, keys.slot, channels, node, subscriber);
    store.subscriptions.join(&channel, subscription).ensure(&store.servers).await?;
    let mut cmd = script::WATCH_COMPLETIONS.call(keys);
    cmd.arg(store.manual_now()).arg(micros(COMPLETION_WATCH_DURATION));
    store
        .run_script_idempotent(
            "watch_completions",
            ConnectionRole::Heartbeat,
            keys.slot,
            &script::WATCH_COMPLETIONS,
            &cmd,
        )
        .await
        .map(drop)
}
