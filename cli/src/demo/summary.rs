//! The summary of the demo: the final state of every job in the store.

use duly::{Duly, JobId, State};
use serde::Serialize;

use super::timeline::{Timeline, format_millis, percentile};
use crate::output::{BOLD, GREEN, Output, RED, paint};

/// The figures at the end.
#[derive(Debug, Serialize)]
pub(super) struct DemoSummary {
    pushed: usize,
    done: usize,
    /// Pushed but not done.
    lost: usize,
    /// Started before the due time.
    early: u64,
    /// Started by a second worker after the first was killed.
    run_twice: u64,
    lateness_p50_us: i64,
    lateness_p99_us: i64,
    lateness_max_us: i64,
    /// The time from the kill until all jobs of the killed worker run again.
    takeover_us: Option<i64>,
}

impl DemoSummary {
    pub(super) async fn collect(duly: &Duly, ids: &[JobId], timeline: &mut Timeline) -> anyhow::Result<DemoSummary> {
        let mut done = 0;
        for id in ids {
            let record = duly.jobs().get(*id).await?;
            done += usize::from(record.is_some_and(|record| record.state == State::Done));
        }
        let lateness = &mut timeline.lateness_us;
        lateness.sort_unstable();
        Ok(DemoSummary {
            pushed: ids.len(),
            done,
            lost: ids.len() - done,
            early: timeline.early_starts,
            run_twice: timeline.repeated_starts,
            lateness_p50_us: percentile(lateness, 0.5),
            lateness_p99_us: percentile(lateness, 0.99),
            lateness_max_us: percentile(lateness, 1.0),
            takeover_us: timeline.takeover_us.iter().max().copied(),
        })
    }

    /// Returns why the demo failed, if it did.
    pub(super) fn failure_reason(&self) -> Option<String> {
        match (self.lost, self.early, self.takeover_us) {
            (0, 0, Some(_)) => None,
            (0, 0, None) => Some("no job of the killed worker was seen to run again".to_owned()),
            (lost, early, _) => Some(format!("{lost} jobs lost, {early} early")),
        }
    }

    pub(super) fn print(&self, out: &Output) -> anyhow::Result<()> {
        let paint_count = |n: u64| paint(if n == 0 { GREEN } else { RED }, format!("{n:>6}"));
        let line =
            |name: &str, value: String, note: &str| out.print_line(format!("  {name:<10} {value}   {note}").trim_end());
        out.print_line(&format!("\n{}", paint(BOLD, "summary")))?;
        line("pushed", format!("{:>6}", self.pushed), "")?;
        line("done", format!("{:>6}", self.done), "")?;
        line("lost", paint_count(self.lost as u64), "")?;
        line("early", paint_count(self.early), "none may start before its due time")?;
        line("run twice", format!("{:>6}", self.run_twice), "held by the killed worker, so started again elsewhere")?;
        let lateness = [self.lateness_p50_us, self.lateness_p99_us, self.lateness_max_us].map(format_millis);
        line("lateness", format!("p50 {}   p99 {}   max {}", lateness[0], lateness[1], lateness[2]), "")?;
        let takeover = self.takeover_us.map_or("none seen".to_owned(), format_millis);
        line("takeover", takeover, "from the kill -9 until all its jobs ran elsewhere")?;
        match self.failure_reason() {
            None => out.print_line(&format!("\n{}", paint(GREEN.bold(), "nothing lost, nothing early"))),
            Some(_) => Ok(()),
        }
    }
}
