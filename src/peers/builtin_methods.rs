//! The methods that every node has: to look at it, and to tell its workers what to do.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::job::{Fence, JobId};
use crate::lock::backoff_delay;
use crate::node::{Node, NodeId};
use crate::peers::call::MessageBody;
use crate::peers::{Peers, PeersInner};

/// How the names of these methods begin: nobody else can register one like that.
pub(crate) const BUILTIN_METHOD_PREFIX: &str = "duly.";

/// Most running jobs that are told of, those first that have run longest: more would not fit into a message.
const RUNNING_JOBS_LISTED_MAX: usize = 500;

/// How long a worker may take to obey: its loop turns many times a second.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(2);

/// What a worker is told by others.
pub(crate) enum NodeCommand {
    /// Say what is running.
    ListJobs(oneshot::Sender<Vec<RunningJob>>),
    /// Claim no more, or claim again; what runs goes on. Once it is answered nothing else is started.
    SetQuiet(bool, oneshot::Sender<()>),
    /// Stop as if a signal had said so.
    Stop,
    /// End the attempt at this job for good; answers whether there is one.
    Cancel(JobId, oneshot::Sender<bool>),
}

/// A job that runs, as its worker tells it.
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
    /// The claim that it runs under.
    pub fence: Fence,
    /// How long it has run so far, in milliseconds.
    pub running_ms: u64,
    /// How far it has come, from 0 to 1, as its handler says.
    pub progress: Option<f64>,
}

/// A worker of this process, at work.
#[derive(Clone)]
pub(crate) struct LocalWorker {
    pub(crate) node: NodeId,
    /// Its own: a worker that needs a sign of life only now and then does not cost one a second in the hall.
    pub(crate) lease: Duration,
    /// When the store was last told that it is in the hall.
    pub(crate) announced_at: Option<Instant>,
    commands: mpsc::Sender<NodeCommand>,
}

impl LocalWorker {
    /// Its next sign of life in the hall is due.
    pub(crate) fn is_announce_due(&self, now: Instant) -> bool {
        self.announced_at.is_none_or(|at| now.saturating_duration_since(at) >= self.lease / 3)
    }

    /// Gives it an order. Answers false if it has ended, and an error if it does not keep up.
    fn send_command(&self, order: NodeCommand) -> Result<bool, String> {
        match self.commands.try_send(order) {
            Ok(()) => Ok(true),
            Err(TrySendError::Closed(_)) => Ok(false),
            Err(TrySendError::Full(_)) => Err("the worker has not come round to earlier orders; ask again".to_owned()),
        }
    }
}

/// A worker's place in the hall; ends when dropped.
pub(crate) struct WorkerRegistration {
    peers: Arc<Peers>,
    node: NodeId,
}

