//! Which jobs the demo pushes, and when things happen.

use std::time::Duration;

use duly::{Duly, JobId, Push};

/// Kinds of the demo's jobs.
pub(super) const PING: &str = "ping";
pub(super) const FLAKY: &str = "flaky";
pub(super) const REPORT: &str = "report";

/// How long each kind works.
pub(super) const PING_TAKES: Duration = Duration::from_millis(5);
pub(super) const REPORT_TAKES: Duration = Duration::from_secs(3);
/// How long after its failure a flaky job is tried again.
pub(super) const FLAKY_AGAIN: Duration = Duration::from_secs(1);

/// Jobs for now, for later, that fail once, and that take long.
pub(super) const NOW: u32 = 60;
pub(super) const LATER: u32 = 200;
pub(super) const FLAKIES: u32 = 3;
pub(super) const REPORTS: u32 = 3;

/// A report has worked this long when its worker is killed: in mid-job.
const KILL_AFTER: Duration = Duration::from_millis(1_500);

/// When things happen, from the push on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// Scheduled jobs are spread over this time.
    pub(super) spread: Duration,
    pub(super) report: Duration,
    pub(super) kill: Duration,
}

impl Plan {
    pub(super) fn new(total: Duration) -> Plan {
        let report = total.mul_f64(0.225);
        Plan { spread: total.mul_f64(0.85), report, kill: report + KILL_AFTER }
    }

    /// Pushes everything in one step.
    pub(super) async fn push(&self, duly: &Duly) -> duly::Result<Vec<JobId>> {
        let now = (0..NOW).map(|n| Push::new(PING, format!("{{\"now\":{n}}}")));
        let later = (0..LATER).map(|n| {
            // From half a second on, evenly: each has a moment of its own.
            let share = f64::from(n + 1) / f64::from(LATER);
            let due =
                Duration::from_millis(500) + self.spread.saturating_sub(Duration::from_millis(500)).mul_f64(share);
            Push::new(PING, format!("{{\"later\":{n}}}")).after(due)
        });
        let flaky = (0..FLAKIES).map(|n| Push::new(FLAKY, "null").after(Duration::from_secs(1) * (n + 1)));
        let reports = (0..REPORTS).map(|_| Push::new(REPORT, "null").after(self.report));
        let pushed = duly.push_all(now.chain(later).chain(flaky).chain(reports)).await?;
        Ok(pushed.iter().map(duly::Pushed::id).collect())
    }
}
