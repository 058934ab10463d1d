//! Locks: acquire with a wait, extend, release, each by the owner that the first has told; break, by whoever may.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Problems, next_link};
use crate::identity::{Identity, Operator, Pusher};
use crate::json::{Json, NoBody, OptionalJson, PathParam, QueryParams};
use crate::problem::Problem;
use crate::server::{App, WAIT_MAX};
use crate::views::{LockView, millis};
use duly::Error;
use duly::Owner;
use duly::{LOCK_TTL, Lock};

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(get, acquire, extend, release))
        .routes(routes!(break_lock))
}

/// The name of a lock: any text.
struct LockName(String);

impl FromStr for LockName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Lock::check_name(text)?;
        Ok(LockName(text.to_owned()))
    }
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParams {
    /// Go on after this page.
    cursor: Option<String>,
}

/// A page of holds.
#[derive(Serialize, ToSchema)]
struct LockPage {
    locks: Vec<LockView>,
    next: Option<String>,
}

/// All locks that are held
#[utoipa::path(get, path = "/locks", tag = "locks", params(ListParams), responses((status = 200, body = LockPage), Problems))]
async fn list(
    State(app): State<Arc<App>>,
    identity: Identity,
    QueryParams(params): QueryParams<ListParams>,
) -> Result<(HeaderMap, axum::Json<LockPage>), Problem> {
    let page = app.duly.locks(params.cursor.as_deref()).await?;
    let headers = next_link(&app, "/locks", &[], page.next.as_deref());
    Ok((
        headers,
        axum::Json(LockPage {
            locks: page.locks.iter().map(|lock| LockView::new(lock, &identity)).collect(),
            next: page.next,
        }),
    ))
}

/// Identity holds a lock
#[utoipa::path(get, path = "/locks/{name}", tag = "locks", params(("name" = String, Path, description = "the lock")),
    responses((status = 200, body = LockPage), Problems))]
async fn get(
    State(app): State<Arc<App>>,
    identity: Identity,
    PathParam(LockName(name)): PathParam<LockName>,
) -> Result<axum::Json<LockPage>, Problem> {
    let holders = app.duly.lock(name).holders().await?;
    Ok(axum::Json(LockPage { locks: holders.iter().map(|lock| LockView::new(lock, &identity)).collect(), next: None }))
}

/// How to take a lock.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct AcquireBody {
    /// How long the hold lasts unless it is extended (30,000).
    ttl_ms: Option<u64>,
    /// Wait so long for it, first come first served (0, at most 60,000).
    wait_ms: Option<u64>,
    /// At most so many may hold it at a time (1).
    slots: Option<u32>,
    /// Identity you are, for people.
    note: Option<String>,
}

/// A lock that is yours.
#[derive(Serialize, ToSchema)]
#[schema(as = Hold)]
struct HoldView {
    name: String,
    /// Names this acquisition: extend and release with it.
    owner: String,
    /// Grows with every acquisition: hand it to whatever the lock protects, to refuse an older one.
    fence: u64,
    slot: u32,
    ttl_ms: u64,
}

/// Take a lock
///
/// It lasts for its time: extend it with PATCH long before, release it with DELETE.
#[utoipa::path(put, path = "/locks/{name}", tag = "locks", request_body = Option<AcquireBody>,
    params(("name" = String, Path, description = "the lock")),
    responses((status = 200, body = HoldView), Problems))]
async fn acquire(
    State(app): State<Arc<App>>,
    Pusher(identity): Pusher,
    PathParam(LockName(name)): PathParam<LockName>,
    OptionalJson(body): OptionalJson<AcquireBody>,
) -> Result<axum::Json<HoldView>, Problem> {
    let ttl = body.ttl_ms.map_or(LOCK_TTL, Duration::from_millis);
    let wait = Duration::from_millis(body.wait_ms.unwrap_or(0)).min(WAIT_MAX);
    let lock =
        app.duly.lock(&*name).slots(body.slots.unwrap_or(1)).note(body.note.unwrap_or_else(|| identity.name.clone()));
    match app.duly.acquire_hold(lock, ttl, wait).await? {
        Some(hold) => Ok(axum::Json(HoldView {
            name: hold.name,
            owner: hold.owner.to_string(),
            fence: hold.fence.0,
            slot: hold.slot,
            ttl_ms: millis(hold.ttl),
        })),
        None => {
            let detail = format!("lock {name} is held by somebody else; wait for it with wait_ms");
            Err(Problem::new(StatusCode::CONFLICT, "lock_busy", detail).retry_after(1))
        }
    }
}

/// Whose hold is meant.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ExtendBody {
    /// What acquiring it has told.
    #[schema(format = "uuid")]
    owner: String,
    /// How long it lasts from now (30,000).
    ttl_ms: Option<u64>,
}

fn parse_owner(text: &str, pointer: &str) -> Result<Owner, Problem> {
    text.parse().map_err(|_| Problem::invalid(pointer, "is the UUID that acquiring the lock has told"))
}

fn not_held(name: &str) -> Problem {
    Error::Conflict(format!(
        "lock {name} is not held by this owner: it was released, taken over or broken, or its time was over"
    ))
    .into()
}

/// Let a hold last longer
#[utoipa::path(patch, path = "/locks/{name}", tag = "locks", request_body = ExtendBody,
    params(("name" = String, Path, description = "the lock")), responses((status = 204, description = "it lasts"), Problems))]
async fn extend(
    State(app): State<Arc<App>>,
    _: Pusher,
    PathParam(LockName(name)): PathParam<LockName>,
    Json(body): Json<ExtendBody>,
) -> Result<StatusCode, Problem> {
    let ttl = body.ttl_ms.map_or(LOCK_TTL, Duration::from_millis);
    match app.duly.extend_hold(&name, parse_owner(&body.owner, "/owner")?, ttl).await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(not_held(&name)),
    }
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ReleaseParams {
    /// What acquiring it has told.
    owner: String,
}

/// Release a lock
#[utoipa::path(delete, path = "/locks/{name}", tag = "locks",
    params(("name" = String, Path, description = "the lock"), ReleaseParams),
    responses((status = 204, description = "it is free"), Problems))]
async fn release(
    State(app): State<Arc<App>>,
    _: Pusher,
    PathParam(LockName(name)): PathParam<LockName>,
    QueryParams(params): QueryParams<ReleaseParams>,
) -> Result<StatusCode, Problem> {
    match app.duly.release_hold(&name, parse_owner(&params.owner, "owner")?).await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(not_held(&name)),
    }
}

/// How many holds have ended.
#[derive(Serialize, ToSchema)]
struct BreakReply {
    broken: u64,
}

/// End all holds of a lock, whoever has them
#[utoipa::path(post, path = "/locks/{name}/break", tag = "locks", params(("name" = String, Path, description = "the lock")),
    responses((status = 200, body = BreakReply), Problems))]
async fn break_lock(
    State(app): State<Arc<App>>,
    _: Operator,
    PathParam(LockName(name)): PathParam<LockName>,
    _: NoBody,
) -> Result<axum::Json<BreakReply>, Problem> {
    Ok(axum::Json(BreakReply { broken: app.duly.break_lock(&name).await? }))
}
