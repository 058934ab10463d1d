//! Event streams: their number per client is limited, they end with the credential, and missed events are sent again.

use std::collections::BTreeSet;

use duly::admin::Role;
use duly::{Outcome, Push};
use serde_json::Value;
use test_support::until;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::api::support::{LONG, Site};

const EVENTS: &str = "/api/v1/events";

/// Opens a stream. Returns the status, and a reader after the head.
async fn open(site: &Site, path: &str, headers: &[(&str, &str)]) -> (u16, BufReader<TcpStream>) {
    let mut stream = TcpStream::connect(site.address).await.expect("connects");
    let headers = [&[("Accept", "text/event-stream")], headers].concat();
    stream.write_all(&site.request("GET", path, &headers, b"")).await.expect("sends");
    let mut stream = BufReader::new(stream);
    let mut status = None;
    loop {
        let mut line = String::new();
        tokio::time::timeout(LONG, stream.read_line(&mut line)).await.expect("in time").expect("reads");
        status = status.or_else(|| line.split(' ').nth(1).and_then(|status| status.parse().ok()));
        if line.trim().is_empty() {
            return (status.unwrap_or_default(), stream);
        }
    }
}

/// Returns the next event: its id, if it has one, and its data. Keep-alive lines do not extend the timeout.
async fn event(stream: &mut BufReader<TcpStream>) -> (Option<u64>, Value) {
    tokio::time::timeout(LONG, read_event(stream)).await.expect("in time")
}

async fn read_event(stream: &mut BufReader<TcpStream>) -> (Option<u64>, Value) {
    let (mut id, mut data) = (None, None);
    loop {
        let mut line = String::new();
        let read = stream.read_line(&mut line).await.expect("reads");
        assert!(read > 0, "the stream goes on");
        let line = line.trim();
        if let Some(text) = line.strip_prefix("id: ") {
            id = text.parse().ok();
        } else if let Some(text) = line.strip_prefix("data: ") {
            data = serde_json::from_str(text).ok();
        } else if line.is_empty()
            && let Some(data) = data.take()
        {
            return (id, data);
        }
    }
}

