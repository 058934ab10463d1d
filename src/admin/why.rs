//! Explains in one sentence why a job is not running, from the current state of the store.

use std::fmt;
use std::time::SystemTime;

use serde::Serialize;

use crate::client::Duly;
use crate::clock::{from_micros, to_micros};
use crate::error::Result;
use crate::job::{JobId, JobRecord, State};
use crate::node::{NodeId, NodeRecord};
use crate::store::{AdminStore, JobStore, PeerStore, QueueCounts, TransferMark};
use crate::worker::attempt::{CRASH_SUSPECT_MIN, QUARANTINE_DELAY_MAX, UNKNOWN_KIND_DELAY_MAX};

/// Longest part of an error quoted in a sentence, in characters.
const ERROR_CHARS_MAX: usize = 200;

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
        /// The key.
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
        /// Whether the node sends heartbeats; if not, its jobs are taken back soon.
        alive: bool,
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
    /// Several nodes have died while they held the job. Such jobs run one by one, and it waits for its turn.
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
        /// How many nodes work the queue.
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
    /// Returns the stable name of the cause.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Why::NotFound => "not_found",
            Why::Done { .. } => "done",
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
    /// Describes a ready job that waits for a node: the last reasons of the list.
    fn fmt_node(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Quiet { queue, nodes: 1 } => write!(
                f,
                "the one node that could run it from queue {queue} is quiet or stopping: start another, or `duly nodes quiet --off --all`"
            ),
            Why::Quiet { queue, nodes } => write!(
                f,
                "all {nodes} nodes that could run it from queue {queue} are quiet or stopping: start another, or `duly nodes quiet --off --all`"
            ),
            Why::UnknownKind { queue, kind, nodes: 1 } => write!(
                f,
                "the one node that works its queue {queue} has no handler for its kind {kind}: start one that has"
            ),
            Why::UnknownKind { queue, kind, nodes } => write!(
                f,
                "none of the {nodes} nodes that work its queue {queue} has a handler for its kind {kind}: start one that has"
            ),
            Why::SlotsBusy { queue, nodes, running, ready } => write!(
                f,
                "all slots are busy: {} {} of queue {queue}, and {} ready",
                pluralize(*nodes as u64, "node runs", "nodes run"),
                pluralize(*running, "job", "jobs"),
                pluralize(*ready, "is", "are"),
            ),
            Why::Next { queue, ready: 1 } => {
                write!(f, "nothing blocks it: it is the only ready job of queue {queue}")
            }
            Why::Next { queue, ready } => write!(
                f,
                "nothing blocks it: {ready} jobs of queue {queue} are ready, and it starts when it is the first of them"
            ),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::NotFound => {
                f.write_str("there is no such job: it was never pushed here, or has been removed or pruned")
            }
            Why::Done { ended } => write!(f, "it is done{}", since_clause(*ended)),
            Why::Dead { ended, error } => {
                write!(f, "it is dead{}{}; retry it to start over", since_clause(*ended), error_clause(error))
            }
            Why::UniqueHolder { key, holder, error } => write!(
                f,
                "it is dead{}, and its unique key {key:?} belongs to job {holder}: it can be retried after that job has ended",
                error_clause(error)
            ),
            Why::Held { node, host, since, alive } => {
                let host = host.as_deref().map_or(String::new(), |host| format!(" on {host}"));
                write!(f, "it is running: node {node}{host} has held it since {}", format_time(*since))?;
                let silent = ", but sends no heartbeats; other nodes take the job back when its lease expires";
                f.write_str(if *alive { "" } else { silent })
            }
            Why::BackingOff { due, attempts, max_attempts, error } => write!(
                f,
                "attempt {attempts} of at most {max_attempts} has failed{}; the next one is due at {}",
                error_clause(error),
                format_time(*due)
            ),
            Why::Suspect { due, crashes } => write!(
                f,
                "{crashes} nodes have died while they held it: such jobs run one by one, and its turn comes at {} at the earliest",
                format_time(*due)
            ),
            Why::DueLater { due } => write!(f, "it is due later, at {}", format_time(*due)),
            Why::Moving { queue, moving } => write!(
                f,
                "its queue {queue} is moving to {}: it runs there, or here if the transfer is abandoned",
                moving.to
            ),
            Why::Paused { queue } => write!(f, "its queue {queue} is paused: it runs once the queue is resumed"),
            Why::NoNode { queue, due: None } => write!(f, "no node works its queue {queue}: start a worker for it"),
            Why::NoNode { queue, due: Some(due) } => {
                write!(
                    f,
                    "no node works its queue {queue}: start a worker for it; it is deferred until {}",
                    format_time(*due)
                )
            }
            waits_for_a_node => waits_for_a_node.fmt_node(f),
        }
    }
}

