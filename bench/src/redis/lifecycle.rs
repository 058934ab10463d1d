//! What a life costs the server: CPU time of Redis for push, claim and settle, per job.
//!
//! On a server that is at work, as the peers' own processes keep it: several workers, each with a task that pushes as much as it
//! settles, while jobs wait. A server that rests between two requests pays for each of them several times as much to be woken,
//! whatever is asked; what that makes of a lone worker has a line of its own, with the same goal.

use anyhow::Result;
use futures_util::future::try_join_all;

use super::baseline::Bare;
use super::duly_side::{self, DEFAULTS, KEEP_NONE};
use super::peers::Peer;
use super::server::Server;
use super::{pairs, rounds, told};
use crate::config::{Setting, fill};
use crate::growth::{FEW, Waiting, steady};
use crate::report::{Line, Unit};
use crate::stats::Pair;

const GROUP: &str = "redis-life";
/// The peer of the goal.
const RIVAL: &str = "BullMQ";
/// Batch sizes, each with the most of the rival's cost that is good enough.
const BATCHES: [(usize, f64); 2] = [(10, 0.2), (100, 0.1)];
/// Jobs of a peer's round, if it can have so many waiting.
const PEER_JOBS: usize = 30_000;
/// Jobs of the floor's round, over all connections.
const BARE_JOBS: usize = 64_000;
/// Workers at the same time, and connections of the floor.
const WORKERS: usize = 8;

pub(crate) async fn run(setting: &Setting) -> Result<Vec<Line>> {
    let peers = Peer::all(setting)?;
    let server = Server::start().await?;
    let mut batches: Vec<Batch> = BATCHES.map(|(batch, goal)| Batch::new(batch, goal, &peers)).into();
    for round in 0..rounds(setting) {
        // A peer has one figure: its cheapest way, whatever the batch is called.
        let mut theirs = Vec::new();
        for peer in &peers {
            theirs.push(peer_micros(&server, peer).await?);
        }
        for batch in &mut batches {
            batch.round(&server, setting, &theirs).await?;
        }
        told(GROUP, setting, round);
    }
    Ok(batches.iter().flat_map(|batch| batch.lines(&peers)).collect())
}

/// All rounds of one batch size.
struct Batch {
    size: usize,
    goal: f64,
    floor: Pair,
    lean: Vec<Pair>,
    kept: Vec<Pair>,
    /// One worker, and one task that pushes.
    alone: Vec<Pair>,
}

impl Batch {
    fn new(size: usize, goal: f64, peers: &[Peer]) -> Self {
        Batch { size, goal, floor: Pair::default(), lean: pairs(peers), kept: pairs(peers), alone: pairs(peers) }
    }

    async fn round(&mut self, server: &Server, setting: &Setting, theirs: &[f64]) -> Result<()> {
        let lean = our_micros(server, setting, KEEP_NONE, self.size).await?;
        self.floor.record(lean, bare_micros(server, self.size).await?);
        let kept = our_micros(server, setting, DEFAULTS, self.size).await?;
        let alone = alone_micros(server, setting, self.size).await?;
        for (at, theirs) in theirs.iter().enumerate() {
            self.lean[at].record(lean, *theirs);
            self.kept[at].record(kept, *theirs);
            self.alone[at].record(alone, *theirs);
        }
        Ok(())
    }

    fn lines(&self, peers: &[Peer]) -> Vec<Line> {
        let name = |suffix: &str| format!("Redis CPU per life, batch {}{suffix}", self.size);
        let mut lines = vec![Line::pair(GROUP, name(""), Unit::Micros, "bare LPUSH, RPOP", &self.floor)];
        for (at, peer) in peers.iter().enumerate() {
            let line = |suffix: &str, pair| Line::pair(GROUP, name(suffix), Unit::Micros, peer.name, pair);
            if peer.name != RIVAL {
                lines.push(line("", &self.lean[at]));
                continue;
            }
            lines.push(line("", &self.lean[at]).ratio_at_most(self.goal));
            lines.push(line(", defaults", &self.kept[at]));
            lines.push(line(", one worker alone", &self.alone[at]).ratio_at_most(self.goal));
        }
        lines
    }
}

async fn our_micros(server: &Server, setting: &Setting, options: &str, batch: usize) -> Result<f64> {
    server.flush().await?;
    fill(&duly_side::open(server, options).await?, FEW, || Waiting::Queued.job()).await?;
    let before = server.cpu().await?;
    let workers = (0..WORKERS).map(|_| {
        let (url, time) = (duly_side::url(server, options), setting.time());
        tokio::spawn(async move { steady(&url, Waiting::Queued, batch, time).await })
    });
    let mut jobs = 0;
    for worker in workers.collect::<Vec<_>>() {
        jobs += worker.await??.jobs;
    }
    Ok((server.cpu().await? - before).as_secs_f64() * 1e6 / jobs as f64)
}

/// The lives of one worker, which one task pushes at most a few batches ahead of it: between two requests the server rests.
async fn alone_micros(server: &Server, setting: &Setting, batch: usize) -> Result<f64> {
    server.flush().await?;
    let duly = duly_side::open(server, KEEP_NONE).await?;
    let before = server.cpu().await?;
    let jobs = duly_side::lives(&duly, batch, setting.time()).await?;
    Ok((server.cpu().await? - before).as_secs_f64() * 1e6 / jobs as f64)
}

async fn bare_micros(server: &Server, batch: usize) -> Result<f64> {
    server.flush().await?;
    let mut floor = try_join_all((0..WORKERS).map(|_| Bare::connect(server))).await?;
    let before = server.cpu().await?;
    try_join_all(floor.iter_mut().map(|bare| bare.lives(batch, BARE_JOBS / WORKERS))).await?;
    Ok((server.cpu().await? - before).as_secs_f64() * 1e6 / BARE_JOBS as f64)
}

/// Pushes in bulk, then drains.
pub(super) async fn peer_micros(server: &Server, peer: &Peer) -> Result<f64> {
    server.flush().await?;
    let jobs = peer.jobs.min(PEER_JOBS);
    let before = server.cpu().await?;
    peer.push(server, jobs)?;
    peer.drain(server, jobs)?;
    Ok((server.cpu().await? - before).as_secs_f64() * 1e6 / jobs as f64)
}
