//! `duly nodes`: lists nodes and their running jobs, and quiets or stops their workers.

use clap::{Args, Subcommand};
use duly::admin::{NodeRecord, RunningJob};
use duly::{Duly, NodeId};
use serde_json::{Value, json};

use crate::exit::{self, CliError};
use crate::output::{Format, Output};
use crate::{Setup, audit, call, input, store, time};

/// A shorter part of an id is more likely a typo.
const ID_PART_CHARS_MIN: usize = 4;
const JOBS_METHOD: &str = "duly.jobs";

/// List nodes and their running jobs; make nodes quiet or stop them
#[derive(Debug, Subcommand)]
pub(crate) enum NodesVerb {
    /// List nodes with the number of held jobs and the registered methods of each
    Ls,
    /// List the running jobs of a node with running time and progress
    Jobs {
        /// The id of the node, or at least 4 characters from its start or end
        node: String,
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

pub(crate) async fn run(verb: NodesVerb, setup: &Setup) -> anyhow::Result<()> {
    let duly = store::open_existing(setup).await?;
    match verb {
        NodesVerb::Ls => list_nodes(duly.nodes().list().await?, &setup.out),
        NodesVerb::Jobs { node } => list_jobs(&duly, &node, &setup.out).await,
        NodesVerb::Quiet { target, off } => {
            let request = WorkerRequest {
                method: "duly.quiet",
                args: json!({"on": !off}),
                effect: if off { "claims again" } else { "quiet" },
            };
            request.send(&duly, &target, setup).await
        }
        NodesVerb::Stop { target } => {
            let question = "Stop the workers of all nodes?";
            if target.all && !setup.yes && !input::confirm(question)? {
                return Err(CliError::new(exit::FAILURE, "nothing was stopped"));
            }
            WorkerRequest { method: "duly.stop", args: Value::Null, effect: "stopping" }
                .send(&duly, &target, setup)
                .await
        }
    }
}

fn list_nodes(nodes: Vec<NodeRecord>, out: &Output) -> anyhow::Result<()> {
    match out.format {
        Format::Json => out.print_json(&nodes),
        Format::Ndjson => nodes.iter().try_for_each(|node| out.print_json(node)),
        Format::Table | Format::Wide => {
            let rows = nodes.into_iter().map(|node| {
                let state = node.state();
                let (id, pid, held) = (node.id.to_string(), node.pid.to_string(), node.held.to_string());
                let (joined, queues, methods) =
                    (time::format_relative(node.joined), node.queues.join(" "), node.methods.join(" "));
                [id, state.to_owned(), node.host, pid, held, joined, queues, methods]
            });
            out.print_table(["NODE", "STATE", "HOST", "PID", "HOLDS", "JOINED", "QUEUES", "METHODS"], rows.collect())
        }
    }
}

/// Returns the node with this id, or the only live node with an id that begins or ends with `text`.
///
/// Ids begin with their creation time, so nodes that start together differ only at the end.
pub(crate) async fn find_node(duly: &Duly, text: &str) -> anyhow::Result<NodeId> {
    if let Ok(id) = text.parse() {
        return Ok(id);
    }
    let part = text.to_ascii_lowercase();
    if part.len() < ID_PART_CHARS_MIN || !part.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-') {
        let reason = format!("{text:?} is not an id of a node, nor {ID_PART_CHARS_MIN} or more characters of one");
        return Err(CliError::new(exit::USAGE, format!("node: {reason}; see `duly nodes ls`")));
    }
    let ids = duly.nodes().list().await?.into_iter().filter(|node| node.alive).map(|node| node.id);
    let matches = |id: &NodeId| {
        let id = id.to_string();
        id.starts_with(&part) || id.ends_with(&part)
    };
    let found: Vec<NodeId> = ids.filter(matches).collect();
    match found[..] {
        [id] => Ok(id),
        [] => {
            let reason = format!("no node that lives has an id with {part} at its beginning or end");
            Err(CliError::new(exit::NOT_FOUND, format!("{reason}; see `duly nodes ls`")))
        }
        [..] => {
            Err(CliError::new(exit::USAGE, format!("node: {part} matches {} nodes; give more characters", found.len())))
        }
    }
}

async fn list_jobs(duly: &Duly, node: &str, out: &Output) -> anyhow::Result<()> {
    let node = find_node(duly, node).await?;
    let reply = duly.call(JOBS_METHOD, &()).node(node).reply().await;
    let jobs: Vec<RunningJob> = reply.map_err(|error| call::with_hint(error, JOBS_METHOD))?;
    match out.format {
        Format::Json => out.print_json(&jobs),
        Format::Ndjson => jobs.iter().try_for_each(|job| out.print_json(job)),
        Format::Table | Format::Wide => {
            let rows = jobs.into_iter().map(|job| {
                let running = time::format_duration(std::time::Duration::from_millis(job.running_ms));
                let progress = job.progress.map(|done| format!("{:.0}%", done * 100.0)).unwrap_or_default();
                let (attempt, fence) = (job.attempt.to_string(), job.fence.to_string());
                [job.id.to_string(), job.queue, job.kind, attempt, fence, running, progress]
            });
            out.print_table(["ID", "QUEUE", "KIND", "ATTEMPT", "FENCE", "RUNNING", "PROGRESS"], rows.collect())
        }
    }
}

/// A request to the workers of one or all nodes.
struct WorkerRequest {
    method: &'static str,
    args: Value,
    /// The state of a worker after the request.
    effect: &'static str,
}

impl WorkerRequest {
    async fn send(&self, duly: &Duly, target: &NodeTarget, setup: &Setup) -> anyhow::Result<()> {
        let call = duly.call(self.method, &self.args);
        let action = self.method.replacen("duly.", "nodes.", 1);
        let Some(node) = &target.node else {
            audit::record(duly, &action, "all nodes", Ok(())).await?;
            return self.send_to_all(call.all(), setup).await;
        };
        let node = find_node(duly, node).await?;
        let reply = audit::record(duly, &action, node, call.node(node).reply().await).await;
        let workers: u64 = reply.map_err(|error| call::with_hint(error, self.method))?;
        if workers == 0 {
            return Err(CliError::new(
                exit::CONFLICT,
                format!("node {node} runs no worker; `duly nodes ls` lists the nodes"),
            ));
        }
        self.print_effect(node, workers, &setup.out)
    }

