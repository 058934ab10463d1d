//! What it costs that many only wait: for events, and as workers for a job.
//!
//! Both ends of each connection are in this process, and count.

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

/// Connections that only wait.
const IDLE_CONNECTIONS: usize = 10_000;
/// Workers whose claims wait: many claims of one node may.
const NODES: usize = 100;
/// A lease long enough that no wait ends while it is measured.
const LEASE_MS: u64 = 600_000;
const WAIT_MS: u64 = 60_000;
/// Open files that others in this process need, two for each node among them.
const OTHER_OPEN_FILES: u64 = 300 + 2 * NODES as u64;
/// Seconds at most until all who come have looked once.
const SETTLE_SECONDS_MAX: usize = 30;
/// How long the store's requests are counted.
const COUNT_DURATION: Duration = Duration::from_secs(5);
/// Goals: their memory; and what the server asks of the store meanwhile, for all of them together.
const GOAL_IDLE_MB: f64 = 300.0;
const GOAL_STORE_REQUESTS_PER_SECOND: f64 = 20.0;

pub(super) async fn run(setting: &BenchConfig) -> Result<Vec<ReportLine>> {
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(1_024);
    let many = IDLE_CONNECTIONS.min(usize::try_from(files.saturating_sub(OTHER_OPEN_FILES) / 2)?);
    let many = if setting.is_quick { many.min(500) } else { many };
    let asked = StoreRequestRecorder::install();
    let mut lines = Vec::new();
    for what in [IdleWait::Events, IdleWait::Jobs] {
        let duly = open_store(&setting.fresh_dir(GROUP)?.join("duly.db"), KEEP_NONE).await?;
        let site = TestServer::start(&duly, many + 10).await?;
        let before = resident_mb()?;
        let waiting = what.open_connections(&site, many).await?;
        wait_until_idle(&asked).await;
        let grown = resident_mb()? - before;
        lines.push(
            ReportLine::single(GROUP, format!("memory of {many} {}", what.describe()), grown, Unit::Megabytes)
                .value_below(GOAL_IDLE_MB),
        );
        let before = asked.load(Ordering::Relaxed);
        tokio::time::sleep(COUNT_DURATION).await;
        let rate = (asked.load(Ordering::Relaxed) - before) as f64 / COUNT_DURATION.as_secs_f64();
        let line =
            ReportLine::single(GROUP, format!("store requests of {many} {}", what.describe()), rate, Unit::PerSecond);
        lines.push(line.value_below(GOAL_STORE_REQUESTS_PER_SECOND));
        drop(waiting);
    }
    Ok(lines)
}

/// Each that comes looks into the store once: waits until all have.
async fn wait_until_idle(asked: &AtomicU64) {
    for _ in 0..SETTLE_SECONDS_MAX {
        let before = asked.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(1)).await;
        if (asked.load(Ordering::Relaxed) - before) as f64 <= GOAL_STORE_REQUESTS_PER_SECOND {
            return;
        }
    }
    // It never ends: then the figure says so.
}

/// What is waited for.
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

    /// Connections that wait.
    async fn open_connections(self, site: &TestServer, many: usize) -> Result<Vec<HttpClient>> {
        let mut open = Vec::with_capacity(many);
        match self {
            IdleWait::Events => {
                let listen = build_request(site.address, "GET", "/api/v1/events", "");
                for _ in 0..many {
                    let mut client = HttpClient::connect(site.address).await?;
                    client.send(&listen).await?;
                    client.wait_for_response().await?;
                    open.push(client);
                }
            }
            IdleWait::Jobs => {
                let nodes = join_nodes(site).await?;
                let body = format!(r#"{{"wait_ms":{WAIT_MS}}}"#);
                for node in nodes.iter().cycle().take(many) {
                    let mut client = HttpClient::connect(site.address).await?;
                    client
                        .send(&build_request(site.address, "POST", &format!("/api/v1/nodes/{node}/claim"), &body))
                        .await?;
                    open.push(client);
                }
            }
        }
        Ok(open)
    }
}

/// Workers of one queue.
async fn join_nodes(site: &TestServer) -> Result<Vec<String>> {
    let body = format!(r#"{{"queues":["default"],"lease_ms":{LEASE_MS}}}"#);
    let join = build_request(site.address, "POST", "/api/v1/nodes", &body);
    let (mut client, mut nodes) = (HttpClient::connect(site.address).await?, Vec::new());
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

/// Counts what is asked of the store, by the metric that every request to it leaves.
struct StoreRequestRecorder(Arc<AtomicU64>);

/// The metric of every request to a store.
const STORE_DURATION_METRIC: &str = "duly_store_duration_seconds";

impl StoreRequestRecorder {
    /// From now on, in all of this process; once.
    fn install() -> Arc<AtomicU64> {
        let count = Arc::new(AtomicU64::new(0));
        // Only the first can be installed. A second would count nothing; a process runs this group once.
        let _ = metrics::set_global_recorder(StoreRequestRecorder(count.clone()));
        count
    }
}

/// One request.
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
