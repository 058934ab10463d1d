//! The store on Redis or Valkey: one server, Sentinel, or Cluster.
//!
//! Every operation of the contract is one script on the keys of one queue; `keys.rs` lists the keys, `lua/README.md` describes
//! the scripts.
//! ARGV[1] of every script is empty, or the time that a test has set; nothing else passes "now".

mod access;
mod assemble;
mod clock_offset;
mod conn;
mod contract;
mod cron;
mod foreign_keys;
mod jobs;
mod key_cache;
mod keys;
mod locks;
mod maintenance;
mod nodes;
mod peers;
mod queue_registry;
mod record;
mod reply;
mod script;
mod stats;
mod transfer;
mod url;

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use redis::{Cmd, Value};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use self::clock_offset::Ahead;
pub(crate) use self::conn::Way;
use self::conn::{Confirm, Link};
use self::foreign_keys::Strangers;
#[cfg(feature = "compat")]
pub(crate) use self::foreign_keys::{group_of, read_hold, read_owner, write_failure, write_record};
#[cfg(feature = "compat")]
pub(crate) use self::jobs::push::half_way;
use self::key_cache::Keyring;
pub(crate) use self::keys::{PeerKeys, QueueKeys};
#[cfg(feature = "compat")]
pub(crate) use self::keys::{slot_of, tag_of};
#[cfg(feature = "compat")]
pub(crate) use self::locks::{count, named, read_cursor, span};
pub(crate) use self::maintenance::acl::rules as acl_rules;
#[cfg(feature = "compat")]
pub(crate) use self::maintenance::health::servers;
use self::nodes::wakes::Ears;
use self::peers::completions::Watches;
use self::peers::messages::Voices;
use self::queue_registry::Names;
pub(crate) use self::reply::Reply;
#[cfg(feature = "compat")]
pub(crate) use self::reply::number;
pub(crate) use self::script::{KeySet, Script};
#[cfg(feature = "compat")]
pub(crate) use self::script::{key_set, parts, scripts, sha1};
pub(crate) use self::url::Place;
use super::{
    Attended, Audit, AuditRecord, Beaten, Capacity, Claim, Claimed, CronFire, CronPage, CronPut, CronRecord,
    CronsFired, DeadGroup, DueCrons, Edit, End, Filter, Guest, Health, Heard, History, HistoryAsk, HistoryTally,
    KindPoint, LockAsk, LockPage, LockTaken, Marked, MoveIn, Moved, MovedIn, NewToken, Note, Options, Page, PutCron,
    QueueCounts, Store, Target, To, Wake,
};
use crate::admin::token::Token;
use crate::clock::{Clock, Micros, from_micros};
use crate::error::{Error, Result};
use crate::job::push::{Due, Push, Pushed};
use crate::job::{JobId, Record};
use crate::node::{Node, NodeId, NodeRecord};
use crate::store::redis::maintenance::health;

/// How often Sentinels are asked who the master is, although it still answers; and how often somebody looks for masters of a
/// Cluster that do not.
const LOOK_AFTER_MASTERS: Duration = Duration::from_secs(2);

/// A store on Redis or Valkey.
pub(crate) struct Redis {
    link: Arc<Link>,
    options: Options,
    prefix: String,
    hall: PeerKeys,
    names: Arc<Names>,
    ears: Ears,
    voices: Voices,
    watches: Watches,
    strangers: Strangers,
    known: Mutex<Known>,
    /// How far the store's clock is ahead of ours, as the last answers said.
    ahead: Ahead,
    /// The thread on which beats are sent and messages are heard.
    home: tokio::runtime::Handle,
    /// Ends it.
    stop: CancellationToken,
}

/// What this process remembers; all of it can be learnt again.
#[derive(Default)]
struct Known {
    keys: Keyring,
    /// In which queues a node of ours beats.
    works: HashMap<NodeId, BTreeSet<String>>,
    /// In which queues a node of ours may be on the idle list.
    idle: BTreeSet<(NodeId, String)>,
    /// The mark of the last put-off in a queue up to which a node of ours has looked for what it knows.
    looked: HashMap<(NodeId, Arc<str>), i64>,
    /// How far a dead node's queue has been gone through.
    scans: HashMap<(NodeId, String), String>,
    /// Nodes of ours that can be found in the hall.
    guests: BTreeSet<NodeId>,
    clearing: peers::Clearing,
}