    async fn send_to_all(&self, call: duly::call::Call, setup: &Setup) -> anyhow::Result<()> {
        let mut replies = call.replies::<u64>().await?;
        let (mut reached, mut failed) = (0, None);
        while let Some(reply) = replies.next().await {
            match (reply.node, reply.result) {
                // A node without workers, such as this process.
                (_, Ok(0)) => {}
                (Some(node), Ok(workers)) => {
                    reached += 1;
                    self.print_effect(node, workers, &setup.out)?;
                }
                (None, Ok(_)) => reached += 1,
                (node, Err(error)) => {
                    let node = node.map_or("a node".to_owned(), |node| format!("node {node}"));
                    exit::print_error(&format!("{node}: {error}"));
                    failed = Some(error);
                }
            }
        }
        match failed {
            Some(error) => Err(error.into()),
            None if reached == 0 => {
                Err(CliError::new(exit::NOT_FOUND, "no node runs a worker; start one with `duly work`"))
            }
            None => Ok(()),
        }
    }

    fn print_effect(&self, node: NodeId, workers: u64, out: &Output) -> anyhow::Result<()> {
        if out.is_json() {
            return out.print_json(&json!({"node": node, "workers": workers, "did": self.effect}));
        }
        out.print_message(&format!("node {node}: {}", self.effect));
        Ok(())
    }
}
