//! `GET /metrics`: numbers for Prometheus, worked out when they are asked for. No registry lives in the library:
//! what is counted is counted in the store, by whoever does it, so every server of a store says the same.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};

use super::problem::Problem;
use super::server::App;
use super::who::Who;
use crate::error::Error;
use crate::job::State as JobState;
use crate::store::{BUCKETS, Filter, Histogram, HistoryAsk, HistoryTally, QueueCounts};

/// Most queues of which the oldest ready job is looked for.
const OLDEST_MAX: usize = 100;

const TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All numbers as text.
pub(super) async fn metrics(State(app): State<Arc<App>>, _: Who) -> Result<Response, Problem> {
    let counts = app.duly.counts().await?;
    let mut text = String::new();
    depth(&mut text, &counts);
    oldest(&mut text, &app, &counts).await?;
    let nodes = app.duly.nodes().await?;
    head(&mut text, "duly_nodes", "gauge", "Nodes whose lease runs");
    line(&mut text, "duly_nodes", &[], nodes.iter().filter(|node| node.alive).count());
    head(&mut text, "duly_store_errors_total", "counter", "Requests of this server that the store has failed");
    line(&mut text, "duly_store_errors_total", &[], super::problem::store_errors());
    match app.duly.history(HistoryAsk::default()).await {
        Ok(history) => day(&mut text, history.points.iter().map(|point| (point.queue.as_str(), &point.tally))),
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
    head(text, "duly_queue_paused", "gauge", "Whether nothing is claimed from a queue");
    for queue in counts {
        line(text, "duly_queue_paused", &[("queue", &queue.queue)], u8::from(queue.paused));
    }
}

/// How long the first ready job of each queue has waited.
async fn oldest(text: &mut String, app: &App, counts: &[QueueCounts]) -> Result<(), Problem> {
    head(text, "duly_oldest_ready_seconds", "gauge", "How long the first ready job of a queue has been due");
    for queue in counts.iter().take(OLDEST_MAX) {
        let mut waited = 0.0;
        if queue.ready > 0 {
            let filter = Filter {
                queue: Some(queue.queue.clone()),
                state: Some(JobState::Ready),
                limit: 1,
                ..Filter::default()
            };
            let first = app.duly.list(filter).await?.jobs.into_iter().next();
            let due = first.and_then(|record| app.duly.now().duration_since(record.due).ok());
            waited = due.unwrap_or_default().as_secs_f64();
        }
        line(text, "duly_oldest_ready_seconds", &[("queue", &queue.queue)], waited);
    }
    Ok(())
}

/// What has happened within the last 24 hours, as far as the store keeps it.
fn day<'h>(text: &mut String, points: impl Iterator<Item = (&'h str, &'h HistoryTally)>) {
    let mut by_queue: std::collections::BTreeMap<&str, HistoryTally> = std::collections::BTreeMap::new();
    for (queue, tally) in points {
        by_queue.entry(queue).or_default().add(tally);
    }
    head(text, "duly_pushed_day", "gauge", "Jobs pushed in the last 24 hours");
    for (queue, tally) in &by_queue {
        line(text, "duly_pushed_day", &[("queue", queue)], tally.pushed);
    }
    head(text, "duly_settled_day", "gauge", "Attempts that ended in the last 24 hours, by outcome");
    for (queue, tally) in &by_queue {
        let outcomes =
            [("ack", tally.done), ("retry", tally.retried), ("bury", tally.buried), ("release", tally.released)];
        for (outcome, count) in outcomes {
            line(text, "duly_settled_day", &[("queue", queue), ("outcome", outcome)], count);
        }
    }
    head(text, "duly_taken_back_day", "gauge", "Jobs taken back from nodes that lost their lease in the last 24 hours");
    for (queue, tally) in &by_queue {
        line(text, "duly_taken_back_day", &[("queue", queue)], tally.taken_back);
    }
    histograms(text, &by_queue, "duly_lateness_seconds", "How long after its due moment an attempt started", |t| {
        &t.lateness
    });
    histograms(text, &by_queue, "duly_duration_seconds", "How long an attempt took", |t| &t.duration);
}

fn histograms(
    text: &mut String,
    by_queue: &std::collections::BTreeMap<&str, HistoryTally>,
    name: &str,
    help: &str,
    of: fn(&HistoryTally) -> &Histogram,
) {
    head(text, name, "histogram", &format!("{help}, in the last 24 hours"));
    for (queue, tally) in by_queue {
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
        day(&mut text, [("a\"b", &tally)].into_iter());
        assert!(text.contains("duly_settled_day{queue=\"a\\\"b\",outcome=\"ack\"} 2"), "{text}");
        assert!(text.contains("duly_duration_seconds_bucket{queue=\"a\\\"b\",le=\"+Inf\"} 2"), "{text}");
    }
}
