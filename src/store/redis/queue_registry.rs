//! Registers the names of queues under the peer keys, where all processes find them.
//!
//! In a Cluster these keys may live on another server than a queue, and a failure of that server must not stop the
//! queue. A push therefore waits only for a name that this process has never registered; later it registers in the
//! background.
//!
//! A server can lose its data without losing a connection (FLUSHALL). A node notices it with its next heartbeat. A
//! process that only pushes registers all queues that it has pushed to again, in one request per second.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::error::Result;
use crate::store::redis::conn::{ConnectionRole, Servers};
use crate::store::redis::keys::PeerKeys;
use crate::store::redis::script;
use crate::store::redis::url::Topology;
use crate::sync::LockExt;

/// How long the first heartbeat in a queue waits for the registration, so that a client that lists queues finds the
/// node.
const FIRST_HEARTBEAT_WAIT: Duration = Duration::from_millis(500);
/// How long the first push to a queue waits for the registration if another server may hold the names.
const FIRST_PUSH_WAIT: Duration = Duration::from_secs(1);

/// First pause before a failed registration is retried; doubles up to the maximum.
const RETRY_PAUSE_MIN: Duration = Duration::from_secs(1);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(30);

/// Maximum delay after a push before the name of its queue is registered again.
const REFRESH_DELAY: Duration = Duration::from_secs(1);
/// Maximum names in one request.
const NAMES_PER_REQUEST_MAX: usize = 500;

/// The names that this process has registered.
pub(super) struct QueueRegistry {
    servers: Arc<Servers>,
    /// Runs the registrations in the background.
    runtime: Handle,
    keys: PeerKeys,
    registrations: Mutex<HashMap<String, QueueRegistration>>,
    /// A refresh of the names of pushed queues is scheduled.
    is_refresh_scheduled: AtomicBool,
    /// Notified when a registration is no longer in progress.
    changed: Notify,
}

#[derive(Clone, Copy, Default)]
struct QueueRegistration {
    /// The generation of the connection that registered it; `None` if it never was.
    registered_generation: Option<u64>,
    /// A background registration runs.
    in_progress: bool,
    /// A caller has timed out waiting; later callers do not wait.
    is_slow: bool,
    /// The queue was pushed to since its name was registered.
    has_pushes: bool,
}

impl QueueRegistry {
    pub(super) fn new(servers: Arc<Servers>, runtime: Handle, keys: &PeerKeys) -> Arc<Self> {
        Arc::new(QueueRegistry {
            servers,
            runtime,
            keys: keys.clone(),
            registrations: Mutex::default(),
            is_refresh_scheduled: AtomicBool::new(false),
            changed: Notify::new(),
        })
    }

