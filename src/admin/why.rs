//! Explains in one sentence why a job is not running, from the current state of the store.

use std::fmt;
use std::time::SystemTime;

use serde::Serialize;

use super::why_description::{Description, format_utc};
use crate::client::Jobs;
use crate::clock::from_micros;
use crate::error::Result;
use crate::job::{JobId, JobRecord, State};
use crate::node::{NodeId, NodeRecord, take_back_command};
use crate::store::{AdminStore, CRASH_SUSPECT_MIN, JobStore, PeerStore, QueueCounts, TransferMark};
use crate::worker::attempt::UNKNOWN_KIND_DELAY_MAX;
use crate::worker::quarantine::ROOM_PAUSE_MAX;

/// Why a job is not running. Its text is one sentence for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "why", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Why {
    /// There is no such job.
    NotFound,
    /// The job is done.
    Done {
        /// When.
        #[serde(serialize_with = "crate::clock::as_micros_option")]
        ended: Option<SystemTime>,
    },
    /// The job was cancelled.
    Cancelled {
        /// When.
        #[serde(serialize_with = "crate::clock::as_micros_option")]
        ended: Option<SystemTime>,
    },
    /// The job failed for good.
    Dead {
        /// When.
        #[serde(serialize_with = "crate::clock::as_micros_option")]
        ended: Option<SystemTime>,
        /// The error of its last attempt.
        error: Option<String>,
    },
    /// The job failed for good, and cannot be retried while another job has its unique key.
    UniqueHolder {
        /// The key, without its scope.
        key: String,
        /// The job that has it.
        holder: JobId,
        /// The error of its last attempt.
        error: Option<String>,
    },
    /// The job is running on a node.
    Held {
        /// The node.
        node: NodeId,
        /// The node's host, if it is still known.
        host: Option<String>,
        /// Since when.
        #[serde(serialize_with = "crate::clock::as_micros")]
        since: SystemTime,
        /// Whether the node sends heartbeats; if not, another node of the queue takes the job back.
        alive: bool,
        /// Whether it was cancelled: unless this attempt succeeds, the job ends cancelled with it.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        cancelling: bool,
        /// A command that takes the job back, if its node is dead and no live node works on its queue.
        #[serde(skip_serializing_if = "Option::is_none")]
        return_command: Option<String>,
        /// How many other jobs the node holds, if the job may have to wait for their end: several nodes have died while
        /// they held it, so it has to run alone for a while.
        #[serde(skip_serializing_if = "Option::is_none")]
        waits_for: Option<u64>,
    },
    /// An attempt has failed, and the next one is due later.
    BackingOff {
        /// When it is due.
        #[serde(serialize_with = "crate::clock::as_micros")]
        due: SystemTime,
        /// How many attempts have failed.
        attempts: u32,
        /// The maximum number of attempts.
        max_attempts: u32,
        /// The error of the last attempt.
        error: Option<String>,
    },
    /// Several nodes have died while they held the job, and no worker was free to run it alone.
    Suspect {
        /// When it is due.
        #[serde(serialize_with = "crate::clock::as_micros")]
        due: SystemTime,
        /// The number of nodes that died.
        crashes: u32,
    },
    /// The job is not due yet.
    DueLater {
        /// When it is due.
        #[serde(serialize_with = "crate::clock::as_micros")]
        due: SystemTime,
    },
    /// Its queue is moving to another store.
    Moving {
        /// The queue.
        queue: String,
        /// The mark of the transfer.
        moving: TransferMark,
    },
    /// Its queue is paused.
    Paused {
        /// The queue.
        queue: String,
    },
    /// No live node works on its queue.
    NoNode {
        /// The queue.
        queue: String,
        /// When it is due, if that is later: it may be deferred because no node had a handler for its kind.
        #[serde(serialize_with = "crate::clock::as_micros_option", skip_serializing_if = "Option::is_none")]
        due: Option<SystemTime>,
    },
    /// Nodes work on its queue, but all that could run it are quiet.
    Quiet {
        /// The queue.
        queue: String,
        /// How many nodes could run it.
        nodes: usize,
    },
    /// Nodes work on its queue, but none has a handler for its kind.
    UnknownKind {
        /// The queue.
        queue: String,
        /// The kind.
        kind: String,
        /// How many nodes work on the queue.
        nodes: usize,
    },
    /// All nodes that could run it have no free slot.
    SlotsBusy {
        /// The queue.
        queue: String,
        /// How many nodes could run it.
        nodes: usize,
        /// How many jobs of this queue they run.
        running: u64,
        /// How many jobs of the queue are ready, this one among them.
        ready: u64,
    },
    /// Nothing blocks it: it is ready and starts after the jobs ahead of it.
    Next {
        /// The queue.
        queue: String,
        /// How many jobs of the queue are ready, this one among them.
        ready: u64,
    },
}

