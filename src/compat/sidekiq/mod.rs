//! A store on Sidekiq's own keys and JSON: the same queues, sets and counters, beside Ruby's processes.
//!
//! Jobs live where Sidekiq has them. What Sidekiq has no place for is kept under keys of duly's own beside them: what a node
//! holds and under which lease, ids that were pushed, pauses, locks, calls; that part is the Redis store itself, under the
//! prefix `duly:sidekiq`.
//!
//! Life of an entry: `push` puts it into its queue or the schedule; `claim` promotes what is due, in one step for each queue,
//! then moves the oldest entries whose kind the worker knows into a hash of its node, untouched; `settle` takes it from there
//! to nowhere, to the retries, to the dead, or back. A node that dies leaves its hash to whoever looks next.

mod claim;
mod counts;
mod cursor;
mod edit;
mod entry;
mod find_job;
mod id;
mod json;
mod keys;
mod list;
mod process;
mod promote;
mod push;
mod scripts;
mod settle;
mod transfer;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use redis::{Cmd, Value};
use tokio::sync::mpsc;

use self::keys::Keys;
use super::option;
use crate::admin::token::Token;
use crate::clock::Micros;
use crate::error::{Error, Result};
use crate::job::push::{Due, Push, Pushed, check_name};
use crate::job::{JobId, Record};
use crate::node::{Node, NodeId, NodeRecord};
use crate::store::redis::{Place, Redis, Reply, Script, Way, acl_rules, servers};
use crate::store::{
    Attended, Audit, AuditRecord, Beaten, Claim, Claimed, End, Filter, Guest, Health, Heard, LockAsk, LockPage,
    LockTaken, Marked, MoveIn, Moved, MovedIn, NewToken, Options, Page, QueueCounts, Store, To, Wake,
};

/// What our own keys beside Sidekiq's begin with, behind the prefix of the URL.
const OWN: &str = "sidekiq";

/// Options of its URL.
pub(super) const OPTIONS: &[&str] = &["namespace"];

/// A store on Sidekiq's keys.
pub(crate) struct Sidekiq {
    redis: Redis,
    keys: Keys,
    known: Mutex<Known>,
}

/// What this process remembers; all of it can be learnt again.
#[derive(Default)]
struct Known {
    /// What nodes of ours hold, by queue.
    held: HashMap<NodeId, HashMap<String, HashMap<Hold, Kept>>>,
    /// How long a node of ours waits before it looks into an empty queue again.
    waits: HashMap<(NodeId, String), Duration>,
    /// Nodes of ours that Sidekiq can see.
    shown: HashMap<NodeId, process::Shown>,
    /// Where the entries were that a mover has listed last, by id and the moment of their push: an id may be there twice.
    seen: HashMap<(JobId, SystemTime), find_job::Found>,
    /// What was said of queues that take nothing.
    news: promote::News,
}

/// A held entry's name in its queue: fence, number.
type Hold = (u64, i64);

/// An entry in a node's hands.
struct Kept {
    entry: Vec<u8>,
    since: Micros,
}

impl Known {
    /// What this end is about, if a node of ours holds it.
    fn kept(&self, node: NodeId, end: &End) -> Option<&Kept> {
        self.held.get(&node)?.get(&end.queue)?.get(&(end.fence.0, end.place))
    }
}

/// Sidekiq's namespace, and what our own keys beside its begin with.
fn spaces(options: &Options) -> Result<(&str, String)> {
    let namespace = option(&options.foreign, "namespace").unwrap_or_default();
    if namespace.is_empty() {
        return Ok(("", format!("{}:{OWN}", options.prefix)));
    }
    check_name("namespace", namespace)?;
    Ok((namespace, format!("{}:{OWN}:{namespace}", options.prefix)))
}

