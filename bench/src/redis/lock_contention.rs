//! Many who wait for one lock: what a hand-over costs the server must not grow with them.

use std::time::Duration;

use anyhow::{Context, Result};

use super::duly_side::{self, DEFAULTS};
use super::server::Server;
use super::{rounds, told};
use crate::child::Playing;
use crate::config::Setting;
use crate::lock::{CROWDED, until_waiting};
use crate::report::{Line, Unit};
use crate::stats::Pair;

/// How many wait; the first is what the others are held against.
const WAITERS: [usize; 3] = [10, 100, 1_000];
/// Processes that they are spread over.
const PROCESSES: usize = 10;
/// Times that the lock changes hands in a round: whoever has had it goes to the end of the line.
const HANDED: usize = 10_000;
const QUICK_HANDED: usize = 2_000;
const GOAL: f64 = 1.2;
/// From the moment at which all stand in line until the first gets its turn: what they had to say is said then.
const SETTLING: Duration = Duration::from_millis(500);

/// What one hand-over takes of the server.
#[derive(Clone, Copy)]
struct Cost {
    /// Those that scripts call included.
    commands: f64,
    cpu_us: f64,
}

pub(super) async fn lines(group: &'static str, setting: &Setting, server: &Server) -> Result<Vec<Line>> {
    let handed = if setting.quick { QUICK_HANDED } else { HANDED };
    let [few, more @ ..] = WAITERS;
    let mut pairs = more.map(|waiters| (waiters, Pair::default(), Pair::default()));
    for round in 0..rounds(setting) {
        let base = cost(server, few, handed).await?;
        for (waiters, commands, cpu) in &mut pairs {
            let ours = cost(server, *waiters, handed).await?;
            commands.record(ours.commands, base.commands);
            cpu.record(ours.cpu_us, base.cpu_us);
        }
        told(group, setting, round);
    }
    let line = |what: &str, waiters: usize, unit, pair| {
        Line::pair(group, format!("{what} per hand-over, {waiters} wait"), unit, &format!("at {few}"), pair)
    };
    let mut lines = Vec::new();
    for (waiters, commands, cpu) in &pairs {
        lines.push(line("commands", *waiters, Unit::Count, commands).ratio_at_most(GOAL));
        lines.push(line("Redis CPU", *waiters, Unit::Micros, cpu));
    }
    Ok(lines)
}

/// From the first hand-over to the last, while so many wait.
async fn cost(server: &Server, waiters: usize, handed: usize) -> Result<Cost> {
    server.flush().await?;
    let url = duly_side::url(server, DEFAULTS);
    let duly = duly_side::open(server, DEFAULTS).await?;
    let held = duly.lock(CROWDED).try_acquire().await?.context("the lock is not free")?;
    let crowd = (0..PROCESSES)
        .map(|_| Playing::crowd(&url, waiters / PROCESSES, handed / waiters))
        .collect::<Result<Vec<_>>>()?;
    until_waiting(&duly, CROWDED, waiters).await?;
    tokio::time::sleep(SETTLING).await;
    let (commands, cpu) = (server.commands().await?, server.cpu().await?);
    held.release().await?;
    for child in &crowd {
        child.next_start()?;
    }
    let (commands, cpu) = (server.commands().await? - commands, server.cpu().await? - cpu);
    Ok(Cost { commands: commands / handed as f64, cpu_us: cpu.as_secs_f64() * 1e6 / handed as f64 })
}
