//! An idle worker in another process: its wake time and its idle requests.

use std::time::Duration;

use anyhow::Result;

use super::duly_side::{self, KEEP_NONE};
use super::peers::RedisPeer;
use super::round_trip::BlockingPop;
use super::server::RedisServer;
use super::{LineSpec, RatioGoal, compare_with_peers, new_comparisons, print_round, round_count};
use crate::child::BenchProcess;
use crate::config::BenchConfig;
use crate::report::{ReportLine, Unit};
use crate::stats::{Comparison, Samples};
use crate::wake::measure_wakes;

const GROUP: &str = "redis-wake";
const WAKE_JOBS: usize = 200;
/// Jobs before the measurement begins, to set up connections and scripts.
const WARMUP_JOBS: usize = 5;
/// The concurrency of an idle worker.
const CONCURRENCY: usize = 10;
const GOAL_RATIO: f64 = 0.5;
/// The maximum requests per second of an idle worker.
const GOAL_REQUESTS_PER_SECOND: f64 = 1.0;

pub(crate) async fn run(config: &BenchConfig) -> Result<Vec<ReportLine>> {
    let peers = RedisPeer::prepare_all(config)?;
    let server = RedisServer::start().await?;
    let jobs = if config.is_quick { WAKE_JOBS / 10 } else { WAKE_JOBS };
    let (mut p50, mut p99, mut to_baseline) = (new_comparisons(&peers), new_comparisons(&peers), Comparison::default());
    for round in 0..round_count(config) {
        let duly = duly_side::open(&server, KEEP_NONE).await?;
        let child = duly_side::start_worker(&server, KEEP_NONE)?;
        measure_wakes(&duly, &child, WARMUP_JOBS, pause_before).await?;
        let ours = measure_wakes(&duly, &child, jobs, pause_before).await?.from_call;
        child.kill()?;
        to_baseline.record(ours.median(), measure_blocking_pop(&server, jobs).await?.median());
        for (index, peer) in peers.iter().enumerate() {
            server.flush().await?;
            let figures = peer.run_verb(&server, &["idle-latency", &jobs.to_string()])?;
            p50[index].record(ours.median(), figures.p50_ms);
            p99[index].record(ours.percentile(99.0), figures.p99_ms);
        }
        server.flush().await?;
        print_round(GROUP, config, round);
    }
    let spec = |name| LineSpec { group: GROUP, name, unit: Unit::Millis };
    let baseline_name = "bare LPUSH, BRPOP";
    let mut lines = vec![ReportLine::comparison(
        GROUP,
        "push to start on an idle worker, p50",
        Unit::Millis,
        baseline_name,
        &to_baseline,
    )];
    lines.extend(compare_with_peers(
        spec("push to start on an idle worker, p50"),
        RatioGoal::AtMost(GOAL_RATIO),
        &peers,
        &p50,
        |_| true,
    ));
    lines.extend(p99.iter().zip(&peers).map(|(pair, peer)| {
        ReportLine::comparison(GROUP, "push to start on an idle worker, p99", Unit::Millis, peer.name, pair)
    }));
    lines.extend(compare_idle_requests(config, &server, &peers).await?);
    Ok(lines)
}

/// Measures the milliseconds from a bare LPUSH until a process blocked in BRPOP has it, after the same pauses.
async fn measure_blocking_pop(server: &RedisServer, jobs: usize) -> Result<Samples> {
    let (mut pop, mut samples) = (BlockingPop::start(server).await?, Samples::default());
    for number in 0..WARMUP_JOBS + jobs {
        tokio::time::sleep(pause_before(number)).await;
        let ms = pop.measure_push(number).await?;
        if number >= WARMUP_JOBS {
            samples.record(ms);
        }
    }
    Ok(samples)
}

/// Returns a pause from 10 to 110 ms, as the peers do, so that pushes hit every phase of a polling interval.
fn pause_before(number: usize) -> Duration {
    Duration::from_millis((10 + number * 37 % 100) as u64)
}

async fn compare_idle_requests(
    config: &BenchConfig,
    server: &RedisServer,
    peers: &[RedisPeer],
) -> Result<Vec<ReportLine>> {
    let ours = measure_idle_requests(config, server, duly_side::start_worker(server, KEEP_NONE)?).await?;
    let line = || ReportLine::single(GROUP, "requests of an idle worker", ours, Unit::PerSecond);
    let mut lines =
        vec![line().with_goal(format!("<= {GOAL_REQUESTS_PER_SECOND}/s"), ours <= GOAL_REQUESTS_PER_SECOND)];
    for peer in peers {
        server.flush().await?;
        let theirs = measure_idle_requests(config, server, peer.start_worker(server, CONCURRENCY)?).await?;
        lines.push(line().compared_to(peer.name, theirs));
    }
    Ok(lines)
}

/// Returns the requests per second of an idle worker.
pub(super) async fn measure_idle_requests(
    config: &BenchConfig,
    server: &RedisServer,
    worker: BenchProcess,
) -> Result<f64> {
    let time = Duration::from_secs(if config.is_quick { 2 } else { 20 });
    // Waits until the start of the worker is complete.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let requests = server.measure_requests_per_s(time)?;
    worker.kill()?;
    Ok(requests)
}
