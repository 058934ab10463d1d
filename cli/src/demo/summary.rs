//! The end of the demo: what became of every job, by the store's word.

use duly::{Duly, JobId, State};
use serde::Serialize;

use super::timeline::{Story, ms, share};
use crate::output::{BOLD, GREEN, Out, RED, paint};

/// The figures at the end.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    pushed: usize,
    done: usize,
    /// Pushed, and not done.
    lost: usize,
    /// Started before its due moment.
    early: u64,
    /// Started by a second worker after the first was killed.
    twice: u64,
    late_p50_us: i64,
    late_p99_us: i64,
    late_max_us: i64,
    /// From the kill to the last of the killed worker's jobs running again.
    takeover_us: Option<i64>,
}

impl Summary {
    pub(super) async fn of(duly: &Duly, ids: &[JobId], story: &mut Story) -> anyhow::Result<Summary> {
        let mut done = 0;
        for id in ids {
            let record = duly.get(*id).await?;
            done += usize::from(record.is_some_and(|record| record.state == State::Done));
        }
        let late = &mut story.late_us;
        late.sort_unstable();
        Ok(Summary {
            pushed: ids.len(),
            done,
            lost: ids.len() - done,
            early: story.early,
            twice: story.twice,
            late_p50_us: share(late, 0.5),
            late_p99_us: share(late, 0.99),
            late_max_us: share(late, 1.0),
            takeover_us: story.takeover_us.iter().max().copied(),
        })
    }

    /// Why the demo has failed, if it has.
    pub(super) fn verdict(&self) -> Option<String> {
        match (self.lost, self.early, self.takeover_us) {
            (0, 0, Some(_)) => None,
            (0, 0, None) => Some("no job of the killed worker was seen to run again".to_owned()),
            (lost, early, _) => Some(format!("{lost} jobs lost, {early} early")),
        }
    }

    pub(super) fn tell(&self, out: &Out) -> anyhow::Result<()> {
        let good = |n: u64| paint(if n == 0 { GREEN } else { RED }, format!("{n:>6}"));
        let line =
            |name: &str, value: String, note: &str| out.line(format!("  {name:<10} {value}   {note}").trim_end());
        out.line(&format!("\n{}", paint(BOLD, "summary")))?;
        line("pushed", format!("{:>6}", self.pushed), "")?;
        line("done", format!("{:>6}", self.done), "")?;
        line("lost", good(self.lost as u64), "")?;
        line("early", good(self.early), "none may start before its due moment")?;
        line("run twice", format!("{:>6}", self.twice), "held by the killed worker, so started again elsewhere")?;
        let late = [self.late_p50_us, self.late_p99_us, self.late_max_us].map(ms);
        line("lateness", format!("p50 {}   p99 {}   max {}", late[0], late[1], late[2]), "")?;
        let takeover = self.takeover_us.map_or("none seen".to_owned(), ms);
        line("takeover", takeover, "from the kill -9 until all its jobs ran elsewhere")?;
        match self.verdict() {
            None => out.line(&format!("\n{}", paint(GREEN.bold(), "nothing lost, nothing early"))),
            Some(_) => Ok(()),
        }
    }
}
