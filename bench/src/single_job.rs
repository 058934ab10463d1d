//! The round trip of a single job: push, claim and settle, one at a time, compared to three bare syncs.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::baseline::SqliteBaseline;
use crate::config::{BenchConfig, DEFAULTS, KEEP_NONE, Noop, noop, open_store};
use crate::report::{ReportLine, Unit};
use crate::stats::{Comparison, Samples};
use crate::worker::MeasuredWorker;

const GROUP: &str = "single-job";
/// The bytes of one overwrite.
const PAGE_BYTES: usize = 4096;
/// The pages of the file.
const FILE_PAGES: u64 = 1024;
/// A single job needs three commits.
const SYNCS_PER_JOB: u64 = 3;
/// The goal: this factor of the three syncs, plus this many milliseconds.
const GOAL_RATIO_AND_MILLIS: (f64, f64) = (1.3, 0.2);

pub(crate) async fn run(config: &BenchConfig) -> Result<Vec<ReportLine>> {
    let trips = if config.is_quick { 100 } else { 500 };
    let mut lines = Vec::new();
    for (options, suffix) in [(KEEP_NONE, ""), (DEFAULTS, ", defaults")] {
        let (mut to_syncs, mut to_baseline) = (Comparison::default(), Comparison::default());
        let (mut slowest, mut excess) = (Samples::default(), Samples::default());
        for _ in 0..config.round_count() {
            let SingleJobSamples { ours, syncs, baseline } = run_round(config, options, trips).await?;
            to_syncs.record(ours.median(), syncs.median());
            to_baseline.record(ours.median(), baseline.median());
            slowest.record(ours.percentile(99.0));
            excess.record(ours.median() - GOAL_RATIO_AND_MILLIS.0 * syncs.median());
        }
        let goal = format!("<= {}x + {} ms", GOAL_RATIO_AND_MILLIS.0, GOAL_RATIO_AND_MILLIS.1);
        let name = format!("single job, push to settle, p50{suffix}");
        let line = ReportLine::comparison(GROUP, &name, Unit::Millis, "three syncs", &to_syncs);
        lines.push(line.with_goal(goal, excess.median() <= GOAL_RATIO_AND_MILLIS.1));
        lines.push(ReportLine::comparison(GROUP, name, Unit::Millis, "bare loop", &to_baseline));
        lines.push(ReportLine::single(
            GROUP,
            format!("single job, push to settle, p99{suffix}"),
            slowest.median(),
            Unit::Millis,
        ));
    }
    Ok(lines)
}

/// Milliseconds of the three measurements, which alternate.
#[derive(Default)]
struct SingleJobSamples {
    ours: Samples,
    /// Three syncs.
    syncs: Samples,
    /// The same three commits in the bare loop, which include the overhead of SQLite.
    baseline: Samples,
}

async fn run_round(config: &BenchConfig, options: &str, trips: usize) -> Result<SingleJobSamples> {
    let dir = config.fresh_dir(GROUP)?;
    let duly = open_store(&dir.join("duly.db"), options).await?;
    let worker_run = MeasuredWorker::start(duly.worker().queue("default", 10).on(noop)).await?;
    let baseline = SqliteBaseline::create(&dir.join("bare.db")).await?;
    let mut disk = SyncedFile::create(&dir.join("raw"))?;
    let mut round = SingleJobSamples::default();
    for trip in 0..trips {
        let begin = Instant::now();
        duly.push(Noop::new()).await?;
        worker_run.wait_settled(trip + 1).await;
        round.ours.record(to_millis(begin.elapsed()));
        let begin = Instant::now();
        (0..SYNCS_PER_JOB).try_for_each(|_| disk.overwrite_page())?;
        round.syncs.record(to_millis(begin.elapsed()));
        let begin = Instant::now();
        baseline.run_lifecycle(1)?;
        round.baseline.record(to_millis(begin.elapsed()));
    }
    worker_run.stop().await?;
    Ok(round)
}

pub(crate) fn to_millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1_000.0
}

pub(crate) fn to_micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// A file of fixed size, overwritten page by page: the cheapest durable write.
struct SyncedFile {
    file: File,
    overwrites: u64,
}

impl SyncedFile {
    fn create(path: &Path) -> Result<Self> {
        let mut file = File::create(path)?;
        (0..FILE_PAGES).try_for_each(|_| file.write_all(&[1; PAGE_BYTES]))?;
        file.sync_all()?;
        Ok(SyncedFile { file, overwrites: 0 })
    }

    fn overwrite_page(&mut self) -> Result<()> {
        self.file.seek(SeekFrom::Start(self.overwrites % FILE_PAGES * PAGE_BYTES as u64))?;
        self.file.write_all(&[self.overwrites.to_le_bytes()[0]; PAGE_BYTES])?;
        self.file.sync_data()?;
        self.overwrites += 1;
        Ok(())
    }
}
