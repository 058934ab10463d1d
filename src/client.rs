//! The client: everything a program does with duly goes through [`Duly`]. It checks input and calls the store.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::clock::Clock;
use crate::error::{BoxError, Error, Result};
use crate::job::push::{Due, PUSH_BYTES_MAX, PUSH_MAX, Push, PushResult, check_args, check_name, check_text};
use crate::job::{JobId, JobRecord, State};
use crate::lock::{LOCK_NAME_BYTES_MAX, Lock};
use crate::metrics::PushMetrics;
use crate::node::{NodeId, NodeRecord};
use crate::peers::call::{CONNECTION_BYTES_MAX, Call, CallContext, ClusterKeys, Method, MethodRegistration};
use crate::peers::{HeldConnection, Peers};
use crate::store::{
    self, AdminStore, Capacity, ChangeResult, DeadGroup, Durability, Filter, Health, HealthStore, History,
    HistoryQuery, JobEdit, JobPage, JobStore, LockPage, LockStore, PeerStore, QueueCounts, StatCounters, StatsStore,
    Store, StoreOptions,
};
use crate::worker::Worker;
use crate::worker::kind_stats::KindStatsBuffer;
use crate::worker::middleware::{Layers, Middleware};

/// A handle to a store. Cheap to clone; clones share the store.
#[derive(Clone)]
pub struct Duly {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) options: Arc<StoreOptions>,
    pub(crate) url: Arc<str>,
    /// This process as a peer, once it takes part in calls, locks or waits.
    pub(crate) peers: Arc<OnceLock<Arc<Peers>>>,
    pub(crate) middleware: Arc<Layers>,
    /// Statistics by kind of this process that are not yet in the store.
    pub(crate) kind_stats: Arc<KindStatsBuffer>,
}

/// Options for [`Duly::open`] in code instead of in the URL.
#[must_use = "call `open`"]
#[derive(Clone)]
pub struct Builder {
    url: String,
    options: StoreOptions,
    middleware: Layers,
}

// The URL and the options may contain secrets.
impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder")
            .field("durability", &self.options.durability)
            .field("lease", &self.options.lease)
            .finish_non_exhaustive()
    }
}

impl Builder {
    /// Sets which failures an acknowledged push survives.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.options.durability = durability;
        self
    }

    /// Sets how long a node keeps its jobs without a heartbeat (default 3 s).
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.lease = lease;
        self
    }

    /// Sets how long done jobs are kept (default 24 h); zero deletes them immediately.
    pub fn keep(mut self, keep: Duration) -> Self {
        self.options.keep = keep;
        self
    }

    /// Sets how long dead jobs are kept (default 90 days).
    pub fn keep_dead(mut self, keep: Duration) -> Self {
        self.options.keep_dead = keep;
        self
    }

    /// Sets how long ids of gone jobs are remembered at least (default 10 minutes).
    pub fn remember_ids(mut self, remember_ids: Duration) -> Self {
        self.options.remember_ids = remember_ids;
        self
    }

    /// Sets whether this handle keeps statistics by minute (default true).
    pub fn history(mut self, history: bool) -> Self {
        self.options.history = history;
        self
    }

    /// Sets a secret of at least 32 bytes that all nodes share. Nodes sign every message with it and reject others.
    ///
    /// To rotate it, call this twice: the first key signs, all of them verify. Deploy the new key to every node as the
    /// second key, then as the first, then remove the old one.
    pub fn cluster_key(mut self, key: impl Into<String>) -> Self {
        self.options.cluster_keys.push(key.into());
        self
    }

    /// Sets another clock: a test controls time with [`Clock::manual`].
    pub fn clock(mut self, clock: Clock) -> Self {
        self.options.clock = clock;
        self
    }

    /// Adds a middleware that runs before and after every push, and around every attempt of this program.
    /// The first one added is the outermost.
    pub fn middleware(mut self, middleware: impl Middleware) -> Self {
        self.middleware.push(Arc::new(middleware));
        self
    }

    /// Opens the store.
    pub async fn open(self) -> Result<Duly> {
        // Checked before anything is opened, because an invalid key is the caller's mistake.
        ClusterKeys::new(&self.options.cluster_keys)?;
        crate::metrics::describe_metrics();
        let (store, options) = store::open(&self.url, self.options).await?;
        let layers = Arc::new(self.middleware);
        let (options, url, kinds) = (Arc::new(options), self.url.into(), Arc::default());
        Ok(Duly { store, options, url, peers: Arc::default(), middleware: layers, kind_stats: kinds })
    }
}

impl Duly {
    /// Opens a store: the path of a file, which is created if missing, or `:memory:`, or with the feature `redis` a
    /// server URL such as `redis://host`, `redis+sentinel://s1,s2,s3/mymaster` or `redis+cluster://a,b,c`.
    ///
    /// Options may follow in the URL: `duly.db?durability=second&lease=5s&keep=1h`.
    pub async fn open(url: impl Into<String>) -> Result<Duly> {
        Duly::builder(url).open().await
    }

