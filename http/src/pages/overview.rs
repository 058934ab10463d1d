//! The overview: what needs attention, counts, throughput, lateness.

use askama::Template;
use axum::extract::{Query, State};
use serde::Deserialize;

use super::attention::{Attention, Situation};
use super::history_charts::{self, Charts, Range};
use super::layout::Layout;
use super::utilisation::AllSlots;
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
    history: Charts,
    queues: Vec<queues::QueueRow>,
    queues_left_out: usize,
    groups: Vec<dead::GroupRow>,
    alive: usize,
    /// The slots of the workers; 0 if they are unknown.
    slots: u64,
    attention: Attention,
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
    let crons = duly.crons();
    let (history, sparklines, groups, nodes, rules, delayed) = tokio::join!(
        Charts::of_queues(&app, None, range, unfinished),
        history_charts::sparklines(duly),
        duly.jobs().dead_groups(None),
        duly.nodes().list(),
        crons.list(),
        crons.delayed()
    );
    let history = history?;
    let nodes = nodes?;
    let alive = nodes.iter().filter(|node| node.alive && !node.queues.is_empty()).count();
    let all_slots = AllSlots::of(&nodes).unwrap_or_default();
    let groups = groups.unwrap_or_default();
    let situation = Situation {
        groups: &groups,
        counts: &layout.counts,
        nodes: &nodes,
        // A store of another system has none.
        rules: &rules.unwrap_or_default(),
        delayed: &delayed.unwrap_or_default(),
    };
    let attention = Attention::of(&layout, &situation);
    let groups = dead::GroupRow::list(&layout, groups, GROUPS_MAX);
    let mut counts = layout.counts.clone();
    counts.sort_by(|a, b| total_jobs(b).cmp(&total_jobs(a)).then_with(|| a.queue.cmp(&b.queue)));
    let queues_left_out = counts.len().saturating_sub(QUEUES_MAX);
    counts.truncate(QUEUES_MAX);
    counts.sort_by(|a, b| a.queue.cmp(&b.queue));
    let mut sparklines = sparklines;
    let row = |counts: QueueCounts| queues::QueueRow::new(&layout, sparklines.remove(&counts.queue), counts, &nodes);
    let queues = counts.into_iter().map(row).collect();
    let tiles = JobState::ALL.map(|state| Tile {
        state,
        count: layout.total(state),
        caption: caption(&layout, state, all_slots),
    });
    let is_empty = layout.counts.is_empty();
    let tiles = tiles.into();
    render(&OverviewPage {
        layout,
        tiles,
        history,
        queues,
        queues_left_out,
        groups,
        alive,
        slots: all_slots.slots,
        attention,
        is_empty,
    })
}

fn total_jobs(counts: &QueueCounts) -> u64 {
    counts.ready + counts.running + counts.dead + counts.scheduled
}

/// Returns the caption below a count.
fn caption(layout: &Layout, state: JobState, AllSlots { slots, waiting }: AllSlots) -> String {
    match state {
        JobState::Scheduled => "due later".to_owned(),
        JobState::Ready if layout.counts.iter().any(|queue| queue.paused && queue.ready > 0) => {
            "some paused".to_owned()
        }
        JobState::Ready => "waiting for a worker".to_owned(),
        JobState::Running if slots > 0 => match waiting {
            0 => format!("of {}", display::plural(slots, "slot")),
            waiting => format!("{}, {} waiting", display::plural(slots, "slot"), display::count(waiting)),
        },
        JobState::Running => "held by a node".to_owned(),
        JobState::Done => "kept for a while".to_owned(),
        JobState::Dead if layout.total(state) == 0 => "none".to_owned(),
        JobState::Cancelled => "by an operator".to_owned(),
        _ => "failed for good".to_owned(),
    }
}
