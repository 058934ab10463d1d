//! Flood: a million jobs of one queue become due at the same time. Measures whether another queue still gets its turn.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use duly::{Args, Ctx, PushExt};
use serde::{Deserialize, Serialize};

use crate::child::monotonic_us;
use crate::config::{BenchConfig, KEEP_NONE, Noop, noop, open_store, push_jobs};
use crate::report::{ReportLine, Unit};
use crate::stats::Samples;
use crate::worker::MeasuredWorker;

const GROUP: &str = "flood";
/// Jobs per second that a slow disk stores in bulk; determines the start of the flood.
const FILL_JOBS_PER_SECOND: usize = 30_000;
/// Time between two jobs of the other queue.
const PROBE_INTERVAL: Duration = Duration::from_millis(10);
/// The longest wait for the end of the flood.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(300);
const GOAL_MS: f64 = 50.0;

/// A job of the other queue, with the time of its push on the monotonic clock.
#[derive(Serialize, Deserialize)]
struct Probe {
    pushed_us: u64,
}

impl Args for Probe {
    const KIND: &'static str = "probe";
}

pub(crate) async fn run(config: &BenchConfig) -> Result<Vec<ReportLine>> {
    let jobs = config.many_jobs();
    let duly = open_store(&config.fresh_dir("flood")?.join("duly.db"), KEEP_NONE).await?;
    let due = SystemTime::now() + Duration::from_secs(5 + (jobs / FILL_JOBS_PER_SECOND) as u64);
    push_jobs(&duly, jobs, || Noop::new().at(due).queue("flood")).await?;
    let starts = Arc::new(Mutex::new(Samples::default()));
    let worker = duly.worker().queue("flood", 100).queue("other", 10).on(noop).on_with(starts.clone(), run_probe);
    let worker_run = MeasuredWorker::start(worker).await?;
    let wait = due.duration_since(SystemTime::now()).unwrap_or_default();
    eprintln!("flood: begins in {:.1} s", wait.as_secs_f64());
    tokio::time::sleep(wait).await;

    let begin = Instant::now();
    let probes = if config.is_quick { 50 } else { 500 };
    for _ in 0..probes {
        duly.push(Probe { pushed_us: monotonic_us() }.queue("other")).await?;
        tokio::time::sleep(PROBE_INTERVAL).await;
    }
    let settled_meanwhile = worker_run.settled_count();
    tokio::time::timeout(DRAIN_TIMEOUT, worker_run.wait_settled(jobs + probes))
        .await
        .context("the flood does not end")?;
    let duration = begin.elapsed();
    worker_run.stop().await?;
    let starts = starts.lock().map_err(|_| anyhow::anyhow!("a handler has panicked"))?.clone();
    anyhow::ensure!(starts.len() == probes, "{} of {probes} jobs of the other queue ran", starts.len());
    eprintln!("flood: {settled_meanwhile} jobs were settled while the other queue was measured");
    let name = |label: &str| format!("{jobs} due at once: another queue's job starts, {label}");
    Ok(vec![
        ReportLine::single(GROUP, name("p50"), starts.median(), Unit::Millis),
        ReportLine::single(GROUP, name("p99"), starts.percentile(99.0), Unit::Millis).value_below(GOAL_MS),
        ReportLine::single(GROUP, name("worst"), starts.max(), Unit::Millis),
        ReportLine::single(GROUP, "the flood itself", jobs as f64 / duration.as_secs_f64(), Unit::PerSecond),
    ])
}

async fn run_probe(job: Probe, _: Ctx, starts: Arc<Mutex<Samples>>) {
    let start_ms = monotonic_us().saturating_sub(job.pushed_us) as f64 / 1_000.0;
    if let Ok(mut starts) = starts.lock() {
        starts.record(start_ms);
    }
}
