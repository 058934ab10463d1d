//! `GET /metrics`: numbers for Prometheus, worked out when they are asked for. No registry lives in the library:
//! what is counted is counted in the store, by whoever does it, so every server of a store says the same.

use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::extract::State;
use axum::response::{IntoResponse, Response};

use super::problem::Problem;
use super::server::App;
use super::who::Who;
use crate::error::Error;
use crate::job::State as JobState;
use crate::store::{BUCKETS, Histogram, HistoryTally, QueueCounts};

const TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All numbers as text.
pub(super) async fn metrics(State(app): State<Arc<App>>, _: Who) -> Result<Response, Problem> {
    let counts = app.duly.counts().await?;
    let mut text = String::new();
    depth(&mut text, &counts);
    oldest(&mut text, app.duly.now(), &counts);
    let nodes = app.duly.nodes().await?;
    head(&mut text, "duly_nodes", "gauge", "Nodes whose lease runs");
    line(&mut text, "duly_nodes", &[], nodes.iter().filter(|node| node.alive).count());
    head(
        &mut text,
        "duly_server_store_errors_total",
        "counter",
        "Requests of this server that the store has failed, since the server started",
    );
    line(&mut text, "duly_server_store_errors_total", &[], super::problem::store_errors());
    match app.duly.totals().await {
        Ok(queues) => totals(&mut text, &queues),
        // A store that keeps none.
        Err(Error::Unsupported { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(([("content-type", TYPE)], text).into_response())
}

fn head(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(text, "# HELP {name} {help}.\n# TYPE {name} {kind}");
}

fn line(text: &mut String, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
    let labels: Vec<String> = labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escape(value))).collect();
    let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
    let _ = writeln!(text, "{name}{labels} {value}");
}

fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn depth(text: &mut String, counts: &[QueueCounts]) {
    head(text, "duly_jobs", "gauge", "Jobs by queue and state");
    for queue in counts {
        for state in JobState::ALL {
            line(text, "duly_jobs", &[("queue", &queue.queue), ("state", state.as_str())], queue.of(state));
        }
    }
    head(text, "duly_queue_paused", "gauge", "Whether a queue is paused");
    for queue in counts {
        line(text, "duly_queue_paused", &[("queue", &queue.queue)], u8::from(queue.paused));
    }
}

/// How long the first ready job of each queue has waited.
fn oldest(text: &mut String, now: SystemTime, counts: &[QueueCounts]) {
    head(text, "duly_oldest_ready_seconds", "gauge", "How long the first ready job of a queue has been due");
    // Nothing is said where a job is ready and the store does not say since when.
    for queue in counts.iter().filter(|queue| queue.ready == 0 || queue.oldest.is_some()) {
        let due = queue.oldest.filter(|_| queue.ready > 0);
        let waited = due.and_then(|due| now.duration_since(due).ok()).unwrap_or_default();
        line(text, "duly_oldest_ready_seconds", &[("queue", &queue.queue)], waited.as_secs_f64());
    }
}

/// What has ever happened, since the store began to count it.
fn totals(text: &mut String, queues: &[(String, HistoryTally)]) {
    head(text, "duly_pushed_total", "counter", "Jobs pushed, by anybody, since the store began");
    for (queue, tally) in queues {
        line(text, "duly_pushed_total", &[("queue", queue)], tally.pushed);
    }
    head(text, "duly_settled_total", "counter", "Attempts that ended, anywhere, by outcome, since the store began");
    for (queue, tally) in queues {
        let outcomes =
            [("ack", tally.done), ("retry", tally.retried), ("bury", tally.buried), ("release", tally.released)];
        for (outcome, count) in outcomes {
            line(text, "duly_settled_total", &[("queue", queue), ("outcome", outcome)], count);
        }
    }
    head(
        text,
        "duly_taken_back_total",
        "counter",
        "Jobs taken back from nodes that lost their lease, since the store began",
    );
    for (queue, tally) in queues {
        line(text, "duly_taken_back_total", &[("queue", queue)], tally.taken_back);
    }
    let late = "How long after its due moment an attempt started";
    histograms(text, queues, "duly_lateness_seconds", late, |tally| &tally.lateness);
    histograms(text, queues, "duly_duration_seconds", "How long an attempt took", |tally| &tally.duration);
}

/// Only the buckets are counted: the sum is made of the middle of each.
fn histograms(
    text: &mut String,
    queues: &[(String, HistoryTally)],
    name: &str,
    help: &str,
    of: fn(&HistoryTally) -> &Histogram,
) {
    head(text, name, "histogram", &format!("{help}, since the store began; its sum is an estimate"));
    for (queue, tally) in queues {
        let histogram = of(tally);
        let (mut below, mut sum) = (0, 0.0);
        for (at, count) in histogram.buckets.iter().enumerate() {
            below += count;
            sum += *count as f64 * middle(at).as_secs_f64();
            let bound = match at + 1 {
                BUCKETS => "+Inf".to_owned(),
                _ => Histogram::bound(at).as_secs_f64().to_string(),
            };
            line(text, &format!("{name}_bucket"), &[("queue", queue), ("le", &bound)], below);
        }
        line(text, &format!("{name}_sum"), &[("queue", queue)], sum);
        line(text, &format!("{name}_count"), &[("queue", queue)], below);
    }
}

/// What a value of a bucket is taken for: only its bounds are known.
fn middle(bucket: usize) -> Duration {
    Histogram::bound(bucket).mul_f64(0.75)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped_and_buckets_add_up() {
        let mut tally = HistoryTally { done: 2, ..HistoryTally::default() };
        tally.duration.buckets[0] = 1;
        tally.duration.buckets[3] = 1;
        let mut text = String::new();
        totals(&mut text, &[("a\"b".to_owned(), tally)]);
        assert!(text.contains("duly_settled_total{queue=\"a\\\"b\",outcome=\"ack\"} 2"), "{text}");
        assert!(text.contains("duly_duration_seconds_bucket{queue=\"a\\\"b\",le=\"+Inf\"} 2"), "{text}");
    }
}
