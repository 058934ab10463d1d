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

use super::{no_replicas, option};
use crate::error::{Error, Result};
use crate::job::push::{Due, Push, Pushed};
use crate::job::{JobId, Record};
use crate::node::{Node, NodeId, NodeRecord};
use crate::store::redis::{Place, Redis};
use crate::store::{
    Attended, Beaten, Claim, Claimed, End, Filter, Guest, Health, Heard, LockAsk, LockPage, LockTaken, Marked, MoveIn,
    Moved, MovedIn, Options, Page, QueueCounts, Store, To, Wake,
};

/// Options of its URL.
pub(super) const OPTIONS: &[&str] = &["lock_prefix", "channel", "wary"];
/// What ActionHero's locks begin with, unless its configuration says otherwise.
const LOCK_PREFIX: &str = "actionhero:lock:";
/// How long a lock that was just taken is watched before it counts: nodes before 16.0.4 take what they have not got.
const WARY: Duration = Duration::from_millis(50);
/// What its locks survive: the server's settings say only what becomes of jobs.
const SURVIVES: &str = "If the server stops or fails over to a replica, locks may be lost before their end: hand the fence to what they protect.";
/// Longest time to watch it.
const WARY_MAX: Duration = Duration::from_secs(5);

/// Locks on the keys of ActionHero.
pub(crate) struct ActionHero {
    /// The hall of duly's nodes here: who is there, who waits, what they say to each other.
    hall: Redis,
    lock_prefix: String,
    wary: Duration,
}

impl ActionHero {
    pub(crate) async fn open(place: Place, options: &Options) -> Result<Self> {
        if options.clock.is_manual() {
            return Err(Error::invalid(
                "clock",
                "ActionHero's locks end by the server's clock, which no test can move",
            ));
        }
        no_replicas(options, "a lock of ActionHero's")?;
        let wary = match option(&options.foreign, "wary") {
            None => WARY,
            Some(text) => {
                crate::store::duration(text).map_err(|why| Error::invalid("wary", format!("{text:?} is {why}")))?
            }
        };
        if wary > WARY_MAX {
            return Err(Error::invalid("wary", format!("at most {WARY_MAX:?}")));
        }
        let lock_prefix = option(&options.foreign, "lock_prefix").unwrap_or(LOCK_PREFIX).to_owned();
        // A lock does not outlive a server that forgets, whoever keeps it there.
        let prefix = format!("{}:actionhero", options.prefix);
        let options = Options { prefix, allow_data_loss: true, ..options.clone() };
        Ok(ActionHero { hall: Redis::open(place, &options).await?, lock_prefix, wary })
    }

    /// The key of a lock.
    fn key(&self, name: &str) -> Result<String> {
        Ok(format!("{}{}", self.lock_prefix, crate::store::redis::named(name)?))
    }
}

/// The answer to everything that is about jobs.
fn no_jobs<T>() -> Result<T> {
    Err(Error::invalid(
        "store",
        "actionhero:// has locks and calls, no jobs; open redis://HOST for jobs: both may be on the same server",
    ))
}

impl crate::store::sealed::Sealed for ActionHero {}

#[async_trait]
impl Store for ActionHero {
    fn home(&self) -> Option<tokio::runtime::Handle> {
        Store::home(&self.hall)
    }

    async fn push(&self, _jobs: Vec<Push>) -> Result<Vec<Pushed>> {
        no_jobs()
    }

    async fn claim(&self, _node: NodeId, _claim: Claim) -> Result<Claimed> {
        no_jobs()
    }

    async fn settle(&self, _node: NodeId, _ends: Vec<End>) -> Result<Vec<JobId>> {
        no_jobs()
    }

    async fn get(&self, _id: JobId) -> Result<Option<Record>> {
        no_jobs()
    }

    async fn list(&self, _filter: Filter) -> Result<Page> {
        no_jobs()
    }

