//! The door: everything a program does with duly goes through here. Checks input, calls the store.

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
    self, Capacity, ChangeResult, DeadGroup, Durability, Filter, Health, History, HistoryQuery, JobEdit, JobPage,
    LockPage, QueueCounts, StatCounters, Store, StoreOptions,
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
    /// This process in the hall, once it takes part there.
    pub(crate) peers: Arc<OnceLock<Arc<Peers>>>,
    pub(crate) middleware: Arc<Layers>,
    /// What attempts of this process came to, until the store is told.
    pub(crate) kind_stats: Arc<KindStatsBuffer>,
}

/// Options for [`Duly::open`] that are easier written in code than in a URL.
#[must_use = "call `open`"]
#[derive(Clone)]
pub struct Builder {
    url: String,
    options: StoreOptions,
    middleware: Layers,
}

impl Builder {
    /// What an acknowledged push survives.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.options.durability = durability;
        self
    }

    /// How long a node's hold lasts without a beat (default 3 s).
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.lease = lease;
        self
    }

    /// How long done jobs stay in the store (default 24 h); zero forgets them at once.
    pub fn keep(mut self, keep: Duration) -> Self {
        self.options.keep = keep;
        self
    }

    /// How long dead jobs stay in the store (default 90 days).
    pub fn keep_dead(mut self, keep: Duration) -> Self {
        self.options.keep_dead = keep;
        self
    }

    /// How long ids of gone jobs are remembered, at least (default 10 minutes).
    pub fn remember_ids(mut self, remember: Duration) -> Self {
        self.options.remember = remember;
        self
    }

    /// Whether what happens through this handle is counted minute by minute (default true).
    pub fn history(mut self, history: bool) -> Self {
        self.options.history = history;
        self
    }

    /// A secret that all nodes share (at least 32 bytes): every message between nodes is signed with it, and others are refused.
    ///
    /// To change it, give a second one: the first signs, all of them check. First every node learns the new one as its
    /// second, then as its first, then forgets the old one.
    pub fn cluster_key(mut self, key: impl Into<String>) -> Self {
        self.options.cluster_keys.push(key.into());
        self
    }

    /// Another clock: a test moves time itself with [`Clock::manual`].
    pub fn clock(mut self, clock: Clock) -> Self {
        self.options.clock = clock;
        self
    }

    /// Something to be done before and after every push, and around every attempt of this program.
    /// The first that is given is the outermost.
    pub fn middleware(mut self, middleware: impl Middleware) -> Self {
        self.middleware.push(Arc::new(middleware));
        self
    }

    /// Opens the store.
    pub async fn open(self) -> Result<Duly> {
        // Before anything is opened: a wrong key is a mistake of the caller.
        ClusterKeys::new(&self.options.cluster_keys)?;
        crate::metrics::describe_metrics();
        let (store, options) = store::open(&self.url, self.options).await?;
        let (store, layers) = (store::TracedStore::wrap(store), Arc::new(self.middleware));
        let (options, url, kinds) = (Arc::new(options), self.url.into(), Arc::default());
        Ok(Duly { store, options, url, peers: Arc::default(), middleware: layers, kind_stats: kinds })
    }
}

impl Duly {
    /// Opens a store: the path of a file (made if it is not there), `:memory:`, or with the feature `redis` the URL of a
    /// server, such as `redis://host`, `redis+sentinel://s1,s2,s3/mymaster` or `redis+cluster://a,b,c`.
    ///
    /// Options may follow in the URL: `duly.db?durability=second&lease=5s&keep=1h`.
    pub async fn open(url: impl Into<String>) -> Result<Duly> {
        Duly::builder(url).open().await
    }

    /// Options for opening a store, in code.
    pub fn builder(url: impl Into<String>) -> Builder {
        Builder { url: url.into(), options: StoreOptions::default(), middleware: Vec::new() }
    }

    /// Pushes one job. Once this answers, the job is kept.
    pub async fn push(&self, job: impl Into<Push>) -> Result<PushResult> {
        let mut pushed = self.push_all([job]).await?;
        pushed.pop().ok_or_else(|| Error::store("push", "the store gave no answer"))
    }

    /// Pushes many jobs in one step, each into its own queue at its own time: all or none per queue.
    ///
    /// Answers in the order of the jobs.
    ///
    /// With several queues on a server some may have got theirs when another fails: the error is then
    /// [`Unknown`](Error::Unknown), and pushing all again with the same ids pushes what is missing.
    pub async fn push_all<P: Into<Push>>(&self, jobs: impl IntoIterator<Item = P>) -> Result<Vec<PushResult>> {
        let jobs = self.prepare_jobs(jobs)?;
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        let pushing = PushMetrics::for_jobs(&jobs);
        let pushed = self.store.push(jobs).await?;
        pushing.record(&pushed);
        self.middleware.iter().for_each(|layer| layer.after_push(&pushed));
        Ok(pushed)
    }

