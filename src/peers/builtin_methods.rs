//! The built-in methods of every node: they inspect it and send commands to its workers.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::job::{Fence, HeldJob, JobId};
use crate::lock::backoff_delay;
use crate::node::{Node, NodeId};
use crate::peers::call::MessageBody;
use crate::peers::{Peers, PeersInner};
use crate::store::PeerStore;

/// Prefix of the built-in methods; no other method can use it.
pub(crate) const BUILTIN_METHOD_PREFIX: &str = "duly.";

/// Most running jobs listed, longest running first: more would not fit into a message.
const RUNNING_JOBS_LISTED_MAX: usize = 500;

/// How long a worker may take to execute a command; its loop runs many times a second.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(2);

/// A command from another node to a worker.
pub(crate) enum NodeCommand {
    /// Lists the running jobs.
    ListJobs(oneshot::Sender<Vec<RunningJob>>),
    /// Stops or resumes claiming; running jobs continue. Once the reply is sent, no other job starts.
    SetQuiet(bool, oneshot::Sender<()>),
    /// Stops the worker as a shutdown signal does.
    Stop,
    /// Cancels the attempt at this job; replies whether there is one.
    Cancel(JobId, oneshot::Sender<bool>),
}

/// A running job, as its worker reports it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RunningJob {
    /// The job.
    pub id: JobId,
    /// Its queue.
    pub queue: String,
    /// Its kind.
    pub kind: String,
    /// Which attempt this is, from 1.
    pub attempt: u32,
    /// The fence of its claim.
    pub fence: Fence,
    /// How long it has run so far, in milliseconds.
    pub running_ms: u64,
    /// Its progress from 0 to 1, as reported by its handler.
    pub progress: Option<f64>,
}

impl RunningJob {
    /// Describes a held job that has run for this long.
    pub(crate) fn new(held: &HeldJob, running: Duration, progress: Option<f64>) -> Self {
        RunningJob {
            id: held.job.id,
            queue: held.job.queue.clone(),
            kind: held.job.kind.clone(),
            attempt: held.attempt(),
            fence: held.fence,
            running_ms: u64::try_from(running.as_millis()).unwrap_or(u64::MAX),
            progress,
        }
    }
}

/// A running worker of this process.
#[derive(Clone)]
pub(crate) struct LocalWorker {
    pub(crate) node: NodeId,
    /// Its own lease, so that a worker with a long lease is not announced every second.
    pub(crate) lease: Duration,
    /// When it was last announced.
    pub(crate) announced_at: Option<Instant>,
    commands: mpsc::Sender<NodeCommand>,
}

impl LocalWorker {
    /// Returns whether its next announcement is due.
    pub(crate) fn is_announce_due(&self, now: Instant) -> bool {
        self.announced_at.is_none_or(|announced| now.saturating_duration_since(announced) >= self.lease / 3)
    }

    /// Sends it a command. Returns false if the worker has ended, and an error if its command queue is full.
    fn send_command(&self, command: NodeCommand) -> Result<bool, String> {
        match self.commands.try_send(command) {
            Ok(()) => Ok(true),
            Err(TrySendError::Closed(_)) => Ok(false),
            Err(TrySendError::Full(_)) => Err("the worker has not executed earlier commands yet; try again".to_owned()),
        }
    }
}

/// The registration of a worker, removed on drop.
pub(crate) struct WorkerRegistration {
    peers: Arc<Peers>,
    node: NodeId,
}

impl Peers {
    /// Registers a worker of this process to receive commands.
    pub(crate) fn register_worker(
        self: &Arc<Self>,
        node: &Node,
        commands: mpsc::Sender<NodeCommand>,
    ) -> WorkerRegistration {
        let (node, lease) = (node.id, node.lease);
        self.inner.workers().push(LocalWorker { node, lease, announced_at: None, commands });
        let inner = self.inner.clone();
        self.spawn(async move {
            let mut failures = 0;
            // The worker runs anyway; until this succeeds, commands do not reach it.
            while let Err(error) = inner.subscribe_worker(node, lease).await {
                tracing::warn!(%node, %error, "failed to subscribe to commands; retrying");
                failures += 1;
                if inner.stop.run_until_cancelled(tokio::time::sleep(backoff_delay(failures))).await.is_none() {
                    return;
                }
            }
        });
        WorkerRegistration { peers: self.clone(), node }
    }
}