/// Returns the rest of the stream.
async fn rest(stream: &mut BufReader<TcpStream>) -> String {
    let mut text = String::new();
    tokio::time::timeout(LONG, stream.read_to_string(&mut text)).await.expect("it ends").expect("reads");
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_per_client_are_limited() {
    let mut site = Site::with(|server| server.connections(64)).await;
    site.be(Role::Operator).await;
    let other = site.token().to_owned();
    let id = site.push("mail").await;
    site.be(Role::Viewer).await;
    let mut streams = Vec::new();
    for no in 0..8 {
        let path = if no % 2 == 0 { EVENTS } else { &format!("/api/v1/jobs/{id}/wait") };
        let (status, stream) = open(&site, path, &[]).await;
        assert_eq!(status, 200, "an eighth of them");
        streams.push(stream);
    }
    for path in [EVENTS.to_owned(), format!("/api/v1/jobs/{id}/wait")] {
        let refused = site.send("GET", &path, &[("Accept", "text/event-stream")], b"").await;
        assert_eq!((refused.status, refused.code().as_str()), (429, "too_many"), "{}", refused.text());
        assert!(refused.text().contains("close one"), "{}", refused.text());
    }
    assert_eq!(site.get("/api/v1/stats").await.status, 200, "all else goes on");
    drop(streams.pop());
    until("one that was closed makes room", async || open(&site, EVENTS, &[]).await.0 == 200).await;
    site.be_nobody();
    let other = format!("Bearer {other}");
    assert_eq!(open(&site, EVENTS, &[("Authorization", &other)]).await.0, 200, "others have their own");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_ends_with_its_credential() {
    let site = Site::in_memory().await;
    let (status, mut local) = open(&site, EVENTS, &[]).await;
    assert_eq!(status, 200, "without any token this machine gets in");
    let viewer = site.duly.tokens().create("viewer", Role::Viewer, None).await.expect("made");
    let viewer = format!("Bearer {}", viewer.as_str());
    let admin = site.duly.tokens().create("admin", Role::Admin, None).await.expect("made");
    let (body, admin) = (format!("token={}", admin.as_str()), format!("Bearer {}", admin.as_str()));
    assert_eq!(site.send("GET", "/api/v1/stats", &[("Authorization", &admin)], b"").await.status, 200, "seen at once");
    let id = site.duly.push(Push::new("work", "{}").queue("first")).await.expect("pushed").id();
    assert!(!rest(&mut local).await.contains("first"), "not any more");
    let form = [("Content-Type", "application/x-www-form-urlencoded")];
    let signed_in = site.send("POST", "/login", &form, body.as_bytes()).await;
    let cookie = signed_in.header("set-cookie").and_then(|cookie| cookie.split(';').next()).expect("a cookie");

    let (_, mut by_token) = open(&site, EVENTS, &[("Authorization", &viewer)]).await;
    let (_, mut wait) = open(&site, &format!("/api/v1/jobs/{id}/wait"), &[("Authorization", &viewer)]).await;
    assert_eq!(event(&mut wait).await.1["state"], "ready", "as it is now");
    let (_, mut by_session) = open(&site, EVENTS, &[("Cookie", cookie)]).await;
    let (_, mut stays) = open(&site, EVENTS, &[("Authorization", &admin)]).await;
    let gone = site.send("DELETE", "/api/v1/tokens/viewer", &[("Authorization", &admin)], b"").await;
    assert_eq!(gone.status, 204);
    assert_eq!(site.send("POST", "/logout", &[("Cookie", cookie)], b"").await.status, 303);

    site.duly.push(Push::new("work", "{}").queue("later")).await.expect("pushed");
    let worker = site.duly.worker().queue("first", 1).on_any_kind(async |_| Outcome::Ack).drain();
    tokio::time::timeout(LONG, worker).await.expect("in time").expect("works");
    for stream in [&mut by_token, &mut by_session, &mut wait] {
        let text = rest(stream).await;
        assert!(!text.contains("later") && !text.contains("\"done\""), "nothing more is told: {text}");
    }
    while event(&mut stays).await.1["queue"] != "later" {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_of_many_queues_are_all_delivered() {
    const QUEUES: usize = 600;
    let site = Site::in_memory().await;
    let name = |no: usize| format!("q{no}");
    site.duly.push_all((0..QUEUES).map(|no| Push::new("work", "{}").queue(name(no)))).await.expect("pushed");
    let (_, mut stream) = open(&site, EVENTS, &[]).await;
    let mut heard = BTreeSet::new();
    while heard.len() < QUEUES {
        let (_, data) = event(&mut stream).await;
        data["queue"].as_str().map(|queue| heard.insert(queue.to_owned()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reconnect_after_restart_gets_a_snapshot() {
    let site = Site::in_memory().await;
    site.push("mail").await;
    site.push("news").await;
    let (_, mut stream) = open(&site, EVENTS, &[]).await;
    let mut newest = 0;
    let mut heard = BTreeSet::new();
    while heard.len() < 2 {
        let (id, data) = event(&mut stream).await;
        newest = id.unwrap_or(newest);
        data["queue"].as_str().map(|queue| heard.insert(queue.to_owned()));
    }
    for elsewhere in [7, newest + 1_000] {
        let (_, mut again) = open(&site, EVENTS, &[("Last-Event-ID", &elsewhere.to_string())]).await;
        let mut received = BTreeSet::new();
        while received.len() < 2 {
            let (_, data) = event(&mut again).await;
            data["queue"].as_str().map(|queue| received.insert(queue.to_owned()));
        }
        assert_eq!(received, heard, "after {elsewhere}");
    }
}
