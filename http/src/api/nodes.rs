//! Nodes: list them, and make one quiet or stop it.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::json;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Problems;
use crate::identity::{Identity, Operator};
use crate::json::{NoBody, OptionalJson, PathParam};
use crate::problem::Result;
use crate::server::{App, AppState};
use crate::views::NodeList;
use duly::NodeId;
use duly::{ConflictKind, Error};

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(quiet)).routes(routes!(stop))
}

/// List nodes
#[utoipa::path(get, path = "/nodes", tag = "nodes", operation_id = "listNodes", responses((status = 200, description = "all nodes", body = NodeList), Problems))]
async fn list(State(app): AppState, _: Identity) -> Result<axum::Json<NodeList>> {
    Ok(axum::Json(NodeList::from(app.duly.nodes().list().await?)))
}

/// Whether the node should be quiet.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct QuietBody {
    /// `false` lets the node claim again.
    on: bool,
}

impl Default for QuietBody {
    fn default() -> Self {
        QuietBody { on: true }
    }
}

/// Make a node quiet: it claims no more jobs, and running jobs continue
#[utoipa::path(post, path = "/nodes/{id}/quiet", tag = "nodes", operation_id = "quietNode", request_body = Option<QuietBody>,
    params(("id" = String, Path, description = "the node's id")),
    responses((status = 204, description = "the node has been notified"), Problems))]
async fn quiet(
    State(app): AppState,
    _: Operator,
    PathParam(id): PathParam<NodeId>,
    OptionalJson(body): OptionalJson<QuietBody>,
) -> Result<StatusCode> {
    send_command(&app, id, "duly.quiet", &json!({ "on": body.on })).await
}

/// Stop a node, as a signal would
#[utoipa::path(post, path = "/nodes/{id}/stop", tag = "nodes", operation_id = "stopNode", params(("id" = String, Path, description = "the node's id")),
    responses((status = 204, description = "the node has been notified"), Problems))]
async fn stop(State(app): AppState, _: Operator, PathParam(id): PathParam<NodeId>, _: NoBody) -> Result<StatusCode> {
    send_command(&app, id, "duly.stop", &serde_json::Value::Null).await
}

async fn send_command(app: &App, id: NodeId, method: &str, args: &serde_json::Value) -> Result<StatusCode> {
    let workers: u64 = app.duly.call(method, args).node(id).reply().await?;
    match workers {
        0 => Err(Error::conflict(
            ConflictKind::NoWorker,
            format!("node {id} runs no worker; choose a node that runs one"),
        )
        .into()),
        _ => Ok(StatusCode::NO_CONTENT),
    }
}
