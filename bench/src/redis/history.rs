//! The cost of the history and of the records of attempts on Redis: lifecycles with and without them, in alternation.

use std::time::Instant;

use anyhow::Result;

use super::duly_side;
use super::server::RedisServer;
use crate::config::BenchConfig;
use crate::history::{BATCHES, GOAL_RATIO_MIN, RECORDS, round_count, round_duration};
use crate::report::{ReportLine, Unit};
use crate::stats::Comparison;

const GROUP: &str = "redis-history";
/// Either may cost 15 % of the server's CPU.
const CPU_RATIO_MAX: f64 = 1.15;

pub(crate) async fn run(config: &BenchConfig) -> Result<Vec<ReportLine>> {
    let server = RedisServer::start().await?;
    let mut lines = Vec::new();
    for (batch, (name, with, switch)) in BATCHES.into_iter().flat_map(|batch| RECORDS.map(|record| (batch, record))) {
        let (mut lifecycles, mut cpu) = (Comparison::default(), Comparison::default());
        for round in 0..round_count(config) {
            let mut sides = [(format!("&{with}"), (0.0, 0.0)), (format!("&{with}&{switch}"), (0.0, 0.0))];
            if round % 2 == 1 {
                sides.reverse();
            }
            for (options, measured) in &mut sides {
                *measured = measure_lifecycles(&server, config, options, batch).await?;
            }
            sides.sort_by_key(|(options, _)| options.len());
            let [(_, with), (_, without)] = sides;
            lifecycles.record(with.0, without.0);
            cpu.record(with.1, without.1);
        }
        eprintln!("{GROUP}, {switch}, batch {batch}: {} rounds", round_count(config));
        let line = |what: &str, unit, pair| {
            ReportLine::comparison(GROUP, format!("{what} with {name}, batch {batch}"), unit, switch, pair)
        };
        lines.push(line("lifecycle", Unit::PerSecond, &lifecycles).ratio_at_least(GOAL_RATIO_MIN));
        lines.push(line("Redis CPU per lifecycle", Unit::Micros, &cpu).ratio_at_most(CPU_RATIO_MAX));
    }
    Ok(lines)
}

/// Returns lifecycles per second, and the microseconds of server CPU for each.
async fn measure_lifecycles(
    server: &RedisServer,
    config: &BenchConfig,
    options: &str,
    batch: usize,
) -> Result<(f64, f64)> {
    server.flush().await?;
    let duly = duly_side::open(server, options).await?;
    let (before, begin) = (server.cpu_time().await?, Instant::now());
    let jobs = duly_side::run_lifecycles(&duly, batch, round_duration(config)).await? as f64;
    let duration = begin.elapsed();
    Ok((jobs / duration.as_secs_f64(), (server.cpu_time().await? - before).as_secs_f64() * 1e6 / jobs))
}
