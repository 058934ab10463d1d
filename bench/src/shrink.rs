//! The file after a drain: does it give its room back?

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use crate::config::{Noop, Setting, fill, noop, open};
use crate::report::{Line, Unit};

const GROUP: &str = "shrink";
/// Ids of gone jobs are remembered only so long, so that nothing but the drain decides.
const OPTIONS: &str = "?keep=0&remember=1s";
/// More often than a worker that has nothing else to do.
const PRUNE: Duration = Duration::from_millis(1_100);
/// Both halves of the remembered ids must go, then the file shrinks.
const PRUNES: usize = 3;
/// Most of the full file that may be left.
const LEFT_MAX: f64 = 0.1;

pub(crate) async fn run(setting: &Setting) -> Result<Vec<Line>> {
    let file = setting.fresh("shrink")?.join("duly.db");
    let duly = open(&file, OPTIONS).await?;
    fill(&duly, (setting.many() / 5).max(100_000), || Noop::new().into()).await?;
    let full = megabytes(&file)?;
    duly.worker().queue("default", 1_000).on(noop).drain().await?;
    let drained = megabytes(&file)?;
    for _ in 0..PRUNES {
        tokio::time::sleep(PRUNE).await;
        duly.store().prune("default", 10_000).await?;
    }
    let left = megabytes(&file)?;
    let line = |name: &str, value| Line::alone(GROUP, name, value, Unit::Megabytes).against("full", full);
    Ok(vec![line("file, drained", drained), line("file, drained and pruned", left).ratio_at_most(LEFT_MAX)])
}

fn megabytes(file: &Path) -> Result<f64> {
    Ok(std::fs::metadata(file)?.len() as f64 / 1e6)
}