impl Drop for WorkerRegistration {
    fn drop(&mut self) {
        self.peers.inner.workers().retain(|worker| worker.node != self.node);
        if self.node != self.peers.inner.node {
            let (inner, node) = (self.peers.inner.clone(), self.node);
            self.peers.spawn(async move {
                let _ = inner.store.withdraw(node).await;
            });
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct QuietArgs {
    #[serde(default = "default_true")]
    on: bool,
}

fn default_true() -> bool {
    true
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CancelArgs {
    id: JobId,
}

/// Runs a built-in method for the addressed worker, or for all workers of this process.
pub(crate) async fn run_builtin(
    inner: &Arc<PeersInner>,
    method: &str,
    args: &RawValue,
    to: Option<NodeId>,
) -> MessageBody {
    let result = match method {
        "ping" => Ok(json!({ "node": inner.node, "version": env!("CARGO_PKG_VERSION") })),
        "stats" => Ok(inner.stats().await),
        "jobs" => inner.running_jobs(to).await.and_then(|mut jobs| {
            jobs.truncate(RUNNING_JOBS_LISTED_MAX);
            serde_json::to_value(jobs).map_err(|e| e.to_string())
        }),
        "quiet" => match serde_json::from_str::<Option<QuietArgs>>(args.get()) {
            Ok(quiet) => inner.set_quiet(to, quiet.is_none_or(|quiet| quiet.on)).await.map(|workers| json!(workers)),
            Err(error) => Err(format!("expected {{\"on\": true or false}}: {error}")),
        },
        "stop" => inner.send_to_workers(to, |_: oneshot::Sender<()>| NodeCommand::Stop).map(|sent| json!(sent.len())),
        "cancel" => match serde_json::from_str::<CancelArgs>(args.get()) {
            Ok(cancel) => inner.cancel_job(to, cancel.id).await.map(|found| json!(found)),
            Err(error) => Err(format!("expected {{\"id\": \"...\"}}: {error}")),
        },
        _ => return MessageBody::NoMethod,
    };
    match result.and_then(|value| to_raw_value(&value).map_err(|e| e.to_string())) {
        Ok(value) => MessageBody::Value(value),
        Err(error) => MessageBody::Failed(error),
    }
}

impl PeersInner {
    /// Returns the addressed worker; all workers for a broadcast or if the process itself is addressed.
    fn addressed_workers(&self, to: Option<NodeId>) -> Vec<LocalWorker> {
        // A node id that a worker used does not address the other workers after that worker has ended.
        let all_workers = to.is_none() || (to == Some(self.node) && !self.is_node_id_taken.load(Ordering::Relaxed));
        let workers = self.workers();
        workers.iter().filter(|worker| all_workers || Some(worker.node) == to).cloned().collect()
    }

    /// Sends a command to the addressed workers and returns a receiver for each reply. Skips workers that have ended.
    fn send_to_workers<T>(
        &self,
        to: Option<NodeId>,
        command: impl Fn(oneshot::Sender<T>) -> NodeCommand,
    ) -> Result<Vec<oneshot::Receiver<T>>, String> {
        let (mut replies, mut full) = (Vec::new(), None);
        for worker in self.addressed_workers(to) {
            let (sender, reply) = oneshot::channel();
            match worker.send_command(command(sender)) {
                Ok(true) => replies.push(reply),
                Ok(false) => {}
                // One full command queue must not prevent the others from receiving the command.
                Err(error) => full = Some(error),
            }
        }
        full.filter(|_| replies.is_empty()).map_or(Ok(replies), Err)
    }

    /// Makes workers quiet or active, and returns how many once all have done so.
    async fn set_quiet(&self, to: Option<NodeId>, quiet: bool) -> Result<usize, String> {
        let replies = self.send_to_workers(to, |sender| NodeCommand::SetQuiet(quiet, sender))?;
        let workers = replies.len();
        // A worker that ends meanwhile claims no more jobs.
        if tokio::time::timeout(COMMAND_TIMEOUT, futures_util::future::join_all(replies)).await.is_err() {
            return Err(format!("timed out waiting for {workers} workers; a busy one executes the command later"));
        }
        Ok(workers)
    }

    async fn running_jobs(&self, to: Option<NodeId>) -> Result<Vec<RunningJob>, String> {
        let mut all = Vec::new();
        for worker in self.addressed_workers(to) {
            let (sender, reply) = oneshot::channel();
            if worker.send_command(NodeCommand::ListJobs(sender))? {
                // A worker that ends meanwhile has no running jobs.
                all.extend(reply.await.unwrap_or_default());
            }
        }
        all.sort_by_key(|job| std::cmp::Reverse(job.running_ms));
        Ok(all)
    }

    async fn cancel_job(&self, to: Option<NodeId>, id: JobId) -> Result<bool, String> {
        let mut full = None;
        for worker in self.addressed_workers(to) {
            let (sender, reply) = oneshot::channel();
            match worker.send_command(NodeCommand::Cancel(id, sender)) {
                Ok(sent) if sent && reply.await.unwrap_or(false) => return Ok(true),
                Ok(_) => {}
                Err(error) => full = Some(error),
            }
        }
        full.map_or(Ok(false), Err)
    }

    async fn stats(&self) -> serde_json::Value {
        let workers: Vec<NodeId> = self.workers().iter().map(|worker| worker.node).collect();
        let running = self.running_jobs(None).await.map(|jobs| jobs.len()).ok();
        json!({
            "node": self.node,
            "host": crate::node::host_name(),
            "pid": std::process::id(),
            "version": env!("CARGO_PKG_VERSION"),
            "workers": workers,
            "running": running,
            "methods": self.methods.names(),
            "locks_held": self.held_locks.len(),
            "locks_waited_for": self.lock_waiters.lock_names().len(),
            "calls": self.calls.counts(),
        })
    }

    /// Subscribes to the messages of a worker with its own node id, and announces it.
    async fn subscribe_worker(self: &Arc<Self>, node: NodeId, lease: Duration) -> crate::error::Result<()> {
        self.ensure_announced().await?;
        if node == self.node {
            return Ok(());
        }
        let notifications = self.store.subscribe_messages(node, false).await?;
        self.spawn(self.clone().read_notifications(notifications, self.stop.clone()));
        self.announce_worker(node, lease).await
    }
}
