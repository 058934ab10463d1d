//! The round trip of a lone job: push, claim, settle, one at a time, against three bare syncs.

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

const GROUP: &str = "lone";
/// Bytes of one overwrite.
const PAGE_BYTES: usize = 4096;
/// Pages of the pre-grown file.
const FILE_PAGES: u64 = 1024;
/// A lone job is durable three times.
const SYNCS_PER_JOB: u64 = 3;
/// The goal: so many times the three syncs, and so much more.
const GOAL_RATIO_AND_MILLIS: (f64, f64) = (1.3, 0.2);

pub(crate) async fn run(setting: &BenchConfig) -> Result<Vec<ReportLine>> {
    let trips = if setting.is_quick { 100 } else { 500 };
    let mut lines = Vec::new();
    for (options, suffix) in [(KEEP_NONE, ""), (DEFAULTS, ", defaults")] {
        let (mut pair, mut limit) = (Comparison::default(), Comparison::default());
        let (mut slowest, mut excess) = (Samples::default(), Samples::default());
        for _ in 0..setting.round_count() {
            let SingleJobSamples { ours, syncs, baseline: bare } = run_round(setting, options, trips).await?;
            pair.record(ours.median(), syncs.median());
            limit.record(ours.median(), bare.median());
            slowest.record(ours.percentile(99.0));
            excess.record(ours.median() - GOAL_RATIO_AND_MILLIS.0 * syncs.median());
        }
        let goal = format!("<= {}x + {} ms", GOAL_RATIO_AND_MILLIS.0, GOAL_RATIO_AND_MILLIS.1);
        let name = format!("lone push to settle, p50{suffix}");
        let line = ReportLine::comparison(GROUP, &name, Unit::Millis, "three syncs", &pair);
        lines.push(line.with_goal(goal, excess.median() <= GOAL_RATIO_AND_MILLIS.1));
        lines.push(ReportLine::comparison(GROUP, name, Unit::Millis, "bare loop", &limit));
        lines.push(ReportLine::single(
            GROUP,
            format!("lone push to settle, p99{suffix}"),
            slowest.median(),
            Unit::Millis,
        ));
    }
    Ok(lines)
}

/// Milliseconds of what was done in turn.
#[derive(Default)]
struct SingleJobSamples {
    ours: Samples,
    /// Three syncs.
    syncs: Samples,
    /// The same three commits in the bare loop: what SQLite adds to a sync.
    baseline: Samples,
}

async fn run_round(setting: &BenchConfig, options: &str, trips: usize) -> Result<SingleJobSamples> {
    let dir = setting.fresh_dir("lone")?;
    let duly = open_store(&dir.join("duly.db"), options).await?;
    let working = MeasuredWorker::start(duly.worker().queue("default", 10).on(noop)).await?;
    let bare = SqliteBaseline::create(&dir.join("bare.db")).await?;
    let mut disk = SyncedFile::create(&dir.join("raw"))?;
    let mut round = SingleJobSamples::default();
    for trip in 0..trips {
        let begin = Instant::now();
        duly.push(Noop::new()).await?;
        working.wait_settled(trip + 1).await;
        round.ours.record(to_millis(begin.elapsed()));
        let begin = Instant::now();
        (0..SYNCS_PER_JOB).try_for_each(|_| disk.overwrite_page())?;
        round.syncs.record(to_millis(begin.elapsed()));
        let begin = Instant::now();
        bare.run_lifecycle(1)?;
        round.baseline.record(to_millis(begin.elapsed()));
    }
    working.stop().await?;
    Ok(round)
}

pub(crate) fn to_millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1_000.0
}

pub(crate) fn to_micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// A file that has its size already, overwritten page by page: the cheapest durable write there is.
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
