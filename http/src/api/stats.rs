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
use crate::views::{HistoryView, QueueStats, QueueView, rfc3339, unix_ms};
use duly::admin::HistoryQuery;
use duly::bounds::HISTORY_MINUTES_MAX;

/// The default number of minutes of the sums.
const QUEUE_STATS_MINUTES: u32 = 5;

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(stats)).routes(routes!(history)).routes(routes!(queues))
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
#[utoipa::path(get, path = "/stats", tag = "stats", operation_id = "getStats", responses((status = 200, description = "the totals", body = Stats), Problems))]
async fn stats(State(app): AppState, _: Identity) -> Result<axum::Json<Stats>> {
    let counts = app.duly.queues().counts().await?;
    let oldest = counts.iter().filter_map(|queue| queue.oldest_ready).min();
    let queues: Vec<QueueView> = counts.iter().map(QueueView::from).collect();
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

/// Get the history by minute
#[utoipa::path(get, path = "/stats/history", tag = "stats", operation_id = "getHistory", params(HistoryParams), responses((status = 200, description = "the history", body = HistoryView), Problems))]
async fn history(
    State(app): AppState,
    _: Identity,
    QueryParams(params): QueryParams<HistoryParams>,
) -> Result<axum::Json<HistoryView>> {
    let minutes = positive("minutes", params.minutes, 60, HISTORY_MINUTES_MAX)?;
    let history = app.duly.queues().history(HistoryQuery::last_minutes(minutes).queue(params.queue)).await?;
    Ok(axum::Json(HistoryView::from(history)))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct QueueStatsParams {
    /// Only this queue.
    queue: Option<String>,
    /// The number of minutes (5, at most 1,440), including the current one.
    minutes: Option<u32>,
}

/// Get the sums of each queue over the last minutes
#[utoipa::path(get, path = "/stats/queues", tag = "stats", operation_id = "getQueueStats", params(QueueStatsParams), responses((status = 200, description = "the sums of each queue", body = QueueStats), Problems))]
async fn queues(
    State(app): AppState,
    _: Identity,
    QueryParams(params): QueryParams<QueueStatsParams>,
) -> Result<axum::Json<QueueStats>> {
    let minutes = positive("minutes", params.minutes, QUEUE_STATS_MINUTES, HISTORY_MINUTES_MAX)?;
    let history = app.duly.queues().history(HistoryQuery::last_minutes(minutes).queue(params.queue)).await?;
    Ok(axum::Json(QueueStats::new(minutes, &history)))
}
