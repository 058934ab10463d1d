//! Dead jobs, grouped by error.

use std::sync::Arc;

use axum::extract::State;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Problems;
use crate::identity::Identity;
use crate::json::QueryParams;
use crate::problem::Result;
use crate::server::{App, AppState};
use crate::views::Groups;

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(groups))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct GroupParams {
    /// Only this queue.
    queue: Option<String>,
}

/// List dead jobs by kind and error
#[utoipa::path(get, path = "/dead", tag = "jobs", operation_id = "listDeadGroups", params(GroupParams), responses((status = 200, description = "all groups, largest first", body = Groups), Problems))]
async fn groups(
    State(app): AppState,
    _: Identity,
    QueryParams(params): QueryParams<GroupParams>,
) -> Result<axum::Json<Groups>> {
    let groups = app.duly.jobs().dead_groups(params.queue.as_deref()).await?;
    Ok(axum::Json(Groups::from(groups)))
}
