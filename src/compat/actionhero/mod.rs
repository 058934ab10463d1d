//! ActionHero: [`Duly::lock`](crate::Duly::lock) on ActionHero's own lock keys, and cluster calls through a [`Bridge`].
//!
//! `actionhero://host/db` supports locks and calls, but no jobs: ActionHero's tasks belong to node-resque.
//! duly nodes on such a URL find, call and wait for each other as on any other store, through keys of their own.

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

/// URL options of this system.
pub(super) const URL_OPTIONS: &[&str] = &["lock_prefix", "channel", "confirm_delay"];
/// ActionHero's default prefix of lock keys.
const DEFAULT_LOCK_PREFIX: &str = "actionhero:lock:";
/// How long a new lock is watched before it counts: ActionHero nodes before 16.0.4 may take a lock that is held.
const DEFAULT_CONFIRM_DELAY: Duration = Duration::from_millis(50);
/// The durability of locks; the report of the Redis store is about jobs.
const LOCK_DURABILITY: &str = "If the server stops or fails over to a replica, locks may be lost before they expire: check the fence in the resource they protect.";
/// Longest `confirm_delay`.
const CONFIRM_DELAY_MAX: Duration = Duration::from_secs(5);

/// A store for locks on ActionHero's keys.
pub(crate) struct ActionHero {
    /// Holds the keys of the duly nodes here: peers, lock waiters and messages.
    redis: Redis,
    lock_prefix: String,
    confirm_delay: Duration,
}

impl ActionHero {
    pub(crate) async fn open(server: RedisUrl, options: &StoreOptions) -> Result<Self> {
        if options.clock.is_manual() {
            return Err(Error::invalid(
                "clock",
                "must be the system clock: ActionHero's locks expire by the server's clock, which a test cannot set",
            ));
        }
        reject_replicas(options, "an ActionHero lock")?;
        let confirm_delay = match url_option(&options.system_options, "confirm_delay") {
            None => DEFAULT_CONFIRM_DELAY,
            Some(text) => crate::store::parse_duration(text)
                .map_err(|error| Error::invalid("confirm_delay", format!("{text:?} is {error}")))?,
        };
        if confirm_delay > CONFIRM_DELAY_MAX {
            return Err(Error::invalid("confirm_delay", format!("must be at most {CONFIRM_DELAY_MAX:?}")));
        }
        let lock_prefix = url_option(&options.system_options, "lock_prefix").unwrap_or(DEFAULT_LOCK_PREFIX).to_owned();
        // ActionHero's own locks are lost with the server's memory too.
        let prefix = format!("{}:actionhero", options.prefix);
        let options = StoreOptions { prefix, allow_data_loss: true, ..options.clone() };
        Ok(ActionHero { redis: Redis::open(server, &options).await?, lock_prefix, confirm_delay })
    }

    /// Returns the key of a lock.
    fn lock_key(&self, name: &str) -> Result<String> {
        Ok(format!("{}{}", self.lock_prefix, crate::store::redis::check_lock_name(name)?))
    }
}

/// Returns the error of every operation on jobs.
fn jobs_unsupported<T>() -> Result<T> {
    Err(Error::invalid(
        "store",
        "actionhero:// supports locks and calls, but no jobs; open redis://HOST for jobs, even on the same server",
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

    async fn set_transfer_mark(&self, _queue: &str, _id: NodeId, _to: Option<&str>) -> Result<TransferMarkReply> {
        jobs_unsupported()
    }

    async fn transfer_in(&self, _batch: TransferBatch) -> Result<TransferBatchResult> {
        jobs_unsupported()
    }

    async fn transfer_out(&self, _queue: &str, _id: NodeId, _jobs: Vec<(JobId, SystemTime)>) -> Result<Option<usize>> {
        jobs_unsupported()
    }

    async fn lock(&self, request: &LockRequest) -> Result<LockReply> {
        locks::lock(self, request).await
    }

    async fn extend_locks(&self, requests: &[LockRequest]) -> Result<Vec<bool>> {
        locks::extend_locks(self, requests).await
    }

    async fn unlock(&self, request: &LockRequest) -> Result<bool> {
        locks::unlock(self, request).await
    }

    async fn cancel_wait(&self, request: &LockRequest) -> Result<()> {
        locks::cancel_wait(self, request).await
    }

    async fn locks(&self, name: Option<&str>, cursor: Option<&str>) -> Result<LockPage> {
        locks::locks(self, name, cursor).await
    }

    async fn break_lock(&self, name: &str) -> Result<u64> {
        locks::break_lock(self, name).await
    }

    async fn announce(&self, peer: &PeerInfo) -> Result<AnnounceReply> {
        // The Redis store cannot check lock turns here: the lock keys are ActionHero's.
        let lost_waits = self.redis.announce(&PeerInfo { waited_locks: Vec::new(), ..peer.clone() }).await?.lost_waits;
        Ok(AnnounceReply { lost_waits, ..locks::lock_turns(self, peer).await? })
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
        // The rules cover only duly's own keys, not ActionHero's.
        health.acl = None;
        Ok(health)
    }
}
