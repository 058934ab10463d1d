//! Reopening after kill -9: how long until the first job starts, with a million jobs in the file and with few.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use duly::Event;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::child::Playing;
use crate::config::{KEEP_NONE, Setting, noop, open, url};
use crate::report::{Line, Unit};
use crate::single_job::millis;
use crate::stats::{Pair, Samples};

const GROUP: &str = "reopen";
/// How long the child pushes before it is killed, at least.
const WHILE: Duration = Duration::from_millis(50);
/// Longest wait for the first job.
const START_MAX: Duration = Duration::from_secs(30);
const GOAL_MS: f64 = 50.0;

pub(crate) async fn run(setting: &Setting) -> Result<Vec<Line>> {
    let dir = setting.fresh("reopen")?;
    let (few, many) = (dir.join("few.db"), dir.join("many.db"));
    let (mut pair, mut more, mut opens) = (Pair::default(), Samples::default(), Samples::default());
    for round in 0..setting.rounds() {
        let jobs = if round == 0 { setting.many() } else { 0 };
        let (_, base) = killed_and_reopened(&few, 0).await?;
        let (open, full) = killed_and_reopened(&many, jobs).await?;
        pair.record(full, base);
        opens.record(open);
        more.record(full - base);
        eprintln!("reopen: round {} of {}", round + 1, setting.rounds());
    }
    let name = |what: &str| format!("reopen after kill -9 with {} jobs: {what}", setting.many());
    let first = Line::pair(GROUP, name("first job starts"), Unit::Millis, "with few", &pair);
    let met = more.median() < GOAL_MS;
    Ok(vec![
        Line::alone(GROUP, name("open"), opens.median(), Unit::Millis),
        first.goal(format!("< {GOAL_MS:.0} ms more"), met),
    ])
}

/// Milliseconds until the file is open, and until its first job starts.
async fn killed_and_reopened(file: &Path, jobs: usize) -> Result<(f64, f64)> {
    let child = Playing::fill(&url(file, KEEP_NONE), jobs)?;
    tokio::time::sleep(WHILE).await;
    child.kill()?;

    let begin = Instant::now();
    let duly = open(file, KEEP_NONE).await?;
    let opened = millis(begin.elapsed());
    let stop = CancellationToken::new();
    let started = Arc::new(Notify::new());
    let tell = started.clone();
    let worker = duly.worker().queue("default", 1).on(noop).on_event(move |event| {
        if let Event::Started { .. } = event {
            tell.notify_one();
        }
    });
    let ended = tokio::spawn(worker.run_until(stop.clone()));
    tokio::time::timeout(START_MAX, started.notified()).await.context("no job has started")?;
    let first = millis(begin.elapsed());
    stop.cancel();
    ended.await??;
    Ok((opened, first))
}
