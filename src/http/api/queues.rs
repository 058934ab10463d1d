//! Queues: how many jobs are where, pause and resume.

use std::str::FromStr;
use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{ChangedSince, Problems};
use crate::error::Error;
use crate::http::etag::{self, IfMatch};
use crate::http::json::{Json, Named, NoBody, Params};
use crate::http::problem::Problem;
use crate::http::server::App;
use crate::http::view::QueueView;
use crate::http::who::{Operator, Who};
use crate::job::push::check_name;
use crate::store::Limit;

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(get, limit))
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
struct Queues {
    queues: Vec<QueueView>,
}

/// What has changed.
#[derive(Serialize, ToSchema)]
struct Changed {
    /// Whether it was otherwise before.
    changed: bool,
}

/// How many jobs are in which state, by queue
#[utoipa::path(get, path = "/queues", tag = "queues", responses((status = 200, body = Queues), Problems))]
async fn list(State(app): State<Arc<App>>, _: Who) -> Result<axum::Json<Queues>, Problem> {
    let queues = app.duly.counts().await?.iter().map(QueueView::of).collect();
    Ok(axum::Json(Queues { queues }))
}

/// One queue
#[utoipa::path(get, path = "/queues/{queue}", tag = "queues", params(("queue" = String, Path, description = "its name")),
    responses((status = 200, body = QueueView, headers(("ETag" = String, description = "the state of its settings, for If-Match"))), Problems))]
async fn get(
    State(app): State<Arc<App>>,
    _: Who,
    Named(Name(name)): Named<Name>,
) -> Result<(HeaderMap, axum::Json<QueueView>), Problem> {
    let all = app.duly.counts().await?;
    let one = all.iter().find(|counts| counts.queue == name).ok_or(Error::NotFound { what: "queue", name })?;
    Ok((etag::header(&etag::of_queue(one.paused, one.limit)), axum::Json(QueueView::of(one))))
}

/// Stop claiming from a queue; running jobs go on
#[utoipa::path(post, path = "/queues/{queue}/pause", tag = "queues",
    params(("queue" = String, Path, description = "its name")), responses((status = 200, body = Changed), Problems))]
async fn pause(
    State(app): State<Arc<App>>,
    _: Operator,
    Named(Name(name)): Named<Name>,
    _: NoBody,
) -> Result<axum::Json<Changed>, Problem> {
    Ok(axum::Json(Changed { changed: app.duly.pause(&name).await? }))
}

/// Start claiming from a queue again
#[utoipa::path(post, path = "/queues/{queue}/resume", tag = "queues",
    params(("queue" = String, Path, description = "its name")), responses((status = 200, body = Changed), Problems))]
async fn resume(
    State(app): State<Arc<App>>,
    _: Operator,
    Named(Name(name)): Named<Name>,
    _: NoBody,
) -> Result<axum::Json<Changed>, Problem> {
    Ok(axum::Json(Changed { changed: app.duly.resume(&name).await? }))
}

/// How much may be unfinished in a queue; what is left out or null is not limited.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct LimitBody {
    /// At most so many jobs.
    limit_jobs: Option<u64>,
    /// At most so many bytes of args.
    limit_bytes: Option<u64>,
}

/// Limit how much may be unfinished in a queue: a push beyond that is refused
///
/// With `If-Match`, only if its settings are still as that `ETag` has seen them: else 412 with the code `changed`.
/// That is looked at just before they are set, not in the same step: of two who send within the same moment both may be let through.
#[utoipa::path(patch, path = "/queues/{queue}", tag = "queues", request_body = LimitBody,
    params(("queue" = String, Path, description = "its name"),
        ("If-Match" = Option<String>, Header, description = "the ETag of the queue whose settings are to be changed")),
    responses((status = 200, body = Changed, headers(("ETag" = String, description = "the new state of its settings, for If-Match"))), Problems, ChangedSince))]
async fn limit(
    State(app): State<Arc<App>>,
    _: Operator,
    headers: HeaderMap,
    Named(Name(name)): Named<Name>,
    Json(body): Json<LimitBody>,
) -> Result<(HeaderMap, axum::Json<Changed>), Problem> {
    let counts = app.duly.counts().await?;
    let seen = counts.iter().find(|counts| counts.queue == name);
    IfMatch::of(&headers)?.check(seen.map(|seen| etag::of_queue(seen.paused, seen.limit)).as_deref())?;
    let limit = Limit { jobs: body.limit_jobs, bytes: body.limit_bytes };
    let changed = app.duly.limit(&name, limit).await? != limit;
    // If somebody has paused it meanwhile, this tag is no longer that of the queue: whoever changes by it is told.
    let tag = etag::of_queue(seen.is_some_and(|seen| seen.paused), limit);
    Ok((etag::header(&tag), axum::Json(Changed { changed })))
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
struct Cleared {
    removed: u64,
    /// Left alone: they were running, or have just moved on.
    left: u64,
    /// There may be more: clear it again.
    more: bool,
}

/// Delete all jobs of a queue that are not running
#[utoipa::path(delete, path = "/queues/{queue}/jobs", tag = "queues",
    params(("queue" = String, Path, description = "its name"), ClearParams),
    responses((status = 200, body = Cleared), Problems))]
async fn clear(
    State(app): State<Arc<App>>,
    _: Operator,
    Named(Name(name)): Named<Name>,
    Params(params): Params<ClearParams>,
) -> Result<axum::Json<Cleared>, Problem> {
    if params.confirm != name {
        return Err(Problem::invalid("confirm", "is not the name of the queue; repeat it to clear it"));
    }
    let done = app.duly.clear(name).run().await?;
    Ok(axum::Json(Cleared { removed: done.done, left: done.running + done.moving + done.changed, more: done.more }))
}
