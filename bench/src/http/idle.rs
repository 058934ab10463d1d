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

use super::client::{Client, request};
use super::{GROUP, Site};
use crate::config::{KEEP_NONE, Setting, open};
use crate::report::{Line, Unit};

/// Connections that only wait.
const IDLE: usize = 10_000;
/// Workers whose claims wait: many claims of one node may.
const NODES: usize = 100;
/// A lease long enough that no wait ends while it is measured.
const LEASE_MS: u64 = 600_000;
const WAIT_MS: u64 = 60_000;
/// Open files that others in this process need, two for each node among them.
const FILES: u64 = 300 + 2 * NODES as u64;
/// Seconds at most until all who come have looked once.
const SETTLE_DOWN_MAX: usize = 30;
/// How long the store's requests are counted.
const WATCH: Duration = Duration::from_secs(5);
/// Goals: their memory; and what the server asks of the store meanwhile, for all of them together.
const IDLE_MB: f64 = 300.0;
const ASKED_PER_SECOND: f64 = 20.0;

pub(super) async fn run(setting: &Setting) -> Result<Vec<Line>> {
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(1_024);
    let many = IDLE.min(usize::try_from(files.saturating_sub(FILES) / 2)?);
    let many = if setting.quick { many.min(500) } else { many };
    let asked = Asked::install();
    let mut lines = Vec::new();
    for what in [What::Events, What::Jobs] {
        let duly = open(&setting.fresh(GROUP)?.join("duly.db"), KEEP_NONE).await?;
        let site = Site::start(&duly, many + 10).await?;
        let before = resident_mb()?;
        let waiting = what.wait(&site, many).await?;
        settle_down(&asked).await;
        let grown = resident_mb()? - before;
        lines.push(
            Line::alone(GROUP, format!("memory of {many} {}", what.words()), grown, Unit::Megabytes).below(IDLE_MB),
        );
        let before = asked.load(Ordering::Relaxed);
        tokio::time::sleep(WATCH).await;
        let rate = (asked.load(Ordering::Relaxed) - before) as f64 / WATCH.as_secs_f64();
        let line = Line::alone(GROUP, format!("store requests of {many} {}", what.words()), rate, Unit::PerSecond);
        lines.push(line.below(ASKED_PER_SECOND));
        drop(waiting);
    }
    Ok(lines)
}

/// Each that comes looks into the store once: waits until all have.
async fn settle_down(asked: &AtomicU64) {
    for _ in 0..SETTLE_DOWN_MAX {
        let before = asked.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(1)).await;
        if (asked.load(Ordering::Relaxed) - before) as f64 <= ASKED_PER_SECOND {
            return;
        }
    }
    // It never ends: then the figure says so.
}

/// What is waited for.
#[derive(Clone, Copy)]
enum What {
    Events,
    Jobs,
}

impl What {
    fn words(self) -> &'static str {
        match self {
            What::Events => "that wait for events",
            What::Jobs => "claims that wait for a job",
        }
    }

    /// Connections that wait.
    async fn wait(self, site: &Site, many: usize) -> Result<Vec<Client>> {
        let mut open = Vec::with_capacity(many);
        match self {
            What::Events => {
                let listen = request(site.address, "GET", "/api/v1/events", "");
                for _ in 0..many {
                    let mut client = Client::connect(site.address).await?;
                    client.send(&listen).await?;
                    client.answered().await?;
                    open.push(client);
                }
            }
            What::Jobs => {
                let nodes = join(site).await?;
                let body = format!(r#"{{"wait_ms":{WAIT_MS}}}"#);
                for node in nodes.iter().cycle().take(many) {
                    let mut client = Client::connect(site.address).await?;
                    client.send(&request(site.address, "POST", &format!("/api/v1/nodes/{node}/claim"), &body)).await?;
                    open.push(client);
                }
            }
        }
        Ok(open)
    }
}

/// Workers of one queue.
async fn join(site: &Site) -> Result<Vec<String>> {
    let body = format!(r#"{{"queues":["default"],"lease_ms":{LEASE_MS}}}"#);
    let join = request(site.address, "POST", "/api/v1/nodes", &body);
    let (mut client, mut nodes) = (Client::connect(site.address).await?, Vec::new());
    for _ in 0..NODES {
        let joined: serde_json::Value = serde_json::from_slice(client.ask(&join).await?)?;
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
struct Asked(Arc<AtomicU64>);

/// The metric of every request to a store.
const STORE_DURATION: &str = "duly_store_duration_seconds";

impl Asked {
    /// From now on, in all of this process; once.
    fn install() -> Arc<AtomicU64> {
        let count = Arc::new(AtomicU64::new(0));
        // Only the first can be installed. A second would count nothing; a process runs this group once.
        let _ = metrics::set_global_recorder(Asked(count.clone()));
        count
    }
}

/// One request.
struct One(Arc<AtomicU64>);

impl HistogramFn for One {
    fn record(&self, _: f64) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Recorder for Asked {
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
        match key.name() == STORE_DURATION {
            true => Histogram::from_arc(Arc::new(One(self.0.clone()))),
            false => Histogram::noop(),
        }
    }
}
