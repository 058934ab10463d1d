//! Statistics of attempts by kind.

use std::collections::BTreeMap;
use std::time::Duration;

use askama::Template;
use axum::extract::{Query, State};
use serde::Deserialize;

use super::layout::Layout;
use super::{PageResult, display, render};
use crate::api::totals_by_kind;
use crate::server::AppState;
use duly::Error;
use duly::admin::StatCounters;
use duly::bounds::{KIND_HOURS_MAX, OTHER_KINDS};

/// The selectable ranges: key, hours, label.
const RANGES: [(&str, u32, &str); 3] = [("1h", 1, "this hour"), ("6h", 6, "6 h"), ("24h", KIND_HOURS_MAX, "24 h")];

#[derive(Template)]
#[template(path = "kinds.html")]
struct KindsPage {
    layout: Layout,
    rows: Vec<KindRow>,
    ranges: Vec<RangeLink>,
    /// The store keeps no history.
    unsupported: bool,
}

struct RangeLink {
    key: &'static str,
    name: &'static str,
    chosen: bool,
}

/// One kind.
struct KindRow {
    kind: String,
    /// The link to its jobs; `None` for the sum of all further kinds.
    path: Option<String>,
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

/// `GET /kinds`
pub(super) async fn list(State(app): AppState, Query(params): Query<KindsParams>, layout: Layout) -> PageResult {
    let layout = layout.with_title("/kinds", "Kinds");
    let chosen = RANGES.iter().find(|(key, ..)| *key == params.range).unwrap_or(&RANGES[2]);
    let (kinds, unsupported) = match app.duly.kind_stats(chosen.1).await.map(totals_by_kind) {
        Ok(kinds) => (kinds, false),
        Err(Error::Unsupported { .. }) => (BTreeMap::new(), true),
        Err(error) => return Err(error.into()),
    };
    let mut rows: Vec<KindRow> = kinds.iter().map(|(kind, counters)| KindRow::new(kind, counters)).collect();
    rows.sort_by(|a, b| b.attempts.cmp(&a.attempts).then_with(|| a.kind.cmp(&b.kind)));
    let ranges = RANGES.map(|(key, _, name)| RangeLink { key, name, chosen: key == chosen.0 }).into();
    render(&KindsPage { layout, rows, ranges, unsupported })
}

impl KindRow {
    fn new(kind: &str, counters: &StatCounters) -> KindRow {
        let (attempts, failed) = (counters.attempts(), counters.retried + counters.buried);
        let took =
            |q: f64| counters.duration.quantile(q).map_or("–".to_owned(), |time: Duration| display::duration(time));
        let share = if attempts == 0 { 0.0 } else { failed as f64 * 100.0 / attempts as f64 };
        KindRow {
            kind: kind.to_owned(),
            path: (kind != OTHER_KINDS).then(|| display::url_encode(kind)),
            attempts,
            failed,
            ratio: if failed == 0 { "0 %".to_owned() } else { format!("{share:.1} %") },
            p50: took(0.5),
            p95: took(0.95),
            p99: took(0.99),
        }
    }
}
