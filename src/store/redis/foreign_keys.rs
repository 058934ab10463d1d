//! Lets `compat` run its own scripts and channels, on keys that are not duly's, over the same connections.

use std::sync::Arc;
use std::time::SystemTime;

use redis::{Cmd, Value};
use tokio::sync::mpsc;

use crate::clock::Micros;
use crate::error::Result;
use crate::job::{Failure, Job, JobRun, RunOutcome};
use crate::node::NodeId;
use crate::store::redis::jobs::push;
use crate::store::redis::nodes::wakes;
use crate::store::redis::subscriptions::{Subscriber, Subscription};
use crate::store::redis::{ConnectionRole, PeerKeys, QueueKeys, Redis, locks, record, run_text};
use crate::store::{LockOwner, LockRecord, LockRequest, StoreOptions};

/// Maximum buffered messages per channel.
const FOREIGN_MESSAGES_MAX: usize = 4_096;
/// Server-side timeout of a blocking read; shorter than the reply timeout of a connection.
const BLOCK_SECONDS: u32 = 4;

/// Receives the messages of a foreign channel.
struct ForeignSubscriber(mpsc::Sender<Vec<u8>>);

impl Subscriber for ForeignSubscriber {
    fn receive(&self, message: &[u8]) {
        // A slow receiver misses messages, as on any channel.
        let _ = self.0.try_send(message.to_vec());
    }

    fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

impl std::fmt::Debug for Redis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.servers.url().display_url())
    }
}

impl Redis {
    pub(crate) fn peer_keys(&self) -> &PeerKeys {
        &self.peer_keys
    }

    pub(crate) fn options(&self) -> &StoreOptions {
        &self.options
    }

    /// Sends a plain command that is safe to run twice.
    pub(crate) async fn send_idempotent(
        &self,
        op: &'static str,
        role: ConnectionRole,
        slot: u16,
        cmd: &Cmd,
    ) -> Result<Value> {
        self.servers.send_idempotent(op, role, slot, cmd).await
    }

    /// Sends a plain command that must not run twice.
    pub(crate) async fn send_once(
        &self,
        op: &'static str,
        role: ConnectionRole,
        slot: u16,
        cmd: &Cmd,
    ) -> Result<Value> {
        self.servers.send_once(op, role, slot, cmd).await
    }

    /// Subscribes to a channel. Delivery starts with the next [`Redis::ensure_foreign_subscribed`].
    pub(crate) fn subscribe_foreign(&self, channel: &str) -> mpsc::Receiver<Vec<u8>> {
        let (sender, receiver) = mpsc::channel(FOREIGN_MESSAGES_MAX);
        let subscriber = Arc::new(ForeignSubscriber(sender));
        self.subscriptions.replace(channel, Subscription::foreign(self.peer_keys.slot, channel, subscriber));
        receiver
    }

    /// Subscribes to a foreign channel again if the subscribed connection is gone. Messages in between are lost.
    pub(crate) async fn ensure_foreign_subscribed(&self, channel: &str) -> Result<()> {
        match self.subscriptions.get(channel) {
            Some(subscription) => subscription.ensure(&self.servers).await,
            None => Ok(()),
        }
    }

    /// Waits a few seconds until a foreign list has an element, and leaves it there. `index` selects the connection.
    /// Returns whether the list has an element.
    pub(crate) async fn wait_for_list(&self, list: &str, index: usize) -> Result<bool> {
        let mut cmd = redis::cmd("BLMOVE");
        // From the head to the head: the list stays the same, and the next waiter is served too.
        cmd.arg(list).arg(list).arg("LEFT").arg("LEFT").arg(BLOCK_SECONDS);
        Ok(self.servers.send_once("watch", ConnectionRole::BlockingRead(index), self.peer_keys.slot, &cmd).await?
            != Value::Nil)
    }

    /// Spawns a task on the store's runtime, where no handler can block it.
    pub(crate) fn spawn_on_runtime(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(work);
    }

    /// Wakes one idle node of a queue. A lost wake is harmless: nodes also check once a second.
    pub(crate) async fn wake_idle_node(&self, queue: &str) {
        let keys = self.keys(queue);
        let mut idle = redis::cmd("ZPOPMAX");
        idle.arg(&keys.idle);
        let node = self
            .servers
            .send_once("wake", ConnectionRole::Client, keys.slot, &idle)
            .await
            .ok()
            .and_then(push::popped_member);
        if let Some(node) = node {
            wakes::wake_listening_node(self, &keys, node).await;
        }
    }

    /// Subscribes a claiming node to the wakes of a queue.
    pub(crate) async fn ensure_wakes_subscribed(&self, node: NodeId, keys: &QueueKeys) -> Result<()> {
        wakes::ensure_subscribed(self, node, keys).await
    }

    /// Returns the number of duly's waiters for each of these locks.
    pub(crate) async fn lock_waiter_counts(&self, names: &[&str]) -> Result<std::collections::BTreeMap<String, u64>> {
        locks::waiters::count_waiting(self, names).await
    }
}

/// Encodes the record of a job.
pub(crate) fn encode_record(job: &Job, due: Micros) -> Vec<u8> {
    record::encode_job(job, due)
}

/// Encodes the counters of a job that has failed once, and its failure.
pub(crate) fn encode_first_failure(node: NodeId, error: &str) -> (String, String) {
    let failed = record::JobMeta { attempts: 1, runs: 1, ..record::JobMeta::default() };
    let error = Failure::truncate_error(error).to_owned();
    let failure = Failure { at: SystemTime::UNIX_EPOCH, attempt: 1, node, error };
    (failed.encode_counts(), run_text::encode_run(&JobRun::failed(RunOutcome::Bury, failure)))
}

/// Returns the group of a job that dies of this error, and its description.
pub(crate) fn dead_group(kind: &str, error: &str) -> (String, String) {
    crate::store::redis::jobs::settle::dead_group(kind, error)
}

/// Encodes the holder of a lock.
pub(crate) fn encode_lock_holder(request: &LockRequest) -> String {
    locks::encode_holder(request)
}

/// Decodes the hold of a lock.
pub(crate) fn decode_lock_hold(name: &str, hold: &[u8]) -> Option<LockRecord> {
    locks::decode_hold(name, 1, hold)
}

/// Parses the owner of a lock.
pub(crate) fn parse_lock_owner(text: &str) -> Option<LockOwner> {
    locks::parse_owner(text)
}
