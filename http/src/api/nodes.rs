//! Nodes: list them, and make one quiet or stop it.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Problems;
use crate::identity::{Identity, Operator};
use crate::json::{NoBody, OptionalJson, PathParam};
use crate::problem::Result;
use crate::server::{App, AppState};
use crate::views::{rfc3339, unix_ms};
use duly::NodeId;
use duly::admin::NodeRecord;
use duly::{ConflictKind, Error};

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(quiet)).routes(routes!(stop))
}

/// A node.
#[derive(Serialize, ToSchema)]
#[schema(as = Node)]
struct NodeView {
    id: String,
    /// The host of the node; for a worker over HTTP, the host of the server.
    host: String,
    pid: u32,
    queues: Vec<String>,
    joined: String,
    joined_ms: i64,
    /// Whether the lease of the node is current.
    alive: bool,
    /// Whether the node claims no jobs: it is quiet or stopping.
    quiet: bool,
    /// The number of jobs that the node holds.
    held: u64,
    /// The methods that the node can run.
    methods: Vec<String>,
}

impl NodeView {
    fn new(node: NodeRecord) -> Self {
        NodeView {
            id: node.id.to_string(),
            host: node.host,
            pid: node.pid,
            queues: node.queues,
            joined: rfc3339(node.joined),
            joined_ms: unix_ms(node.joined),
            alive: node.alive,
            quiet: node.profile.quiet,
            held: node.held,
            methods: node.methods,
        }
    }
}

/// All nodes.
#[derive(Serialize, ToSchema)]
struct NodeList {
    nodes: Vec<NodeView>,
}

/// List nodes
#[utoipa::path(get, path = "/nodes", tag = "nodes", responses((status = 200, body = NodeList), Problems))]
async fn list(State(app): AppState, _: Identity) -> Result<axum::Json<NodeList>> {
    let nodes = app.duly.nodes().list().await?.into_iter().map(NodeView::new).collect();
    Ok(axum::Json(NodeList { nodes }))
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
#[utoipa::path(post, path = "/nodes/{id}/quiet", tag = "nodes", request_body = Option<QuietBody>,
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
#[utoipa::path(post, path = "/nodes/{id}/stop", tag = "nodes", params(("id" = String, Path, description = "the node's id")),
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
