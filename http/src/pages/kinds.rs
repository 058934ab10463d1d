//! Statistics of attempts by kind: the list of kinds, and the charts of one.

use std::collections::BTreeMap;
use std::time::Duration;

use askama::Template;
use axum::extract::{Path, Query, State};
use serde::Deserialize;

use super::history_charts::{Charts, Range};
use super::layout::Layout;
use super::{PageResult, display, render};
use crate::api::totals_by_kind;
use crate::server::AppState;
use duly::Error;
use duly::admin::{KindStatsQuery, StatCounters};
use duly::bounds::OTHER_KINDS;

#[derive(Template)]
#[template(path = "kinds.html")]
struct KindsPage {
    layout: Layout,
    rows: Vec<KindRow>,
    range: Range,
    /// The store keeps no history.
    unsupported: bool,
}

/// One kind.
struct KindRow {
    kind: String,
    /// The path of its page.
    path: String,
    attempts: u64,
    failed: u64,
    /// The failed attempts in percent.
    ratio: String,
    p50: String,
    p95: String,
    p99: String,
}

#[derive(Deserialize, Default)]
pub(super) struct KindsParams {
    #[serde(default)]
    range: String,
}

impl KindsParams {
    /// Returns the range of a page, by default a day.
    fn range(&self) -> Range {
        if self.range.is_empty() { Range::Day } else { Range::parse(&self.range) }
    }
}

/// Returns the query for all intervals of a range, with the running one.
fn query_of(range: Range) -> KindStatsQuery {
    match range {
        Range::Minutes => KindStatsQuery::last_minutes(5 + 1),
        Range::Hour => KindStatsQuery::last_minutes(60 + 1),
        Range::Day => KindStatsQuery::last_hours(24 + 1),
        Range::Week => KindStatsQuery::last_hours(7 * 24 + 1),
        Range::Month => KindStatsQuery::last_hours(0),
    }
}

/// `GET /kinds`
pub(super) async fn list(State(app): AppState, Query(params): Query<KindsParams>, layout: Layout) -> PageResult {
    let layout = layout.with_title("/kinds", "Kinds");
    let range = params.range();
    let (kinds, unsupported) = match app.duly.kind_stats(query_of(range).sum_intervals()).await.map(totals_by_kind) {
        Ok(kinds) => (kinds, false),
        Err(Error::Unsupported { .. }) => (BTreeMap::new(), true),
        Err(error) => return Err(error.into()),
    };
    let mut rows: Vec<KindRow> = kinds.iter().map(|(kind, counters)| KindRow::new(kind, counters)).collect();
    rows.sort_by(|a, b| b.attempts.cmp(&a.attempts).then_with(|| a.kind.cmp(&b.kind)));
    render(&KindsPage { layout, rows, range, unsupported })
}

impl KindRow {
    fn new(kind: &str, counters: &StatCounters) -> KindRow {
        let (attempts, failed) = (counters.attempts(), counters.retried + counters.buried);
        let took =
            |q: f64| counters.duration.quantile(q).map_or("–".to_owned(), |time: Duration| display::duration(time));
        let share = if attempts == 0 { 0.0 } else { failed as f64 * 100.0 / attempts as f64 };
        KindRow {
            kind: kind.to_owned(),
            path: display::url_encode(kind),
            attempts,
            failed,
            ratio: if failed == 0 { "0 %".to_owned() } else { format!("{share:.1} %") },
            p50: took(0.5),
            p95: took(0.95),
            p99: took(0.99),
        }
    }
}

#[derive(Template)]
#[template(path = "kind.html")]
struct KindPage {
    layout: Layout,
    kind: String,
    /// The filter that selects its jobs; `None` for the sum of all further kinds.
    jobs: Option<String>,
    history: Charts,
}

/// `GET /kinds/{kind}`
pub(super) async fn show(
    State(app): AppState,
    Path(kind): Path<String>,
    Query(params): Query<KindsParams>,
    layout: Layout,
) -> PageResult {
    let layout = layout.with_title("/kinds", format!("Kind {kind}"));
    let history = Charts::of_kind(&app, &kind, params.range()).await?;
    let jobs = (kind != OTHER_KINDS).then(|| display::url_encode(&format!("kind:{kind}")));
    render(&KindPage { layout, kind, jobs, history })
}
