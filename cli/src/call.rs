//! `duly call`: asks nodes to do something, and shows what they answer.

use std::time::Duration;

use clap::Args;
use duly::{Duly, Error, MESSAGE_BYTES_MAX, NodeId};
use serde::Serialize;
use serde_json::json;
use serde_json::value::RawValue;

use crate::Setup;
use crate::escape::safe_json;
use crate::exit::{self, Fail};
use crate::output::{Format, Out};
use crate::{input, nodes, store};

/// The likeliest reason for silence.
const OTHER_KEY: &str = "nodes with another DULY_CLUSTER_KEY do not answer";

/// Call a method on other nodes, and print what they answer
///
/// `duly nodes ls` shows which methods each node answers. Every node answers duly's own: duly.ping, duly.stats, duly.jobs.
/// A call that was not answered in time may have been carried out.
#[derive(Debug, Args)]
pub(crate) struct Call {
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
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duly::store::duration)]
    timeout: Duration,

    /// Do not wait for an answer: nobody learns whether it was carried out
    #[arg(long)]
    forget: bool,
}

pub(crate) async fn run(verb: Call, setup: &Setup) -> anyhow::Result<()> {
    let args = verb.args()?;
    let duly = store::open(setup).await?;
    let out = &setup.out;
    let call = verb.call(&duly, &args).await?;
    let hinted = |error| hinted(error, &verb.method);
    if verb.forget {
        let sent = call.forget().await.map_err(hinted)?;
        return if out.is_json() {
            out.json(&json!({"sent": sent}))
        } else {
            out.say(&format!("sent to {sent} {}", if sent == 1 { "node" } else { "nodes" }));
            Ok(())
        };
    }
    if verb.all {
        return all(call, &duly, &verb.method, out).await;
    }
    let value: Box<RawValue> = call.reply().await.map_err(hinted)?;
    out.line(&safe_json(value.get(), out.format != Format::Json))
}

impl Call {
    /// The args as they were written: no number loses a digit.
    fn args(&self) -> anyhow::Result<Box<RawValue>> {
        let text = match self.args.as_deref() {
            None => "null".to_owned(),
            Some("-") => input::args_from_stdin(MESSAGE_BYTES_MAX)?,
            Some(json) => json.to_owned(),
        };
        serde_json::from_str(&text).map_err(|why| {
            let hint = r#"write a JSON value such as '{"to":"ada"}' or '"text"'"#;
            Fail::new(exit::USAGE, format!("args: not JSON: {why}; {hint}"))
        })
    }

    async fn call(&self, duly: &Duly, args: &RawValue) -> anyhow::Result<duly::Call> {
        let call = duly.call(&self.method, &args).timeout(self.timeout);
        Ok(match (&self.node, &self.connection) {
            (Some(node), _) => call.node(nodes::find(duly, node).await?),
            (None, Some(connection)) => call.connection(connection),
            (None, None) if self.all => call.all(),
            (None, None) => call.any(),
        })
    }
}

/// Says what to do where no answer came.
pub(crate) fn hinted(error: Error, method: &str) -> anyhow::Error {
    let why = match &error {
        Error::NotFound { what: "node", name } => format!("node {name} is not there, or does not listen"),
        Error::NotFound { what: "connection", name } => format!("no node holds the connection {name}"),
        Error::NotFound { what: "method", .. } => format!("{method} is not answered there"),
        Error::NotFound { .. } => format!("no node answers {method}"),
        Error::Timeout { .. } => return Fail::new(exit::TIMED_OUT, format!("{error}; {OTHER_KEY}")),
        _ => return error.into(),
    };
    Fail::new(exit::NOT_FOUND, format!("{why}; `duly nodes ls` shows who is there and what they answer"))
}

/// What became of a call to all nodes.
#[derive(Default)]
struct Sum {
    answered: usize,
    failed: usize,
    late: usize,
    /// Nodes that have no such method: nothing was expected of them.
    without: usize,
}

async fn all(call: duly::Call, duly: &Duly, method: &str, out: &Out) -> anyhow::Result<()> {
    // We are a node as well while we wait for answers.
    let ourselves = duly.node()?;
    let mut replies = call.replies::<Box<RawValue>>().await.map_err(|error| hinted(error, method))?;
    let mut sum = Sum::default();
    let mut shown = Vec::new();
    while let Some(reply) = replies.next().await {
        if reply.node == Some(ourselves) {
            continue;
        }
        match &reply.result {
            Ok(_) => sum.answered += 1,
            Err(Error::NotFound { what: "method", .. }) => {
                sum.without += 1;
                continue;
            }
            Err(Error::Timeout { .. }) => sum.late += 1,
            Err(_) => sum.failed += 1,
        }
        match out.format {
            Format::Ndjson => out.json(&Told::of(reply.node, &reply.result))?,
            _ => shown.push((reply.node, reply.result)),
        }
    }
    match out.format {
        Format::Ndjson => {}
        Format::Table | Format::Wide if shown.is_empty() => {}
        Format::Json => out.json(&shown.iter().map(|(node, result)| Told::of(*node, result)).collect::<Vec<_>>())?,
        Format::Table | Format::Wide => {
            let rows = shown.iter().map(|(node, result)| {
                let node = node.map_or("?".to_owned(), |node| node.to_string());
                [node, result.as_ref().map_or_else(reason, |value| value.get().to_owned())]
            });
            out.table(["NODE", "RESULT"], rows.collect())?;
        }
    }
    sum.judge(method, out)
}

/// What went wrong; which method on which node stands beside it.
fn reason(error: &Error) -> String {
    match error {
        Error::Remote { reason, .. } => format!("error: {reason}"),
        error => format!("error: {error}"),
    }
}

/// One node's answer for scripts: either of the two.
#[derive(Serialize)]
struct Told<'a> {
    node: Option<NodeId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Failed>,
}

#[derive(Serialize)]
struct Failed {
    code: &'static str,
    message: String,
}

impl<'a> Told<'a> {
    fn of(node: Option<NodeId>, result: &'a duly::Result<Box<RawValue>>) -> Self {
        let value = result.as_ref().ok().map(|value| &**value);
        let error = result.as_ref().err().map(|error| Failed { code: error.code(), message: error.to_string() });
        Told { node, value, error }
    }
}

impl Sum {
    fn judge(&self, method: &str, out: &Out) -> anyhow::Result<()> {
        let Sum { answered, failed, late, without } = *self;
        if answered + failed + late == 0 {
            return Err(hinted(Error::NotFound { what: "node that answers", name: method.to_owned() }, method));
        }
        if without > 0 {
            out.say(&format!("{without} more nodes do not answer {method}"));
        }
        let all = answered + failed + late;
        match (failed, late) {
            (0, 0) => Ok(()),
            (0, late) => {
                let why = format!("{late} of {all} nodes have not answered in time; {OTHER_KEY}");
                Err(Fail::new(exit::TIMED_OUT, why))
            }
            (failed, _) => Err(Fail::new(exit::FAILURE, format!("{method} has failed on {failed} of {all} nodes"))),
        }
    }
}
