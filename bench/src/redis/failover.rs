//! Failover: a worker is killed with -9 while another lives. When has the last of its jobs started there?

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};

use super::duly_side;
use super::peers::Peer;
use super::rounds;
use super::server::Server;
use crate::child::Playing;
use crate::config::Setting;
use crate::report::{Line, Unit};
use crate::stats::Samples;

const GROUP: &str = "redis-failover";
/// Jobs that the killed worker holds.
const JOBS: usize = 5;
/// How long they run: longer than anybody waits here.
const HOLD: Duration = Duration::from_secs(1_200);
/// Jobs at once in each worker.
const CONCURRENCY: usize = 10;
/// How long the other worker has lived when the first is killed: longer than a lease, and than most peers' beats.
const LIVED: Duration = Duration::from_secs(6);
/// Longest wait for duly.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest wait for a peer: the slowest that we know of takes 300 s.
const PEER_PATIENCE: Duration = Duration::from_secs(330);
/// Leases with their options, and by when all jobs have started.
const LEASES: [(&str, &str, f64); 2] = [("defaults", "", 3.5), ("lease=1s", "&lease=1s", 1.5)];

pub(crate) async fn run(setting: &Setting) -> Result<Vec<Line>> {
    let server = Server::start().await?;
    let mut ours = Vec::new();
    for (name, options, goal) in LEASES {
        let mut seconds = Samples::default();
        for _ in 0..rounds(setting) {
            seconds.record(our_seconds(&server, options).await?);
            server.flush().await?;
        }
        let name = format!("killed worker's jobs have started elsewhere, {name}");
        ours.push(Line::alone(GROUP, name, seconds.max(), Unit::Seconds).below(goal));
    }
    let defaults = ours[0].clone();
    let mut lines = ours;
    for (name, seconds) in peers(setting).await? {
        lines.push(Line { goal: None, ..defaults.clone() }.against(name, seconds));
    }
    Ok(lines)
}

async fn our_seconds(server: &Server, options: &str) -> Result<f64> {
    let duly = duly_side::open(server, options).await?;
    let first = duly_side::work(server, options)?;
    duly_side::hold(&duly, JOBS, HOLD).await?;
    all_start(&first)?;
    let other = duly_side::work(server, options)?;
    seconds_until_elsewhere(first, &other, PATIENCE)
}

/// All peers at the same time, each on a server of its own: they do nothing but wait.
/// Infinite if some job has not started until patience ends.
pub(super) async fn peers(setting: &Setting) -> Result<Vec<(&'static str, f64)>> {
    let peers = Peer::all(setting)?;
    let mut servers = Vec::new();
    for _ in &peers {
        servers.push(Server::start().await?);
    }
    std::thread::scope(|scope| {
        let waits: Vec<_> = peers
            .iter()
            .zip(&servers)
            .map(|(peer, server)| (peer.name, scope.spawn(move || peer_seconds(peer, server))))
            .collect();
        waits
            .into_iter()
            .map(|(name, wait)| {
                let seconds = wait.join().map_err(|_| anyhow!("waiting for {name} has panicked"))??;
                Ok((name, seconds))
            })
            .collect()
    })
}

fn peer_seconds(peer: &Peer, server: &Server) -> Result<f64> {
    let first = peer.work(server, CONCURRENCY)?;
    peer.hold(server, JOBS, HOLD)?;
    all_start(&first)?;
    let other = peer.work(server, CONCURRENCY)?;
    seconds_until_elsewhere(first, &other, PEER_PATIENCE)
}

fn all_start(worker: &Playing) -> Result<()> {
    for _ in 0..JOBS {
        ensure!(worker.next_start_within(PATIENCE)?.is_some(), "the jobs do not start");
    }
    Ok(())
}

fn seconds_until_elsewhere(first: Playing, other: &Playing, patience: Duration) -> Result<f64> {
    std::thread::sleep(LIVED);
    ensure!(other.next_start_within(Duration::ZERO)?.is_none(), "a job runs in two places");
    let begin = Instant::now();
    first.kill()?;
    for _ in 0..JOBS {
        if other.next_start_within(patience.saturating_sub(begin.elapsed()))?.is_none() {
            return Ok(f64::INFINITY);
        }
    }
    Ok(begin.elapsed().as_secs_f64())
}
