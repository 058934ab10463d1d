//! Reopen after SIGKILL: the time until the first job starts, with a million jobs in the file and with few.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use duly::worker::Event;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::child::BenchProcess;
use crate::config::{BenchConfig, KEEP_NONE, noop, open_store, store_url};
use crate::report::{ReportLine, Unit};
use crate::single_job::to_millis;
use crate::stats::{Comparison, Samples};

const GROUP: &str = "reopen";
/// The minimum time that the child pushes before it is killed.
const PUSH_DURATION_MIN: Duration = Duration::from_millis(50);
/// The longest wait for the first job.
const START_TIMEOUT: Duration = Duration::from_secs(30);
const GOAL_EXTRA_MS: f64 = 50.0;

pub(crate) async fn run(config: &BenchConfig) -> Result<Vec<ReportLine>> {
    let dir = config.fresh_dir("reopen")?;
    let (few, many) = (dir.join("few.db"), dir.join("many.db"));
    let (mut pair, mut extra, mut opens) = (Comparison::default(), Samples::default(), Samples::default());
    for round in 0..config.round_count() {
        let jobs = if round == 0 { config.many_jobs() } else { 0 };
        let (_, base) = measure_reopen_after_kill(&few, 0).await?;
        let (open, full) = measure_reopen_after_kill(&many, jobs).await?;
        pair.record(full, base);
        opens.record(open);
        extra.record(full - base);
        eprintln!("reopen: round {} of {}", round + 1, config.round_count());
    }
    let name = |label: &str| format!("reopen after kill -9 with {} jobs: {label}", config.many_jobs());
    let first = ReportLine::comparison(GROUP, name("first job starts"), Unit::Millis, "with few", &pair);
    let met = extra.median() < GOAL_EXTRA_MS;
    Ok(vec![
        ReportLine::single(GROUP, name("open"), opens.median(), Unit::Millis),
        first.with_goal(format!("< {GOAL_EXTRA_MS:.0} ms more"), met),
    ])
}

/// Returns the milliseconds until the file is open, and until its first job starts.
async fn measure_reopen_after_kill(file: &Path, jobs: usize) -> Result<(f64, f64)> {
    let child = BenchProcess::start_filler(&store_url(file, KEEP_NONE), jobs)?;
    tokio::time::sleep(PUSH_DURATION_MIN).await;
    child.kill()?;

    let begin = Instant::now();
    let duly = open_store(file, KEEP_NONE).await?;
    let opened = to_millis(begin.elapsed());
    let stop = CancellationToken::new();
    let started = Arc::new(Notify::new());
    let notify_started = started.clone();
    let worker = duly.worker().queue("default", 1).on(noop).on_event(move |event| {
        if let Event::Started { .. } = event {
            notify_started.notify_one();
        }
    });
    let worker_task = tokio::spawn(worker.run_until(stop.clone()));
    tokio::time::timeout(START_TIMEOUT, started.notified()).await.context("no job has started")?;
    let first = to_millis(begin.elapsed());
    stop.cancel();
    worker_task.await??;
    Ok((opened, first))
}