impl Sidekiq {
    pub(crate) async fn open(place: Place, options: &Options) -> Result<Self> {
        let (namespace, prefix) = spaces(options)?;
        let own = Options { prefix, ..options.clone() };
        let redis = Box::pin(Redis::open(place, &own)).await?;
        Ok(Sidekiq { redis, keys: Keys::new(namespace), known: Mutex::default() })
    }

    /// What a user of the server must be allowed.
    pub(crate) fn acl(options: &Options) -> Result<String> {
        let (namespace, prefix) = spaces(options)?;
        Ok(Keys::new(namespace).rules(&acl_rules(&prefix)))
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn manual_now(&self) -> String {
        self.redis.manual_now()
    }

    fn now(&self) -> Micros {
        self.redis.now()
    }

    /// Runs a script once.
    async fn run(&self, op: &'static str, way: Way, script: &Script, cmd: &Cmd) -> Result<Reply> {
        self.redis.run(op, way, 0, script, cmd).await
    }

    /// Asks something that changes nothing.
    async fn ask(&self, op: &'static str, cmd: &Cmd) -> Result<Value> {
        self.redis.ask(op, Way::Door, 0, cmd).await
    }

    /// The names of all queues: Sidekiq's, and those that only nodes of ours know yet.
    async fn queues(&self, op: &'static str) -> Result<Vec<String>> {
        let mut cmd = redis::cmd("SMEMBERS");
        cmd.arg(&self.keys.queues);
        let theirs: BTreeSet<String> = told(op, self.ask(op, &cmd).await?)?;
        let ours = self.redis.queues(op).await?;
        Ok(theirs.into_iter().chain(ours).collect::<BTreeSet<_>>().into_iter().collect())
    }
}

/// An answer of the server as what it should be.
fn told<T: redis::FromRedisValue>(op: &'static str, value: Value) -> Result<T> {
    redis::from_redis_value(value).map_err(|e| Error::Store {
        op,
        reason: "the server gave an answer that duly does not understand".into(),
        source: Some(Box::new(e)),
    })
}

/// Why a queue is not for us: as `mixed` in the scripts says it.
fn mixed(queue: &str, why: &str) -> Error {
    let reason = match why {
        "items" => format!(
            "{queue:?} holds items of Redis in Action: a list cannot have two formats, each side would destroy what the other puts there. Use another queue, or redis-in-action:// for this one"
        ),
        _ => format!("{queue:?}: what is in its place is not a list, so it is no queue of Sidekiq"),
    };
    Error::invalid("queue", reason)
}

impl crate::store::sealed::Sealed for Sidekiq {}

#[async_trait]
impl Store for Sidekiq {
    fn home(&self) -> Option<tokio::runtime::Handle> {
        Store::home(&self.redis)
    }

    async fn push(&self, jobs: Vec<Push>) -> Result<Vec<Pushed>> {
        push::push(self, jobs).await
    }

    async fn claim(&self, node: NodeId, claim: Claim) -> Result<Claimed> {
        claim::claim(self, node, claim).await
    }

    async fn settle(&self, node: NodeId, ends: Vec<End>) -> Result<Vec<JobId>> {
        settle::settle(self, node, ends).await
    }

    async fn get(&self, id: JobId) -> Result<Option<Record>> {
        find_job::get(self, id).await
    }

    async fn list(&self, filter: Filter) -> Result<Page> {
        list::list(self, &filter).await
    }

    async fn remove(&self, id: JobId) -> Result<Moved> {
        edit::remove(self, id).await
    }

    async fn reschedule(&self, id: JobId, due: Due) -> Result<Moved> {
        edit::reschedule(self, id, due).await
    }

    async fn counts(&self) -> Result<Vec<QueueCounts>> {
        counts::counts(self).await
    }

    async fn pause(&self, queue: &str, paused: bool) -> Result<bool> {
        self.redis.pause(queue, paused).await
    }

    async fn prune(&self, queue: &str, done_max: usize) -> Result<usize> {
        settle::prune(self, queue, done_max).await
    }

