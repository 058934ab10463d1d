//! One job: its args and history, why it is not running, and its actions.

use std::time::Duration;

use askama::Template;
use axum::Form;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect};
use serde::Deserialize;

use super::confirm::Confirmation;
use super::display::{self, Moment};
use super::job_timeline::{self, Lifeline, TimelineEntry};
use super::json_format::{self, FormattedJson, SHOWN_BYTES, SHOWN_BYTES_MAX};
use super::layout::Layout;
use super::{PageResult, redirect_with_flash, render, render_with_status, unknown_action};
use crate::api::check_command_job;
use crate::audit::AuditNote;
use crate::identity::Identity;
use crate::problem::{Problem, Result};
use crate::server::{App, AppState};
use duly::Error;
use duly::admin::CancelResult;
use duly::admin::JobEdit;
use duly::admin::NodeRecord;
use duly::admin::Role;
use duly::job::Due;
use duly::{ConflictKind, Job, JobId, JobRecord, State as JobState};

#[derive(Template)]
#[template(path = "job.html")]
struct JobPage {
    layout: Layout,
    record: JobRecord,
    queue_path: String,
    kind_query: String,
    why: String,
    args: Option<FormattedJson>,
    args_bytes: String,
    whole: bool,
    result: Option<FormattedJson>,
    lifeline: Option<Lifeline>,
    timeline: Vec<TimelineEntry>,
    progress: Option<ProgressBar>,
    log: Vec<(Moment, u32, String)>,
    holder: Option<HolderRow>,
    due: Moment,
    pushed: Moment,
    ended: Option<Moment>,
    timeout: String,
    keep: String,
    cancel: Confirmation,
    removal: Confirmation,
    /// The rejected input of the form to reschedule, and its error.
    due_input: String,
    due_error: String,
}

struct ProgressBar {
    percent: u32,
    message: String,
    at: Moment,
}

struct HolderRow {
    id: String,
    short: String,
    host: String,
    pid: u32,
    alive: bool,
}

#[derive(Deserialize, Default)]
pub(super) struct JobParams {
    /// `all` shows long args in full.
    #[serde(default)]
    args: String,
}

async fn find_job(app: &App, id: &str) -> Result<JobRecord> {
    let id = find_id(app, id).await?;
    app.duly.jobs().get(id).await?.ok_or_else(|| job_not_found(&id.to_string()))
}

/// Finds the job with this id, or with this beginning or end of its id.
async fn find_id(app: &App, text: &str) -> Result<JobId> {
    app.duly.jobs().find_id(text).await.map_err(|error| match error {
        Error::Invalid { .. } | Error::NotFound { .. } => job_not_found(text),
        other => other.into(),
    })
}

fn job_not_found(id: &str) -> Problem {
    let id = if id.chars().count() > 40 { display::short_id(id) } else { id.to_owned() };
    let detail = format!("there is no job {id}: it is done and no longer kept, was removed, or was never pushed here");
    Problem::new(StatusCode::NOT_FOUND, "not_found", detail)
}

/// `GET /jobs/{id}`
pub(super) async fn show(
    State(app): AppState,
    Path(id): Path<String>,
    Query(params): Query<JobParams>,
    layout: Layout,
) -> PageResult {
    if app.duly.jobs().parse_id(&id).is_err() {
        let target = match app.duly.jobs().find_id(&id).await {
            Err(Error::Conflict { kind: ConflictKind::Ambiguous, .. }) => {
                format!("/jobs?q={}", display::url_encode(&format!("id:{id}")))
            }
            _ => format!("/jobs/{}", find_id(&app, &id).await?),
        };
        return Ok(Redirect::to(&format!("{}{target}", layout.root)).into_response());
    }
    let record = find_job(&app, &id).await?;
    render(&JobPage::load(&app, record, params.args == "all", layout).await)
}

