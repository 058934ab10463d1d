//! Locks on Redis: beside bare round trips through the same client, and beside peers, who poll.

use std::time::Duration;

use anyhow::Result;

use super::duly_side::{self, DEFAULTS};
use super::lock_contention;
use super::peers::Peer;
use super::round_trip::Round;
use super::server::Server;
use super::wake::idle_requests;
use super::{pairs, rounds, told};
use crate::config::Setting;
use crate::lock::{Handing, WARM, lock_and_unlock};
use crate::report::{Line, Unit};
use crate::stats::{Pair, Samples};

const GROUP: &str = "redis-lock";
/// Locks of a round that nobody else wants.
const LONE: usize = 2_000;
/// Locks of a round that somebody waits for.
const HANDED: usize = 300;
/// A peer's hand-over takes a hundred times as long: fewer of them.
const PEER_HANDED: usize = 50;
const GOAL_LONE: f64 = 1.3;
/// The release is one round trip, and then two more.
const GOAL_HANDED: f64 = 1.0 + 2.0;
/// From a hand-over to the round trip that it is held against: both find the machine at rest.
const STEP: Duration = Duration::from_millis(10);

pub(crate) async fn run(setting: &Setting) -> Result<Vec<Line>> {
    let peers = Peer::lockers()?;
    let server = Server::start().await?;
    let mut lines = lone(setting, &server, &peers).await?;
    lines.extend(handed(setting, &server, &peers).await?);
    lines.extend(waiting(setting, &server, &peers).await?);
    lines.extend(lock_contention::lines(GROUP, setting, &server).await?);
    Ok(lines)
}

async fn lone(setting: &Setting, server: &Server, peers: &[Peer]) -> Result<Vec<Line>> {
    let locks = if setting.quick { LONE / 20 } else { LONE };
    let (mut floor, mut others) = (Pair::default(), pairs(peers));
    for round in 0..rounds(setting) {
        let (ours, bare) = lone_round(server, locks).await?;
        floor.record(ours.median(), bare.median());
        for (peer, pair) in peers.iter().zip(&mut others) {
            server.flush().await?;
            pair.record(ours.median(), peer.run(server, &["lock", &locks.to_string()])?.p50_ms * 1_000.0);
        }
        server.flush().await?;
        told(GROUP, setting, round);
    }
    let line = |who, pair| Line::pair(GROUP, "lock and unlock, p50", Unit::Micros, who, pair);
    let mut lines = vec![line("two bare round trips", &floor).ratio_at_most(GOAL_LONE)];
    lines.extend(peers.iter().zip(&others).map(|(peer, pair)| line(peer.name, pair)));
    Ok(lines)
}

/// Microseconds of locks, and of two round trips each, in turn.
async fn lone_round(server: &Server, locks: usize) -> Result<(Samples, Samples)> {
    let duly = duly_side::open(server, DEFAULTS).await?;
    let mut bare = Round::connect(server).await?;
    let (mut ours, mut trips) = (Samples::default(), Samples::default());
    for at in 0..WARM + locks {
        let (lock, trip) = (lock_and_unlock(&duly).await?, bare.trips(2).await?);
        if at >= WARM {
            ours.record(lock);
            trips.record(trip);
        }
    }
    Ok((ours, trips))
}

async fn handed(setting: &Setting, server: &Server, peers: &[Peer]) -> Result<Vec<Line>> {
    let fewer = if setting.quick { 10 } else { 1 };
    let (mut floor, mut p50, mut p99) = (Pair::default(), pairs(peers), pairs(peers));
    for round in 0..rounds(setting) {
        let (ours, bare) = handed_round(server, HANDED / fewer).await?;
        floor.record(ours.median(), bare.median());
        for (at, peer) in peers.iter().enumerate() {
            server.flush().await?;
            let figures = peer.run(server, &["hand-over", &(PEER_HANDED / fewer).to_string()])?;
            p50[at].record(ours.median(), figures.p50_ms);
            p99[at].record(ours.percentile(99.0), figures.p99_ms);
        }
        server.flush().await?;
        told(GROUP, setting, round);
    }
    let line = |what: &str, who, pair| {
        let name = format!("hand-over to a waiter in another process, {what}");
        Line::pair(GROUP, name, Unit::Millis, who, pair)
    };
    let met = floor.ratio() <= GOAL_HANDED;
    let mut lines = vec![line("p50", "bare round trip", &floor).goal("<= 2 trips more", met)];
    for (what, pairs) in [("p50", &p50), ("p99", &p99)] {
        lines.extend(peers.iter().zip(pairs).map(|(peer, pair)| line(what, peer.name, pair)));
    }
    Ok(lines)
}

/// Milliseconds of hand-overs, and of a round trip each, in turn.
async fn handed_round(server: &Server, locks: usize) -> Result<(Samples, Samples)> {
    let duly = duly_side::open(server, DEFAULTS).await?;
    let mut bare = Round::connect(server).await?;
    let mut handing = Handing::start(&duly, &duly_side::url(server, DEFAULTS)).await?;
    let (mut ours, mut trips) = (Samples::default(), Samples::default());
    for _ in 0..locks {
        tokio::time::sleep(STEP).await;
        trips.record(bare.trips(1).await? / 1_000.0);
        ours.record(handing.next().await?);
    }
    Ok((ours, trips))
}

/// What it costs the server that somebody waits.
async fn waiting(setting: &Setting, server: &Server, peers: &[Peer]) -> Result<Vec<Line>> {
    let duly = duly_side::open(server, DEFAULTS).await?;
    let (held, child) = Handing::start(&duly, &duly_side::url(server, DEFAULTS)).await?.rest();
    let ours = idle_requests(setting, server, child).await?;
    drop((held, duly));
    let line = || Line::alone(GROUP, "requests while one waits", ours, Unit::PerSecond);
    let mut lines = Vec::new();
    for peer in peers {
        server.flush().await?;
        let theirs = idle_requests(setting, server, peer.wait(server)?).await?;
        lines.push(line().against(peer.name, theirs));
    }
    server.flush().await?;
    Ok(lines)
}
