//! This process in the hall: it gives signs of life there, extends the locks that are held here, waits in their lines,
//! hears messages and answers calls. All of it on a thread of its own: no handler, however rude, can hold it up.
//!
//! This file is what the rest of the library sees; `guards` extends locks, `line` waits for them,
//! `calls` sends and answers calls, `own` are the methods that every node has.

mod builtin_methods;
pub(crate) mod call;
mod calls;
mod completions;
mod connections;
pub(crate) mod envelope;
pub(crate) mod methods;
pub(crate) mod replies;

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::runtime::Handle;
use tokio::sync::{Notify, OnceCell, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::builtin_methods::LocalWorker;
pub use self::builtin_methods::RunningJob;
pub(crate) use self::builtin_methods::WorkerRegistration;
pub(crate) use self::builtin_methods::{BUILTIN_METHOD_PREFIX, NodeCommand};
use self::calls::CallRegistry;
pub(crate) use self::calls::PendingCall;
use self::completions::Completions;
pub use self::completions::WAITED_JOBS_MAX;
pub use self::connections::HeldConnection;
use self::connections::HeldConnections;
use crate::clock::{self, Clock, micros, to_micros};
use crate::error::{Error, Result};
use crate::lock::backoff_delay;
use crate::lock::renewal;
pub(crate) use crate::lock::renewal::HeldLock;
use crate::lock::renewal::HeldLocks;
use crate::lock::waiters::LockWaiters;
use crate::node::NodeId;
use crate::peers::call::{ClusterKeys, Method, MethodRegistry};
use crate::store::{AnnounceReply, LockOwner, LockRequest, Notification, PeerInfo, Store};

/// How long a process that goes waits for what it still has to say.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// Most places at a time that are given up because nobody here knows of them.
const WAIT_CANCELS_IN_FLIGHT_MAX: usize = 64;

/// How long whoever drops the last handle waits for that.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(250);

/// This process in the hall. Ends when the last one who uses it is gone.
pub(crate) struct Peers {
    pub(crate) inner: Arc<PeersInner>,
    /// Closed when the thread has ended, and with it its hold on the store.
    thread_ended: Mutex<std::sync::mpsc::Receiver<()>>,
}

pub(crate) struct PeersInner {
    pub(crate) node: NodeId,
    /// The hall's own thread: everything of ours runs there.
    pub(crate) handle: Handle,
    /// Who this is, for people.
    pub(crate) note: String,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) lease: Duration,
    pub(crate) clock: Clock,
    /// The first sign of life, and with it the first sound that is heard.
    pub(crate) announced: OnceCell<()>,
    /// The first worker of this process goes by the same identity.
    pub(crate) is_node_id_taken: AtomicBool,
    pub(crate) held_locks: HeldLocks,
    pub(crate) lock_waiters: LockWaiters,
    /// Places that are being given up.
    pub(crate) wait_cancel_permits: Arc<Semaphore>,
    pub(crate) methods: MethodRegistry,
    pub(crate) calls: CallRegistry,
    pub(crate) connections: HeldConnections,
    /// Jobs that somebody here waits for.
    pub(crate) completions: Completions,
    /// Workers of this process: by them duly's own methods look and act.
    pub(crate) workers: Mutex<Vec<LocalWorker>>,
    /// Gives the next sign of life at once.
    pub(crate) announce_now: Notify,
    pub(crate) tasks: TaskTracker,
    pub(crate) stop: CancellationToken,
}

