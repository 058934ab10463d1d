//! Calls on Redis: a call and its reply, compared to bare messages there and back.

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

pub(crate) async fn run(config: &BenchConfig) -> Result<Vec<ReportLine>> {
    let server = RedisServer::start().await?;
    let calls = if config.is_quick { CALLS_PER_ROUND / 20 } else { CALLS_PER_ROUND };
    let (mut one, mut any, mut slowest) = (Comparison::default(), Comparison::default(), Comparison::default());
    for _ in 0..config.round_count() {
        let CallSamples { ours, any_node, baseline } = run_round(&server, calls).await?;
        one.record(ours.median(), baseline.median());
        any.record(any_node.median(), baseline.median());
        slowest.record(ours.percentile(99.0), baseline.percentile(99.0));
        server.flush().await?;
    }
    let line = |label: &str, pair| {
        ReportLine::comparison(GROUP, format!("call and its reply, {label}"), Unit::Micros, BASELINE_NAME, pair)
    };
    Ok(vec![
        line("p50", &one).ratio_at_most(GOAL_RATIO),
        line("p99", &slowest),
        line("any one that answers, p50", &any),
    ])
}

/// Microseconds of the three measurements, which alternate.
#[derive(Default)]
struct CallSamples {
    ours: Samples,
    /// Calls to any node with the method.
    any_node: Samples,
    baseline: Samples,
}

async fn run_round(server: &RedisServer, calls: usize) -> Result<CallSamples> {
    let duly = duly_side::open(server, DEFAULTS).await?;
    let node = EchoNode::start(&duly, &duly_side::url(server, DEFAULTS)).await?;
    let mut baseline = PublishEcho::start(server).await?;
    let mut round = CallSamples::default();
    for _ in 0..calls {
        round.ours.record(node.call().await?);
        round.baseline.record(baseline.measure_trip().await?);
        round.any_node.record(node.call_any().await?);
    }
    Ok(round)
}