    fn registrations(&self) -> MutexGuard<'_, HashMap<String, QueueRegistration>> {
        self.registrations.lock_unpoisoned()
    }

    /// Registers a queue before its first push. A queue that was registered before is refreshed in the background.
    pub(super) async fn register(self: &Arc<Self>, op: &'static str, queue: &str, now: String) -> Result<()> {
        if !self.note_push(queue) {
            if self.servers.url().topology != Topology::Cluster || op != "push" {
                return self.send_names(op, &[queue.to_owned()], now).await;
            }
            // The server with the names may be down while the queue's own server works: the push then goes on, and the
            // name is registered later by this process or by a worker of the queue.
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

    /// Forgets a queue that is removed: the next push registers it first.
    pub(super) fn forget(&self, queue: &str) {
        self.registrations().remove(queue);
    }

    /// Records a push to a queue, and returns whether its name was registered before.
    fn note_push(&self, queue: &str) -> bool {
        let mut registrations = self.registrations();
        let Some(registration) =
            registrations.get_mut(queue).filter(|registration| registration.registered_generation.is_some())
        else {
            return false;
        };
        registration.has_pushes = true;
        true
    }

    /// Registers the names of all pushed queues again after a short delay, in the background.
    fn schedule_refresh(self: &Arc<Self>, now: String) {
        if self.is_refresh_scheduled.swap(true, Ordering::SeqCst) {
            return;
        }
        let registry = self.clone();
        self.runtime.spawn(async move {
            tokio::time::sleep(REFRESH_DELAY).await;
            registry.is_refresh_scheduled.store(false, Ordering::SeqCst);
            for batch in registry.take_pushed_queues().chunks(NAMES_PER_REQUEST_MAX) {
                if let Err(error) = registry.send_names("register", batch, now.clone()).await {
                    tracing::debug!(%error, "cannot register the names of queues; retrying with a later push");
                }
            }
        });
    }

    /// Takes the queues that were pushed to since the last call.
    fn take_pushed_queues(&self) -> Vec<String> {
        let mut registrations = self.registrations();
        let pushed = |(queue, registration): (&String, &mut QueueRegistration)| {
            std::mem::take(&mut registration.has_pushes).then(|| queue.clone())
        };
        registrations.iter_mut().filter_map(pushed).collect()
    }

    /// Records that the server may have lost this name, although the connection is the same.
    pub(super) fn mark_uncertain(&self, queue: &str) {
        if let Some(registration) = self.registrations().get_mut(queue) {
            // Registered once, but by no generation that is current.
            registration.registered_generation = registration.registered_generation.map(|_| 0);
        }
    }

    /// Registers a queue after a heartbeat in it. The heartbeat counts even if this fails.
    pub(super) async fn register_after_heartbeat(self: &Arc<Self>, queue: &str, now: String) {
        let is_first = !self.registrations().contains_key(queue);
        if let Some(registering) = self.register_in_background(queue, now)
            && is_first
        {
            let _ = tokio::time::timeout(FIRST_HEARTBEAT_WAIT, registering).await;
        }
    }

    /// Waits until the registration is no longer in progress, or is known to be slow.
    async fn wait_until_registered(&self, queue: &str) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if !self
                .registrations()
                .get(queue)
                .is_some_and(|registration| registration.in_progress && !registration.is_slow)
            {
                return;
            }
            changed.await;
        }
    }

    /// Registers a name in the background if the server may not have it.
    fn register_in_background(self: &Arc<Self>, queue: &str, now: String) -> Option<JoinHandle<()>> {
        // A restarted server, or its successor, may have lost the name.
        let generation = self.servers.generation(ConnectionRole::Client, self.keys.slot);
        let is_registered = |registration: &QueueRegistration| {
            registration.in_progress || (generation != 0 && registration.registered_generation == Some(generation))
        };
        if self.registrations().get(queue).is_some_and(is_registered) {
            return None;
        }
        self.registrations().entry(queue.to_owned()).or_default().in_progress = true;
        let (registry, queue) = (self.clone(), queue.to_owned());
        Some(self.runtime.spawn(async move {
            let mut pause = RETRY_PAUSE_MIN;
            while let Err(error) = registry.send_names("register", std::slice::from_ref(&queue), now.clone()).await {
                match pause {
                    RETRY_PAUSE_MIN => {
                        tracing::warn!(queue, %error, "cannot register the queue; other processes may not find it yet")
                    }
                    _ => {
                        tracing::debug!(queue, %error, "cannot register the queue; other processes may not find it yet")
                    }
                }
                // A name that was registered before is refreshed by the next heartbeat or push. A new name is retried:
                // there may be no next one, and no worker finds its jobs.
                if !registry.note_slow(&queue) {
                    break;
                }
                tokio::time::sleep(pause).await;
                pause = (2 * pause).min(RETRY_PAUSE_MAX);
            }
            registry.registrations().entry(queue).or_default().in_progress = false;
            registry.changed.notify_waiters();
        }))
    }

    /// Records that a registration is slow, and returns whether the name was never registered.
    fn note_slow(&self, queue: &str) -> bool {
        let never_registered = {
            let mut registrations = self.registrations();
            let registration = registrations.entry(queue.to_owned()).or_default();
            registration.is_slow = registration.registered_generation.is_none();
            registration.is_slow
        };
        self.changed.notify_waiters();
        never_registered
    }

    async fn send_names(&self, op: &'static str, queues: &[String], now: String) -> Result<()> {
        let mut cmd = script::REGISTER_QUEUES.call(&self.keys);
        cmd.arg(now).arg(queues);
        self.servers
            .run_script_idempotent(op, ConnectionRole::Client, self.keys.slot, &script::REGISTER_QUEUES, &cmd)
            .await?;
        let generation = self.servers.generation(ConnectionRole::Client, self.keys.slot);
        let mut registrations = self.registrations();
        for queue in queues {
            let registration = registrations.entry(queue.clone()).or_default();
            (registration.registered_generation, registration.is_slow) = (Some(generation), false);
        }
        Ok(())
    }
}
