//! Growth: what a life costs when a million jobs wait, against ten thousand.

use std::time::{Duration, Instant};

use anyhow::Result;
use duly::{Args, Duly, Push};

use crate::config::{KEEP_NONE, Noop, Setting, fill, noop, url};
use crate::report::{Line, Unit};
use crate::stats::Pair;
use crate::worker::Working;

/// How many jobs "few" are.
pub(crate) const FEW: usize = 10_000;
const GROUP: &str = "growth";
/// Jobs per push, and at once in the worker.
pub(crate) const BATCH: usize = 100;
/// Batches of scheduled jobs that are on their way at the same time.
const UNDER_WAY: usize = 10;
/// How long the scheduled jobs that are measured wait.
const SOON: Duration = Duration::from_millis(2);
/// How long the others wait.
const FAR: Duration = Duration::from_secs(24 * 3600);
const GOAL: f64 = 1.3;

/// What waits, and what is measured.
#[derive(Clone, Copy)]
pub(crate) enum Waiting {
    /// Ready jobs; each that is settled is replaced by one at the tail.
    Queued,
    /// Jobs of another day; those measured fall due soon, and pass all of scheduled, ready and held.
    Scheduled,
}

pub(crate) async fn run(setting: &Setting) -> Result<Vec<Line>> {
    let mut lines = Vec::new();
    for (waiting, name) in [(Waiting::Queued, "queued"), (Waiting::Scheduled, "scheduled")] {
        let dir = setting.fresh("growth")?;
        let (few, many) = (url(&dir.join("few.db"), KEEP_NONE), url(&dir.join("many.db"), KEEP_NONE));
        for (url, jobs) in [(&few, FEW), (&many, setting.many())] {
            let duly = Duly::open(url).await?;
            fill(&duly, jobs, || waiting.job()).await?;
        }
        let mut pair = Pair::default();
        for round in 0..setting.rounds() {
            let base = steady(&few, waiting, BATCH, setting.time()).await?.micros_per_job();
            pair.record(steady(&many, waiting, BATCH, setting.time()).await?.micros_per_job(), base);
            eprintln!("growth, {name}: round {} of {}", round + 1, setting.rounds());
        }
        let name = format!("cost per job, {} {name}", setting.many());
        lines.push(Line::pair(GROUP, name, Unit::Micros, &format!("at {FEW}"), &pair).ratio_at_most(GOAL));
    }
    Ok(lines)
}

impl Waiting {
    pub(crate) fn job(self) -> Push {
        match self {
            Waiting::Queued => Noop::new().into(),
            Waiting::Scheduled => Noop::new().after(FAR),
        }
    }

    /// A job whose life is measured.
    fn measured(self) -> Push {
        match self {
            Waiting::Queued => Noop::new().into(),
            Waiting::Scheduled => Noop::new().after(SOON),
        }
    }
}

/// What was done in how much time.
pub(crate) struct Steady {
    /// Whole lives: as many were pushed, up to a batch.
    pub(crate) jobs: usize,
    /// Settled when the time was over.
    in_time: usize,
    took: Duration,
}

impl Steady {
    /// Wall time per job.
    pub(crate) fn micros_per_job(&self) -> f64 {
        self.took.as_secs_f64() * 1e6 / self.in_time as f64
    }
}

/// Pushes as many jobs as are settled, so that the number of waiting jobs stays.
pub(crate) async fn steady(url: &str, waiting: Waiting, batch: usize, time: Duration) -> Result<Steady> {
    let duly = Duly::open(url).await?;
    let working = Working::start(duly.worker().queue("default", batch).on(noop)).await?;
    let push = || duly.push_all((0..batch).map(|_| waiting.measured()));
    let (begin, mut pushed) = (Instant::now(), 0);
    if let Waiting::Scheduled = waiting {
        for _ in 0..UNDER_WAY {
            push().await?;
            pushed += batch;
        }
    }
    while begin.elapsed() < time {
        working.settled_more(u32::try_from(batch)?).await?;
        push().await?;
        pushed += batch;
    }
    let (took, in_time) = (begin.elapsed(), working.count());
    let jobs = usize::try_from(working.stop().await?.acked)?;
    // What the worker was ahead of the pushes is theirs to pay for too.
    while pushed < jobs {
        push().await?;
        pushed += batch;
    }
    Ok(Steady { jobs, in_time, took })
}