impl Redis {
    /// Connects, and checks that the server can keep what it is given.
    pub(crate) async fn open(place: Place, options: &Options) -> Result<Self> {
        let stop = CancellationToken::new();
        // A store that does not come to be leaves no thread behind.
        let ends_it = stop.clone().drop_guard();
        let home = home(stop.clone())?;
        let hall = PeerKeys::new(&options.prefix);
        let (ears, voices, strangers) = (Ears::default(), Voices::new(&hall), Strangers::default());
        let watches = Watches::new(voices.clone());
        let hearing = (ears.clone(), voices.clone(), strangers.clone(), watches.clone());
        let listener = Arc::new(move |info| {
            hearing.0.hear(&info);
            hearing.1.hear(&info);
            hearing.2.hear(&info);
            hearing.3.hear(&info);
        });
        let link = Link::new(place, options, home.clone(), listener)?;
        home.spawn(look_after_masters(link.clone(), stop.clone()));
        let hall = PeerKeys::new(&options.prefix);
        let store = Redis {
            names: Names::new(link.clone(), home.clone(), &hall),
            link,
            options: options.clone(),
            prefix: options.prefix.clone(),
            hall,
            ears,
            voices,
            watches,
            strangers,
            known: Mutex::default(),
            ahead: Ahead::default(),
            home,
            stop,
        };
        // From now on that is the store's own to do.
        ends_it.disarm();
        health::admit(&store).await?;
        Ok(store)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The keys of a queue.
    pub(crate) fn keys(&self, queue: &str) -> Arc<QueueKeys> {
        self.known().keys.of(queue, false, || QueueKeys::new(&self.prefix, queue, self.options.history))
    }

    /// The same for a queue that is there, because this process takes part in it.
    fn keys_of_ours(&self, queue: &str) -> Arc<QueueKeys> {
        self.known().keys.of(queue, true, || QueueKeys::new(&self.prefix, queue, self.options.history))
    }

    /// The keys of a queue that is about to get something: its name is put where others find it.
    pub(crate) async fn register(&self, op: &'static str, queue: &str) -> Result<Arc<QueueKeys>> {
        self.names.put(op, queue, self.manual_now()).await?;
        Ok(self.keys_of_ours(queue))
    }

    /// The names of all queues, sorted.
    pub(crate) async fn queues(&self, op: &'static str) -> Result<Vec<String>> {
        let mut cmd = redis::cmd("SMEMBERS");
        cmd.arg(&self.hall.queues);
        let names = self.link.ask(op, Way::Door, self.hall.slot, &cmd).await?;
        let strange =
            |e| Error::Store { op, reason: "the list of queues cannot be read".into(), source: Some(Box::new(e)) };
        let names: BTreeSet<String> = redis::from_redis_value(names).map_err(strange)?;
        Ok(names.into_iter().collect())
    }

    /// The keys of a queue in which a node takes part from now on.
    pub(crate) fn claiming(&self, node: NodeId, queue: &str) -> Arc<QueueKeys> {
        let works = self.known().works.get(&node).is_some_and(|queues| queues.contains(queue));
        if !works {
            self.works(node, &[queue.to_owned()]);
        }
        self.keys_of_ours(queue)
    }

    /// Notes that a node works these queues, and answers all that it works.
    fn works(&self, node: NodeId, queues: &[String]) -> Vec<String> {
        let mut known = self.known();
        let works = known.works.entry(node).or_default();
        works.extend(queues.iter().cloned());
        works.iter().cloned().collect()
    }

    fn queues_of(&self, node: NodeId) -> Vec<String> {
        self.known().works.get(&node).map(|queues| queues.iter().cloned().collect()).unwrap_or_default()
    }

    /// Notes whether a node may be on the idle list of a queue, and answers whether it may have been before.
    pub(crate) fn swap_idle(&self, node: NodeId, queue: &str, idle: bool) -> bool {
        let (mut known, entry) = (self.known(), (node, queue.to_owned()));
        match idle {
            true => !known.idle.insert(entry),
            false => known.idle.remove(&entry),
        }
    }

    /// Whether anything was put off in a queue since this node looked for what it knows.
    fn has_to_look(&self, node: NodeId, keys: &QueueKeys) -> bool {
        let mark = keys.deferred_mark.load(Ordering::Relaxed);
        mark != 0 && self.known().looked.get(&(node, keys.queue.clone())) != Some(&mark)
    }

    /// A script has told the mark of the last put-off, and whether the node has been given all up to it that it knows.
    fn looked(&self, node: NodeId, keys: &QueueKeys, mark: i64, through: bool) {
        keys.deferred_mark.store(mark, Ordering::Relaxed);
        if through {
            self.known().looked.insert((node, keys.queue.clone()), mark);
        }
    }

    fn forget(&self, node: NodeId) {
        let mut known = self.known();
        known.works.remove(&node);
        known.idle.retain(|(other, _)| *other != node);
        known.looked.retain(|(other, _), _| *other != node);
    }

    /// Where to go on looking for what a dead node held.
    fn scan_of(&self, suspect: NodeId, queue: &str) -> String {
        self.known().scans.get(&(suspect, queue.to_owned())).cloned().unwrap_or_else(|| "0".to_owned())
    }

    fn scanned(&self, suspect: NodeId, queue: &str, cursor: Option<String>) {
        let mut known = self.known();
        match cursor {
            Some(cursor) => drop(known.scans.insert((suspect, queue.to_owned()), cursor)),
            None => drop(known.scans.remove(&(suspect, queue.to_owned()))),
        }
    }

    /// Sends what must not be lost: a script, or commands that go together; answers once as many replicas have it as should.
    pub(crate) async fn deliver(
        &self,
        op: &'static str,
        keys: &QueueKeys,
        script: Option<&Script>,
        cmds: &[Cmd],
    ) -> Result<Value> {
        let mut seal = script::MARK_WRITE.call(keys);
        seal.arg(self.manual_now());
        let confirm = Confirm { replicas: self.options.replicas, seal: Some(&seal) };
        self.link.deliver(op, keys.slot, script, cmds, Some(confirm).filter(|confirm| confirm.replicas > 0)).await
    }

    /// What scripts take as their first argument: empty, or the time that a test has set.
    pub(crate) fn manual_now(&self) -> String {
        if self.options.clock.is_manual() { self.options.clock.wall().to_string() } else { String::new() }
    }

    /// The store's time as far as we know it without asking: never later than it is.
    pub(crate) fn now(&self) -> Micros {
        match self.options.clock.is_manual() {
            true => self.options.clock.wall(),
            false => Clock::system().since_boot() + self.ahead.known(),
        }
    }

    /// Takes a script's answer, and notes what time it says it is.
    pub(crate) fn reply(&self, op: &'static str, value: Value) -> Result<Reply> {
        let reply = Reply::new(op, value)?;
        self.tell_time(reply.now);
        Ok(reply)
    }

    /// The store's time was at least this a moment ago.
    fn tell_time(&self, now: Micros) {
        self.ahead.tell(now, Clock::system().since_boot());
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// A thread with a runtime of its own: beats go out from there, however busy the rest of the process is.
fn home(stop: CancellationToken) -> Result<tokio::runtime::Handle> {
    let failed = |e: std::io::Error| Error::store("open", format!("cannot start a thread: {e}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let handle = runtime.handle().clone();
    let run = move || runtime.block_on(stop.cancelled());
    std::thread::Builder::new().name("duly-redis".into()).spawn(run).map_err(failed)?;
    Ok(handle)
}

async fn look_after_masters(link: Arc<Link>, stop: CancellationToken) {
    if link.place().shape == self::url::Shape::One {
        return;
    }
    while stop.run_until_cancelled(tokio::time::sleep(LOOK_AFTER_MASTERS)).await.is_some() {
        link.look_after_masters().await;
    }
}
