//! Growth: what a job costs when a million wait against ten thousand, and whether a million due at once block Redis.

use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use duly::Args;

use super::duly_side::{self, KEEP_NONE};
use super::server::RedisServer;
use crate::config::{BenchConfig, Noop, noop, push_jobs};
use crate::growth::{BATCH_JOBS, Backlog, FEW_JOBS, run_steady};
use crate::report::{ReportLine, Unit};
use crate::stats::Comparison;
use crate::worker::MeasuredWorker;

const GROUP: &str = "redis-growth";
const GOAL_RATIO: f64 = 1.15;
/// No peer takes part, and what is sought is a few percent: more rounds than with peers.
const ROUNDS: usize = 9;
/// Jobs a second that are pushed in bulk at the very least: until then the flood must not begin.
const FILL_JOBS_PER_SECOND: usize = 50_000;
/// Longest wait for the flood to be over.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(300);
/// Longest that Redis may serve nobody else.
const GOAL_BLOCK_MS: f64 = 10.0;

pub(crate) async fn run(setting: &BenchConfig) -> Result<Vec<ReportLine>> {
    let mut lines = Vec::new();
    for (waiting, name) in [(Backlog::Queued, "queued"), (Backlog::Scheduled, "scheduled")] {
        let (few, many) = (RedisServer::start().await?, RedisServer::start().await?);
        for (server, jobs) in [(&few, FEW_JOBS), (&many, setting.many_jobs())] {
            push_jobs(&duly_side::open(server, KEEP_NONE).await?, jobs, || waiting.backlog_job()).await?;
        }
        let (mut cpu, mut wall) = (Comparison::default(), Comparison::default());
        for round in 0..if setting.is_quick { 1 } else { ROUNDS } {
            let base = measure_micros_per_job(&few, waiting, setting).await?;
            let ours = measure_micros_per_job(&many, waiting, setting).await?;
            cpu.record(ours.0, base.0);
            wall.record(ours.1, base.1);
            eprintln!("{GROUP}, {name}: round {}", round + 1);
        }
        let line = |what: &str, pair| {
            let name = format!("{what} per job, {} {name}", setting.many_jobs());
            ReportLine::comparison(GROUP, name, Unit::Micros, &format!("at {FEW_JOBS}"), pair)
        };
        lines.extend([line("Redis CPU", &cpu).ratio_at_most(GOAL_RATIO), line("time", &wall)]);
    }
    lines.extend(measure_flood(setting).await?);
    Ok(lines)
}

/// CPU time of Redis, and wall time.
async fn measure_micros_per_job(server: &RedisServer, waiting: Backlog, setting: &BenchConfig) -> Result<(f64, f64)> {
    let before = server.cpu_time().await?;
    let steady = run_steady(&duly_side::url(server, KEEP_NONE), waiting, BATCH_JOBS, setting.round_duration()).await?;
    let used = server.cpu_time().await? - before;
    Ok((used.as_secs_f64() * 1e6 / steady.jobs as f64, steady.micros_per_job()))
}

/// All of them due at one moment.
async fn measure_flood(setting: &BenchConfig) -> Result<Vec<ReportLine>> {
    let server = RedisServer::start().await?;
    let duly = duly_side::open(&server, KEEP_NONE).await?;
    let jobs = setting.many_jobs();
    let due = SystemTime::now() + Duration::from_secs(5 + (jobs / FILL_JOBS_PER_SECOND) as u64);
    push_jobs(&duly, jobs, || Noop::new().at(due)).await?;
    let working = MeasuredWorker::start(duly.worker().queue("default", 100).on(noop)).await?;
    tokio::time::sleep(due.duration_since(SystemTime::now()).context("the flood has begun too soon")?).await;
    server.reset_slowlog().await?;
    let begin = Instant::now();
    tokio::time::timeout(DRAIN_TIMEOUT, working.wait_settled(jobs)).await.context("the flood does not end")?;
    let took = begin.elapsed();
    working.stop().await?;
    let slowest = server.slowest_command_ms().await?;
    Ok(vec![
        ReportLine::single(GROUP, format!("{jobs} due at once: longest script"), slowest, Unit::Millis)
            .value_below(GOAL_BLOCK_MS),
        ReportLine::single(GROUP, "the flood itself", jobs as f64 / took.as_secs_f64(), Unit::PerSecond),
    ])
}
