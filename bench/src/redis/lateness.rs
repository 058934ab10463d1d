//! Lateness: the time from due to start of a thousand jobs that are due over ten seconds.

use std::time::Duration;

use anyhow::Result;

use super::duly_side::{self, KEEP_NONE};
use super::peers::RedisPeer;
use super::round_count;
use super::server::RedisServer;
use crate::config::BenchConfig;
use crate::report::{ReportLine, Unit};
use crate::stats::Samples;
use crate::wake::measure_lateness;

const GROUP: &str = "redis-lateness";
pub(super) const SCHEDULED_JOBS: usize = 1_000;
pub(super) const SCHEDULE_SECONDS: u32 = 10;
const GOAL_P50_MS: f64 = 2.0;
const GOAL_P99_MS: f64 = 10.0;

pub(crate) async fn run(config: &BenchConfig) -> Result<Vec<ReportLine>> {
    let peers = RedisPeer::prepare_all(config)?;
    let server = RedisServer::start().await?;
    let (mut p50, mut p99, mut earliest) = (Samples::default(), Samples::default(), Samples::default());
    for _ in 0..round_count(config) {
        let duly = duly_side::open(&server, KEEP_NONE).await?;
        let child = duly_side::start_worker(&server, KEEP_NONE)?;
        let lateness = measure_lateness(
            &duly,
            &child,
            SCHEDULED_JOBS,
            Duration::from_secs(SCHEDULE_SECONDS.into()) / SCHEDULED_JOBS as u32,
        )
        .await?;
        child.kill()?;
        server.flush().await?;
        p50.record(lateness.median());
        p99.record(lateness.percentile(99.0));
        earliest.record(lateness.min());
    }
    let line = |label: &str, value| {
        ReportLine::single(GROUP, format!("start after its due moment, {label}"), value, Unit::Millis)
    };
    let mut lines = vec![
        line("p50", p50.median()).value_below(GOAL_P50_MS),
        line("p99", p99.median()).value_below(GOAL_P99_MS),
        line("earliest", earliest.min()).with_goal("never early", earliest.min() >= 0.0),
    ];
    // One round is enough: the lateness of peers is tens of milliseconds or seconds.
    for peer in &peers {
        server.flush().await?;
        let figures = peer.run_verb(&server, &["late", &SCHEDULED_JOBS.to_string(), &SCHEDULE_SECONDS.to_string()])?;
        let subject = match figures.ran {
            SCHEDULED_JOBS => peer.name.to_owned(),
            ran => format!("{} ({ran} of {SCHEDULED_JOBS} ran)", peer.name),
        };
        lines.push(line("p50", p50.median()).compared_to(&subject, figures.p50_ms));
        lines.push(line("p99", p99.median()).compared_to(&subject, figures.p99_ms));
        lines.push(line("earliest", earliest.min()).compared_to(&subject, figures.earliest_ms));
    }
    Ok(lines)
}
