//! Locks: what it costs to take and release one that nobody wants, and how soon one that is released is held elsewhere.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use duly::{Duly, Guard};
use tokio::task::JoinSet;

use crate::child::{Playing, monotonic_us, tell};
use crate::config::{DEFAULTS, Setting, open, url};
use crate::report::{Line, Unit};
use crate::single_job::micros;
use crate::stats::Samples;

const GROUP: &str = "lock";
/// The lock that nobody else wants.
const LONE: &str = "lone";
/// The lock that many want.
pub(crate) const CROWDED: &str = "crowded";
/// So many are taken before the measuring begins: connections, scripts and tables are there then.
pub(crate) const WARM: usize = 5;
/// From the moment at which somebody stands in line until the lock is released: the line is quiet again then.
const STEP: Duration = Duration::from_millis(10);
/// Longest wait for somebody to stand in line.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) async fn run(setting: &Setting) -> Result<Vec<Line>> {
    let file = setting.fresh(GROUP)?.join("duly.db");
    let duly = open(&file, DEFAULTS).await?;
    let mut lone = Samples::default();
    for at in 0..WARM + if setting.quick { 100 } else { 2_000 } {
        let took = lock_and_unlock(&duly).await?;
        if at >= WARM {
            lone.record(took);
        }
    }
    let mut handed = Samples::default();
    let mut handing = Handing::start(&duly, &url(&file, DEFAULTS)).await?;
    for _ in 0..if setting.quick { 20 } else { 500 } {
        handed.record(handing.next().await?);
    }
    let line = |what: &str, value| Line::alone(GROUP, what, value, Unit::Millis);
    Ok(vec![
        line("lock and unlock, p50", lone.median() / 1_000.0),
        line("lock and unlock, p99", lone.percentile(99.0) / 1_000.0),
        line("hand-over to a waiter in another process, p50", handed.median()),
        line("hand-over to a waiter in another process, p99", handed.percentile(99.0)),
    ])
}

/// Microseconds to take and release a lock that nobody else wants.
pub(crate) async fn lock_and_unlock(duly: &Duly) -> Result<f64> {
    let begin = Instant::now();
    let guard = duly.lock(LONE).try_acquire().await?.context("the lock is not free")?;
    guard.release().await?;
    Ok(micros(begin.elapsed()))
}

/// Locks that are handed on to a process that waits for them, each under a name of its own.
pub(crate) struct Handing {
    duly: Duly,
    child: Playing,
    no: usize,
    /// The one that is waited for.
    held: Guard,
}

impl Handing {
    /// Takes the first lock, has another process wait for it, and hands on a few.
    pub(crate) async fn start(duly: &Duly, url: &str) -> Result<Self> {
        let held = handed(duly, 0).await?;
        let mut handing = Handing { duly: duly.clone(), child: Playing::take(url)?, no: 0, held };
        for _ in 0..WARM {
            handing.next().await?;
        }
        Ok(handing)
    }

    /// Milliseconds from the call of release until the other process holds the lock.
    pub(crate) async fn next(&mut self) -> Result<f64> {
        // Before the other one can get there.
        let next = handed(&self.duly, self.no + 1).await?;
        until_waiting(&self.duly, &name(self.no), 1).await?;
        tokio::time::sleep(STEP).await;
        let called = monotonic_us();
        self.held.release().await?;
        let start = self.child.next_start()?;
        ensure!(start.no == self.no, "lock {} was got instead of {}", start.no, self.no);
        self.no += 1;
        self.held = next;
        Ok((start.monotonic_us as f64 - called as f64) / 1_000.0)
    }

    /// The lock that is held and the process that waits for it.
    pub(crate) fn rest(self) -> (Guard, Playing) {
        (self.held, self.child)
    }
}

fn name(no: usize) -> String {
    format!("handed:{no}")
}

async fn handed(duly: &Duly, no: usize) -> Result<Guard> {
    duly.lock(name(no)).try_acquire().await?.context("the lock is not free")
}

/// Waits until so many stand in line for a lock that is held.
pub(crate) async fn until_waiting(duly: &Duly, name: &str, waiters: usize) -> Result<()> {
    let by = Instant::now() + PATIENCE;
    while duly.lock(name).checked().await?.is_none_or(|held| held.waiting < waiters as u64) {
        ensure!(Instant::now() < by, "{waiters} do not stand in line for {name}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

/// The child that [`Handing`] hands locks to.
pub(crate) async fn take(duly: &Duly) -> Result<()> {
    println!("ready");
    for no in 0.. {
        let guard = duly.lock(name(no)).acquire().await?;
        tell(no)?;
        guard.release().await?;
    }
    Ok(())
}

/// A child of which so many tasks want one lock, so often each.
pub(crate) async fn crowd(duly: &Duly, waiters: usize, times: usize) -> Result<()> {
    println!("ready");
    let mut tasks: JoinSet<duly::Result<()>> = JoinSet::new();
    for _ in 0..waiters {
        let duly = duly.clone();
        tasks.spawn(async move {
            for _ in 0..times {
                duly.lock(CROWDED).acquire().await?.release().await?;
            }
            Ok(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    tell(waiters * times)?;
    // Leaving is not what is measured.
    std::future::pending().await
}
