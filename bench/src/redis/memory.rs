//! Memory: what a queued job takes in Redis, and what a worker takes at its most.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use duly::Duly;

use super::duly_side::{self, KEEP_NONE};
use super::peers::Peer;
use super::server::Server;
use super::{Goal, Lines, against, pairs};
use crate::child::Playing;
use crate::config::Setting;
use crate::peers::cargo;
use crate::report::{Line, Unit};

const GROUP: &str = "redis-memory";
const JOBS: usize = 100_000;
/// The peer of the goal.
const RIVAL: &str = "Sidekiq";
const GOAL: f64 = 1.3;
const GOAL_RSS_MB: f64 = 15.0;
/// Longest wait for the child to run all jobs.
const DRAIN_MAX: Duration = Duration::from_secs(60);

pub(crate) async fn run(setting: &Setting) -> Result<Vec<Line>> {
    let peers = Peer::all(setting)?;
    let server = Server::start().await?;
    let jobs = if setting.quick { JOBS / 10 } else { JOBS };
    let duly = duly_side::open(&server, KEEP_NONE).await?;
    let empty = server.memory_bytes().await?;
    duly_side::push_bulk(&duly, jobs).await?;
    let ours = (server.memory_bytes().await? - empty) / jobs as f64;
    let rss = worker_rss_mb(&server, &duly).await?;
    let (mut queued, mut workers) = (pairs(&peers), pairs(&peers));
    for (at, peer) in peers.iter().enumerate() {
        queued[at].record(ours, bytes_per_job(&server, peer, jobs).await?);
        server.flush().await?;
        peer.push(&server, peer.jobs)?;
        workers[at].record(rss, peer.drain(&server, peer.jobs)?.rss_mb);
    }
    let bytes = Lines { group: GROUP, name: "Redis memory per queued job", unit: Unit::Bytes };
    let mut lines = against(bytes, Goal::AtMost(GOAL), &peers, &queued, |peer| peer.name == RIVAL);
    lines.push(Line::alone(GROUP, "worker memory, most", rss, Unit::Megabytes).below(GOAL_RSS_MB));
    lines.extend(
        workers
            .iter()
            .zip(&peers)
            .map(|(pair, peer)| Line::pair(GROUP, "worker memory, most", Unit::Megabytes, peer.name, pair)),
    );
    Ok(lines)
}

pub(super) async fn bytes_per_job(server: &Server, peer: &Peer, jobs: usize) -> Result<f64> {
    server.flush().await?;
    let empty = server.memory_bytes().await?;
    peer.push(server, jobs)?;
    Ok((server.memory_bytes().await? - empty) / jobs as f64)
}

/// The most memory of a worker in a process of its own that has run all that waits.
async fn worker_rss_mb(server: &Server, duly: &Duly) -> Result<f64> {
    let child = Playing::spawn(Command::new(worker_alone()?).arg(duly_side::url(server, KEEP_NONE)), "joined")?;
    let drained = async {
        while duly.counts().await?.iter().any(|queue| queue.ready + queue.running > 0) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(DRAIN_MAX, drained).await.context("the child does not run all jobs")??;
    let rss = child.rss_mb()?;
    child.kill()?;
    Ok(rss)
}

/// A program that is a worker and nothing else, as the peers' are: in ours everything that is measured here would count too.
fn worker_alone() -> Result<PathBuf> {
    let beside = std::env::current_exe()?.with_file_name("worker");
    let target = beside.ancestors().nth(2).context("we are in a directory of cargo's")?;
    let built = cargo()
        .args(["build", "--release", "--locked", "--bin", "worker"])
        .env("CARGO_TARGET_DIR", target)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")))
        .status()?;
    ensure!(built.success(), "the worker could not be built");
    Ok(beside)
}