fn pluralize(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

fn since_clause(ended: Option<SystemTime>) -> String {
    ended.map_or(String::new(), |ended| format!(" since {}", format_time(ended)))
}

/// Returns an error as part of a sentence: on one line, truncated.
fn error_clause(error: &Option<String>) -> String {
    let Some(error) = error else {
        return String::new();
    };
    let line = error.split_whitespace().collect::<Vec<_>>().join(" ");
    let shown: String = line.chars().take(ERROR_CHARS_MAX).collect();
    let ellipsis = if shown.len() < line.len() { "..." } else { "" };
    format!(" ({shown}{ellipsis})")
}

/// Formats a time for people, to the second.
fn format_time(at: SystemTime) -> String {
    let seconds = to_micros(at).div_euclid(1_000_000);
    jiff::Timestamp::from_second(seconds).map_or_else(|_| "a time out of range".to_owned(), |at| at.to_string())
}

impl Duly {
    /// Returns why a job is not running, as far as the store knows now.
    pub async fn why(&self, id: JobId) -> Result<Why> {
        let Some(record) = self.store.get(id).await? else {
            return Ok(Why::NotFound);
        };
        let error = record.failures.last().map(|failure| failure.error.clone());
        match record.state {
            State::Done => Ok(Why::Done { ended: record.ended }),
            State::Dead => self.why_dead(record, error).await,
            State::Running => {
                let nodes = self.store.nodes().await?;
                Ok(explain_running(&record, &nodes, self.store.now()))
            }
            State::Scheduled | State::Ready => {
                let nodes = self.store.nodes().await?;
                let counts = self.store.counts().await?;
                let counts = counts.into_iter().find(|counts| counts.queue == record.job.queue).unwrap_or_default();
                Ok(explain_waiting(&record, error, &nodes, counts, self.store.now()))
            }
        }
    }

    async fn why_dead(&self, record: JobRecord, error: Option<String>) -> Result<Why> {
        let finds_holders = self.store.capabilities().admin.is_some();
        if let Some(key) = record.job.unique.filter(|_| finds_holders) {
            let holder = self.store.unique_holder(&record.job.queue, &key).await?;
            if let Some(holder) = holder.filter(|holder| *holder != record.job.id) {
                return Ok(Why::UniqueHolder { key, holder, error });
            }
        }
        Ok(Why::Dead { ended: record.ended, error })
    }
}

/// A fence is the time of its claim, unless the clock has gone back since.
fn explain_running(record: &JobRecord, nodes: &[NodeRecord], now: SystemTime) -> Why {
    let since = record.fence.and_then(|fence| i64::try_from(fence.0).ok()).map_or(now, from_micros).min(now);
    let Some(node) = record.node else {
        return Why::DueLater { due: record.due };
    };
    let holder = nodes.iter().find(|other| other.id == node);
    Why::Held {
        node,
        host: holder.map(|holder| holder.host.clone()),
        since,
        alive: holder.is_some_and(|holder| holder.alive),
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
            0 if record.crashes >= CRASH_SUSPECT_MIN && remaining <= QUARANTINE_DELAY_MAX => {
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