impl Why {
    /// The names of all causes, as [`Why::code`] returns them.
    pub const CODES: [&'static str; 16] = [
        "not_found",
        "done",
        "cancelled",
        "dead",
        "unique_holder",
        "held",
        "backing_off",
        "suspect",
        "due_later",
        "moving",
        "paused",
        "no_node",
        "quiet",
        "unknown_kind",
        "slots_busy",
        "next",
    ];

    /// Returns the stable name of the cause.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Why::NotFound => "not_found",
            Why::Done { .. } => "done",
            Why::Cancelled { .. } => "cancelled",
            Why::Dead { .. } => "dead",
            Why::UniqueHolder { .. } => "unique_holder",
            Why::Held { .. } => "held",
            Why::BackingOff { .. } => "backing_off",
            Why::Suspect { .. } => "suspect",
            Why::DueLater { .. } => "due_later",
            Why::Moving { .. } => "moving",
            Why::Paused { .. } => "paused",
            Why::NoNode { .. } => "no_node",
            Why::Quiet { .. } => "quiet",
            Why::UnknownKind { .. } => "unknown_kind",
            Why::SlotsBusy { .. } => "slots_busy",
            Why::Next { .. } => "next",
        }
    }
}

impl Why {
    /// Describes the reason in one sentence, with times in the format of `format_time`: those of `to_string` are UTC.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, Push};
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let id = duly.push(Push::new("mail", "{}").after(Duration::from_secs(60))).await?.id();
    /// let why = duly.jobs().why(id).await?;
    /// assert!(why.describe(|_| "noon".to_owned()).ends_with("start a worker for it; it is due at noon"));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn describe(&self, format_time: impl Fn(SystemTime) -> String) -> String {
        Description { why: self, format_time: &format_time }.to_string()
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Description { why: self, format_time: &format_utc }.fmt(f)
    }
}

impl Jobs<'_> {
    /// Returns why a job is not running, as far as the store knows now.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Store`](crate::Error::Store) if the store cannot be reached. A missing job is not an error:
    /// its cause is [`Why::NotFound`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, Push};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let id = duly.push(Push::new("mail", "{}")).await?.id();
    /// let why = duly.jobs().why(id).await?;
    /// assert_eq!(why.code(), "no_node");
    /// assert_eq!(why.to_string(), "no node works on its queue default: start a worker for it");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn why(self, id: JobId) -> Result<Why> {
        let Some(record) = self.duly.store.get(id).await? else {
            return Ok(Why::NotFound);
        };
        let error = record.failures.last().map(|failure| failure.error.clone());
        match record.state {
            State::Done => Ok(Why::Done { ended: record.ended }),
            State::Cancelled => Ok(Why::Cancelled { ended: record.ended }),
            State::Dead => self.why_dead(record, error).await,
            State::Running => {
                let nodes = self.duly.store.nodes().await?;
                // Programs of another system may need the jobs that the command must leave alone.
                let is_shared = self.duly.store.capabilities().shared_keys.is_some();
                Ok(explain_running(&record, &nodes, self.duly.store.now(), is_shared))
            }
            State::Scheduled | State::Ready => {
                let nodes = self.duly.store.nodes().await?;
                let counts = self.duly.store.counts().await?;
                let counts = counts.into_iter().find(|counts| counts.queue == record.job.queue).unwrap_or_default();
                Ok(explain_waiting(&record, error, &nodes, counts, self.duly.store.now()))
            }
        }
    }

    async fn why_dead(self, record: JobRecord, error: Option<String>) -> Result<Why> {
        let finds_holders = self.duly.store.capabilities().admin.is_some();
        if let Some(key) = record.job.unique.filter(|_| finds_holders) {
            let holder = self.duly.store.unique_holder(&record.job.queue, key.as_str()).await?;
            if let Some(holder) = holder.filter(|holder| *holder != record.job.id) {
                return Ok(Why::UniqueHolder { key: key.key().to_owned(), holder, error });
            }
        }
        Ok(Why::Dead { ended: record.ended, error })
    }
}