    async fn remove(&self, _id: JobId) -> Result<Moved> {
        no_jobs()
    }

    async fn reschedule(&self, _id: JobId, _due: Due) -> Result<Moved> {
        no_jobs()
    }

    async fn counts(&self) -> Result<Vec<QueueCounts>> {
        no_jobs()
    }

    async fn pause(&self, _queue: &str, _paused: bool) -> Result<bool> {
        no_jobs()
    }

    async fn prune(&self, _queue: &str, _done_max: usize) -> Result<usize> {
        no_jobs()
    }

    async fn beat(&self, _node: &Node) -> Result<Beaten> {
        no_jobs()
    }

    async fn leave(&self, node: NodeId) -> Result<()> {
        self.hall.leave(node).await
    }

    async fn nodes(&self) -> Result<Vec<NodeRecord>> {
        self.hall.nodes().await
    }

    async fn subscribe(&self, _node: NodeId) -> Result<mpsc::Receiver<Wake>> {
        no_jobs()
    }

    async fn set_moving(&self, _queue: &str, _mover: NodeId, _to: Option<&str>) -> Result<Marked> {
        no_jobs()
    }

    async fn move_in(&self, _batch: MoveIn) -> Result<MovedIn> {
        no_jobs()
    }

    async fn move_out(&self, _queue: &str, _mover: NodeId, _jobs: Vec<(JobId, SystemTime)>) -> Result<Option<usize>> {
        no_jobs()
    }

    async fn lock(&self, ask: &LockAsk) -> Result<LockTaken> {
        locks::lock(self, ask).await
    }

    async fn extend_locks(&self, asks: &[LockAsk]) -> Result<Vec<bool>> {
        locks::extend(self, asks).await
    }

    async fn unlock(&self, ask: &LockAsk) -> Result<bool> {
        locks::unlock(self, ask).await
    }

    async fn leave_line(&self, ask: &LockAsk) -> Result<()> {
        locks::leave_line(self, ask).await
    }

    async fn locks(&self, name: Option<&str>, cursor: Option<&str>) -> Result<LockPage> {
        locks::locks(self, name, cursor).await
    }

    async fn break_lock(&self, name: &str) -> Result<u64> {
        locks::break_lock(self, name).await
    }

    async fn attend(&self, guest: &Guest) -> Result<Attended> {
        // Of locks the hall knows nothing: their keys are ActionHero's.
        let lost = self.hall.attend(&Guest { waits: Vec::new(), ..guest.clone() }).await?.lost;
        Ok(Attended { lost, ..locks::turns(self, guest).await? })
    }

    async fn depart(&self, node: NodeId) -> Result<()> {
        self.hall.depart(node).await
    }

    async fn hear(&self, node: NodeId, all: bool) -> Result<mpsc::Receiver<Heard>> {
        self.hall.hear(node, all).await
    }

    async fn send(&self, to: To, message: &[u8]) -> Result<u64> {
        self.hall.send(to, message).await
    }

    async fn set_connections(&self, node: NodeId, held: &[String], gone: &[String]) -> Result<()> {
        self.hall.set_connections(node, held, gone).await
    }

    async fn keep_connections(&self, node: NodeId, held: &[String]) -> Result<()> {
        self.hall.keep_connections(node, held).await
    }

    async fn connection(&self, connection: &str) -> Result<Option<NodeId>> {
        self.hall.connection(connection).await
    }

    async fn answering(&self, method: &str) -> Result<Vec<NodeId>> {
        self.hall.answering(method).await
    }

    fn now(&self) -> SystemTime {
        Store::now(&self.hall)
    }

    async fn health(&self) -> Result<Health> {
        let mut health = Health { durability: SURVIVES.into(), ..self.hall.health().await? };
        health.facts.push(("lock_prefix".into(), self.lock_prefix.clone()));
        // Written for the keys of duly's own; what is needed here beside them nobody has worked out.
        health.acl = None;
        Ok(health)
    }
}
