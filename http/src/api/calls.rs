//! Calls: run a method on other nodes.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use serde::{Deserialize, Serialize};
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

/// The reply of one node.
#[derive(Serialize, ToSchema)]
#[schema(as = Reply)]
struct ReplyView {
    /// The node that replied; absent if no node did.
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    value: Option<Box<RawValue>>,
    /// The error, if there is no value.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// All replies, in the order of arrival.
#[derive(Serialize, ToSchema)]
struct CallReplies {
    replies: Vec<ReplyView>,
}

/// Call a method
#[utoipa::path(post, path = "/calls/{method}", tag = "calls", request_body = Option<CallBody>,
    params(("method" = String, Path, description = "the method")), responses((status = 200, body = CallReplies), Problems))]
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
        let (value, error) = match reply.result {
            Ok(value) => (Some(value), None),
            Err(error) => (None, Some(error.to_string())),
        };
        replies.push(ReplyView { node: reply.node.map(|node| node.to_string()), value, error });
        if replies.len() == REPLIES_MAX {
            break;
        }
    }
    Ok(axum::Json(CallReplies { replies }))
}
