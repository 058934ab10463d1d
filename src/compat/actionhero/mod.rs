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
use crate::job::JobId;
use crate::node::{NodeId, NodeRecord};
use crate::store::contract::{self, Capabilities, HealthStore, PeerStore, Store};
use crate::store::redis::{Redis, RedisUrl};
use crate::store::{AnnounceReply, Health, Notification, PeerInfo, Recipient, StoreOptions};

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
        let options = StoreOptions { prefix, allow_data_loss: Some(true), ..options.clone() };
        Ok(ActionHero { redis: Redis::open(server, &options).await?, lock_prefix, confirm_delay })
    }

    /// Returns the key of a lock.
    fn lock_key(&self, name: &str) -> Result<String> {
        Ok(format!("{}{}", self.lock_prefix, crate::store::redis::check_lock_name(name)?))
    }
}

impl contract::sealed::Sealed for ActionHero {}

impl Store for ActionHero {
    fn name(&self) -> &'static str {
        "ActionHero"
    }

    fn capabilities(&self) -> Capabilities<'_> {
        Capabilities { locks: Some(self), peers: Some(self), health: Some(self), ..Capabilities::default() }
    }

    fn advice(&self, _capability: &str) -> &'static str {
        "open redis://HOST for that, even on the same server"
    }

    fn parse_job_id(&self, text: &str) -> Result<JobId> {
        text.parse()
    }

    fn runtime(&self) -> Option<tokio::runtime::Handle> {
        self.redis.runtime()
    }

    fn now(&self) -> SystemTime {
        Store::now(&self.redis)
    }

    fn check_files(&self, _op: &'static str, _seen_id: Option<&str>) -> Result<()> {
        Ok(())
    }
}

/// Passes everything on to the Redis store, except for the turns of lock waiters.
#[async_trait]
impl PeerStore for ActionHero {
    async fn announce(&self, peer: &PeerInfo) -> Result<AnnounceReply> {
        // The Redis store cannot check lock turns here: the lock keys are ActionHero's.
        let lost_waits = self.redis.announce(&PeerInfo { waited_locks: Vec::new(), ..peer.clone() }).await?.lost_waits;
        Ok(AnnounceReply { lost_waits, ..locks::lock_turns(self, peer).await? })
    }

    async fn withdraw(&self, node: NodeId) -> Result<()> {
        self.redis.withdraw(node).await
    }

    async fn nodes(&self) -> Result<Vec<NodeRecord>> {
        self.redis.nodes().await
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
}

#[async_trait]
impl HealthStore for ActionHero {
    async fn health(&self) -> Result<Health> {
        let mut health = Health { durability: LOCK_DURABILITY.into(), ..self.redis.health().await? };
        health.facts.push(("lock_prefix".into(), self.lock_prefix.clone()));
        // The rules cover only duly's own keys, not ActionHero's.
        health.acl = None;
        Ok(health)
    }
}
