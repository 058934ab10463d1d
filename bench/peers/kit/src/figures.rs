//! The output of a peer.

use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

/// One line of JSON; omits figures that a verb does not measure.
#[derive(Debug, Default, Serialize)]
pub struct Figures {
    pub peer: &'static str,
    pub jobs: usize,
    pub seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_s: Option<f64>,
    /// The peak memory of the process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rss_mb: Option<f64>,
    /// The jobs that ran before the timeout.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ran: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub earliest_ms: Option<f64>,
}

impl Figures {
    pub(crate) fn rate(peer: &'static str, jobs: usize, duration: Duration) -> Self {
        let seconds = duration.as_secs_f64();
        Figures { peer, jobs, seconds, per_s: Some(jobs as f64 / seconds), ..Figures::default() }
    }

    pub(crate) fn times(peer: &'static str, jobs: usize, duration: Duration, mut millis: Vec<f64>) -> Self {
        millis.sort_by(f64::total_cmp);
        // The smallest sample that at least this percentage does not exceed.
        let percentile = |percent: f64| {
            let rank = (percent / 100.0 * millis.len() as f64).ceil() as usize;
            millis.get(rank.max(1) - 1).copied()
        };
        Figures {
            peer,
            jobs,
            seconds: duration.as_secs_f64(),
            ran: Some(millis.len()),
            p50_ms: percentile(50.0),
            p99_ms: percentile(99.0),
            earliest_ms: millis.first().copied(),
            ..Figures::default()
        }
    }
}

pub(crate) fn rss_mb() -> Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM in /proc/self/status")?;
    let kilobytes: f64 = peak.trim().trim_end_matches(" kB").parse()?;
    Ok(kilobytes / 1024.0)
}
