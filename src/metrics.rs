//! All metrics, in one list. They are recorded through the `metrics` crate, and cost almost nothing without a recorder.

use std::time::Duration;

use metrics::{Histogram, Unit, counter, gauge, histogram};

use crate::job::Job;
use crate::job::push::{Push, PushResult};

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MetricKind {
    /// A value that only increases.
    Counter,
    /// A value that increases and decreases.
    Gauge,
    /// A distribution of values.
    Histogram,
}

/// The description of one metric.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Metric {
    /// The name.
    pub name: &'static str,
    /// The type.
    pub kind: MetricKind,
    /// The label names.
    pub labels: &'static [&'static str],
    /// The measured quantity.
    pub description: &'static str,
}

const fn counter_metric(name: &'static str, labels: &'static [&'static str], description: &'static str) -> Metric {
    Metric { name, kind: MetricKind::Counter, labels, description }
}

const fn seconds_metric(name: &'static str, labels: &'static [&'static str], description: &'static str) -> Metric {
    Metric { name, kind: MetricKind::Histogram, labels, description }
}

const fn gauge_metric(name: &'static str, labels: &'static [&'static str], description: &'static str) -> Metric {
    Metric { name, kind: MetricKind::Gauge, labels, description }
}

const PUSHED: &str = "duly_jobs_pushed_total";
const CLAIMED: &str = "duly_jobs_claimed_total";
const RUNNING: &str = "duly_jobs_running";
const SETTLED: &str = "duly_jobs_settled_total";
const OUTCOMES_REJECTED: &str = "duly_outcomes_rejected_total";
const TAKEN_BACK: &str = "duly_jobs_taken_back_total";
const LATENESS: &str = "duly_job_lateness_seconds";
const ATTEMPT_DURATION: &str = "duly_attempt_duration_seconds";
const STORE_DURATION: &str = "duly_store_request_duration_seconds";
const STORE_ERRORS: &str = "duly_store_errors_total";
const LOCKS_ACQUIRED: &str = "duly_locks_acquired_total";
const LOCKS_LOST: &str = "duly_locks_lost_total";
const CALLS: &str = "duly_calls_total";
const REPLIES: &str = "duly_call_replies_total";

/// All metrics. Histogram names end in their unit.
pub const METRICS: &[Metric] = &[
    counter_metric(PUSHED, &["queue", "kind"], "Jobs pushed by this process, not counting jobs that already existed."),
    counter_metric(CLAIMED, &["queue"], "Jobs claimed by workers of this process."),
    gauge_metric(RUNNING, &["queue"], "Attempts that run in this process now."),
    counter_metric(
        SETTLED,
        &["queue", "kind", "outcome"],
        "Attempts whose end was recorded: ack, retry, bury, release, or cancelled.",
    ),
    counter_metric(OUTCOMES_REJECTED, &["queue"], "Outcomes rejected because another node had taken the job over."),
    counter_metric(TAKEN_BACK, &["queue"], "Jobs taken back from dead nodes."),
    seconds_metric(LATENESS, &["queue"], "Time from a job's due time to its claim, by the store's clock."),
    seconds_metric(ATTEMPT_DURATION, &["queue", "kind"], "Duration of attempts."),
    seconds_metric(STORE_DURATION, &["op"], "Duration of requests to the store."),
    counter_metric(STORE_ERRORS, &["op", "code"], "Failed requests to the store, by error code."),
    counter_metric(LOCKS_ACQUIRED, &[], "Locks acquired by this process."),
    counter_metric(LOCKS_LOST, &[], "Locks this process held and lost."),
    counter_metric(CALLS, &["method"], "Calls sent by this process, one per target node."),
    counter_metric(REPLIES, &["result"], "Replies to calls of this process: ok, or the error code."),
];

/// Describes all metrics to the installed recorder.
///
/// [`Builder::open`](crate::Builder::open) does this too; call this function if you install a recorder later.
pub fn describe_metrics() {
    for metric in METRICS {
        match metric.kind {
            MetricKind::Counter => metrics::describe_counter!(metric.name, Unit::Count, metric.description),
            MetricKind::Gauge => metrics::describe_gauge!(metric.name, Unit::Count, metric.description),
            MetricKind::Histogram => metrics::describe_histogram!(metric.name, Unit::Seconds, metric.description),
        }
    }
}

/// Jobs about to be pushed: consecutive jobs of one queue and kind form one entry with a count.
pub(crate) struct PushMetrics(Vec<(String, String, usize)>);

impl PushMetrics {
    pub(crate) fn for_jobs(jobs: &[Push]) -> Self {
        let mut groups: Vec<(String, String, usize)> = Vec::new();
        for job in jobs {
            match groups.last_mut() {
                Some((queue, kind, count)) if *queue == job.queue && *kind == job.kind => *count += 1,
                _ => groups.push((job.queue.clone(), job.kind.clone(), 1)),
            }
        }
        PushMetrics(groups)
    }

    /// Counts the pushed jobs by their results.
    pub(crate) fn record(self, results: &[PushResult]) {
        let mut rest = results;
        for (queue, kind, count) in self.0 {
            let (group, others) = rest.split_at(count.min(rest.len()));
            rest = others;
            let new = group.iter().filter(|result| !matches!(result, PushResult::Existing(_))).count();
            if new > 0 {
                counter!(PUSHED, "queue" => queue, "kind" => kind).increment(new as u64);
            }
        }
    }
}

pub(crate) fn record_claimed(queue: &str, jobs: usize) {
    if jobs > 0 {
        counter!(CLAIMED, "queue" => queue.to_owned()).increment(jobs as u64);
    }
}

/// Adds to the running attempts of a queue; several workers of a process may share it.
pub(crate) fn add_running(queue: &str, attempts: f64) {
    gauge!(RUNNING, "queue" => queue.to_owned()).increment(attempts);
}

pub(crate) fn record_taken_back(queue: &str, jobs: usize) {
    if jobs > 0 {
        counter!(TAKEN_BACK, "queue" => queue.to_owned()).increment(jobs as u64);
    }
}

/// Returns the lateness histogram of a queue. Call this once per claim and record all its jobs in it.
pub(crate) fn lateness_histogram(queue: &str) -> Histogram {
    histogram!(LATENESS, "queue" => queue.to_owned())
}

pub(crate) fn record_rejected_outcome(queue: &str) {
    counter!(OUTCOMES_REJECTED, "queue" => queue.to_owned()).increment(1);
}

/// Metrics of one settle. Consecutive attempts with the same queue, kind and outcome are counted at once.
#[derive(Default)]
pub(crate) struct SettleMetrics {
    last: Option<(String, String, &'static str, u64, Histogram)>,
}

impl SettleMetrics {
    pub(crate) fn record(&mut self, job: &Job, outcome: &'static str, duration: Duration) {
        let is_same = |(queue, kind, last_outcome, ..): &(String, String, &'static str, u64, Histogram)| {
            *queue == job.queue && *kind == job.kind && *last_outcome == outcome
        };
        if !self.last.as_ref().is_some_and(is_same) {
            self.flush();
            let durations = histogram!(ATTEMPT_DURATION, "queue" => job.queue.clone(), "kind" => job.kind.clone());
            self.last = Some((job.queue.clone(), job.kind.clone(), outcome, 0, durations));
        }
        if let Some((.., count, durations)) = &mut self.last {
            *count += 1;
            durations.record(duration.as_secs_f64());
        }
    }

    fn flush(&mut self) {
        if let Some((queue, kind, outcome, count, _)) = self.last.take() {
            counter!(SETTLED, "queue" => queue, "kind" => kind, "outcome" => outcome).increment(count);
        }
    }
}

impl Drop for SettleMetrics {
    fn drop(&mut self) {
        self.flush();
    }
}

pub(crate) fn record_store_request(op: &'static str, duration: Duration, error: Option<&'static str>) {
    histogram!(STORE_DURATION, "op" => op).record(duration.as_secs_f64());
    if let Some(code) = error {
        counter!(STORE_ERRORS, "op" => op, "code" => code).increment(1);
    }
}

pub(crate) fn record_lock_acquired() {
    counter!(LOCKS_ACQUIRED).increment(1);
}

pub(crate) fn record_lock_lost() {
    counter!(LOCKS_LOST).increment(1);
}

pub(crate) fn record_call(method: &str, nodes: u64) {
    counter!(CALLS, "method" => method.to_owned()).increment(nodes);
}

pub(crate) fn record_reply(result: &'static str) {
    counter!(REPLIES, "result" => result).increment(1);
}