    /// Pushes jobs inside your own SQLite transaction on the store's file.
    ///
    /// They are there if, and only if, you commit. Call [`AfterCommit::wake`](crate::AfterCommit::wake) then.
    /// The durability is that of your connection. Do not await anything of duly's while the transaction is open:
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
            None => Err(Error::invalid("store", "is not a file; push_in needs one that both connections open")),
        }
    }

    /// The store behind the door: for tests of the contract, not for programs.
    #[doc(hidden)]
    #[must_use]
    pub fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    /// A worker on this store, to be given queues and handlers.
    pub fn worker(&self) -> Worker {
        Worker::new(self.clone())
    }

    /// A named lock, to be taken with [`Lock::acquire`] or [`Lock::try_acquire`].
    ///
    /// **Hand its fence to whatever it protects**: a holder that was paused for too long does not know that it has lost it.
    pub fn lock(&self, name: impl Into<String>) -> Lock {
        Lock::new(self.clone(), name.into())
    }

    /// A page of all locks that are held, by name.
    pub async fn locks(&self, cursor: Option<&str>) -> Result<LockPage> {
        self.store.locks(None, cursor).await
    }

    /// Ends all holds of a lock, whoever has them: their guards learn that it is lost. Answers how many there were.
    pub async fn break_lock(&self, name: &str) -> Result<u64> {
        check_text("lock", name, LOCK_NAME_BYTES_MAX)?;
        self.store.break_lock(name).await
    }

    /// Calls a method on other nodes: any one that answers it, unless the call says otherwise.
    pub fn call(&self, method: impl Into<String>, args: &impl Serialize) -> Call {
        Call::new(self.clone(), method.into(), args)
    }

    /// Answers calls of this method from now on, by this function.
    ///
    /// Only methods that are registered so can be called, beside duly's own (`duly.ping` and others).
    /// It runs on the runtime from which it was registered; a panic of it is an error of its caller.
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

    /// Answers calls of this method no longer. Answers whether it was answered before.
    pub async fn remove_call(&self, method: &str) -> Result<bool> {
        let hall = self.peers()?;
        let removed = hall.remove_method(method);
        if removed {
            hall.announce().await?;
        }
        Ok(removed)
    }

    /// Holds a connection (of a browser, a device) under this name: calls for it come here until it is dropped.
    pub async fn hold_connection(&self, connection: impl Into<String>) -> Result<HeldConnection> {
        let connection = connection.into();
        check_text("connection", &connection, CONNECTION_BYTES_MAX)?;
        self.peers()?.hold_connection(connection).await
    }

    /// Who this process is to other nodes; its first worker goes by the same identity.
    pub fn node_id(&self) -> Result<NodeId> {
        Ok(self.peers()?.node_id())
    }

    /// This process in the hall; its thread is started when it is first needed.
    pub(crate) fn peers(&self) -> Result<Arc<Peers>> {
        if let Some(hall) = self.peers.get() {
            return Ok(hall.clone());
        }
        let (options, store) = (&self.options, self.store.clone());
        let keys = ClusterKeys::new(&options.cluster_keys)?;
        let hall = Peers::start(store, options.lease, options.clock.clone(), keys)?;
        // Of two that start one at the same time the first wins; the other's thread ends.
        Ok(self.peers.get_or_init(|| hall).clone())
    }

    /// Tells a running job to stop, wherever it runs: it ends dead with the error `cancelled`, and is not retried.
    ///
    /// Its handler learns of it at once ([`Ctx::cancelled`](crate::Ctx::cancelled)) and has a few seconds to end by itself.
    pub async fn cancel(&self, id: JobId) -> Result<()> {
        let record = self.get(id).await?.ok_or_else(|| Error::NotFound { what: "job", name: id.to_string() })?;
        let Some(node) = record.node.filter(|_| record.state == State::Running) else {
            return Err(Error::Conflict(format!("job {id} is {}, not running: remove it instead", record.state)));
        };
        let ended = || Error::Conflict(format!("job {id} has just ended on node {node}"));
        match self.call("duly.cancel", &serde_json::json!({ "id": id })).node(node).reply::<bool>().await {
            Ok(true) => Ok(()),
            Ok(false) => Err(ended()),
            Err(Error::NotFound { .. }) => Err(Error::Conflict(format!(
                "node {node}, which runs job {id}, does not listen: if it is dead, the job starts elsewhere soon; cancel it there"
            ))),
            Err(error) => Err(error),
        }
    }

    /// One job with all that is known of it.
    pub async fn get(&self, id: JobId) -> Result<Option<JobRecord>> {
        self.store.get(id).await
    }

    /// Waits until a job is done or dead, and answers it as it is then; `None` if it is not in the store (any more):
    /// it was removed, or is done and not kept.
    ///
    /// Waiting costs the store nothing: it tells when jobs end, once for all who wait in this process. Only where the
    /// format belongs to others (Sidekiq's keys, Redis in Action's) is every job that is waited for looked at, every 250 ms
    /// or less often.
    /// To wait for a limited time, put a `tokio::time::timeout` around it.
    pub async fn wait(&self, id: JobId) -> Result<Option<JobRecord>> {
        self.peers()?.wait_for_completion(id).await
    }

    /// A page of jobs.
    pub async fn list(&self, filter: Filter) -> Result<JobPage> {
        self.store.list(self.resolve_filter(&filter)?).await
    }

    /// A filter, checked, with its moments fixed.
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

    /// What has happened in the last minutes, minute by minute and queue by queue.
    pub async fn history(&self, ask: HistoryQuery) -> Result<History> {
        if let Some(queue) = &ask.queue {
            check_name("queue", queue)?;
        }
        self.store.history(ask).await
    }

    /// What has ever happened in each queue, by name: only grows. Rates are differences of it.
    pub async fn totals(&self) -> Result<Vec<(String, StatCounters)>> {
        self.store.queue_totals().await
    }

    /// The dead jobs of a queue, or of all, by kind and error, the largest groups first.
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

    /// Gives a job that is not running a new due moment. A dead one starts over, with its history kept.
    pub async fn reschedule(&self, id: JobId, due: Due) -> Result<()> {
        due.check()?;
        check_change(id, self.store.reschedule(id, due).await?)
    }

    /// How many jobs are in which state, by queue.
    pub async fn counts(&self) -> Result<Vec<QueueCounts>> {
        self.store.counts().await
    }

    /// Stops claiming from a queue; running jobs go on. Answers whether it was running before.
    pub async fn pause_queue(&self, queue: &str) -> Result<bool> {
        check_name("queue", queue)?;
        self.store.set_paused(queue, true).await
    }

    /// Starts claiming from a queue again. Answers whether it was paused before.
    pub async fn resume_queue(&self, queue: &str) -> Result<bool> {
        check_name("queue", queue)?;
        self.store.set_paused(queue, false).await
    }

    /// All nodes the store knows.
    pub async fn nodes(&self) -> Result<Vec<NodeRecord>> {
        self.store.nodes().await
    }

    /// What the store says about itself: durability, versions, sizes, warnings.
    pub async fn health(&self) -> Result<Health> {
        self.store.health().await
    }

    /// The store's time, as far as is known without asking.
    #[must_use]
    pub fn now(&self) -> std::time::SystemTime {
        self.store.now()
    }

    /// Where the store is, for people: without passwords.
    #[must_use]
    pub fn display_url(&self) -> String {
        store::display_url(&self.url, &self.options)
    }

    /// Checks jobs and fills in what they leave open.
    fn prepare_jobs<P: Into<Push>>(&self, jobs: impl IntoIterator<Item = P>) -> Result<Vec<Push>> {
        let mut admitted = Vec::new();
        let mut bytes = 0;
        for job in jobs {
            if admitted.len() == PUSH_MAX {
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
            admitted.push(job);
        }
        Ok(admitted)
    }
}