/// A fence is the time of its claim, unless the clock has gone back since.
fn explain_running(record: &JobRecord, nodes: &[NodeRecord], now: SystemTime, is_shared: bool) -> Why {
    let since = record.fence.and_then(|fence| i64::try_from(fence.0).ok()).map_or(now, from_micros).min(now);
    let Some(node) = record.node else {
        return Why::DueLater { due: record.due };
    };
    let holder = nodes.iter().find(|other| other.id == node);
    let alive = holder.is_some_and(|holder| holder.alive);
    let queue = &record.job.queue;
    let has_live_node = nodes.iter().any(|node| node.alive && node.queues.contains(queue));
    let return_command = (!alive && !has_live_node).then(|| match is_shared {
        true => take_back_command(queue),
        false => format!("duly work --queue {queue}"),
    });
    let others = holder.map_or(0, |holder| holder.held.saturating_sub(1));
    Why::Held {
        node,
        host: holder.map(|holder| holder.host.clone()),
        since,
        alive,
        cancelling: record.cancelling,
        return_command,
        waits_for: Some(others).filter(|others| record.crashes >= CRASH_SUSPECT_MIN && *others > 0),
    }
}

/// Returns why a job waits: the first cause that would block it even without the others.
fn explain_waiting(
    record: &JobRecord,
    error: Option<String>,
    nodes: &[NodeRecord],
    counts: QueueCounts,
    now: SystemTime,
) -> Why {
    let job = &record.job;
    let queue = job.queue.clone();
    let serving: Vec<&NodeRecord> =
        nodes.iter().filter(|node| node.alive && node.queues.contains(&job.queue)).collect();
    let no_handler = !serving.is_empty() && !serving.iter().any(|node| node.profile.has_handler(&job.kind));
    let unknown_kind = || Why::UnknownKind { queue: queue.clone(), kind: job.kind.clone(), nodes: serving.len() };
    let remaining = record.due.duration_since(now).unwrap_or_default();
    if record.state == State::Scheduled && !remaining.is_zero() {
        return match record.attempts {
            0 if no_handler && remaining <= UNKNOWN_KIND_DELAY_MAX => unknown_kind(),
            0 if serving.is_empty() && remaining <= UNKNOWN_KIND_DELAY_MAX => {
                Why::NoNode { queue, due: Some(record.due) }
            }
            0 if record.crashes >= CRASH_SUSPECT_MIN && remaining <= ROOM_PAUSE_MAX => {
                Why::Suspect { due: record.due, crashes: record.crashes }
            }
            0 => Why::DueLater { due: record.due },
            attempts => Why::BackingOff { due: record.due, attempts, max_attempts: job.max_attempts, error },
        };
    }
    if let Some(moving) = counts.moving {
        return Why::Moving { queue, moving };
    }
    if counts.paused {
        return Why::Paused { queue };
    }
    if serving.is_empty() {
        return Why::NoNode { queue, due: None };
    }
    if no_handler {
        return unknown_kind();
    }
    let able: Vec<_> = serving.iter().filter(|node| node.profile.has_handler(&job.kind)).collect();
    if able.iter().all(|node| node.profile.quiet) {
        return Why::Quiet { queue, nodes: able.len() };
    }
    let able: Vec<_> = able.into_iter().filter(|node| !node.profile.quiet).collect();
    let ready = counts.ready.max(1);
    if able.iter().all(|node| is_full(node, &queue)) {
        let running = able.iter().filter_map(|node| node.held_by_queue.get(&queue)).sum();
        return Why::SlotsBusy { queue, nodes: able.len(), running, ready };
    }
    Why::Next { queue, ready }
}

/// Returns whether a node has no free slot, for this queue or in total.
fn is_full(node: &NodeRecord, queue: &str) -> bool {
    let held = node.held_by_queue.get(queue).copied().unwrap_or(0);
    let queue_is_full = node.profile.limits.get(queue).is_some_and(|limit| held >= *limit);
    queue_is_full || node.profile.slots.is_some_and(|slots| node.held >= slots)
}
