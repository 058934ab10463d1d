//! The jobs of the demo and the times of its events.

use std::time::Duration;

use duly::{Duly, JobId, Push};

/// The kinds of the demo's jobs.
pub(super) const PING_KIND: &str = "ping";
pub(super) const FLAKY_KIND: &str = "flaky";
pub(super) const REPORT_KIND: &str = "report";

/// How long a job of each kind runs.
pub(super) const PING_DURATION: Duration = Duration::from_millis(5);
pub(super) const REPORT_DURATION: Duration = Duration::from_secs(3);
/// The delay before a flaky job is retried.
pub(super) const FLAKY_RETRY_DELAY: Duration = Duration::from_secs(1);

/// The numbers of jobs that are ready, are scheduled, fail once, and take long.
pub(super) const READY_JOBS: u32 = 60;
pub(super) const SCHEDULED_JOBS: u32 = 200;
pub(super) const FLAKY_JOBS: u32 = 3;
pub(super) const REPORT_JOBS: u32 = 3;

/// How long a report runs before its worker is killed.
const KILL_DELAY: Duration = Duration::from_millis(1_500);

/// The times of events, measured from the push.
#[derive(Clone, Copy, Debug)]
pub(super) struct DemoPlan {
    /// Scheduled jobs are spread over this time.
    pub(super) schedule_span: Duration,
    pub(super) reports_due_after: Duration,
    pub(super) kill_after: Duration,
}

impl DemoPlan {
    pub(super) fn new(total: Duration) -> DemoPlan {
        let reports_due_after = total.mul_f64(0.225);
        DemoPlan { schedule_span: total.mul_f64(0.85), reports_due_after, kill_after: reports_due_after + KILL_DELAY }
    }

    /// Pushes all jobs in one operation.
    pub(super) async fn push_jobs(&self, duly: &Duly) -> duly::Result<Vec<JobId>> {
        let now = (0..READY_JOBS).map(|n| Push::new(PING_KIND, format!("{{\"now\":{n}}}")));
        let later = (0..SCHEDULED_JOBS).map(|n| {
            // Spread evenly from half a second on, each with its own due time.
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
