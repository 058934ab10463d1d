//! Locks on Redis: beside bare round trips through the same client, and beside peers, who poll.

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
/// Locks of a round that nobody else wants.
const UNCONTENDED_LOCKS: usize = 2_000;
/// Locks of a round that somebody waits for.
const HAND_OVERS: usize = 300;
/// A peer's hand-over takes a hundred times as long: fewer of them.
const PEER_HAND_OVERS: usize = 50;
const GOAL_UNCONTENDED_RATIO: f64 = 1.3;
/// The release is one round trip, and then two more.
const GOAL_HAND_OVER_RATIO: f64 = 1.0 + 2.0;
/// From a hand-over to the round trip that it is held against: both find the machine at rest.
const REST_DELAY: Duration = Duration::from_millis(10);

pub(crate) async fn run(setting: &BenchConfig) -> Result<Vec<ReportLine>> {
    let peers = RedisPeer::prepare_lockers()?;
    let server = RedisServer::start().await?;
    let mut lines = measure_uncontended(setting, &server, &peers).await?;
    lines.extend(measure_hand_overs(setting, &server, &peers).await?);
    lines.extend(measure_waiting(setting, &server, &peers).await?);
    lines.extend(lock_contention::measure(GROUP, setting, &server).await?);
    Ok(lines)
}

async fn measure_uncontended(
    setting: &BenchConfig,
    server: &RedisServer,
    peers: &[RedisPeer],
) -> Result<Vec<ReportLine>> {
    let locks = if setting.is_quick { UNCONTENDED_LOCKS / 20 } else { UNCONTENDED_LOCKS };
    let (mut floor, mut others) = (Comparison::default(), new_comparisons(peers));
    for round in 0..round_count(setting) {
        let (ours, bare) = run_uncontended_round(server, locks).await?;
        floor.record(ours.median(), bare.median());
        for (peer, pair) in peers.iter().zip(&mut others) {
            server.flush().await?;
            pair.record(ours.median(), peer.run_verb(server, &["lock", &locks.to_string()])?.p50_ms * 1_000.0);
        }
        server.flush().await?;
        print_round(GROUP, setting, round);
    }
    let line = |who, pair| ReportLine::comparison(GROUP, "lock and unlock, p50", Unit::Micros, who, pair);
    let mut lines = vec![line("two bare round trips", &floor).ratio_at_most(GOAL_UNCONTENDED_RATIO)];
    lines.extend(peers.iter().zip(&others).map(|(peer, pair)| line(peer.name, pair)));
    Ok(lines)
}

/// Microseconds of locks, and of two round trips each, in turn.
async fn run_uncontended_round(server: &RedisServer, locks: usize) -> Result<(Samples, Samples)> {
    let duly = duly_side::open(server, DEFAULTS).await?;
    let mut bare = PingConnection::connect(server).await?;
    let (mut ours, mut trips) = (Samples::default(), Samples::default());
    for at in 0..WARMUP_LOCKS + locks {
        let (lock, trip) = (measure_lock_and_unlock(&duly).await?, bare.measure_round_trips(2).await?);
        if at >= WARMUP_LOCKS {
            ours.record(lock);
            trips.record(trip);
        }
    }
    Ok((ours, trips))
}

async fn measure_hand_overs(
    setting: &BenchConfig,
    server: &RedisServer,
    peers: &[RedisPeer],
) -> Result<Vec<ReportLine>> {
    let fewer = if setting.is_quick { 10 } else { 1 };
    let (mut floor, mut p50, mut p99) = (Comparison::default(), new_comparisons(peers), new_comparisons(peers));
    for round in 0..round_count(setting) {
        let (ours, bare) = run_hand_over_round(server, HAND_OVERS / fewer).await?;
        floor.record(ours.median(), bare.median());
        for (at, peer) in peers.iter().enumerate() {
            server.flush().await?;
            let figures = peer.run_verb(server, &["hand-over", &(PEER_HAND_OVERS / fewer).to_string()])?;
            p50[at].record(ours.median(), figures.p50_ms);
            p99[at].record(ours.percentile(99.0), figures.p99_ms);
        }
        server.flush().await?;
        print_round(GROUP, setting, round);
    }
    let line = |what: &str, who, pair| {
        let name = format!("hand-over to a waiter in another process, {what}");
        ReportLine::comparison(GROUP, name, Unit::Millis, who, pair)
    };
    let met = floor.ratio() <= GOAL_HAND_OVER_RATIO;
    let mut lines = vec![line("p50", "bare round trip", &floor).with_goal("<= 2 trips more", met)];
    for (what, pairs) in [("p50", &p50), ("p99", &p99)] {
        lines.extend(peers.iter().zip(pairs).map(|(peer, pair)| line(what, peer.name, pair)));
    }
    Ok(lines)
}

/// Milliseconds of hand-overs, and of a round trip each, in turn.
async fn run_hand_over_round(server: &RedisServer, locks: usize) -> Result<(Samples, Samples)> {
    let duly = duly_side::open(server, DEFAULTS).await?;
    let mut bare = PingConnection::connect(server).await?;
    let mut handing = HandOver::start(&duly, &duly_side::url(server, DEFAULTS)).await?;
    let (mut ours, mut trips) = (Samples::default(), Samples::default());
    for _ in 0..locks {
        tokio::time::sleep(REST_DELAY).await;
        trips.record(bare.measure_round_trips(1).await? / 1_000.0);
        ours.record(handing.measure_next().await?);
    }
    Ok((ours, trips))
}

/// What it costs the server that somebody waits.
async fn measure_waiting(setting: &BenchConfig, server: &RedisServer, peers: &[RedisPeer]) -> Result<Vec<ReportLine>> {
    let duly = duly_side::open(server, DEFAULTS).await?;
    let (held, child) = HandOver::start(&duly, &duly_side::url(server, DEFAULTS)).await?.into_parts();
    let ours = measure_idle_requests(setting, server, child).await?;
    drop((held, duly));
    let line = || ReportLine::single(GROUP, "requests while one waits", ours, Unit::PerSecond);
    let mut lines = Vec::new();
    for peer in peers {
        server.flush().await?;
        let theirs = measure_idle_requests(setting, server, peer.start_lock_waiter(server)?).await?;
        lines.push(line().compared_to(peer.name, theirs));
    }
    server.flush().await?;
    Ok(lines)
}
