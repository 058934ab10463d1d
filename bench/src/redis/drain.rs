//! Drains: a worker starts and runs all waiting jobs until the last is recorded as done.

use anyhow::Result;

use super::duly_side::{self, KEEP_NONE};
use super::peers::RedisPeer;
use super::server::RedisServer;
use super::{LineSpec, RatioGoal, compare_with_peers, new_comparisons, print_round, round_count};
use crate::config::BenchConfig;
use crate::report::{ReportLine, Unit};

const GROUP: &str = "redis-drain";
const DRAINED_JOBS: usize = 100_000;
const GOAL_RATIO: f64 = 5.0;

pub(crate) async fn run(config: &BenchConfig) -> Result<Vec<ReportLine>> {
    let peers = RedisPeer::prepare_all(config)?;
    let server = RedisServer::start().await?;
    let jobs = if config.is_quick { DRAINED_JOBS / 20 } else { DRAINED_JOBS };
    let mut drains = new_comparisons(&peers);
    for round in 0..round_count(config) {
        let duly = duly_side::open(&server, KEEP_NONE).await?;
        duly_side::measure_bulk_pushes(&duly, jobs).await?;
        let ours = duly_side::measure_drain(&duly, jobs).await?;
        for (peer, pair) in peers.iter().zip(&mut drains) {
            server.flush().await?;
            peer.push(&server, peer.drain_jobs)?;
            pair.record(ours, peer.drain(&server, peer.drain_jobs)?.per_s);
        }
        server.flush().await?;
        print_round(GROUP, config, round);
    }
    let drain = LineSpec { group: GROUP, name: "drain", unit: Unit::PerSecond };
    Ok(compare_with_peers(drain, RatioGoal::AtLeast(GOAL_RATIO), &peers, &drains, |peer| peer.can_drain_all))
}
