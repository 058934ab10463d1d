//! duly's side on Redis: the public door and worker, with another URL.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use duly::{Duly, Worker};

use super::server::RedisServer;
use crate::child::{BenchProcess, TimedJob};
use crate::config::{Noop, noop, push_jobs};
use crate::worker::MeasuredWorker;

/// Keys of ours begin with a word of their own, and the server may forget everything: it keeps nothing on disk.
const BASE_OPTIONS: &str = "prefix=bench&allow_data_loss=true";
/// Options of a store that forgets done jobs at once; ids are remembered.
pub(super) const KEEP_NONE: &str = "&keep=0";
/// Options of a store as it comes.
pub(super) const DEFAULTS: &str = "";
/// Jobs at once in a worker that drains.
const DRAIN_CONCURRENCY: usize = 1_000;
/// Batches that may be under way: one that is pushed, one that waits, one that runs, one that is settled.
const BATCHES_IN_FLIGHT_MAX: usize = 4;

/// Where duly finds its store on this server.
pub(super) fn url(server: &RedisServer, options: &str) -> String {
    format!("{}?{BASE_OPTIONS}{options}", server.url())
}

pub(super) async fn open(server: &RedisServer, options: &str) -> Result<Duly> {
    Ok(Duly::open(url(server, options)).await?)
}

/// Pushes a second, each awaited by one task.
pub(super) async fn measure_single_pushes(duly: &Duly, jobs: usize) -> Result<f64> {
    let begin = Instant::now();
    for _ in 0..jobs {
        duly.push(Noop::new()).await?;
    }
    Ok(jobs as f64 / begin.elapsed().as_secs_f64())
}

/// Jobs a second, pushed many at a time.
pub(super) async fn measure_bulk_pushes(duly: &Duly, jobs: usize) -> Result<f64> {
    let begin = Instant::now();
    push_jobs(duly, jobs, || Noop::new().into()).await?;
    Ok(jobs as f64 / begin.elapsed().as_secs_f64())
}

/// Where duly finds a store on Sidekiq's keys on this server.
pub(super) fn sidekiq_url(server: &RedisServer) -> String {
    format!("{}?allow_data_loss=true", server.url().replacen("redis", "sidekiq", 1))
}

/// Jobs a second from the start of a worker to the last settle of what was pushed before.
pub(super) async fn measure_drain(duly: &Duly, jobs: usize) -> Result<f64> {
    measure_drain_with(duly, jobs, |worker| worker.on(noop)).await
}

/// The same with another handler.
pub(super) async fn measure_drain_with(duly: &Duly, jobs: usize, on: impl FnOnce(Worker) -> Worker) -> Result<f64> {
    let begin = Instant::now();
    let working = MeasuredWorker::start(on(duly.worker().queue("default", DRAIN_CONCURRENCY))).await?;
    working.wait_settled(jobs).await;
    let took = begin.elapsed();
    let tally = working.stop().await?;
    ensure!(tally.acked == jobs as u64, "{} of {jobs} jobs were acked", tally.acked);
    Ok(jobs as f64 / took.as_secs_f64())
}

/// Whole lives while one task pushes `batch` at a time, never far ahead of a worker that runs as many at once.
/// Answers how many they were.
pub(super) async fn run_lifecycles(duly: &Duly, batch: usize, time: Duration) -> Result<usize> {
    let working = MeasuredWorker::start(duly.worker().queue("default", batch).on(noop)).await?;
    let (begin, mut jobs) = (Instant::now(), 0);
    while begin.elapsed() < time {
        if jobs >= BATCHES_IN_FLIGHT_MAX * batch {
            working.wait_settled_more(u32::try_from(batch)?).await?;
        }
        duly.push_all((0..batch).map(|_| Noop::new())).await?;
        jobs += batch;
    }
    working.wait_settled(jobs).await;
    let tally = working.stop().await?;
    ensure!(tally.acked == jobs as u64, "{} of {jobs} jobs were acked", tally.acked);
    Ok(jobs)
}

/// A worker in a process of its own that tells the start of its jobs.
pub(super) fn start_worker(server: &RedisServer, options: &str) -> Result<BenchProcess> {
    BenchProcess::start_worker(&url(server, options))
}

/// Pushes jobs that each tell their start and then run for so long.
pub(super) async fn push_holding_jobs(duly: &Duly, jobs: usize, time: Duration) -> Result<()> {
    duly.push_all((0..jobs).map(|no| TimedJob::running_for(no, time))).await?;
    Ok(())
}
