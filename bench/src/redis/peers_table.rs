//! The peers alone, each figure once: what there is to be beaten on this machine.

use anyhow::Result;

use super::baseline::RedisBaseline;
use super::failover;
use super::lateness::{SCHEDULE_SECONDS as LATE_SECONDS, SCHEDULED_JOBS as LATE_JOBS};
use super::lifecycle::measure_peer_micros;
use super::memory::measure_bytes_per_job;
use super::peers::RedisPeer;
use super::server::RedisServer;
use super::wake::measure_idle_requests;
use crate::config::BenchConfig;
use crate::report::{Figure, ReportLine, Unit};

const BULK_JOBS: usize = 100_000;
const SINGLE_PUSH_JOBS: usize = 10_000;
const WAKE_JOBS: usize = 200;
const IDLE_CONCURRENCY: usize = 10;

/// Prints a table of its own, for duly is not in it, and answers no lines.
pub(crate) async fn run(setting: &BenchConfig) -> Result<Vec<ReportLine>> {
    let peers = RedisPeer::prepare_all(setting)?;
    let server = RedisServer::start().await?;
    let fewer = if setting.is_quick { 20 } else { 1 };
    let mut columns = Vec::new();
    for peer in &peers {
        eprintln!("redis-peers: {}", peer.name);
        columns.push(measure_peer(setting, &server, peer, fewer).await?);
    }
    if !setting.is_quick {
        eprintln!("redis-peers: failover");
        for (column, (_, seconds)) in columns.iter_mut().zip(failover::measure_peers(setting).await?) {
            column.push((
                "killed worker's jobs have started elsewhere",
                Figure::new("", seconds, Unit::Seconds).format_value(),
            ));
        }
    }
    println!("\n{}", format_table(&peers, &columns));
    println!("{}", measure_baseline(&server, fewer).await?);
    Ok(Vec::new())
}

/// Name and figure of each line.
type PeerColumn = Vec<(&'static str, String)>;

async fn measure_peer(
    setting: &BenchConfig,
    server: &RedisServer,
    peer: &RedisPeer,
    fewer: usize,
) -> Result<PeerColumn> {
    let shown = |value, unit| Figure::new("", value, unit).format_value();
    server.flush().await?;
    let one = peer.run_verb(server, &["push-one", &(SINGLE_PUSH_JOBS / fewer).to_string()])?;
    let bytes = measure_bytes_per_job(server, peer, BULK_JOBS / fewer).await?;
    server.flush().await?;
    let bulk = peer.push(server, BULK_JOBS / fewer)?;
    server.flush().await?;
    peer.push(server, peer.drain_jobs)?;
    let drain = peer.drain(server, peer.drain_jobs)?;
    let micros = measure_peer_micros(server, peer).await?;
    server.flush().await?;
    let wake = peer.run_verb(server, &["idle-latency", &(WAKE_JOBS / fewer).to_string()])?;
    server.flush().await?;
    let late = peer.run_verb(server, &["late", &LATE_JOBS.to_string(), &LATE_SECONDS.to_string()])?;
    server.flush().await?;
    let requests = measure_idle_requests(setting, server, peer.start_worker(server, IDLE_CONCURRENCY)?).await?;
    server.flush().await?;
    Ok(vec![
        ("push, each awaited", shown(one.per_s, Unit::PerSecond)),
        ("push in bulk", shown(bulk.per_s, Unit::PerSecond)),
        (
            "drain",
            format!("{} ({} jobs, {} at once)", shown(drain.per_s, Unit::PerSecond), peer.drain_jobs, peer.concurrency),
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

async fn measure_baseline(server: &RedisServer, fewer: usize) -> Result<String> {
    server.flush().await?;
    let mut bare = RedisBaseline::connect(server).await?;
    let (one, bulk) = (
        bare.measure_single_pushes(SINGLE_PUSH_JOBS / fewer).await?,
        bare.measure_bulk_pushes(BULK_JOBS / fewer).await?,
    );
    let shown = |value| Figure::new("", value, Unit::PerSecond).format_value();
    Ok(format!("bare LPUSH: {} each awaited, {} 1000 at a time", shown(one), shown(bulk)))
}

/// Markdown: a line for each figure, a column for each peer.
fn format_table(peers: &[RedisPeer], columns: &[PeerColumn]) -> String {
    let names: Vec<&str> = peers.iter().map(|peer| peer.name).collect();
    let mut text = format!("| what | {} |\n|---|{}\n", names.join(" | "), "---|".repeat(names.len()));
    for at in 0..columns[0].len() {
        let cells: Vec<&str> = columns.iter().map(|column| column[at].1.as_str()).collect();
        text.push_str(&format!("| {} | {} |\n", columns[0][at].0, cells.join(" | ")));
    }
    text
}
