//! The history of a store.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{rfc3339, unix_ms};
use duly::admin::{Histogram, History, HistoryPoint, KindStats, StatCounters};

/// Quantiles in milliseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
#[non_exhaustive]
pub struct Quantiles {
    /// The median.
    pub p50_ms: Option<f64>,
    /// The 95th percentile.
    pub p95_ms: Option<f64>,
    /// The 99th percentile.
    pub p99_ms: Option<f64>,
}

impl From<&Histogram> for Quantiles {
    fn from(histogram: &Histogram) -> Self {
        let at = |q| histogram.quantile(q).map(|time| time.as_secs_f64() * 1e3);
        Quantiles { p50_ms: at(0.5), p95_ms: at(0.95), p99_ms: at(0.99) }
    }
}

/// One interval of one queue or kind.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[non_exhaustive]
#[schema(as = HistoryPoint)]
pub struct PointView {
    /// The start of the interval.
    pub start: String,
    /// The same in milliseconds since 1970.
    pub start_ms: i64,
    /// The queue; absent in a history of a kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// The kind; only in a history of a kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Jobs pushed; 0 in a history of a kind.
    pub pushed: u64,
    /// Attempts that succeeded.
    pub done: u64,
    /// Attempts that failed and are retried.
    pub retried: u64,
    /// Attempts that failed for good.
    pub buried: u64,
    /// Attempts that ended without counting.
    pub released: u64,
    /// Jobs taken back from dead nodes.
    pub taken_back: u64,
    /// Jobs that ended cancelled, whether they waited or ran.
    pub cancelled: u64,
    /// How long after their due time the attempts started.
    pub lateness: Quantiles,
    /// How long the attempts took.
    pub duration: Quantiles,
}

impl PointView {
    pub(crate) fn new(start: SystemTime, counters: &StatCounters) -> Self {
        PointView {
            start: rfc3339(start),
            start_ms: unix_ms(start),
            queue: None,
            kind: None,
            pushed: counters.pushed,
            done: counters.done,
            retried: counters.retried,
            buried: counters.buried,
            released: counters.released,
            taken_back: counters.taken_back,
            cancelled: counters.cancelled,
            lateness: Quantiles::from(&counters.lateness),
            duration: Quantiles::from(&counters.duration),
        }
    }
}

impl From<HistoryPoint> for PointView {
    fn from(point: HistoryPoint) -> Self {
        PointView { queue: Some(point.queue), ..PointView::new(point.start, &point.counters) }
    }
}

impl From<KindStats> for PointView {
    fn from(point: KindStats) -> Self {
        PointView { kind: Some(point.kind), ..PointView::new(point.start, &point.counters) }
    }
}

/// The history, oldest first, without empty intervals.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[non_exhaustive]
#[schema(as = History)]
pub struct HistoryView {
    /// The length of an interval in seconds.
    pub interval_s: u64,
    /// The intervals. The last one may be running.
    pub points: Vec<PointView>,
}

/// The sums of one queue over the last minutes.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[non_exhaustive]
#[schema(as = QueueStats)]
pub struct QueueStatsView {
    /// The queue.
    pub queue: String,
    /// Jobs pushed.
    pub pushed: u64,
    /// Attempts that succeeded.
    pub done: u64,
    /// Attempts that failed and are retried.
    pub retried: u64,
    /// Attempts that failed for good.
    pub buried: u64,
    /// Attempts that ended without counting.
    pub released: u64,
    /// Jobs taken back from dead nodes.
    pub taken_back: u64,
    /// Jobs that ended cancelled, whether they waited or ran.
    pub cancelled: u64,
    /// How long after their due time the attempts started.
    pub lateness: Quantiles,
    /// How long the attempts took.
    pub duration: Quantiles,
}

impl QueueStatsView {
    fn new(queue: &str, counters: &StatCounters) -> Self {
        QueueStatsView {
            queue: queue.to_owned(),
            pushed: counters.pushed,
            done: counters.done,
            retried: counters.retried,
            buried: counters.buried,
            released: counters.released,
            taken_back: counters.taken_back,
            cancelled: counters.cancelled,
            lateness: Quantiles::from(&counters.lateness),
            duration: Quantiles::from(&counters.duration),
        }
    }
}

/// The sums of each queue over the last minutes, by name.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[non_exhaustive]
#[schema(as = QueueStatsList)]
pub struct QueueStats {
    /// The number of minutes, including the current one.
    pub minutes: u32,
    /// The queues with any of these events.
    pub queues: Vec<QueueStatsView>,
}

impl QueueStats {
    /// Returns the sums of a history over this many minutes.
    #[must_use]
    pub fn new(minutes: u32, history: &History) -> Self {
        let queues = history.by_queue();
        QueueStats {
            minutes,
            queues: queues.iter().map(|(queue, counters)| QueueStatsView::new(queue, counters)).collect(),
        }
    }
}
