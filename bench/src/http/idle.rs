//! The cost of many idle connections: event streams, and workers that wait for a job.
//!
//! Both ends of each connection are in this process and count.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use metrics::{
    Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit as Measure,
};

use super::client::{HttpClient, build_request};
use super::{GROUP, TestServer};
use crate::config::{BenchConfig, KEEP_NONE, open_store};
use crate::report::{ReportLine, Unit};

/// The number of idle connections.
const IDLE_CONNECTIONS: usize = 10_000;
/// The nodes of the waiting claims; one node may have many.
const NODES: usize = 100;
/// A lease that outlasts the measurement.
const LEASE_MS: u64 = 600_000;
const WAIT_MS: u64 = 60_000;
/// Open files for other purposes in this process, including two for each node.
const OTHER_OPEN_FILES: u64 = 300 + 2 * NODES as u64;
/// The longest wait until all clients have queried the store once.
const SETTLE_SECONDS_MAX: usize = 30;
/// How long store requests are counted.
const COUNT_DURATION: Duration = Duration::from_secs(5);
/// Goals: the memory of all connections, and the store requests of the server for all of them.
const GOAL_IDLE_MB: f64 = 300.0;
const GOAL_STORE_REQUESTS_PER_SECOND: f64 = 20.0;

pub(super) async fn run(config: &BenchConfig) -> Result<Vec<ReportLine>> {
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(1_024);
    let connections = IDLE_CONNECTIONS.min(usize::try_from(files.saturating_sub(OTHER_OPEN_FILES) / 2)?);
    let connections = if config.is_quick { connections.min(500) } else { connections };
    let request_count = StoreRequestRecorder::install();
    let mut lines = Vec::new();
    for wait in [IdleWait::Events, IdleWait::Jobs] {
        let duly = open_store(&config.fresh_dir(GROUP)?.join("duly.db"), KEEP_NONE).await?;
        let server = TestServer::start(&duly, connections + 10).await?;
        let before = resident_mb()?;
        let clients = wait.open_connections(&server, connections).await?;
        wait_until_idle(&request_count).await;
        let grown = resident_mb()? - before;
        lines.push(
            ReportLine::single(GROUP, format!("memory of {connections} {}", wait.describe()), grown, Unit::Megabytes)
                .value_below(GOAL_IDLE_MB),
        );
        let before = request_count.load(Ordering::Relaxed);
        tokio::time::sleep(COUNT_DURATION).await;
        let rate = (request_count.load(Ordering::Relaxed) - before) as f64 / COUNT_DURATION.as_secs_f64();
        let line = ReportLine::single(
            GROUP,
            format!("store requests of {connections} {}", wait.describe()),
            rate,
            Unit::PerSecond,
        );
        lines.push(line.value_below(GOAL_STORE_REQUESTS_PER_SECOND));
        drop(clients);
    }
    Ok(lines)
}

/// Waits until all clients have queried the store once, as each does at its start.
async fn wait_until_idle(request_count: &AtomicU64) {
    for _ in 0..SETTLE_SECONDS_MAX {
        let before = request_count.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(1)).await;
        if (request_count.load(Ordering::Relaxed) - before) as f64 <= GOAL_STORE_REQUESTS_PER_SECOND {
            return;
        }
    }
    // If requests never stop, the figure shows it.
}

/// The events or jobs that an idle connection waits for.
#[derive(Clone, Copy)]
enum IdleWait {
    Events,
    Jobs,
}

impl IdleWait {
    fn describe(self) -> &'static str {
        match self {
            IdleWait::Events => "that wait for events",
            IdleWait::Jobs => "claims that wait for a job",
        }
    }

    /// Opens the idle connections.
    async fn open_connections(self, server: &TestServer, connections: usize) -> Result<Vec<HttpClient>> {
        let mut clients = Vec::with_capacity(connections);
        match self {
            IdleWait::Events => {
                let request = build_request(server.address, "GET", "/api/v1/events", "");
                for _ in 0..connections {
                    let mut client = HttpClient::connect(server.address).await?;
                    client.send(&request).await?;
                    client.wait_for_response().await?;
                    clients.push(client);
                }
            }
            IdleWait::Jobs => {
                let nodes = join_nodes(server).await?;
                let body = format!(r#"{{"wait_ms":{WAIT_MS}}}"#);
                for node in nodes.iter().cycle().take(connections) {
                    let mut client = HttpClient::connect(server.address).await?;
                    client
                        .send(&build_request(server.address, "POST", &format!("/api/v1/nodes/{node}/claim"), &body))
                        .await?;
                    clients.push(client);
                }
            }
        }
        Ok(clients)
    }
}

/// Joins the nodes of one queue and returns their ids.
async fn join_nodes(server: &TestServer) -> Result<Vec<String>> {
    let body = format!(r#"{{"queues":["default"],"lease_ms":{LEASE_MS}}}"#);
    let join = build_request(server.address, "POST", "/api/v1/nodes", &body);
    let (mut client, mut nodes) = (HttpClient::connect(server.address).await?, Vec::new());
    for _ in 0..NODES {
        let joined: serde_json::Value = serde_json::from_slice(client.request(&join).await?)?;
        nodes.push(joined["id"].as_str().context("no id")?.to_owned());
    }
    Ok(nodes)
}

fn resident_mb() -> Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? / 1_024.0)
}

/// Counts store requests by the metric that each of them records.
struct StoreRequestRecorder(Arc<AtomicU64>);

/// The metric of every request to a store.
const STORE_DURATION_METRIC: &str = "duly_store_request_duration_seconds";

impl StoreRequestRecorder {
    /// Installs the recorder for this process and returns its counter.
    fn install() -> Arc<AtomicU64> {
        let count = Arc::new(AtomicU64::new(0));
        // Only the first recorder can be installed; a process runs this group once.
        let _ = metrics::set_global_recorder(StoreRequestRecorder(count.clone()));
        count
    }
}

/// Counts one request per recorded duration.
struct StoreRequestCounter(Arc<AtomicU64>);

impl HistogramFn for StoreRequestCounter {
    fn record(&self, _: f64) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Recorder for StoreRequestRecorder {
    fn describe_counter(&self, _: KeyName, _: Option<Measure>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Measure>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Measure>, _: SharedString) {}

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::noop()
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        match key.name() == STORE_DURATION_METRIC {
            true => Histogram::from_arc(Arc::new(StoreRequestCounter(self.0.clone()))),
            false => Histogram::noop(),
        }
    }
}
