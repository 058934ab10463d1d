//! A queue filled by the real Sidekiq, drained by duly on Sidekiq's keys, by Sidekiq, and by rusty-sidekiq.

use anyhow::{Context, Result};
use duly::{Args, Ctx, Duly};
use serde::{Deserialize, Serialize};

use super::duly_side;
use super::peers::RedisPeer;
use super::server::RedisServer;
use super::{LineSpec, RatioGoal, compare_with_peers, new_comparisons, print_round, round_count};
use crate::config::{BenchConfig, Noop};
use crate::report::{ReportLine, Unit};

const GROUP: &str = "sidekiq-drain";
const DRAINED_JOBS: usize = 100_000;
const GOAL_RATIO: f64 = 5.0;

/// The no-op as Ruby pushes it: its class and a list of its args.
#[derive(Serialize, Deserialize)]
struct RubyNoop {
    noop: Noop,
}

impl Args for RubyNoop {
    const KIND: &'static str = "Noop";
}

async fn run_ruby_noop(_job: RubyNoop, _ctx: Ctx) {}

pub(crate) async fn run(config: &BenchConfig) -> Result<Vec<ReportLine>> {
    let peers = RedisPeer::prepare_sidekiqs()?;
    let ruby = peers.first().context("no peer")?;
    let server = RedisServer::start().await?;
    let jobs = if config.is_quick { DRAINED_JOBS / 20 } else { DRAINED_JOBS };
    let mut drains = new_comparisons(&peers);
    for round in 0..round_count(config) {
        ruby.push(&server, jobs)?;
        let duly = Duly::open(duly_side::sidekiq_url(&server)).await?;
        let ours = duly_side::measure_drain_with(&duly, jobs, |worker| worker.on(run_ruby_noop)).await?;
        for (peer, pair) in peers.iter().zip(&mut drains) {
            server.flush().await?;
            ruby.push(&server, jobs)?;
            pair.record(ours, peer.drain(&server, jobs)?.per_s);
        }
        server.flush().await?;
        print_round(GROUP, config, round);
    }
    let drain = LineSpec { group: GROUP, name: "drain of a real Sidekiq queue", unit: Unit::PerSecond };
    Ok(compare_with_peers(drain, RatioGoal::AtLeast(GOAL_RATIO), &peers, &drains, |_| true))
}
