//! `duly call`: asks nodes to do something, and shows what they answer.

use std::time::Duration;

use clap::Args;
use duly::{Duly, Error, MESSAGE_BYTES_MAX, NodeId};
use serde::Serialize;
use serde_json::json;
use serde_json::value::RawValue;

use crate::Setup;
use crate::escape::escape_json;
use crate::exit::{self, CliError};
use crate::output::{Format, Output};
use crate::{input, nodes, store};

/// The likeliest reason for silence.
const OTHER_KEY_HINT: &str = "nodes with another DULY_CLUSTER_KEY do not answer";

/// Call a method on other nodes, and print what they answer
///
/// `duly nodes ls` shows which methods each node answers. Every node answers duly's own: duly.ping, duly.stats, duly.jobs.
/// A call that was not answered in time may have been carried out.
#[derive(Debug, Args)]
pub(crate) struct CallArgs {
    /// The method
    method: String,

    /// Its args as JSON; `-` reads them from stdin [default: null]
    args: Option<String>,

    /// This node: its id, or at least 4 characters that it begins or ends with
    #[arg(long, value_name = "ID", group = "target")]
    node: Option<String>,

    /// Any one node that answers the method: the default
    #[arg(long, group = "target")]
    any: bool,

    /// All nodes
    #[arg(long, group = "target")]
    all: bool,

    /// The node that holds this connection
    #[arg(long, value_name = "ID", group = "target")]
    connection: Option<String>,

    /// Wait at most so long for answers (then exit code 124)
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duly::store::parse_duration)]
    timeout: Duration,

    /// Do not wait for an answer: nobody learns whether it was carried out
    #[arg(long)]
    no_reply: bool,
}

pub(crate) async fn run(verb: CallArgs, setup: &Setup) -> anyhow::Result<()> {
    let args = verb.read_args()?;
    let duly = store::open_existing(setup).await?;
    let out = &setup.out;
    let call = verb.build_call(&duly, &args).await?;
    let hinted = |error| with_hint(error, &verb.method);
    if verb.no_reply {
        let sent = call.send().await.map_err(hinted)?;
        return if out.is_json() {
            out.print_json(&json!({"sent": sent}))
        } else {
            out.print_message(&format!("sent to {sent} {}", if sent == 1 { "node" } else { "nodes" }));
            Ok(())
        };
    }
    if verb.all {
        return call_all(call, &duly, &verb.method, out).await;
    }
    let value: Box<RawValue> = call.reply().await.map_err(hinted)?;
    out.print_line(&escape_json(value.get(), out.format != Format::Json))
}

impl CallArgs {
    /// The args as they were written: no number loses a digit.
    fn read_args(&self) -> anyhow::Result<Box<RawValue>> {
        let text = match self.args.as_deref() {
            None => "null".to_owned(),
            Some("-") => input::read_args_from_stdin(MESSAGE_BYTES_MAX)?,
            Some(json) => json.to_owned(),
        };
        serde_json::from_str(&text).map_err(|why| {
            let hint = r#"write a JSON value such as '{"to":"ada"}' or '"text"'"#;
            CliError::new(exit::USAGE, format!("args: not JSON: {why}; {hint}"))
        })
    }

    async fn build_call(&self, duly: &Duly, args: &RawValue) -> anyhow::Result<duly::Call> {
        let call = duly.call(&self.method, &args).timeout(self.timeout);
        Ok(match (&self.node, &self.connection) {
            (Some(node), _) => call.node(nodes::find_node(duly, node).await?),
            (None, Some(connection)) => call.connection(connection),
            (None, None) if self.all => call.all(),
            (None, None) => call.any(),
        })
    }
}

/// Says what to do where no answer came.
pub(crate) fn with_hint(error: Error, method: &str) -> anyhow::Error {
    let why = match &error {
        Error::NotFound { what: "node", name } => format!("node {name} is not there, or does not listen"),
        Error::NotFound { what: "connection", name } => format!("no node holds the connection {name}"),
        Error::NotFound { what: "method", .. } => format!("{method} is not answered there"),
        Error::NotFound { .. } => format!("no node answers {method}"),
        Error::Timeout { .. } => return CliError::new(exit::TIMED_OUT, format!("{error}; {OTHER_KEY_HINT}")),
        _ => return error.into(),
    };
    CliError::new(exit::NOT_FOUND, format!("{why}; `duly nodes ls` shows who is there and what they answer"))
}

/// What became of a call to all nodes.
#[derive(Default)]
struct ReplyCounts {
    replied: usize,
    failed: usize,
    timed_out: usize,
    /// Nodes that have no such method: nothing was expected of them.
    without_method: usize,
}

async fn call_all(call: duly::Call, duly: &Duly, method: &str, out: &Output) -> anyhow::Result<()> {
    // We are a node as well while we wait for answers.
    let ourselves = duly.node_id()?;
    let mut replies = call.replies::<Box<RawValue>>().await.map_err(|error| with_hint(error, method))?;
    let mut sum = ReplyCounts::default();
    let mut shown = Vec::new();
    while let Some(reply) = replies.next().await {
        if reply.node == Some(ourselves) {
            continue;
        }
        match &reply.result {
            Ok(_) => sum.replied += 1,
            Err(Error::NotFound { what: "method", .. }) => {
                sum.without_method += 1;
                continue;
            }
            Err(Error::Timeout { .. }) => sum.timed_out += 1,
            Err(_) => sum.failed += 1,
        }
        match out.format {
            Format::Ndjson => out.print_json(&ReplyOutput::new(reply.node, &reply.result))?,
            _ => shown.push((reply.node, reply.result)),
        }
    }
    match out.format {
        Format::Ndjson => {}
        Format::Table | Format::Wide if shown.is_empty() => {}
        Format::Json => {
            out.print_json(&shown.iter().map(|(node, result)| ReplyOutput::new(*node, result)).collect::<Vec<_>>())?
        }
        Format::Table | Format::Wide => {
            let rows = shown.iter().map(|(node, result)| {
                let node = node.map_or("?".to_owned(), |node| node.to_string());
                [node, result.as_ref().map_or_else(format_error, |value| value.get().to_owned())]
            });
            out.print_table(["NODE", "RESULT"], rows.collect())?;
        }
    }
    sum.check(method, out)
}

/// What went wrong; which method on which node stands beside it.
fn format_error(error: &Error) -> String {
    match error {
        Error::Remote { reason, .. } => format!("error: {reason}"),
        error => format!("error: {error}"),
    }
}

/// One node's answer for scripts: either of the two.
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
        let ReplyCounts { replied: answered, failed, timed_out: late, without_method: without } = *self;
        if answered + failed + late == 0 {
            return Err(with_hint(Error::NotFound { what: "node that answers", name: method.to_owned() }, method));
        }
        if without > 0 {
            out.print_message(&format!("{without} more nodes do not answer {method}"));
        }
        let all = answered + failed + late;
        match (failed, late) {
            (0, 0) => Ok(()),
            (0, late) => {
                let why = format!("{late} of {all} nodes have not answered in time; {OTHER_KEY_HINT}");
                Err(CliError::new(exit::TIMED_OUT, why))
            }
            (failed, _) => Err(CliError::new(exit::FAILURE, format!("{method} has failed on {failed} of {all} nodes"))),
        }
    }
}
