//! Queues: counts, pause and resume, capacity, clear, remove.

use std::str::FromStr;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{PreconditionFailed, Problems};
use crate::audit::AuditNote;
use crate::bulk_task::BulkTask;
use crate::etag::{self, IfMatch};
use crate::identity::{Identity, Operator};
use crate::json::{self, Json, NoBody, PathParam, QueryParams};
use crate::problem::{Problem, Result};
use crate::server::{App, AppState};
use crate::views::{ChangeResponse, ClearResponse, QueueList, QueueView};
use duly::Error;
use duly::admin::Capacity;
use duly::job::check_name;

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(get, set_capacity, remove))
        .routes(routes!(clear))
        .routes(routes!(pause))
        .routes(routes!(resume))
}

/// The name of a queue, a cron rule, a method or a token.
pub(super) struct Name(pub(super) String);

impl FromStr for Name {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        check_name("name", text)?;
        Ok(Name(text.to_owned()))
    }
}

/// List queues with their job counts
#[utoipa::path(get, path = "/queues", tag = "queues", operation_id = "listQueues", responses((status = 200, description = "all queues, by name", body = QueueList), Problems))]
async fn list(State(app): AppState, _: Identity) -> Result<axum::Json<QueueList>> {
    Ok(axum::Json(QueueList::from(&app.duly.queues().counts().await?[..])))
}

/// Get a queue
#[utoipa::path(get, path = "/queues/{queue}", tag = "queues", operation_id = "getQueue", params(("queue" = String, Path, description = "the name of the queue")),
    responses((status = 200, description = "the queue", body = QueueView, headers(("ETag" = String, description = "the version of its settings, for If-Match"))), Problems))]
async fn get(
    State(app): AppState,
    _: Identity,
    PathParam(Name(name)): PathParam<Name>,
) -> Result<(HeaderMap, axum::Json<QueueView>)> {
    let all = app.duly.queues().counts().await?;
    let one = all.iter().find(|counts| counts.queue == name).ok_or_else(|| Error::not_found("queue", name))?;
    Ok((etag::header(&etag::for_queue(one.paused, one.capacity)), axum::Json(QueueView::from(one))))
}

/// Pause a queue: its jobs are not claimed, and running jobs continue
#[utoipa::path(post, path = "/queues/{queue}/pause", tag = "queues", operation_id = "pauseQueue",
    params(("queue" = String, Path, description = "the name of the queue")), responses((status = 200, description = "the queue is paused", body = ChangeResponse), Problems))]
async fn pause(
    State(app): AppState,
    Operator(identity): Operator,
    PathParam(Name(name)): PathParam<Name>,
    _: NoBody,
) -> Result<axum::Json<ChangeResponse>> {
    let queues = app.queue_count_limit.reserve(&app.duly, &identity, [&*name]).await?;
    let changed = app.duly.queues().pause(&name).await?;
    queues.confirm();
    Ok(axum::Json(ChangeResponse::new(changed)))
}

/// Resume a queue
#[utoipa::path(post, path = "/queues/{queue}/resume", tag = "queues", operation_id = "resumeQueue",
    params(("queue" = String, Path, description = "the name of the queue")), responses((status = 200, description = "the queue is not paused", body = ChangeResponse), Problems))]
async fn resume(
    State(app): AppState,
    _: Operator,
    PathParam(Name(name)): PathParam<Name>,
    _: NoBody,
) -> Result<axum::Json<ChangeResponse>> {
    Ok(axum::Json(ChangeResponse::new(app.duly.queues().resume(&name).await?)))
}

/// The capacity of a queue; an absent or null value means no limit.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct CapacityBody {
    /// The most unfinished jobs; unchanged if absent, no limit if null.
    #[serde(default, deserialize_with = "json::present")]
    #[schema(value_type = Option<u64>)]
    capacity_jobs: Option<Option<u64>>,
    /// The most bytes of args of unfinished jobs; unchanged if absent, no limit if null.
    #[serde(default, deserialize_with = "json::present")]
    #[schema(value_type = Option<u64>)]
    capacity_bytes: Option<Option<u64>>,
}

