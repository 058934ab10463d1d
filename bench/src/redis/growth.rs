//! Growth: the cost of a job with a million waiting jobs compared to ten thousand, and the longest script of a flood.

use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use duly::PushExt;

use super::duly_side::{self, KEEP_NONE};
use super::server::RedisServer;
use crate::config::{BenchConfig, Noop, noop, push_jobs};
use crate::growth::{BATCH_JOBS, Backlog, FEW_JOBS, run_steady};
use crate::report::{ReportLine, Unit};
use crate::stats::Comparison;
use crate::worker::MeasuredWorker;

const GROUP: &str = "redis-growth";
const GOAL_RATIO: f64 = 1.15;
/// More rounds than with peers, to detect a difference of a few percent.
const ROUNDS: usize = 9;
/// The minimum rate of bulk pushes; determines the start of the flood.
const FILL_JOBS_PER_SECOND: usize = 50_000;
/// The longest wait for the end of the flood.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(300);
/// The longest time that Redis may block other clients.
const GOAL_BLOCK_MS: f64 = 10.0;

pub(crate) async fn run(config: &BenchConfig) -> Result<Vec<ReportLine>> {
    let mut lines = Vec::new();
    for (backlog, name) in [(Backlog::Queued, "queued"), (Backlog::Scheduled, "scheduled")] {
        let (few, many) = (RedisServer::start().await?, RedisServer::start().await?);
        for (server, jobs) in [(&few, FEW_JOBS), (&many, config.many_jobs())] {
            push_jobs(&duly_side::open(server, KEEP_NONE).await?, jobs, || backlog.backlog_job()).await?;
        }
        let (mut cpu, mut wall) = (Comparison::default(), Comparison::default());
        for round in 0..if config.is_quick { 1 } else { ROUNDS } {
            let base = measure_micros_per_job(&few, backlog, config).await?;
            let ours = measure_micros_per_job(&many, backlog, config).await?;
            cpu.record(ours.0, base.0);
            wall.record(ours.1, base.1);
            eprintln!("{GROUP}, {name}: round {}", round + 1);
        }
        let line = |label: &str, pair| {
            let name = format!("{label} per job, {} {name}", config.many_jobs());
            ReportLine::comparison(GROUP, name, Unit::Micros, &format!("at {FEW_JOBS}"), pair)
        };
        lines.extend([line("Redis CPU", &cpu).ratio_at_most(GOAL_RATIO), line("time", &wall)]);
    }
    lines.extend(measure_flood(config).await?);
    Ok(lines)
}

/// Returns the CPU time of Redis and the wall time per job.
async fn measure_micros_per_job(server: &RedisServer, backlog: Backlog, config: &BenchConfig) -> Result<(f64, f64)> {
    let before = server.cpu_time().await?;
    let steady = run_steady(&duly_side::url(server, KEEP_NONE), backlog, BATCH_JOBS, config.round_duration()).await?;
    let used = server.cpu_time().await? - before;
    Ok((used.as_secs_f64() * 1e6 / steady.jobs as f64, steady.micros_per_job()))
}

/// Measures a flood: all jobs are due at the same time.
async fn measure_flood(config: &BenchConfig) -> Result<Vec<ReportLine>> {
    let server = RedisServer::start().await?;
    let duly = duly_side::open(&server, KEEP_NONE).await?;
    let jobs = config.many_jobs();
    let due = SystemTime::now() + Duration::from_secs(5 + (jobs / FILL_JOBS_PER_SECOND) as u64);
    push_jobs(&duly, jobs, || Noop::new().at(due)).await?;
    let worker_run = MeasuredWorker::start(duly.worker().queue("default", 100).on(noop)).await?;
    tokio::time::sleep(due.duration_since(SystemTime::now()).context("the flood has begun too soon")?).await;
    server.reset_slowlog().await?;
    let begin = Instant::now();
    tokio::time::timeout(DRAIN_TIMEOUT, worker_run.wait_settled(jobs)).await.context("the flood does not end")?;
    let duration = begin.elapsed();
    worker_run.stop().await?;
    let slowest = server.slowest_command_ms().await?;
    Ok(vec![
        ReportLine::single(GROUP, format!("{jobs} due at once: longest script"), slowest, Unit::Millis)
            .value_below(GOAL_BLOCK_MS),
        ReportLine::single(GROUP, "the flood itself", jobs as f64 / duration.as_secs_f64(), Unit::PerSecond),
    ])
}
