//! The history of queues and kinds, in each resolution.

use duly::{Ctx, Push};
use serde_json::Value;
use test_support::until;

use crate::api::support::Site;

/// Returns the length of an interval in seconds, and the points.
async fn history(site: &Site, query: &str) -> (u64, Vec<Value>) {
    let response = site.get(&format!("/api/v1/stats/history?{query}")).await;
    assert_eq!(response.status, 200, "{query}: {}", response.text());
    let body = response.json();
    let points = body["points"].as_array().expect("a list").clone();
    (body["interval_s"].as_u64().expect("a number"), points)
}

fn sum(points: &[Value], name: &str) -> u64 {
    points.iter().map(|point| point[name].as_u64().expect("a count")).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn history_is_returned_by_queue_and_by_kind() {
    let site = Site::in_memory().await;
    site.duly.push_all((0..3).map(|_| Push::new("send", "1").queue("mail"))).await.expect("pushed");
    site.duly.push(Push::new("other", "1").queue("other")).await.expect("pushed");
    site.duly.worker().queue("mail", 1).queue("other", 1).on_any_kind(async |_: Ctx| ()).drain().await.expect("works");
    for (query, seconds) in [("", 60), ("range=24h", 60), ("range=7d", 3_600), ("range=2h&resolution=hour", 3_600)] {
        let (interval, points) = history(&site, &format!("{query}&queue=mail")).await;
        assert_eq!((interval, sum(&points, "pushed"), sum(&points, "done")), (seconds, 3, 3), "{query}");
        assert!(points.iter().all(|point| point["queue"] == "mail" && point.get("kind").is_none()), "{points:?}");
        let (_, points) = history(&site, query).await;
        assert_eq!(sum(&points, "done"), 4, "{query}: all queues");
    }
    for (query, seconds) in [("range=2h&kind=send", 60), ("range=24h&kind=send", 3_600)] {
        let (interval, points) = history(&site, query).await;
        assert_eq!((interval, sum(&points, "done")), (seconds, 3), "{query}");
        assert!(points.iter().all(|point| point["kind"] == "send" && point.get("queue").is_none()), "{points:?}");
        assert!(points[0]["duration"]["p95_ms"].as_f64().is_some_and(|p95| p95 > 0.0), "{points:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_samples_its_queues_every_ten_seconds() {
    let site = Site::in_memory().await;
    // A job that is pushed before the first sample is in none.
    until("a push is sampled", async || {
        site.push("mail").await;
        let (interval, points) = history(&site, "range=5m&resolution=10s&queue=mail").await;
        interval == 10 && sum(&points, "pushed") > 0
    })
    .await;
    let (_, points) = history(&site, "range=5m&resolution=10s&queue=unknown").await;
    assert_eq!(sum(&points, "pushed"), 0);
}
