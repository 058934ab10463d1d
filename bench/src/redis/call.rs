//! Calls on Redis: a call and its reply beside a bare message there and back.

use anyhow::Result;

use super::duly_side::{self, DEFAULTS};
use super::round_trip::PublishEcho;
use super::server::RedisServer;
use crate::call::EchoNode;
use crate::config::BenchConfig;
use crate::report::{ReportLine, Unit};
use crate::stats::{Comparison, Samples};

const GROUP: &str = "redis-call";
const CALLS_PER_ROUND: usize = 2_000;
const GOAL_RATIO: f64 = 1.5;
const BASELINE_NAME: &str = "two bare one-way trips";

pub(crate) async fn run(setting: &BenchConfig) -> Result<Vec<ReportLine>> {
    let server = RedisServer::start().await?;
    let calls = if setting.is_quick { CALLS_PER_ROUND / 20 } else { CALLS_PER_ROUND };
    let (mut one, mut any, mut slowest) = (Comparison::default(), Comparison::default(), Comparison::default());
    for _ in 0..setting.round_count() {
        let CallSamples { ours, any_node: any_one, baseline: bare } = run_round(&server, calls).await?;
        one.record(ours.median(), bare.median());
        any.record(any_one.median(), bare.median());
        slowest.record(ours.percentile(99.0), bare.percentile(99.0));
        server.flush().await?;
    }
    let line = |what: &str, pair| {
        ReportLine::comparison(GROUP, format!("call and its reply, {what}"), Unit::Micros, BASELINE_NAME, pair)
    };
    Ok(vec![
        line("p50", &one).ratio_at_most(GOAL_RATIO),
        line("p99", &slowest),
        line("any one that answers, p50", &any),
    ])
}

/// Microseconds of what was done in turn.
#[derive(Default)]
struct CallSamples {
    ours: Samples,
    /// Whoever answers.
    any_node: Samples,
    baseline: Samples,
}

async fn run_round(server: &RedisServer, calls: usize) -> Result<CallSamples> {
    let duly = duly_side::open(server, DEFAULTS).await?;
    let other = EchoNode::start(&duly, &duly_side::url(server, DEFAULTS)).await?;
    let mut bare = PublishEcho::start(server).await?;
    let mut round = CallSamples::default();
    for _ in 0..calls {
        round.ours.record(other.call().await?);
        round.baseline.record(bare.measure_trip().await?);
        round.any_node.record(other.call_any().await?);
    }
    Ok(round)
}
