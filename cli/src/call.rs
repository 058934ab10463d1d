//! `duly call`: calls a method on nodes and prints their replies.

use std::time::Duration;

use clap::Args;
use duly::Error;
use duly::bounds::MESSAGE_BYTES_MAX;
use duly_http::views::{CallReplies, ReplyView};
use serde_json::json;
use serde_json::value::RawValue;

use crate::Setup;
use crate::backend::{Backend, CallRequest, CallTarget};
use crate::escape::escape_json;
use crate::exit::{self, CliError};
use crate::output::{Format, Output, pluralize};
use crate::{audit, input, nodes};

/// Built-in methods that change nothing: their calls are not recorded.
const READ_ONLY: [&str; 3] = ["duly.ping", "duly.stats", "duly.jobs"];

/// The most likely reason for missing replies.
const OTHER_KEY_HINT: &str = "nodes with another DULY_CLUSTER_KEY do not reply";

/// Call a method on other nodes, and print the replies
///
/// `duly nodes ls` lists the methods of each node. Every node has duly.ping, duly.stats and duly.jobs.
/// A call without a reply in time may have been executed.
#[derive(Debug, Args)]
pub(crate) struct CallArgs {
    /// The method
    method: String,

    /// The args as JSON; `-` reads them from stdin [default: null]
    args: Option<String>,

    /// The id of the node, or at least 4 characters from its start or end
    #[arg(long, value_name = "ID", group = "target")]
    node: Option<String>,

    /// Any one node that has the method: the default
    #[arg(long, group = "target")]
    any: bool,

    /// All nodes
    #[arg(long, group = "target")]
    all: bool,

    /// The node that holds this connection
    #[arg(long, value_name = "ID", group = "target")]
    connection: Option<String>,

    /// The longest wait for replies (then exit code 124)
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duly::admin::parse_duration)]
    timeout: Duration,

    /// Do not wait for a reply; the outcome stays unknown
    #[arg(long)]
    no_reply: bool,
}

pub(crate) async fn run(verb: CallArgs, setup: &Setup) -> anyhow::Result<()> {
    let args = verb.read_args()?;
    let backend = Backend::open_existing(setup).await?;
    let out = &setup.out;
    let (target, nodes) = verb.find_target(&backend).await?;
    let is_audited = !READ_ONLY.contains(&&*verb.method);
    let request = CallRequest {
        method: &verb.method,
        args: &args,
        target,
        timeout: Some(verb.timeout),
        audit: is_audited.then(|| (audit::CALL_ACTION.to_owned(), format!("{} on {nodes}", verb.method))),
    };
    if verb.no_reply {
        let sent = request.send_without_reply(backend.require_store("call --no-reply")?).await?;
        return if out.is_json() {
            out.print_json(&json!({"sent": sent}))
        } else {
            out.print_message(&format!("sent to {}", pluralize(sent, "node", "nodes")));
            Ok(())
        };
    }
    if verb.all {
        return call_all(&backend, &request, out).await;
    }
    let value = backend.call_one(&request).await?;
    out.print_line(&escape_json(value.get(), out.format != Format::Json))
}

impl CallArgs {
    /// Reads the args unparsed, so that numbers keep all digits.
    fn read_args(&self) -> anyhow::Result<Box<RawValue>> {
        let text = match self.args.as_deref() {
            None => "null".to_owned(),
            Some("-") => input::read_args_from_stdin(MESSAGE_BYTES_MAX)?,
            Some(json) => json.to_owned(),
        };
        serde_json::from_str(&text).map_err(|error| {
            let hint = r#"write a JSON value such as '{"to":"ada"}' or '"text"'"#;
            CliError::new(exit::USAGE, format!("args: not JSON: {error}; {hint}"))
        })
    }

    /// Returns the nodes of the call, and their description.
    async fn find_target(&self, backend: &Backend) -> anyhow::Result<(CallTarget, String)> {
        Ok(match (&self.node, &self.connection) {
            (Some(node), _) => {
                let node = nodes::find_node(backend, node).await?;
                (CallTarget::Node(node), format!("node {node}"))
            }
            (None, Some(connection)) => {
                (CallTarget::Connection(connection.clone()), format!("connection {connection}"))
            }
            (None, None) if self.all => (CallTarget::All, "all nodes".to_owned()),
            (None, None) => (CallTarget::Any, "any node".to_owned()),
        })
    }
}

/// Adds advice to the error of a call.
pub(crate) fn with_hint(error: Error, method: &str) -> anyhow::Error {
    let reason = match &error {
        Error::NotFound { what: "node", name, .. } => format!("node {name} does not exist, or does not respond"),
        Error::NotFound { what: "connection", name, .. } => format!("no node holds the connection {name}"),
        Error::NotFound { what: "method", .. } => format!("the node does not have the method {method}"),
        Error::NotFound { .. } => format!("no node has the method {method}"),
        Error::Timeout { .. } => return CliError::new(exit::TIMED_OUT, format!("{error}; {OTHER_KEY_HINT}")),
        _ => return error.into(),
    };
    CliError::new(exit::NOT_FOUND, format!("{reason}; `duly nodes ls` lists the nodes and their methods"))
}

/// The replies to a call to all nodes, counted.
#[derive(Default)]
struct ReplyCounts {
    replied: usize,
    failed: usize,
    timed_out: usize,
    /// Nodes that do not have the method; not a failure.
    without_method: usize,
}

async fn call_all(backend: &Backend, request: &CallRequest<'_>, out: &Output) -> anyhow::Result<()> {
    let mut counts = ReplyCounts::default();
    let mut replies = Vec::new();
    let on_reply = |reply: ReplyView| {
        match (&reply.value, reply.code.as_deref()) {
            (Some(_), _) => counts.replied += 1,
            (None, Some("not_found")) => {
                counts.without_method += 1;
                return Ok(());
            }
            (None, Some("timeout")) => counts.timed_out += 1,
            (None, _) => counts.failed += 1,
        }
        if out.format == Format::Ndjson {
            out.print_json(&reply)?;
        } else {
            replies.push(reply);
        }
        Ok(())
    };
    backend.call_all(request, on_reply).await?;
    match out.format {
        Format::Json => out.print_json(&CallReplies::from(replies))?,
        Format::Ndjson => {}
        _ if replies.is_empty() => {}
        _ => {
            let rows = replies.into_iter().map(|reply| {
                let result = match (reply.value, reply.error) {
                    (Some(value), _) => value.get().to_owned(),
                    (None, error) => format!("error: {}", error.unwrap_or_default()),
                };
                [reply.node.unwrap_or_else(|| "?".to_owned()), result]
            });
            out.print_table(["NODE", "RESULT"], rows.collect())?;
        }
    }
    counts.check(request.method, out)
}

impl ReplyCounts {
    fn check(&self, method: &str, out: &Output) -> anyhow::Result<()> {
        let ReplyCounts { replied, failed, timed_out, without_method } = *self;
        let all = replied + failed + timed_out;
        if all == 0 {
            return Err(with_hint(Error::not_found("node with the method", method), method));
        }
        if without_method > 0 {
            let nodes = pluralize(without_method as u64, "more node does", "more nodes do");
            out.print_message(&format!("{nodes} not have the method {method}"));
        }
        match (failed, timed_out) {
            (0, 0) => Ok(()),
            (0, _) => {
                let reason = format!("{timed_out} of {all} nodes did not reply in time; {OTHER_KEY_HINT}");
                Err(CliError::new(exit::TIMED_OUT, reason))
            }
            (failed, _) => Err(CliError::new(exit::FAILURE, format!("{method} has failed on {failed} of {all} nodes"))),
        }
    }
}
