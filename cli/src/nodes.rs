//! `duly nodes`: lists nodes and their running jobs, and quiets or stops their workers.

use std::time::Duration;

use clap::{Args, Subcommand};
use duly::NodeId;
use duly::admin::RunningJob;
use duly_http::views::{NodeView, ReplyView};
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};

use crate::backend::{Backend, CallRequest, CallTarget};
use crate::escape::escape_text;
use crate::exit::{self, CliError};
use crate::output::{Column, ColumnArgs, List, Output};
use crate::{Setup, input, time};

/// A shorter part of an id is more likely a typo.
const ID_PART_CHARS_MIN: usize = 4;
const JOBS_METHOD: &str = "duly.jobs";

/// List nodes and their running jobs; make nodes quiet or stop them
#[derive(Debug, Subcommand)]
pub(crate) enum NodesVerb {
    /// List nodes with the number of held jobs and the registered methods of each
    Ls {
        #[command(flatten)]
        columns: ColumnArgs,
    },
    /// List the running jobs of a node with running time and progress
    Jobs {
        /// The id of the node, or at least 4 characters from its start or end
        node: String,
        #[command(flatten)]
        columns: ColumnArgs,
    },
    /// Stop the workers of a node from claiming; running jobs continue
    Quiet {
        #[command(flatten)]
        target: NodeTarget,
        /// Claim again
        #[arg(long)]
        off: bool,
    },
    /// Stop the workers of a node as SIGTERM does: they claim no more, and running jobs have the grace time to end
    Stop {
        #[command(flatten)]
        target: NodeTarget,
    },
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct NodeTarget {
    /// The id of the node, or at least 4 characters from its start or end
    node: Option<String>,
    /// All nodes
    #[arg(long)]
    all: bool,
}

/// The columns of `ls`.
const COLUMNS: &[Column<NodeView>] = &[
    Column::new("NODE", |node| node.id.clone()),
    Column::new("STATE", |node| node.state().to_owned()),
    Column::new("HOST", |node| node.host.clone()),
    Column::new("PID", |node| node.pid.to_string()),
    Column::new("HOLDS", |node| node.held.to_string()),
    Column::new("JOINED", |node| time::format_relative(time::from_millis(node.joined_ms))),
    Column::new("QUEUES", |node| node.queues.join(" ")),
    Column::new("METHODS", |node| node.methods.join(" ")),
];

/// The columns of `jobs`.
const JOB_COLUMNS: &[Column<RunningJob>] = &[
    Column::new("ID", |job| job.id.to_string()),
    Column::new("QUEUE", |job| job.queue.clone()),
    Column::new("KIND", |job| job.kind.clone()),
    Column::new("ATTEMPT", |job| job.attempt.to_string()),
    Column::new("FENCE", |job| job.fence.to_string()),
    Column::new("RUNNING", |job| time::format_duration(Duration::from_millis(job.running_ms))),
    Column::new("PROGRESS", |job| job.progress.map(|done| format!("{:.0}%", done * 100.0)).unwrap_or_default()),
];

pub(crate) async fn run(verb: NodesVerb, setup: &Setup) -> anyhow::Result<()> {
    let backend = Backend::open_existing(setup).await?;
    match verb {
        NodesVerb::Ls { columns } => {
            let list = backend.nodes().await?;
            let empty = "no nodes: `duly work` starts one";
            setup.out.print_list(&list, &List { items: &list.nodes, columns: COLUMNS, chosen: &columns, empty })
        }
        NodesVerb::Jobs { node, columns } => list_jobs(&backend, &node, &columns, &setup.out).await,
        NodesVerb::Quiet { target, off } => {
            let (args, effect) = (json!({"on": !off}), if off { "claims again" } else { "quiet" });
            WorkerRequest { method: "duly.quiet", args: to_raw_value(&args)?, effect }
                .send(&backend, &target, setup)
                .await
        }
        NodesVerb::Stop { target } => {
            let question = "Stop the workers of all nodes?";
            if target.all && !setup.yes && !input::confirm(question)? {
                return Err(CliError::new(exit::FAILURE, "nothing was stopped"));
            }
            WorkerRequest { method: "duly.stop", args: RawValue::NULL.to_owned(), effect: "stopping" }
                .send(&backend, &target, setup)
                .await
        }
    }
}

/// Returns the node with this id, or the only live node with an id that begins or ends with `text`.
///
/// Ids begin with their creation time, so nodes that start together differ only at the end.
pub(crate) async fn find_node(backend: &Backend, text: &str) -> anyhow::Result<NodeId> {
    if let Ok(id) = text.parse() {
        return Ok(id);
    }
    let part = text.to_ascii_lowercase();
    if part.len() < ID_PART_CHARS_MIN || !part.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-') {
        let reason = format!("{text:?} is not an id of a node, nor {ID_PART_CHARS_MIN} or more characters of one");
        return Err(CliError::new(exit::USAGE, format!("node: {reason}; see `duly nodes ls`")));
    }
    let nodes = backend.nodes().await?.nodes;
    let matches = |node: &&NodeView| node.alive && (node.id.starts_with(&part) || node.id.ends_with(&part));
    let found: Vec<&NodeView> = nodes.iter().filter(matches).collect();
    match found[..] {
        [node] => Ok(node.id.parse()?),
        [] => {
            let reason = format!("no node that lives has an id with {part} at its beginning or end");
            Err(CliError::new(exit::NOT_FOUND, format!("{reason}; see `duly nodes ls`")))
        }
        [..] => {
            Err(CliError::new(exit::USAGE, format!("node: {part} matches {} nodes; give more characters", found.len())))
        }
    }
}

