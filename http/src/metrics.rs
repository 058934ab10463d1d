//! `GET /metrics`: metrics for Prometheus, computed once for all requests that wait for them.
//!
//! There is no registry in the process. The store counts, so all servers of a store report the same numbers.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};

use super::identity::Identity;
use super::problem::Result;
use super::server::AppState;
use duly::admin::{Histogram, QueueCounts, StatCounters};
use duly::{Clock, Duly, Error, State as JobState};

/// The number of requests with an unknown or expired token since this process started.
static REFUSED_TOKENS: AtomicU64 = AtomicU64::new(0);

/// Counts a request with an unknown or expired token.
pub(super) fn count_refused_token() {
    REFUSED_TOKENS.fetch_add(1, Ordering::Relaxed);
}

const TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The most recent text, or why there is none.
#[derive(Default)]
pub(crate) struct MetricsText(tokio::sync::Mutex<Option<LatestText>>);

struct LatestText {
    /// When it was started to be computed.
    started: Duration,
    text: Result<Bytes>,
}

impl MetricsText {
    /// Returns a text that was computed after this call, not after the first poll. Concurrent calls share it.
    fn get<'m>(&'m self, duly: &'m Duly) -> impl Future<Output = Result<Bytes>> + 'm {
        let called = Clock::system().monotonic();
        async move {
            let mut latest = self.0.lock().await;
            match &*latest {
                Some(latest) if latest.started >= called => latest.text.clone(),
                _ => {
                    let started = Clock::system().monotonic();
                    let text = compute(duly).await.map(Bytes::from);
                    *latest = Some(LatestText { started, text: text.clone() });
                    text
                }
            }
        }
    }
}

/// Returns all metrics in the text format of Prometheus.
pub(super) async fn metrics(State(app): AppState, _: Identity) -> Result<Response> {
    let text = app.metrics.get(&app.duly).await?;
    Ok(([("content-type", TYPE)], text).into_response())
}

async fn compute(duly: &Duly) -> Result<String> {
    let counts = duly.queues().counts().await?;
    let mut text = String::new();
    write_job_counts(&mut text, &counts);
    write_oldest_ready(&mut text, duly.now(), &counts);
    let nodes = duly.nodes().list().await?;
    write_header(&mut text, "duly_nodes", "gauge", "Live nodes");
    write_sample(&mut text, "duly_nodes", &[], nodes.iter().filter(|node| node.alive).count());
    write_header(
        &mut text,
        "duly_server_store_errors_total",
        "counter",
        "Requests of this server that failed in the store, since the server started",
    );
    write_sample(&mut text, "duly_server_store_errors_total", &[], super::problem::store_errors());
    write_header(
        &mut text,
        "duly_server_refused_tokens_total",
        "counter",
        "Requests to this server with an unknown or expired token, since the server started",
    );
    write_sample(&mut text, "duly_server_refused_tokens_total", &[], REFUSED_TOKENS.load(Ordering::Relaxed));
    match duly.queues().totals().await {
        Ok(queues) => write_totals(&mut text, &queues),
        // Some stores keep no totals.
        Err(Error::Unsupported { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(text)
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
    write_header(text, "duly_pushed_total", "counter", "Jobs pushed by all processes, since the store was created");
    for (queue, counters) in queues {
        write_sample(text, "duly_pushed_total", &[("queue", queue)], counters.pushed);
    }
    write_header(
        text,
        "duly_settled_total",
        "counter",
        "Attempts that ended on all nodes, by outcome, since the store was created",
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
        "Jobs taken back from nodes that lost their lease, since the store was created",
    );
    for (queue, counters) in queues {
        write_sample(text, "duly_taken_back_total", &[("queue", queue)], counters.taken_back);
    }
    write_header(
        text,
        "duly_cancelled_total",
        "counter",
        "Jobs that ended cancelled, whether they waited or ran, since the store was created",
    );
    for (queue, counters) in queues {
        write_sample(text, "duly_cancelled_total", &[("queue", queue)], counters.cancelled);
    }
    let late = "Time from the due time to the start of an attempt";
    write_histograms(text, queues, "duly_lateness_seconds", late, |counters| &counters.lateness);
    write_histograms(text, queues, "duly_duration_seconds", "Duration of attempts", |counters| &counters.duration);
}

/// Writes a histogram per queue. The store counts only buckets, so the sum is an estimate.
fn write_histograms(
    text: &mut String,
    queues: &[(String, StatCounters)],
    name: &str,
    help: &str,
    of: fn(&StatCounters) -> &Histogram,
) {
    write_header(text, name, "histogram", &format!("{help}, since the store was created; its sum is an estimate"));
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

    #[tokio::test]
    async fn concurrent_requests_share_one_text() {
        let duly = Duly::open(":memory:").await.expect("opens");
        let metrics = MetricsText::default();
        let texts = futures_util::future::join_all((0..100).map(|_| metrics.get(&duly))).await;
        let addresses: std::collections::BTreeSet<usize> =
            texts.iter().map(|text| text.as_ref().expect("computed").as_ptr().addr()).collect();
        assert_eq!(addresses.len(), 1, "one text for all");
        duly.push(duly::Push::new("a", "1").queue("new")).await.expect("pushed");
        let text = metrics.get(&duly).await.expect("computed");
        assert!(String::from_utf8_lossy(&text).contains("queue=\"new\""), "never older than the request");
    }
}
