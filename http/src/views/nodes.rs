//! Nodes, and their replies to calls.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::{rfc3339, unix_ms};
use crate::json;
use duly::NodeId;
use duly::admin::NodeRecord;

/// A node.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[non_exhaustive]
#[schema(as = Node)]
pub struct NodeView {
    /// The id.
    pub id: String,
    /// The host of the node; for a worker over HTTP, the host of the server.
    pub host: String,
    /// The name that a worker over HTTP has given itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The id of its process.
    pub pid: u32,
    /// The queues it works on.
    pub queues: Vec<String>,
    /// When it joined.
    pub joined: String,
    /// The same in milliseconds since 1970.
    pub joined_ms: i64,
    /// Whether the lease of the node is current.
    pub alive: bool,
    /// Whether the node claims no jobs: it is quiet or stopping.
    pub quiet: bool,
    /// The number of jobs that the node holds.
    pub held: u64,
    /// The number of jobs that the node can hold, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots: Option<u64>,
    /// The methods that the node can run.
    pub methods: Vec<String>,
}

impl From<NodeRecord> for NodeView {
    fn from(node: NodeRecord) -> Self {
        NodeView {
            id: node.id.to_string(),
            host: node.host,
            name: node.profile.name,
            pid: node.pid,
            queues: node.queues,
            joined: rfc3339(node.joined),
            joined_ms: unix_ms(node.joined),
            alive: node.alive,
            quiet: node.profile.quiet,
            held: node.held,
            slots: node.profile.slots,
            methods: node.methods,
        }
    }
}

impl NodeView {
    /// Returns its state in one word: `alive`, `quiet` (alive, but not claiming) or `dead`.
    #[must_use]
    pub fn state(&self) -> &'static str {
        match self.alive {
            true if self.quiet => "quiet",
            true => "alive",
            false => "dead",
        }
    }
}

/// All nodes.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[non_exhaustive]
pub struct NodeList {
    /// The nodes.
    pub nodes: Vec<NodeView>,
}

impl From<Vec<NodeRecord>> for NodeList {
    fn from(nodes: Vec<NodeRecord>) -> Self {
        NodeList { nodes: nodes.into_iter().map(NodeView::from).collect() }
    }
}

/// The reply of one node.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[non_exhaustive]
#[schema(as = Reply)]
pub struct ReplyView {
    /// The node that replied; absent if no node did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The returned value.
    #[serde(default, deserialize_with = "json::present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub value: Option<Box<RawValue>>,
    /// The error, if there is no value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The stable code of the error, such as `timeout`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
}

impl ReplyView {
    /// Returns the reply of a node, or the error instead of it.
    #[must_use]
    pub fn new(node: Option<NodeId>, result: duly::Result<Box<RawValue>>) -> Self {
        let node = node.map(|node| node.to_string());
        match result {
            Ok(value) => ReplyView { node, value: Some(value), error: None, code: None },
            Err(error) => {
                ReplyView { node, value: None, error: Some(error.to_string()), code: Some(error.code().to_owned()) }
            }
        }
    }
}

/// All replies, in the order of arrival.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[non_exhaustive]
pub struct CallReplies {
    /// The replies.
    pub replies: Vec<ReplyView>,
}

impl From<Vec<ReplyView>> for CallReplies {
    fn from(replies: Vec<ReplyView>) -> Self {
        CallReplies { replies }
    }
}
