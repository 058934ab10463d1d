//! This process as a peer: it announces itself, extends held locks, waits for locks, receives messages and serves
//! calls. All of this runs on a separate thread, so that no handler can block it.
//!
//! This file is the interface to the rest of the library. `lock::renewal` extends locks, `lock::waiters` waits for
//! them, `calls` sends and serves calls, and `builtin_methods` has the methods of every node.

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
use std::sync::{Arc, Mutex, MutexGuard};
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
use crate::store::{AnnounceReply, LockOwner, LockRequest, LockStore, Notification, PeerInfo, PeerStore, Store};
use crate::sync::{LockExt, build_thread_runtime, start_thread};

/// How long a stopping process waits for its remaining requests.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// Most concurrent cancellations of waits that this process does not know.
const WAIT_CANCELS_IN_FLIGHT_MAX: usize = 64;

/// How long dropping the last handle waits for the thread.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(250);

/// This process as a peer. It stops when the last handle is dropped.
pub(crate) struct Peers {
    pub(crate) inner: Arc<PeersInner>,
    /// Closed when the thread has ended and has released the store.
    thread_ended: Mutex<std::sync::mpsc::Receiver<()>>,
}

pub(crate) struct PeersInner {
    pub(crate) node: NodeId,
    /// The runtime of the peer thread.
    pub(crate) handle: Handle,
    /// Describes this process to people.
    pub(crate) note: String,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) lease: Duration,
    pub(crate) clock: Clock,
    /// Set once this process has subscribed and announced itself.
    pub(crate) announced: OnceCell<()>,
    /// Whether a worker already uses this process's node id; the first worker does.
    pub(crate) is_node_id_taken: AtomicBool,
    pub(crate) held_locks: HeldLocks,
    pub(crate) lock_waiters: LockWaiters,
    /// Limits concurrent cancellations.
    pub(crate) wait_cancel_permits: Arc<Semaphore>,
    pub(crate) methods: MethodRegistry,
    pub(crate) calls: CallRegistry,
    pub(crate) connections: HeldConnections,
    /// Jobs that callers in this process wait for.
    pub(crate) completions: Completions,
    /// Workers of this process, for the built-in methods.
    pub(crate) workers: Mutex<Vec<LocalWorker>>,
    /// Triggers the next announcement immediately.
    pub(crate) announce_now: Notify,
    pub(crate) tasks: TaskTracker,
    pub(crate) stop: CancellationToken,
}

impl Peers {
    /// Starts the thread. Sends nothing to the store yet.
    pub(crate) fn start(store: Arc<dyn Store>, lease: Duration, clock: Clock, keys: ClusterKeys) -> Result<Arc<Self>> {
        let node = NodeId::fresh();
        // Notifications are handled on the runtime that receives them, without a switch of threads.
        let store_runtime = store.runtime();
        let runtime = match store_runtime {
            Some(_) => None,
            None => Some(build_thread_runtime("announce")?),
        };
        let Some(handle) = store_runtime.or_else(|| runtime.as_ref().map(|runtime| runtime.handle().clone())) else {
            return Err(Error::store("announce", "there is no thread to run on; please report this as a bug"));
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
        let (thread_inner, (alive, ended)) = (inner.clone(), std::sync::mpsc::channel());
        match runtime {
            None => {
                handle.spawn(async move {
                    run_thread(thread_inner).await;
                    drop(alive);
                });
            }
            Some(runtime) => {
                let run = move || {
                    runtime.block_on(run_thread(thread_inner));
                    drop(runtime);
                    drop(alive);
                };
                start_thread("announce", "duly-peers", run)?;
            }
        }
        Ok(Arc::new(Peers { inner, thread_ended: Mutex::new(ended) }))
    }

    /// Returns the node id of this process.
    pub(crate) fn node_id(&self) -> NodeId {
        self.inner.node
    }

    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        &self.inner.store
    }

    /// Returns the current time.
    pub(crate) fn now(&self) -> SystemTime {
        self.inner.clock.now()
    }

    /// Returns a description of this process for people.
    pub(crate) fn note(&self) -> &str {
        &self.inner.note
    }

    /// Announces this process and subscribes to its messages, unless it has done so.
    pub(crate) async fn ensure_announced(&self) -> Result<()> {
        self.inner.ensure_announced().await
    }

    /// Returns the node id for a worker of this process: the first one uses the process's own, others get a new one.
    pub(crate) fn worker_node_id(&self) -> NodeId {
        if self.inner.is_node_id_taken.swap(true, Ordering::Relaxed) { NodeId::fresh() } else { self.inner.node }
    }

