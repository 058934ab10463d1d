//! ActionHero: its locks on its own keys, through the same [`Duly::lock`](crate::Duly::lock); its cluster calls by a bridge.
//!
//! `actionhero://host/db` has locks and calls, and no jobs: ActionHero's tasks are those of node-resque.
//! Nodes of duly's on such a URL find, call and wait for each other as on any other store, on keys of duly's own beside
//! ActionHero's.

mod bridge;
mod locks;
mod message;

pub(in crate::compat) use self::locks::LockKeys;

pub use self::bridge::{Bridge, BridgeBuilder, BridgeCall, BridgeReply, TOKEN_VARIABLE};

use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tokio::sync::mpsc;

use super::{reject_replicas, url_option};
use crate::error::{Error, Result};
use crate::job::push::{Due, Push, PushResult};
use crate::job::{JobId, JobRecord};
use crate::node::{Node, NodeId, NodeRecord};
use crate::store::redis::{Redis, RedisUrl};
use crate::store::{
    AnnounceReply, AttemptEnd, ChangeResult, Claim, ClaimReply, Filter, Health, HeartbeatReply, JobPage, LockPage,
    LockReply, LockRequest, Notification, PeerInfo, QueueCounts, Recipient, Store, StoreOptions, TransferBatch,
    TransferBatchResult, TransferMarkReply, Wake,
};

/// Options of its URL.
pub(super) const URL_OPTIONS: &[&str] = &["lock_prefix", "channel", "wary"];
/// What ActionHero's locks begin with, unless its configuration says otherwise.
const DEFAULT_LOCK_PREFIX: &str = "actionhero:lock:";
/// How long a lock that was just taken is watched before it counts: nodes before 16.0.4 take what they have not got.
const DEFAULT_CONFIRM_DELAY: Duration = Duration::from_millis(50);
/// What its locks survive: the server's settings say only what becomes of jobs.
const LOCK_DURABILITY: &str = "If the server stops or fails over to a replica, locks may be lost before their end: hand the fence to what they protect.";
/// Longest time to watch it.
const CONFIRM_DELAY_MAX: Duration = Duration::from_secs(5);

/// Locks on the keys of ActionHero.
pub(crate) struct ActionHero {
    /// The hall of duly's nodes here: who is there, who waits, what they say to each other.
    redis: Redis,
    lock_prefix: String,
    confirm_delay: Duration,
}

impl ActionHero {
    pub(crate) async fn open(place: RedisUrl, options: &StoreOptions) -> Result<Self> {
        if options.clock.is_manual() {
            return Err(Error::invalid(
                "clock",
                "ActionHero's locks end by the server's clock, which no test can move",
            ));
        }
        reject_replicas(options, "a lock of ActionHero's")?;
        let wary = match url_option(&options.system_options, "wary") {
            None => DEFAULT_CONFIRM_DELAY,
            Some(text) => crate::store::parse_duration(text)
                .map_err(|why| Error::invalid("wary", format!("{text:?} is {why}")))?,
        };
        if wary > CONFIRM_DELAY_MAX {
            return Err(Error::invalid("wary", format!("at most {CONFIRM_DELAY_MAX:?}")));
        }
        let lock_prefix = url_option(&options.system_options, "lock_prefix").unwrap_or(DEFAULT_LOCK_PREFIX).to_owned();
        // A lock does not outlive a server that forgets, whoever keeps it there.
        let prefix = format!("{}:actionhero", options.prefix);
        let options = StoreOptions { prefix, allow_data_loss: true, ..options.clone() };
        Ok(ActionHero { redis: Redis::open(place, &options).await?, lock_prefix, confirm_delay: wary })
    }

    /// The key of a lock.
    fn lock_key(&self, name: &str) -> Result<String> {
        Ok(format!("{}{}", self.lock_prefix, crate::store::redis::check_lock_name(name)?))
    }
}

/// The answer to everything that is about jobs.
fn jobs_unsupported<T>() -> Result<T> {
    Err(Error::invalid(
        "store",
        "actionhero:// has locks and calls, no jobs; open redis://HOST for jobs: both may be on the same server",
    ))
}

impl crate::store::sealed::Sealed for ActionHero {}

#[async_trait]
impl Store for ActionHero {
    fn runtime(&self) -> Option<tokio::runtime::Handle> {
        Store::runtime(&self.redis)
    }

    async fn push(&self, _jobs: Vec<Push>) -> Result<Vec<PushResult>> {
        jobs_unsupported()
    }

    async fn claim(&self, _node: NodeId, _claim: Claim) -> Result<ClaimReply> {
        jobs_unsupported()
    }

