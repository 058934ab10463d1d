//! Queues: counts, throughput, pause, resume, capacity, clear.

use std::time::SystemTime;

use askama::Template;
use axum::Form;
use axum::extract::{Path, Query, State};
use serde::Deserialize;

use super::chart::{Chart, Sparkline};
use super::history_charts::{self, Range};
use super::layout::Layout;
use super::{PageResult, display, redirect_with_flash, render, unknown_action};
use crate::identity::Identity;
use crate::problem::{Problem, Result};
use crate::server::AppState;
use duly::State as JobState;
use duly::admin::Role;
use duly::admin::{Capacity, QueueCounts};

/// The most queues on the page, those with the most jobs; the page shows the number of the rest.
const ROWS_MAX: usize = 500;

#[derive(Template)]
#[template(path = "queues.html")]
struct QueuesPage {
    layout: Layout,
    rows: Vec<QueueRow>,
    left_out: usize,
}

pub(super) struct QueueRow {
    pub queue: String,
    pub path: String,
    pub paused: bool,
    pub moving: bool,
    pub counts: QueueCounts,
    /// How long the first ready job has waited.
    pub oldest: String,
    pub sparkline: Option<Sparkline>,
}

/// `GET /queues`
pub(super) async fn list(State(app): AppState, layout: Layout) -> PageResult {
    let layout = layout.with_title("/queues", "Queues");
    let mut counts = layout.counts.clone();
    let left_out = counts.len().saturating_sub(ROWS_MAX);
    if left_out > 0 {
        counts.sort_by_key(|queue| std::cmp::Reverse(queue.ready + queue.running + queue.dead));
        counts.truncate(ROWS_MAX);
    }
    counts.sort_by(|a, b| a.queue.cmp(&b.queue));
    let (mut sparklines, now) = (history_charts::sparklines(&app.duly).await, app.duly.now());
    let rows = counts.into_iter().map(|counts| QueueRow::new(sparklines.remove(&counts.queue), counts, now)).collect();
    render(&QueuesPage { layout, rows, left_out })
}

impl QueueRow {
    pub(super) fn new(sparkline: Option<Sparkline>, counts: QueueCounts, now: SystemTime) -> QueueRow {
        let waited = |due| display::duration(now.duration_since(due).unwrap_or_default());
        QueueRow {
            oldest: counts.oldest_ready.map_or("–".to_owned(), waited),
            path: display::url_encode(&counts.queue),
            queue: counts.queue.clone(),
            paused: counts.paused,
            moving: counts.moving.is_some(),
            counts,
            sparkline,
        }
    }
}

#[derive(Template)]
#[template(path = "queue.html")]
struct QueuePage {
    layout: Layout,
    queue: String,
    path: String,
    counts: QueueCounts,
    range: Range,
    charts: Vec<Chart>,
    capacity: CapacityForm,
    nodes: Vec<super::nodes::NodeRow>,
}

/// The fields of the capacity form.
struct CapacityForm {
    jobs: String,
    bytes: String,
}

#[derive(Deserialize, Default)]
pub(super) struct QueueParams {
    #[serde(default)]
    range: String,
}

/// `GET /queues/{queue}`
pub(super) async fn show(
    State(app): AppState,
    Path(queue): Path<String>,
    Query(params): Query<QueueParams>,
    layout: Layout,
) -> PageResult {
    let layout = layout.with_title("/queues", format!("Queue {queue}"));
    let Some(counts) = layout.counts.iter().find(|counts| counts.queue == queue).cloned() else {
        return Err(duly::Error::not_found("queue", queue).into());
    };
    let range = Range::parse(&params.range);
    let charts =
        history_charts::charts(&app.duly, Some(&queue), range, counts.scheduled + counts.ready + counts.running)
            .await?;
    let capacity = CapacityForm { jobs: to_text(counts.capacity.jobs), bytes: to_text(counts.capacity.bytes) };
    let nodes = app.duly.nodes().await?;
    let nodes =
        nodes.iter().filter(|node| node.queues.contains(&queue)).map(|node| super::nodes::NodeRow::new(&layout, node));
    let nodes = nodes.collect();
    render(&QueuePage { path: display::url_encode(&queue), layout, queue, counts, range, charts, capacity, nodes })
}

fn to_text(number: Option<u64>) -> String {
    number.map(|number| number.to_string()).unwrap_or_default()
}

#[derive(Deserialize, Default)]
pub(super) struct QueueActionForm {
    #[serde(default)]
    jobs: String,
    #[serde(default)]
    bytes: String,
    /// The queue's name, typed by the user.
    #[serde(default)]
    name: String,
    #[serde(default)]
    next: String,
}

/// `POST /queues/{queue}/pause|resume|capacity|clear`
pub(super) async fn run_action(
    State(app): AppState,
    Path((queue, action)): Path<(String, String)>,
    identity: Identity,
    layout: Layout,
    Form(form): Form<QueueActionForm>,
) -> PageResult {
    identity.require(Role::Operator)?;
    let own_path = format!("/queues/{}", display::url_encode(&queue));
    let next = super::local_path_or(&form.next, &own_path);
    match action.as_str() {
        "pause" => {
            app.duly.pause_queue(&queue).await?;
            redirect_with_flash(&layout, next, "paused", None, &queue)
        }
        "resume" => {
            app.duly.resume_queue(&queue).await?;
            redirect_with_flash(&layout, next, "resumed", None, &queue)
        }
        "capacity" => {
            let capacity = Capacity::unlimited()
                .jobs(parse_number("jobs", &form.jobs)?)
                .bytes(parse_number("bytes", &form.bytes)?);
            app.duly.set_capacity(&queue, capacity).await?;
            redirect_with_flash(&layout, &own_path, "capacity", None, &queue)
        }
        "clear" => {
            if form.name != queue {
                return Err(Problem::invalid("name", format!("type the name of the queue, {queue}, to clear it")));
            }
            let cleared = app.duly.clear_queue(&*queue).run().await?;
            redirect_with_flash(&layout, "/queues", "cleared", Some(cleared.applied), &queue)
        }
        other => Err(unknown_action(other)),
    }
}

fn parse_number(field: &str, text: &str) -> Result<Option<u64>> {
    let digits: String = text.chars().filter(|c| !matches!(c, ',' | '_' | ' ')).collect();
    match digits.as_str() {
        "" => Ok(None),
        digits => {
            digits.parse().map(Some).map_err(|_| Problem::invalid(field, "a whole number, or nothing for no limit"))
        }
    }
}
