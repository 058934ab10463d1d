//! Drains: a worker starts and runs what waits, until the last job is recorded as done.

use anyhow::Result;

use super::duly_side::{self, KEEP_NONE};
use super::peers::Peer;
use super::server::Server;
use super::{Goal, Lines, against, pairs, rounds, told};
use crate::config::Setting;
use crate::report::{Line, Unit};

const GROUP: &str = "redis-drain";
const JOBS: usize = 100_000;
const GOAL: f64 = 5.0;

pub(crate) async fn run(setting: &Setting) -> Result<Vec<Line>> {
    let peers = Peer::all(setting)?;
    let server = Server::start().await?;
    let jobs = if setting.quick { JOBS / 20 } else { JOBS };
    let mut drains = pairs(&peers);
    for round in 0..rounds(setting) {
        let duly = duly_side::open(&server, KEEP_NONE).await?;
        duly_side::push_bulk(&duly, jobs).await?;
        let ours = duly_side::drain(&duly, jobs).await?;
        for (peer, pair) in peers.iter().zip(&mut drains) {
            server.flush().await?;
            peer.push(&server, peer.jobs)?;
            pair.record(ours, peer.drain(&server, peer.jobs)?.per_s);
        }
        server.flush().await?;
        told(GROUP, setting, round);
    }
    let drain = Lines { group: GROUP, name: "drain", unit: Unit::PerSecond };
    Ok(against(drain, Goal::AtLeast(GOAL), &peers, &drains, |peer| peer.drains_all))
}
