//! Statistics of attempts by kind.

use std::collections::BTreeMap;
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
use crate::views::Quantiles;
use duly::admin::{KindStats, KindStatsQuery, StatCounters};
use duly::bounds::KIND_HOURS_MAX;

/// The default number of hours.
const DEFAULT_HOURS: u32 = 24;

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(kinds))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct KindParams {
    /// The number of hours (24, at most 720), including the current one.
    hours: Option<u32>,
}

/// The statistics of one kind.
#[derive(Serialize, ToSchema)]
#[schema(as = Kind)]
struct KindView {
    kind: String,
    done: u64,
    retried: u64,
    buried: u64,
    released: u64,
    /// Attempts that did not succeed, at jobs that were cancelled.
    cancelled: u64,
    lateness: Quantiles,
    duration: Quantiles,
}

/// Kinds by name.
#[derive(Serialize, ToSchema)]
#[schema(as = Kinds)]
struct KindsView {
    kinds: Vec<KindView>,
}

/// Returns the totals of each kind over all hours.
pub(crate) fn totals_by_kind(points: Vec<KindStats>) -> BTreeMap<String, StatCounters> {
    let mut totals = BTreeMap::<String, StatCounters>::new();
    for point in points {
        totals.entry(point.kind).or_default().add(&point.counters);
    }
    totals
}

/// Get statistics of attempts by kind
///
/// Attempts appear a few seconds after they end. At most 200 kinds are counted separately in an hour; the rest is
/// `(other)`.
#[utoipa::path(get, path = "/stats/kinds", tag = "stats", operation_id = "getKindStats", params(KindParams), responses((status = 200, description = "all kinds, by name", body = KindsView), Problems))]
async fn kinds(
    State(app): AppState,
    _: Identity,
    QueryParams(params): QueryParams<KindParams>,
) -> Result<axum::Json<KindsView>> {
    let hours = positive("hours", params.hours, DEFAULT_HOURS, KIND_HOURS_MAX)?;
    let all = totals_by_kind(app.duly.kind_stats(KindStatsQuery::last_hours(hours).sum_intervals()).await?);
    let view = |(kind, counters): (String, StatCounters)| KindView {
        kind,
        done: counters.done,
        retried: counters.retried,
        buried: counters.buried,
        released: counters.released,
        cancelled: counters.cancelled,
        lateness: Quantiles::from(&counters.lateness),
        duration: Quantiles::from(&counters.duration),
    };
    Ok(axum::Json(KindsView { kinds: all.into_iter().map(view).collect() }))
}
