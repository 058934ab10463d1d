//! The end of the demo: what became of every job, by the store's word.

use duly::{Duly, JobId, State};
use serde::Serialize;

use super::timeline::{Timeline, format_millis, percentile};
use crate::output::{BOLD, GREEN, Output, RED, paint};

/// The figures at the end.
#[derive(Debug, Serialize)]
pub(super) struct DemoSummary {
    pushed: usize,
    done: usize,
    /// Pushed, and not done.
    lost: usize,
    /// Started before its due moment.
    early: u64,
    /// Started by a second worker after the first was killed.
    run_twice: u64,
    lateness_p50_us: i64,
    lateness_p99_us: i64,
    lateness_max_us: i64,
    /// From the kill to the last of the killed worker's jobs running again.
    takeover_us: Option<i64>,
}

impl DemoSummary {
    pub(super) async fn collect(duly: &Duly, ids: &[JobId], story: &mut Timeline) -> anyhow::Result<DemoSummary> {
        let mut done = 0;
        for id in ids {
            let record = duly.get(*id).await?;
            done += usize::from(record.is_some_and(|record| record.state == State::Done));
        }
        let late = &mut story.lateness_us;
        late.sort_unstable();
        Ok(DemoSummary {
            pushed: ids.len(),
            done,
            lost: ids.len() - done,
            early: story.early_starts,
            run_twice: story.repeated_starts,
            lateness_p50_us: percentile(late, 0.5),
            lateness_p99_us: percentile(late, 0.99),
            lateness_max_us: percentile(late, 1.0),
            takeover_us: story.takeover_us.iter().max().copied(),
        })
    }

    /// Why the demo has failed, if it has.
    pub(super) fn failure_reason(&self) -> Option<String> {
        match (self.lost, self.early, self.takeover_us) {
            (0, 0, Some(_)) => None,
            (0, 0, None) => Some("no job of the killed worker was seen to run again".to_owned()),
            (lost, early, _) => Some(format!("{lost} jobs lost, {early} early")),
        }
    }

    pub(super) fn print(&self, out: &Output) -> anyhow::Result<()> {
        let good = |n: u64| paint(if n == 0 { GREEN } else { RED }, format!("{n:>6}"));
        let line =
            |name: &str, value: String, note: &str| out.print_line(format!("  {name:<10} {value}   {note}").trim_end());
        out.print_line(&format!("\n{}", paint(BOLD, "summary")))?;
        line("pushed", format!("{:>6}", self.pushed), "")?;
        line("done", format!("{:>6}", self.done), "")?;
        line("lost", good(self.lost as u64), "")?;
        line("early", good(self.early), "none may start before its due moment")?;
        line("run twice", format!("{:>6}", self.run_twice), "held by the killed worker, so started again elsewhere")?;
        let late = [self.lateness_p50_us, self.lateness_p99_us, self.lateness_max_us].map(format_millis);
        line("lateness", format!("p50 {}   p99 {}   max {}", late[0], late[1], late[2]), "")?;
        let takeover = self.takeover_us.map_or("none seen".to_owned(), format_millis);
        line("takeover", takeover, "from the kill -9 until all its jobs ran elsewhere")?;
        match self.failure_reason() {
            None => out.print_line(&format!("\n{}", paint(GREEN.bold(), "nothing lost, nothing early"))),
            Some(_) => Ok(()),
        }
    }
}
