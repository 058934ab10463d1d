//! Locks: acquire with a wait, extend and release with the owner id, break.

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
use crate::audit::AuditNote;
use crate::identity::{Identity, Operator, Pusher};
use crate::json::{Json, OptionalJson, PathParam, QueryParams};
use crate::problem::{Problem, Result};
use crate::server::{App, AppState, WAIT_MAX};
use crate::views::{BreakResponse, LockList, millis};
use duly::bounds::DEFAULT_LOCK_TTL;
use duly::lock::Lock;
use duly::lock::LockOwner;
use duly::{ConflictKind, Error};

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
struct LockListParams {
    /// The cursor of the page.
    cursor: Option<String>,
}

/// List held locks
#[utoipa::path(get, path = "/locks", tag = "locks", operation_id = "listLocks", params(LockListParams), responses((status = 200, description = "a page of holds", body = LockList), Problems))]
async fn list(
    State(app): AppState,
    identity: Identity,
    QueryParams(params): QueryParams<LockListParams>,
) -> Result<(HeaderMap, axum::Json<LockList>)> {
    let page = app.duly.locks().list(params.cursor.as_deref()).await?;
    let headers = next_link(&app, "/locks", &[], page.next_cursor.as_deref());
    Ok((headers, axum::Json(LockList::new(&page.locks, page.next_cursor, &identity))))
}

/// List the holders of a lock
#[utoipa::path(get, path = "/locks/{name}", tag = "locks", operation_id = "listLockHolders", params(("name" = String, Path, description = "the name of the lock")),
    responses((status = 200, description = "the holders, one for each slot in use", body = LockList), Problems))]
async fn get(
    State(app): AppState,
    identity: Identity,
    PathParam(LockName(name)): PathParam<LockName>,
) -> Result<axum::Json<LockList>> {
    let holders = app.duly.lock(name).holders().await?;
    Ok(axum::Json(LockList::new(&holders, None, &identity)))
}

/// Options for acquiring a lock.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct AcquireBody {
    /// The time after which the hold expires unless it is extended (30,000).
    ttl_ms: Option<u64>,
    /// The longest wait for the lock; waiters acquire it in order of arrival (0, at most 60,000).
    wait_ms: Option<u64>,
    /// The most concurrent holders (1).
    slots: Option<u32>,
    /// A description of the holder, for people.
    note: Option<String>,
}

/// A held lock.
#[derive(Serialize, ToSchema)]
#[schema(as = Hold)]
struct HoldView {
    name: String,
    /// The id of this acquisition, to extend and release it.
    owner: String,
    /// Grows with every acquisition: the protected resource should refuse a smaller fence.
    fence: u64,
    slot: u32,
    ttl_ms: u64,
}

/// Acquire a lock
///
/// The hold expires after its time: extend it with PATCH well before that, and release it with DELETE. A client may hold
/// 1,000 locks at a time; beyond that it gets a 429.
#[utoipa::path(put, path = "/locks/{name}", tag = "locks", operation_id = "acquireLock", request_body = Option<AcquireBody>,
    params(("name" = String, Path, description = "the name of the lock")),
    responses((status = 200, description = "the lock is held", body = HoldView), Problems))]
async fn acquire(
    State(app): AppState,
    Pusher(identity): Pusher,
    PathParam(LockName(name)): PathParam<LockName>,
    OptionalJson(body): OptionalJson<AcquireBody>,
) -> Result<axum::Json<HoldView>> {
    let ttl = body.ttl_ms.map_or(DEFAULT_LOCK_TTL, Duration::from_millis);
    let wait = Duration::from_millis(body.wait_ms.unwrap_or(0)).min(WAIT_MAX);
    let lock =
        app.duly.lock(&*name).slots(body.slots.unwrap_or(1)).note(body.note.unwrap_or_else(|| identity.name.clone()));
    let reservation = app.holds.begin(&identity.name)?;
    match app.duly.acquire_hold(lock, ttl, wait).await? {
        Some(hold) => {
            reservation.confirm(&hold.name, hold.owner, hold.ttl);
            Ok(axum::Json(HoldView {
                name: hold.name,
                owner: hold.owner.to_string(),
                fence: hold.fence.0,
                slot: hold.slot,
                ttl_ms: millis(hold.ttl),
            }))
        }
        None => {
            let detail = format!("lock {name} is held by another owner; wait for it with wait_ms");
            Err(Problem::new(StatusCode::CONFLICT, "lock_busy", detail).retry_after(1))
        }
    }
}

