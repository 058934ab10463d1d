//! For those who work on keys that are not duly's: the same way to the servers, with scripts and channels of their own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redis::{Cmd, PushInfo, PushKind, Value};
use tokio::sync::mpsc;

use crate::clock::Micros;
use crate::error::Result;
use crate::job::Job;
use crate::node::NodeId;
use crate::store::redis::jobs::push;
use crate::store::redis::nodes::wakes;
use crate::store::redis::{ConnectionRole, PeerKeys, QueueKeys, Redis, Script, ScriptReply, locks, record};
use crate::store::{LockOwner, LockRecord, StoreOptions};

/// Most messages of a channel that may wait to be taken.
const FOREIGN_MESSAGES_MAX: usize = 4_096;
/// How long the server waits until something comes: less than a connection waits for its answer.
const BLOCK_SECONDS: u32 = 4;

/// Channels of others that somebody here listens to, shared with the connection that hears them.
#[derive(Clone, Default)]
pub(super) struct ForeignSubscriptions(Arc<Mutex<HashMap<String, ForeignSubscription>>>);

struct ForeignSubscription {
    sender: mpsc::Sender<Vec<u8>>,
    /// The connection that listens; 0 if none does.
    subscribed_generation: u64,
}

impl ForeignSubscriptions {
    fn channels(&self) -> MutexGuard<'_, HashMap<String, ForeignSubscription>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something has come that nobody asked for.
    pub(super) fn handle_push(&self, info: &PushInfo) {
        if info.kind == PushKind::Disconnection {
            return self.channels().values_mut().for_each(|stranger| stranger.subscribed_generation = 0);
        }
        let (PushKind::Message, [Value::BulkString(channel), Value::BulkString(message), ..]) =
            (&info.kind, &info.data[..])
        else {
            return;
        };
        let channels = self.channels();
        if let Some(stranger) = std::str::from_utf8(channel).ok().and_then(|channel| channels.get(channel)) {
            // Who does not keep up misses some, as on any channel.
            let _ = stranger.sender.try_send(message.clone());
        }
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

    /// Runs a script that must not be carried out twice.
    pub(crate) async fn run_script(
        &self,
        op: &'static str,
        way: ConnectionRole,
        slot: u16,
        script: &Script,
        cmd: &Cmd,
    ) -> Result<ScriptReply> {
        self.parse_reply(op, self.servers.run_script(op, way, slot, script, cmd).await?)
    }

    /// Runs a script that may be carried out twice.
    pub(crate) async fn run_script_idempotent(
        &self,
        op: &'static str,
        way: ConnectionRole,
        slot: u16,
        script: &Script,
        cmd: &Cmd,
    ) -> Result<ScriptReply> {
        self.parse_reply(op, self.servers.run_script_idempotent(op, way, slot, script, cmd).await?)
    }

    /// A plain command that may be carried out twice.
    pub(crate) async fn send_idempotent(
        &self,
        op: &'static str,
        way: ConnectionRole,
        slot: u16,
        cmd: &Cmd,
    ) -> Result<Value> {
        self.servers.send_idempotent(op, way, slot, cmd).await
    }

    /// A plain command that must not be carried out twice.
    pub(crate) async fn send_once(&self, op: &'static str, way: ConnectionRole, slot: u16, cmd: &Cmd) -> Result<Value> {
        self.servers.send_once(op, way, slot, cmd).await
    }

    /// What is said on a channel, from the next [`Redis::keep_listening`] on.
    pub(crate) fn subscribe_foreign(&self, channel: &str) -> mpsc::Receiver<Vec<u8>> {
        let (heard, receiver) = mpsc::channel(FOREIGN_MESSAGES_MAX);
        self.foreign_subscriptions
            .channels()
            .insert(channel.to_owned(), ForeignSubscription { sender: heard, subscribed_generation: 0 });
        receiver
    }

    /// Makes sure that the channels of others are listened to. Answers whether something may have been missed.
    pub(crate) async fn ensure_foreign_subscribed(&self) -> Result<bool> {
        let by = self.servers.generation(ConnectionRole::Heartbeat, self.peer_keys.slot);
        let unheard: Vec<String> = {
            let channels = self.foreign_subscriptions.channels();
            let deaf = |stranger: &&ForeignSubscription| by == 0 || stranger.subscribed_generation != by;
            channels.iter().filter(|(_, one)| deaf(one)).map(|(name, _)| name.clone()).collect()
        };
        for channel in &unheard {
            let mut cmd = redis::cmd("SUBSCRIBE");
            cmd.arg(channel);
            self.servers.send_idempotent("subscribe", ConnectionRole::Heartbeat, self.peer_keys.slot, &cmd).await?;
            let by = self.servers.generation(ConnectionRole::Heartbeat, self.peer_keys.slot);
            if let Some(stranger) = self.foreign_subscriptions.channels().get_mut(channel) {
                stranger.subscribed_generation = by;
            }
        }
        Ok(!unheard.is_empty())
    }

    /// Waits at a list of others until something is in it, and leaves it there; `at` says which connection waits.
    /// Answers whether something is: after a few seconds it is not.
    pub(crate) async fn wait_for_list(&self, list: &str, at: usize) -> Result<bool> {
        let mut cmd = redis::cmd("BLMOVE");
        // From the head to the head: nothing changes, whoever else waits there comes next.
        cmd.arg(list).arg(list).arg("LEFT").arg("LEFT").arg(BLOCK_SECONDS);
        Ok(self.servers.send_once("watch", ConnectionRole::BlockingRead(at), self.peer_keys.slot, &cmd).await?
            != Value::Nil)
    }

    /// Does something where no handler can hold it up.
    pub(crate) fn spawn_on_runtime(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(work);
    }

    /// Tells one idle node of a queue to look. A wake may be lost: it looks once a second besides.
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

    /// Makes sure that a node which claims hears the wakes of a queue.
    pub(crate) async fn ensure_wakes_subscribed(&self, node: NodeId, keys: &QueueKeys) -> Result<()> {
        wakes::ensure_subscribed(self, node, keys).await
    }

    /// How many stand in duly's line before each of these locks.
    pub(crate) async fn lock_waiter_counts(&self, names: &[&str]) -> Result<std::collections::BTreeMap<String, u64>> {
        locks::count_waiting(self, names).await
    }
}

/// The record of a job as a queue keeps it.
pub(crate) fn encode_record(job: &Job, due: Micros) -> Vec<u8> {
    record::encode_job(job, due)
}

/// The counts of a job that has failed once, and its failure, as a queue keeps them.
pub(crate) fn encode_first_failure(node: NodeId, error: &str) -> (String, String) {
    let failed = record::JobMeta { attempts: 1, failures: 1, ..record::JobMeta::default() };
    (failed.encode_counts(), record::encode_failure(1, node, error))
}

/// The group of a job that dies of this, and what it is, as a queue keeps them.
pub(crate) fn dead_group(kind: &str, error: &str) -> (String, String) {
    crate::store::redis::jobs::settle::dead_group(kind, error)
}

/// A hold as locks keep it.
pub(crate) fn decode_lock_hold(name: &str, hold: &[u8]) -> Option<LockRecord> {
    locks::decode_hold(name, 1, hold)
}

/// An owner from its text.
pub(crate) fn parse_lock_owner(text: &str) -> Option<LockOwner> {
    locks::parse_owner(text)
}
