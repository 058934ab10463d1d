//! List: a page of 50 by each filter that has an index, and the counts, when a million jobs wait, against ten thousand.

use std::cell::Cell;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use duly::{Duly, Filter, Push};

use crate::growth::FEW;
use crate::report::{Line, Unit};
use crate::setting::{KEEP_NONE, Setting, fill, noop_args, url};
use crate::stats::{Pair, Samples};

const GROUP: &str = "list";
/// Looks of which the median is one round's figure.
const LOOKS: usize = 20;
/// What waits is due over so many days from tomorrow on.
const DAY: Duration = Duration::from_secs(24 * 3600);
const GOAL: f64 = 1.5;
/// In microseconds.
const MOST: f64 = 5_000.0;

pub(crate) const FILTERS: [&str; 4] = [
    "state:scheduled queue:default",
    "state:scheduled kind:k3",
    "state:scheduled tag:t42",
    "state:scheduled since:+26h until:+40h",
];

pub(crate) async fn run(setting: &Setting) -> Result<Vec<Line>> {
    let dir = setting.fresh("list")?;
    let mut stores = Vec::new();
    for (file, jobs) in [("few.db", FEW), ("many.db", setting.many())] {
        let duly = Duly::open(url(&dir.join(file), KEEP_NONE)).await?;
        schedule(&duly, jobs).await?;
        stores.push(duly);
    }
    measure(GROUP, setting, &stores, &FILTERS).await
}

/// So many jobs that are due over a day from tomorrow on, of ten kinds and a hundred tags.
pub(crate) async fn schedule(duly: &Duly, jobs: usize) -> Result<()> {
    let n = Cell::new(0u32);
    fill(duly, jobs, || {
        n.set(n.get() + 1);
        let spread = DAY.mul_f64(f64::from(n.get()) / jobs as f64);
        of(n.get()).after(DAY + spread)
    })
    .await
}

/// The nth job.
pub(crate) fn of(n: u32) -> Push {
    Push::new(format!("k{}", n % 10), noop_args()).tag(format!("t{}", n % 100))
}

/// Each filter, and the counts, in the second store against the first.
pub(crate) async fn measure(
    group: &'static str,
    setting: &Setting,
    stores: &[Duly],
    filters: &[&str],
) -> Result<Vec<Line>> {
    let mut lines = Vec::new();
    for text in filters {
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
