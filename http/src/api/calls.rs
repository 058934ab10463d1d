//! Calls: run a method on other nodes.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use serde::Deserialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Problems;
use super::queues::Name;
use crate::identity::Identity;
use crate::json::{OptionalJson, PathParam};
use crate::problem::{Problem, Result};
use crate::server::{App, AppState};
use crate::views::{CallReplies, ReplyView};
use duly::NodeId;
use duly::admin::Role;

/// The most replies in one response.
const REPLIES_MAX: usize = 1_000;

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(call))
}

/// The target and the args of a call.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct CallBody {
    /// The args of the method: any JSON.
    #[schema(value_type = Option<serde_json::Value>)]
    args: Option<Box<RawValue>>,
    /// The node to call; any node with the method if absent.
    #[schema(value_type = Option<String>)]
    node: Option<NodeId>,
    /// Calls the node that holds this connection.
    connection: Option<String>,
    /// Calls all nodes.
    #[serde(default)]
    all: bool,
    /// The timeout in milliseconds (5,000, at most 60,000).
    timeout_ms: Option<u64>,
}

/// Call a method
#[utoipa::path(post, path = "/calls/{method}", tag = "calls", operation_id = "callMethod", request_body = Option<CallBody>,
    params(("method" = String, Path, description = "the method")), responses((status = 200, description = "the replies", body = CallReplies), Problems))]
async fn call(
    State(app): AppState,
    identity: Identity,
    PathParam(Name(method)): PathParam<Name>,
    OptionalJson(body): OptionalJson<CallBody>,
) -> Result<axum::Json<CallReplies>> {
    // The built-in methods control the node.
    identity.require(if method.starts_with("duly.") { Role::Operator } else { Role::Pusher })?;
    let args = body.args.unwrap_or_else(|| RawValue::NULL.to_owned());
    let mut call = app.duly.call(method, &args);
    call = match (body.node, body.connection, body.all) {
        (None, None, false) => call.any(),
        (Some(node), None, false) => call.node(node),
        (None, Some(connection), false) => call.connection(connection),
        (None, None, true) => call.all(),
        _ => return Err(Problem::invalid("/node", "use only one of node, connection and all")),
    };
    if let Some(timeout) = body.timeout_ms {
        call = call.timeout(Duration::from_millis(timeout));
    }
    let mut incoming = call.replies::<Box<RawValue>>().await?;
    let mut replies = Vec::new();
    while let Some(reply) = incoming.next().await {
        replies.push(ReplyView::new(reply.node, reply.result));
        if replies.len() == REPLIES_MAX {
            break;
        }
    }
    Ok(axum::Json(CallReplies::from(replies)))
}
