//! The names of queues, put into the hall where others find them.
//!
//! In a Cluster the hall has a server of its own: while that is away, the queues on the others must go on. So only a name
//! that this process has never put there is waited for; later on it is done aside.
//!
//! A server can lose what it has without losing a connection (FLUSHALL). A node learns of it by its next beat; whoever only
//! pushes puts the names of all queues it has pushed to there again a moment later, in one request a second.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::error::Result;
use crate::store::redis::conn::{ConnectionRole, Servers};
use crate::store::redis::keys::PeerKeys;
use crate::store::redis::script;
use crate::store::redis::url::Topology;

/// How long the first beat in a queue waits for its name: whoever looks after it should find the node.
const FIRST_HEARTBEAT_WAIT: Duration = Duration::from_millis(500);
/// How long the first push to a queue waits until its name is where others find it, if that may be another server.
const FIRST_PUSH_WAIT: Duration = Duration::from_secs(1);

/// How long after a name could not be put there for the first time it is tried again; doubles up to the longest.
const RETRY_PAUSE_MIN: Duration = Duration::from_secs(1);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(30);

/// How long after a push the name of its queue is put there again, at most.
const REFRESH_DELAY: Duration = Duration::from_secs(1);
/// Most names in one request.
const NAMES_PER_REQUEST_MAX: usize = 500;

/// Which names are in the hall, as far as this process knows.
pub(super) struct QueueRegistry {
    servers: Arc<Servers>,
    /// Where names are put there that nobody waits for.
    runtime: Handle,
    keys: PeerKeys,
    registrations: Mutex<HashMap<String, QueueRegistration>>,
    /// Those that were pushed to are about to be put there again.
    is_refresh_scheduled: AtomicBool,
    /// A name is no longer on its way.
    changed: Notify,
}

#[derive(Clone, Copy, Default)]
struct QueueRegistration {
    /// Through which connection it got there; `None` if it never did.
    registered_generation: Option<u64>,
    /// It is on its way, and nobody waits for it.
    in_progress: bool,
    /// It was waited for in vain: whoever comes now goes on at once.
    is_slow: bool,
    /// The queue was pushed to since its name was put there.
    has_pushes: bool,
}

impl QueueRegistry {
    pub(super) fn new(link: Arc<Servers>, home: Handle, hall: &PeerKeys) -> Arc<Self> {
        Arc::new(QueueRegistry {
            servers: link,
            runtime: home,
            keys: hall.clone(),
            registrations: Mutex::default(),
            is_refresh_scheduled: AtomicBool::new(false),
            changed: Notify::new(),
        })
    }

    fn registrations(&self) -> MutexGuard<'_, HashMap<String, QueueRegistration>> {
        self.registrations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name of a queue that is about to get something is there, or, if it was before, will be again.
    pub(super) async fn register(self: &Arc<Self>, op: &'static str, queue: &str, now: String) -> Result<()> {
        if !self.note_push(queue) {
            if self.servers.url().topology != Topology::Cluster || op != "push" {
                return self.send_names(op, &[queue.to_owned()], now).await;
            }
            // The names may live with a server that is away, and the queue with another: then a push goes on without its name,
            // which is put there later, by us or by who works it.
            drop(self.register_in_background(queue, now));
            if tokio::time::timeout(FIRST_PUSH_WAIT, self.wait_until_registered(queue)).await.is_err() {
                self.registrations().entry(queue.to_owned()).or_default().is_slow = true;
            }
            return Ok(());
        }
        self.register_in_background(queue, now.clone());
        self.schedule_refresh(now);
        Ok(())
    }

    /// Notes that a queue is pushed to, and answers whether its name has been put there before.
    fn note_push(&self, queue: &str) -> bool {
        let mut known = self.registrations();
        let Some(name) = known.get_mut(queue).filter(|name| name.registered_generation.is_some()) else {
            return false;
        };
        name.has_pushes = true;
        true
    }

    /// Before long puts the names of all queues there again that were pushed to, and lets nobody wait for it.
    fn schedule_refresh(self: &Arc<Self>, now: String) {
        if self.is_refresh_scheduled.swap(true, Ordering::SeqCst) {
            return;
        }
        let names = self.clone();
        self.runtime.spawn(async move {
            tokio::time::sleep(REFRESH_DELAY).await;
            names.is_refresh_scheduled.store(false, Ordering::SeqCst);
            for some in names.take_pushed_queues().chunks(NAMES_PER_REQUEST_MAX) {
                if let Err(error) = names.send_names("register", some, now.clone()).await {
                    tracing::debug!(%error, "the names of queues are put there with a later push");
                }
            }
        });
    }

