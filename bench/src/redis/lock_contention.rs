//! Many waiters of one lock: the cost of a hand-over for the server must not grow with them.

use std::time::Duration;

use anyhow::{Context, Result};

use super::duly_side::{self, DEFAULTS};
use super::server::RedisServer;
use super::{print_round, round_count};
use crate::child::BenchProcess;
use crate::config::BenchConfig;
use crate::lock::{CONTENDED_LOCK, wait_for_waiters};
use crate::report::{ReportLine, Unit};
use crate::stats::Comparison;

/// The numbers of waiters; the others are compared to the first.
const WAITER_COUNTS: [usize; 3] = [10, 100, 1_000];
/// The number of processes of the waiters.
const PROCESSES: usize = 10;
/// Hand-overs per round; a waiter that released the lock waits again.
const HAND_OVERS: usize = 10_000;
const QUICK_HAND_OVERS: usize = 2_000;
const GOAL_RATIO: f64 = 1.2;
/// The delay from the last wait to the first hand-over, so that all requests of the waiters are done.
const SETTLE_DELAY: Duration = Duration::from_millis(500);

/// The cost of one hand-over for the server.
#[derive(Clone, Copy)]
struct HandOverCost {
    /// Includes commands that scripts call.
    commands: f64,
    cpu_us: f64,
}

pub(super) async fn measure(
    group: &'static str,
    config: &BenchConfig,
    server: &RedisServer,
) -> Result<Vec<ReportLine>> {
    let hand_overs = if config.is_quick { QUICK_HAND_OVERS } else { HAND_OVERS };
    let [few, more @ ..] = WAITER_COUNTS;
    let mut pairs = more.map(|waiters| (waiters, Comparison::default(), Comparison::default()));
    for round in 0..round_count(config) {
        let base = measure_cost(server, few, hand_overs).await?;
        for (waiters, commands, cpu) in &mut pairs {
            let ours = measure_cost(server, *waiters, hand_overs).await?;
            commands.record(ours.commands, base.commands);
            cpu.record(ours.cpu_us, base.cpu_us);
        }
        print_round(group, config, round);
    }
    let line = |label: &str, waiters: usize, unit, pair| {
        ReportLine::comparison(
            group,
            format!("{label} per hand-over, {waiters} wait"),
            unit,
            &format!("at {few}"),
            pair,
        )
    };
    let mut lines = Vec::new();
    for (waiters, commands, cpu) in &pairs {
        lines.push(line("commands", *waiters, Unit::Count, commands).ratio_at_most(GOAL_RATIO));
        lines.push(line("Redis CPU", *waiters, Unit::Micros, cpu));
    }
    Ok(lines)
}

/// Measures from the first hand-over to the last, with this many waiters.
async fn measure_cost(server: &RedisServer, waiters: usize, hand_overs: usize) -> Result<HandOverCost> {
    server.flush().await?;
    let url = duly_side::url(server, DEFAULTS);
    let duly = duly_side::open(server, DEFAULTS).await?;
    let held = duly.lock(CONTENDED_LOCK).try_acquire().await?.context("the lock is not free")?;
    let children = (0..PROCESSES)
        .map(|_| BenchProcess::start_lock_contenders(&url, waiters / PROCESSES, hand_overs / waiters))
        .collect::<Result<Vec<_>>>()?;
    wait_for_waiters(&duly, CONTENDED_LOCK, waiters).await?;
    tokio::time::sleep(SETTLE_DELAY).await;
    let (commands, cpu) = (server.commands_processed().await?, server.cpu_time().await?);
    held.release().await?;
    for child in &children {
        child.next_start()?;
    }
    let (commands, cpu) = (server.commands_processed().await? - commands, server.cpu_time().await? - cpu);
    Ok(HandOverCost { commands: commands / hand_overs as f64, cpu_us: cpu.as_secs_f64() * 1e6 / hand_overs as f64 })
}
