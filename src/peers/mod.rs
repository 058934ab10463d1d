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

pub(crate) use self::builtin_methods::AtWork;
pub use self::builtin_methods::Running;
use self::builtin_methods::Working;
pub(crate) use self::builtin_methods::{Order, PREFIX};
use self::calls::Calls;
pub(crate) use self::calls::Pending;
use self::completions::Ends;
pub use self::completions::WAITED_MAX;
pub use self::connections::Connection;
use self::connections::Connections;
use crate::clock::{self, Clock, micros, to_micros};
use crate::error::{Error, Result};
use crate::lock::backoff;
use crate::lock::renewal;
use crate::lock::renewal::Guards;
pub(crate) use crate::lock::renewal::HeldLock;
use crate::lock::waiters::Line;
use crate::node::NodeId;
use crate::peers::call::{Keys, Method, Methods};
use crate::store::{Attended, Guest, Heard, LockAsk, Owner, Store};

/// How long a process that goes waits for what it still has to say.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Most places at a time that are given up because nobody here knows of them.
const LEAVING_MAX: usize = 64;

/// How long whoever drops the last handle waits for that.
const CLOSE_MAX: Duration = Duration::from_millis(250);

/// This process in the hall. Ends when the last one who uses it is gone.
pub(crate) struct Hall {
    pub(crate) inner: Arc<Inner>,
    /// Closed when the thread has ended, and with it its hold on the store.
    ended: Mutex<std::sync::mpsc::Receiver<()>>,
}

pub(crate) struct Inner {
    pub(crate) node: NodeId,
    /// The hall's own thread: everything of ours runs there.
    pub(crate) handle: Handle,
    /// Who this is, for people.
    pub(crate) note: String,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) lease: Duration,
    pub(crate) clock: Clock,
    /// The first sign of life, and with it the first sound that is heard.
    pub(crate) attended: OnceCell<()>,
    /// The first worker of this process goes by the same identity.
    pub(crate) given: AtomicBool,
    pub(crate) guards: Guards,
    pub(crate) line: Line,
    /// Places that are being given up.
    pub(crate) leaving: Arc<Semaphore>,
    pub(crate) methods: Methods,
    pub(crate) calls: Calls,
    pub(crate) connections: Connections,
    /// Jobs that somebody here waits for.
    pub(crate) ends: Ends,
    /// Workers of this process: by them duly's own methods look and act.
    pub(crate) workers: Mutex<Vec<Working>>,
    /// Gives the next sign of life at once.
    pub(crate) soon: Notify,
    pub(crate) tasks: TaskTracker,
    pub(crate) stop: CancellationToken,
}

