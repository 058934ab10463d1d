//! Totals and history of a store.

use std::sync::Arc;

use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Problems, positive};
use crate::identity::Identity;
use crate::json::QueryParams;
use crate::problem::Result;
use crate::server::{App, AppState};
use crate::views::{QueueView, rfc3339, unix_ms};
use duly::admin::{Histogram, HistoryPoint, HistoryQuery};
use duly::bounds::HISTORY_MINUTES_MAX;

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(stats)).routes(routes!(history))
}

/// The totals of a store.
#[derive(Serialize, ToSchema)]
struct Stats {
    /// All queues together; the name is empty.
    total: QueueView,
    queues: Vec<QueueView>,
    /// The number of nodes with a current lease.
    nodes: usize,
    /// The durability of the store, in one sentence.
    durability: String,
    version: &'static str,
}

/// Get the totals of the store
#[utoipa::path(get, path = "/stats", tag = "stats", responses((status = 200, body = Stats), Problems))]
async fn stats(State(app): AppState, _: Identity) -> Result<axum::Json<Stats>> {
    let counts = app.duly.queues().counts().await?;
    let oldest = counts.iter().filter_map(|queue| queue.oldest_ready).min();
    let queues: Vec<QueueView> = counts.iter().map(QueueView::new).collect();
    let nodes = app.duly.nodes().list().await?.iter().filter(|node| node.alive).count();
    let durability = app.duly.health().await?.durability;
    let sum = |of: fn(&QueueView) -> u64| queues.iter().map(of).sum();
    let total = QueueView {
        queue: String::new(),
        paused: false,
        moving: false,
        scheduled: sum(|queue| queue.scheduled),
        ready: sum(|queue| queue.ready),
        running: sum(|queue| queue.running),
        done: sum(|queue| queue.done),
        dead: sum(|queue| queue.dead),
        cancelled: sum(|queue| queue.cancelled),
        bytes: sum(|queue| queue.bytes),
        oldest: oldest.map(rfc3339),
        oldest_ms: oldest.map(unix_ms),
        capacity_jobs: None,
        capacity_bytes: None,
    };
    Ok(axum::Json(Stats { total, queues, nodes, durability, version: env!("CARGO_PKG_VERSION") }))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct HistoryParams {
    /// Only this queue.
    queue: Option<String>,
    /// The number of minutes (60, at most 1,440).
    minutes: Option<u32>,
}

/// One minute of one queue.
#[derive(Serialize, ToSchema)]
#[schema(as = Minute)]
struct PointView {
    minute: String,
    minute_ms: i64,
    queue: String,
    pushed: u64,
    done: u64,
    retried: u64,
    buried: u64,
    released: u64,
    /// Jobs taken back from dead nodes.
    taken_back: u64,
    /// Jobs that ended cancelled, whether they waited or ran.
    cancelled: u64,
    lateness: Quantiles,
    duration: Quantiles,
}

/// Quantiles in milliseconds.
#[derive(Serialize, ToSchema)]
pub(super) struct Quantiles {
    p50_ms: Option<f64>,
    p95_ms: Option<f64>,
    p99_ms: Option<f64>,
}

impl Quantiles {
    pub(super) fn new(histogram: &Histogram) -> Self {
        let at = |q| histogram.quantile(q).map(|time| time.as_secs_f64() * 1e3);
        Quantiles { p50_ms: at(0.5), p95_ms: at(0.95), p99_ms: at(0.99) }
    }
}

/// The history, oldest first, without empty minutes.
#[derive(Serialize, ToSchema)]
#[schema(as = History)]
struct HistoryView {
    points: Vec<PointView>,
}

/// Get the history by minute
#[utoipa::path(get, path = "/stats/history", tag = "stats", params(HistoryParams), responses((status = 200, body = HistoryView), Problems))]
async fn history(
    State(app): AppState,
    _: Identity,
    QueryParams(params): QueryParams<HistoryParams>,
) -> Result<axum::Json<HistoryView>> {
    let minutes = positive("minutes", params.minutes, 60, HISTORY_MINUTES_MAX)?;
    let history = app.duly.queues().history(HistoryQuery::last_minutes(minutes).queue(params.queue)).await?;
    let point = |point: HistoryPoint| PointView {
        minute: rfc3339(point.minute),
        minute_ms: unix_ms(point.minute),
        queue: point.queue,
        pushed: point.counters.pushed,
        done: point.counters.done,
        retried: point.counters.retried,
        buried: point.counters.buried,
        released: point.counters.released,
        taken_back: point.counters.taken_back,
        cancelled: point.counters.cancelled,
        lateness: Quantiles::new(&point.counters.lateness),
        duration: Quantiles::new(&point.counters.duration),
    };
    Ok(axum::Json(HistoryView { points: history.points.into_iter().map(point).collect() }))
}
