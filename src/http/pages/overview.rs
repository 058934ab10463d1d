//! The first page: how much is where, how fast and how late it goes, and what needs somebody.

use std::sync::Arc;

use askama::Template;
use axum::extract::{Query, State};
use serde::Deserialize;

use super::chart::Chart;
use super::frame::Frame;
use super::graphs::{self, Range};
use super::{Answer, dead, queues, render, show};
use crate::http::server::App;
use crate::job::State as JobState;
use crate::store::QueueCounts;

/// Most queues on this page, those with most to do.
const QUEUES_MAX: usize = 8;
/// Most groups of dead jobs on this page.
const GROUPS_MAX: usize = 5;

#[derive(Template)]
#[template(path = "overview.html")]
struct Overview {
    page: Frame,
    tiles: Vec<Tile>,
    range: Range,
    charts: Vec<Chart>,
    queues: Vec<queues::Row>,
    queues_left_out: usize,
    groups: Vec<dead::Group>,
    alive: usize,
    slots: u64,
    warnings: Vec<String>,
    /// Nothing has ever happened here.
    fresh: bool,
}

struct Tile {
    state: JobState,
    count: u64,
    more: String,
}

#[derive(Deserialize, Default)]
pub(super) struct Asked {
    #[serde(default)]
    range: String,
}

/// `GET /`
pub(super) async fn show(State(app): State<Arc<App>>, Query(asked): Query<Asked>, page: Frame) -> Answer {
    let page = page.titled("/", "Overview");
    let range = Range::of(&asked.range);
    let total = |state| page.total(state);
    let unfinished = total(JobState::Scheduled) + total(JobState::Ready) + total(JobState::Running);
    let duly = &app.duly;
    let (charts, sparks, groups, nodes) = tokio::join!(
        graphs::charts(duly, None, range, unfinished),
        graphs::sparks(duly),
        duly.dead_groups(None),
        duly.nodes()
    );
    let charts = charts?;
    let nodes = nodes?;
    let alive = nodes.iter().filter(|node| node.alive && !node.queues.is_empty()).count();
    let slots = nodes.iter().filter(|node| node.alive).filter_map(|node| node.takes.slots).sum();
    let groups = dead::Group::all(&page, groups.unwrap_or_default(), GROUPS_MAX);
    let mut counts = page.counts.clone();
    counts.sort_by(|a, b| busy(b).cmp(&busy(a)).then_with(|| a.queue.cmp(&b.queue)));
    let queues_left_out = counts.len().saturating_sub(QUEUES_MAX);
    counts.truncate(QUEUES_MAX);
    counts.sort_by(|a, b| a.queue.cmp(&b.queue));
    let mut sparks = sparks;
    let row = |counts: QueueCounts| queues::Row::of(sparks.remove(&counts.queue), counts, duly.now());
    let queues = counts.into_iter().map(row).collect();
    let tiles = JobState::ALL.map(|state| Tile { state, count: page.total(state), more: more(&page, state, slots) });
    let fresh = page.counts.is_empty();
    let warnings = warnings(&page, alive);
    let tiles = tiles.into();
    render(&Overview { page, tiles, range, charts, queues, queues_left_out, groups, alive, slots, warnings, fresh })
}

fn busy(counts: &QueueCounts) -> u64 {
    counts.ready + counts.running + counts.dead + counts.scheduled
}

/// A word below a number.
fn more(page: &Frame, state: JobState, slots: u64) -> String {
    match state {
        JobState::Scheduled => "for later".to_owned(),
        JobState::Ready if page.counts.iter().any(|queue| queue.paused) => "some paused".to_owned(),
        JobState::Ready => "to be claimed".to_owned(),
        JobState::Running if slots > 0 => format!("of {} slots", show::count(slots)),
        JobState::Running => "held by a node".to_owned(),
        JobState::Done => "kept for a while".to_owned(),
        JobState::Dead if page.total(state) == 0 => "none given up".to_owned(),
        JobState::Dead => "given up".to_owned(),
    }
}

/// What needs somebody now.
fn warnings(page: &Frame, alive: usize) -> Vec<String> {
    let mut warnings = Vec::new();
    let ready = page.total(JobState::Ready);
    if ready > 0 && alive == 0 {
        warnings
            .push(format!("Ready, but no node works: {}. Start one with `duly work`.", show::counted(ready, "job")));
    }
    warnings
}
