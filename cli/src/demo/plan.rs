//! Which jobs the demo pushes, and when things happen.

use std::time::Duration;

use duly::{Duly, JobId, Push};

/// Kinds of the demo's jobs.
pub(super) const PING_KIND: &str = "ping";
pub(super) const FLAKY_KIND: &str = "flaky";
pub(super) const REPORT_KIND: &str = "report";

/// How long each kind works.
pub(super) const PING_DURATION: Duration = Duration::from_millis(5);
pub(super) const REPORT_DURATION: Duration = Duration::from_secs(3);
/// How long after its failure a flaky job is tried again.
pub(super) const FLAKY_RETRY_DELAY: Duration = Duration::from_secs(1);

/// Jobs for now, for later, that fail once, and that take long.
pub(super) const READY_JOBS: u32 = 60;
pub(super) const SCHEDULED_JOBS: u32 = 200;
pub(super) const FLAKY_JOBS: u32 = 3;
pub(super) const REPORT_JOBS: u32 = 3;

/// A report has worked this long when its worker is killed: in mid-job.
const KILL_DELAY: Duration = Duration::from_millis(1_500);

/// When things happen, from the push on.
#[derive(Clone, Copy, Debug)]
pub(super) struct DemoPlan {
    /// Scheduled jobs are spread over this time.
    pub(super) schedule_span: Duration,
    pub(super) reports_due_after: Duration,
    pub(super) kill_after: Duration,
}

impl DemoPlan {
    pub(super) fn new(total: Duration) -> DemoPlan {
        let report = total.mul_f64(0.225);
        DemoPlan { schedule_span: total.mul_f64(0.85), reports_due_after: report, kill_after: report + KILL_DELAY }
    }

    /// Pushes everything in one step.
    pub(super) async fn push_jobs(&self, duly: &Duly) -> duly::Result<Vec<JobId>> {
        let now = (0..READY_JOBS).map(|n| Push::new(PING_KIND, format!("{{\"now\":{n}}}")));
        let later = (0..SCHEDULED_JOBS).map(|n| {
            // From half a second on, evenly: each has a moment of its own.
            let share = f64::from(n + 1) / f64::from(SCHEDULED_JOBS);
            let due = Duration::from_millis(500)
                + self.schedule_span.saturating_sub(Duration::from_millis(500)).mul_f64(share);
            Push::new(PING_KIND, format!("{{\"later\":{n}}}")).after(due)
        });
        let flaky = (0..FLAKY_JOBS).map(|n| Push::new(FLAKY_KIND, "null").after(Duration::from_secs(1) * (n + 1)));
        let reports = (0..REPORT_JOBS).map(|_| Push::new(REPORT_KIND, "null").after(self.reports_due_after));
        let pushed = duly.push_all(now.chain(later).chain(flaky).chain(reports)).await?;
        Ok(pushed.iter().map(duly::PushResult::id).collect())
    }
}
