//! Totals and history of a store.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Problems, positive};
use crate::identity::Identity;
use crate::json::QueryParams;
use crate::problem::{Problem, Result};
use crate::samples::{SAMPLE_SECONDS, SAMPLES_MAX, Sample};
use crate::server::{App, AppState};
use crate::views::{HistoryView, PointView, QueueStats, QueueView, rfc3339, unix_ms};
use duly::admin::{HistoryQuery, KindStatsQuery, parse_duration};
use duly::bounds::{HISTORY_HOURS_MAX, HISTORY_MINUTES_MAX, KIND_HOURS_MAX, KIND_MINUTES_MAX};

/// The default range of a history.
const DEFAULT_RANGE: &str = "1h";
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
        moving_to: None,
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
    #[param(example = "mail")]
    queue: Option<String>,
    /// Only attempts of this kind, on all queues. Pushes are not counted by kind.
    #[param(example = "mail.send")]
    kind: Option<String>,
    /// How far back, as a duration: 1h by default, at most 30d.
    #[param(example = "24h")]
    range: Option<String>,
    /// The length of an interval: by default the shortest that is kept for the range.
    #[param(inline)]
    resolution: Option<ResolutionName>,
}

/// The length of an interval of a history. Minutes are kept for a day, of a kind for two hours; hours for 30 days. `10s` is
/// for queues and the last 5 minutes, from samples that only `duly serve` takes, since it started. Without `queue`, the
/// samples of all queues are added up, and their queue is empty.
#[derive(Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[schema(as = Resolution)]
enum ResolutionName {
    #[serde(rename = "10s")]
    Sample,
    #[serde(rename = "minute")]
    Minute,
    #[serde(rename = "hour")]
    Hour,
}

impl ResolutionName {
    const ALL: [ResolutionName; 3] = [ResolutionName::Sample, ResolutionName::Minute, ResolutionName::Hour];

    fn as_str(self) -> &'static str {
        match self {
            ResolutionName::Sample => "10s",
            ResolutionName::Minute => "minute",
            ResolutionName::Hour => "hour",
        }
    }

    /// Returns the length of an interval, and for how many intervals a queue or a kind is kept.
    fn kept(self, of_kind: bool) -> (u64, u64) {
        match self {
            ResolutionName::Sample if of_kind => (10, 0),
            ResolutionName::Sample => (10, SAMPLES_MAX as u64),
            ResolutionName::Minute if of_kind => (60, KIND_MINUTES_MAX.into()),
            ResolutionName::Minute => (60, HISTORY_MINUTES_MAX.into()),
            ResolutionName::Hour if of_kind => (3_600, KIND_HOURS_MAX.into()),
            ResolutionName::Hour => (3_600, HISTORY_HOURS_MAX.into()),
        }
    }
}

impl HistoryParams {
    /// Returns the resolution and the number of intervals, with the running one.
    fn intervals(&self) -> Result<(ResolutionName, u32)> {
        let text = self.range.as_deref().unwrap_or(DEFAULT_RANGE);
        let range = parse_duration(text).map_err(|reason| Problem::invalid("range", reason))?;
        if range.is_zero() {
            return Err(Problem::invalid("range", "must be greater than zero"));
        }
        let of_kind = self.kind.is_some();
        let seconds = range.as_secs().max(1);
        let fits = |resolution: &ResolutionName| {
            let (interval, kept) = resolution.kept(of_kind);
            seconds <= interval * kept
        };
        let Some(longest) = [ResolutionName::Minute, ResolutionName::Hour].into_iter().find(fits) else {
            return Err(Problem::invalid("range", "must be at most 30d: hours are kept for 30 days"));
        };
        let resolution = self.resolution.unwrap_or(longest);
        if !fits(&resolution) {
            let fitting: Vec<_> =
                ResolutionName::ALL.into_iter().filter(fits).map(|resolution| resolution.as_str()).collect();
            let reason = format!("is not kept for {text}; use {}", fitting.join(" or "));
            return Err(Problem::invalid("resolution", reason));
        }
        let (interval, kept) = resolution.kept(of_kind);
        Ok((resolution, u32::try_from((seconds.div_ceil(interval)).min(kept)).unwrap_or(u32::MAX)))
    }
}

/// Get the history of queues, or of a kind
///
/// By minute for up to 24 hours (of a kind 2 hours), by hour for up to 30 days. Percentiles are estimates: attempts are
/// counted by ranges of their duration.
#[utoipa::path(get, path = "/stats/history", tag = "stats", operation_id = "getHistory", params(HistoryParams), responses((status = 200, description = "the history", body = HistoryView), Problems))]
async fn history(
    State(app): AppState,
    _: Identity,
    QueryParams(params): QueryParams<HistoryParams>,
) -> Result<axum::Json<HistoryView>> {
    if params.queue.is_some() && params.kind.is_some() {
        return Err(Problem::invalid(
            "kind",
            "cannot be combined with queue: attempts are counted by queue and by kind",
        ));
    }
    let (resolution, intervals) = params.intervals()?;
    let points: Vec<PointView> = match (resolution, params.kind) {
        (ResolutionName::Sample, _) => samples(&app, params.queue.as_deref(), intervals).await?,
        (resolution, Some(kind)) => {
            let query = match resolution {
                ResolutionName::Hour => KindStatsQuery::last_hours(intervals),
                _ => KindStatsQuery::last_minutes(intervals),
            };
            app.duly.kind_stats(query.kind(kind)).await?.into_iter().map(PointView::from).collect()
        }
        (resolution, None) => {
            let query = match resolution {
                ResolutionName::Hour => HistoryQuery::last_hours(intervals),
                _ => HistoryQuery::last_minutes(intervals),
            };
            let history = app.duly.queues().history(query.queue(params.queue)).await?;
            history.points.into_iter().map(PointView::from).collect()
        }
    };
    Ok(axum::Json(HistoryView { interval_s: resolution.kept(false).0, points }))
}

/// Returns the samples of this server, of one queue or added up.
async fn samples(app: &App, queue: Option<&str>, intervals: u32) -> Result<Vec<PointView>> {
    let Some(window) = app.samples.window(&app.duly, queue).await? else {
        return Err(Problem::invalid(
            "resolution",
            "10s is not available: only `duly serve` takes samples; use minute",
        ));
    };
    let first = window.present - i64::from(intervals) + 1;
    let samples = window.samples.into_iter().filter(|sample| sample.number >= first);
    let point = |sample: Sample| {
        let start = Duration::from_secs((sample.number * SAMPLE_SECONDS).unsigned_abs());
        PointView {
            queue: Some(queue.unwrap_or_default().to_owned()),
            ..PointView::new(UNIX_EPOCH + start, &sample.counters)
        }
    };
    Ok(samples.map(point).collect())
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
