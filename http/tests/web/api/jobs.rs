//! Jobs, queues, events and the audit log over HTTP.

use duly::{Outcome, State};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::api::support::{LONG, Site};

pub async fn job_is_pushed_read_rescheduled_and_removed(site: Site) {
    let response = site
        .post("/api/v1/jobs", json!({"kind": "mail", "args": {"to": "ada"}, "after_ms": 60_000, "tags": ["a"]}))
        .await;
    assert_eq!(response.status, 201, "{}", response.text());
    let id = response.json()["id"].as_str().expect("an id").to_owned();
    assert_eq!(response.header("location"), Some(&*format!("/api/v1/jobs/{id}")));

    let job = site.get(&format!("/api/v1/jobs/{id}")).await.json();
    assert_eq!((&job["state"], &job["args"]["to"], &job["tags"][0]), (&json!("scheduled"), &json!("ada"), &json!("a")));
    let due = job["due"].as_str().expect("a moment");
    assert!(due.ends_with('Z') && job["due_ms"].as_i64().expect("a number") > 1_700_000_000_000, "{due}");

    assert_eq!(site.post(&format!("/api/v1/jobs/{id}/retry"), json!({})).await.status, 204);
    assert_eq!(site.get(&format!("/api/v1/jobs/{id}")).await.json()["state"], "ready");
    let later = json!({"due": "2099-01-01T00:00:00Z"});
    assert_eq!(site.post(&format!("/api/v1/jobs/{id}/reschedule"), later).await.status, 204);
    assert_eq!(site.get(&format!("/api/v1/jobs/{id}")).await.json()["due"], "2099-01-01T00:00:00Z");
    let why = site.get(&format!("/api/v1/jobs/{id}/why")).await.json();
    assert!(why["text"].as_str().is_some_and(|text| text.contains("2099")), "{why}");

    assert_eq!(site.post(&format!("/api/v1/jobs/{id}/cancel"), json!({})).await.json()["state"], "cancelled");
    assert_eq!(site.get(&format!("/api/v1/jobs/{id}")).await.json()["state"], "cancelled");
    assert_eq!(site.send("DELETE", &format!("/api/v1/jobs/{id}"), &[], b"").await.status, 204);
    let gone = site.get(&format!("/api/v1/jobs/{id}")).await;
    assert_eq!((gone.status, gone.code().as_str()), (404, "not_found"));
}

pub async fn rejected_edit_changes_nothing(site: Site) {
    let id = site.push("default").await;
    let path = format!("/api/v1/jobs/{id}");
    let wrong = site.json("PATCH", &path, json!({"args": {"n": 2}, "priority": "high", "after_ms": u64::MAX})).await;
    assert_eq!((wrong.status, wrong.pointer().as_str()), (422, "/due"), "{}", wrong.text());
    let job = site.get(&path).await.json();
    assert_eq!((&job["args"]["n"], &job["priority"]), (&json!(1), &json!("normal")), "{job}");
    let right = site.json("PATCH", &path, json!({"args": {"n": 2}, "after_ms": 60_000})).await;
    assert_eq!((&right.json()["args"]["n"], &right.json()["state"]), (&json!(2), &json!("scheduled")));
}