async fn list_jobs(backend: &Backend, node: &str, columns: &ColumnArgs, out: &Output) -> anyhow::Result<()> {
    let target = CallTarget::Node(find_node(backend, node).await?);
    let request = CallRequest { method: JOBS_METHOD, args: RawValue::NULL, target, timeout: None, audit: None };
    let reply = backend.call_one(&request).await?;
    let jobs: Vec<RunningJob> = serde_json::from_str(reply.get())?;
    let empty = "no jobs run on this node";
    out.print_list(&jobs, &List { items: &jobs, columns: JOB_COLUMNS, chosen: columns, empty })
}

/// A request to the workers of one or all nodes.
struct WorkerRequest {
    method: &'static str,
    args: Box<RawValue>,
    /// The state of a worker after the request.
    effect: &'static str,
}

impl WorkerRequest {
    async fn send(&self, backend: &Backend, target: &NodeTarget, setup: &Setup) -> anyhow::Result<()> {
        let action = self.method.replacen("duly.", "nodes.", 1);
        let request = |target: CallTarget, name: String| CallRequest {
            method: self.method,
            args: &self.args,
            target,
            timeout: None,
            audit: Some((action.clone(), name)),
        };
        let Some(node) = &target.node else {
            return self.send_to_all(backend, &request(CallTarget::All, "all nodes".to_owned()), setup).await;
        };
        let node = find_node(backend, node).await?;
        let reply = backend.call_one(&request(CallTarget::Node(node), node.to_string())).await?;
        let workers: u64 = serde_json::from_str(reply.get())?;
        if workers == 0 {
            return Err(CliError::new(
                exit::CONFLICT,
                format!("node {node} runs no worker; `duly nodes ls` lists the nodes"),
            ));
        }
        self.print_effect(&node.to_string(), workers, &setup.out)
    }

    async fn send_to_all(&self, backend: &Backend, request: &CallRequest<'_>, setup: &Setup) -> anyhow::Result<()> {
        let (mut reached, mut failed) = (0, None);
        let on_reply = |reply: ReplyView| {
            let node = reply.node.map(|node| escape_text(&node).into_owned());
            let workers = reply.value.as_ref().and_then(|value| serde_json::from_str::<u64>(value.get()).ok());
            match (node, workers) {
                // A node without workers, such as that of a server.
                (_, Some(0)) => {}
                (Some(node), Some(workers)) => {
                    reached += 1;
                    self.print_effect(&node, workers, &setup.out)?;
                }
                (None, Some(_)) => reached += 1,
                (node, None) => {
                    let node = node.map_or("a node".to_owned(), |node| format!("node {node}"));
                    let error = reply.error.unwrap_or_else(|| "its reply has no number".to_owned());
                    exit::print_error(&format!("{node}: {error}"));
                    failed = Some((reply.code, error));
                }
            }
            Ok(())
        };
        backend.call_all(request, on_reply).await?;
        match failed {
            Some((code, error)) if code.as_deref() == Some("timeout") => Err(CliError::new(exit::TIMED_OUT, error)),
            Some((_, error)) => Err(CliError::new(exit::FAILURE, error)),
            None if reached == 0 => {
                Err(CliError::new(exit::NOT_FOUND, "no node runs a worker; start one with `duly work`"))
            }
            None => Ok(()),
        }
    }

    fn print_effect(&self, node: &str, workers: u64, out: &Output) -> anyhow::Result<()> {
        if out.is_json() {
            return out.print_json(&json!({"node": node, "workers": workers, "did": self.effect}));
        }
        out.print_message(&format!("node {node}: {}", self.effect));
        Ok(())
    }
}
