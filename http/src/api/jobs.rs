//! Jobs: list, read, edit, retry, reschedule, cancel and delete them.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::push::{COMMAND, due};
use super::{Problems, next_link, page_size};
use crate::identity::{Identity, Operator};
use crate::json::{Json, NoBody, PathParam, QueryParams};
use crate::problem::{Problem, Result};
use crate::server::{App, AppState};
use crate::views::JobView;
use duly::Error;
use duly::Filter;
use duly::admin::JobEdit;
use duly::admin::Why;
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

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct JobListParams {
    /// The jobs, as a filter: `state:dead kind:mail args.to:ada since:1h`. All if absent.
    filter: Option<String>,
    /// The page size (50, at most 200).
    limit: Option<usize>,
    /// The cursor of the page: `next` of the previous one.
    cursor: Option<String>,
}

/// A page of jobs.
#[derive(Serialize, ToSchema)]
struct JobList {
    jobs: Vec<JobView>,
    /// The cursor of the next page, if there may be one; also in the `Link` header.
    next: Option<String>,
}

/// List jobs
#[utoipa::path(get, path = "/jobs", tag = "jobs", params(JobListParams), responses((status = 200, body = JobList), Problems))]
async fn list(
    State(app): AppState,
    identity: Identity,
    QueryParams(params): QueryParams<JobListParams>,
) -> Result<(HeaderMap, axum::Json<JobList>)> {
    let JobListParams { filter, limit, cursor } = params;
    let query = [("filter", filter.clone()), ("limit", limit.map(|limit| limit.to_string()))];
    let mut filter: Filter = filter.unwrap_or_default().parse().map_err(|error| parameter_error("filter", error))?;
    identity.require_for_filter(&filter)?;
    (filter.limit, filter.cursor) = (page_size(limit), cursor);
    let page = app.duly.list(filter).await?;
    let headers = next_link(&app, "/jobs", &query, page.next_cursor.as_deref());
    let jobs = page.jobs.iter().map(|record| JobView::new(record, &identity)).collect();
    Ok((headers, axum::Json(JobList { jobs, next: page.next_cursor })))
}

/// Returns the problem for an invalid parameter outside of the body.
pub(super) fn parameter_error(name: &str, error: Error) -> Problem {
    match error {
        Error::Invalid { reason, .. } => Problem::invalid(name, reason),
        other => other.into(),
    }
}

pub(super) async fn find_job(app: &App, id: JobId) -> Result<JobRecord> {
    let record = app.duly.get(id).await?;
    Ok(record.ok_or_else(|| Error::not_found("job", id))?)
}

/// Get a job with its history
#[utoipa::path(get, path = "/jobs/{id}", tag = "jobs", params(("id" = String, Path, description = "the job's id")),
    responses((status = 200, body = JobView), Problems))]
async fn get(State(app): AppState, identity: Identity, PathParam(id): PathParam<JobId>) -> Result<axum::Json<JobView>> {
    Ok(axum::Json(JobView::new(&find_job(&app, id).await?, &identity)))
}

/// The changes to a job.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct EditBody {
    /// The new args.
    #[schema(value_type = Option<serde_json::Value>)]
    args: Option<Box<RawValue>>,
    #[schema(value_type = Option<String>)]
    priority: Option<Priority>,
    /// The new due time, in RFC 3339.
    due: Option<String>,
    /// The new due time, in milliseconds since 1970.
    due_ms: Option<i64>,
    /// The delay until the job is due, in milliseconds.
    after_ms: Option<u64>,
}

/// Edit a job that is not running: its args, its priority, its due time
#[utoipa::path(patch, path = "/jobs/{id}", tag = "jobs", request_body = EditBody,
    params(("id" = String, Path, description = "the job's id")), responses((status = 200, body = JobView), Problems))]
async fn edit(
    State(app): AppState,
    Operator(identity): Operator,
    PathParam(id): PathParam<JobId>,
    Json(body): Json<EditBody>,
) -> Result<axum::Json<JobView>> {
    let at = due("", body.due.as_deref(), body.due_ms, body.after_ms)?;
    // Checked before the first change: a refused request changes nothing.
    at.check()?;
    let reschedules = body.due.is_some() || body.due_ms.is_some() || body.after_ms.is_some();
    if body.args.is_some() && find_job(&app, id).await?.job.kind == COMMAND && !app.options.commands {
        return Err(Problem::forbidden(
            "jobs that run programs are not changed over HTTP; start the server with --allow-commands",
        ));
    }
    if body.args.is_some() || body.priority.is_some() {
        let args = body.args.map(|args| args.get().to_owned());
        app.duly.edit(id, JobEdit::new().args(args).priority(body.priority)).await?;
    }
    if reschedules {
        app.duly.reschedule(id, at).await?;
    }
    Ok(axum::Json(JobView::new(&find_job(&app, id).await?, &identity)))
}

/// The reason why a job is not running.
#[derive(Serialize, ToSchema)]
#[schema(as = Why)]
struct WhyView {
    /// A stable code.
    why: &'static str,
    /// The reason as one sentence.
    text: String,
}

/// Explain why a job is not running
#[utoipa::path(get, path = "/jobs/{id}/why", tag = "jobs", params(("id" = String, Path, description = "the job's id")),
    responses((status = 200, body = WhyView), Problems))]
async fn why(State(app): AppState, _: Identity, PathParam(id): PathParam<JobId>) -> Result<axum::Json<WhyView>> {
    match app.duly.why(id).await? {
        Why::NotFound => Err(Error::not_found("job", id).into()),
        why => Ok(axum::Json(WhyView { why: why.code(), text: why.to_string() })),
    }
}

/// Delete a job that is not running
#[utoipa::path(delete, path = "/jobs/{id}", tag = "jobs", params(("id" = String, Path, description = "the job's id")),
    responses((status = 204, description = "the job is deleted"), Problems))]
async fn remove(State(app): AppState, _: Operator, PathParam(id): PathParam<JobId>) -> Result<StatusCode> {
    app.duly.remove(id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Run a job now; a dead job starts over
#[utoipa::path(post, path = "/jobs/{id}/retry", tag = "jobs", params(("id" = String, Path, description = "the job's id")),
    responses((status = 204, description = "the job is due now"), Problems))]
async fn retry(State(app): AppState, _: Operator, PathParam(id): PathParam<JobId>, _: NoBody) -> Result<StatusCode> {
    app.duly.reschedule(id, duly::job::Due::Now).await?;
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
#[utoipa::path(post, path = "/jobs/{id}/reschedule", tag = "jobs", request_body = RescheduleBody,
    params(("id" = String, Path, description = "the job's id")),
    responses((status = 204, description = "the job is due at that time"), Problems))]
async fn reschedule(
    State(app): AppState,
    _: Operator,
    PathParam(id): PathParam<JobId>,
    Json(body): Json<RescheduleBody>,
) -> Result<StatusCode> {
    let due = due("", body.due.as_deref(), body.due_ms, body.after_ms)?;
    app.duly.reschedule(id, due).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Cancel a running job: it ends dead with the error `cancelled`
#[utoipa::path(post, path = "/jobs/{id}/cancel", tag = "jobs", params(("id" = String, Path, description = "the job's id")),
    responses((status = 202, description = "the handler has been notified"), Problems))]
async fn cancel(State(app): AppState, _: Operator, PathParam(id): PathParam<JobId>, _: NoBody) -> Result<StatusCode> {
    app.duly.cancel(id).await?;
    Ok(StatusCode::ACCEPTED)
}
