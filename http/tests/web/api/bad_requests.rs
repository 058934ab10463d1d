//! Invalid, large and slow requests get an error, and do no harm.

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::api::support::{LONG, Response, Site};

fn is_refused(response: &Response, status: u16, pointer: &str) {
    assert_eq!((response.status, response.pointer().as_str()), (status, pointer), "{}", response.text());
}

#[tokio::test]
async fn error_points_at_the_wrong_field() {
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
    for path in [
        "jobs?limit",
        "audit?limit",
        "cron/preview?pattern=@daily&limit",
        "stats/history?range",
        "stats/queues?minutes",
        "stats/kinds?hours",
    ] {
        let name = path.rsplit(['?', '&']).next().expect("a name");
        is_refused(&site.get(&format!("/api/v1/{path}=0")).await, 422, name);
    }
    for (query, name) in [
        ("range=31d", "range"),
        ("range=soon", "range"),
        ("range=30d&resolution=minute", "resolution"),
        ("range=3h&resolution=minute&kind=a", "resolution"),
        ("range=1h&resolution=10s", "resolution"),
        ("queue=a&kind=b", "kind"),
    ] {
        is_refused(&site.get(&format!("/api/v1/stats/history?{query}")).await, 422, name);
    }
    let node = site.post("/api/v1/nodes", json!({"queues": ["a"]})).await.json()["id"].clone();
    let node = node.as_str().expect("an id");
    for fraction in [1.5, -0.1, 1e300] {
        let body = json!({"id": node, "fence": 1, "fraction": fraction});
        is_refused(&site.post(&format!("/api/v1/nodes/{node}/progress"), body).await, 422, "/fraction");
    }
    let broken = site.send("POST", "/api/v1/jobs", &[("Content-Type", "application/json")], b"{").await;
    assert_eq!((broken.status, broken.code().as_str()), (400, "not_json"));
}

#[tokio::test]
async fn error_contains_the_wrong_line() {
    let site = Site::in_memory().await;
    let push = async |lines: &str| {
        site.send("POST", "/api/v1/jobs/bulk", &[("Content-Type", "application/x-ndjson")], lines.as_bytes()).await
    };
    let said = |response: &Response| response.json()["detail"].as_str().unwrap_or_default().to_owned();
    let broken = push("{\"kind\":\"a\"}\n\n{\"kind\":\"a\"}\n{\"kind\":}\n").await;
    assert_eq!((broken.status, broken.code().as_str()), (400, "not_json"), "{}", broken.text());
    assert!(
        said(&broken).starts_with("line 4: not JSON") && said(&broken).ends_with("at column 9"),
        "{}",
        said(&broken)
    );
    let wrong = push("{\"kind\":\"a\"}\n\n{\"kind\":7}\n").await;
    is_refused(&wrong, 422, "/1/kind");
    assert!(said(&wrong).starts_with("line 3: "), "{}", said(&wrong));
}

#[tokio::test]
async fn content_type_is_case_insensitive() {
    let site = Site::in_memory().await;
    for (path, kind, body) in [
        ("/api/v1/jobs", "Application/JSON", r#"{"kind":"a"}"#),
        ("/api/v1/jobs", "APPLICATION/JSON; Charset=UTF-8", r#"{"kind":"a"}"#),
        ("/api/v1/queues/a/pause", "Application/Json", "{}"),
        ("/api/v1/jobs/bulk", "Application/X-NDJSON", "{\"kind\":\"a\"}\n"),
    ] {
        let response = site.send("POST", path, &[("Content-Type", kind)], body.as_bytes()).await;
        assert!([200, 201, 204].contains(&response.status), "{path} as {kind}: {}", response.text());
    }
}

#[tokio::test]
async fn oversized_or_deeply_nested_body_is_rejected() {
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
    assert_eq!(site.get("/api/v1/stats/queues?minutes=4294967295").await.status, 200);
    assert_eq!(site.get("/api/v1/jobs?limit=99999999999999999999999").await.status, 422);
}

#[tokio::test]
async fn slow_client_times_out_and_blocks_no_other() {
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
