//! Jobs: list, read, edit, retry, reschedule, cancel and delete them.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::push::{COMMAND, due};
use super::{Problems, next_link, page_size};
use crate::audit::AuditNote;
use crate::identity::{Identity, Operator};
use crate::json::{JobParam, Json, NoBody, QueryParams};
use crate::openapi::PriorityName;
use crate::problem::{Problem, Result};
use crate::server::{App, AppState};
use crate::views::{CancelResponse, JobList, JobView, WhyView};
use duly::Error;
use duly::Filter;
use duly::admin::{CancelResult, JobEdit, Why};
use duly::job::JobOrder;
use duly::{JobId, JobRecord, Priority};

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(get, edit, remove))
        .routes(routes!(why))
        .routes(routes!(retry))
        .routes(routes!(reschedule))
        .routes(routes!(cancel))
}

/// The order of a list.
#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum SortParam {
    End,
    Due,
}

impl SortParam {
    fn order(self) -> JobOrder {
        match self {
            SortParam::End => JobOrder::End,
            SortParam::Due => JobOrder::Due,
        }
    }
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct JobListParams {
    /// The jobs, as a filter: `state:dead kind:mail args.to:ada since:1h`. All if absent.
    filter: Option<String>,
    /// Sorts the jobs of all queues: done, dead and cancelled jobs by `end`, the last one first; scheduled jobs by `due`, the
    /// next one first. Without it, jobs come queue by queue.
    #[param(inline)]
    sort: Option<SortParam>,
    /// Turns the order around.
    reverse: Option<bool>,
    /// The page size (50, at most 200).
    limit: Option<usize>,
    /// The cursor of the page: `next` of the previous one.
    cursor: Option<String>,
}

/// List jobs
#[utoipa::path(get, path = "/jobs", tag = "jobs", operation_id = "listJobs", params(JobListParams), responses((status = 200, description = "a page of jobs", body = JobList), Problems))]
async fn list(
    State(app): AppState,
    identity: Identity,
    QueryParams(params): QueryParams<JobListParams>,
) -> Result<(HeaderMap, axum::Json<JobList>)> {
    let JobListParams { filter, sort, reverse, limit, cursor } = params;
    let order = sort.map(SortParam::order);
    let query = [
        ("filter", filter.clone()),
        ("sort", order.map(|order| order.to_string())),
        ("reverse", reverse.map(|reverse| reverse.to_string())),
        ("limit", limit.map(|limit| limit.to_string())),
    ];
    let mut filter: Filter = filter.unwrap_or_default().parse().map_err(|error| parameter_error("filter", error))?;
    identity.require_for_filter(&filter)?;
    (filter.limit, filter.cursor) = (page_size(limit)?, cursor);
    (filter.order, filter.reverse) = (order, reverse.unwrap_or(false));
    let page = app.duly.jobs().list(filter).await?;
    let headers = next_link(&app, "/jobs", &query, page.next_cursor.as_deref());
    Ok((headers, axum::Json(JobList::new(page, &identity))))
}

/// Returns the problem for an invalid parameter outside of the body.
pub(super) fn parameter_error(name: &str, error: Error) -> Problem {
    match error {
        Error::Invalid { reason, .. } => Problem::invalid(name, reason),
        other => other.into(),
    }
}

pub(super) async fn find_job(app: &App, id: JobId) -> Result<JobRecord> {
    let record = app.duly.jobs().get(id).await?;
    Ok(record.ok_or_else(|| Error::not_found("job", id))?)
}

/// Returns a 403 if the job runs a program and the server does not accept that.
pub(crate) async fn check_command_job(app: &App, id: JobId) -> Result<()> {
    if app.options.commands {
        return Ok(());
    }
    match app.duly.jobs().get(id).await?.is_some_and(|record| record.job.kind == COMMAND) {
        true => Err(Problem::forbidden(
            "jobs that run commands cannot be started or changed over HTTP; start the server with --allow-commands to allow it",
        )),
        false => Ok(()),
    }
}

/// Get a job with its history
#[utoipa::path(get, path = "/jobs/{id}", tag = "jobs", operation_id = "getJob", params(("id" = String, Path, description = "the job's id, or 4 or more digits of its beginning or end")),
    responses((status = 200, description = "the job", body = JobView), Problems))]
async fn get(State(app): AppState, identity: Identity, JobParam(id): JobParam) -> Result<axum::Json<JobView>> {
    Ok(axum::Json(JobView::new(&find_job(&app, id).await?, &identity)))
}

/// The changes to a job.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct EditBody {
    /// The new args.
    #[schema(value_type = Option<serde_json::Value>)]
    args: Option<Box<RawValue>>,
    #[schema(value_type = Option<PriorityName>)]
    priority: Option<Priority>,
    /// The new due time, in RFC 3339.
    due: Option<String>,
    /// The new due time, in milliseconds since 1970.
    due_ms: Option<i64>,
    /// The delay until the job is due, in milliseconds.
    after_ms: Option<u64>,
}

