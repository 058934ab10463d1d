//! Locks: the cost of an uncontended lock, and the time of a hand-over to another process.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use duly::Duly;
use duly::lock::Guard;
use tokio::task::JoinSet;

use crate::child::{BenchProcess, monotonic_us, report_start};
use crate::config::{BenchConfig, DEFAULTS, open_store, store_url};
use crate::report::{ReportLine, Unit};
use crate::single_job::to_micros;
use crate::stats::Samples;

const GROUP: &str = "lock";
const UNCONTENDED_LOCK: &str = "uncontended";
pub(crate) const CONTENDED_LOCK: &str = "contended";
/// Locks before the measurement begins, to set up connections, scripts and tables.
pub(crate) const WARMUP_LOCKS: usize = 5;
/// The delay from the start of a wait to the release, so that the waiter is idle.
const SETTLE_DELAY: Duration = Duration::from_millis(10);
/// The longest wait for the waiters.
const WAITERS_TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) async fn run(config: &BenchConfig) -> Result<Vec<ReportLine>> {
    let file = config.fresh_dir(GROUP)?.join("duly.db");
    let duly = open_store(&file, DEFAULTS).await?;
    let mut uncontended = Samples::default();
    for index in 0..WARMUP_LOCKS + if config.is_quick { 100 } else { 2_000 } {
        let micros = measure_lock_and_unlock(&duly).await?;
        if index >= WARMUP_LOCKS {
            uncontended.record(micros);
        }
    }
    let mut hand_overs = Samples::default();
    let mut hand_over = HandOver::start(&duly, &store_url(&file, DEFAULTS)).await?;
    for _ in 0..if config.is_quick { 20 } else { 500 } {
        hand_overs.record(hand_over.measure_next().await?);
    }
    let line = |name: &str, value| ReportLine::single(GROUP, name, value, Unit::Millis);
    Ok(vec![
        line("lock and unlock, p50", uncontended.median() / 1_000.0),
        line("lock and unlock, p99", uncontended.percentile(99.0) / 1_000.0),
        line("hand-over to a waiter in another process, p50", hand_overs.median()),
        line("hand-over to a waiter in another process, p99", hand_overs.percentile(99.0)),
    ])
}

/// Returns the microseconds to acquire and release an uncontended lock.
pub(crate) async fn measure_lock_and_unlock(duly: &Duly) -> Result<f64> {
    let begin = Instant::now();
    let guard = duly.lock(UNCONTENDED_LOCK).try_acquire().await?.context("the lock is not free")?;
    guard.release().await?;
    Ok(to_micros(begin.elapsed()))
}

/// Hands locks over to a process that waits for them; each has its own name.
pub(crate) struct HandOver {
    duly: Duly,
    child: BenchProcess,
    next_number: usize,
    /// The lock that the child waits for.
    held: Guard,
}

impl HandOver {
    /// Acquires the first lock, starts a process that waits for it, and hands a few over.
    pub(crate) async fn start(duly: &Duly, url: &str) -> Result<Self> {
        let held = acquire_lock(duly, 0).await?;
        let mut hand_over =
            HandOver { duly: duly.clone(), child: BenchProcess::start_lock_taker(url)?, next_number: 0, held };
        for _ in 0..WARMUP_LOCKS {
            hand_over.measure_next().await?;
        }
        Ok(hand_over)
    }

    /// Returns the milliseconds from the call of `release` until the other process holds the lock.
    pub(crate) async fn measure_next(&mut self) -> Result<f64> {
        // Acquires the next lock before the child can.
        let next = acquire_lock(&self.duly, self.next_number + 1).await?;
        wait_for_waiters(&self.duly, &lock_name(self.next_number), 1).await?;
        tokio::time::sleep(SETTLE_DELAY).await;
        let called = monotonic_us();
        self.held.release().await?;
        let start = self.child.next_start()?;
        ensure!(start.number == self.next_number, "lock {} was acquired instead of {}", start.number, self.next_number);
        self.next_number += 1;
        self.held = next;
        Ok((start.monotonic_us as f64 - called as f64) / 1_000.0)
    }

    /// Returns the held lock and the process that waits for it.
    pub(crate) fn into_parts(self) -> (Guard, BenchProcess) {
        (self.held, self.child)
    }
}

fn lock_name(number: usize) -> String {
    format!("handed:{number}")
}

async fn acquire_lock(duly: &Duly, number: usize) -> Result<Guard> {
    duly.lock(lock_name(number)).try_acquire().await?.context("the lock is not free")
}

/// Waits until a held lock has this many waiters.
pub(crate) async fn wait_for_waiters(duly: &Duly, name: &str, waiters: usize) -> Result<()> {
    let deadline = Instant::now() + WAITERS_TIMEOUT;
    while duly.lock(name).holder().await?.is_none_or(|held| held.waiters < waiters as u64) {
        ensure!(Instant::now() < deadline, "lock {name} does not have {waiters} waiters");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

/// Runs the child process of [`HandOver`].
pub(crate) async fn run_lock_taker(duly: &Duly) -> Result<()> {
    println!("ready");
    for number in 0.. {
        let guard = duly.lock(lock_name(number)).acquire().await?;
        report_start(number)?;
        guard.release().await?;
    }
    Ok(())
}

/// Runs a child process in which this many tasks acquire one lock, this often each.
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
    while let Some(result) = tasks.join_next().await {
        result??;
    }
    report_start(waiters * times)?;
    // The shutdown is not part of the measurement.
    std::future::pending().await
}
