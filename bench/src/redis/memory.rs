//! Memory: the bytes of a queued job in Redis, and the peak memory of a worker.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use duly::Duly;

use super::duly_side::{self, KEEP_NONE};
use super::peers::RedisPeer;
use super::server::RedisServer;
use super::{LineSpec, RatioGoal, compare_with_peers, new_comparisons};
use crate::child::BenchProcess;
use crate::config::BenchConfig;
use crate::peers::cargo_command;
use crate::report::{ReportLine, Unit};

const GROUP: &str = "redis-memory";
const QUEUED_JOBS: usize = 100_000;
/// The peer of the goal.
const GOAL_PEER: &str = "Sidekiq";
const GOAL_RATIO: f64 = 1.3;
const GOAL_RSS_MB: f64 = 15.0;
/// The longest wait for the child to run all jobs.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) async fn run(config: &BenchConfig) -> Result<Vec<ReportLine>> {
    let peers = RedisPeer::prepare_all(config)?;
    let server = RedisServer::start().await?;
    let jobs = if config.is_quick { QUEUED_JOBS / 10 } else { QUEUED_JOBS };
    let duly = duly_side::open(&server, KEEP_NONE).await?;
    let empty = server.memory_bytes().await?;
    duly_side::measure_bulk_pushes(&duly, jobs).await?;
    let ours = (server.memory_bytes().await? - empty) / jobs as f64;
    let rss = measure_worker_rss_mb(&server, &duly).await?;
    let (mut queued, mut workers) = (new_comparisons(&peers), new_comparisons(&peers));
    for (index, peer) in peers.iter().enumerate() {
        queued[index].record(ours, measure_bytes_per_job(&server, peer, jobs).await?);
        server.flush().await?;
        peer.push(&server, peer.drain_jobs)?;
        workers[index].record(rss, peer.drain(&server, peer.drain_jobs)?.rss_mb);
    }
    let bytes = LineSpec { group: GROUP, name: "Redis memory per queued job", unit: Unit::Bytes };
    let mut lines =
        compare_with_peers(bytes, RatioGoal::AtMost(GOAL_RATIO), &peers, &queued, |peer| peer.name == GOAL_PEER);
    lines.push(ReportLine::single(GROUP, "worker memory, most", rss, Unit::Megabytes).value_below(GOAL_RSS_MB));
    lines.extend(
        workers
            .iter()
            .zip(&peers)
            .map(|(pair, peer)| ReportLine::comparison(GROUP, "worker memory, most", Unit::Megabytes, peer.name, pair)),
    );
    Ok(lines)
}

pub(super) async fn measure_bytes_per_job(server: &RedisServer, peer: &RedisPeer, jobs: usize) -> Result<f64> {
    server.flush().await?;
    let empty = server.memory_bytes().await?;
    peer.push(server, jobs)?;
    Ok((server.memory_bytes().await? - empty) / jobs as f64)
}

/// Returns the peak memory of a worker in another process that has run all waiting jobs.
async fn measure_worker_rss_mb(server: &RedisServer, duly: &Duly) -> Result<f64> {
    let child =
        BenchProcess::spawn(Command::new(build_worker_program()?).arg(duly_side::url(server, KEEP_NONE)), "joined")?;
    let drained = async {
        while duly.queues().counts().await?.iter().any(|queue| queue.ready + queue.running > 0) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(DRAIN_TIMEOUT, drained).await.context("the child does not run all jobs")??;
    let rss = child.peak_rss_mb()?;
    child.kill()?;
    Ok(rss)
}

/// Builds a program with only a worker, like those of the peers: this program would include all measurements.
fn build_worker_program() -> Result<PathBuf> {
    let program = std::env::current_exe()?.with_file_name("worker");
    let target = program.ancestors().nth(2).context("this program is not in a target directory of cargo")?;
    let built = cargo_command()
        .args(["build", "--release", "--locked", "--bin", "worker"])
        .env("CARGO_TARGET_DIR", target)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")))
        .status()?;
    ensure!(built.success(), "the worker could not be built");
    Ok(program)
}