impl Peers {
    /// Starts the thread. Nothing is asked of the store yet.
    pub(crate) fn start(store: Arc<dyn Store>, lease: Duration, clock: Clock, keys: ClusterKeys) -> Result<Arc<Self>> {
        let failed = |e: std::io::Error| Error::store("attend", format!("cannot start a thread: {e}"));
        let node = NodeId::fresh();
        // What is heard there is acted on there, without a change of threads.
        let home = store.runtime();
        let runtime = match home {
            Some(_) => None,
            None => Some(tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?),
        };
        let Some(handle) = home.or_else(|| runtime.as_ref().map(|runtime| runtime.handle().clone())) else {
            return Err(Error::store("attend", "there is no thread to run on"));
        };
        let inner = Arc::new(PeersInner {
            node,
            handle: handle.clone(),
            note: format!("{}:{}", crate::node::host_name(), std::process::id()),
            store,
            lease,
            held_locks: HeldLocks::new(clock.clone()),
            clock,
            announced: OnceCell::new(),
            is_node_id_taken: AtomicBool::new(false),
            lock_waiters: LockWaiters::default(),
            wait_cancel_permits: Arc::new(Semaphore::new(WAIT_CANCELS_IN_FLIGHT_MAX)),
            methods: MethodRegistry::default(),
            calls: CallRegistry::new(node, keys),
            connections: HeldConnections::default(),
            completions: Completions::default(),
            workers: Mutex::default(),
            announce_now: Notify::new(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        });
        let (serving, (alive, ended)) = (inner.clone(), std::sync::mpsc::channel());
        match runtime {
            None => {
                handle.spawn(async move {
                    run_thread(serving).await;
                    drop(alive);
                });
            }
            Some(runtime) => {
                let run = move || {
                    runtime.block_on(run_thread(serving));
                    drop(runtime);
                    drop(alive);
                };
                std::thread::Builder::new().name("duly-hall".into()).spawn(run).map_err(failed)?;
            }
        }
        Ok(Arc::new(Peers { inner, thread_ended: Mutex::new(ended) }))
    }

    /// Who this process is.
    pub(crate) fn node_id(&self) -> NodeId {
        self.inner.node
    }

    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        &self.inner.store
    }

    /// The present moment.
    pub(crate) fn now(&self) -> SystemTime {
        self.inner.clock.now()
    }

    /// Who this is, for people.
    pub(crate) fn note(&self) -> &str {
        &self.inner.note
    }

    /// Makes sure that this process is in the hall and hears what is said to it.
    pub(crate) async fn ensure_announced(&self) -> Result<()> {
        self.inner.ensure_announced().await
    }

    /// The identity for a worker of this process: the first one is the node itself, any other a node of its own.
    pub(crate) fn worker_node_id(&self) -> NodeId {
        if self.inner.is_node_id_taken.swap(true, Ordering::Relaxed) { NodeId::fresh() } else { self.inner.node }
    }

    /// Answers this method from now on. Answers false if there are too many.
    pub(crate) fn add_method(&self, name: String, method: Method) -> bool {
        self.inner.methods.add(name, method)
    }

    pub(crate) fn remove_method(&self, name: &str) -> bool {
        self.inner.methods.remove(name)
    }

    /// Lets others see what has changed here.
    pub(crate) async fn announce(&self) -> Result<()> {
        let inner = self.inner.clone();
        self.inner.run_on_thread("attend", async move { inner.announce().await }).await
    }

    /// Gives up whatever an owner has of a lock, in the background.
    pub(crate) fn abandon_lock(&self, ask: LockRequest) {
        let inner = self.inner.clone();
        self.spawn(async move { inner.abandon_lock(&ask).await });
    }

    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.inner.spawn(work);
    }
}

impl Drop for Peers {
    /// Waits a moment for the thread: whoever closes the last handle of a file expects the file to be closed.
    fn drop(&mut self) {
        self.inner.stop.cancel();
        let on_it = Handle::try_current().is_ok_and(|here| here.id() == self.inner.handle.id());
        if !on_it {
            let ended = self.thread_ended.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = ended.recv_timeout(CLOSE_TIMEOUT);
        }
    }
}

