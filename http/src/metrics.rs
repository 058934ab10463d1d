//! `GET /metrics`: metrics for Prometheus, computed for each request.
//!
//! There is no registry in the process. The store counts, so all servers of a store report the same numbers.

use std::fmt::Write;
use std::time::{Duration, SystemTime};

use axum::extract::State;
use axum::response::{IntoResponse, Response};

use super::identity::Identity;
use super::problem::Result;
use super::server::AppState;
use duly::Error;
use duly::State as JobState;
use duly::admin::{Histogram, QueueCounts, StatCounters};

const TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Returns all metrics in the text format of Prometheus.
pub(super) async fn metrics(State(app): AppState, _: Identity) -> Result<Response> {
    let counts = app.duly.counts().await?;
    let mut text = String::new();
    write_job_counts(&mut text, &counts);
    write_oldest_ready(&mut text, app.duly.now(), &counts);
    let nodes = app.duly.nodes().await?;
    write_header(&mut text, "duly_nodes", "gauge", "Nodes whose lease runs");
    write_sample(&mut text, "duly_nodes", &[], nodes.iter().filter(|node| node.alive).count());
    write_header(
        &mut text,
        "duly_server_store_errors_total",
        "counter",
        "Requests of this server that the store has failed, since the server started",
    );
    write_sample(&mut text, "duly_server_store_errors_total", &[], super::problem::store_errors());
    match app.duly.totals().await {
        Ok(queues) => write_totals(&mut text, &queues),
        // Some stores keep no totals.
        Err(Error::Unsupported { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(([("content-type", TYPE)], text).into_response())
}

fn write_header(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(text, "# HELP {name} {help}.\n# TYPE {name} {kind}");
}

fn write_sample(text: &mut String, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
    let labels: Vec<String> =
        labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escape_label(value))).collect();
    let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
    let _ = writeln!(text, "{name}{labels} {value}");
}

fn escape_label(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn write_job_counts(text: &mut String, counts: &[QueueCounts]) {
    write_header(text, "duly_jobs", "gauge", "Jobs by queue and state");
    for queue in counts {
        for state in JobState::ALL {
            write_sample(
                text,
                "duly_jobs",
                &[("queue", &queue.queue), ("state", state.as_str())],
                queue.count_in(state),
            );
        }
    }
    write_header(text, "duly_queue_paused", "gauge", "Whether a queue is paused");
    for queue in counts {
        write_sample(text, "duly_queue_paused", &[("queue", &queue.queue)], u8::from(queue.paused));
    }
}

/// Writes how long the first ready job of each queue has waited.
fn write_oldest_ready(text: &mut String, now: SystemTime, counts: &[QueueCounts]) {
    write_header(text, "duly_oldest_ready_seconds", "gauge", "How long the first ready job of a queue has been due");
    // There is no sample if the store does not report the due time of the oldest ready job.
    for queue in counts.iter().filter(|queue| queue.ready == 0 || queue.oldest_ready.is_some()) {
        let due = queue.oldest_ready.filter(|_| queue.ready > 0);
        let waited = due.and_then(|due| now.duration_since(due).ok()).unwrap_or_default();
        write_sample(text, "duly_oldest_ready_seconds", &[("queue", &queue.queue)], waited.as_secs_f64());
    }
}

/// Writes the counters of the store.
fn write_totals(text: &mut String, queues: &[(String, StatCounters)]) {
    write_header(text, "duly_pushed_total", "counter", "Jobs pushed, by anybody, since the store began");
    for (queue, counters) in queues {
        write_sample(text, "duly_pushed_total", &[("queue", queue)], counters.pushed);
    }
    write_header(
        text,
        "duly_settled_total",
        "counter",
        "Attempts that ended, anywhere, by outcome, since the store began",
    );
    for (queue, counters) in queues {
        let outcomes = [
            ("ack", counters.done),
            ("retry", counters.retried),
            ("bury", counters.buried),
            ("release", counters.released),
        ];
        for (outcome, count) in outcomes {
            write_sample(text, "duly_settled_total", &[("queue", queue), ("outcome", outcome)], count);
        }
    }
    write_header(
        text,
        "duly_taken_back_total",
        "counter",
        "Jobs taken back from nodes that lost their lease, since the store began",
    );
    for (queue, counters) in queues {
        write_sample(text, "duly_taken_back_total", &[("queue", queue)], counters.taken_back);
    }
    let late = "How long after its due moment an attempt started";
    write_histograms(text, queues, "duly_lateness_seconds", late, |counters| &counters.lateness);
    write_histograms(text, queues, "duly_duration_seconds", "How long an attempt took", |counters| &counters.duration);
}

/// Writes a histogram per queue. The store counts only buckets, so the sum is an estimate.
fn write_histograms(
    text: &mut String,
    queues: &[(String, StatCounters)],
    name: &str,
    help: &str,
    of: fn(&StatCounters) -> &Histogram,
) {
    write_header(text, name, "histogram", &format!("{help}, since the store began; its sum is an estimate"));
    for (queue, counters) in queues {
        let histogram = of(counters);
        let (mut below, mut sum) = (0, 0.0);
        for (at, count) in histogram.buckets.iter().enumerate() {
            below += count;
            sum += *count as f64 * bucket_midpoint(at).as_secs_f64();
            let is_last = at + 1 == histogram.buckets.len();
            let bound = if is_last { "+Inf".to_owned() } else { Histogram::upper_bound(at).as_secs_f64().to_string() };
            write_sample(text, &format!("{name}_bucket"), &[("queue", queue), ("le", &bound)], below);
        }
        write_sample(text, &format!("{name}_sum"), &[("queue", queue)], sum);
        write_sample(text, &format!("{name}_count"), &[("queue", queue)], below);
    }
}

/// Returns the estimate for a value in a bucket.
fn bucket_midpoint(bucket: usize) -> Duration {
    Histogram::upper_bound(bucket).mul_f64(0.75)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped_and_buckets_add_up() {
        let mut counters = StatCounters::default();
        counters.done = 2;
        counters.duration.buckets[0] = 1;
        counters.duration.buckets[3] = 1;
        let mut text = String::new();
        write_totals(&mut text, &[("a\"b".to_owned(), counters)]);
        assert!(text.contains("duly_settled_total{queue=\"a\\\"b\",outcome=\"ack\"} 2"), "{text}");
        assert!(text.contains("duly_duration_seconds_bucket{queue=\"a\\\"b\",le=\"+Inf\"} 2"), "{text}");
    }
}