impl JobPage {
    async fn load(app: &App, record: JobRecord, whole: bool, layout: Layout) -> JobPage {
        let short = display::short_id(&record.job.id.to_string());
        let layout = layout.with_title("/jobs", format!("{} {short}", record.job.kind));
        let why = app.duly.jobs().why(record.job.id).await;
        let why = why.map(|why| why.describe(|at| layout.time_in_sentence(at))).unwrap_or_default();
        let nodes = match record.node.is_some() || !record.runs.is_empty() {
            true => app.duly.nodes().list().await.unwrap_or_default(),
            false => Vec::new(),
        };
        let holder = nodes.iter().find(|node| Some(node.id) == record.node).map(HolderRow::new);
        let progress = record.progress.as_ref().map(|progress| ProgressBar {
            percent: (progress.fraction * 100.0) as u32,
            message: progress.message.clone(),
            at: layout.moment(progress.at),
        });
        let can_see_args = layout.can_see_args();
        let bytes_max = if whole { SHOWN_BYTES_MAX } else { SHOWN_BYTES };
        let lines = record.log.iter().map(|line| (layout.moment(line.at), line.attempt, line.line.clone()));
        JobPage {
            queue_path: display::url_encode(&record.job.queue),
            kind_query: display::url_encode(&duly::Filter::all().kind(record.job.kind.clone()).to_string()),
            why,
            args: can_see_args.then(|| json_format::format_json(&record.job.args, bytes_max)),
            args_bytes: display::bytes(record.job.args.len() as u64),
            whole,
            result: record
                .result
                .as_deref()
                .filter(|_| can_see_args)
                .map(|result| json_format::format_json(result, bytes_max)),
            lifeline: Lifeline::new(&record, app.duly.now()),
            timeline: job_timeline::build_timeline(&layout, &record, &nodes),
            progress,
            log: if can_see_args { lines.collect() } else { Vec::new() },
            holder,
            due: layout.moment(record.due),
            pushed: layout.moment(record.job.pushed),
            ended: record.ended.map(|ended| layout.moment(ended)),
            timeout: display::duration(record.job.timeout),
            keep: display::duration(record.job.keep),
            cancel: confirm_cancel(&record.job.kind, &record.job.queue, record.job.id),
            removal: confirm_removal(&record.job),
            due_input: String::new(),
            due_error: String::new(),
            record,
            layout,
        }
    }
}

impl HolderRow {
    fn new(node: &NodeRecord) -> HolderRow {
        let id = node.id.to_string();
        HolderRow { short: display::short_id(&id), id, host: node.host.clone(), pid: node.pid, alive: node.alive }
    }
}

#[derive(Deserialize, Default)]
pub(super) struct JobActionForm {
    #[serde(default)]
    confirm: String,
    /// The delay until the job is due, such as `10m`; now if empty.
    #[serde(default)]
    due: String,
}

/// `POST /jobs/{id}/retry|reschedule|cancel|remove`
pub(super) async fn run_action(
    State(app): AppState,
    Path((id, action)): Path<(String, String)>,
    identity: Identity,
    note: AuditNote,
    layout: Layout,
    Form(form): Form<JobActionForm>,
) -> PageResult {
    identity.require(Role::Operator)?;
    let job = find_id(&app, &id).await?;
    note.set_target(job);
    let own_path = format!("/jobs/{job}");
    let layout = layout.with_title("/jobs", "");
    let confirm = |layout: Layout, confirmation: Confirmation| {
        note.skip();
        confirmation.page(layout, &format!("{own_path}/{action}"), &[], &own_path)
    };
    if ["retry", "reschedule"].contains(&action.as_str()) {
        check_command_job(&app, job).await?;
    }
    match action.as_str() {
        "retry" => {
            app.duly.jobs().reschedule(job, Due::Now).await?;
            redirect_with_flash(&layout, &own_path, "retried", None, "")
        }
        "reschedule" => {
            let due = match parse_due(&form.due) {
                Ok(due) => due,
                Err(due_error) => {
                    let record = find_job(&app, &id).await?;
                    let page = JobPage::load(&app, record, false, layout.with_url(own_path)).await;
                    let page = JobPage { due_input: form.due, due_error, ..page };
                    return render_with_status(StatusCode::UNPROCESSABLE_ENTITY, &page);
                }
            };
            app.duly.jobs().reschedule(job, due).await?;
            redirect_with_flash(&layout, &own_path, "rescheduled", None, "")
        }
        "cancel" if form.confirm.is_empty() => {
            let record = find_job(&app, &id).await?;
            confirm(layout, confirm_cancel(&record.job.kind, &record.job.queue, job))
        }
        "cancel" => {
            let did = match app.duly.jobs().cancel(job).await? {
                CancelResult::Cancelling { .. } => "cancelling",
                CancelResult::Ended(_) => "ended",
                _ => "cancelled",
            };
            redirect_with_flash(&layout, &own_path, did, None, "")
        }
        "remove" if form.confirm.is_empty() => {
            let record = find_job(&app, &id).await?;
            confirm(layout, confirm_removal(&record.job))
        }
        "remove" => {
            app.duly.jobs().remove(job).await?;
            redirect_with_flash(&layout, "/jobs", "removed", None, "")
        }
        other => Err(unknown_action(other)),
    }
}

