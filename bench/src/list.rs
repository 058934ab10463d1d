//! List: a page of 50 for each indexed filter, and the counts, with a million waiting jobs compared to ten thousand.

use std::cell::Cell;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use duly::{Ctx, Duly, Filter, Push};

use crate::config::{BenchConfig, DEFAULTS, noop_args, open_store, push_jobs};
use crate::growth::FEW_JOBS;
use crate::report::{ReportLine, Unit};
use crate::stats::{Comparison, Samples};
use crate::worker::MeasuredWorker;

const GROUP: &str = "list";
/// Queries per round; the figure is their median.
const SAMPLES_PER_ROUND: usize = 20;
/// Waiting jobs are due over one day from tomorrow on.
const DAY: Duration = Duration::from_secs(24 * 3600);
/// Dead jobs of the small and of the large store; a tenth as many are done.
const FEW_DEAD_JOBS: usize = 5_000;
const MANY_DEAD_JOBS: usize = 100_000;
/// The concurrency of the worker that ends them.
const CONCURRENCY: usize = 1_000;
const GOAL_RATIO: f64 = 1.5;
const GOAL_MICROS: f64 = 5_000.0;

/// The indexed filters of docs/reference/filter.md; `measure` adds the group of a kind.
const FILTERS: [&str; 9] = [
    "state:scheduled queue:default",
    "state:scheduled kind:k3",
    "state:scheduled tag:t42",
    "state:scheduled since:+26h until:+40h",
    "state:dead",
    "state:dead kind:k3",
    "state:dead tag:t42",
    "state:dead since:1h",
    "state:done since:1h",
];
/// The kind of the listed group.
const GROUPED_KIND: &str = "k3";

pub(crate) async fn run(config: &BenchConfig) -> Result<Vec<ReportLine>> {
    let dir = config.fresh_dir("list")?;
    let mut stores = Vec::new();
    for (file, size) in ["few.db", "many.db"].into_iter().zip(store_sizes(config)) {
        let duly = open_store(&dir.join(file), DEFAULTS).await?;
        fill_store(&duly, size).await?;
        stores.push(duly);
    }
    measure(GROUP, config, &stores).await
}

/// The number of jobs in a store.
#[derive(Clone, Copy)]
pub(crate) struct StoreSize {
    scheduled: usize,
    dead: usize,
}

/// Returns the sizes of the small and of the large store.
pub(crate) fn store_sizes(config: &BenchConfig) -> [StoreSize; 2] {
    let dead = if config.is_quick { FEW_DEAD_JOBS } else { MANY_DEAD_JOBS };
    [StoreSize { scheduled: FEW_JOBS, dead: FEW_DEAD_JOBS }, StoreSize { scheduled: config.many_jobs(), dead }]
}

/// Adds dead jobs, a tenth as many done jobs, and scheduled jobs.
pub(crate) async fn fill_store(duly: &Duly, size: StoreSize) -> Result<()> {
    add_ended_jobs(duly, size.dead).await?;
    add_scheduled_jobs(duly, size.scheduled).await
}

async fn add_ended_jobs(duly: &Duly, jobs: usize) -> Result<()> {
    let n = Cell::new(0u32);
    push_jobs(duly, jobs, || {
        n.set(n.get() + 1);
        nth_job(n.get()).max_attempts(1)
    })
    .await?;
    // An explicit keep time, independent of the store's default.
    push_jobs(duly, jobs / 10, || Push::new("done", "null").keep(DAY)).await?;
    let end_job = |ctx: Ctx| async move {
        match ctx.job().kind.as_str() {
            "done" => Ok(()),
            _ => Err("no such thing"),
        }
    };
    let worker_run = MeasuredWorker::start(duly.worker().queue("default", CONCURRENCY).on_any_kind(end_job)).await?;
    worker_run.wait_settled(jobs + jobs / 10).await;
    worker_run.stop().await?;
    Ok(())
}

/// Adds jobs that are due over a day from tomorrow on, with ten kinds and a hundred tags.
async fn add_scheduled_jobs(duly: &Duly, jobs: usize) -> Result<()> {
    let n = Cell::new(0u32);
    push_jobs(duly, jobs, || {
        n.set(n.get() + 1);
        let spread = DAY.mul_f64(f64::from(n.get()) / jobs as f64);
        nth_job(n.get()).after(DAY + spread)
    })
    .await
}

/// Returns the nth job.
fn nth_job(n: u32) -> Push {
    Push::new(format!("k{}", n % 10), noop_args()).tag(format!("t{}", n % 100))
}

/// Measures each filter and the counts in the second store, compared to the first.
pub(crate) async fn measure(group: &'static str, config: &BenchConfig, stores: &[Duly]) -> Result<Vec<ReportLine>> {
    let groups = stores[0].jobs().dead_groups(None).await?;
    // The id of a group derives from kind and error, so it is the same in both stores.
    let dead = groups.into_iter().find(|dead| dead.kind == GROUPED_KIND).context("no group of dead jobs")?;
    let mut lines = Vec::new();
    for text in FILTERS.map(str::to_owned).into_iter().chain([format!("state:dead group:{}", dead.id)]) {
        let filter: Filter = text.parse()?;
        let mut pair = Comparison::default();
        for _ in 0..config.round_count() {
            let base = measure_page(&stores[0], &filter).await?;
            pair.record(measure_page(&stores[1], &filter).await?, base);
        }
        let name = format!("a page of 50 of {}, {text}", config.many_jobs());
        lines.push(report_line(group, name, &pair));
    }
    let mut pair = Comparison::default();
    for _ in 0..config.round_count() {
        let base = measure_counts(&stores[0]).await?;
        pair.record(measure_counts(&stores[1]).await?, base);
    }
    lines.push(report_line(group, format!("counts of {}", config.many_jobs()), &pair));
    Ok(lines)
}

fn report_line(group: &'static str, name: String, pair: &Comparison) -> ReportLine {
    ReportLine::comparison(group, name, Unit::Micros, &format!("at {FEW_JOBS}"), pair)
        .ratio_at_most(GOAL_RATIO)
        .value_below(GOAL_MICROS)
}

async fn measure_page(duly: &Duly, filter: &Filter) -> Result<f64> {
    let mut samples = Samples::default();
    for _ in 0..SAMPLES_PER_ROUND {
        let begin = Instant::now();
        let page = duly.jobs().list(filter.clone()).await?;
        samples.record(begin.elapsed().as_secs_f64() * 1e6);
        ensure!(page.jobs.len() == 50, "{} jobs on a page of {filter}", page.jobs.len());
    }
    Ok(samples.median())
}

async fn measure_counts(duly: &Duly) -> Result<f64> {
    let mut samples = Samples::default();
    for _ in 0..SAMPLES_PER_ROUND {
        let begin = Instant::now();
        ensure!(!duly.queues().counts().await?.is_empty(), "no queue");
        samples.record(begin.elapsed().as_secs_f64() * 1e6);
    }
    Ok(samples.median())
}
