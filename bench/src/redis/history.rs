//! What the history costs on a server: whole lives with it and without, in turn.

use std::time::Instant;

use anyhow::Result;

use super::duly_side;
use super::server::Server;
use crate::config::Setting;
use crate::history::{BATCHES, LEAST, rounds, time};
use crate::report::{Line, Unit};
use crate::stats::Pair;

const GROUP: &str = "redis-history";
const WITHOUT: &str = "&keep=0&history=off";
const WITH: &str = "&keep=0";

pub(crate) async fn run(setting: &Setting) -> Result<Vec<Line>> {
    let server = Server::start().await?;
    let mut lines = Vec::new();
    for batch in BATCHES {
        let (mut lives, mut cpu) = (Pair::default(), Pair::default());
        for round in 0..rounds(setting) {
            let mut sides = [(WITH, (0.0, 0.0)), (WITHOUT, (0.0, 0.0))];
            if round % 2 == 1 {
                sides.reverse();
            }
            for (options, measured) in &mut sides {
                *measured = live(&server, setting, options, batch).await?;
            }
            sides.sort_by_key(|(options, _)| options.len());
            let [(_, with), (_, without)] = sides;
            lives.record(with.0, without.0);
            cpu.record(with.1, without.1);
        }
        eprintln!("{GROUP}, batch {batch}: {} rounds", rounds(setting));
        let line = |name: &str, unit, pair| {
            Line::pair(GROUP, format!("{name} with the history, batch {batch}"), unit, "history=off", pair)
        };
        lines.push(line("life", Unit::PerSecond, &lives).ratio_at_least(LEAST));
        lines.push(line("Redis CPU per life", Unit::Micros, &cpu));
    }
    Ok(lines)
}

/// Lives a second, and microseconds of the server's CPU for each.
async fn live(server: &Server, setting: &Setting, options: &str, batch: usize) -> Result<(f64, f64)> {
    server.flush().await?;
    let duly = duly_side::open(server, options).await?;
    let (before, begin) = (server.cpu().await?, Instant::now());
    let jobs = duly_side::lives(&duly, batch, time(setting)).await? as f64;
    let took = begin.elapsed();
    Ok((jobs / took.as_secs_f64(), (server.cpu().await? - before).as_secs_f64() * 1e6 / jobs))
}