    /// Returns a builder that opens a store with options.
    pub fn builder(url: impl Into<String>) -> Builder {
        Builder { url: url.into(), options: StoreOptions::default(), middleware: Vec::new() }
    }

    /// Pushes one job. Once this returns, the job is stored durably.
    pub async fn push(&self, job: impl Into<Push>) -> Result<PushResult> {
        let mut pushed = self.push_all([job]).await?;
        pushed.pop().ok_or_else(|| Error::store("push", "the store returned no result"))
    }

    /// Pushes many jobs in one operation, each into its own queue with its own due time: all or none per queue.
    ///
    /// Returns results in the order of the jobs.
    ///
    /// On a server, a push to several queues can fail after some of them succeeded. The error is then
    /// [`Unknown`](Error::Unknown); pushing all jobs again with the same ids pushes only the missing ones.
    pub async fn push_all<P: Into<Push>>(&self, jobs: impl IntoIterator<Item = P>) -> Result<Vec<PushResult>> {
        let jobs = self.prepare_jobs(jobs)?;
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        let metrics = PushMetrics::for_jobs(&jobs);
        let pushed = self.store.push(jobs).await?;
        metrics.record(&pushed);
        self.middleware.iter().for_each(|layer| layer.after_push(&pushed));
        Ok(pushed)
    }

    /// Pushes jobs inside your own SQLite transaction on the store's file.
    ///
    /// The jobs exist if, and only if, you commit. Call [`AfterCommit::wake`](crate::AfterCommit::wake) afterwards.
    /// Your connection determines the durability. Do not await other duly calls while the transaction is open:
    /// it holds the file's write lock.
    #[cfg(feature = "sqlite")]
    pub fn push_in<P: Into<Push>>(
        &self,
        tx: &rusqlite::Transaction<'_>,
        jobs: impl IntoIterator<Item = P>,
    ) -> Result<store::sqlite::AfterCommit> {
        let jobs = self.prepare_jobs(jobs)?;
        match store::StoreUrl::parse(&self.url)?.file() {
            Some(path) => store::sqlite::push_in(tx, path, &self.options.clock, self.options.history, &jobs),
            None => Err(Error::invalid("store", "is not a file; push_in needs a file that both connections open")),
        }
    }

    /// Returns the store, for tests of the contract, not for programs.
    #[doc(hidden)]
    #[must_use]
    pub fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    /// Returns a new worker on this store; add queues and handlers to it.
    pub fn worker(&self) -> Worker {
        Worker::new(self.clone())
    }

    /// Returns a named lock, to acquire with [`Lock::acquire`] or [`Lock::try_acquire`].
    ///
    /// **Pass its fence to the resource it protects**: a holder that was paused for too long may have lost the lock.
    pub fn lock(&self, name: impl Into<String>) -> Lock {
        Lock::new(self.clone(), name.into())
    }

    /// Returns a page of all held locks, by name.
    pub async fn locks(&self, cursor: Option<&str>) -> Result<LockPage> {
        self.store.locks(None, cursor).await
    }

    /// Ends all holds of a lock; their guards report it as lost. Returns how many holds there were.
    pub async fn break_lock(&self, name: &str) -> Result<u64> {
        check_text("lock", name, LOCK_NAME_BYTES_MAX)?;
        self.store.break_lock(name).await
    }

    /// Calls a method on another node: on any node that offers it, unless the call selects one.
    pub fn call(&self, method: impl Into<String>, args: &impl Serialize) -> Call {
        Call::new(self.clone(), method.into(), args)
    }

