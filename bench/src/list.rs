//! List: a page of 50 by each filter that has an index, and the counts, when a million jobs wait, against ten thousand.

use std::cell::Cell;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use duly::{Ctx, Duly, Filter, Push};

use crate::config::{DEFAULTS, Setting, fill, noop_args, open};
use crate::growth::FEW;
use crate::report::{Line, Unit};
use crate::stats::{Pair, Samples};
use crate::worker::Working;

const GROUP: &str = "list";
/// Looks of which the median is one round's figure.
const LOOKS: usize = 20;
/// What waits is due over so many days from tomorrow on.
const DAY: Duration = Duration::from_secs(24 * 3600);
/// Dead jobs beside ten thousand that wait, and beside a million; a tenth as many are done.
const ENDED_FEW: usize = 5_000;
const ENDED_MANY: usize = 100_000;
/// Jobs at once of the worker that ends them.
const CONCURRENCY: usize = 1_000;
const GOAL: f64 = 1.5;
/// In microseconds.
const MOST: f64 = 5_000.0;

/// As docs/reference/filter.md calls them quick; the group of a kind comes besides.
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
/// The kind whose group is listed.
const GROUPED: &str = "k3";

pub(crate) async fn run(setting: &Setting) -> Result<Vec<Line>> {
    let dir = setting.fresh("list")?;
    let mut stores = Vec::new();
    for (file, size) in ["few.db", "many.db"].into_iter().zip(sizes(setting)) {
        let duly = open(&dir.join(file), DEFAULTS).await?;
        furnish(&duly, size).await?;
        stores.push(duly);
    }
    measure(GROUP, setting, &stores).await
}

/// How much is in a store.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    waiting: usize,
    dead: usize,
}

/// Of the small store, and of the large one.
pub(crate) fn sizes(setting: &Setting) -> [Size; 2] {
    let dead = if setting.quick { ENDED_FEW } else { ENDED_MANY };
    [Size { waiting: FEW, dead: ENDED_FEW }, Size { waiting: setting.many(), dead }]
}

/// Lets so many jobs die, a tenth as many be done, and so many wait.
pub(crate) async fn furnish(duly: &Duly, size: Size) -> Result<()> {
    end(duly, size.dead).await?;
    schedule(duly, size.waiting).await
}

async fn end(duly: &Duly, jobs: usize) -> Result<()> {
    let n = Cell::new(0u32);
    fill(duly, jobs, || {
        n.set(n.get() + 1);
        of(n.get()).max_attempts(1)
    })
    .await?;
    // All kept alike.
    fill(duly, jobs / 10, || Push::new("done", "null").keep(DAY)).await?;
    let ends = |ctx: Ctx| async move {
        match ctx.job().kind.as_str() {
            "done" => Ok(()),
            _ => Err("no such thing"),
        }
    };
    let working = Working::start(duly.worker().queue("default", CONCURRENCY).on_any_kind(ends)).await?;
    working.settled(jobs + jobs / 10).await;
    working.stop().await?;
    Ok(())
}

/// So many jobs that are due over a day from tomorrow on, of ten kinds and a hundred tags.
async fn schedule(duly: &Duly, jobs: usize) -> Result<()> {
    let n = Cell::new(0u32);
    fill(duly, jobs, || {
        n.set(n.get() + 1);
        let spread = DAY.mul_f64(f64::from(n.get()) / jobs as f64);
        of(n.get()).after(DAY + spread)
    })
    .await
}

/// The nth job.
fn of(n: u32) -> Push {
    Push::new(format!("k{}", n % 10), noop_args()).tag(format!("t{}", n % 100))
}

/// Each filter, and the counts, in the second store against the first.
pub(crate) async fn measure(group: &'static str, setting: &Setting, stores: &[Duly]) -> Result<Vec<Line>> {
    let groups = stores[0].dead_groups(None).await?;
    // The same in both stores: it is made of kind and error.
    let dead = groups.into_iter().find(|dead| dead.kind == GROUPED).context("no group of dead jobs")?;
    let mut lines = Vec::new();
    for text in FILTERS.map(str::to_owned).into_iter().chain([format!("state:dead group:{}", dead.id)]) {
        let filter: Filter = text.parse()?;
        let mut pair = Pair::default();
        for _ in 0..setting.rounds() {
            let base = page(&stores[0], &filter).await?;
            pair.record(page(&stores[1], &filter).await?, base);
        }
        let name = format!("a page of 50 of {}, {text}", setting.many());
        lines.push(line(group, name, &pair));
    }
    let mut pair = Pair::default();
    for _ in 0..setting.rounds() {
        let base = counts(&stores[0]).await?;
        pair.record(counts(&stores[1]).await?, base);
    }
    lines.push(line(group, format!("counts of {}", setting.many()), &pair));
    Ok(lines)
}

fn line(group: &'static str, name: String, pair: &Pair) -> Line {
    Line::pair(group, name, Unit::Micros, &format!("at {FEW}"), pair).ratio_at_most(GOAL).below(MOST)
}

async fn page(duly: &Duly, filter: &Filter) -> Result<f64> {
    let mut samples = Samples::default();
    for _ in 0..LOOKS {
        let begin = Instant::now();
        let page = duly.list(filter.clone()).await?;
        samples.record(begin.elapsed().as_secs_f64() * 1e6);
        ensure!(page.jobs.len() == 50, "{} jobs on a page of {filter}", page.jobs.len());
    }
    Ok(samples.median())
}

async fn counts(duly: &Duly) -> Result<f64> {
    let mut samples = Samples::default();
    for _ in 0..LOOKS {
        let begin = Instant::now();
        ensure!(!duly.counts().await?.is_empty(), "no queue");
        samples.record(begin.elapsed().as_secs_f64() * 1e6);
    }
    Ok(samples.median())
}