impl PeersInner {
    fn workers(&self) -> MutexGuard<'_, Vec<LocalWorker>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) async fn ensure_announced(self: &Arc<Self>) -> Result<()> {
        if self.announced.initialized() {
            return Ok(());
        }
        // Not on the task of who came first: kept unpolled, it would hold up all others.
        let inner = self.clone();
        self.run_on_thread(
            "attend",
            async move { inner.announced.get_or_try_init(|| join_peers(&inner)).await.map(drop) },
        )
        .await
    }

    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn_on(work, &self.handle);
    }

    /// Does something on the hall's own thread, where it goes on whether or not somebody waits for it here.
    pub(crate) async fn run_on_thread<T: Send + 'static>(
        &self,
        op: &'static str,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let gone = |_| Error::store(op, "this handle was closed");
        self.tasks.spawn_on(work, &self.handle).await.map_err(gone).flatten()
    }

    /// Gives up whatever an owner has of a lock.
    pub(crate) async fn abandon_lock(&self, ask: &LockRequest) {
        self.abandon_lock_or_wait(ask, false).await;
    }

    /// Gives up what an owner has of a lock, or only its place in the line.
    /// Tried until it works, or until the hold has ended by itself.
    pub(crate) async fn abandon_lock_or_wait(&self, ask: &LockRequest, only_place: bool) {
        let until = self.clock.since_boot() + micros(ask.ttl.max(self.lease));
        let mut failures = 0;
        loop {
            let given_up = match only_place {
                true => self.store.cancel_wait(ask).await,
                false => self.store.unlock(ask).await.map(drop),
            };
            let Err(error) = given_up else {
                return;
            };
            if !error.is_retryable() || self.clock.since_boot() > until {
                tracing::warn!(lock = ask.name, %error, "could not be released; it ends by itself");
                return;
            }
            failures += 1;
            tokio::time::sleep(backoff_delay(failures)).await;
        }
    }

    fn peer_info(&self) -> PeerInfo {
        let (methods, waits, places) =
            (self.methods.names(), self.lock_waiters.lock_names(), self.lock_waiters.queued_waits());
        let quiet = methods.is_empty() && waits.is_empty() && self.connections.is_empty();
        PeerInfo {
            node: self.node,
            lease: self.lease,
            methods,
            waited_locks: waits,
            waiters: places,
            listen_only: quiet,
        }
    }

    /// A sign of life, and what follows from its answer.
    async fn announce(self: &Arc<Self>) -> Result<()> {
        let guest = self.peer_info();
        let AnnounceReply { turns, lost_waits: lost } = self.store.announce(&guest).await?;
        // Whoever has lost its place goes to the end of the line, rather than wait for a turn that will never come.
        for owner in lost {
            self.recheck_waiter(owner, Duration::ZERO);
        }
        // Somebody waits here, and the store knows of no line: it has lost the place.
        for name in guest.waited_locks.iter().filter(|name| turns.iter().all(|turn| turn.name != **name)) {
            self.lock_waiters.recheck_lock(name);
        }
        for turn in turns {
            if let Some(owner) = turn.first_waiter {
                self.handle_lock_turn(&turn.name, owner, turn.expires_in);
            }
        }
        for (worker, lease) in self.workers_to_announce() {
            self.announce_worker(worker, lease).await?;
        }
        Ok(())
    }

    /// A sign of life for a worker of this process that is a node of its own.
    async fn announce_worker(&self, node: NodeId, lease: Duration) -> Result<()> {
        let (methods, waits, places) = (Vec::new(), Vec::new(), Vec::new());
        let guest = PeerInfo { node, lease, methods, waited_locks: waits, waiters: places, listen_only: true };
        self.store.announce(&guest).await?;
        let known = self.workers().iter_mut().find(|worker| worker.node == node).map(|worker| {
            worker.announced_at = Some(clock::monotonic_now());
        });
        // It may have gone meanwhile, and would stand there for ever.
        if known.is_none() {
            self.store.withdraw(node).await?;
        }
        Ok(())
    }

    /// Workers of this process that are nodes of their own, and whose sign of life is due.
    fn workers_to_announce(&self) -> Vec<(NodeId, Duration)> {
        let (now, workers) = (clock::monotonic_now(), self.workers());
        let due = workers.iter().filter(|worker| worker.node != self.node && worker.is_announce_due(now));
        due.map(|worker| (worker.node, worker.lease)).collect()
    }

    fn handle_notification(self: &Arc<Self>, heard: Notification) {
        match heard {
            Notification::LockTurn { name, owner } => self.handle_lock_turn(&name, owner, Duration::ZERO),
            Notification::Message(frame) => self.handle_message(&frame),
            Notification::Completed(ids) => self.completions.notify_completed(&ids),
            Notification::CheckTurns => self.announce_now.notify_one(),
            Notification::Gap => {
                self.connections.mark_gap();
                self.held_locks.check_all_soon();
                self.lock_waiters.recheck_all();
                self.completions.handle_gap();
                self.announce_now.notify_one();
            }
        }
    }

    /// Something is up with what an owner has of a lock: its turn has come or will in so long, or its lock was broken.
    fn handle_lock_turn(self: &Arc<Self>, name: &str, owner: LockOwner, ends: Duration) {
        // In this order: who leaves the line is guarded by then.
        if self.recheck_waiter(owner, ends) || self.held_locks.check_soon(owner) {
            return;
        }
        // Nobody here wants it: a place that was left behind would hold up those behind it. Only that is given up:
        // it may hold the lock by now, for somebody elsewhere who keeps no guard.
        let ask = LockRequest {
            name: name.to_owned(),
            owner,
            node: self.node,
            lease: self.lease,
            slots: 1,
            ttl: self.lease,
            wait: false,
            note: String::new(),
        };
        // Those beyond are told of again, by the next who stands in line or asks.
        let Ok(room) = self.wait_cancel_permits.clone().try_acquire_owned() else {
            return;
        };
        let inner = self.clone();
        self.spawn(async move {
            inner.abandon_lock_or_wait(&ask, true).await;
            drop(room);
        });
    }

    /// Hears what is said to a node of this process until the way ends or the node is gone.
    async fn read_notifications(
        self: Arc<Self>,
        mut sounds: tokio::sync::mpsc::Receiver<Notification>,
        gone: CancellationToken,
    ) {
        while let Some(Some(heard)) = gone.run_until_cancelled(sounds.recv()).await {
            self.handle_notification(heard);
        }
    }
}

