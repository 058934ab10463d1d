//! HTTP compared to the library on the same store: single pushes of many clients, bulk pushes, lifecycles,
//! and idle connections.
//!
//! Clients and server share one process, so the cost of the clients counts against the server.

mod client;
mod idle;
mod lifecycle;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Result;
use duly::{CancellationToken, Duly};
use duly_http::Server;

use self::client::{build_request, measure_requests};
use crate::config::{BULK_JOBS, BenchConfig, KEEP_NONE, Noop, noop_args, open_store, push_jobs};
use crate::report::{ReportLine, Unit};
use crate::stats::Comparison;

const GROUP: &str = "http";
/// Clients that push concurrently, each on an open connection.
const CLIENTS: usize = 64;
/// Jobs before the measurement begins.
const WARMUP_JOBS: usize = 20_000;
/// Goals: this rate or this ratio of the library's single pushes, and this ratio of its bulk pushes.
const GOAL_SINGLE_PUSHES_PER_SECOND: f64 = 30_000.0;
const GOAL_SINGLE_PUSH_RATIO: f64 = 0.5;
const GOAL_BULK_PUSH_RATIO: f64 = 0.8;

pub(crate) async fn run(config: &BenchConfig) -> Result<Vec<ReportLine>> {
    let (mut singles, mut bulks, mut lifecycles) =
        (Comparison::default(), Comparison::default(), Comparison::default());
    for round in 0..config.round_count() {
        let dir = config.fresh_dir(GROUP)?;
        let duly = open_store(&dir.join("duly.db"), KEEP_NONE).await?;
        push_jobs(&duly, WARMUP_JOBS, || Noop::new().into()).await?;
        let server = TestServer::start(&duly, 2 * CLIENTS).await?;
        let theirs = measure_library_pushes(&duly, config.round_duration(), CLIENTS, 1).await?;
        singles.record(server.measure_pushes(config.round_duration(), CLIENTS, 1).await?, theirs);
        let theirs = measure_library_pushes(&duly, config.round_duration(), 1, BULK_JOBS).await?;
        bulks.record(server.measure_pushes(config.round_duration(), 1, BULK_JOBS).await?, theirs);
        drop((server, duly));
        lifecycle::run_round(&dir, config.round_duration(), &mut lifecycles).await?;
        eprintln!("http: round {} of {}", round + 1, config.round_count());
    }
    let single =
        ReportLine::comparison(GROUP, format!("push, {CLIENTS} clients"), Unit::PerSecond, "library", &singles);
    let met = singles.ours.median() >= GOAL_SINGLE_PUSHES_PER_SECOND || singles.ratio() >= GOAL_SINGLE_PUSH_RATIO;
    let bulk =
        ReportLine::comparison(GROUP, format!("push, {BULK_JOBS} at a time"), Unit::PerSecond, "library", &bulks);
    let mut lines = vec![
        single.with_goal(format!(">= {GOAL_SINGLE_PUSH_RATIO}x or 30k/s"), met),
        bulk.ratio_at_least(GOAL_BULK_PUSH_RATIO),
        lifecycle::report_line(&lifecycles),
    ];
    lines.extend(idle::run(config).await?);
    Ok(lines)
}

/// Returns jobs per second through the library.
async fn measure_library_pushes(duly: &Duly, time: Duration, tasks: usize, batch: usize) -> Result<f64> {
    let begin = Instant::now();
    let work = (0..tasks).map(|_| {
        let duly = duly.clone();
        tokio::spawn(async move {
            let mut jobs = 0;
            while begin.elapsed() < time {
                duly.push_all((0..batch).map(|_| Noop::new())).await?;
                jobs += batch;
            }
            anyhow::Ok(jobs)
        })
    });
    let mut jobs = 0;
    for task in work.collect::<Vec<_>>() {
        jobs += task.await??;
    }
    Ok(jobs as f64 / begin.elapsed().as_secs_f64())
}

/// A server on a free port; dropping it stops the server.
struct TestServer {
    address: SocketAddr,
    stop: CancellationToken,
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl TestServer {
    async fn start(duly: &Duly, connections: usize) -> Result<Self> {
        let server = Server::new(duly.clone()).connections(connections).listen(([127, 0, 0, 1], 0).into()).await?;
        let (address, stop) = (server.address(), CancellationToken::new());
        tokio::spawn(server.serve_until(stop.clone()));
        Ok(TestServer { address, stop })
    }

    /// Returns jobs per second over HTTP.
    async fn measure_pushes(&self, time: Duration, clients: usize, batch: usize) -> Result<f64> {
        Ok(measure_requests(self.address, self.push_request(batch), clients, time).await? * batch as f64)
    }

    /// Returns a request that pushes this many jobs.
    fn push_request(&self, jobs: usize) -> Vec<u8> {
        let job = format!(r#"{{"kind":"noop","args":{}}}"#, noop_args());
        match jobs {
            1 => build_request(self.address, "POST", "/api/v1/jobs", &job),
            _ => build_request(self.address, "POST", "/api/v1/jobs/bulk", &format!("[{}]", vec![job; jobs].join(","))),
        }
    }
}
