//! An idle worker in another process: how soon it starts a job, and how often it asks while there is none.

use std::time::Duration;

use anyhow::Result;

use super::duly_side::{self, KEEP_NONE};
use super::peers::Peer;
use super::round_trip::Popped;
use super::server::Server;
use super::{Goal, Lines, against, pairs, rounds, told};
use crate::child::Playing;
use crate::config::Setting;
use crate::report::{Line, Unit};
use crate::stats::{Pair, Samples};
use crate::wake::wakes;

const GROUP: &str = "redis-wake";
const JOBS: usize = 200;
/// Jobs before the measuring begins: connections and scripts are there then.
const WARM: usize = 5;
/// Jobs at once in an idle worker.
const CONCURRENCY: usize = 10;
const GOAL: f64 = 0.5;
/// Most requests a second of an idle worker.
const GOAL_REQUESTS: f64 = 1.0;

pub(crate) async fn run(setting: &Setting) -> Result<Vec<Line>> {
    let peers = Peer::all(setting)?;
    let server = Server::start().await?;
    let jobs = if setting.quick { JOBS / 10 } else { JOBS };
    let (mut p50, mut p99, mut bare) = (pairs(&peers), pairs(&peers), Pair::default());
    for round in 0..rounds(setting) {
        let duly = duly_side::open(&server, KEEP_NONE).await?;
        let child = duly_side::work(&server, KEEP_NONE)?;
        wakes(&duly, &child, WARM, step).await?;
        let ours = wakes(&duly, &child, jobs, step).await?.from_call;
        child.kill()?;
        bare.record(ours.median(), bare_pop(&server, jobs).await?.median());
        for (at, peer) in peers.iter().enumerate() {
            server.flush().await?;
            let figures = peer.run(&server, &["idle-latency", &jobs.to_string()])?;
            p50[at].record(ours.median(), figures.p50_ms);
            p99[at].record(ours.percentile(99.0), figures.p99_ms);
        }
        server.flush().await?;
        told(GROUP, setting, round);
    }
    let name = |name| Lines { group: GROUP, name, unit: Unit::Millis };
    let floor = "bare LPUSH, BRPOP";
    let mut lines = vec![Line::pair(GROUP, "push to start on an idle worker, p50", Unit::Millis, floor, &bare)];
    lines.extend(against(name("push to start on an idle worker, p50"), Goal::AtMost(GOAL), &peers, &p50, |_| true));
    lines.extend(
        p99.iter().zip(&peers).map(|(pair, peer)| {
            Line::pair(GROUP, "push to start on an idle worker, p99", Unit::Millis, peer.name, pair)
        }),
    );
    lines.extend(idle(setting, &server, &peers).await?);
    Ok(lines)
}

/// What can hardly be undercut: milliseconds from a bare LPUSH until a process that blocks in BRPOP has it, after the same pauses.
async fn bare_pop(server: &Server, jobs: usize) -> Result<Samples> {
    let (mut bare, mut took) = (Popped::start(server).await?, Samples::default());
    for no in 0..WARM + jobs {
        tokio::time::sleep(step(no)).await;
        let ms = bare.push(no).await?;
        if no >= WARM {
            took.record(ms);
        }
    }
    Ok(took)
}

/// As the peers do it: from 10 to 110 ms, so that one that looks now and then is met at any point of its turn.
fn step(no: usize) -> Duration {
    Duration::from_millis((10 + no * 37 % 100) as u64)
}

async fn idle(setting: &Setting, server: &Server, peers: &[Peer]) -> Result<Vec<Line>> {
    let ours = idle_requests(setting, server, duly_side::work(server, KEEP_NONE)?).await?;
    let line = || Line::alone(GROUP, "requests of an idle worker", ours, Unit::PerSecond);
    let mut lines = vec![line().goal(format!("<= {GOAL_REQUESTS}/s"), ours <= GOAL_REQUESTS)];
    for peer in peers {
        server.flush().await?;
        let theirs = idle_requests(setting, server, peer.work(server, CONCURRENCY)?).await?;
        lines.push(line().against(peer.name, theirs));
    }
    Ok(lines)
}

/// Requests a second that this worker sends while there is nothing to do.
pub(super) async fn idle_requests(setting: &Setting, server: &Server, worker: Playing) -> Result<f64> {
    let time = Duration::from_secs(if setting.quick { 2 } else { 20 });
    // What its start has left to do is not idleness.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let requests = server.requests_per_s(time)?;
    worker.kill()?;
    Ok(requests)
}
