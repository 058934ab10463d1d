//! What the history costs on a server: whole lives with it and without, in turn.

use std::time::Instant;

use anyhow::Result;

use super::duly_side;
use super::server::RedisServer;
use crate::config::BenchConfig;
use crate::history::{BATCHES, GOAL_RATIO_MIN, round_count, round_duration};
use crate::report::{ReportLine, Unit};
use crate::stats::Comparison;

const GROUP: &str = "redis-history";
const WITHOUT_HISTORY: &str = "&keep=0&history=off";
const WITH_HISTORY: &str = "&keep=0";

pub(crate) async fn run(setting: &BenchConfig) -> Result<Vec<ReportLine>> {
    let server = RedisServer::start().await?;
    let mut lines = Vec::new();
    for batch in BATCHES {
        let (mut lives, mut cpu) = (Comparison::default(), Comparison::default());
        for round in 0..round_count(setting) {
            let mut sides = [(WITH_HISTORY, (0.0, 0.0)), (WITHOUT_HISTORY, (0.0, 0.0))];
            if round % 2 == 1 {
                sides.reverse();
            }
            for (options, measured) in &mut sides {
                *measured = measure_lifecycles(&server, setting, options, batch).await?;
            }
            sides.sort_by_key(|(options, _)| options.len());
            let [(_, with), (_, without)] = sides;
            lives.record(with.0, without.0);
            cpu.record(with.1, without.1);
        }
        eprintln!("{GROUP}, batch {batch}: {} rounds", round_count(setting));
        let line = |name: &str, unit, pair| {
            ReportLine::comparison(GROUP, format!("{name} with the history, batch {batch}"), unit, "history=off", pair)
        };
        lines.push(line("life", Unit::PerSecond, &lives).ratio_at_least(GOAL_RATIO_MIN));
        lines.push(line("Redis CPU per life", Unit::Micros, &cpu));
    }
    Ok(lines)
}

/// Lives a second, and microseconds of the server's CPU for each.
async fn measure_lifecycles(
    server: &RedisServer,
    setting: &BenchConfig,
    options: &str,
    batch: usize,
) -> Result<(f64, f64)> {
    server.flush().await?;
    let duly = duly_side::open(server, options).await?;
    let (before, begin) = (server.cpu_time().await?, Instant::now());
    let jobs = duly_side::run_lifecycles(&duly, batch, round_duration(setting)).await? as f64;
    let took = begin.elapsed();
    Ok((jobs / took.as_secs_f64(), (server.cpu_time().await? - before).as_secs_f64() * 1e6 / jobs))
}
