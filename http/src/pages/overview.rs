//! The overview: counts, throughput, lateness, and warnings.

use askama::Template;
use axum::extract::{Query, State};
use serde::Deserialize;

use super::chart::Chart;
use super::history_charts::{self, Range};
use super::layout::Layout;
use super::{PageResult, dead, display, queues, render};
use crate::server::AppState;
use duly::State as JobState;
use duly::admin::QueueCounts;

/// The most queues on this page, those with the most jobs.
const QUEUES_MAX: usize = 8;
/// The most groups of dead jobs on this page.
const GROUPS_MAX: usize = 5;

#[derive(Template)]
#[template(path = "overview.html")]
struct OverviewPage {
    layout: Layout,
    tiles: Vec<Tile>,
    range: Range,
    charts: Vec<Chart>,
    queues: Vec<queues::QueueRow>,
    queues_left_out: usize,
    groups: Vec<dead::GroupRow>,
    alive: usize,
    slots: u64,
    warnings: Vec<String>,
    /// The store has no queue.
    is_empty: bool,
}

struct Tile {
    state: JobState,
    count: u64,
    caption: String,
}

#[derive(Deserialize, Default)]
pub(super) struct OverviewParams {
    #[serde(default)]
    range: String,
}

/// `GET /`
pub(super) async fn show(State(app): AppState, Query(params): Query<OverviewParams>, layout: Layout) -> PageResult {
    let layout = layout.with_title("/", "Overview");
    let range = Range::parse(&params.range);
    let total = |state| layout.total(state);
    let unfinished = total(JobState::Scheduled) + total(JobState::Ready) + total(JobState::Running);
    let duly = &app.duly;
    let (charts, sparklines, groups, nodes) = tokio::join!(
        history_charts::charts(duly, None, range, unfinished),
        history_charts::sparklines(duly),
        duly.dead_groups(None),
        duly.nodes()
    );
    let charts = charts?;
    let nodes = nodes?;
    let alive = nodes.iter().filter(|node| node.alive && !node.queues.is_empty()).count();
    let slots = nodes.iter().filter(|node| node.alive).filter_map(|node| node.profile.slots).sum();
    let groups = dead::GroupRow::list(&layout, groups.unwrap_or_default(), GROUPS_MAX);
    let mut counts = layout.counts.clone();
    counts.sort_by(|a, b| total_jobs(b).cmp(&total_jobs(a)).then_with(|| a.queue.cmp(&b.queue)));
    let queues_left_out = counts.len().saturating_sub(QUEUES_MAX);
    counts.truncate(QUEUES_MAX);
    counts.sort_by(|a, b| a.queue.cmp(&b.queue));
    let mut sparklines = sparklines;
    let row = |counts: QueueCounts| queues::QueueRow::new(sparklines.remove(&counts.queue), counts, duly.now());
    let queues = counts.into_iter().map(row).collect();
    let tiles =
        JobState::ALL.map(|state| Tile { state, count: layout.total(state), caption: caption(&layout, state, slots) });
    let is_empty = layout.counts.is_empty();
    let warnings = warnings(&layout, alive);
    let tiles = tiles.into();
    render(&OverviewPage {
        layout,
        tiles,
        range,
        charts,
        queues,
        queues_left_out,
        groups,
        alive,
        slots,
        warnings,
        is_empty,
    })
}

fn total_jobs(counts: &QueueCounts) -> u64 {
    counts.ready + counts.running + counts.dead + counts.scheduled
}

/// Returns the caption below a count.
fn caption(layout: &Layout, state: JobState, slots: u64) -> String {
    match state {
        JobState::Scheduled => "for later".to_owned(),
        JobState::Ready if layout.counts.iter().any(|queue| queue.paused) => "some paused".to_owned(),
        JobState::Ready => "to be claimed".to_owned(),
        JobState::Running if slots > 0 => format!("of {} slots", display::count(slots)),
        JobState::Running => "held by a node".to_owned(),
        JobState::Done => "kept for a while".to_owned(),
        JobState::Dead if layout.total(state) == 0 => "none given up".to_owned(),
        _ => "given up".to_owned(),
    }
}

/// Returns the conditions that need attention.
fn warnings(layout: &Layout, alive: usize) -> Vec<String> {
    let mut warnings = Vec::new();
    let ready = layout.total(JobState::Ready);
    if ready > 0 && alive == 0 {
        warnings
            .push(format!("Ready, but no node works: {}. Start one with `duly work`.", display::plural(ready, "job")));
    }
    warnings
}
