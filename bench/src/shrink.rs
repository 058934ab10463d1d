//! Shrink: the size of the file after a drain.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use duly::store::JobStore;

use crate::config::{BenchConfig, Noop, noop, open_store, push_jobs};
use crate::report::{ReportLine, Unit};

const GROUP: &str = "shrink";
/// Ids of removed jobs are remembered only briefly, so that they do not affect the size.
const STORE_OPTIONS: &str = "?keep=0&remember_ids=1s";
/// More often than an idle worker prunes.
const PRUNE_INTERVAL: Duration = Duration::from_millis(1_100);
/// Both halves of the remembered ids must be pruned before the file shrinks.
const PRUNE_COUNT: usize = 3;
/// The maximum ratio of the final to the full file.
const GOAL_REMAINING_RATIO: f64 = 0.1;

pub(crate) async fn run(config: &BenchConfig) -> Result<Vec<ReportLine>> {
    let file = config.fresh_dir("shrink")?.join("duly.db");
    let duly = open_store(&file, STORE_OPTIONS).await?;
    push_jobs(&duly, (config.many_jobs() / 5).max(100_000), || Noop::new().into()).await?;
    let full = file_megabytes(&file)?;
    duly.worker().queue("default", 1_000).on(noop).drain().await?;
    let drained = file_megabytes(&file)?;
    for _ in 0..PRUNE_COUNT {
        tokio::time::sleep(PRUNE_INTERVAL).await;
        duly.store().prune("default", 10_000).await?;
    }
    let pruned = file_megabytes(&file)?;
    let line = |name: &str, value| ReportLine::single(GROUP, name, value, Unit::Megabytes).compared_to("full", full);
    Ok(vec![
        line("file, drained", drained),
        line("file, drained and pruned", pruned).ratio_at_most(GOAL_REMAINING_RATIO),
    ])
}

fn file_megabytes(file: &Path) -> Result<f64> {
    Ok(std::fs::metadata(file)?.len() as f64 / 1e6)
}
