//! Growth: what a life costs when a million jobs wait, against ten thousand.

use std::time::{Duration, Instant};

use anyhow::Result;
use duly::{Args, Duly, Push};

use crate::config::{BenchConfig, KEEP_NONE, Noop, noop, push_jobs, store_url};
use crate::report::{ReportLine, Unit};
use crate::stats::Comparison;
use crate::worker::MeasuredWorker;

/// How many jobs "few" are.
pub(crate) const FEW_JOBS: usize = 10_000;
const GROUP: &str = "growth";
/// Jobs per push, and at once in the worker.
pub(crate) const BATCH_JOBS: usize = 100;
/// Batches of scheduled jobs that are on their way at the same time.
const SCHEDULED_BATCHES_IN_FLIGHT: usize = 10;
/// How long the scheduled jobs that are measured wait.
const SHORT_DELAY: Duration = Duration::from_millis(2);
/// How long the others wait.
const LONG_DELAY: Duration = Duration::from_secs(24 * 3600);
const GOAL_RATIO: f64 = 1.3;

/// What waits, and what is measured.
#[derive(Clone, Copy)]
pub(crate) enum Backlog {
    /// Ready jobs; each that is settled is replaced by one at the tail.
    Queued,
    /// Jobs of another day; those measured fall due soon, and pass all of scheduled, ready and held.
    Scheduled,
}

pub(crate) async fn run(setting: &BenchConfig) -> Result<Vec<ReportLine>> {
    let mut lines = Vec::new();
    for (waiting, name) in [(Backlog::Queued, "queued"), (Backlog::Scheduled, "scheduled")] {
        let dir = setting.fresh_dir("growth")?;
        let (few, many) = (store_url(&dir.join("few.db"), KEEP_NONE), store_url(&dir.join("many.db"), KEEP_NONE));
        for (url, jobs) in [(&few, FEW_JOBS), (&many, setting.many_jobs())] {
            let duly = Duly::open(url).await?;
            push_jobs(&duly, jobs, || waiting.backlog_job()).await?;
        }
        let mut pair = Comparison::default();
        for round in 0..setting.round_count() {
            let base = run_steady(&few, waiting, BATCH_JOBS, setting.round_duration()).await?.micros_per_job();
            pair.record(run_steady(&many, waiting, BATCH_JOBS, setting.round_duration()).await?.micros_per_job(), base);
            eprintln!("growth, {name}: round {} of {}", round + 1, setting.round_count());
        }
        let name = format!("cost per job, {} {name}", setting.many_jobs());
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

    /// A job whose life is measured.
    fn measured_job(self) -> Push {
        match self {
            Backlog::Queued => Noop::new().into(),
            Backlog::Scheduled => Noop::new().after(SHORT_DELAY),
        }
    }
}

/// What was done in how much time.
pub(crate) struct SteadyResult {
    /// Whole lives: as many were pushed, up to a batch.
    pub(crate) jobs: usize,
    /// Settled when the time was over.
    settled_in_time: usize,
    duration: Duration,
}

impl SteadyResult {
    /// Wall time per job.
    pub(crate) fn micros_per_job(&self) -> f64 {
        self.duration.as_secs_f64() * 1e6 / self.settled_in_time as f64
    }
}

/// Pushes as many jobs as are settled, so that the number of waiting jobs stays.
pub(crate) async fn run_steady(url: &str, waiting: Backlog, batch: usize, time: Duration) -> Result<SteadyResult> {
    let duly = Duly::open(url).await?;
    let working = MeasuredWorker::start(duly.worker().queue("default", batch).on(noop)).await?;
    let push = || duly.push_all((0..batch).map(|_| waiting.measured_job()));
    let (begin, mut pushed) = (Instant::now(), 0);
    if let Backlog::Scheduled = waiting {
        for _ in 0..SCHEDULED_BATCHES_IN_FLIGHT {
            push().await?;
            pushed += batch;
        }
    }
    while begin.elapsed() < time {
        working.wait_settled_more(u32::try_from(batch)?).await?;
        push().await?;
        pushed += batch;
    }
    let (took, in_time) = (begin.elapsed(), working.settled_count());
    let jobs = usize::try_from(working.stop().await?.acked)?;
    // What the worker was ahead of the pushes is theirs to pay for too.
    while pushed < jobs {
        push().await?;
        pushed += batch;
    }
    Ok(SteadyResult { jobs, settled_in_time: in_time, duration: took })
}
