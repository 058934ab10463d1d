//! Pushes: awaited one by one, and in bulk.

use anyhow::Result;

use super::baseline::Bare;
use super::duly_side::{self, KEEP_NONE};
use super::peers::Peer;
use super::server::Server;
use super::{Goal, Lines, against, pairs, rounds, told};
use crate::config::Setting;
use crate::report::{Line, Unit};
use crate::stats::Pair;

const GROUP: &str = "redis-push";
/// Jobs of a bulk round.
const BULK_JOBS: usize = 100_000;
/// Jobs of a round in which each is awaited.
const ONE_JOBS: usize = 10_000;
const GOAL_BULK: f64 = 2.5;
const GOAL_ONE: f64 = 0.7;

pub(crate) async fn run(setting: &Setting) -> Result<Vec<Line>> {
    let peers = Peer::all(setting)?;
    let server = Server::start().await?;
    let (bulk_jobs, one_jobs) = if setting.quick { (5_000, 500) } else { (BULK_JOBS, ONE_JOBS) };
    let (mut one_floor, mut bulk_floor) = (Pair::default(), Pair::default());
    let (mut one_peers, mut bulk_peers) = (pairs(&peers), pairs(&peers));
    for round in 0..rounds(setting) {
        let mut bare = Bare::connect(&server).await?;
        let duly = duly_side::open(&server, KEEP_NONE).await?;
        // A few beforehand: connections and scripts are there when the measuring begins.
        duly_side::push_one(&duly, one_jobs / 10).await?;
        let one = duly_side::push_one(&duly, one_jobs).await?;
        one_floor.record(one, bare.push_one(one_jobs).await?);
        let bulk = duly_side::push_bulk(&duly, bulk_jobs).await?;
        bulk_floor.record(bulk, bare.push_bulk(bulk_jobs).await?);
        for (at, peer) in peers.iter().enumerate() {
            server.flush().await?;
            one_peers[at].record(one, peer.run(&server, &["push-one", &one_jobs.to_string()])?.per_s);
            server.flush().await?;
            bulk_peers[at].record(bulk, peer.push(&server, bulk_jobs)?.per_s);
        }
        server.flush().await?;
        told(GROUP, setting, round);
    }
    let line = |name: &str, pair| Line::pair(GROUP, name, Unit::PerSecond, "bare LPUSH", pair);
    let mut lines = vec![
        line("push, each awaited", &one_floor).ratio_at_least(GOAL_ONE),
        line("push, 1000 at a time", &bulk_floor),
    ];
    // More than a bare LPUSH cannot be had, so the goal of a single push is against that.
    lines.extend(
        one_peers
            .iter()
            .zip(&peers)
            .map(|(pair, peer)| Line::pair(GROUP, "push, each awaited", Unit::PerSecond, peer.name, pair)),
    );
    let bulk = Lines { group: GROUP, name: "push in bulk", unit: Unit::PerSecond };
    lines.extend(against(bulk, Goal::AtLeast(GOAL_BULK), &peers, &bulk_peers, |_| true));
    Ok(lines)
}
