//! `duly call`: calls a method on nodes and prints their replies.

use std::time::Duration;

use clap::Args;
use duly::bounds::MESSAGE_BYTES_MAX;
use duly::{Duly, Error, NodeId};
use serde::Serialize;
use serde_json::json;
use serde_json::value::RawValue;

use crate::Setup;
use crate::escape::escape_json;
use crate::exit::{self, CliError};
use crate::output::{Format, Output};
use crate::{audit, input, nodes, store};

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
    let duly = store::open_existing(setup).await?;
    let out = &setup.out;
    let (call, target) = verb.build_call(&duly, &args).await?;
    let audited = AuditedCall { duly: &duly, target: (!READ_ONLY.contains(&&*verb.method)).then_some(target) };
    let hinted = |error| with_hint(error, &verb.method);
    if verb.no_reply {
        let sent = audited.record(call.send().await).await.map_err(hinted)?;
        return if out.is_json() {
            out.print_json(&json!({"sent": sent}))
        } else {
            out.print_message(&format!("sent to {sent} {}", if sent == 1 { "node" } else { "nodes" }));
            Ok(())
        };
    }
    if verb.all {
        return call_all(call, audited, &verb.method, out).await;
    }
    let value: Box<RawValue> = audited.record(call.reply().await).await.map_err(hinted)?;
    out.print_line(&escape_json(value.get(), out.format != Format::Json))
}

/// A call for the audit log.
struct AuditedCall<'d> {
    duly: &'d Duly,
    /// The method and its nodes; `None` if the method changes nothing.
    target: Option<String>,
}

impl AuditedCall<'_> {
    /// Records the call, and returns its result.
    async fn record<T>(&self, result: duly::Result<T>) -> duly::Result<T> {
        match &self.target {
            Some(target) => audit::record_call(self.duly, target, result).await,
            None => result,
        }
    }
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

    /// Returns the call, and its method and nodes for the audit log.
    async fn build_call(&self, duly: &Duly, args: &RawValue) -> anyhow::Result<(duly::call::Call, String)> {
        let call = duly.call(&self.method, &args).timeout(self.timeout);
        let (call, nodes) = match (&self.node, &self.connection) {
            (Some(node), _) => {
                let node = nodes::find_node(duly, node).await?;
                (call.node(node), format!("node {node}"))
            }
            (None, Some(connection)) => (call.connection(connection), format!("connection {connection}")),
            (None, None) if self.all => (call.all(), "all nodes".to_owned()),
            (None, None) => (call.any(), "any node".to_owned()),
        };
        Ok((call, format!("{} on {nodes}", self.method)))
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

async fn call_all(call: duly::call::Call, audited: AuditedCall<'_>, method: &str, out: &Output) -> anyhow::Result<()> {
    // This process is a node, too, while it waits for replies.
    let own_node = audited.duly.node_id()?;
    let replies = audited.record(call.replies::<Box<RawValue>>().await).await;
    let mut replies = replies.map_err(|error| with_hint(error, method))?;
    let mut counts = ReplyCounts::default();
    let mut results = Vec::new();
    while let Some(reply) = replies.next().await {
        if reply.node == Some(own_node) {
            continue;
        }
        match &reply.result {
            Ok(_) => counts.replied += 1,
            Err(Error::NotFound { what: "method", .. }) => {
                counts.without_method += 1;
                continue;
            }
            Err(Error::Timeout { .. }) => counts.timed_out += 1,
            Err(_) => counts.failed += 1,
        }
        match out.format {
            Format::Ndjson => out.print_json(&ReplyOutput::new(reply.node, &reply.result))?,
            _ => results.push((reply.node, reply.result)),
        }
    }
    match out.format {
        Format::Ndjson => {}
        Format::Table | Format::Wide if results.is_empty() => {}
        Format::Json => {
            out.print_json(&results.iter().map(|(node, result)| ReplyOutput::new(*node, result)).collect::<Vec<_>>())?
        }
        Format::Table | Format::Wide => {
            let rows = results.iter().map(|(node, result)| {
                let node = node.map_or("?".to_owned(), |node| node.to_string());
                [node, result.as_ref().map_or_else(format_error, |value| value.get().to_owned())]
            });
            out.print_table(["NODE", "RESULT"], rows.collect())?;
        }
    }
    counts.check(method, out)
}

/// Formats an error without method and node, which the row already shows.
fn format_error(error: &Error) -> String {
    match error {
        Error::Remote { reason, .. } => format!("error: {reason}"),
        error => format!("error: {error}"),
    }
}

/// One node's reply for scripts: either a value or an error.
#[derive(Serialize)]
struct ReplyOutput<'a> {
    node: Option<NodeId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ReplyError>,
}

#[derive(Serialize)]
struct ReplyError {
    code: &'static str,
    message: String,
}

impl<'a> ReplyOutput<'a> {
    fn new(node: Option<NodeId>, result: &'a duly::Result<Box<RawValue>>) -> Self {
        let value = result.as_ref().ok().map(|value| &**value);
        let error = result.as_ref().err().map(|error| ReplyError { code: error.code(), message: error.to_string() });
        ReplyOutput { node, value, error }
    }
}

impl ReplyCounts {
    fn check(&self, method: &str, out: &Output) -> anyhow::Result<()> {
        let ReplyCounts { replied, failed, timed_out, without_method } = *self;
        let all = replied + failed + timed_out;
        if all == 0 {
            return Err(with_hint(Error::not_found("node with the method", method), method));
        }
        if without_method > 0 {
            out.print_message(&format!("{without_method} more nodes do not have the method {method}"));
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
