//! The figures of the peers alone, each measured once.

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

/// Prints its own table, because it does not include duly, and returns no lines.
pub(crate) async fn run(config: &BenchConfig) -> Result<Vec<ReportLine>> {
    let peers = RedisPeer::prepare_all(config)?;
    let server = RedisServer::start().await?;
    let divisor = if config.is_quick { 20 } else { 1 };
    let mut columns = Vec::new();
    for peer in &peers {
        eprintln!("redis-peers: {}", peer.name);
        columns.push(measure_peer(config, &server, peer, divisor).await?);
    }
    if !config.is_quick {
        eprintln!("redis-peers: failover");
        for (column, (_, seconds)) in columns.iter_mut().zip(failover::measure_peers(config).await?) {
            column.push((
                "killed worker's jobs have started elsewhere",
                Figure::new("", seconds, Unit::Seconds).format_value(),
            ));
        }
    }
    println!("\n{}", format_table(&peers, &columns));
    println!("{}", measure_baseline(&server, divisor).await?);
    Ok(Vec::new())
}

/// The name and the figure of each line.
type PeerColumn = Vec<(&'static str, String)>;

async fn measure_peer(
    config: &BenchConfig,
    server: &RedisServer,
    peer: &RedisPeer,
    divisor: usize,
) -> Result<PeerColumn> {
    let format = |value, unit| Figure::new("", value, unit).format_value();
    server.flush().await?;
    let one = peer.run_verb(server, &["push-one", &(SINGLE_PUSH_JOBS / divisor).to_string()])?;
    let bytes = measure_bytes_per_job(server, peer, BULK_JOBS / divisor).await?;
    server.flush().await?;
    let bulk = peer.push(server, BULK_JOBS / divisor)?;
    server.flush().await?;
    peer.push(server, peer.drain_jobs)?;
    let drain = peer.drain(server, peer.drain_jobs)?;
    let micros = measure_peer_micros(server, peer).await?;
    server.flush().await?;
    let wake = peer.run_verb(server, &["idle-latency", &(WAKE_JOBS / divisor).to_string()])?;
    server.flush().await?;
    let lateness = peer.run_verb(server, &["late", &LATE_JOBS.to_string(), &LATE_SECONDS.to_string()])?;
    server.flush().await?;
    let requests = measure_idle_requests(config, server, peer.start_worker(server, IDLE_CONCURRENCY)?).await?;
    server.flush().await?;
    Ok(vec![
        ("push, each awaited", format(one.per_s, Unit::PerSecond)),
        ("push in bulk", format(bulk.per_s, Unit::PerSecond)),
        (
            "drain",
            format!(
                "{} ({} jobs, {} at once)",
                format(drain.per_s, Unit::PerSecond),
                peer.drain_jobs,
                peer.concurrency
            ),
        ),
        ("Redis CPU per lifecycle", format(micros, Unit::Micros)),
        ("Redis memory per queued job", format(bytes, Unit::Bytes)),
        ("worker memory, most", format(drain.rss_mb, Unit::Megabytes)),
        ("push to start on an idle worker, p50", format(wake.p50_ms, Unit::Millis)),
        ("push to start on an idle worker, p99", format(wake.p99_ms, Unit::Millis)),
        (
            "start after its due moment, p50",
            format!("{} ({} of {LATE_JOBS} ran)", format(lateness.p50_ms, Unit::Millis), lateness.ran),
        ),
        ("start after its due moment, p99", format(lateness.p99_ms, Unit::Millis)),
        ("start after its due moment, earliest", format(lateness.earliest_ms, Unit::Millis)),
        ("requests of an idle worker", format(requests, Unit::PerSecond)),
    ])
}

async fn measure_baseline(server: &RedisServer, divisor: usize) -> Result<String> {
    server.flush().await?;
    let mut baseline = RedisBaseline::connect(server).await?;
    let (one, bulk) = (
        baseline.measure_single_pushes(SINGLE_PUSH_JOBS / divisor).await?,
        baseline.measure_bulk_pushes(BULK_JOBS / divisor).await?,
    );
    let format = |value| Figure::new("", value, Unit::PerSecond).format_value();
    Ok(format!("bare LPUSH: {} each awaited, {} 1000 at a time", format(one), format(bulk)))
}

/// Formats the table as Markdown: a line per figure, a column per peer.
fn format_table(peers: &[RedisPeer], columns: &[PeerColumn]) -> String {
    let names: Vec<&str> = peers.iter().map(|peer| peer.name).collect();
    let mut text = format!("| measurement | {} |\n|---|{}\n", names.join(" | "), "---|".repeat(names.len()));
    for index in 0..columns[0].len() {
        let cells: Vec<&str> = columns.iter().map(|column| column[index].1.as_str()).collect();
        text.push_str(&format!("| {} | {} |\n", columns[0][index].0, cells.join(" | ")));
    }
    text
}
