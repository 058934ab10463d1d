//! Clients that use up connections, memory, nodes or queues keep no other client out.

use std::time::Duration;

use duly::admin::Role;
use serde_json::json;
use test_support::until;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::api::support::{LONG, Site};

const CONNECTIONS: usize = 64;

/// Sends the beginning of a request.
async fn begin(site: &Site, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(site.address).await.expect("connects");
    // The server may have ended it already.
    let _ = stream.write_all(bytes).await;
    stream
}

/// Returns the beginning of a request that never ends its body.
fn unfinished(method: &str, path: &str, token: &str, kind: &str) -> Vec<u8> {
    let head =
        format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: 1000\r\n");
    format!("{head}Authorization: Bearer {token}\r\n\r\n{{").into_bytes()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_connections_keep_no_client_out_in_memory() {
    be_silent(Site::with(|server| server.connections(CONNECTIONS)).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_connections_keep_no_client_out_on_redis() {
    let redis = crate::servers::redis().url();
    be_silent(Site::on_with(redis, |server| server.connections(CONNECTIONS)).await).await;
}

/// `DULY_SILENT` sets the number of silent connections.
async fn be_silent(mut site: Site) {
    site.be(Role::Admin).await;
    let silent = test_support::env_number("DULY_SILENT").map_or(4 * CONNECTIONS, |number| number as usize);
    let heads: [&[u8]; 3] = [
        b"",
        b"GET /jobs HTTP/1.1\r\nHost: loc",
        b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\ntok",
    ];
    let mut open = Vec::new();
    for no in 0..silent {
        open.push(begin(&site, heads[no % heads.len()]).await);
        // File descriptors are few, and the server has ended the oldest ones.
        if open.len() > 2 * CONNECTIONS {
            drop(open.drain(..CONNECTIONS));
        }
        if no % CONNECTIONS == 0 {
            for path in ["/healthz", "/readyz", "/api/v1/tokens"] {
                assert_eq!(site.get(path).await.status, 200, "{path} beside {no} silent connections");
            }
        }
    }
    assert_eq!(site.get("/healthz").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unfinished_requests_of_some_clients_keep_no_other_out() {
    let mut site = Site::with(|server| server.connections(CONNECTIONS)).await;
    let mut open = Vec::new();
    for _ in 0..2 {
        open.extend(use_share_as_pusher(&mut site).await);
    }
    site.be(Role::Admin).await;
    for path in ["/healthz", "/readyz", "/api/v1/tokens", "/jobs", "/metrics"] {
        assert_eq!(site.get(path).await.status, 200, "{path}");
    }
}

/// Sends requests without an end as a new pusher, until further ones are refused.
async fn use_share_as_pusher(site: &mut Site) -> Vec<TcpStream> {
    site.be(Role::Pusher).await;
    let bodies = [
        unfinished("POST", "/api/v1/jobs", site.token(), "application/json"),
        unfinished("POST", "/push", site.token(), "application/x-www-form-urlencoded"),
    ];
    let mut open = Vec::new();
    until("the client has its share", async || {
        open.push(begin(site, &bodies[open.len() % 2]).await);
        site.get("/api/v1/cron").await.status == 429
    })
    .await;
    open
}

/// Opens many long polls for a job as a new viewer, until further ones are refused.
async fn poll_as_viewer(site: &mut Site, id: &str) -> Vec<TcpStream> {
    site.be(Role::Viewer).await;
    let wait = site.request("GET", &format!("/api/v1/jobs/{id}/wait?timeout_ms=60000"), &[], b"");
    let short = format!("/api/v1/jobs/{id}/wait?timeout_ms=1");
    let mut open = Vec::new();
    // One after the other: of many connections at once, the server may end some before it has read their request.
    until("the client has its share", async || {
        open.push(begin(site, &wait).await);
        site.get(&short).await.status == 429
    })
    .await;
    open
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn push_that_waits_ends_with_its_client() {
    let mut site = Site::with(|server| server.connections(CONNECTIONS)).await;
    site.be(Role::Pusher).await;
    let body = br#"{"kind":"work"}"#;
    let wait = site.request("POST", "/api/v1/jobs?wait=60s", &[("Content-Type", "application/json")], body);
    let push_briefly = async || site.post("/api/v1/jobs?wait=1ms", json!({"kind": "work"})).await.status;
    let mut open = Vec::new();
    until("the client has its share", async || {
        open.push(begin(&site, &wait).await);
        push_briefly().await == 429
    })
    .await;
    drop(open);
    let ended = until("its waits have ended", async || push_briefly().await == 202);
    tokio::time::timeout(LONG, ended).await.expect("long before the time they asked for");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_polls_of_some_clients_keep_no_other_out() {
    let mut site = Site::with(|server| server.connections(CONNECTIONS)).await;
    let id = site.push("mail").await;
    let mut open = Vec::new();
    for _ in 0..2 {
        open.extend(poll_as_viewer(&mut site, &id).await);
        assert_eq!(site.get("/api/v1/cron").await.status, 200, "the client itself gets in too");
    }
    site.be(Role::Viewer).await;
    for path in ["/healthz", "/metrics", "/api/v1/cron", &format!("/api/v1/jobs/{id}/wait?timeout_ms=1")] {
        assert_eq!(site.get(path).await.status, 200, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_polls_of_all_clients_leave_connections_to_others() {
    let mut site = Site::with(|server| server.connections(CONNECTIONS)).await;
    let id = site.push("mail").await;
    let mut open = Vec::new();
    for _ in 0..CONNECTIONS / 8 - 2 {
        open.extend(poll_as_viewer(&mut site, &id).await);
    }
    site.be(Role::Viewer).await;
    let refused = site.get(&format!("/api/v1/jobs/{id}/wait?timeout_ms=1")).await;
    assert_eq!((refused.status, refused.code().as_str()), (503, "busy"), "three quarters wait already");
    assert_eq!(site.get("/api/v1/cron").await.status, 200);
    site.be(Role::Pusher).await;
    let node = site.post("/api/v1/nodes", json!({"queues": ["mail"]})).await.json()["id"].clone();
    let claim = site.post(&format!("/api/v1/nodes/{}/claim", node.as_str().expect("an id")), json!({})).await;
    assert_eq!(claim.status, 503, "a claim may wait, so it counts");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_use_a_slot_of_their_client() {
    let mut site = Site::with(|server| server.connections(CONNECTIONS)).await;
    site.be(Role::Pusher).await;
    let body = unfinished("POST", "/api/v1/jobs", site.token(), "application/json");
    let mut open = Vec::new();
    until("the client has its share", async || {
        open.push(begin(&site, &body).await);
        site.get("/metrics").await.status == 429
    })
    .await;
}

#[tokio::test]
async fn client_cannot_take_all_nodes() {
    let mut site = Site::in_memory().await;
    site.be(Role::Pusher).await;
    let join = async || site.post("/api/v1/nodes", json!({"queues": ["mail"], "lease_ms": 3_600_000})).await;
    for _ in 0..256 {
        assert_eq!(join().await.status, 201);
    }
    let refused = join().await;
    assert_eq!((refused.status, refused.code().as_str()), (409, "conflict"));
    site.be(Role::Pusher).await;
    let join = site.post("/api/v1/nodes", json!({"queues": ["mail"]})).await;
    assert_eq!(join.status, 201, "another client has its own");
}

#[tokio::test]
async fn clients_create_a_limited_number_of_queues() {
    let site = Site::with(|server| server.queues(3)).await;
    let push = async |queue: &str| site.post("/api/v1/jobs", json!({"kind": "a", "queue": queue})).await;
    for queue in ["x", "y", "z"] {
        let refused = site.post("/api/v1/jobs", json!({"kind": "a", "queue": queue, "max_attempts": 0})).await;
        assert_eq!(refused.status, 422, "a push that is refused creates no queue");
    }
    for queue in ["one", "two", "three", "one"] {
        assert_eq!(push(queue).await.status, 201, "{queue}");
    }
    let refused = push("four").await;
    assert_eq!((refused.status, refused.code().as_str()), (409, "too_many_queues"));
    let bulk = json!([{"kind": "a", "queue": "one"}, {"kind": "a", "queue": "five"}]);
    assert_eq!(site.post("/api/v1/jobs/bulk", bulk).await.status, 409);
    assert_eq!(site.post("/api/v1/nodes", json!({"queues": ["six"]})).await.status, 409);
    let form = [("Content-Type", "application/x-www-form-urlencoded")];
    let page = b"kind=a&queue=seven&args=1&priority=normal&after=&max_attempts=1&unique=&tags=";
    assert_eq!(site.send("POST", "/push", &form, page).await.status, 409);
    assert_eq!(site.duly.queues().counts().await.expect("counts").len(), 3);
    site.duly.push(duly::Push::new("a", "1").queue("eight")).await.expect("a program with the store has no limit");
    // The server reads the queues at most once a second.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    assert_eq!(push("eight").await.status, 201, "it exists");
}

#[tokio::test]
async fn refused_worker_uses_up_no_queues_of_other_clients() {
    let mut site = Site::with(|server| server.queues(9)).await;
    site.be(Role::Pusher).await;
    for round in 0..3 {
        let queues: Vec<String> = (0..4).map(|no| format!("no name {round} {no}")).collect();
        let refused = site.post("/api/v1/nodes", json!({"queues": queues})).await;
        assert_eq!(refused.status, 422, "{}", refused.text());
    }
    site.be(Role::Pusher).await;
    for queue in ["a", "b", "c", "d"] {
        let pushed = site.post("/api/v1/jobs", json!({"kind": "a", "queue": queue})).await;
        assert_eq!(pushed.status, 201, "{}", pushed.text());
    }
    let refused = site.post("/api/v1/jobs", json!({"kind": "a", "queue": "e"})).await;
    assert_eq!((refused.status, refused.code().as_str()), (409, "too_many_queues"));
    assert!(refused.text().contains("may create at most as many as are left of 9"), "{}", refused.text());
    site.be(Role::Pusher).await;
    assert_eq!(site.post("/api/v1/jobs", json!({"kind": "a", "queue": "e"})).await.status, 201, "another client");
}

#[tokio::test]
async fn args_that_are_nested_too_deep_are_refused_on_every_way_in() {
    let site = Site::in_memory().await;
    let deep = "[".repeat(65) + &"]".repeat(65);
    let job = format!(r#"{{"kind":"a","args":{deep}}}"#);
    let form = |args: &str| format!("kind=a&queue=q&args={args}&priority=normal&after=&max_attempts=1&unique=&tags=");
    let rule = format!("name=r&kind=a&args={deep}&pattern=0+3+*+*+*&queue=q&missed=once&overlap=allow");
    let (json, lines) = ("application/json", "application/x-ndjson");
    let url_encoded = "application/x-www-form-urlencoded";
    for (path, content_type, body) in [
        ("/api/v1/jobs", json, job.clone()),
        ("/api/v1/jobs/bulk", json, format!("[{job}]")),
        ("/api/v1/jobs/bulk", lines, format!("{job}\n")),
        ("/push", url_encoded, form(&deep)),
        ("/cron", url_encoded, rule),
    ] {
        let refused = site.send("POST", path, &[("Content-Type", content_type)], body.as_bytes()).await;
        assert!((400..500).contains(&refused.status), "{path}: {}", refused.text());
        assert!(refused.text().contains("nested"), "{path}: {}", refused.text());
    }
    assert_eq!(site.duly.queues().counts().await.expect("counts").len(), 0);
    let pushed = site.send("POST", "/push", &[("Content-Type", url_encoded)], form("[]").as_bytes()).await;
    assert_eq!(pushed.status, 303);
}

#[tokio::test]
async fn capacity_that_is_absent_stays_and_null_removes_it() {
    let site = Site::in_memory().await;
    for (body, expected) in [
        (json!({"capacity_jobs": 9, "capacity_bytes": 1000}), (Some(9), Some(1000))),
        (json!({"capacity_jobs": 7}), (Some(7), Some(1000))),
        (json!({}), (Some(7), Some(1000))),
        (json!({"capacity_bytes": null}), (Some(7), None)),
    ] {
        assert_eq!(site.json("PATCH", "/api/v1/queues/q", body.clone()).await.status, 200, "{body}");
        let capacity = site.duly.queues().counts().await.expect("counts")[0].capacity;
        assert_eq!((capacity.jobs, capacity.bytes), expected, "{body}");
    }
}

#[tokio::test]
async fn settings_and_rules_create_no_queues_beyond_the_limit() {
    let site = Site::with(|server| server.queues(1)).await;
    assert_eq!(site.post("/api/v1/jobs", json!({"kind": "a", "queue": "one"})).await.status, 201);
    let form = [("Content-Type", "application/x-www-form-urlencoded")];
    let rule = |queue: &str| json!({"kind": "a", "pattern": "0 3 * * *", "queue": queue});
    let page = |queue: &str| format!("name=r&kind=a&args=1&pattern=0+3+*+*+*&queue={queue}&missed=once&overlap=allow");
    for (queue, expected) in [("two", 409), ("one", 200)] {
        let path = format!("/api/v1/queues/{queue}");
        assert_eq!(site.post(&format!("{path}/pause"), json!({})).await.status, expected, "{queue}");
        assert_eq!(site.json("PATCH", &path, json!({"capacity_jobs": 9})).await.status, expected, "{queue}");
        assert_eq!(site.json("PUT", "/api/v1/cron/r", rule(queue)).await.status, expected, "{queue}");
        if expected == 409 {
            assert_eq!(site.send("POST", &format!("/queues/{queue}/pause"), &form, b"").await.status, expected);
            assert_eq!(
                site.send("POST", &format!("/queues/{queue}/capacity"), &form, b"jobs=1").await.status,
                expected
            );
            assert_eq!(site.send("POST", "/cron", &form, page(queue).as_bytes()).await.status, expected);
        }
    }
    assert_eq!(site.duly.queues().counts().await.expect("counts").len(), 1);
}

#[tokio::test]
async fn unused_queues_make_room_for_new_ones() {
    let site = Site::with(|server| server.queues(2)).await;
    for queue in ["one", "two"] {
        site.duly.queues().pause(queue).await.expect("pauses");
    }
    let push = async || site.post("/api/v1/jobs", json!({"kind": "a", "queue": "three"})).await.status;
    site.duly.queues().resume("one").await.expect("resumes");
    assert_eq!(push().await, 201);
    let queues: Vec<_> = site.duly.queues().counts().await.expect("counts").into_iter().map(|one| one.queue).collect();
    assert_eq!(queues, ["three", "two"], "the paused one stays");
}

#[tokio::test]
async fn queue_is_removed_once_it_is_empty() {
    let site = Site::in_memory().await;
    let id = site.push("mail").await;
    let refused = site.send("DELETE", "/api/v1/queues/mail", &[], b"").await;
    assert_eq!((refused.status, refused.code().as_str()), (409, "conflict"));
    assert!(!site.get("/queues/mail").await.text().contains("Remove this queue"));
    site.send("DELETE", &format!("/api/v1/jobs/{id}"), &[], b"").await;
    assert!(site.get("/queues/mail").await.text().contains("Remove this queue"));
    assert_eq!(site.send("DELETE", "/api/v1/queues/mail", &[], b"").await.status, 204);
    assert_eq!(site.get("/api/v1/queues/mail").await.status, 404);
    site.duly.queues().pause("mail").await.expect("pauses");
    let form = [("Content-Type", "application/x-www-form-urlencoded")];
    assert_eq!(site.send("POST", "/queues/mail/remove", &form, b"").await.status, 303);
    assert_eq!(site.duly.queues().counts().await.expect("counts").len(), 0);
    let entry = &site.duly.audit().list(None, 1).await.expect("reads")[0].entry;
    assert_eq!((entry.action.as_str(), entry.target.as_deref()), ("queues.remove", Some("mail")));
}

#[tokio::test]
async fn long_line_of_ndjson_is_rejected_early() {
    let site = Site::in_memory().await;
    let body = [&br#"{"kind":"a"}"#[..], b"\n", &vec![b'['; 3 * 1024 * 1024]].concat();
    let headers = [("Content-Type", "application/x-ndjson")];
    let rejected = site.send("POST", "/api/v1/jobs/bulk", &headers, &body).await;
    assert_eq!((rejected.status, rejected.code().as_str()), (413, "too_large"), "{}", rejected.text());
    assert!(rejected.text().contains("line 2"), "{}", rejected.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_with_too_many_locks_gets_no_further_one() {
    const LOCKS: usize = 1_000;
    let mut site = Site::in_memory().await;
    site.be(Role::Pusher).await;
    let acquire =
        async |number: usize| site.json("PUT", &format!("/api/v1/locks/{number}"), json!({"ttl_ms": 86_400_000})).await;
    let mut first = None;
    for number in 0..LOCKS {
        let hold = acquire(number).await;
        assert_eq!(hold.status, 200, "{}", hold.text());
        first.get_or_insert_with(|| hold.json()["owner"].as_str().expect("an owner").to_owned());
    }
    let refused = acquire(LOCKS).await;
    assert_eq!((refused.status, refused.code().as_str()), (429, "too_many"), "{}", refused.text());
    assert!(refused.text().contains("release some"), "{}", refused.text());
    assert_eq!(site.get(&format!("/api/v1/locks/{LOCKS}")).await.json()["locks"], json!([]), "nothing was acquired");
    let released = format!("/api/v1/locks/0?owner={}", first.expect("the first lock"));
    assert_eq!(site.send("DELETE", &released, &[], b"").await.status, 204);
    assert_eq!(acquire(LOCKS).await.status, 200, "there is room again");
}