/// Enters the hall.
async fn join_peers(inner: &Arc<PeersInner>) -> Result<()> {
    let sounds = inner.store.subscribe_messages(inner.node, true).await?;
    inner.spawn(inner.clone().read_notifications(sounds, inner.stop.clone()));
    inner.announce().await?;
    inner.calls.set_joined(to_micros(inner.store.now()));
    inner.spawn(announce_periodically(inner.clone()));
    Ok(())
}

/// Signs of life, three times a lease.
async fn announce_periodically(inner: Arc<PeersInner>) {
    let every = inner.lease / 3;
    // Also the time that the machine has slept counts: for others it did.
    let mut last = inner.clock.since_boot();
    loop {
        tokio::select! {
            () = tokio::time::sleep(every) => {}
            () = inner.announce_now.notified() => {}
            () = inner.stop.cancelled() => return,
        }
        match tokio::time::timeout(every.max(Duration::from_secs(1)), inner.announce()).await {
            Ok(Ok(())) => {
                // For longer than a lease we may have counted as dead: places in lines are gone, and connections.
                if inner.clock.since_boot() - last > micros(inner.lease) {
                    inner.handle_notification(Notification::Gap);
                }
                last = inner.clock.since_boot();
                // Beside the signs of life: there may be many to tell of.
                let inner = inner.clone();
                inner.clone().spawn(async move {
                    if let Err(error) = inner.resync_connections().await {
                        tracing::warn!(node = %inner.node, %error, "connections may be unknown; told again soon");
                    }
                });
            }
            Ok(Err(error)) => tracing::warn!(node = %inner.node, %error, "no sign of life in the hall"),
            Err(_) => tracing::warn!(node = %inner.node, "the store does not answer a sign of life in the hall"),
        }
    }
}

/// The thread: extends locks until the process goes, then says good-bye.
async fn run_thread(inner: Arc<PeersInner>) {
    renewal::run_renewal(&inner).await;
    inner.tasks.close();
    // What is not said in time ends with the lease.
    let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, inner.tasks.wait()).await;
    if inner.announced.initialized() {
        let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, inner.store.withdraw(inner.node)).await;
    }
}

#[cfg(test)]
mod tests;