    /// The queues that were pushed to since this was last asked.
    fn take_pushed_queues(&self) -> Vec<String> {
        let mut known = self.registrations();
        let pushed = |(queue, name): (&String, &mut QueueRegistration)| {
            std::mem::take(&mut name.has_pushes).then(|| queue.clone())
        };
        known.iter_mut().filter_map(pushed).collect()
    }

    /// The server may have lost this name, although the connection is the same.
    pub(super) fn mark_uncertain(&self, queue: &str) {
        if let Some(name) = self.registrations().get_mut(queue) {
            // It was there; but not by any connection that still counts.
            name.registered_generation = name.registered_generation.map(|_| 0);
        }
    }

    /// The same for a queue in which a node has just beaten: that counts, whatever becomes of the name.
    pub(super) async fn register_after_heartbeat(self: &Arc<Self>, queue: &str, now: String) {
        let first = !self.registrations().contains_key(queue);
        if let Some(under_way) = self.register_in_background(queue, now)
            && first
        {
            let _ = tokio::time::timeout(FIRST_HEARTBEAT_WAIT, under_way).await;
        }
    }

    /// Resolves when a name is no longer on its way, whoever has sent it, or known to take long.
    async fn wait_until_registered(&self, queue: &str) {
        loop {
            let mut news = std::pin::pin!(self.changed.notified());
            news.as_mut().enable();
            if !self.registrations().get(queue).is_some_and(|name| name.in_progress && !name.is_slow) {
                return;
            }
            news.await;
        }
    }

    /// Puts a name there again if it may be missing, and lets nobody wait for it.
    fn register_in_background(self: &Arc<Self>, queue: &str, now: String) -> Option<JoinHandle<()>> {
        // A server that came back, or another in its place, may have forgotten it.
        let by = self.servers.generation(ConnectionRole::Client, self.keys.slot);
        let is_there =
            |name: &QueueRegistration| name.in_progress || (by != 0 && name.registered_generation == Some(by));
        if self.registrations().get(queue).is_some_and(is_there) {
            return None;
        }
        self.registrations().entry(queue.to_owned()).or_default().in_progress = true;
        let (names, queue) = (self.clone(), queue.to_owned());
        Some(self.runtime.spawn(async move {
            let mut pause = RETRY_PAUSE_MIN;
            while let Err(error) = names.send_names("register", std::slice::from_ref(&queue), now.clone()).await {
                match pause {
                    RETRY_PAUSE_MIN => tracing::warn!(queue, %error, "others may not find this queue yet"),
                    _ => tracing::debug!(queue, %error, "others may not find this queue yet"),
                }
                // One that was there before is put there with the next beat or push; one that never was has jobs that nobody
                // finds, and perhaps there is no next.
                if !names.note_slow(&queue) {
                    break;
                }
                tokio::time::sleep(pause).await;
                pause = (2 * pause).min(RETRY_PAUSE_MAX);
            }
            names.registrations().entry(queue).or_default().in_progress = false;
            names.changed.notify_waiters();
        }))
    }

    /// Notes that it takes long to put a name there, and answers whether it never was.
    fn note_slow(&self, queue: &str) -> bool {
        let missing = {
            let mut known = self.registrations();
            let name = known.entry(queue.to_owned()).or_default();
            name.is_slow = name.registered_generation.is_none();
            name.is_slow
        };
        self.changed.notify_waiters();
        missing
    }

    async fn send_names(&self, op: &'static str, queues: &[String], now: String) -> Result<()> {
        let mut cmd = script::REGISTER_QUEUES.call(&self.keys);
        cmd.arg(now).arg(queues);
        self.servers
            .run_script_idempotent(op, ConnectionRole::Client, self.keys.slot, &script::REGISTER_QUEUES, &cmd)
            .await?;
        let by = self.servers.generation(ConnectionRole::Client, self.keys.slot);
        let mut known = self.registrations();
        for queue in queues {
            let name = known.entry(queue.clone()).or_default();
            (name.registered_generation, name.is_slow) = (Some(by), false);
        }
        Ok(())
    }
}
