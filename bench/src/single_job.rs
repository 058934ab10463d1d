//! The round trip of a lone job: push, claim, settle, one at a time, against three bare syncs.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::baseline::Bare;
use crate::config::{DEFAULTS, KEEP_NONE, Noop, Setting, noop, open};
use crate::report::{Line, Unit};
use crate::stats::{Pair, Samples};
use crate::worker::Working;

const GROUP: &str = "lone";
/// Bytes of one overwrite.
const PAGE: usize = 4096;
/// Pages of the pre-grown file.
const PAGES: u64 = 1024;
/// A lone job is durable three times.
const SYNCS: u64 = 3;
/// The goal: so many times the three syncs, and so much more.
const GOAL: (f64, f64) = (1.3, 0.2);

pub(crate) async fn run(setting: &Setting) -> Result<Vec<Line>> {
    let trips = if setting.quick { 100 } else { 500 };
    let mut lines = Vec::new();
    for (options, suffix) in [(KEEP_NONE, ""), (DEFAULTS, ", defaults")] {
        let (mut pair, mut limit) = (Pair::default(), Pair::default());
        let (mut slowest, mut excess) = (Samples::default(), Samples::default());
        for _ in 0..setting.rounds() {
            let Round { ours, syncs, bare } = round(setting, options, trips).await?;
            pair.record(ours.median(), syncs.median());
            limit.record(ours.median(), bare.median());
            slowest.record(ours.percentile(99.0));
            excess.record(ours.median() - GOAL.0 * syncs.median());
        }
        let goal = format!("<= {}x + {} ms", GOAL.0, GOAL.1);
        let name = format!("lone push to settle, p50{suffix}");
        let line = Line::pair(GROUP, &name, Unit::Millis, "three syncs", &pair);
        lines.push(line.goal(goal, excess.median() <= GOAL.1));
        lines.push(Line::pair(GROUP, name, Unit::Millis, "bare loop", &limit));
        lines.push(Line::alone(GROUP, format!("lone push to settle, p99{suffix}"), slowest.median(), Unit::Millis));
    }
    Ok(lines)
}

/// Milliseconds of what was done in turn.
#[derive(Default)]
struct Round {
    ours: Samples,
    /// Three syncs.
    syncs: Samples,
    /// The same three commits in the bare loop: what SQLite adds to a sync.
    bare: Samples,
}

async fn round(setting: &Setting, options: &str, trips: usize) -> Result<Round> {
    let dir = setting.fresh("lone")?;
    let duly = open(&dir.join("duly.db"), options).await?;
    let working = Working::start(duly.worker().queue("default", 10).on(noop)).await?;
    let bare = Bare::make(&dir.join("bare.db")).await?;
    let mut disk = Disk::grow(&dir.join("raw"))?;
    let mut round = Round::default();
    for trip in 0..trips {
        let begin = Instant::now();
        duly.push(Noop::new()).await?;
        working.settled(trip + 1).await;
        round.ours.record(millis(begin.elapsed()));
        let begin = Instant::now();
        (0..SYNCS).try_for_each(|_| disk.overwrite())?;
        round.syncs.record(millis(begin.elapsed()));
        let begin = Instant::now();
        bare.live(1)?;
        round.bare.record(millis(begin.elapsed()));
    }
    working.stop().await?;
    Ok(round)
}

pub(crate) fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1_000.0
}

pub(crate) fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// A file that has its size already, overwritten page by page: the cheapest durable write there is.
struct Disk {
    file: File,
    at: u64,
}

impl Disk {
    fn grow(path: &Path) -> Result<Self> {
        let mut file = File::create(path)?;
        (0..PAGES).try_for_each(|_| file.write_all(&[1; PAGE]))?;
        file.sync_all()?;
        Ok(Disk { file, at: 0 })
    }

    fn overwrite(&mut self) -> Result<()> {
        self.file.seek(SeekFrom::Start(self.at % PAGES * PAGE as u64))?;
        self.file.write_all(&[self.at.to_le_bytes()[0]; PAGE])?;
        self.file.sync_data()?;
        self.at += 1;
        Ok(())
    }
}
