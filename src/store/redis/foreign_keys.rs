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
use crate::store::redis::{PeerKeys, QueueKeys, Redis, Reply, Script, Way, locks, record};
use crate::store::{LockRecord, Options, Owner};

/// Most messages of a channel that may wait to be taken.
const HEARD_MAX: usize = 4_096;
/// How long the server waits until something comes: less than a connection waits for its answer.
const WAIT_SECONDS: u32 = 4;

/// Channels of others that somebody here listens to, shared with the connection that hears them.
#[derive(Clone, Default)]
pub(super) struct Strangers(Arc<Mutex<HashMap<String, Stranger>>>);

struct Stranger {
    heard: mpsc::Sender<Vec<u8>>,
    /// The connection that listens; 0 if none does.
    heard_by: u64,
}

impl Strangers {
    fn channels(&self) -> MutexGuard<'_, HashMap<String, Stranger>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something has come that nobody asked for.
    pub(super) fn hear(&self, info: &PushInfo) {
        if info.kind == PushKind::Disconnection {
            return self.channels().values_mut().for_each(|stranger| stranger.heard_by = 0);
        }
        let (PushKind::Message, [Value::BulkString(channel), Value::BulkString(message), ..]) =
            (&info.kind, &info.data[..])
        else {
            return;
        };
        let channels = self.channels();
        if let Some(stranger) = std::str::from_utf8(channel).ok().and_then(|channel| channels.get(channel)) {
            // Who does not keep up misses some, as on any channel.
            let _ = stranger.heard.try_send(message.clone());
        }
    }
}

impl std::fmt::Debug for Redis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.link.place().shown())
    }
}

impl Redis {
    pub(crate) fn peer_keys(&self) -> &PeerKeys {
        &self.hall
    }

    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    /// Runs a script that must not be carried out twice.
    pub(crate) async fn run(&self, op: &'static str, way: Way, slot: u16, script: &Script, cmd: &Cmd) -> Result<Reply> {
        self.reply(op, self.link.run(op, way, slot, script, cmd).await?)
    }

    /// Runs a script that may be carried out twice.
    pub(crate) async fn repeat(
        &self,
        op: &'static str,
        way: Way,
        slot: u16,
        script: &Script,
        cmd: &Cmd,
    ) -> Result<Reply> {
        self.reply(op, self.link.repeat(op, way, slot, script, cmd).await?)
    }

    /// A plain command that may be carried out twice.
    pub(crate) async fn ask(&self, op: &'static str, way: Way, slot: u16, cmd: &Cmd) -> Result<Value> {
        self.link.ask(op, way, slot, cmd).await
    }

    /// A plain command that must not be carried out twice.
    pub(crate) async fn tell(&self, op: &'static str, way: Way, slot: u16, cmd: &Cmd) -> Result<Value> {
        self.link.tell(op, way, slot, cmd).await
    }

    /// What is said on a channel, from the next [`Redis::keep_listening`] on.
    pub(crate) fn listen_to(&self, channel: &str) -> mpsc::Receiver<Vec<u8>> {
        let (heard, receiver) = mpsc::channel(HEARD_MAX);
        self.strangers.channels().insert(channel.to_owned(), Stranger { heard, heard_by: 0 });
        receiver
    }

    /// Makes sure that the channels of others are listened to. Answers whether something may have been missed.
    pub(crate) async fn keep_listening(&self) -> Result<bool> {
        let by = self.link.generation(Way::Beat, self.hall.slot);
        let unheard: Vec<String> = {
            let channels = self.strangers.channels();
            let deaf = |stranger: &&Stranger| by == 0 || stranger.heard_by != by;
            channels.iter().filter(|(_, one)| deaf(one)).map(|(name, _)| name.clone()).collect()
        };
        for channel in &unheard {
            let mut cmd = redis::cmd("SUBSCRIBE");
            cmd.arg(channel);
            self.link.ask("subscribe", Way::Beat, self.hall.slot, &cmd).await?;
            let by = self.link.generation(Way::Beat, self.hall.slot);
            if let Some(stranger) = self.strangers.channels().get_mut(channel) {
                stranger.heard_by = by;
            }
        }
        Ok(!unheard.is_empty())
    }

    /// Waits at a list of others until something is in it, and leaves it there; `at` says which connection waits.
    /// Answers whether something is: after a few seconds it is not.
    pub(crate) async fn wait_at(&self, list: &str, at: usize) -> Result<bool> {
        let mut cmd = redis::cmd("BLMOVE");
        // From the head to the head: nothing changes, whoever else waits there comes next.
        cmd.arg(list).arg(list).arg("LEFT").arg("LEFT").arg(WAIT_SECONDS);
        Ok(self.link.tell("watch", Way::Watch(at), self.hall.slot, &cmd).await? != Value::Nil)
    }

    /// Does something where no handler can hold it up.
    pub(crate) fn spawn_apart(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.home.spawn(work);
    }

    /// Tells one idle node of a queue to look. A wake may be lost: it looks once a second besides.
    pub(crate) async fn wake_one(&self, queue: &str) {
        let keys = self.keys(queue);
        let mut idle = redis::cmd("ZPOPMAX");
        idle.arg(&keys.idle);
        let node = self.link.tell("wake", Way::Door, keys.slot, &idle).await.ok().and_then(push::first_of);
        if let Some(node) = node {
            wakes::wake(self, &keys, node).await;
        }
    }

    /// Makes sure that a node which claims hears the wakes of a queue.
    pub(crate) async fn keep_hearing(&self, node: NodeId, keys: &QueueKeys) -> Result<()> {
        wakes::listen(self, node, keys).await
    }

    /// How many stand in duly's line before each of these locks.
    pub(crate) async fn waiting_for(&self, names: &[&str]) -> Result<std::collections::BTreeMap<String, u64>> {
        locks::waiting(self, names).await
    }
}

/// The record of a job as a queue keeps it.
pub(crate) fn write_record(job: &Job, due: Micros) -> Vec<u8> {
    record::write_again(job, due)
}

/// The counts of a job that has failed once, and its failure, as a queue keeps them.
pub(crate) fn write_failure(node: NodeId, error: &str) -> (String, String) {
    let failed = record::Meta { attempts: 1, failures: 1, ..record::Meta::default() };
    (failed.counts(), record::failure(1, node, error))
}

/// The group of a job that dies of this, and what it is, as a queue keeps them.
pub(crate) fn group_of(kind: &str, error: &str) -> (String, String) {
    crate::store::redis::jobs::settle::group(kind, error)
}

/// A hold as locks keep it.
pub(crate) fn read_hold(name: &str, hold: &[u8]) -> Option<LockRecord> {
    locks::read(name, 1, hold)
}

/// An owner from its text.
pub(crate) fn read_owner(text: &str) -> Option<Owner> {
    locks::owner(text)
}