    /// Registers a handler for calls of this method.
    ///
    /// Other nodes can call only registered methods and duly's own (`duly.ping` and others).
    /// The handler runs on the runtime from which it was registered; if it panics, the caller gets an error.
    pub fn on_call<A, F, Fut, R, E>(&self, method: impl Into<String>, handler: F) -> MethodRegistration
    where
        A: DeserializeOwned + Send + 'static,
        F: Fn(A, CallContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, E>> + Send + 'static,
        R: Serialize,
        E: Into<BoxError>,
    {
        MethodRegistration::new(
            self.clone(),
            method.into(),
            Box::new(|limits, runtime| Method::new(handler, limits, runtime)),
        )
    }

    /// Removes the handler of this method. Returns whether there was one.
    pub async fn remove_method(&self, method: &str) -> Result<bool> {
        let peers = self.peers()?;
        let removed = peers.remove_method(method);
        if removed {
            peers.announce().await?;
        }
        Ok(removed)
    }

    /// Holds a connection (of a browser, a device) under this name: calls for it come here until the value is dropped.
    pub async fn hold_connection(&self, connection: impl Into<String>) -> Result<HeldConnection> {
        let connection = connection.into();
        check_text("connection", &connection, CONNECTION_BYTES_MAX)?;
        self.peers()?.hold_connection(connection).await
    }

    /// Returns the identity of this process for other nodes; its first worker uses the same one.
    pub fn node_id(&self) -> Result<NodeId> {
        Ok(self.peers()?.node_id())
    }

    /// Returns this process as a peer; starts its thread on first use.
    pub(crate) fn peers(&self) -> Result<Arc<Peers>> {
        if let Some(peers) = self.peers.get() {
            return Ok(peers.clone());
        }
        let (options, store) = (&self.options, self.store.clone());
        let keys = ClusterKeys::new(&options.cluster_keys)?;
        let peers = Peers::start(store, options.lease, options.clock.clone(), keys)?;
        // If two callers start a thread at the same time, the first one wins; the other thread ends.
        Ok(self.peers.get_or_init(|| peers).clone())
    }

    /// Cancels a running job on any node: it ends dead with the error `cancelled` and is not retried.
    ///
    /// Its handler is notified immediately ([`Ctx::cancelled`](crate::Ctx::cancelled)) and has a few seconds to end.
    pub async fn cancel(&self, id: JobId) -> Result<()> {
        let record = self.get(id).await?.ok_or_else(|| Error::NotFound { what: "job", name: id.to_string() })?;
        let Some(node) = record.node.filter(|_| record.state == State::Running) else {
            return Err(Error::Conflict(format!("job {id} is {}, not running; remove it instead", record.state)));
        };
        let ended = || Error::Conflict(format!("job {id} has just ended on node {node}; nothing to cancel"));
        match self.call("duly.cancel", &serde_json::json!({ "id": id })).node(node).reply::<bool>().await {
            Ok(true) => Ok(()),
            Ok(false) => Err(ended()),
            Err(Error::NotFound { .. }) => Err(Error::Conflict(format!(
                "node {node}, which runs job {id}, does not listen; if it is dead, the job soon starts on another node: cancel it again then"
            ))),
            Err(error) => Err(error),
        }
    }

    /// Returns one job with its failures, progress, log and result.
    pub async fn get(&self, id: JobId) -> Result<Option<JobRecord>> {
        self.store.get(id).await
    }

    /// Waits until a job is done or dead, and returns it. Returns `None` if the job is not in the store or no longer:
    /// it was removed, or is done and not kept.
    ///
    /// Waiting costs the store nothing: it notifies this process of completed jobs, once for all callers that wait.
    /// On stores that use another system's keys, the process polls each awaited job every 250 ms or less often.
    /// To limit the time, use `tokio::time::timeout`.
    pub async fn wait(&self, id: JobId) -> Result<Option<JobRecord>> {
        self.peers()?.wait_for_completion(id).await
    }

    /// Returns a page of jobs.
    pub async fn list(&self, filter: Filter) -> Result<JobPage> {
        self.store.list(self.resolve_filter(&filter)?).await
    }

    /// Checks a filter and resolves its relative times.
    pub(crate) fn resolve_filter(&self, filter: &Filter) -> Result<Filter> {
        if let Some(queue) = &filter.queue {
            check_name("queue", queue)?;
        }
        Ok(filter.clone().resolve_times(self.store.now()))
    }

    /// Changes args or priority of a job that is not running.
    pub async fn edit(&self, id: JobId, edit: JobEdit) -> Result<()> {
        if let Some(args) = &edit.args {
            check_args(args)?;
        }
        check_change(id, self.store.edit(id, edit).await?)
    }

    /// Sets how much may be unfinished in a queue, and returns the previous capacity. The queue need not exist yet.
    ///
    /// A push beyond the capacity fails with [`Error::Full`]. Jobs in the queue stay, and retried or released jobs return.
    pub async fn set_capacity(&self, queue: &str, capacity: Capacity) -> Result<Capacity> {
        check_name("queue", queue)?;
        self.store.set_capacity(queue, capacity).await
    }

    /// Returns the statistics of the last minutes, by minute and queue.
    pub async fn history(&self, query: HistoryQuery) -> Result<History> {
        if let Some(queue) = &query.queue {
            check_name("queue", queue)?;
        }
        self.store.history(query).await
    }

    /// Returns the counters of each queue since the store was created, by name. They never decrease.
    pub async fn totals(&self) -> Result<Vec<(String, StatCounters)>> {
        self.store.queue_totals().await
    }

    /// Returns the dead jobs of one queue, or of all, grouped by kind and error, the largest groups first.
    pub async fn dead_groups(&self, queue: Option<&str>) -> Result<Vec<DeadGroup>> {
        if let Some(queue) = queue {
            check_name("queue", queue)?;
        }
        self.store.dead_groups(queue).await
    }

    /// Deletes a job that is not running.
    pub async fn remove(&self, id: JobId) -> Result<()> {
        check_change(id, self.store.remove(id).await?)
    }

    /// Gives a job that is not running a new due time. A dead job starts over and keeps its history.
    pub async fn reschedule(&self, id: JobId, due: Due) -> Result<()> {
        due.check()?;
        check_change(id, self.store.reschedule(id, due).await?)
    }

    /// Returns the number of jobs in each state, by queue.
    pub async fn counts(&self) -> Result<Vec<QueueCounts>> {
        self.store.counts().await
    }

    /// Pauses a queue: nothing is claimed from it, and running jobs continue. Returns whether this changed anything.
    pub async fn pause_queue(&self, queue: &str) -> Result<bool> {
        check_name("queue", queue)?;
        self.store.set_paused(queue, true).await
    }

    /// Resumes a queue. Returns whether it was paused.
    pub async fn resume_queue(&self, queue: &str) -> Result<bool> {
        check_name("queue", queue)?;
        self.store.set_paused(queue, false).await
    }

    /// Returns all registered nodes.
    pub async fn nodes(&self) -> Result<Vec<NodeRecord>> {
        self.store.nodes().await
    }

    /// Returns the store's report on itself: durability, versions, sizes, warnings.
    pub async fn health(&self) -> Result<Health> {
        self.store.health().await
    }

    /// Returns the store's time as far as it is known without a request.
    #[must_use]
    pub fn now(&self) -> std::time::SystemTime {
        self.store.now()
    }

    /// Returns the store's address for people, without passwords.
    #[must_use]
    pub fn display_url(&self) -> String {
        store::display_url(&self.url, &self.options)
    }

    /// Checks jobs and fills in defaults.
    fn prepare_jobs<P: Into<Push>>(&self, jobs: impl IntoIterator<Item = P>) -> Result<Vec<Push>> {
        let mut prepared = Vec::new();
        let mut bytes = 0;
        for job in jobs {
            if prepared.len() == PUSH_MAX {
                return Err(Error::invalid("jobs", format!("at most {PUSH_MAX} in one push; push them in parts")));
            }
            let mut job: Push = job.into();
            #[cfg(feature = "otel")]
            if job.traceparent.is_none() {
                job.traceparent = crate::otel::current_traceparent();
            }
            for layer in self.middleware.iter() {
                job = layer.before_push(job)?;
            }
            job.check()?;
            bytes += job.args.as_ref().map_or(0, String::len);
            if bytes > PUSH_BYTES_MAX {
                return Err(Error::invalid(
                    "jobs",
                    format!("args of more than {PUSH_BYTES_MAX} bytes in one push; push them in parts"),
                ));
            }
            job.keep = Some(job.keep.unwrap_or(self.options.keep));
            prepared.push(job);
        }
        Ok(prepared)
    }
}

impl std::fmt::Debug for Duly {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let url = store::StoreUrl::parse(&self.url).map_or(String::new(), |url| url.to_string());
        f.debug_struct("Duly").field("url", &url).finish_non_exhaustive()
    }
}

