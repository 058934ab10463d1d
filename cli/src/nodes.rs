//! `duly nodes`: who takes part.

use clap::Subcommand;

use crate::output::Format;
use crate::{Setup, store, time};

/// See which nodes take part
#[derive(Debug, Subcommand)]
pub(crate) enum Nodes {
    /// List nodes and how many jobs each holds
    Ls,
}

pub(crate) async fn run(verb: Nodes, setup: &Setup) -> anyhow::Result<()> {
    let Nodes::Ls = verb;
    let nodes = store::open(setup).await?.nodes().await?;
    let out = &setup.out;
    match out.format {
        Format::Json => out.json(&nodes),
        Format::Ndjson => nodes.iter().try_for_each(|node| out.json(node)),
        Format::Table | Format::Wide => {
            let rows = nodes.into_iter().map(|node| {
                let alive = if node.alive { "alive" } else { "dead" };
                let (id, pid, held) = (node.id.to_string(), node.pid.to_string(), node.held.to_string());
                [id, alive.to_owned(), node.host, pid, held, time::distance(node.joined), node.queues.join(" ")]
            });
            out.table(["NODE", "STATE", "HOST", "PID", "HOLDS", "JOINED", "QUEUES"], rows.collect())
        }
    }
}
