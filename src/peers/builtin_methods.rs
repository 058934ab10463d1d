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
use crate::lock::backoff;
use crate::node::{Node, NodeId};
use crate::peers::call::Says;
use crate::peers::{Hall, Inner};

/// How the names of these methods begin: nobody else can register one like that.
pub(crate) const PREFIX: &str = "duly.";

/// Most running jobs that are told of, those first that have run longest: more would not fit into a message.
const TOLD_MAX: usize = 500;

/// How long a worker may take to obey: its loop turns many times a second.
const OBEYED_MAX: Duration = Duration::from_secs(2);

/// What a worker is told by others.
pub(crate) enum Order {
    /// Say what is running.
    Jobs(oneshot::Sender<Vec<Running>>),
    /// Claim no more, or claim again; what runs goes on. Once it is answered nothing else is started.
    Quiet(bool, oneshot::Sender<()>),
    /// Stop as if a signal had said so.
    Stop,
    /// End the attempt at this job for good; answers whether there is one.
    Cancel(JobId, oneshot::Sender<bool>),
}

/// A job that runs, as its worker tells it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Running {
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
pub(crate) struct Working {
    pub(crate) node: NodeId,
    /// Its own: a worker that needs a sign of life only now and then does not cost one a second in the hall.
    pub(crate) lease: Duration,
    /// When the store was last told that it is in the hall.
    pub(crate) attended: Option<Instant>,
    orders: mpsc::Sender<Order>,
}

impl Working {
    /// Its next sign of life in the hall is due.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.attended.is_none_or(|at| now.saturating_duration_since(at) >= self.lease / 3)
    }

    /// Gives it an order. Answers false if it has ended, and an error if it does not keep up.
    fn take(&self, order: Order) -> Result<bool, String> {
        match self.orders.try_send(order) {
            Ok(()) => Ok(true),
            Err(TrySendError::Closed(_)) => Ok(false),
            Err(TrySendError::Full(_)) => Err("the worker has not come round to earlier orders; ask again".to_owned()),
        }
    }
}

/// A worker's place in the hall; ends when dropped.
pub(crate) struct AtWork {
    hall: Arc<Hall>,
    node: NodeId,
}