    async fn set_moving(&self, queue: &str, mover: NodeId, to: Option<&str>) -> Result<Marked> {
        self.redis.set_moving(queue, mover, to).await
    }

    async fn move_in(&self, batch: MoveIn) -> Result<MovedIn> {
        transfer::move_in(self, &batch).await
    }

    async fn move_out(&self, queue: &str, mover: NodeId, jobs: Vec<(JobId, SystemTime)>) -> Result<Option<usize>> {
        transfer::move_out(self, queue, mover, &jobs).await
    }

    async fn beat(&self, node: &Node) -> Result<Beaten> {
        process::beat(self, node).await
    }

    async fn leave(&self, node: NodeId) -> Result<()> {
        process::leave(self, node).await
    }

    async fn nodes(&self) -> Result<Vec<NodeRecord>> {
        self.redis.nodes().await
    }

    async fn subscribe(&self, node: NodeId) -> Result<mpsc::Receiver<Wake>> {
        self.redis.subscribe(node).await
    }

    async fn lock(&self, ask: &LockAsk) -> Result<LockTaken> {
        self.redis.lock(ask).await
    }

    async fn extend_locks(&self, asks: &[LockAsk]) -> Result<Vec<bool>> {
        self.redis.extend_locks(asks).await
    }

    async fn unlock(&self, ask: &LockAsk) -> Result<bool> {
        self.redis.unlock(ask).await
    }

    async fn leave_line(&self, ask: &LockAsk) -> Result<()> {
        self.redis.leave_line(ask).await
    }

    async fn locks(&self, name: Option<&str>, cursor: Option<&str>) -> Result<LockPage> {
        self.redis.locks(name, cursor).await
    }

    async fn break_lock(&self, name: &str) -> Result<u64> {
        self.redis.break_lock(name).await
    }

    async fn attend(&self, guest: &Guest) -> Result<Attended> {
        self.redis.attend(guest).await
    }

    async fn depart(&self, node: NodeId) -> Result<()> {
        self.redis.depart(node).await
    }

    async fn hear(&self, node: NodeId, all: bool) -> Result<mpsc::Receiver<Heard>> {
        self.redis.hear(node, all).await
    }

    async fn send(&self, to: To, message: &[u8]) -> Result<u64> {
        self.redis.send(to, message).await
    }

    async fn set_connections(&self, node: NodeId, held: &[String], gone: &[String]) -> Result<()> {
        self.redis.set_connections(node, held, gone).await
    }

    async fn keep_connections(&self, node: NodeId, held: &[String]) -> Result<()> {
        self.redis.keep_connections(node, held).await
    }

    async fn connection(&self, connection: &str) -> Result<Option<NodeId>> {
        self.redis.connection(connection).await
    }

    async fn answering(&self, method: &str) -> Result<Vec<NodeId>> {
        self.redis.answering(method).await
    }

    async fn put_token(&self, token: &NewToken) -> Result<bool> {
        self.redis.put_token(token).await
    }

    async fn remove_token(&self, name: &str) -> Result<bool> {
        self.redis.remove_token(name).await
    }

    async fn tokens(&self) -> Result<Vec<Token>> {
        self.redis.tokens().await
    }

    async fn put_audit(&self, entry: &Audit) -> Result<()> {
        self.redis.put_audit(entry).await
    }

    async fn audits(&self, before: Option<u64>, limit: usize) -> Result<Vec<AuditRecord>> {
        self.redis.audits(before, limit).await
    }

    fn now(&self) -> SystemTime {
        Store::now(&self.redis)
    }

    async fn health(&self) -> Result<Health> {
        let mut health = self.redis.health().await?;
        health.facts.push(("format".into(), "Sidekiq's keys and JSON".into()));
        health.acl = health.acl.map(|own| self.keys.rules(&own));
        Ok(health)
    }

    async fn realm(&self) -> Result<Option<String>> {
        Ok(Some(format!("{} {}", servers(&self.redis).await?, self.keys.queues)))
    }
}
