//! Failover: a worker is killed with SIGKILL while another runs. Measures when the last of its jobs starts there.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};

use super::duly_side;
use super::peers::RedisPeer;
use super::round_count;
use super::server::RedisServer;
use crate::child::BenchProcess;
use crate::config::BenchConfig;
use crate::report::{ReportLine, Unit};
use crate::stats::Samples;

const GROUP: &str = "redis-failover";
/// Jobs that the killed worker holds.
const HELD_JOBS: usize = 5;
/// The duration of these jobs: longer than any wait.
const JOB_DURATION: Duration = Duration::from_secs(1_200);
/// The concurrency of each worker.
const CONCURRENCY: usize = 10;
/// How long the other worker runs before the kill: longer than a lease and than the heartbeats of most peers.
const OVERLAP_DURATION: Duration = Duration::from_secs(6);
/// The longest wait for duly.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest wait for a peer; the slowest known peer takes 300 s.
const PEER_START_TIMEOUT: Duration = Duration::from_secs(330);
/// Leases with their options, and the goal in seconds.
const LEASES: [(&str, &str, f64); 2] = [("defaults", "", 3.5), ("lease=1s", "&lease=1s", 1.5)];

pub(crate) async fn run(config: &BenchConfig) -> Result<Vec<ReportLine>> {
    let server = RedisServer::start().await?;
    let mut ours = Vec::new();
    for (name, options, goal) in LEASES {
        let mut seconds = Samples::default();
        for _ in 0..round_count(config) {
            seconds.record(measure_duly(&server, options).await?);
            server.flush().await?;
        }
        let name = format!("killed worker's jobs have started elsewhere, {name}");
        ours.push(ReportLine::single(GROUP, name, seconds.max(), Unit::Seconds).value_below(goal));
    }
    let defaults = ours[0].clone();
    let mut lines = ours;
    for (name, seconds) in measure_peers(config).await? {
        lines.push(ReportLine { goal: None, ..defaults.clone() }.compared_to(name, seconds));
    }
    Ok(lines)
}

async fn measure_duly(server: &RedisServer, options: &str) -> Result<f64> {
    let duly = duly_side::open(server, options).await?;
    let first = duly_side::start_worker(server, options)?;
    duly_side::push_holding_jobs(&duly, HELD_JOBS, JOB_DURATION).await?;
    wait_for_starts(&first)?;
    let other = duly_side::start_worker(server, options)?;
    measure_takeover(first, &other, START_TIMEOUT)
}

/// Measures all peers concurrently, each on its own server: they only wait.
///
/// Infinite if a job has not started before the timeout.
pub(super) async fn measure_peers(config: &BenchConfig) -> Result<Vec<(&'static str, f64)>> {
    let peers = RedisPeer::prepare_all(config)?;
    let mut servers = Vec::new();
    for _ in &peers {
        servers.push(RedisServer::start().await?);
    }
    std::thread::scope(|scope| {
        let waits: Vec<_> = peers
            .iter()
            .zip(&servers)
            .map(|(peer, server)| (peer.name, scope.spawn(move || measure_peer(peer, server))))
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

fn measure_peer(peer: &RedisPeer, server: &RedisServer) -> Result<f64> {
    let first = peer.start_worker(server, CONCURRENCY)?;
    peer.push_holding_jobs(server, HELD_JOBS, JOB_DURATION)?;
    wait_for_starts(&first)?;
    let other = peer.start_worker(server, CONCURRENCY)?;
    measure_takeover(first, &other, PEER_START_TIMEOUT)
}

fn wait_for_starts(worker: &BenchProcess) -> Result<()> {
    for _ in 0..HELD_JOBS {
        ensure!(worker.next_start_within(START_TIMEOUT)?.is_some(), "the jobs do not start");
    }
    Ok(())
}

fn measure_takeover(first: BenchProcess, other: &BenchProcess, timeout: Duration) -> Result<f64> {
    std::thread::sleep(OVERLAP_DURATION);
    ensure!(other.next_start_within(Duration::ZERO)?.is_none(), "a job runs in two places");
    let begin = Instant::now();
    first.kill()?;
    for _ in 0..HELD_JOBS {
        if other.next_start_within(timeout.saturating_sub(begin.elapsed()))?.is_none() {
            return Ok(f64::INFINITY);
        }
    }
    Ok(begin.elapsed().as_secs_f64())
}
