//! Growth: what a life costs when a million jobs wait, against ten thousand.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use duly::{Args, Push};

use crate::report::{Line, Unit};
use crate::setting::{KEEP_NONE, Noop, Setting, fill, noop, open};
use crate::stats::Pair;
use crate::worker::Working;

const GROUP: &str = "growth";
/// How many jobs "few" are.
const FEW: usize = 10_000;
/// Jobs per push, and at once in the worker.
const BATCH: usize = 100;
/// Scheduled jobs that are on their way at the same time.
const UNDER_WAY: usize = 10 * BATCH;
/// How long the scheduled jobs that are measured wait.
const SOON: Duration = Duration::from_millis(2);
/// How long the others wait.
const FAR: Duration = Duration::from_secs(24 * 3600);
const GOAL: f64 = 1.3;

/// What waits, and what is measured.
#[derive(Clone, Copy)]
enum Waiting {
    /// Ready jobs; each that is settled is replaced by one at the tail.
    Queued,
    /// Jobs of another day; those measured fall due soon, and pass all of scheduled, ready and held.
    Scheduled,
}

pub(crate) async fn run(setting: &Setting) -> Result<Vec<Line>> {
    let mut lines = Vec::new();
    for (waiting, name) in [(Waiting::Queued, "queued"), (Waiting::Scheduled, "scheduled")] {
        let dir = setting.fresh("growth")?;
        let (few, many) = (dir.join("few.db"), dir.join("many.db"));
        for (file, jobs) in [(&few, FEW), (&many, setting.many())] {
            let duly = open(file, KEEP_NONE).await?;
            fill(&duly, jobs, || waiting.job()).await?;
        }
        let mut pair = Pair::default();
        for round in 0..setting.rounds() {
            let base = micros_per_job(&few, waiting, setting.time()).await?;
            pair.record(micros_per_job(&many, waiting, setting.time()).await?, base);
            eprintln!("growth, {name}: round {} of {}", round + 1, setting.rounds());
        }
        let name = format!("cost per job, {} {name}", setting.many());
        lines.push(Line::pair(GROUP, name, Unit::Micros, &format!("at {FEW}"), &pair).ratio_at_most(GOAL));
    }
    Ok(lines)
}

impl Waiting {
    fn job(self) -> Push {
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

/// Wall time per job while as many are pushed as are settled, so that the number of waiting jobs stays.
async fn micros_per_job(file: &Path, waiting: Waiting, time: Duration) -> Result<f64> {
    let duly = open(file, KEEP_NONE).await?;
    let working = Working::start(duly.worker().queue("default", BATCH).on(noop)).await?;
    let push = || duly.push_all((0..BATCH).map(|_| waiting.measured()));
    let begin = Instant::now();
    if let Waiting::Scheduled = waiting {
        for _ in 0..UNDER_WAY / BATCH {
            push().await?;
        }
    }
    while begin.elapsed() < time {
        working.settled_more(BATCH as u32).await?;
        push().await?;
    }
    let (took, jobs) = (begin.elapsed(), working.count());
    working.stop().await?;
    Ok(took.as_secs_f64() * 1e6 / jobs as f64)
}