impl Hall {
    /// A worker of this process takes orders from now on.
    pub(crate) fn at_work(self: &Arc<Self>, node: &Node, orders: mpsc::Sender<Order>) -> AtWork {
        let (node, lease) = (node.id, node.lease);
        self.inner.workers().push(Working { node, lease, attended: None, orders });
        let inner = self.inner.clone();
        self.spawn(async move {
            let mut failures = 0;
            // A worker runs on without: only orders do not reach it yet.
            while let Err(error) = inner.hear_for(node, lease).await {
                tracing::warn!(%node, %error, "cannot hear orders yet");
                failures += 1;
                if inner.stop.run_until_cancelled(tokio::time::sleep(backoff(failures))).await.is_none() {
                    return;
                }
            }
        });
        AtWork { hall: self.clone(), node }
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        self.hall.inner.workers().retain(|worker| worker.node != self.node);
        if self.node != self.hall.inner.node {
            let (inner, node) = (self.hall.inner.clone(), self.node);
            self.hall.spawn(async move {
                let _ = inner.store.depart(node).await;
            });
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Quiet {
    #[serde(default = "yes")]
    on: bool,
}

fn yes() -> bool {
    true
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Cancel {
    id: JobId,
}

/// Answers one of them, for the worker that was asked or for all of this process.
pub(crate) async fn answer(inner: &Arc<Inner>, method: &str, args: &RawValue, to: Option<NodeId>) -> Says {
    let answered = match method {
        "ping" => Ok(json!({ "node": inner.node, "version": env!("CARGO_PKG_VERSION") })),
        "stats" => Ok(inner.stats().await),
        "jobs" => inner.jobs(to).await.and_then(|mut jobs| {
            jobs.truncate(TOLD_MAX);
            serde_json::to_value(jobs).map_err(|e| e.to_string())
        }),
        "quiet" => match serde_json::from_str::<Option<Quiet>>(args.get()) {
            Ok(quiet) => inner.quiet(to, quiet.is_none_or(|quiet| quiet.on)).await.map(|told| json!(told)),
            Err(why) => Err(format!("takes {{\"on\": true or false}}: {why}")),
        },
        "stop" => inner.tell(to, |_: oneshot::Sender<()>| Order::Stop).map(|told| json!(told.len())),
        "cancel" => match serde_json::from_str::<Cancel>(args.get()) {
            Ok(cancel) => inner.cancel(to, cancel.id).await.map(|told| json!(told)),
            Err(why) => Err(format!("takes {{\"id\": \"...\"}}: {why}")),
        },
        _ => return Says::NoMethod,
    };
    match answered.and_then(|value| to_raw_value(&value).map_err(|e| e.to_string())) {
        Ok(value) => Says::Value(value),
        Err(error) => Says::Failed(error),
    }
}

impl Inner {
    /// The worker that goes by this name; all of them if everyone is meant, or the process itself.
    fn meant(&self, to: Option<NodeId>) -> Vec<Working> {
        // An identity that was a worker's does not stand for the others when that one has ended.
        let process = to.is_none() || (to == Some(self.node) && !self.given.load(Ordering::Relaxed));
        let workers = self.workers();
        workers.iter().filter(|worker| process || Some(worker.node) == to).cloned().collect()
    }

    /// Tells workers something; each that took it may answer. Those that have ended take nothing.
    fn tell<T>(
        &self,
        to: Option<NodeId>,
        order: impl Fn(oneshot::Sender<T>) -> Order,
    ) -> Result<Vec<oneshot::Receiver<T>>, String> {
        let (mut told, mut behind) = (Vec::new(), None);
        for worker in self.meant(to) {
            let (sender, answer) = oneshot::channel();
            match worker.take(order(sender)) {
                Ok(true) => told.push(answer),
                Ok(false) => {}
                // That one is behind is no reason not to tell the others.
                Err(why) => behind = Some(why),
            }
        }
        behind.filter(|_| told.is_empty()).map_or(Ok(told), Err)
    }

    /// Answers how many workers were told, once all of them are quiet, or work again.
    async fn quiet(&self, to: Option<NodeId>, quiet: bool) -> Result<usize, String> {
        let told = self.tell(to, |answer| Order::Quiet(quiet, answer))?;
        let workers = told.len();
        // One that ends meanwhile claims no more.
        if tokio::time::timeout(OBEYED_MAX, futures_util::future::join_all(told)).await.is_err() {
            return Err(format!("a worker is held up and obeys when it comes round; {workers} were told"));
        }
        Ok(workers)
    }

    async fn jobs(&self, to: Option<NodeId>) -> Result<Vec<Running>, String> {
        let mut all = Vec::new();
        for worker in self.meant(to) {
            let (sender, answer) = oneshot::channel();
            if worker.take(Order::Jobs(sender))? {
                // One that ends meanwhile runs nothing any more.
                all.extend(answer.await.unwrap_or_default());
            }
        }
        all.sort_by_key(|job| std::cmp::Reverse(job.running_ms));
        Ok(all)
    }

    async fn cancel(&self, to: Option<NodeId>, id: JobId) -> Result<bool, String> {
        let mut behind = None;
        for worker in self.meant(to) {
            let (sender, answer) = oneshot::channel();
            match worker.take(Order::Cancel(id, sender)) {
                Ok(taken) if taken && answer.await.unwrap_or(false) => return Ok(true),
                Ok(_) => {}
                Err(why) => behind = Some(why),
            }
        }
        behind.map_or(Ok(false), Err)
    }

    async fn stats(&self) -> serde_json::Value {
        let workers: Vec<NodeId> = self.workers().iter().map(|worker| worker.node).collect();
        let running = self.jobs(None).await.map(|jobs| jobs.len()).ok();
        json!({
            "node": self.node,
            "host": crate::node::host(),
            "pid": std::process::id(),
            "version": env!("CARGO_PKG_VERSION"),
            "workers": workers,
            "running": running,
            "methods": self.methods.names(),
            "locks_held": self.guards.len(),
            "locks_waited_for": self.line.names().len(),
            "calls": self.calls.counts(),
        })
    }

    /// Hears what is said to a node of this process.
    async fn hear_for(self: &Arc<Self>, node: NodeId, lease: Duration) -> crate::error::Result<()> {
        self.attended().await?;
        if node == self.node {
            return Ok(());
        }
        let sounds = self.store.hear(node, false).await?;
        self.spawn(self.clone().listen(sounds, self.stop.clone()));
        self.attend_for(node, lease).await
    }
}
