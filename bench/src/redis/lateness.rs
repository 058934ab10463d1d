//! Lateness: a thousand jobs fall due over ten seconds. How long after its moment does each start?

use std::time::Duration;

use anyhow::Result;

use super::duly_side::{self, KEEP_NONE};
use super::peers::Peer;
use super::rounds;
use super::server::Server;
use crate::config::Setting;
use crate::report::{Line, Unit};
use crate::stats::Samples;
use crate::wake::lateness;

const GROUP: &str = "redis-late";
pub(super) const JOBS: usize = 1_000;
pub(super) const SECONDS: u32 = 10;
const GOAL_P50_MS: f64 = 2.0;
const GOAL_P99_MS: f64 = 10.0;

pub(crate) async fn run(setting: &Setting) -> Result<Vec<Line>> {
    let peers = Peer::all(setting)?;
    let server = Server::start().await?;
    let (mut p50, mut p99, mut earliest) = (Samples::default(), Samples::default(), Samples::default());
    for _ in 0..rounds(setting) {
        let duly = duly_side::open(&server, KEEP_NONE).await?;
        let child = duly_side::work(&server, KEEP_NONE)?;
        let late = lateness(&duly, &child, JOBS, Duration::from_secs(SECONDS.into()) / JOBS as u32).await?;
        child.kill()?;
        server.flush().await?;
        p50.record(late.median());
        p99.record(late.percentile(99.0));
        earliest.record(late.min());
    }
    let line =
        |what: &str, value| Line::alone(GROUP, format!("start after its due moment, {what}"), value, Unit::Millis);
    let mut lines = vec![
        line("p50", p50.median()).below(GOAL_P50_MS),
        line("p99", p99.median()).below(GOAL_P99_MS),
        line("earliest", earliest.min()).goal("never early", earliest.min() >= 0.0),
    ];
    // Their lateness is seconds or tens of milliseconds: one round shows it.
    for peer in &peers {
        server.flush().await?;
        let figures = peer.run(&server, &["late", &JOBS.to_string(), &SECONDS.to_string()])?;
        let who = match figures.ran {
            JOBS => peer.name.to_owned(),
            ran => format!("{} ({ran} of {JOBS} ran)", peer.name),
        };
        lines.push(line("p50", p50.median()).against(&who, figures.p50_ms));
        lines.push(line("p99", p99.median()).against(&who, figures.p99_ms));
        lines.push(line("earliest", earliest.min()).against(&who, figures.earliest_ms));
    }
    Ok(lines)
}
