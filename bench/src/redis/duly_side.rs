//! duly's side on Redis: the public client and worker, with another URL.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use duly::{Duly, Worker};

use super::server::RedisServer;
use crate::child::{BenchProcess, TimedJob};
use crate::config::{Noop, noop, push_jobs};
use crate::worker::MeasuredWorker;

/// A separate key prefix, and permission for a server without persistence.
const BASE_OPTIONS: &str = "prefix=bench&allow_data_loss=true";
/// Options of a store that does not keep done jobs, only their ids.
pub(super) const KEEP_NONE: &str = "&keep=0";
/// The default options of a store.
pub(super) const DEFAULTS: &str = "";
/// The concurrency of a worker that drains.
const DRAIN_CONCURRENCY: usize = 1_000;
/// Batches in flight: one each that is pushed, waits, runs and is settled.
const BATCHES_IN_FLIGHT_MAX: usize = 4;

/// Returns the URL of the store on this server.
pub(super) fn url(server: &RedisServer, options: &str) -> String {
    format!("{}?{BASE_OPTIONS}{options}", server.url())
}

pub(super) async fn open(server: &RedisServer, options: &str) -> Result<Duly> {
    Ok(Duly::open(url(server, options)).await?)
}

/// Returns pushes per second of one task, each awaited.
pub(super) async fn measure_single_pushes(duly: &Duly, jobs: usize) -> Result<f64> {
    let begin = Instant::now();
    for _ in 0..jobs {
        duly.push(Noop::new()).await?;
    }
    Ok(jobs as f64 / begin.elapsed().as_secs_f64())
}

/// Returns jobs per second, pushed in bulk.
pub(super) async fn measure_bulk_pushes(duly: &Duly, jobs: usize) -> Result<f64> {
    let begin = Instant::now();
    push_jobs(duly, jobs, || Noop::new().into()).await?;
    Ok(jobs as f64 / begin.elapsed().as_secs_f64())
}

/// Returns the URL of a store on Sidekiq's keys on this server.
pub(super) fn sidekiq_url(server: &RedisServer) -> String {
    format!("{}?allow_data_loss=true", server.url().replacen("redis", "sidekiq", 1))
}

/// Returns jobs per second from the start of a worker to the settle of the last waiting job.
pub(super) async fn measure_drain(duly: &Duly, jobs: usize) -> Result<f64> {
    measure_drain_with(duly, jobs, |worker| worker.on(noop)).await
}

/// Like `measure_drain`, with another handler.
pub(super) async fn measure_drain_with(
    duly: &Duly,
    jobs: usize,
    add_handler: impl FnOnce(Worker) -> Worker,
) -> Result<f64> {
    let begin = Instant::now();
    let worker_run = MeasuredWorker::start(add_handler(duly.worker().queue("default", DRAIN_CONCURRENCY))).await?;
    worker_run.wait_settled(jobs).await;
    let duration = begin.elapsed();
    let summary = worker_run.stop().await?;
    ensure!(summary.acked == jobs as u64, "{} of {jobs} jobs were acked", summary.acked);
    Ok(jobs as f64 / duration.as_secs_f64())
}

/// Runs lifecycles and returns their number.
///
/// One task pushes `batch` jobs at a time, at most a few batches ahead of a worker with concurrency `batch`.
pub(super) async fn run_lifecycles(duly: &Duly, batch: usize, time: Duration) -> Result<usize> {
    let worker_run = MeasuredWorker::start(duly.worker().queue("default", batch).on(noop)).await?;
    let (begin, mut jobs) = (Instant::now(), 0);
    while begin.elapsed() < time {
        if jobs >= BATCHES_IN_FLIGHT_MAX * batch {
            worker_run.wait_settled_more(u32::try_from(batch)?).await?;
        }
        duly.push_all((0..batch).map(|_| Noop::new())).await?;
        jobs += batch;
    }
    worker_run.wait_settled(jobs).await;
    let summary = worker_run.stop().await?;
    ensure!(summary.acked == jobs as u64, "{} of {jobs} jobs were acked", summary.acked);
    Ok(jobs)
}

/// Starts a worker in another process that reports the start of its jobs.
pub(super) fn start_worker(server: &RedisServer, options: &str) -> Result<BenchProcess> {
    BenchProcess::start_worker(&url(server, options))
}

/// Pushes jobs that report their start and then run for this duration.
pub(super) async fn push_holding_jobs(duly: &Duly, jobs: usize, time: Duration) -> Result<()> {
    duly.push_all((0..jobs).map(|number| TimedJob::running_for(number, time))).await?;
    Ok(())
}
