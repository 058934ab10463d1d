//! Growth: what a job costs when a million wait against ten thousand, and whether a million due at once block Redis.

use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use duly::Args;

use super::duly_side::{self, KEEP_NONE};
use super::server::Server;
use crate::config::{Noop, Setting, fill, noop};
use crate::growth::{BATCH, FEW, Waiting, steady};
use crate::report::{Line, Unit};
use crate::stats::Pair;
use crate::worker::Working;

const GROUP: &str = "redis-growth";
const GOAL: f64 = 1.15;
/// No peer takes part, and what is sought is a few percent: more rounds than with peers.
const ROUNDS: usize = 9;
/// Jobs a second that are pushed in bulk at the very least: until then the flood must not begin.
const FILL_PER_S: usize = 50_000;
/// Longest wait for the flood to be over.
const DRAIN_MAX: Duration = Duration::from_secs(300);
/// Longest that Redis may serve nobody else.
const GOAL_BLOCK_MS: f64 = 10.0;

pub(crate) async fn run(setting: &Setting) -> Result<Vec<Line>> {
    let mut lines = Vec::new();
    for (waiting, name) in [(Waiting::Queued, "queued"), (Waiting::Scheduled, "scheduled")] {
        let (few, many) = (Server::start().await?, Server::start().await?);
        for (server, jobs) in [(&few, FEW), (&many, setting.many())] {
            fill(&duly_side::open(server, KEEP_NONE).await?, jobs, || waiting.job()).await?;
        }
        let (mut cpu, mut wall) = (Pair::default(), Pair::default());
        for round in 0..if setting.quick { 1 } else { ROUNDS } {
            let base = micros_per_job(&few, waiting, setting).await?;
            let ours = micros_per_job(&many, waiting, setting).await?;
            cpu.record(ours.0, base.0);
            wall.record(ours.1, base.1);
            eprintln!("{GROUP}, {name}: round {}", round + 1);
        }
        let line = |what: &str, pair| {
            let name = format!("{what} per job, {} {name}", setting.many());
            Line::pair(GROUP, name, Unit::Micros, &format!("at {FEW}"), pair)
        };
        lines.extend([line("Redis CPU", &cpu).ratio_at_most(GOAL), line("time", &wall)]);
    }
    lines.extend(flood(setting).await?);
    Ok(lines)
}

/// CPU time of Redis, and wall time.
async fn micros_per_job(server: &Server, waiting: Waiting, setting: &Setting) -> Result<(f64, f64)> {
    let before = server.cpu().await?;
    let steady = steady(&duly_side::url(server, KEEP_NONE), waiting, BATCH, setting.time()).await?;
    let used = server.cpu().await? - before;
    Ok((used.as_secs_f64() * 1e6 / steady.jobs as f64, steady.micros_per_job()))
}

/// All of them due at one moment.
async fn flood(setting: &Setting) -> Result<Vec<Line>> {
    let server = Server::start().await?;
    let duly = duly_side::open(&server, KEEP_NONE).await?;
    let jobs = setting.many();
    let due = SystemTime::now() + Duration::from_secs(5 + (jobs / FILL_PER_S) as u64);
    fill(&duly, jobs, || Noop::new().at(due)).await?;
    let working = Working::start(duly.worker().queue("default", 100).on(noop)).await?;
    tokio::time::sleep(due.duration_since(SystemTime::now()).context("the flood has begun too soon")?).await;
    server.forget_slow().await?;
    let begin = Instant::now();
    tokio::time::timeout(DRAIN_MAX, working.settled(jobs)).await.context("the flood does not end")?;
    let took = begin.elapsed();
    working.stop().await?;
    let slowest = server.slowest_ms().await?;
    Ok(vec![
        Line::alone(GROUP, format!("{jobs} due at once: longest script"), slowest, Unit::Millis).below(GOAL_BLOCK_MS),
        Line::alone(GROUP, "the flood itself", jobs as f64 / took.as_secs_f64(), Unit::PerSecond),
    ])
}
