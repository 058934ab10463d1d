//! Queues: counts, throughput, pause, resume, capacity, clear, remove.

use askama::Template;
use axum::Form;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use serde::Deserialize;

use super::chart::Sparkline;
use super::history_charts::{self, Charts, Range};
use super::layout::Layout;
use super::utilisation::QueueWorkers;
use super::{PageResult, display, redirect_with_flash, render, render_with_status, unknown_action};
use crate::audit::AuditNote;
use crate::bulk_task::BulkTask;
use crate::identity::Identity;
use crate::problem::{Problem, Result};
use crate::server::{App, AppState};
use duly::State as JobState;
use duly::admin::{Capacity, NodeRecord, QueueCounts, Role};

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
    pub workers: QueueWorkers,
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
    let (mut sparklines, nodes) = tokio::join!(history_charts::sparklines(&app.duly), app.duly.nodes().list());
    let nodes = nodes?;
    let row = |counts: QueueCounts| QueueRow::new(&layout, sparklines.remove(&counts.queue), counts, &nodes);
    let rows = counts.into_iter().map(row).collect();
    render(&QueuesPage { layout, rows, left_out })
}

impl QueueRow {
    pub(super) fn new(
        layout: &Layout,
        sparkline: Option<Sparkline>,
        counts: QueueCounts,
        nodes: &[NodeRecord],
    ) -> QueueRow {
        let waited = |due| display::duration(layout.now.duration_since(due).unwrap_or_default());
        QueueRow {
            workers: QueueWorkers::of(layout, &counts.queue, nodes),
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
    /// Nothing keeps the queue from being removed, as far as the page shows.
    is_removable: bool,
    history: Charts,
    forms: QueueForms,
    workers: QueueWorkers,
    nodes: Vec<super::nodes::NodeRow>,
}

/// The fields of the forms of a queue, as stored or as entered, and their errors.
#[derive(Default)]
struct QueueForms {
    jobs: String,
    bytes: String,
    /// The name typed to clear the queue.
    name: String,
    jobs_error: String,
    bytes_error: String,
    name_error: String,
}

impl QueueForms {
    /// Returns the forms with the stored settings.
    fn stored(counts: &QueueCounts) -> QueueForms {
        let (jobs, bytes) = (to_text(counts.capacity.jobs), to_text(counts.capacity.bytes));
        QueueForms { jobs, bytes, ..QueueForms::default() }
    }

    /// Returns the forms with the input and its errors, if it has any.
    fn rejected(action: &str, form: &QueueActionForm, counts: &QueueCounts, queue: &str) -> Option<QueueForms> {
        match action {
            "capacity" => {
                let error = |text: &str| parse_limit(text).err().unwrap_or_default();
                let (jobs_error, bytes_error) = (error(&form.jobs), error(&form.bytes));
                let is_valid = jobs_error.is_empty() && bytes_error.is_empty();
                let (jobs, bytes) = (form.jobs.clone(), form.bytes.clone());
                (!is_valid).then(|| QueueForms { jobs, bytes, jobs_error, bytes_error, ..QueueForms::default() })
            }
            "clear" if form.name != queue => {
                let name_error = format!("type the name of the queue, {queue}, to clear it");
                Some(QueueForms { name: form.name.clone(), name_error, ..QueueForms::stored(counts) })
            }
            _ => None,
        }
    }
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
    render(&QueuePage::load(&app, queue, Range::parse(&params.range), layout).await?)
}

impl QueuePage {
    async fn load(app: &App, queue: String, range: Range, layout: Layout) -> Result<QueuePage> {
        let layout = layout.with_title("/queues", format!("Queue {queue}"));
        let Some(counts) = layout.counts.iter().find(|counts| counts.queue == queue).cloned() else {
            return Err(duly::Error::not_found("queue", queue).into());
        };
        let unfinished = counts.scheduled + counts.ready + counts.running;
        let history = Charts::of_queues(app, Some(&queue), range, unfinished).await?;
        let nodes = app.duly.nodes().list().await?;
        let workers = QueueWorkers::of(&layout, &queue, &nodes);
        let nodes = nodes.iter().filter(|node| node.queues.contains(&queue));
        let nodes: Vec<_> = nodes.map(|node| super::nodes::NodeRow::new(&layout, node)).collect();
        let is_empty = JobState::ALL.into_iter().all(|state| counts.count_in(state) == 0);
        let is_removable = is_empty && counts.moving.is_none() && nodes.is_empty();
        let (path, forms) = (display::url_encode(&queue), QueueForms::stored(&counts));
        Ok(QueuePage { path, layout, queue, counts, is_removable, history, forms, workers, nodes })
    }
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

/// `POST /queues/{queue}/pause|resume|capacity|clear|remove`
pub(super) async fn run_action(
    State(app): AppState,
    Path((queue, action)): Path<(String, String)>,
    identity: Identity,
    note: AuditNote,
    layout: Layout,
    Form(form): Form<QueueActionForm>,
) -> PageResult {
    identity.require(Role::Operator)?;
    let own_path = format!("/queues/{}", display::url_encode(&queue));
    let next = super::local_path_or(&form.next, &own_path);
    if ["capacity", "clear"].contains(&action.as_str()) {
        // Invalid input stays in the form.
        let counts = layout.counts.iter().find(|counts| counts.queue == queue).cloned().unwrap_or_default();
        if let Some(forms) = QueueForms::rejected(&action, &form, &counts, &queue) {
            let layout = layout.with_url(own_path);
            let page = QueuePage::load(&app, queue, Range::default(), layout).await?;
            return render_with_status(StatusCode::UNPROCESSABLE_ENTITY, &QueuePage { forms, ..page });
        }
    }
    match action.as_str() {
        "pause" => {
            let queues = app.queue_count_limit.reserve(&app.duly, &identity, [&*queue]).await?;
            app.duly.queues().pause(&queue).await?;
            queues.confirm();
            redirect_with_flash(&layout, next, "paused", None, &queue)
        }
        "resume" => {
            app.duly.queues().resume(&queue).await?;
            redirect_with_flash(&layout, next, "resumed", None, &queue)
        }
        "capacity" => {
            let capacity = Capacity::unlimited()
                .jobs(parse_number("jobs", &form.jobs)?)
                .bytes(parse_number("bytes", &form.bytes)?);
            let queues = app.queue_count_limit.reserve(&app.duly, &identity, [&*queue]).await?;
            app.duly.queues().set_capacity(&queue, capacity).await?;
            queues.confirm();
            redirect_with_flash(&layout, &own_path, "capacity", None, &queue)
        }
        "clear" => {
            if form.name != queue {
                return Err(Problem::invalid("name", format!("type the name of the queue, {queue}, to clear it")));
            }
            let clearing = BulkTask::start(&app, &note, app.duly.queues().clear(&*queue), |_| {}).await;
            match clearing.wait().await? {
                Some(done) => redirect_with_flash(&layout, "/queues", "cleared", Some(done.applied), &queue),
                None => redirect_with_flash(&layout, "/queues", "continues", None, ""),
            }
        }
        "remove" => {
            app.duly.queues().remove(&queue).await?;
            redirect_with_flash(&layout, "/queues", "queue-removed", None, &queue)
        }
        other => Err(unknown_action(other)),
    }
}

fn parse_number(field: &str, text: &str) -> Result<Option<u64>> {
    parse_limit(text).map_err(|reason| Problem::invalid(field, reason))
}

/// Parses a limit; no text is none.
fn parse_limit(text: &str) -> Result<Option<u64>, String> {
    let digits: String = text.chars().filter(|c| !matches!(c, ',' | '_' | ' ')).collect();
    match (digits.as_str(), digits.parse()) {
        ("", _) => Ok(None),
        (_, Ok(number)) if number > 0 => Ok(Some(number)),
        _ => Err("must be a whole number above zero, or empty for no limit".to_owned()),
    }
}
