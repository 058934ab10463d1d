//! Pushes: single, each awaited, and in bulk.

use anyhow::Result;

use super::baseline::RedisBaseline;
use super::duly_side::{self, KEEP_NONE};
use super::peers::RedisPeer;
use super::server::RedisServer;
use super::{LineSpec, RatioGoal, compare_with_peers, new_comparisons, print_round, round_count};
use crate::config::BenchConfig;
use crate::report::{ReportLine, Unit};
use crate::stats::Comparison;

const GROUP: &str = "redis-push";
/// Jobs per round of bulk pushes.
const BULK_JOBS: usize = 100_000;
/// Jobs per round of single pushes.
const SINGLE_PUSH_JOBS: usize = 10_000;
const GOAL_BULK_RATIO: f64 = 2.5;
const GOAL_SINGLE_RATIO: f64 = 0.7;

pub(crate) async fn run(config: &BenchConfig) -> Result<Vec<ReportLine>> {
    let peers = RedisPeer::prepare_all(config)?;
    let server = RedisServer::start().await?;
    let (bulk_jobs, one_jobs) = if config.is_quick { (5_000, 500) } else { (BULK_JOBS, SINGLE_PUSH_JOBS) };
    let (mut one_to_baseline, mut bulk_to_baseline) = (Comparison::default(), Comparison::default());
    let (mut one_peers, mut bulk_peers) = (new_comparisons(&peers), new_comparisons(&peers));
    for round in 0..round_count(config) {
        let mut baseline = RedisBaseline::connect(&server).await?;
        let duly = duly_side::open(&server, KEEP_NONE).await?;
        // Sets up connections and scripts before the measurement.
        duly_side::measure_single_pushes(&duly, one_jobs / 10).await?;
        let one = duly_side::measure_single_pushes(&duly, one_jobs).await?;
        one_to_baseline.record(one, baseline.measure_single_pushes(one_jobs).await?);
        let bulk = duly_side::measure_bulk_pushes(&duly, bulk_jobs).await?;
        bulk_to_baseline.record(bulk, baseline.measure_bulk_pushes(bulk_jobs).await?);
        for (index, peer) in peers.iter().enumerate() {
            server.flush().await?;
            one_peers[index].record(one, peer.run_verb(&server, &["push-one", &one_jobs.to_string()])?.per_s);
            server.flush().await?;
            bulk_peers[index].record(bulk, peer.push(&server, bulk_jobs)?.per_s);
        }
        server.flush().await?;
        print_round(GROUP, config, round);
    }
    let line = |name: &str, pair| ReportLine::comparison(GROUP, name, Unit::PerSecond, "bare LPUSH", pair);
    let mut lines = vec![
        line("push, each awaited", &one_to_baseline).ratio_at_least(GOAL_SINGLE_RATIO),
        line("push, 1000 at a time", &bulk_to_baseline),
    ];
    // A bare LPUSH is the upper bound, so it sets the goal of single pushes.
    lines.extend(
        one_peers
            .iter()
            .zip(&peers)
            .map(|(pair, peer)| ReportLine::comparison(GROUP, "push, each awaited", Unit::PerSecond, peer.name, pair)),
    );
    let bulk = LineSpec { group: GROUP, name: "push in bulk", unit: Unit::PerSecond };
    lines.extend(compare_with_peers(bulk, RatioGoal::AtLeast(GOAL_BULK_RATIO), &peers, &bulk_peers, |_| true));
    Ok(lines)
}