/// The question before a job is cancelled.
pub(super) fn confirm_cancel(kind: &str, queue: &str, id: JobId) -> Confirmation {
    let explanation = "It does not run again. If it is running, its handler is told to stop, and may still succeed.";
    let question = format!("Cancel job {kind} {} of queue {queue}?", display::short_id(&id.to_string()));
    Confirmation::new(question, explanation, "Cancel job", "Keep it")
}

/// The question before a job is removed.
fn confirm_removal(job: &Job) -> Confirmation {
    let explanation = "The job and its history are deleted. This cannot be undone.";
    let short = display::short_id(&job.id.to_string());
    let question = format!("Remove job {} {short} from queue {}?", job.kind, job.queue);
    Confirmation::new(question, explanation, "Remove job", "Keep it")
}

/// Parses a delay.
fn parse_due(text: &str) -> Result<Due, String> {
    let text = text.trim();
    if text.is_empty() || text == "now" {
        return Ok(Due::Now);
    }
    parse_duration(text)
        .map(Due::After)
        .ok_or_else(|| "must be a delay such as 30s, 10m, 2h30m or 3d; empty for now".to_owned())
}

/// Parses a duration: `90s`, `10m`, `2h30m`, `3d`.
pub(super) fn parse_duration(text: &str) -> Option<Duration> {
    let span: jiff::Span = text.trim().parse().ok()?;
    let relative = jiff::SpanRelativeTo::days_are_24_hours();
    let duration = span.to_duration(relative).ok()?;
    Duration::try_from(duration).ok()
}

#[derive(Template)]
#[template(path = "job_edit.html")]
struct EditPage {
    layout: Layout,
    id: String,
    short: String,
    kind: String,
    args: String,
    error: String,
}

/// `GET /jobs/{id}/edit`
pub(super) async fn edit(
    State(app): AppState,
    Path(id): Path<String>,
    identity: Identity,
    layout: Layout,
) -> PageResult {
    identity.require(Role::Operator)?;
    let record = find_job(&app, &id).await?;
    let layout = layout.with_title("/jobs", "Edit args");
    let args = editable_args(&record.job.args);
    render(&EditPage { layout, short: display::short_id(&id), id, kind: record.job.kind, args, error: String::new() })
}

/// Returns the args for the editor: in full, and with their secrets, as they are sent back.
fn editable_args(args: &str) -> String {
    let value: Result<&serde_json::value::RawValue, _> = serde_json::from_str(args);
    value.map_or_else(|_| args.to_owned(), |raw| raw.get().to_owned())
}

#[derive(Deserialize)]
pub(super) struct EditForm {
    args: String,
}

/// `POST /jobs/{id}/edit`
pub(super) async fn save(
    State(app): AppState,
    Path(id): Path<String>,
    identity: Identity,
    layout: Layout,
    Form(form): Form<EditForm>,
) -> PageResult {
    identity.require(Role::Operator)?;
    let record = find_job(&app, &id).await?;
    super::check_kind(&app, &record.job.kind)?;
    match app.duly.jobs().edit(record.job.id, JobEdit::new().args(form.args.clone())).await {
        Ok(()) => redirect_with_flash(&layout, &format!("/jobs/{}", record.job.id), "edited", None, ""),
        Err(error @ (Error::Invalid { .. } | Error::Conflict { .. })) => {
            let is_conflict = matches!(error, Error::Conflict { .. });
            let status = if is_conflict { StatusCode::CONFLICT } else { StatusCode::UNPROCESSABLE_ENTITY };
            let layout = layout.with_title("/jobs", "Edit args");
            let (short, kind, error) = (display::short_id(&id), record.job.kind, error.to_string());
            render_with_status(status, &EditPage { layout, id, short, kind, args: form.args, error })
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed() {
        let secs = |text| parse_duration(text).map(|time| time.as_secs());
        assert_eq!(secs("90s"), Some(90));
        assert_eq!(secs("2h30m"), Some(9_000));
        assert_eq!(secs("3d"), Some(259_200));
        assert_eq!(secs("-5m"), None);
        assert_eq!(secs("soon"), None);
        assert!(matches!(parse_due("now"), Ok(Due::Now)));
        assert!(parse_due("soon").is_err());
    }
}
