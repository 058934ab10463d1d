//! Locks: what it costs to take and release one that nobody wants, and how soon one that is released is held elsewhere.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use duly::{Duly, Guard};
use tokio::task::JoinSet;

use crate::child::{BenchProcess, monotonic_us, report_start};
use crate::config::{BenchConfig, DEFAULTS, open_store, store_url};
use crate::report::{ReportLine, Unit};
use crate::single_job::to_micros;
use crate::stats::Samples;

const GROUP: &str = "lock";
/// The lock that nobody else wants.
const UNCONTENDED_LOCK: &str = "lone";
/// The lock that many want.
pub(crate) const CONTENDED_LOCK: &str = "crowded";
/// So many are taken before the measuring begins: connections, scripts and tables are there then.
pub(crate) const WARMUP_LOCKS: usize = 5;
/// From the moment at which somebody stands in line until the lock is released: the line is quiet again then.
const SETTLE_DELAY: Duration = Duration::from_millis(10);
/// Longest wait for somebody to stand in line.
const WAITERS_TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) async fn run(setting: &BenchConfig) -> Result<Vec<ReportLine>> {
    let file = setting.fresh_dir(GROUP)?.join("duly.db");
    let duly = open_store(&file, DEFAULTS).await?;
    let mut lone = Samples::default();
    for at in 0..WARMUP_LOCKS + if setting.is_quick { 100 } else { 2_000 } {
        let took = measure_lock_and_unlock(&duly).await?;
        if at >= WARMUP_LOCKS {
            lone.record(took);
        }
    }
    let mut handed = Samples::default();
    let mut handing = HandOver::start(&duly, &store_url(&file, DEFAULTS)).await?;
    for _ in 0..if setting.is_quick { 20 } else { 500 } {
        handed.record(handing.measure_next().await?);
    }
    let line = |what: &str, value| ReportLine::single(GROUP, what, value, Unit::Millis);
    Ok(vec![
        line("lock and unlock, p50", lone.median() / 1_000.0),
        line("lock and unlock, p99", lone.percentile(99.0) / 1_000.0),
        line("hand-over to a waiter in another process, p50", handed.median()),
        line("hand-over to a waiter in another process, p99", handed.percentile(99.0)),
    ])
}

/// Microseconds to take and release a lock that nobody else wants.
pub(crate) async fn measure_lock_and_unlock(duly: &Duly) -> Result<f64> {
    let begin = Instant::now();
    let guard = duly.lock(UNCONTENDED_LOCK).try_acquire().await?.context("the lock is not free")?;
    guard.release().await?;
    Ok(to_micros(begin.elapsed()))
}

/// Locks that are handed on to a process that waits for them, each under a name of its own.
pub(crate) struct HandOver {
    duly: Duly,
    child: BenchProcess,
    next_no: usize,
    /// The one that is waited for.
    held: Guard,
}

impl HandOver {
    /// Takes the first lock, has another process wait for it, and hands on a few.
    pub(crate) async fn start(duly: &Duly, url: &str) -> Result<Self> {
        let held = acquire_lock(duly, 0).await?;
        let mut handing =
            HandOver { duly: duly.clone(), child: BenchProcess::start_lock_taker(url)?, next_no: 0, held };
        for _ in 0..WARMUP_LOCKS {
            handing.measure_next().await?;
        }
        Ok(handing)
    }

    /// Milliseconds from the call of release until the other process holds the lock.
    pub(crate) async fn measure_next(&mut self) -> Result<f64> {
        // Before the other one can get there.
        let next = acquire_lock(&self.duly, self.next_no + 1).await?;
        wait_for_waiters(&self.duly, &lock_name(self.next_no), 1).await?;
        tokio::time::sleep(SETTLE_DELAY).await;
        let called = monotonic_us();
        self.held.release().await?;
        let start = self.child.next_start()?;
        ensure!(start.no == self.next_no, "lock {} was got instead of {}", start.no, self.next_no);
        self.next_no += 1;
        self.held = next;
        Ok((start.monotonic_us as f64 - called as f64) / 1_000.0)
    }

    /// The lock that is held and the process that waits for it.
    pub(crate) fn into_parts(self) -> (Guard, BenchProcess) {
        (self.held, self.child)
    }
}

fn lock_name(no: usize) -> String {
    format!("handed:{no}")
}

async fn acquire_lock(duly: &Duly, no: usize) -> Result<Guard> {
    duly.lock(lock_name(no)).try_acquire().await?.context("the lock is not free")
}

/// Waits until so many stand in line for a lock that is held.
pub(crate) async fn wait_for_waiters(duly: &Duly, name: &str, waiters: usize) -> Result<()> {
    let by = Instant::now() + WAITERS_TIMEOUT;
    while duly.lock(name).holder().await?.is_none_or(|held| held.waiters < waiters as u64) {
        ensure!(Instant::now() < by, "{waiters} do not stand in line for {name}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

/// The child that [`Handing`] hands locks to.
pub(crate) async fn run_lock_taker(duly: &Duly) -> Result<()> {
    println!("ready");
    for no in 0.. {
        let guard = duly.lock(lock_name(no)).acquire().await?;
        report_start(no)?;
        guard.release().await?;
    }
    Ok(())
}

/// A child of which so many tasks want one lock, so often each.
pub(crate) async fn run_lock_contenders(duly: &Duly, waiters: usize, times: usize) -> Result<()> {
    println!("ready");
    let mut tasks: JoinSet<duly::Result<()>> = JoinSet::new();
    for _ in 0..waiters {
        let duly = duly.clone();
        tasks.spawn(async move {
            for _ in 0..times {
                duly.lock(CONTENDED_LOCK).acquire().await?.release().await?;
            }
            Ok(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    report_start(waiters * times)?;
    // Leaving is not what is measured.
    std::future::pending().await
}
