//! Dead jobs, grouped by error.

use std::sync::Arc;

use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Problems;
use crate::identity::Identity;
use crate::json::QueryParams;
use crate::problem::Result;
use crate::server::{App, AppState};
use crate::views::{rfc3339, unix_ms};
use duly::admin::DeadGroup;

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

/// Dead jobs of one kind with the same error.
#[derive(Serialize, ToSchema)]
#[schema(as = DeadGroup)]
struct GroupView {
    /// The id for `group:ID` in a filter.
    id: String,
    queue: String,
    kind: String,
    /// The common part of their last errors.
    error: String,
    count: u64,
    oldest: String,
    oldest_ms: i64,
    newest: String,
    newest_ms: i64,
}

impl GroupView {
    fn new(group: DeadGroup) -> Self {
        GroupView {
            id: group.id,
            queue: group.queue,
            kind: group.kind,
            error: group.error,
            count: group.count,
            oldest: rfc3339(group.oldest),
            oldest_ms: unix_ms(group.oldest),
            newest: rfc3339(group.newest),
            newest_ms: unix_ms(group.newest),
        }
    }
}

/// All groups, largest first.
#[derive(Serialize, ToSchema)]
struct Groups {
    groups: Vec<GroupView>,
}

/// List dead jobs by kind and error
#[utoipa::path(get, path = "/dead", tag = "jobs", params(GroupParams), responses((status = 200, body = Groups), Problems))]
async fn groups(
    State(app): AppState,
    _: Identity,
    QueryParams(params): QueryParams<GroupParams>,
) -> Result<axum::Json<Groups>> {
    let groups = app.duly.jobs().dead_groups(params.queue.as_deref()).await?;
    Ok(axum::Json(Groups { groups: groups.into_iter().map(GroupView::new).collect() }))
}
