//! The peers alone, each figure once: what there is to be beaten on this machine.

use anyhow::Result;

use super::baseline::Bare;
use super::failover;
use super::lateness::{JOBS as LATE_JOBS, SECONDS as LATE_SECONDS};
use super::lifecycle::peer_micros;
use super::memory::bytes_per_job;
use super::peers::Peer;
use super::server::Server;
use super::wake::idle_requests;
use crate::config::Setting;
use crate::report::{Figure, Line, Unit};

const BULK_JOBS: usize = 100_000;
const ONE_JOBS: usize = 10_000;
const WAKES: usize = 200;
const IDLE_CONCURRENCY: usize = 10;

/// Prints a table of its own, for duly is not in it, and answers no lines.
pub(crate) async fn run(setting: &Setting) -> Result<Vec<Line>> {
    let peers = Peer::all(setting)?;
    let server = Server::start().await?;
    let fewer = if setting.quick { 20 } else { 1 };
    let mut columns = Vec::new();
    for peer in &peers {
        eprintln!("redis-peers: {}", peer.name);
        columns.push(column(setting, &server, peer, fewer).await?);
    }
    if !setting.quick {
        eprintln!("redis-peers: failover");
        for (column, (_, seconds)) in columns.iter_mut().zip(failover::peers(setting).await?) {
            column
                .push(("killed worker's jobs have started elsewhere", Figure::new("", seconds, Unit::Seconds).shown()));
        }
    }
    println!("\n{}", table(&peers, &columns));
    println!("{}", floor(&server, fewer).await?);
    Ok(Vec::new())
}

/// Name and figure of each line.
type Column = Vec<(&'static str, String)>;

async fn column(setting: &Setting, server: &Server, peer: &Peer, fewer: usize) -> Result<Column> {
    let shown = |value, unit| Figure::new("", value, unit).shown();
    server.flush().await?;
    let one = peer.run(server, &["push-one", &(ONE_JOBS / fewer).to_string()])?;
    let bytes = bytes_per_job(server, peer, BULK_JOBS / fewer).await?;
    server.flush().await?;
    let bulk = peer.push(server, BULK_JOBS / fewer)?;
    server.flush().await?;
    peer.push(server, peer.jobs)?;
    let drain = peer.drain(server, peer.jobs)?;
    let micros = peer_micros(server, peer).await?;
    server.flush().await?;
    let wake = peer.run(server, &["idle-latency", &(WAKES / fewer).to_string()])?;
    server.flush().await?;
    let late = peer.run(server, &["late", &LATE_JOBS.to_string(), &LATE_SECONDS.to_string()])?;
    server.flush().await?;
    let requests = idle_requests(setting, server, peer.work(server, IDLE_CONCURRENCY)?).await?;
    server.flush().await?;
    Ok(vec![
        ("push, each awaited", shown(one.per_s, Unit::PerSecond)),
        ("push in bulk", shown(bulk.per_s, Unit::PerSecond)),
        (
            "drain",
            format!("{} ({} jobs, {} at once)", shown(drain.per_s, Unit::PerSecond), peer.jobs, peer.concurrency),
        ),
        ("Redis CPU per life", shown(micros, Unit::Micros)),
        ("Redis memory per queued job", shown(bytes, Unit::Bytes)),
        ("worker memory, most", shown(drain.rss_mb, Unit::Megabytes)),
        ("push to start on an idle worker, p50", shown(wake.p50_ms, Unit::Millis)),
        ("push to start on an idle worker, p99", shown(wake.p99_ms, Unit::Millis)),
        (
            "start after its due moment, p50",
            format!("{} ({} of {LATE_JOBS} ran)", shown(late.p50_ms, Unit::Millis), late.ran),
        ),
        ("start after its due moment, p99", shown(late.p99_ms, Unit::Millis)),
        ("start after its due moment, earliest", shown(late.earliest_ms, Unit::Millis)),
        ("requests of an idle worker", shown(requests, Unit::PerSecond)),
    ])
}

async fn floor(server: &Server, fewer: usize) -> Result<String> {
    server.flush().await?;
    let mut bare = Bare::connect(server).await?;
    let (one, bulk) = (bare.push_one(ONE_JOBS / fewer).await?, bare.push_bulk(BULK_JOBS / fewer).await?);
    let shown = |value| Figure::new("", value, Unit::PerSecond).shown();
    Ok(format!("bare LPUSH: {} each awaited, {} 1000 at a time", shown(one), shown(bulk)))
}

/// Markdown: a line for each figure, a column for each peer.
fn table(peers: &[Peer], columns: &[Column]) -> String {
    let names: Vec<&str> = peers.iter().map(|peer| peer.name).collect();
    let mut text = format!("| what | {} |\n|---|{}\n", names.join(" | "), "---|".repeat(names.len()));
    for at in 0..columns[0].len() {
        let cells: Vec<&str> = columns.iter().map(|column| column[at].1.as_str()).collect();
        text.push_str(&format!("| {} | {} |\n", columns[0][at].0, cells.join(" | ")));
    }
    text
}
