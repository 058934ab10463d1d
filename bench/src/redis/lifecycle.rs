//! The cost of a lifecycle for the server: CPU time of Redis for push, claim and settle, per job.
//!
//! The server is busy, as with the processes of the peers: several workers each push as many jobs as they settle.
//! An idle server pays several times as much for each request, because each one wakes it.
//! A single worker, which leaves the server idle between requests, has its own line with the same goal.

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

const GROUP: &str = "redis-lifecycle";
/// The peer of the goal.
const GOAL_PEER: &str = "BullMQ";
/// Batch sizes, each with the maximum ratio to the cost of that peer.
const BATCHES: [(usize, f64); 2] = [(10, 0.2), (100, 0.1)];
/// Jobs per round of a peer, if it supports that many.
const PEER_JOBS: usize = 30_000;
/// Jobs per round of the baseline, over all connections.
const BASELINE_JOBS: usize = 64_000;
/// Concurrent workers, and connections of the baseline.
const WORKERS: usize = 8;

pub(crate) async fn run(config: &BenchConfig) -> Result<Vec<ReportLine>> {
    let peers = RedisPeer::prepare_all(config)?;
    let server = RedisServer::start().await?;
    let mut batches: Vec<BatchComparison> =
        BATCHES.map(|(batch, goal)| BatchComparison::new(batch, goal, &peers)).into();
    for round in 0..round_count(config) {
        // A peer has one figure, for its cheapest batch size.
        let mut theirs = Vec::new();
        for peer in &peers {
            theirs.push(measure_peer_micros(&server, peer).await?);
        }
        for batch in &mut batches {
            batch.run_round(&server, config, &theirs).await?;
        }
        print_round(GROUP, config, round);
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
    /// One worker and one task that pushes.
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

    async fn run_round(&mut self, server: &RedisServer, config: &BenchConfig, theirs: &[f64]) -> Result<()> {
        let keep_none = measure_duly_micros(server, config, KEEP_NONE, self.size).await?;
        self.baseline.record(keep_none, measure_baseline_micros(server, self.size).await?);
        let defaults = measure_duly_micros(server, config, DEFAULTS, self.size).await?;
        let single_worker = measure_single_worker_micros(server, config, self.size).await?;
        for (index, theirs) in theirs.iter().enumerate() {
            self.keep_none[index].record(keep_none, *theirs);
            self.defaults[index].record(defaults, *theirs);
            self.single_worker[index].record(single_worker, *theirs);
        }
        Ok(())
    }

    fn report_lines(&self, peers: &[RedisPeer]) -> Vec<ReportLine> {
        let name = |suffix: &str| format!("Redis CPU per lifecycle, batch {}{suffix}", self.size);
        let mut lines = vec![ReportLine::comparison(GROUP, name(""), Unit::Micros, "bare LPUSH, RPOP", &self.baseline)];
        for (index, peer) in peers.iter().enumerate() {
            let line = |suffix: &str, pair| ReportLine::comparison(GROUP, name(suffix), Unit::Micros, peer.name, pair);
            if peer.name != GOAL_PEER {
                lines.push(line("", &self.keep_none[index]));
                continue;
            }
            lines.push(line("", &self.keep_none[index]).ratio_at_most(self.goal));
            lines.push(line(", defaults", &self.defaults[index]));
            lines.push(line(", one worker alone", &self.single_worker[index]).ratio_at_most(self.goal));
        }
        lines
    }
}

async fn measure_duly_micros(server: &RedisServer, config: &BenchConfig, options: &str, batch: usize) -> Result<f64> {
    server.flush().await?;
    push_jobs(&duly_side::open(server, options).await?, FEW_JOBS, || Backlog::Queued.backlog_job()).await?;
    let before = server.cpu_time().await?;
    let workers = (0..WORKERS).map(|_| {
        let (url, time) = (duly_side::url(server, options), config.round_duration());
        tokio::spawn(async move { run_steady(&url, Backlog::Queued, batch, time).await })
    });
    let mut jobs = 0;
    for worker in workers.collect::<Vec<_>>() {
        jobs += worker.await??.jobs;
    }
    Ok((server.cpu_time().await? - before).as_secs_f64() * 1e6 / jobs as f64)
}

/// Measures one worker and one task that pushes at most a few batches ahead; the server is idle between requests.
async fn measure_single_worker_micros(server: &RedisServer, config: &BenchConfig, batch: usize) -> Result<f64> {
    server.flush().await?;
    let duly = duly_side::open(server, KEEP_NONE).await?;
    let before = server.cpu_time().await?;
    let jobs = duly_side::run_lifecycles(&duly, batch, config.round_duration()).await?;
    Ok((server.cpu_time().await? - before).as_secs_f64() * 1e6 / jobs as f64)
}

async fn measure_baseline_micros(server: &RedisServer, batch: usize) -> Result<f64> {
    server.flush().await?;
    let mut baseline = try_join_all((0..WORKERS).map(|_| RedisBaseline::connect(server))).await?;
    let before = server.cpu_time().await?;
    try_join_all(baseline.iter_mut().map(|connection| connection.push_and_pop(batch, BASELINE_JOBS / WORKERS))).await?;
    Ok((server.cpu_time().await? - before).as_secs_f64() * 1e6 / BASELINE_JOBS as f64)
}

/// Measures a bulk push and a drain of a peer.
pub(super) async fn measure_peer_micros(server: &RedisServer, peer: &RedisPeer) -> Result<f64> {
    server.flush().await?;
    let jobs = peer.drain_jobs.min(PEER_JOBS);
    let before = server.cpu_time().await?;
    peer.push(server, jobs)?;
    peer.drain(server, jobs)?;
    Ok((server.cpu_time().await? - before).as_secs_f64() * 1e6 / jobs as f64)
}