impl Peers {
    /// A worker of this process takes orders from now on.
    pub(crate) fn register_worker(
        self: &Arc<Self>,
        node: &Node,
        orders: mpsc::Sender<NodeCommand>,
    ) -> WorkerRegistration {
        let (node, lease) = (node.id, node.lease);
        self.inner.workers().push(LocalWorker { node, lease, announced_at: None, commands: orders });
        let inner = self.inner.clone();
        self.spawn(async move {
            let mut failures = 0;
            // A worker runs on without: only orders do not reach it yet.
            while let Err(error) = inner.subscribe_worker(node, lease).await {
                tracing::warn!(%node, %error, "cannot hear orders yet");
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
    #[serde(default = "yes")]
    on: bool,
}

fn yes() -> bool {
    true
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CancelArgs {
    id: JobId,
}

/// Answers one of them, for the worker that was asked or for all of this process.
pub(crate) async fn run_builtin(
    inner: &Arc<PeersInner>,
    method: &str,
    args: &RawValue,
    to: Option<NodeId>,
) -> MessageBody {
    let answered = match method {
        "ping" => Ok(json!({ "node": inner.node, "version": env!("CARGO_PKG_VERSION") })),
        "stats" => Ok(inner.stats().await),
        "jobs" => inner.running_jobs(to).await.and_then(|mut jobs| {
            jobs.truncate(RUNNING_JOBS_LISTED_MAX);
            serde_json::to_value(jobs).map_err(|e| e.to_string())
        }),
        "quiet" => match serde_json::from_str::<Option<QuietArgs>>(args.get()) {
            Ok(quiet) => inner.set_quiet(to, quiet.is_none_or(|quiet| quiet.on)).await.map(|told| json!(told)),
            Err(why) => Err(format!("takes {{\"on\": true or false}}: {why}")),
        },
        "stop" => inner.send_to_workers(to, |_: oneshot::Sender<()>| NodeCommand::Stop).map(|told| json!(told.len())),
        "cancel" => match serde_json::from_str::<CancelArgs>(args.get()) {
            Ok(cancel) => inner.cancel_job(to, cancel.id).await.map(|told| json!(told)),
            Err(why) => Err(format!("takes {{\"id\": \"...\"}}: {why}")),
        },
        _ => return MessageBody::NoMethod,
    };
    match answered.and_then(|value| to_raw_value(&value).map_err(|e| e.to_string())) {
        Ok(value) => MessageBody::Value(value),
        Err(error) => MessageBody::Failed(error),
    }
}

impl PeersInner {
    /// The worker that goes by this name; all of them if everyone is meant, or the process itself.
    fn addressed_workers(&self, to: Option<NodeId>) -> Vec<LocalWorker> {
        // An identity that was a worker's does not stand for the others when that one has ended.
        let process = to.is_none() || (to == Some(self.node) && !self.is_node_id_taken.load(Ordering::Relaxed));
        let workers = self.workers();
        workers.iter().filter(|worker| process || Some(worker.node) == to).cloned().collect()
    }

    /// Tells workers something; each that took it may answer. Those that have ended take nothing.
    fn send_to_workers<T>(
        &self,
        to: Option<NodeId>,
        order: impl Fn(oneshot::Sender<T>) -> NodeCommand,
    ) -> Result<Vec<oneshot::Receiver<T>>, String> {
        let (mut told, mut behind) = (Vec::new(), None);
        for worker in self.addressed_workers(to) {
            let (sender, answer) = oneshot::channel();
            match worker.send_command(order(sender)) {
                Ok(true) => told.push(answer),
                Ok(false) => {}
                // That one is behind is no reason not to tell the others.
                Err(why) => behind = Some(why),
            }
        }
        behind.filter(|_| told.is_empty()).map_or(Ok(told), Err)
    }

    /// Answers how many workers were told, once all of them are quiet, or work again.
    async fn set_quiet(&self, to: Option<NodeId>, quiet: bool) -> Result<usize, String> {
        let told = self.send_to_workers(to, |answer| NodeCommand::SetQuiet(quiet, answer))?;
        let workers = told.len();
        // One that ends meanwhile claims no more.
        if tokio::time::timeout(COMMAND_TIMEOUT, futures_util::future::join_all(told)).await.is_err() {
            return Err(format!("a worker is held up and obeys when it comes round; {workers} were told"));
        }
        Ok(workers)
    }

    async fn running_jobs(&self, to: Option<NodeId>) -> Result<Vec<RunningJob>, String> {
        let mut all = Vec::new();
        for worker in self.addressed_workers(to) {
            let (sender, answer) = oneshot::channel();
            if worker.send_command(NodeCommand::ListJobs(sender))? {
                // One that ends meanwhile runs nothing any more.
                all.extend(answer.await.unwrap_or_default());
            }
        }
        all.sort_by_key(|job| std::cmp::Reverse(job.running_ms));
        Ok(all)
    }

    async fn cancel_job(&self, to: Option<NodeId>, id: JobId) -> Result<bool, String> {
        let mut behind = None;
        for worker in self.addressed_workers(to) {
            let (sender, answer) = oneshot::channel();
            match worker.send_command(NodeCommand::Cancel(id, sender)) {
                Ok(taken) if taken && answer.await.unwrap_or(false) => return Ok(true),
                Ok(_) => {}
                Err(why) => behind = Some(why),
            }
        }
        behind.map_or(Ok(false), Err)
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

    /// Hears what is said to a node of this process.
    async fn subscribe_worker(self: &Arc<Self>, node: NodeId, lease: Duration) -> crate::error::Result<()> {
        self.ensure_announced().await?;
        if node == self.node {
            return Ok(());
        }
        let sounds = self.store.subscribe_messages(node, false).await?;
        self.spawn(self.clone().read_notifications(sounds, self.stop.clone()));
        self.announce_worker(node, lease).await
    }
}