pub async fn big_numbers_in_args_survive_byte_for_byte(site: Site) {
    let args = r#"{"z": 9007199254740993, "a": [18446744073709551616, 1.10, 1e400, {}], "empty": []}"#;
    let body = format!(r#"{{"kind": "count", "args": {args}}}"#);
    let response = site.send("POST", "/api/v1/jobs", &[("Content-Type", "application/json")], body.as_bytes()).await;
    let id = response.json()["id"].as_str().expect("an id").to_owned();
    let record = site.duly.jobs().get(id.parse().expect("an id")).await.expect("reads").expect("is there");
    assert_eq!(record.job.args, args);
    let shown = String::from_utf8(site.get(&format!("/api/v1/jobs/{id}")).await.body).expect("text");
    assert!(shown.contains(args), "{shown}");
}

pub async fn bulk_push_accepts_lists_and_lines(site: Site) {
    let list: Vec<Value> = (0..50).map(|n| json!({"kind": "n", "queue": "list", "args": n})).collect();
    let response = site.post("/api/v1/jobs/bulk", json!(list)).await.json();
    assert_eq!((response["new"].as_u64(), response["jobs"].as_array().map(Vec::len)), (Some(50), Some(50)));

    let lines: String = (0..50).map(|n| format!("{{\"kind\":\"n\",\"queue\":\"lines\",\"args\":{n}}}\n")).collect();
    let headers = [("Content-Type", "application/x-ndjson"), ("Idempotency-Key", "lines")];
    let response = site.send("POST", "/api/v1/jobs/bulk", &headers, lines.as_bytes()).await;
    assert_eq!(response.json()["new"], 50, "{}", response.text());
    let again = site.send("POST", "/api/v1/jobs/bulk", &headers, lines.as_bytes()).await;
    assert_eq!(again.json()["new"], 0, "the same key, the same jobs");

    let bad = site.post("/api/v1/jobs/bulk", json!([{"kind": "n"}, {"kind": "n", "max_attempts": 0}])).await;
    assert_eq!((bad.status, bad.pointer().as_str()), (422, "/1/max_attempts"), "{}", bad.text());
    let counts = site.duly.queues().counts().await.expect("counts");
    assert_eq!(counts.iter().map(|queue| queue.ready).sum::<u64>(), 100, "all or none");
}

pub async fn repeated_idempotency_key_pushes_once_and_rejects_another_body(site: Site) {
    let headers = [("Content-Type", "application/json"), ("Idempotency-Key", "order-7")];
    let push = async |body: &[u8]| site.send("POST", "/api/v1/jobs", &headers, body).await;
    let first = push(br#"{"kind":"mail"}"#).await;
    let second = push(br#"{"kind":"mail"}"#).await;
    assert_eq!((first.status, second.status), (201, 200));
    assert_eq!(first.json()["id"], second.json()["id"]);
    assert_eq!(second.json()["pushed"], "existing");
    let other = push(br#"{"kind":"letter"}"#).await;
    assert_eq!((other.status, other.pointer().as_str()), (422, "Idempotency-Key"));
}

pub async fn list_pages_continue_at_the_cursor(site: Site) {
    for _ in 0..7 {
        site.push("pages").await;
    }
    let (mut path, mut seen) = ("/api/v1/jobs?filter=queue:pages+state:ready&limit=3".to_owned(), Vec::new());
    for _ in 0..10 {
        let page = site.get(&path).await;
        assert_eq!(page.status, 200, "{}", page.text());
        seen.extend(page.json()["jobs"].as_array().expect("jobs").iter().map(|job| job["id"].to_string()));
        match page.header("link") {
            Some(link) => path = link.trim_start_matches('<').split('>').next().expect("a link").to_owned(),
            None => break,
        }
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 7);
    for (queue, after_ms) in [("a", 60_000), ("b", 120_000), ("a", 180_000)] {
        site.post("/api/v1/jobs", json!({"kind": "later", "queue": queue, "after_ms": after_ms})).await;
    }
    let (mut path, mut dues) = ("/api/v1/jobs?sort=due&reverse=true&limit=2".to_owned(), Vec::new());
    for _ in 0..3 {
        let page = site.get(&path).await;
        assert_eq!(page.status, 200, "{}", page.text());
        dues.extend(page.json()["jobs"].as_array().expect("jobs").iter().map(|job| job["due_ms"].as_i64()));
        match page.header("link") {
            Some(link) => path = link.trim_start_matches('<').split('>').next().expect("a link").to_owned(),
            None => break,
        }
    }
    assert!(dues.len() == 3 && dues.is_sorted_by(|a, b| a > b), "{dues:?}");
    assert_eq!(site.get("/api/v1/jobs?sort=end&filter=state:ready").await.pointer(), "/sort");
    let bad = site.get("/api/v1/jobs?filter=state:sleeping").await;
    assert_eq!((bad.status, bad.pointer().as_str()), (422, "filter"));
    assert_eq!(site.get("/api/v1/jobs?colour=red").await.pointer(), "colour");
}

pub async fn job_is_found_by_part_of_its_id(site: Site) {
    let ids = ["0198f7a1-5a3c-7c1e-9b0e-6f1f6f0c7c11", "0198f7a1-5a3c-7c1e-9b0e-6f1f6f0c7c12"];
    for id in ids {
        assert_eq!(site.post("/api/v1/jobs", json!({"kind": "mail", "args": "beef", "id": id})).await.status, 201);
    }
    let job = site.get("/api/v1/jobs/7C11").await;
    assert_eq!((job.status, &job.json()["id"]), (200, &json!(ids[0])), "{}", job.text());
    let listed = site.get("/api/v1/jobs?filter=id:6f0c7c12").await.json();
    assert_eq!((listed["jobs"].as_array().map(Vec::len), &listed["jobs"][0]["id"]), (Some(1), &json!(ids[1])));
    let several = site.get("/api/v1/jobs/0198f7a1").await;
    assert_eq!((several.status, &several.json()["conflict"]), (409, &json!("ambiguous")), "{}", several.text());
    assert!(ids.iter().all(|id| several.text().contains(id)), "{}", several.text());
    assert_eq!((site.get("/api/v1/jobs/beef").await.status, site.get("/api/v1/jobs/c11").await.status), (404, 404));
    let change = site.post("/api/v1/jobs/actions", json!({"action": "remove", "filter": "beef"})).await;
    assert_eq!((change.status, change.pointer().as_str()), (422, "/filter"), "{}", change.text());
    assert_eq!(site.send("DELETE", "/api/v1/jobs/7c11", &[], b"").await.status, 204);
    let audit = site.get("/api/v1/audit").await.text();
    assert!(audit.contains(ids[0]) && !audit.contains("\"7c11\""), "the audit has the whole id: {audit}");
    assert_eq!(site.get("/api/v1/jobs/0198f7a1").await.json()["id"], ids[1]);
}

pub async fn queues_are_paused_and_resumed(site: Site) {
    site.push("mail").await;
    assert_eq!(site.post("/api/v1/queues/mail/pause", json!({})).await.json()["changed"], true);
    let queue = site.get("/api/v1/queues/mail").await.json();
    assert_eq!((&queue["paused"], &queue["ready"]), (&json!(true), &json!(1)));
    assert_eq!(
        site.send("POST", "/api/v1/queues/mail/resume", &[], b"").await.json()["changed"],
        true,
        "no body is fine"
    );
    assert_eq!(site.get("/api/v1/queues/nothing").await.status, 404);
    let stats = site.get("/api/v1/stats").await.json();
    assert_eq!(stats["total"]["ready"], 1, "{stats}");
    let unsure = site.send("DELETE", "/api/v1/queues/mail/jobs?confirm=male", &[], b"").await;
    assert_eq!(unsure.status, 422, "{}", unsure.text());
}

pub async fn wait_ends_with_the_job(site: Site) {
    let id = site.push("default").await;
    let waiting = tokio::spawn({
        let request = site.request("GET", &format!("/api/v1/jobs/{id}/wait"), &[], b"");
        let address = site.address;
        async move { exchange(address, &request).await }
    });
    let worker = site.duly.worker().on_any_kind(async |_| Outcome::Ack).drain();
    tokio::time::timeout(LONG, worker).await.expect("in time").expect("works");
    let response = tokio::time::timeout(LONG, waiting).await.expect("in time").expect("no panic");
    assert!(response.contains("\"state\":\"done\""), "{response}");
}

pub async fn wait_streams_events(site: Site) {
    let id = site.push("default").await;
    let stream = async |id: &str| {
        let mut stream = TcpStream::connect(site.address).await.expect("connects");
        let headers = [("Accept", "text/event-stream")];
        let request = site.request("GET", &format!("/api/v1/jobs/{id}/wait"), &headers, b"");
        stream.write_all(&request).await.expect("sends");
        BufReader::new(stream).lines()
    };
    let mut events = stream(&id).await;
    assert!(event(&mut events).await.1.contains("\"state\":\"ready\""), "as it is now");
    let worker = site.duly.worker().on_any_kind(async |_| Outcome::Ack).drain();
    tokio::time::timeout(LONG, worker).await.expect("in time").expect("works");
    assert!(event(&mut events).await.1.contains("\"state\":\"done\""), "as it ended");
    let mut events = stream(&id).await;
    assert!(event(&mut events).await.1.contains("\"state\":\"done\""), "at once");
    let later = site.post("/api/v1/jobs", json!({"kind": "work", "after_ms": 60_000})).await.json();
    let later = later["id"].as_str().expect("an id").to_owned();
    let mut events = stream(&later).await;
    event(&mut events).await;
    site.send("DELETE", &format!("/api/v1/jobs/{later}"), &[], b"").await;
    let (_, gone) = event(&mut events).await;
    assert_eq!(gone, format!("{{\"id\":\"{later}\"}}"));
}

async fn exchange(address: std::net::SocketAddr, request: &[u8]) -> String {
    use tokio::io::AsyncReadExt;
    let mut stream = TcpStream::connect(address).await.expect("connects");
    stream.write_all(request).await.expect("sends");
    let mut text = String::new();
    stream.read_to_string(&mut text).await.expect("reads");
    text
}

/// Returns the next event: its id and its data.
async fn event(lines: &mut tokio::io::Lines<BufReader<TcpStream>>) -> (u64, String) {
    let (mut id, mut data) = (0, String::new());
    loop {
        let line =
            tokio::time::timeout(LONG, lines.next_line()).await.expect("in time").expect("reads").expect("goes on");
        if let Some(text) = line.strip_prefix("id: ") {
            id = text.parse().expect("a number");
        } else if let Some(text) = line.strip_prefix("data: ") {
            data = text.to_owned();
        } else if line.is_empty() && !data.is_empty() {
            return (id, data);
        }
    }
}

async fn listen(site: &Site, headers: &[(&str, &str)]) -> tokio::io::Lines<BufReader<TcpStream>> {
    let mut stream = TcpStream::connect(site.address).await.expect("connects");
    let request = site.request("GET", "/api/v1/events?queue=news", headers, b"");
    stream.write_all(&request).await.expect("sends");
    BufReader::new(stream).lines()
}

pub async fn events_resume_after_the_last_event_id(site: Site) {
    site.push("news").await;
    site.push("other").await;
    let mut events = listen(&site, &[]).await;
    let (first, data) = event(&mut events).await;
    let queue: Value = serde_json::from_str(&data).expect("JSON");
    assert_eq!((&queue["queue"], &queue["ready"]), (&json!("news"), &json!(1)), "{data}");
    site.push("news").await;
    let (second, data) = event(&mut events).await;
    assert!(second > first && data.contains("\"ready\":2"), "{data}");
    let mut again = listen(&site, &[("Last-Event-ID", &first.to_string())]).await;
    assert_eq!(event(&mut again).await.0, second, "what was missed comes first");
}

/// Returns the next event of a stream of ends: its name, its id and its data.
async fn end_event(lines: &mut tokio::io::Lines<BufReader<TcpStream>>) -> (String, String, Value) {
    let (mut name, mut id) = (String::new(), String::new());
    loop {
        let line =
            tokio::time::timeout(LONG, lines.next_line()).await.expect("in time").expect("reads").expect("goes on");
        match line.split_once(": ") {
            Some(("event", text)) => name = text.to_owned(),
            Some(("id", text)) => id = text.to_owned(),
            Some(("data", text)) => return (name, id, serde_json::from_str(text).expect("JSON")),
            _ => {}
        }
    }
}

async fn listen_to_ends(site: &Site, query: &str, headers: &[(&str, &str)]) -> tokio::io::Lines<BufReader<TcpStream>> {
    let mut stream = TcpStream::connect(site.address).await.expect("connects");
    let request = site.request("GET", &format!("/api/v1/events/jobs?{query}"), headers, b"");
    stream.write_all(&request).await.expect("sends");
    let mut lines = BufReader::new(stream).lines();
    // The listener exists once the response has begun.
    let status = lines.next_line().await.expect("reads").expect("a status");
    assert!(status.contains(" 200 "), "{status}");
    lines
}

pub async fn ends_of_jobs_are_sent_once_and_again_after_the_last_event_id(site: Site) {
    let mut all = listen_to_ends(&site, "", &[]).await;
    let mut other = listen_to_ends(&site, "queue=other&kind=work", &[]).await;
    let (first, second) = (site.push("mail").await, site.push("other").await);
    for id in [&first, &second] {
        assert_eq!(site.post(&format!("/api/v1/jobs/{id}/cancel"), json!({})).await.status, 200);
    }
    let (name, number, job) = end_event(&mut all).await;
    assert_eq!((&*name, &job["id"], &job["state"]), ("cancelled", &json!(first), &json!("cancelled")), "{job}");
    assert_eq!((&job["queue"], &job["kind"], &job["attempts"]), (&json!("mail"), &json!("work"), &json!(0)), "{job}");
    assert_eq!(end_event(&mut all).await.2["id"], json!(second));
    assert_eq!(end_event(&mut other).await.2["id"], json!(second), "the filter");

    let mut again = listen_to_ends(&site, "", &[("Last-Event-ID", &number)]).await;
    assert_eq!(end_event(&mut again).await.2["id"], json!(second), "what was missed");
    let third = site.push("mail").await;
    site.post(&format!("/api/v1/jobs/{third}/cancel"), json!({})).await;
    for stream in [&mut again, &mut all] {
        assert_eq!(end_event(stream).await.2["id"], json!(third), "nothing comes twice");
    }
    for (query, headers, pointer) in [("", &[("Last-Event-ID", "7")][..], "Last-Event-ID"), ("id=7", &[], "id")] {
        let wrong = site.send("GET", &format!("/api/v1/events/jobs?{query}"), headers, b"").await;
        assert_eq!((wrong.status, wrong.pointer().as_str()), (422, pointer), "{}", wrong.text());
    }
}

pub async fn administrative_requests_are_audited_and_routine_ones_are_not(site: Site) {
    let id = site.push("mail").await;
    site.post(&format!("/api/v1/jobs/{id}/retry"), json!({})).await;
    site.post("/api/v1/queues/mail/pause", json!({})).await;
    let entries = site.get("/api/v1/audit").await.json();
    let what: Vec<&str> =
        entries["entries"].as_array().expect("entries").iter().filter_map(|e| e["action"].as_str()).collect();
    assert_eq!(what, ["queues.pause", "jobs.retry"], "newest first, and no push");
    let mut pause = entries["entries"][0].clone();
    ["at", "at_ms", "number"].iter().for_each(|field| drop(pause[*field].take()));
    assert_eq!(
        pause,
        json!({"actor": "local", "action": "queues.pause", "target": "mail", "outcome": "done", "address": "127.0.0.1",
            "at": null, "at_ms": null, "number": null})
    );
    assert_eq!(entries["entries"][1]["target"], json!(id));
    assert_eq!(
        site.duly.jobs().get(id.parse().expect("an id")).await.expect("reads").expect("there").state,
        State::Ready
    );
}

pub async fn push_waits_for_the_end_of_the_job(mut site: Site) {
    let stop = duly::CancellationToken::new();
    let double = |ctx: duly::Ctx| async move { Ok::<_, duly::Error>(duly::JobResult(ctx.args::<u32>()? * 2)) };
    let worker = tokio::spawn(site.duly.worker().on_kind("double", double).run_until(stop.clone()));
    site.be(duly::admin::Role::Pusher).await;
    let ended = site.post("/api/v1/jobs?wait=30s", json!({"kind": "double", "args": 21})).await;
    assert_eq!(ended.status, 200, "{}", ended.text());
    let job = &ended.json()["job"];
    assert_eq!((&job["state"], &job["result"], &job["args"]), (&json!("done"), &json!(42), &json!(21)), "{job}");

    let headers = [("Content-Type", "application/json"), ("Prefer", "wait=30"), ("Idempotency-Key", "once")];
    for pushed in ["new", "existing"] {
        let again = site.send("POST", "/api/v1/jobs", &headers, br#"{"kind": "double", "args": 4}"#).await;
        let view = again.json();
        assert_eq!((again.status, &view["pushed"]), (200, &json!(pushed)), "{view}");
        assert_eq!((&view["job"]["result"], &view["job"]["id"]), (&json!(8), &view["id"]), "{view}");
    }

    let waiting = site.post("/api/v1/jobs?wait=1ms", json!({"kind": "double", "queue": "idle", "args": 1})).await;
    let view = waiting.json();
    assert_eq!((waiting.status, &view["job"]["state"]), (202, &json!("ready")), "{view}");
    assert_eq!(waiting.header("location"), Some(&*format!("/api/v1/jobs/{}", view["id"].as_str().expect("an id"))));
    let other = json!({"kind": "double", "id": view["id"], "queue": "idle", "args": 1});
    site.be(duly::admin::Role::Pusher).await;
    let view = site.post("/api/v1/jobs?wait=1ms", other).await.json();
    assert!(view["job"]["args"].is_null(), "the job of another client: {view}");
    let wrong = site.post("/api/v1/jobs?wait=soon", json!({"kind": "double"})).await;
    assert_eq!((wrong.status, wrong.pointer().as_str()), (422, "wait"), "{}", wrong.text());
    stop.cancel();
    worker.await.expect("no panic").expect("ends well");
}
