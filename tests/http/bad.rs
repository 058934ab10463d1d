//! Requests that are wrong, large, slow or mad: refused with a reason, and survived.

use std::time::Duration;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{Answer, LONG, Site};

fn is_refused(answer: &Answer, status: u16, pointer: &str) {
    assert_eq!((answer.status, answer.pointer().as_str()), (status, pointer), "{}", answer.text());
}

#[tokio::test]
async fn the_field_at_fault_is_named() {
    let site = Site::in_memory().await;
    let push = async |body| site.post("/api/v1/jobs", body).await;
    is_refused(&push(json!({"kind": "a", "colour": "red"})).await, 422, "/colour");
    is_refused(&push(json!({"args": 1})).await, 422, "/kind");
    is_refused(&push(json!({"kind": 7})).await, 422, "/kind");
    is_refused(&push(json!({"kind": "a b"})).await, 422, "/kind");
    is_refused(&push(json!({"kind": "a", "queue": "<script>"})).await, 422, "/queue");
    is_refused(&push(json!({"kind": "a", "tags": ["x", 7]})).await, 422, "/tags/1");
    is_refused(&push(json!({"kind": "a", "priority": "urgent"})).await, 422, "/priority");
    is_refused(&push(json!({"kind": "a", "due": "tomorrow"})).await, 422, "/due");
    is_refused(&push(json!({"kind": "a", "due_ms": 1, "after_ms": 1})).await, 422, "/due");
    is_refused(&push(json!({"kind": "a", "max_attempts": -1})).await, 422, "/max_attempts");
    is_refused(&push(json!({"kind": "duly:own"})).await, 422, "/kind");
    is_refused(&site.post("/api/v1/nodes", json!({"queues": []})).await, 422, "/queues");
    is_refused(&site.post("/api/v1/nodes", json!({"queues": ["a"], "lease_ms": 1})).await, 422, "/lease_ms");
    is_refused(&site.post("/api/v1/jobs/actions", json!({"action": "remove"})).await, 422, "/filter");
    let broken = site.send("POST", "/api/v1/jobs", &[("Content-Type", "application/json")], b"{").await;
    assert_eq!((broken.status, broken.code().as_str()), (400, "not_json"));
}

#[tokio::test]
async fn what_is_too_large_or_too_deep_is_refused() {
    let site = Site::in_memory().await;
    let json = [("Content-Type", "application/json")];
    let long = format!(r#"{{"kind":"a","args":"{}"}}"#, "x".repeat(1024 * 1024));
    is_refused(&site.send("POST", "/api/v1/jobs", &json, long.as_bytes()).await, 422, "/args");
    let longer = format!(r#"{{"kind":"a","args":"{}"}}"#, "x".repeat(3 * 1024 * 1024));
    assert_eq!(site.send("POST", "/api/v1/jobs", &json, longer.as_bytes()).await.status, 413);
    let deep = format!(r#"{{"kind":"a","args":{}{}}}"#, "[".repeat(65), "]".repeat(65));
    assert_eq!(site.send("POST", "/api/v1/jobs", &json, deep.as_bytes()).await.status, 400);
    let header = "x".repeat(20 * 1024);
    assert!([400, 431].contains(&site.send("GET", "/healthz", &[("X-Long", &header)], b"").await.status));
    let page = site.get("/api/v1/jobs?limit=922337203685477").await;
    assert_eq!(page.status, 200, "numbers are kept within bounds: {}", page.text());
    assert_eq!(site.get("/api/v1/stats/history?minutes=4294967295").await.status, 200);
    assert_eq!(site.get("/api/v1/jobs?limit=99999999999999999999999").await.status, 422);
}

#[tokio::test]
async fn a_slow_sender_is_not_waited_for_for_ever_and_holds_nobody_up() {
    let site = Site::with(|server| server.connections(8)).await;
    let mut slow = Vec::new();
    for _ in 0..7 {
        let mut stream = TcpStream::connect(site.address).await.expect("connects");
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: local").await.expect("sends");
        slow.push(stream);
    }
    assert_eq!(site.get("/healthz").await.status, 200, "there is room for one more");
    let mut text = Vec::new();
    let ended = tokio::time::timeout(LONG, slow[0].read_to_end(&mut text)).await;
    assert!(ended.is_ok(), "its head did not come in time: cut off");
}

/// Some of everything that a request can be, and much that it cannot.
fn mad() -> impl Strategy<Value = Vec<u8>> {
    let path = prop_oneof![
        "/api/v1/[a-z]{1,8}/[ -~]{0,20}".prop_map(|path| path.replace(' ', "%20")),
        "/api/v1/(jobs|queues|nodes|locks|cron|calls)/[^ \r\n]{0,12}(/[a-z]{0,8})?",
        "/[ -~]{0,40}".prop_map(|path| path.replace(' ', "+")),
        Just("/api/v1/jobs?filter=%00%ff&limit=-1".to_owned()),
    ];
    let method = prop_oneof!["GET", "POST", "PUT", "PATCH", "DELETE", "[A-Z]{1,12}"];
    let body = prop_oneof![
        any::<Vec<u8>>(),
        r#"\{"(kind|args|queue|ends|held|max|filter|pattern)":[ -~]{0,20}\}"#.prop_map(String::into_bytes),
        Just(br#"{"kind":"a","args":{"a":{"b":[[[[1]]]]}}}"#.to_vec()),
    ];
    let header = prop_oneof![
        Just("Content-Type: application/json\r\n".to_owned()),
        Just("Content-Type: application/x-ndjson\r\n".to_owned()),
        "[A-Za-z-]{1,12}: [ -~]{0,20}\r\n",
        Just("Transfer-Encoding: chunked\r\n".to_owned()),
    ];
    (method, path, proptest::collection::vec(header, 0..3), body).prop_map(|(method, path, headers, body)| {
        let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{}", headers.concat());
        [head.as_bytes(), format!("Content-Length: {}\r\n\r\n", body.len()).as_bytes(), &body].concat()
    })
}

/// Short by default; `./torture` sets DULY_BAD_REQUESTS for the long run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mad_requests_are_survived_and_no_fault_of_ours() {
    let requests: usize = std::env::var("DULY_BAD_REQUESTS").ok().and_then(|n| n.parse().ok()).unwrap_or(600);
    let site = Site::in_memory().await;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    for _ in 0..requests {
        let request = mad().new_tree(&mut runner).expect("makes one").current();
        let mut stream = TcpStream::connect(site.address).await.expect("still accepts");
        let _ = stream.write_all(&request).await;
        let _ = stream.shutdown().await;
        let mut text = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(15), stream.read_to_end(&mut text)).await;
        assert!(read.is_ok(), "answered or cut off: {}", String::from_utf8_lossy(&request));
        let line = String::from_utf8_lossy(&text).lines().next().unwrap_or_default().to_owned();
        let fault = ["500", "501", "503"].iter().any(|status| line.contains(&format!(" {status} ")));
        assert!(!fault, "{line}: {}", String::from_utf8_lossy(&request));
    }
    assert_eq!(site.get("/readyz").await.status, 200);
}