/// Edit a job that is not running: its args, its priority, its due time
#[utoipa::path(patch, path = "/jobs/{id}", tag = "jobs", operation_id = "editJob", request_body = EditBody,
    params(("id" = String, Path, description = "the job's id, or 4 or more digits of its beginning or end")), responses((status = 200, description = "the changed job", body = JobView), Problems))]
async fn edit(
    State(app): AppState,
    Operator(identity): Operator,
    note: AuditNote,
    JobParam(id): JobParam,
    Json(body): Json<EditBody>,
) -> Result<axum::Json<JobView>> {
    let at = due("", body.due.as_deref(), body.due_ms, body.after_ms)?;
    // Checked before the first change: a refused request changes nothing.
    at.check()?;
    let reschedules = body.due.is_some() || body.due_ms.is_some() || body.after_ms.is_some();
    if body.args.is_some() || reschedules {
        check_command_job(&app, id).await?;
    }
    if body.args.is_some() || body.priority.is_some() {
        let args = body.args.map(|args| args.get().to_owned());
        app.duly.jobs().edit(id, JobEdit::new().args(args).priority(body.priority)).await?;
        note.set_changed();
    }
    if reschedules {
        app.duly.jobs().reschedule(id, at).await?;
    }
    Ok(axum::Json(JobView::new(&find_job(&app, id).await?, &identity)))
}

/// Explain why a job is not running
#[utoipa::path(get, path = "/jobs/{id}/why", tag = "jobs", operation_id = "explainJob", params(("id" = String, Path, description = "the job's id, or 4 or more digits of its beginning or end")),
    responses((status = 200, description = "the reason", body = WhyView), Problems))]
async fn why(State(app): AppState, _: Identity, JobParam(id): JobParam) -> Result<axum::Json<WhyView>> {
    match app.duly.jobs().why(id).await? {
        Why::NotFound => Err(Error::not_found("job", id).into()),
        why => Ok(axum::Json(WhyView::from(&why))),
    }
}

/// Delete a job that is not running
#[utoipa::path(delete, path = "/jobs/{id}", tag = "jobs", operation_id = "deleteJob", params(("id" = String, Path, description = "the job's id, or 4 or more digits of its beginning or end")),
    responses((status = 204, description = "the job is deleted"), Problems))]
async fn remove(State(app): AppState, _: Operator, JobParam(id): JobParam) -> Result<StatusCode> {
    app.duly.jobs().remove(id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Run a job now; a dead job starts over
#[utoipa::path(post, path = "/jobs/{id}/retry", tag = "jobs", operation_id = "retryJob", params(("id" = String, Path, description = "the job's id, or 4 or more digits of its beginning or end")),
    responses((status = 204, description = "the job is due now"), Problems))]
async fn retry(State(app): AppState, _: Operator, JobParam(id): JobParam, _: NoBody) -> Result<StatusCode> {
    check_command_job(&app, id).await?;
    app.duly.jobs().reschedule(id, duly::job::Due::Now).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The due time of a job, in one of three fields.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct RescheduleBody {
    /// In RFC 3339.
    due: Option<String>,
    /// In milliseconds since 1970.
    due_ms: Option<i64>,
    /// The delay in milliseconds.
    after_ms: Option<u64>,
}

/// Reschedule a job that is not running
#[utoipa::path(post, path = "/jobs/{id}/reschedule", tag = "jobs", operation_id = "rescheduleJob", request_body = RescheduleBody,
    params(("id" = String, Path, description = "the job's id, or 4 or more digits of its beginning or end")),
    responses((status = 204, description = "the job is due at that time"), Problems))]
async fn reschedule(
    State(app): AppState,
    _: Operator,
    JobParam(id): JobParam,
    Json(body): Json<RescheduleBody>,
) -> Result<StatusCode> {
    let due = due("", body.due.as_deref(), body.due_ms, body.after_ms)?;
    check_command_job(&app, id).await?;
    app.duly.jobs().reschedule(id, due).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Cancel a job that has not ended
///
/// A job that waits ends at once. A running one is marked, and its handler notified: it ends cancelled unless it still
/// succeeds, even if its node dies.
#[utoipa::path(post, path = "/jobs/{id}/cancel", tag = "jobs", operation_id = "cancelJob", params(("id" = String, Path, description = "the job's id, or 4 or more digits of its beginning or end")),
    responses((status = 200, body = CancelResponse, description = "the job has ended"),
              (status = 202, body = CancelResponse, description = "the job is running, and ends with its attempt"), Problems))]
async fn cancel(
    State(app): AppState,
    _: Operator,
    JobParam(id): JobParam,
    _: NoBody,
) -> Result<(StatusCode, axum::Json<CancelResponse>)> {
    let result = app.duly.jobs().cancel(id).await?;
    let status = match result {
        CancelResult::Cancelling { .. } => StatusCode::ACCEPTED,
        _ => StatusCode::OK,
    };
    Ok((status, axum::Json(CancelResponse::from(&result))))
}