    /// Registers a method. Returns false if there are too many.
    pub(crate) fn add_method(&self, name: String, method: Method) -> bool {
        self.inner.methods.add(name, method)
    }

    pub(crate) fn remove_method(&self, name: &str) -> bool {
        self.inner.methods.remove(name)
    }

    /// Announces changes of this process to its peers.
    pub(crate) async fn announce(&self) -> Result<()> {
        let inner = self.inner.clone();
        self.inner.run_on_thread("announce", async move { inner.announce().await }).await
    }

    /// Releases an owner's lock or cancels its wait, in the background.
    pub(crate) fn abandon_lock(&self, request: LockRequest) {
        let inner = self.inner.clone();
        self.spawn(async move { inner.abandon_lock(&request).await });
    }

    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.inner.spawn(work);
    }
}

impl Drop for Peers {
    /// Waits briefly for the thread: after the last handle of a file is dropped, callers expect the file to be closed.
    fn drop(&mut self) {
        self.inner.stop.cancel();
        let on_peer_thread = Handle::try_current().is_ok_and(|current| current.id() == self.inner.handle.id());
        if !on_peer_thread {
            let ended = self.thread_ended.lock_unpoisoned();
            let _ = ended.recv_timeout(CLOSE_TIMEOUT);
        }
    }
}

