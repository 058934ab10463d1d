//! Queues.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{rfc3339, unix_ms};
use duly::admin::QueueCounts;

/// A queue.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema, PartialEq)]
#[non_exhaustive]
#[schema(as = Queue)]
pub struct QueueView {
    /// The name.
    pub queue: String,
    /// Its jobs are not claimed.
    pub paused: bool,
    /// It is moving to another store.
    pub moving: bool,
    /// The store that it is moving to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub moving_to: Option<String>,
    /// Jobs that wait for their due time.
    pub scheduled: u64,
    /// Jobs that can be claimed.
    pub ready: u64,
    /// Jobs that a node holds.
    pub running: u64,
    /// Done jobs that are kept.
    pub done: u64,
    /// Jobs that failed for good.
    pub dead: u64,
    /// Cancelled jobs.
    pub cancelled: u64,
    /// The bytes of args of unfinished jobs.
    pub bytes: u64,
    /// The due time of its first ready job; absent if none is ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest: Option<String>,
    /// The same in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_ms: Option<i64>,
    /// The most unfinished jobs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity_jobs: Option<u64>,
    /// The most bytes of args of unfinished jobs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity_bytes: Option<u64>,
}

impl From<&QueueCounts> for QueueView {
    fn from(counts: &QueueCounts) -> Self {
        QueueView {
            queue: counts.queue.clone(),
            paused: counts.paused,
            moving: counts.moving.is_some(),
            moving_to: counts.moving.as_ref().map(|moving| moving.to.clone()),
            scheduled: counts.scheduled,
            ready: counts.ready,
            running: counts.running,
            done: counts.done,
            dead: counts.dead,
            cancelled: counts.cancelled,
            bytes: counts.bytes,
            oldest: counts.oldest_ready.map(rfc3339),
            oldest_ms: counts.oldest_ready.map(unix_ms),
            capacity_jobs: counts.capacity.jobs,
            capacity_bytes: counts.capacity.bytes,
        }
    }
}

/// All queues.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[non_exhaustive]
pub struct QueueList {
    /// The queues, by name.
    pub queues: Vec<QueueView>,
}

impl From<&[QueueCounts]> for QueueList {
    fn from(counts: &[QueueCounts]) -> Self {
        QueueList { queues: counts.iter().map(QueueView::from).collect() }
    }
}