impl Hall {
    /// Starts the thread. Nothing is asked of the store yet.
    pub(crate) fn start(store: Arc<dyn Store>, lease: Duration, clock: Clock, keys: Keys) -> Result<Arc<Self>> {
        let failed = |e: std::io::Error| Error::store("attend", format!("cannot start a thread: {e}"));
        let node = NodeId::fresh();
        // What is heard there is acted on there, without a change of threads.
        let home = store.home();
        let runtime = match home {
            Some(_) => None,
            None => Some(tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?),
        };
        let Some(handle) = home.or_else(|| runtime.as_ref().map(|runtime| runtime.handle().clone())) else {
            return Err(Error::store("attend", "there is no thread to run on"));
        };
        let inner = Arc::new(Inner {
            node,
            handle: handle.clone(),
            note: format!("{}:{}", crate::node::host(), std::process::id()),
            store,
            lease,
            guards: Guards::new(clock.clone()),
            clock,
            attended: OnceCell::new(),
            given: AtomicBool::new(false),
            line: Line::default(),
            leaving: Arc::new(Semaphore::new(LEAVING_MAX)),
            methods: Methods::default(),
            calls: Calls::new(node, keys),
            connections: Connections::default(),
            ends: Ends::default(),
            workers: Mutex::default(),
            soon: Notify::new(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        });
        let (serving, (alive, ended)) = (inner.clone(), std::sync::mpsc::channel());
        match runtime {
            None => {
                handle.spawn(async move {
                    serve(serving).await;
                    drop(alive);
                });
            }
            Some(runtime) => {
                let run = move || {
                    runtime.block_on(serve(serving));
                    drop(runtime);
                    drop(alive);
                };
                std::thread::Builder::new().name("duly-hall".into()).spawn(run).map_err(failed)?;
            }
        }
        Ok(Arc::new(Hall { inner, ended: Mutex::new(ended) }))
    }

    /// Who this process is.
    pub(crate) fn node(&self) -> NodeId {
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
    pub(crate) async fn attended(&self) -> Result<()> {
        self.inner.attended().await
    }

    /// The identity for a worker of this process: the first one is the node itself, any other a node of its own.
    pub(crate) fn identity(&self) -> NodeId {
        if self.inner.given.swap(true, Ordering::Relaxed) { NodeId::fresh() } else { self.inner.node }
    }

    /// Answers this method from now on. Answers false if there are too many.
    pub(crate) fn add_method(&self, name: String, method: Method) -> bool {
        self.inner.methods.add(name, method)
    }

    pub(crate) fn remove_method(&self, name: &str) -> bool {
        self.inner.methods.remove(name)
    }

    /// Lets others see what has changed here.
    pub(crate) async fn show(&self) -> Result<()> {
        let inner = self.inner.clone();
        self.inner.there("attend", async move { inner.attend().await }).await
    }

    /// Gives up whatever an owner has of a lock, in the background.
    pub(crate) fn give_up(&self, ask: LockAsk) {
        let inner = self.inner.clone();
        self.spawn(async move { inner.give_up(&ask).await });
    }

    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.inner.spawn(work);
    }
}

impl Drop for Hall {
    /// Waits a moment for the thread: whoever closes the last handle of a file expects the file to be closed.
    fn drop(&mut self) {
        self.inner.stop.cancel();
        let on_it = Handle::try_current().is_ok_and(|here| here.id() == self.inner.handle.id());
        if !on_it {
            let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = ended.recv_timeout(CLOSE_MAX);
        }
    }
}

impl Inner {
    fn workers(&self) -> MutexGuard<'_, Vec<Working>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) async fn attended(self: &Arc<Self>) -> Result<()> {
        if self.attended.initialized() {
            return Ok(());
        }
        // Not on the task of who came first: kept unpolled, it would hold up all others.
        let inner = self.clone();
        self.there("attend", async move { inner.attended.get_or_try_init(|| join(&inner)).await.map(drop) }).await
    }

    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn_on(work, &self.handle);
    }

    /// Does something on the hall's own thread, where it goes on whether or not somebody waits for it here.
    pub(crate) async fn there<T: Send + 'static>(
        &self,
        op: &'static str,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let gone = |_| Error::store(op, "this handle was closed");
        self.tasks.spawn_on(work, &self.handle).await.map_err(gone).flatten()
    }

    /// Gives up whatever an owner has of a lock.
    pub(crate) async fn give_up(&self, ask: &LockAsk) {
        self.give_up_some(ask, false).await;
    }

    /// Gives up what an owner has of a lock, or only its place in the line.
    /// Tried until it works, or until the hold has ended by itself.
    pub(crate) async fn give_up_some(&self, ask: &LockAsk, only_place: bool) {
        let until = self.clock.since_boot() + micros(ask.ttl.max(self.lease));
        let mut failures = 0;
        loop {
            let given_up = match only_place {
                true => self.store.leave_line(ask).await,
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
            tokio::time::sleep(backoff(failures)).await;
        }
    }

    fn guest(&self) -> Guest {
        let (methods, waits, places) = (self.methods.names(), self.line.names(), self.line.places());
        let quiet = methods.is_empty() && waits.is_empty() && self.connections.is_empty();
        Guest { node: self.node, lease: self.lease, methods, waits, places, quiet }
    }

    /// A sign of life, and what follows from its answer.
    async fn attend(self: &Arc<Self>) -> Result<()> {
        let guest = self.guest();
        let Attended { turns, lost } = self.store.attend(&guest).await?;
        // Whoever has lost its place goes to the end of the line, rather than wait for a turn that will never come.
        for owner in lost {
            self.nudge(owner, Duration::ZERO);
        }
        // Somebody waits here, and the store knows of no line: it has lost the place.
        for name in guest.waits.iter().filter(|name| turns.iter().all(|turn| turn.name != **name)) {
            self.line.nudge_all_of(name);
        }
        for turn in turns {
            if let Some(owner) = turn.first {
                self.turn(&turn.name, owner, turn.ends);
            }
        }
        for (worker, lease) in self.others_due() {
            self.attend_for(worker, lease).await?;
        }
        Ok(())
    }

    /// A sign of life for a worker of this process that is a node of its own.
    async fn attend_for(&self, node: NodeId, lease: Duration) -> Result<()> {
        let (methods, waits, places) = (Vec::new(), Vec::new(), Vec::new());
        let guest = Guest { node, lease, methods, waits, places, quiet: true };
        self.store.attend(&guest).await?;
        let known = self.workers().iter_mut().find(|worker| worker.node == node).map(|worker| {
            worker.attended = Some(clock::tick());
        });
        // It may have gone meanwhile, and would stand there for ever.
        if known.is_none() {
            self.store.depart(node).await?;
        }
        Ok(())
    }

    /// Workers of this process that are nodes of their own, and whose sign of life is due.
    fn others_due(&self) -> Vec<(NodeId, Duration)> {
        let (now, workers) = (clock::tick(), self.workers());
        let due = workers.iter().filter(|worker| worker.node != self.node && worker.is_due(now));
        due.map(|worker| (worker.node, worker.lease)).collect()
    }

    fn heard(self: &Arc<Self>, heard: Heard) {
        match heard {
            Heard::Turn { name, owner } => self.turn(&name, owner, Duration::ZERO),
            Heard::Message(frame) => self.message(&frame),
            Heard::Ended(ids) => self.ends.tell(&ids),
            Heard::Look => self.soon.notify_one(),
            Heard::Gap => {
                self.connections.doubt();
                self.guards.doubt_all();
                self.line.nudge_all();
                self.ends.missed();
                self.soon.notify_one();
            }
        }
    }

    /// Something is up with what an owner has of a lock: its turn has come or will in so long, or its lock was broken.
    fn turn(self: &Arc<Self>, name: &str, owner: Owner, ends: Duration) {
        // In this order: who leaves the line is guarded by then.
        if self.nudge(owner, ends) || self.guards.doubt(owner) {
            return;
        }
        // Nobody here wants it: a place that was left behind would hold up those behind it. Only that is given up:
        // it may hold the lock by now, for somebody elsewhere who keeps no guard.
        let ask = LockAsk {
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
        let Ok(room) = self.leaving.clone().try_acquire_owned() else {
            return;
        };
        let inner = self.clone();
        self.spawn(async move {
            inner.give_up_some(&ask, true).await;
            drop(room);
        });
    }

    /// Hears what is said to a node of this process until the way ends or the node is gone.
    async fn listen(self: Arc<Self>, mut sounds: tokio::sync::mpsc::Receiver<Heard>, gone: CancellationToken) {
        while let Some(Some(heard)) = gone.run_until_cancelled(sounds.recv()).await {
            self.heard(heard);
        }
    }
}

/// Enters the hall.
async fn join(inner: &Arc<Inner>) -> Result<()> {
    let sounds = inner.store.hear(inner.node, true).await?;
    inner.spawn(inner.clone().listen(sounds, inner.stop.clone()));
    inner.attend().await?;
    inner.calls.joined(to_micros(inner.store.now()));
    inner.spawn(beat(inner.clone()));
    Ok(())
}

/// Signs of life, three times a lease.
async fn beat(inner: Arc<Inner>) {
    let every = inner.lease / 3;
    // Also the time that the machine has slept counts: for others it did.
    let mut last = inner.clock.since_boot();
    loop {
        tokio::select! {
            () = tokio::time::sleep(every) => {}
            () = inner.soon.notified() => {}
            () = inner.stop.cancelled() => return,
        }
        match tokio::time::timeout(every.max(Duration::from_secs(1)), inner.attend()).await {
            Ok(Ok(())) => {
                // For longer than a lease we may have counted as dead: places in lines are gone, and connections.
                if inner.clock.since_boot() - last > micros(inner.lease) {
                    inner.heard(Heard::Gap);
                }
                last = inner.clock.since_boot();
                // Beside the signs of life: there may be many to tell of.
                let inner = inner.clone();
                inner.clone().spawn(async move {
                    if let Err(error) = inner.mend_connections().await {
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
async fn serve(inner: Arc<Inner>) {
    renewal::extend(&inner).await;
    inner.tasks.close();
    // What is not said in time ends with the lease.
    let _ = tokio::time::timeout(LAST_WORDS, inner.tasks.wait()).await;
    if inner.attended.initialized() {
        let _ = tokio::time::timeout(LAST_WORDS, inner.store.depart(inner.node)).await;
    }
}

#[cfg(test)]
mod tests;
