//! Many who wait for one lock: what a hand-over costs the server must not grow with them.

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

/// How many wait; the first is what the others are held against.
const WAITER_COUNTS: [usize; 3] = [10, 100, 1_000];
/// Processes that they are spread over.
const PROCESSES: usize = 10;
/// Times that the lock changes hands in a round: whoever has had it goes to the end of the line.
const HAND_OVERS: usize = 10_000;
const QUICK_HAND_OVERS: usize = 2_000;
const GOAL_RATIO: f64 = 1.2;
/// From the moment at which all stand in line until the first gets its turn: what they had to say is said then.
const SETTLE_DELAY: Duration = Duration::from_millis(500);

/// What one hand-over takes of the server.
#[derive(Clone, Copy)]
struct HandOverCost {
    /// Those that scripts call included.
    commands: f64,
    cpu_us: f64,
}

pub(super) async fn measure(
    group: &'static str,
    setting: &BenchConfig,
    server: &RedisServer,
) -> Result<Vec<ReportLine>> {
    let handed = if setting.is_quick { QUICK_HAND_OVERS } else { HAND_OVERS };
    let [few, more @ ..] = WAITER_COUNTS;
    let mut pairs = more.map(|waiters| (waiters, Comparison::default(), Comparison::default()));
    for round in 0..round_count(setting) {
        let base = measure_cost(server, few, handed).await?;
        for (waiters, commands, cpu) in &mut pairs {
            let ours = measure_cost(server, *waiters, handed).await?;
            commands.record(ours.commands, base.commands);
            cpu.record(ours.cpu_us, base.cpu_us);
        }
        print_round(group, setting, round);
    }
    let line = |what: &str, waiters: usize, unit, pair| {
        ReportLine::comparison(group, format!("{what} per hand-over, {waiters} wait"), unit, &format!("at {few}"), pair)
    };
    let mut lines = Vec::new();
    for (waiters, commands, cpu) in &pairs {
        lines.push(line("commands", *waiters, Unit::Count, commands).ratio_at_most(GOAL_RATIO));
        lines.push(line("Redis CPU", *waiters, Unit::Micros, cpu));
    }
    Ok(lines)
}

/// From the first hand-over to the last, while so many wait.
async fn measure_cost(server: &RedisServer, waiters: usize, handed: usize) -> Result<HandOverCost> {
    server.flush().await?;
    let url = duly_side::url(server, DEFAULTS);
    let duly = duly_side::open(server, DEFAULTS).await?;
    let held = duly.lock(CONTENDED_LOCK).try_acquire().await?.context("the lock is not free")?;
    let crowd = (0..PROCESSES)
        .map(|_| BenchProcess::start_lock_contenders(&url, waiters / PROCESSES, handed / waiters))
        .collect::<Result<Vec<_>>>()?;
    wait_for_waiters(&duly, CONTENDED_LOCK, waiters).await?;
    tokio::time::sleep(SETTLE_DELAY).await;
    let (commands, cpu) = (server.commands_processed().await?, server.cpu_time().await?);
    held.release().await?;
    for child in &crowd {
        child.next_start()?;
    }
    let (commands, cpu) = (server.commands_processed().await? - commands, server.cpu_time().await? - cpu);
    Ok(HandOverCost { commands: commands / handed as f64, cpu_us: cpu.as_secs_f64() * 1e6 / handed as f64 })
}
