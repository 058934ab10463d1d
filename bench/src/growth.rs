//! Growth: the cost of a lifecycle with a million waiting jobs, compared to ten thousand.

use std::time::{Duration, Instant};

use anyhow::Result;
use duly::{Duly, Push, PushExt};

use crate::config::{BenchConfig, KEEP_NONE, Noop, noop, push_jobs, store_url};
use crate::report::{ReportLine, Unit};
use crate::stats::Comparison;
use crate::worker::MeasuredWorker;

/// The number of waiting jobs in the small store.
pub(crate) const FEW_JOBS: usize = 10_000;
const GROUP: &str = "growth";
/// Jobs per push, and concurrency of the worker.
pub(crate) const BATCH_JOBS: usize = 100;
/// Batches of scheduled jobs in flight.
const SCHEDULED_BATCHES_IN_FLIGHT: usize = 10;
/// The delay of measured scheduled jobs.
const SHORT_DELAY: Duration = Duration::from_millis(2);
/// The delay of all other scheduled jobs.
const LONG_DELAY: Duration = Duration::from_secs(24 * 3600);
const GOAL_RATIO: f64 = 1.3;

/// The waiting jobs and the measured jobs.
#[derive(Clone, Copy)]
pub(crate) enum Backlog {
    /// Ready jobs; each settled job is replaced by a new one at the tail.
    Queued,
    /// Jobs due tomorrow; measured jobs are due soon and pass through scheduled, ready and running.
    Scheduled,
}

pub(crate) async fn run(config: &BenchConfig) -> Result<Vec<ReportLine>> {
    let mut lines = Vec::new();
    for (backlog, name) in [(Backlog::Queued, "queued"), (Backlog::Scheduled, "scheduled")] {
        let dir = config.fresh_dir("growth")?;
        let (few, many) = (store_url(&dir.join("few.db"), KEEP_NONE), store_url(&dir.join("many.db"), KEEP_NONE));
        for (url, jobs) in [(&few, FEW_JOBS), (&many, config.many_jobs())] {
            let duly = Duly::open(url).await?;
            push_jobs(&duly, jobs, || backlog.backlog_job()).await?;
        }
        let mut pair = Comparison::default();
        for round in 0..config.round_count() {
            let base = run_steady(&few, backlog, BATCH_JOBS, config.round_duration()).await?.micros_per_job();
            pair.record(run_steady(&many, backlog, BATCH_JOBS, config.round_duration()).await?.micros_per_job(), base);
            eprintln!("growth, {name}: round {} of {}", round + 1, config.round_count());
        }
        let name = format!("cost per job, {} {name}", config.many_jobs());
        lines.push(
            ReportLine::comparison(GROUP, name, Unit::Micros, &format!("at {FEW_JOBS}"), &pair)
                .ratio_at_most(GOAL_RATIO),
        );
    }
    Ok(lines)
}

impl Backlog {
    pub(crate) fn backlog_job(self) -> Push {
        match self {
            Backlog::Queued => Noop::new().into(),
            Backlog::Scheduled => Noop::new().after(LONG_DELAY),
        }
    }

    /// Returns a measured job.
    fn measured_job(self) -> Push {
        match self {
            Backlog::Queued => Noop::new().into(),
            Backlog::Scheduled => Noop::new().after(SHORT_DELAY),
        }
    }
}

/// The result of a steady run.
pub(crate) struct SteadyResult {
    /// Settled jobs; as many were pushed, up to a batch.
    pub(crate) jobs: usize,
    /// Jobs settled when the time was over.
    settled_in_time: usize,
    duration: Duration,
}

impl SteadyResult {
    /// Returns the wall time per job.
    pub(crate) fn micros_per_job(&self) -> f64 {
        self.duration.as_secs_f64() * 1e6 / self.settled_in_time as f64
    }
}

/// Pushes as many jobs as are settled, so that the number of waiting jobs stays constant.
pub(crate) async fn run_steady(url: &str, backlog: Backlog, batch: usize, time: Duration) -> Result<SteadyResult> {
    let duly = Duly::open(url).await?;
    let worker_run = MeasuredWorker::start(duly.worker().queue("default", batch).on(noop)).await?;
    let push = || duly.push_all((0..batch).map(|_| backlog.measured_job()));
    let (begin, mut pushed) = (Instant::now(), 0);
    if let Backlog::Scheduled = backlog {
        for _ in 0..SCHEDULED_BATCHES_IN_FLIGHT {
            push().await?;
            pushed += batch;
        }
    }
    while begin.elapsed() < time {
        worker_run.wait_settled_more(u32::try_from(batch)?).await?;
        push().await?;
        pushed += batch;
    }
    let (duration, settled_in_time) = (begin.elapsed(), worker_run.settled_count());
    let jobs = usize::try_from(worker_run.stop().await?.acked)?;
    // Pushes the jobs that the worker ran ahead, so that the store ends as it began.
    while pushed < jobs {
        push().await?;
        pushed += batch;
    }
    Ok(SteadyResult { jobs, settled_in_time, duration })
}