impl std::fmt::Debug for Duly {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let url = store::StoreUrl::parse(&self.url).map_or(String::new(), |url| url.to_string());
        f.debug_struct("Duly").field("url", &url).finish_non_exhaustive()
    }
}

fn check_change(id: JobId, moved: ChangeResult) -> Result<()> {
    match moved {
        ChangeResult::Applied => Ok(()),
        ChangeResult::NotFound => Err(Error::NotFound { what: "job", name: id.to_string() }),
        ChangeResult::Running => Err(Error::Conflict(format!("job {id} is running: wait until its attempt has ended"))),
        ChangeResult::Moving => Err(Error::Conflict(format!(
            "the queue of job {id} is moving to another store: let that end, then look for the job there"
        ))),
        ChangeResult::Changed => Err(Error::Conflict(format!("job {id} has just moved on: look again"))),
        ChangeResult::Unreadable => Err(Error::Conflict(format!(
            "job {id} is not as it was written: what it was meant to be nobody knows; push it anew, and remove this one"
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
        assert_eq!(push().await.expect_err("the answer is lost").code(), "unknown");
        assert_eq!(push().await.expect("answers"), PushResult::Existing(id));
        let counts = duly.counts().await.expect("counts");
        assert_eq!(counts.iter().map(|queue| queue.ready).sum::<u64>(), 1);
    }
}
