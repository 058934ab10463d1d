//! Locks on Redis, compared to bare round trips through the same client and to peers, which poll.

use std::time::Duration;

use anyhow::Result;

use super::duly_side::{self, DEFAULTS};
use super::lock_contention;
use super::peers::RedisPeer;
use super::round_trip::PingConnection;
use super::server::RedisServer;
use super::wake::measure_idle_requests;
use super::{new_comparisons, print_round, round_count};
use crate::config::BenchConfig;
use crate::lock::{HandOver, WARMUP_LOCKS, measure_lock_and_unlock};
use crate::report::{ReportLine, Unit};
use crate::stats::{Comparison, Samples};

const GROUP: &str = "redis-lock";
/// Uncontended locks per round.
const UNCONTENDED_LOCKS: usize = 2_000;
/// Hand-overs per round.
const HAND_OVERS: usize = 300;
/// Fewer for peers, whose hand-over takes a hundred times as long.
const PEER_HAND_OVERS: usize = 50;
const GOAL_UNCONTENDED_RATIO: f64 = 1.3;
/// One round trip for the release, and two more.
const GOAL_HAND_OVER_RATIO: f64 = 1.0 + 2.0;
/// The delay before each bare round trip, so that both measurements find an idle machine.
const REST_DELAY: Duration = Duration::from_millis(10);

pub(crate) async fn run(config: &BenchConfig) -> Result<Vec<ReportLine>> {
    let peers = RedisPeer::prepare_lockers()?;
    let server = RedisServer::start().await?;
    let mut lines = measure_uncontended(config, &server, &peers).await?;
    lines.extend(measure_hand_overs(config, &server, &peers).await?);
    lines.extend(measure_waiting(config, &server, &peers).await?);
    lines.extend(lock_contention::measure(GROUP, config, &server).await?);
    Ok(lines)
}

async fn measure_uncontended(
    config: &BenchConfig,
    server: &RedisServer,
    peers: &[RedisPeer],
) -> Result<Vec<ReportLine>> {
    let locks = if config.is_quick { UNCONTENDED_LOCKS / 20 } else { UNCONTENDED_LOCKS };
    let (mut to_baseline, mut others) = (Comparison::default(), new_comparisons(peers));
    for round in 0..round_count(config) {
        let (ours, baseline) = run_uncontended_round(server, locks).await?;
        to_baseline.record(ours.median(), baseline.median());
        for (peer, pair) in peers.iter().zip(&mut others) {
            server.flush().await?;
            pair.record(ours.median(), peer.run_verb(server, &["lock", &locks.to_string()])?.p50_ms * 1_000.0);
        }
        server.flush().await?;
        print_round(GROUP, config, round);
    }
    let line = |subject, pair| ReportLine::comparison(GROUP, "lock and unlock, p50", Unit::Micros, subject, pair);
    let mut lines = vec![line("two bare round trips", &to_baseline).ratio_at_most(GOAL_UNCONTENDED_RATIO)];
    lines.extend(peers.iter().zip(&others).map(|(peer, pair)| line(peer.name, pair)));
    Ok(lines)
}

/// Returns the microseconds of locks and of two round trips each, in alternation.
async fn run_uncontended_round(server: &RedisServer, locks: usize) -> Result<(Samples, Samples)> {
    let duly = duly_side::open(server, DEFAULTS).await?;
    let mut baseline = PingConnection::connect(server).await?;
    let (mut ours, mut trips) = (Samples::default(), Samples::default());
    for index in 0..WARMUP_LOCKS + locks {
        let (lock, trip) = (measure_lock_and_unlock(&duly).await?, baseline.measure_round_trips(2).await?);
        if index >= WARMUP_LOCKS {
            ours.record(lock);
            trips.record(trip);
        }
    }
    Ok((ours, trips))
}

async fn measure_hand_overs(
    config: &BenchConfig,
    server: &RedisServer,
    peers: &[RedisPeer],
) -> Result<Vec<ReportLine>> {
    let divisor = if config.is_quick { 10 } else { 1 };
    let (mut to_baseline, mut p50, mut p99) = (Comparison::default(), new_comparisons(peers), new_comparisons(peers));
    for round in 0..round_count(config) {
        let (ours, baseline) = run_hand_over_round(server, HAND_OVERS / divisor).await?;
        to_baseline.record(ours.median(), baseline.median());
        for (index, peer) in peers.iter().enumerate() {
            server.flush().await?;
            let figures = peer.run_verb(server, &["hand-over", &(PEER_HAND_OVERS / divisor).to_string()])?;
            p50[index].record(ours.median(), figures.p50_ms);
            p99[index].record(ours.percentile(99.0), figures.p99_ms);
        }
        server.flush().await?;
        print_round(GROUP, config, round);
    }
    let line = |label: &str, subject, pair| {
        let name = format!("hand-over to a waiter in another process, {label}");
        ReportLine::comparison(GROUP, name, Unit::Millis, subject, pair)
    };
    let met = to_baseline.ratio() <= GOAL_HAND_OVER_RATIO;
    let mut lines = vec![line("p50", "bare round trip", &to_baseline).with_goal("<= 2 trips more", met)];
    for (label, pairs) in [("p50", &p50), ("p99", &p99)] {
        lines.extend(peers.iter().zip(pairs).map(|(peer, pair)| line(label, peer.name, pair)));
    }
    Ok(lines)
}

/// Returns the milliseconds of hand-overs and of one round trip each, in alternation.
async fn run_hand_over_round(server: &RedisServer, locks: usize) -> Result<(Samples, Samples)> {
    let duly = duly_side::open(server, DEFAULTS).await?;
    let mut baseline = PingConnection::connect(server).await?;
    let mut hand_over = HandOver::start(&duly, &duly_side::url(server, DEFAULTS)).await?;
    let (mut ours, mut trips) = (Samples::default(), Samples::default());
    for _ in 0..locks {
        tokio::time::sleep(REST_DELAY).await;
        trips.record(baseline.measure_round_trips(1).await? / 1_000.0);
        ours.record(hand_over.measure_next().await?);
    }
    Ok((ours, trips))
}

/// Measures the server requests of one waiter.
async fn measure_waiting(config: &BenchConfig, server: &RedisServer, peers: &[RedisPeer]) -> Result<Vec<ReportLine>> {
    let duly = duly_side::open(server, DEFAULTS).await?;
    let (held, child) = HandOver::start(&duly, &duly_side::url(server, DEFAULTS)).await?.into_parts();
    let ours = measure_idle_requests(config, server, child).await?;
    drop((held, duly));
    let line = || ReportLine::single(GROUP, "requests while one waits", ours, Unit::PerSecond);
    let mut lines = Vec::new();
    for peer in peers {
        server.flush().await?;
        let theirs = measure_idle_requests(config, server, peer.start_lock_waiter(server)?).await?;
        lines.push(line().compared_to(peer.name, theirs));
    }
    server.flush().await?;
    Ok(lines)
}
