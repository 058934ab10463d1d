//! Queues: how many jobs are where, pause and resume.

use std::str::FromStr;
use std::sync::Arc;

use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Problems;
use super::jobs::Nothing;
use crate::error::Error;
use crate::http::json::{MaybeJson, Named};
use crate::http::problem::Problem;
use crate::http::server::App;
use crate::http::view::QueueView;
use crate::http::who::Who;
use crate::push::check_name;
use crate::token::Role;

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(get)).routes(routes!(pause)).routes(routes!(resume))
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
    responses((status = 200, body = QueueView), Problems))]
async fn get(
    State(app): State<Arc<App>>,
    _: Who,
    Named(Name(name)): Named<Name>,
) -> Result<axum::Json<QueueView>, Problem> {
    let all = app.duly.counts().await?;
    let one = all.iter().find(|counts| counts.queue == name).map(QueueView::of);
    Ok(axum::Json(one.ok_or(Error::NotFound { what: "queue", name })?))
}

/// Stop claiming from a queue; running jobs go on
#[utoipa::path(post, path = "/queues/{queue}/pause", tag = "queues",
    params(("queue" = String, Path, description = "its name")), responses((status = 200, body = Changed), Problems))]
async fn pause(
    State(app): State<Arc<App>>,
    who: Who,
    Named(Name(name)): Named<Name>,
    MaybeJson(Nothing {}): MaybeJson<Nothing>,
) -> Result<axum::Json<Changed>, Problem> {
    who.may(Role::Operator)?;
    Ok(axum::Json(Changed { changed: app.duly.pause(&name).await? }))
}

/// Start claiming from a queue again
#[utoipa::path(post, path = "/queues/{queue}/resume", tag = "queues",
    params(("queue" = String, Path, description = "its name")), responses((status = 200, body = Changed), Problems))]
async fn resume(
    State(app): State<Arc<App>>,
    who: Who,
    Named(Name(name)): Named<Name>,
    MaybeJson(Nothing {}): MaybeJson<Nothing>,
) -> Result<axum::Json<Changed>, Problem> {
    who.may(Role::Operator)?;
    Ok(axum::Json(Changed { changed: app.duly.resume(&name).await? }))
}
