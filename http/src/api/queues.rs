//! Queues: how many jobs are where, pause and resume.

use std::str::FromStr;
use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{PreconditionFailed, Problems};
use crate::etag::{self, IfMatch};
use crate::identity::{Identity, Operator};
use crate::json::{Json, NoBody, PathParam, QueryParams};
use crate::problem::Problem;
use crate::server::App;
use crate::views::QueueView;
use duly::Capacity;
use duly::Error;
use duly::check_name;

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(get, set_capacity))
        .routes(routes!(clear))
        .routes(routes!(pause))
        .routes(routes!(resume))
}

/// The name of a queue, a rule or a method.
pub(super) struct Name(pub(super) String);

impl FromStr for Name {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        check_name("name", text)?;
        Ok(Name(text.to_owned()))
    }
}

/// All queues.
#[derive(Serialize, ToSchema)]
struct QueueList {
    queues: Vec<QueueView>,
}

/// What has changed.
#[derive(Serialize, ToSchema)]
struct ChangeReply {
    /// Whether it was otherwise before.
    changed: bool,
}

/// How many jobs are in which state, by queue
#[utoipa::path(get, path = "/queues", tag = "queues", responses((status = 200, body = QueueList), Problems))]
async fn list(State(app): State<Arc<App>>, _: Identity) -> Result<axum::Json<QueueList>, Problem> {
    let queues = app.duly.counts().await?.iter().map(QueueView::new).collect();
    Ok(axum::Json(QueueList { queues }))
}

/// One queue
#[utoipa::path(get, path = "/queues/{queue}", tag = "queues", params(("queue" = String, Path, description = "its name")),
    responses((status = 200, body = QueueView, headers(("ETag" = String, description = "the state of its settings, for If-Match"))), Problems))]
async fn get(
    State(app): State<Arc<App>>,
    _: Identity,
    PathParam(Name(name)): PathParam<Name>,
) -> Result<(HeaderMap, axum::Json<QueueView>), Problem> {
    let all = app.duly.counts().await?;
    let one = all.iter().find(|counts| counts.queue == name).ok_or(Error::NotFound { what: "queue", name })?;
    Ok((etag::header(&etag::for_queue(one.paused, one.capacity)), axum::Json(QueueView::new(one))))
}

/// Stop claiming from a queue; running jobs go on
#[utoipa::path(post, path = "/queues/{queue}/pause", tag = "queues",
    params(("queue" = String, Path, description = "its name")), responses((status = 200, body = ChangeReply), Problems))]
async fn pause(
    State(app): State<Arc<App>>,
    _: Operator,
    PathParam(Name(name)): PathParam<Name>,
    _: NoBody,
) -> Result<axum::Json<ChangeReply>, Problem> {
    Ok(axum::Json(ChangeReply { changed: app.duly.pause(&name).await? }))
}

/// Start claiming from a queue again
#[utoipa::path(post, path = "/queues/{queue}/resume", tag = "queues",
    params(("queue" = String, Path, description = "its name")), responses((status = 200, body = ChangeReply), Problems))]
async fn resume(
    State(app): State<Arc<App>>,
    _: Operator,
    PathParam(Name(name)): PathParam<Name>,
    _: NoBody,
) -> Result<axum::Json<ChangeReply>, Problem> {
    Ok(axum::Json(ChangeReply { changed: app.duly.resume(&name).await? }))
}

/// How much may be unfinished in a queue; what is left out or null is not limited.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct CapacityBody {
    /// At most so many jobs.
    capacity_jobs: Option<u64>,
    /// At most so many bytes of args.
    capacity_bytes: Option<u64>,
}

/// Limit how much may be unfinished in a queue: a push beyond that is refused
///
/// With `If-Match`, only if its settings are still as that `ETag` has seen them: else 412 with the code `changed`.
/// That is looked at just before they are set, not in the same step: of two who send within the same moment both may be let through.
#[utoipa::path(patch, path = "/queues/{queue}", tag = "queues", request_body = CapacityBody,
    params(("queue" = String, Path, description = "its name"),
        ("If-Match" = Option<String>, Header, description = "the ETag of the queue whose settings are to be changed")),
    responses((status = 200, body = ChangeReply, headers(("ETag" = String, description = "the new state of its settings, for If-Match"))), Problems, PreconditionFailed))]
async fn set_capacity(
    State(app): State<Arc<App>>,
    _: Operator,
    headers: HeaderMap,
    PathParam(Name(name)): PathParam<Name>,
    Json(body): Json<CapacityBody>,
) -> Result<(HeaderMap, axum::Json<ChangeReply>), Problem> {
    let counts = app.duly.counts().await?;
    let current = counts.iter().find(|counts| counts.queue == name);
    IfMatch::from_headers(&headers)?
        .check(current.map(|queue| etag::for_queue(queue.paused, queue.capacity)).as_deref())?;
    let capacity = Capacity { jobs: body.capacity_jobs, bytes: body.capacity_bytes };
    let changed = app.duly.set_capacity(&name, capacity).await? != capacity;
    // If somebody has paused it meanwhile, this tag is no longer that of the queue: whoever changes by it is told.
    let tag = etag::for_queue(current.is_some_and(|queue| queue.paused), capacity);
    Ok((etag::header(&tag), axum::Json(ChangeReply { changed })))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ClearParams {
    /// The queue's name once more, so that nobody clears one by accident.
    confirm: String,
}

/// How many jobs are gone.
#[derive(Serialize, ToSchema)]
struct ClearReply {
    removed: u64,
    /// Left alone: they were running, or have just moved on.
    left: u64,
    /// There may be more: clear it again.
    more: bool,
}

/// Delete all jobs of a queue that are not running
#[utoipa::path(delete, path = "/queues/{queue}/jobs", tag = "queues",
    params(("queue" = String, Path, description = "its name"), ClearParams),
    responses((status = 200, body = ClearReply), Problems))]
async fn clear(
    State(app): State<Arc<App>>,
    _: Operator,
    PathParam(Name(name)): PathParam<Name>,
    QueryParams(params): QueryParams<ClearParams>,
) -> Result<axum::Json<ClearReply>, Problem> {
    if params.confirm != name {
        return Err(Problem::invalid("confirm", "is not the name of the queue; repeat it to clear it"));
    }
    let done = app.duly.clear(name).run().await?;
    Ok(axum::Json(ClearReply { removed: done.done, left: done.running + done.moving + done.changed, more: done.more }))
}
