//! What a life costs the server: CPU time of Redis for push, claim and settle, per job.
//!
//! On a server that is at work, as the peers' own processes keep it: several workers, each with a task that pushes as much as it
//! settles, while jobs wait. A server that rests between two requests pays for each of them several times as much to be woken,
//! whatever is asked; what that makes of a lone worker has a line of its own, with the same goal.

use anyhow::Result;
use futures_util::future::try_join_all;

use super::baseline::RedisBaseline;
use super::duly_side::{self, DEFAULTS, KEEP_NONE};
use super::peers::RedisPeer;
use super::server::RedisServer;
use super::{new_comparisons, print_round, round_count};
use crate::config::{BenchConfig, push_jobs};
use crate::growth::{Backlog, FEW_JOBS, run_steady};
use crate::report::{ReportLine, Unit};
use crate::stats::Comparison;

const GROUP: &str = "redis-life";
/// The peer of the goal.
const GOAL_PEER: &str = "BullMQ";
/// Batch sizes, each with the most of the rival's cost that is good enough.
const BATCHES: [(usize, f64); 2] = [(10, 0.2), (100, 0.1)];
/// Jobs of a peer's round, if it can have so many waiting.
const PEER_JOBS: usize = 30_000;
/// Jobs of the floor's round, over all connections.
const BASELINE_JOBS: usize = 64_000;
/// Workers at the same time, and connections of the floor.
const WORKERS: usize = 8;

pub(crate) async fn run(setting: &BenchConfig) -> Result<Vec<ReportLine>> {
    let peers = RedisPeer::prepare_all(setting)?;
    let server = RedisServer::start().await?;
    let mut batches: Vec<BatchComparison> =
        BATCHES.map(|(batch, goal)| BatchComparison::new(batch, goal, &peers)).into();
    for round in 0..round_count(setting) {
        // A peer has one figure: its cheapest way, whatever the batch is called.
        let mut theirs = Vec::new();
        for peer in &peers {
            theirs.push(measure_peer_micros(&server, peer).await?);
        }
        for batch in &mut batches {
            batch.run_round(&server, setting, &theirs).await?;
        }
        print_round(GROUP, setting, round);
    }
    Ok(batches.iter().flat_map(|batch| batch.report_lines(&peers)).collect())
}

/// All rounds of one batch size.
struct BatchComparison {
    size: usize,
    goal: f64,
    baseline: Comparison,
    keep_none: Vec<Comparison>,
    defaults: Vec<Comparison>,
    /// One worker, and one task that pushes.
    single_worker: Vec<Comparison>,
}

impl BatchComparison {
    fn new(size: usize, goal: f64, peers: &[RedisPeer]) -> Self {
        BatchComparison {
            size,
            goal,
            baseline: Comparison::default(),
            keep_none: new_comparisons(peers),
            defaults: new_comparisons(peers),
            single_worker: new_comparisons(peers),
        }
    }

    async fn run_round(&mut self, server: &RedisServer, setting: &BenchConfig, theirs: &[f64]) -> Result<()> {
        let lean = measure_duly_micros(server, setting, KEEP_NONE, self.size).await?;
        self.baseline.record(lean, measure_baseline_micros(server, self.size).await?);
        let kept = measure_duly_micros(server, setting, DEFAULTS, self.size).await?;
        let alone = measure_single_worker_micros(server, setting, self.size).await?;
        for (at, theirs) in theirs.iter().enumerate() {
            self.keep_none[at].record(lean, *theirs);
            self.defaults[at].record(kept, *theirs);
            self.single_worker[at].record(alone, *theirs);
        }
        Ok(())
    }

    fn report_lines(&self, peers: &[RedisPeer]) -> Vec<ReportLine> {
        let name = |suffix: &str| format!("Redis CPU per life, batch {}{suffix}", self.size);
        let mut lines = vec![ReportLine::comparison(GROUP, name(""), Unit::Micros, "bare LPUSH, RPOP", &self.baseline)];
        for (at, peer) in peers.iter().enumerate() {
            let line = |suffix: &str, pair| ReportLine::comparison(GROUP, name(suffix), Unit::Micros, peer.name, pair);
            if peer.name != GOAL_PEER {
                lines.push(line("", &self.keep_none[at]));
                continue;
            }
            lines.push(line("", &self.keep_none[at]).ratio_at_most(self.goal));
            lines.push(line(", defaults", &self.defaults[at]));
            lines.push(line(", one worker alone", &self.single_worker[at]).ratio_at_most(self.goal));
        }
        lines
    }
}

async fn measure_duly_micros(server: &RedisServer, setting: &BenchConfig, options: &str, batch: usize) -> Result<f64> {
    server.flush().await?;
    push_jobs(&duly_side::open(server, options).await?, FEW_JOBS, || Backlog::Queued.backlog_job()).await?;
    let before = server.cpu_time().await?;
    let workers = (0..WORKERS).map(|_| {
        let (url, time) = (duly_side::url(server, options), setting.round_duration());
        tokio::spawn(async move { run_steady(&url, Backlog::Queued, batch, time).await })
    });
    let mut jobs = 0;
    for worker in workers.collect::<Vec<_>>() {
        jobs += worker.await??.jobs;
    }
    Ok((server.cpu_time().await? - before).as_secs_f64() * 1e6 / jobs as f64)
}

/// The lives of one worker, which one task pushes at most a few batches ahead of it: between two requests the server rests.
async fn measure_single_worker_micros(server: &RedisServer, setting: &BenchConfig, batch: usize) -> Result<f64> {
    server.flush().await?;
    let duly = duly_side::open(server, KEEP_NONE).await?;
    let before = server.cpu_time().await?;
    let jobs = duly_side::run_lifecycles(&duly, batch, setting.round_duration()).await?;
    Ok((server.cpu_time().await? - before).as_secs_f64() * 1e6 / jobs as f64)
}

async fn measure_baseline_micros(server: &RedisServer, batch: usize) -> Result<f64> {
    server.flush().await?;
    let mut floor = try_join_all((0..WORKERS).map(|_| RedisBaseline::connect(server))).await?;
    let before = server.cpu_time().await?;
    try_join_all(floor.iter_mut().map(|bare| bare.push_and_pop(batch, BASELINE_JOBS / WORKERS))).await?;
    Ok((server.cpu_time().await? - before).as_secs_f64() * 1e6 / BASELINE_JOBS as f64)
}

/// Pushes in bulk, then drains.
pub(super) async fn measure_peer_micros(server: &RedisServer, peer: &RedisPeer) -> Result<f64> {
    server.flush().await?;
    let jobs = peer.drain_jobs.min(PEER_JOBS);
    let before = server.cpu_time().await?;
    peer.push(server, jobs)?;
    peer.drain(server, jobs)?;
    Ok((server.cpu_time().await? - before).as_secs_f64() * 1e6 / jobs as f64)
}
