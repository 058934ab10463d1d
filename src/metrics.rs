//! Every metric, in one list. Whoever installs a recorder of the `metrics` crate gets them; without one they cost almost nothing.

use std::time::Duration;

use metrics::{Histogram, Unit, counter, histogram};

use crate::job::push::{Push, PushResult};
use crate::job::{Job, Outcome};

/// What kind of number a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MetricKind {
    /// Only grows.
    Counter,
    /// Many values, of which shares are asked for.
    Histogram,
}

/// One metric.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// What kind of number it is.
    pub kind: MetricKind,
    /// Its labels.
    pub labels: &'static [&'static str],
    /// What it says.
    pub description: &'static str,
}

const fn counter_metric(name: &'static str, labels: &'static [&'static str], description: &'static str) -> Metric {
    Metric { name, kind: MetricKind::Counter, labels, description }
}

const fn seconds_metric(name: &'static str, labels: &'static [&'static str], description: &'static str) -> Metric {
    Metric { name, kind: MetricKind::Histogram, labels, description }
}

const PUSHED: &str = "duly_jobs_pushed_total";
const CLAIMED: &str = "duly_jobs_claimed_total";
const SETTLED: &str = "duly_jobs_settled_total";
const OUTCOMES_REJECTED: &str = "duly_jobs_lost_total";
const TAKEN_BACK: &str = "duly_jobs_taken_back_total";
const LATENESS: &str = "duly_job_lateness_seconds";
const ATTEMPT_DURATION: &str = "duly_job_duration_seconds";
const STORE_DURATION: &str = "duly_store_duration_seconds";
const STORE_ERRORS: &str = "duly_store_errors_total";
const LOCKS_ACQUIRED: &str = "duly_locks_taken_total";
const LOCKS_LOST: &str = "duly_locks_lost_total";
const CALLS: &str = "duly_calls_total";
const REPLIES: &str = "duly_replies_total";

/// All of them; the names of histograms end in their unit.
pub const METRICS: &[Metric] = &[
    counter_metric(PUSHED, &["queue", "kind"], "Jobs pushed by this process, without those that were there already."),
    counter_metric(CLAIMED, &["queue"], "Jobs claimed by workers of this process."),
    counter_metric(
        SETTLED,
        &["queue", "kind", "outcome"],
        "Attempts whose outcome was recorded: ack, retry, bury, release.",
    ),
    counter_metric(OUTCOMES_REJECTED, &["queue"], "Outcomes that were refused: another node had the job by then."),
    counter_metric(TAKEN_BACK, &["queue"], "Jobs taken back from nodes that had died."),
    seconds_metric(LATENESS, &["queue"], "From the moment a job was due to its claim, by the store's clock."),
    seconds_metric(ATTEMPT_DURATION, &["queue", "kind"], "How long attempts ran."),
    seconds_metric(STORE_DURATION, &["op"], "How long the store took to answer."),
    counter_metric(STORE_ERRORS, &["op", "code"], "Requests to the store that failed, by the code of the error."),
    counter_metric(LOCKS_ACQUIRED, &[], "Locks taken by this process."),
    counter_metric(LOCKS_LOST, &[], "Locks that this process held and lost."),
    counter_metric(CALLS, &["method"], "Nodes called by this process."),
    counter_metric(REPLIES, &["result"], "Replies to calls of this process: ok, or the code of the error."),
];

/// Tells a recorder what they are. [`Builder::open`](crate::Builder::open) does it too; call it after a recorder that is installed later.
pub fn describe_metrics() {
    for metric in METRICS {
        match metric.kind {
            MetricKind::Counter => metrics::describe_counter!(metric.name, Unit::Count, metric.description),
            MetricKind::Histogram => metrics::describe_histogram!(metric.name, Unit::Seconds, metric.description),
        }
    }
}

/// Jobs about to be pushed, those of one queue and kind that follow each other together.
pub(crate) struct PushMetrics(Vec<(String, String, usize)>);

impl PushMetrics {
    pub(crate) fn for_jobs(jobs: &[Push]) -> Self {
        let mut groups: Vec<(String, String, usize)> = Vec::new();
        for job in jobs {
            match groups.last_mut() {
                Some((queue, kind, times)) if *queue == job.queue && *kind == job.kind => *times += 1,
                _ => groups.push((job.queue.clone(), job.kind.clone(), 1)),
            }
        }
        PushMetrics(groups)
    }

    /// They were pushed, with these answers.
    pub(crate) fn record(self, answers: &[PushResult]) {
        let mut rest = answers;
        for (queue, kind, times) in self.0 {
            let (these, others) = rest.split_at(times.min(rest.len()));
            rest = others;
            let new = these.iter().filter(|answer| !matches!(answer, PushResult::Existing(_))).count();
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

pub(crate) fn record_taken_back(queue: &str, jobs: usize) {
    if jobs > 0 {
        counter!(TAKEN_BACK, "queue" => queue.to_owned()).increment(jobs as u64);
    }
}

/// To be asked once per claim: each job of it is noted in it.
pub(crate) fn lateness_histogram(queue: &str) -> Histogram {
    histogram!(LATENESS, "queue" => queue.to_owned())
}

pub(crate) fn record_rejected_outcome(queue: &str) {
    counter!(OUTCOMES_REJECTED, "queue" => queue.to_owned()).increment(1);
}

/// The outcomes of one settle: those of one queue, kind and way to end that follow each other are counted together.
#[derive(Default)]
pub(crate) struct SettleMetrics {
    last: Option<(String, String, &'static str, u64, Histogram)>,
}

impl SettleMetrics {
    pub(crate) fn record(&mut self, job: &Job, outcome: &Outcome, took: Duration) {
        let same = |(queue, kind, word, ..): &(String, String, &'static str, u64, Histogram)| {
            *queue == job.queue && *kind == job.kind && *word == outcome.as_str()
        };
        if !self.last.as_ref().is_some_and(same) {
            self.flush();
            let duration = histogram!(ATTEMPT_DURATION, "queue" => job.queue.clone(), "kind" => job.kind.clone());
            self.last = Some((job.queue.clone(), job.kind.clone(), outcome.as_str(), 0, duration));
        }
        if let Some((.., times, duration)) = &mut self.last {
            *times += 1;
            duration.record(took.as_secs_f64());
        }
    }

    fn flush(&mut self) {
        if let Some((queue, kind, word, times, _)) = self.last.take() {
            counter!(SETTLED, "queue" => queue, "kind" => kind, "outcome" => word).increment(times);
        }
    }
}

impl Drop for SettleMetrics {
    fn drop(&mut self) {
        self.flush();
    }
}

pub(crate) fn record_store_request(op: &'static str, took: Duration, error: Option<&'static str>) {
    histogram!(STORE_DURATION, "op" => op).record(took.as_secs_f64());
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