fn check_change(id: JobId, result: ChangeResult) -> Result<()> {
    match result {
        ChangeResult::Applied => Ok(()),
        ChangeResult::NotFound => Err(Error::NotFound { what: "job", name: id.to_string() }),
        ChangeResult::Running => Err(Error::Conflict(format!("job {id} is running; wait until its attempt has ended"))),
        ChangeResult::Moving => Err(Error::Conflict(format!(
            "the queue of job {id} is moving to another store; wait until that is complete, then look for the job there"
        ))),
        ChangeResult::Changed => Err(Error::Conflict(format!("job {id} has just changed its state; read it again"))),
        ChangeResult::Unreadable => Err(Error::Conflict(format!(
            "job {id} is corrupted (checksum mismatch); push it again and remove this one"
        ))),
        ChangeResult::Existing(other) => {
            Err(Error::Conflict(format!("the unique key of job {id} belongs to job {other} now")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::faulty::{FaultyStore, InjectedFault};

    #[tokio::test]
    async fn repeated_push_after_lost_reply_changes_nothing() {
        let mut duly = Duly::open(":memory:").await.expect("opens");
        let faulty = FaultyStore::new(duly.store());
        duly.store = faulty.clone();
        let id = JobId::from_name("invoice:7");
        let push = async || duly.push(Push::new("mail", "{}").id(id)).await;
        faulty.inject("push", InjectedFault::LoseReply, 1);
        assert_eq!(push().await.expect_err("the reply is lost").code(), "unknown");
        assert_eq!(push().await.expect("pushes"), PushResult::Existing(id));
        let counts = duly.counts().await.expect("counts");
        assert_eq!(counts.iter().map(|queue| queue.ready).sum::<u64>(), 1);
    }
}
