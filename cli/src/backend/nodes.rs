//! Nodes, and calls to them.

use std::time::Duration;

use duly::call::Call;
use duly::{Duly, Error, NodeId};
use duly_http::views::{CallReplies, NodeList, ReplyView};
use serde::Serialize;
use serde_json::value::RawValue;

use super::{Backend, to_millis};
use crate::api_client::{ApiClient, url_encode};
use crate::audit;
use crate::call::with_hint;
use crate::exit::{self, CliError};

/// The nodes that a call is for.
#[derive(Clone, Debug)]
pub(crate) enum CallTarget {
    Any,
    Node(NodeId),
    Connection(String),
    All,
}

/// A call to other nodes.
pub(crate) struct CallRequest<'r> {
    pub(crate) method: &'r str,
    pub(crate) args: &'r RawValue,
    pub(crate) target: CallTarget,
    pub(crate) timeout: Option<Duration>,
    /// The action and its target in the audit log of a store; `None` if the method changes nothing.
    pub(crate) audit: Option<(String, String)>,
}

/// The body of a call on a server.
#[derive(Serialize)]
struct CallBody<'r> {
    args: &'r RawValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<NodeId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    connection: Option<&'r str>,
    all: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_ms: Option<u64>,
}

impl CallRequest<'_> {
    fn build(&self, duly: &Duly) -> Call {
        let mut call = duly.call(self.method, &self.args);
        if let Some(timeout) = self.timeout {
            call = call.timeout(timeout);
        }
        match &self.target {
            CallTarget::Any => call.any(),
            CallTarget::Node(node) => call.node(*node),
            CallTarget::Connection(connection) => call.connection(connection),
            CallTarget::All => call.all(),
        }
    }

    /// Records the call on a store, and returns its result.
    async fn record<T>(&self, duly: &Duly, result: duly::Result<T>) -> duly::Result<T> {
        match &self.audit {
            Some((action, target)) if action == audit::CALL_ACTION => audit::record_call(duly, target, result).await,
            Some((action, target)) => audit::record(duly, action, target, result).await,
            None => result,
        }
    }

    /// Sends the call without waiting for replies, and returns the number of nodes.
    pub(crate) async fn send_without_reply(&self, duly: &Duly) -> anyhow::Result<u64> {
        let sent = self.build(duly).send().await;
        self.record(duly, sent).await.map_err(|error| with_hint(error, self.method))
    }

    async fn send_to_server(&self, server: &ApiClient) -> anyhow::Result<Vec<ReplyView>> {
        let body = CallBody {
            args: self.args,
            node: if let CallTarget::Node(node) = self.target { Some(node) } else { None },
            connection: if let CallTarget::Connection(connection) = &self.target { Some(connection) } else { None },
            all: matches!(self.target, CallTarget::All),
            timeout_ms: self.timeout.map(to_millis),
        };
        let path = format!("/calls/{}", url_encode(self.method));
        let replies: CallReplies = server.request("POST", &path, Some(serde_json::to_string(&body)?)).await?;
        Ok(replies.replies)
    }
}

impl Backend {
    /// Returns all nodes.
    pub(crate) async fn nodes(&self) -> anyhow::Result<NodeList> {
        match self {
            Backend::Store(duly) => Ok(duly.nodes().list().await?.into()),
            Backend::Server(server) => server.get("/nodes").await,
        }
    }

    /// Calls a method on one node, and returns the value.
    pub(crate) async fn call_one(&self, request: &CallRequest<'_>) -> anyhow::Result<Box<RawValue>> {
        let server = match self {
            Backend::Store(duly) => {
                let reply = request.build(duly).reply().await;
                return request.record(duly, reply).await.map_err(|error| with_hint(error, request.method));
            }
            Backend::Server(server) => server,
        };
        let reply = request.send_to_server(server).await?.into_iter().next();
        match reply.map(|reply| (reply.value, reply.error, reply.code)) {
            Some((Some(value), ..)) => Ok(value),
            Some((None, error, code)) => {
                let code = match code.as_deref() {
                    Some("timeout") => exit::TIMED_OUT,
                    Some("not_found") => exit::NOT_FOUND,
                    _ => exit::FAILURE,
                };
                Err(CliError::new(code, error.unwrap_or_else(|| "the node replied without a value".to_owned())))
            }
            None => Err(with_hint(Error::not_found("node with the method", request.method), request.method)),
        }
    }

    /// Calls a method on all nodes; `on_reply` gets each reply, in the order of arrival.
    pub(crate) async fn call_all(
        &self,
        request: &CallRequest<'_>,
        mut on_reply: impl FnMut(ReplyView) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let duly = match self {
            Backend::Store(duly) => duly,
            Backend::Server(server) => {
                return request.send_to_server(server).await?.into_iter().try_for_each(on_reply);
            }
        };
        // This process is a node, too, while it waits for replies.
        let own_node = duly.node_id()?;
        let replies = request.build(duly).replies::<Box<RawValue>>().await;
        let replies = request.record(duly, replies).await;
        let mut replies = replies.map_err(|error| with_hint(error, request.method))?;
        while let Some(reply) = replies.next().await {
            if reply.node != Some(own_node) {
                on_reply(ReplyView::new(reply.node, reply.result))?;
            }
        }
        Ok(())
    }
}