/// Set the capacity of a queue: a push beyond it is refused
///
/// With `If-Match`, settings that have changed since give a 412 with the code `changed`. The check precedes the change
/// and is not atomic with it: two requests at the same moment may both succeed.
#[utoipa::path(patch, path = "/queues/{queue}", tag = "queues", operation_id = "setQueueCapacity", request_body = CapacityBody,
    params(("queue" = String, Path, description = "the name of the queue"),
        ("If-Match" = Option<String>, Header, description = "the ETag of the settings to change")),
    responses((status = 200, description = "the capacity is set", body = ChangeResponse, headers(("ETag" = String, description = "the new version of its settings, for If-Match"))), Problems, PreconditionFailed))]
async fn set_capacity(
    State(app): AppState,
    Operator(identity): Operator,
    headers: HeaderMap,
    PathParam(Name(name)): PathParam<Name>,
    Json(body): Json<CapacityBody>,
) -> Result<(HeaderMap, axum::Json<ChangeResponse>)> {
    let counts = app.duly.queues().counts().await?;
    let current = counts.iter().find(|counts| counts.queue == name);
    IfMatch::from_headers(&headers)?
        .check(current.map(|queue| etag::for_queue(queue.paused, queue.capacity)).as_deref())?;
    let queues = app.queue_count_limit.reserve(&app.duly, &identity, [&*name]).await?;
    let before = current.map_or_else(Capacity::unlimited, |queue| queue.capacity);
    let capacity = Capacity::unlimited()
        .jobs(body.capacity_jobs.unwrap_or(before.jobs))
        .bytes(body.capacity_bytes.unwrap_or(before.bytes));
    let changed = app.duly.queues().set_capacity(&name, capacity).await? != capacity;
    queues.confirm();
    // If a client pauses the queue at the same time, this tag is outdated, and a change with it fails.
    let tag = etag::for_queue(current.is_some_and(|queue| queue.paused), capacity);
    Ok((etag::header(&tag), axum::Json(ChangeResponse::new(changed))))
}

/// Remove a queue without jobs, with its settings and statistics
///
/// A queue with jobs, cron rules or a worker gives a 409. A later push creates the queue again. The ids of its jobs are
/// forgotten: a push repeated with one of them, or with its `Idempotency-Key`, is a new job.
#[utoipa::path(delete, path = "/queues/{queue}", tag = "queues", operation_id = "deleteQueue", params(("queue" = String, Path, description = "the name of the queue")),
    responses((status = 204, description = "the queue is removed"), Problems))]
async fn remove(State(app): AppState, _: Operator, PathParam(Name(name)): PathParam<Name>) -> Result<StatusCode> {
    app.duly.queues().remove(&name).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ClearParams {
    /// The queue's name again, to prevent accidents.
    confirm: String,
}

/// Delete all jobs of a queue that are not running
#[utoipa::path(delete, path = "/queues/{queue}/jobs", tag = "queues", operation_id = "clearQueue",
    params(("queue" = String, Path, description = "the name of the queue"), ClearParams),
    responses((status = 200, description = "the number of deleted jobs", body = ClearResponse), Problems))]
async fn clear(
    State(app): AppState,
    _: Operator,
    note: AuditNote,
    PathParam(Name(name)): PathParam<Name>,
    QueryParams(params): QueryParams<ClearParams>,
) -> Result<axum::Json<ClearResponse>> {
    if params.confirm != name {
        return Err(Problem::invalid("confirm", "must be the name of the queue, to confirm that you want to clear it"));
    }
    let clearing = BulkTask::start(&app, &note, app.duly.queues().clear(name), |_| {}).await;
    let Some(done) = clearing.wait().await? else {
        let detail = "clearing takes longer than a request may; it continues, and the audit log shows its end";
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "timeout", detail));
    };
    Ok(axum::Json(ClearResponse::from(&done)))
}