impl PeersInner {
    fn workers(&self) -> MutexGuard<'_, Vec<LocalWorker>> {
        self.workers.lock_unpoisoned()
    }

    pub(crate) async fn ensure_announced(self: &Arc<Self>) -> Result<()> {
        if self.announced.initialized() {
            return Ok(());
        }
        // Not on the first caller's task: if it is not polled, it would block all others.
        let inner = self.clone();
        self.run_on_thread(
            "announce",
            async move { inner.announced.get_or_try_init(|| join_peers(&inner)).await.map(drop) },
        )
        .await
    }

    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn_on(work, &self.handle);
    }

    /// Runs a future on the peer thread, where it completes even if the caller stops waiting.
    pub(crate) async fn run_on_thread<T: Send + 'static>(
        &self,
        op: &'static str,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let closed = |_| Error::store(op, "this handle was closed; open the store again");
        self.tasks.spawn_on(work, &self.handle).await.map_err(closed).flatten()
    }

    /// Releases an owner's lock or cancels its wait.
    pub(crate) async fn abandon_lock(&self, request: &LockRequest) {
        self.abandon_lock_or_wait(request, false).await;
    }

    /// Releases an owner's lock or wait, or only its wait. Retries until it succeeds or the hold has expired.
    pub(crate) async fn abandon_lock_or_wait(&self, request: &LockRequest, only_wait: bool) {
        let deadline = self.clock.since_boot() + micros(request.ttl.max(self.lease));
        let mut failures = 0;
        loop {
            let result = match only_wait {
                true => self.store.cancel_wait(request).await,
                false => self.store.unlock(request).await.map(drop),
            };
            let Err(error) = result else {
                return;
            };
            if !error.is_retryable() || self.clock.since_boot() > deadline {
                tracing::warn!(lock = request.name, %error, "failed to release the lock; it expires on its own");
                return;
            }
            failures += 1;
            tokio::time::sleep(backoff_delay(failures)).await;
        }
    }

    fn peer_info(&self) -> PeerInfo {
        let methods = self.methods.names();
        let (waited_locks, waiters) = (self.lock_waiters.lock_names(), self.lock_waiters.queued_waits());
        let listen_only = methods.is_empty() && waited_locks.is_empty() && self.connections.is_empty();
        PeerInfo { node: self.node, lease: self.lease, methods, waited_locks, waiters, listen_only }
    }

    /// Announces this process and handles the reply.
    async fn announce(self: &Arc<Self>) -> Result<()> {
        let peer = self.peer_info();
        let AnnounceReply { turns, lost_waits } = self.store.announce(&peer).await?;
        // A lost wait goes to the end of the waiters instead of waiting for a turn that never comes.
        for owner in lost_waits {
            self.recheck_waiter(owner, Duration::ZERO);
        }
        // A caller waits here, but the store has no waiters for the lock: it has lost the wait.
        for name in peer.waited_locks.iter().filter(|name| turns.iter().all(|turn| turn.name != **name)) {
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

    /// Announces a worker of this process that has its own node id.
    async fn announce_worker(&self, node: NodeId, lease: Duration) -> Result<()> {
        let peer = PeerInfo { listen_only: true, ..PeerInfo::new(node, lease) };
        self.store.announce(&peer).await?;
        let registered = self.workers().iter_mut().find(|worker| worker.node == node).map(|worker| {
            worker.announced_at = Some(clock::monotonic_now());
        });
        // The worker may have stopped meanwhile and would stay registered.
        if registered.is_none() {
            self.store.withdraw(node).await?;
        }
        Ok(())
    }

    /// Returns the workers with their own node id that are due for an announcement.
    fn workers_to_announce(&self) -> Vec<(NodeId, Duration)> {
        let (now, workers) = (clock::monotonic_now(), self.workers());
        let due = workers.iter().filter(|worker| worker.node != self.node && worker.is_announce_due(now));
        due.map(|worker| (worker.node, worker.lease)).collect()
    }

    fn handle_notification(self: &Arc<Self>, notification: Notification) {
        match notification {
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

    /// Handles news about an owner's lock: it has its turn after `expires_in`, or its hold was broken.
    fn handle_lock_turn(self: &Arc<Self>, name: &str, owner: LockOwner, expires_in: Duration) {
        // In this order: a wait that ends is registered as a held lock by then.
        if self.recheck_waiter(owner, expires_in) || self.held_locks.check_soon(owner) {
            return;
        }
        // No caller wants it here, and an orphaned wait would block those behind it. Only the wait is cancelled: the
        // owner may
        // hold the lock by now, for a remote client without a guard.
        let request = LockRequest {
            name: name.to_owned(),
            owner,
            node: self.node,
            lease: self.lease,
            slots: 1,
            ttl: self.lease,
            wait: false,
            note: String::new(),
        };
        // Further turns are reported again by the next waiter or request.
        let Ok(permit) = self.wait_cancel_permits.clone().try_acquire_owned() else {
            return;
        };
        let inner = self.clone();
        self.spawn(async move {
            inner.abandon_lock_or_wait(&request, true).await;
            drop(permit);
        });
    }

    /// Handles the notifications of a node of this process until the subscription or the node ends.
    async fn read_notifications(
        self: Arc<Self>,
        mut notifications: tokio::sync::mpsc::Receiver<Notification>,
        stop: CancellationToken,
    ) {
        while let Some(Some(notification)) = stop.run_until_cancelled(notifications.recv()).await {
            self.handle_notification(notification);
        }
    }
}

/// Subscribes and announces this process.
async fn join_peers(inner: &Arc<PeersInner>) -> Result<()> {
    let notifications = inner.store.subscribe_messages(inner.node, true).await?;
    inner.spawn(inner.clone().read_notifications(notifications, inner.stop.clone()));
    inner.announce().await?;
    inner.calls.set_joined(to_micros(inner.store.now()));
    inner.spawn(announce_periodically(inner.clone()));
    Ok(())
}

/// Announces this process three times per lease.
async fn announce_periodically(inner: Arc<PeersInner>) {
    let interval = inner.lease / 3;
    // Includes the time that the machine was suspended, because it counts for other nodes.
    let mut last = inner.clock.since_boot();
    loop {
        tokio::select! {
            () = tokio::time::sleep(interval) => {}
            () = inner.announce_now.notified() => {}
            () = inner.stop.cancelled() => return,
        }
        match tokio::time::timeout(interval.max(Duration::from_secs(1)), inner.announce()).await {
            Ok(Ok(())) => {
                // After more than a lease, this node may have counted as dead and lost its waits and connections.
                if inner.clock.since_boot() - last > micros(inner.lease) {
                    inner.handle_notification(Notification::Gap);
                }
                last = inner.clock.since_boot();
                // In a separate task, because there may be many connections.
                let inner = inner.clone();
                inner.clone().spawn(async move {
                    if let Err(error) = inner.resync_connections().await {
                        tracing::warn!(node = %inner.node, %error, "failed to register connections; retrying soon");
                    }
                });
            }
            Ok(Err(error)) => tracing::warn!(node = %inner.node, %error, "failed to announce this node"),
            Err(_) => tracing::warn!(node = %inner.node, "timed out announcing this node: the store does not respond"),
        }
    }
}

/// Runs the peer thread: extends locks until the process stops, then withdraws.
async fn run_thread(inner: Arc<PeersInner>) {
    renewal::run_renewal(&inner).await;
    inner.tasks.close();
    // Requests that do not complete in time are covered by the end of the lease.
    let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, inner.tasks.wait()).await;
    if inner.announced.initialized() {
        let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, inner.store.withdraw(inner.node)).await;
    }
}

#[cfg(test)]
mod tests;