    async fn settle(&self, _node: NodeId, _ends: Vec<AttemptEnd>) -> Result<Vec<JobId>> {
        jobs_unsupported()
    }

    async fn get(&self, _id: JobId) -> Result<Option<JobRecord>> {
        jobs_unsupported()
    }

    async fn list(&self, _filter: Filter) -> Result<JobPage> {
        jobs_unsupported()
    }

    async fn remove(&self, _id: JobId) -> Result<ChangeResult> {
        jobs_unsupported()
    }

    async fn reschedule(&self, _id: JobId, _due: Due) -> Result<ChangeResult> {
        jobs_unsupported()
    }

    async fn counts(&self) -> Result<Vec<QueueCounts>> {
        jobs_unsupported()
    }

    async fn set_paused(&self, _queue: &str, _paused: bool) -> Result<bool> {
        jobs_unsupported()
    }

    async fn prune(&self, _queue: &str, _done_max: usize) -> Result<usize> {
        jobs_unsupported()
    }

    async fn heartbeat(&self, _node: &Node) -> Result<HeartbeatReply> {
        jobs_unsupported()
    }

    async fn leave(&self, node: NodeId) -> Result<()> {
        self.redis.leave(node).await
    }

    async fn nodes(&self) -> Result<Vec<NodeRecord>> {
        self.redis.nodes().await
    }

    async fn subscribe_wakes(&self, _node: NodeId) -> Result<mpsc::Receiver<Wake>> {
        jobs_unsupported()
    }

    async fn set_transfer_mark(&self, _queue: &str, _mover: NodeId, _to: Option<&str>) -> Result<TransferMarkReply> {
        jobs_unsupported()
    }

    async fn transfer_in(&self, _batch: TransferBatch) -> Result<TransferBatchResult> {
        jobs_unsupported()
    }

    async fn transfer_out(
        &self,
        _queue: &str,
        _mover: NodeId,
        _jobs: Vec<(JobId, SystemTime)>,
    ) -> Result<Option<usize>> {
        jobs_unsupported()
    }

    async fn lock(&self, ask: &LockRequest) -> Result<LockReply> {
        locks::lock(self, ask).await
    }

    async fn extend_locks(&self, asks: &[LockRequest]) -> Result<Vec<bool>> {
        locks::extend_locks(self, asks).await
    }

    async fn unlock(&self, ask: &LockRequest) -> Result<bool> {
        locks::unlock(self, ask).await
    }

    async fn cancel_wait(&self, ask: &LockRequest) -> Result<()> {
        locks::cancel_wait(self, ask).await
    }

    async fn locks(&self, name: Option<&str>, cursor: Option<&str>) -> Result<LockPage> {
        locks::locks(self, name, cursor).await
    }

    async fn break_lock(&self, name: &str) -> Result<u64> {
        locks::break_lock(self, name).await
    }

    async fn announce(&self, guest: &PeerInfo) -> Result<AnnounceReply> {
        // Of locks the hall knows nothing: their keys are ActionHero's.
        let lost_waits = self.redis.announce(&PeerInfo { waited_locks: Vec::new(), ..guest.clone() }).await?.lost_waits;
        Ok(AnnounceReply { lost_waits, ..locks::lock_turns(self, guest).await? })
    }

    async fn withdraw(&self, node: NodeId) -> Result<()> {
        self.redis.withdraw(node).await
    }

    async fn subscribe_messages(&self, node: NodeId, all: bool) -> Result<mpsc::Receiver<Notification>> {
        self.redis.subscribe_messages(node, all).await
    }

    async fn send(&self, to: Recipient, message: &[u8]) -> Result<u64> {
        self.redis.send(to, message).await
    }

    async fn set_connections(&self, node: NodeId, held: &[String], gone: &[String]) -> Result<()> {
        self.redis.set_connections(node, held, gone).await
    }

    async fn refresh_connections(&self, node: NodeId, held: &[String]) -> Result<()> {
        self.redis.refresh_connections(node, held).await
    }

    async fn connection_holder(&self, connection: &str) -> Result<Option<NodeId>> {
        self.redis.connection_holder(connection).await
    }

    async fn peers_with_method(&self, method: &str) -> Result<Vec<NodeId>> {
        self.redis.peers_with_method(method).await
    }

    fn now(&self) -> SystemTime {
        Store::now(&self.redis)
    }

    async fn health(&self) -> Result<Health> {
        let mut health = Health { durability: LOCK_DURABILITY.into(), ..self.redis.health().await? };
        health.facts.push(("lock_prefix".into(), self.lock_prefix.clone()));
        // Written for the keys of duly's own; what is needed here beside them nobody has worked out.
        health.acl = None;
        Ok(health)
    }
}