/// Identifies a hold.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ExtendBody {
    /// The owner id from the acquisition.
    #[schema(format = "uuid")]
    owner: String,
    /// The time from now after which the hold expires (30,000).
    ttl_ms: Option<u64>,
}

fn parse_owner(text: &str, pointer: &str) -> Result<LockOwner> {
    text.parse().map_err(|_| Problem::invalid(pointer, "must be the `owner` returned by the acquire request"))
}

fn not_held(name: &str) -> Problem {
    Error::conflict(
        ConflictKind::LockLost,
        format!("lock {name} is not held by this owner: it was released, taken over or broken, or it has expired; acquire it again"),
    )
    .into()
}

/// Extend a hold
#[utoipa::path(patch, path = "/locks/{name}", tag = "locks", operation_id = "extendLock", request_body = ExtendBody,
    params(("name" = String, Path, description = "the name of the lock")), responses((status = 204, description = "the hold is extended"), Problems))]
async fn extend(
    State(app): AppState,
    Pusher(identity): Pusher,
    note: AuditNote,
    PathParam(LockName(name)): PathParam<LockName>,
    Json(body): Json<ExtendBody>,
) -> Result<StatusCode> {
    let ttl = body.ttl_ms.map_or(DEFAULT_LOCK_TTL, Duration::from_millis);
    let owner = parse_owner(&body.owner, "/owner")?;
    let is_first = app.holds.is_unrecorded_extension(owner, &identity);
    if is_first {
        note.record();
    }
    match app.duly.extend_hold(&name, owner, ttl).await? {
        true => {
            app.holds.extend(&name, owner, ttl, &identity);
            if is_first {
                app.holds.set_extension_recorded(owner, &identity);
            }
            Ok(StatusCode::NO_CONTENT)
        }
        false => {
            app.holds.remove(&name, owner);
            Err(not_held(&name))
        }
    }
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ReleaseParams {
    /// The owner id from the acquisition.
    owner: String,
}

/// Release a lock
#[utoipa::path(delete, path = "/locks/{name}", tag = "locks", operation_id = "releaseLock",
    params(("name" = String, Path, description = "the name of the lock"), ReleaseParams),
    responses((status = 204, description = "the lock is released"), Problems))]
async fn release(
    State(app): AppState,
    Pusher(identity): Pusher,
    note: AuditNote,
    PathParam(LockName(name)): PathParam<LockName>,
    QueryParams(params): QueryParams<ReleaseParams>,
) -> Result<StatusCode> {
    let owner = parse_owner(&params.owner, "owner")?;
    app.holds.note_foreign(owner, &identity, &note);
    let released = app.duly.release_hold(&name, owner).await?;
    app.holds.remove(&name, owner);
    match released {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(not_held(&name)),
    }
}

/// The hold to end.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct BreakBody {
    /// The owner id of one hold, as the list of the lock's holders shows it; without it, all holds end.
    #[schema(format = "uuid")]
    owner: Option<String>,
}

/// Ends one hold of a lock, or all of them. Returns how many.
pub(crate) async fn break_holds(app: &App, name: &str, owner: Option<LockOwner>) -> duly::Result<u64> {
    let Some(owner) = owner else {
        let broken = app.duly.locks().break_lock(name).await?;
        app.holds.remove_all(name);
        return Ok(broken);
    };
    let broken = app.duly.locks().break_hold(name, owner).await?;
    app.holds.remove(name, owner);
    Ok(broken.into())
}

/// Break a lock: end one hold, or all its holds
#[utoipa::path(post, path = "/locks/{name}/break", tag = "locks", operation_id = "breakLock", request_body = Option<BreakBody>, params(("name" = String, Path, description = "the name of the lock")),
    responses((status = 200, description = "the number of ended holds", body = BreakResponse), Problems))]
async fn break_lock(
    State(app): AppState,
    _: Operator,
    note: AuditNote,
    PathParam(LockName(name)): PathParam<LockName>,
    OptionalJson(body): OptionalJson<BreakBody>,
) -> Result<axum::Json<BreakResponse>> {
    let owner = body.owner.map(|owner| parse_owner(&owner, "/owner")).transpose()?;
    if let Some(owner) = owner {
        note.set_owner(owner);
    }
    let broken = break_holds(&app, &name, owner).await?;
    note.set_count(broken);
    Ok(axum::Json(BreakResponse::new(broken)))
}
