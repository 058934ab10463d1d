//! Durable pushes: from one task, from many tasks, and in bulk.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use duly::Duly;

use crate::baseline::SqliteBaseline;
use crate::config::{BULK_JOBS, BenchConfig, KEEP_NONE, Noop, open_store, push_jobs};
use crate::report::{ReportLine, Unit};
use crate::stats::Comparison;

const GROUP: &str = "push";
/// Tasks that push at the same time.
const PUSHING_TASKS: usize = 64;
/// Jobs before the measurement begins, so that the WAL has its final size.
const WARMUP_JOBS: usize = 20_000;

pub(crate) async fn run(config: &BenchConfig) -> Result<Vec<ReportLine>> {
    let (mut one, mut many, mut bulk) = (Comparison::default(), Comparison::default(), Comparison::default());
    for round in 0..config.round_count() {
        let dir = config.fresh_dir("push")?;
        let duly = open_warm(&dir.join("duly.db")).await?;
        let baseline = SqliteBaseline::create(&dir.join("bare.db")).await?;
        baseline.fill(WARMUP_JOBS)?;
        let one_task = measure_from_tasks(&duly, 1, config.round_duration()).await?;
        one.record(one_task, baseline.measure_pushes(1, config.round_duration())?);
        many.record(measure_from_tasks(&duly, PUSHING_TASKS, config.round_duration()).await?, one_task);
        bulk.record(
            measure_in_bulk(&duly, config.round_duration()).await?,
            baseline.measure_pushes(BULK_JOBS, config.round_duration())?,
        );
        eprintln!("push: round {} of {}", round + 1, config.round_count());
    }
    Ok(vec![
        ReportLine::comparison(GROUP, "push, 1 task", Unit::PerSecond, "bare loop", &one),
        ReportLine::comparison(GROUP, format!("push, {PUSHING_TASKS} tasks"), Unit::PerSecond, "duly, 1 task", &many),
        ReportLine::comparison(GROUP, format!("push, {BULK_JOBS} at a time"), Unit::PerSecond, "bare loop", &bulk),
    ])
}

async fn open_warm(file: &Path) -> Result<Duly> {
    let duly = open_store(file, KEEP_NONE).await?;
    push_jobs(&duly, WARMUP_JOBS, || Noop::new().into()).await?;
    Ok(duly)
}

/// Returns jobs per second from this many tasks; each awaits its push before the next one.
async fn measure_from_tasks(duly: &Duly, tasks: usize, time: Duration) -> Result<f64> {
    let begin = Instant::now();
    let pushers: Vec<_> = (0..tasks)
        .map(|_| {
            let duly = duly.clone();
            tokio::spawn(async move {
                let mut jobs = 0_u64;
                while begin.elapsed() < time {
                    duly.push(Noop::new()).await?;
                    jobs += 1;
                }
                anyhow::Ok(jobs)
            })
        })
        .collect();
    let mut jobs = 0;
    for pusher in pushers {
        jobs += pusher.await??;
    }
    Ok(jobs as f64 / begin.elapsed().as_secs_f64())
}

async fn measure_in_bulk(duly: &Duly, time: Duration) -> Result<f64> {
    let begin = Instant::now();
    let mut jobs = 0;
    while begin.elapsed() < time {
        duly.push_all((0..BULK_JOBS).map(|_| Noop::new())).await?;
        jobs += BULK_JOBS;
    }
    Ok(jobs as f64 / begin.elapsed().as_secs_f64())
}
