//! Connections that are opened and closed, and the effect on requests.

use std::time::Duration;

use duly::Push;
use duly::store::Node;
use duly::store::{Claim, JobStore, ScanStore};

use crate::helpers::{open, own_prefix};
use test_support::servers::{Binary, Options, Proxy};

/// Maximum number of tries of a request that succeeds once the client has noticed a closed connection.
const TRIES: usize = 50;

/// `CLIENT LIST` shows the role and the process of each connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_have_names() {
    let server = Options::durable(Binary::Redis).start();
    let duly = open(server.url()).await;
    duly.push(Push::new("mail", "{}")).await.expect("pushes");
    duly.store().heartbeat(&Node::fresh(vec!["default".into()])).await.expect("sends a heartbeat");
    let list = server.send_command(&["CLIENT", "LIST"]).text();
    for role in ["client", "heartbeat"] {
        let is_named = list.split_whitespace().any(|field| {
            field.starts_with(&format!("name=duly-{role}:")) && field.ends_with(&format!(":{}", std::process::id()))
        });
        assert!(is_named, "{role}: {list}");
    }
}

/// A user without the right to set a name can connect.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn user_without_client_setname_can_connect() {
    let users = "user default on nopass ~* &* +@all\nuser app on >secret ~* &* +@all -client";
    let server = Options::durable(Binary::Redis).users(users).start();
    let duly = open(server.url().replacen("redis://", "redis://app:secret@", 1)).await;
    duly.push(Push::new("mail", "{}")).await.expect("pushes");
    assert!(!server.send_command(&["CLIENT", "LIST"]).text().contains("name=duly-"));
}

/// No request was pending, so no outcome is unknown: the request is sent on a new connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_after_a_closed_connection_uses_another() {
    let server = Options::durable(Binary::Redis).start();
    let proxy = Proxy::start(server.port());
    let duly = open(format!("redis://{}", proxy.address())).await;
    let (store, node) = (duly.store(), Node::fresh(vec!["default".into()]));
    let claim = || Claim::new("default", 1);
    let request_all = async || {
        let (heartbeat, claimed) =
            (store.heartbeat(&node).await.map(drop), store.claim(node.id, claim()).await.map(drop));
        [heartbeat, claimed, duly.queues().pause("default").await.map(drop)]
    };
    let mut has_succeeded = [false; 3];
    for _ in 0..TRIES {
        // Once to have a connection for each, and again in case one of them had been closed.
        let _ = request_all().await;
        request_all().await.into_iter().for_each(|result| result.expect("is connected"));
        proxy.cut();
        // Time to notice. If it is too short, there is another try.
        tokio::time::sleep(Duration::from_millis(20)).await;
        for (has_succeeded, result) in has_succeeded.iter_mut().zip(request_all().await) {
            *has_succeeded |= result.is_ok();
        }
        if has_succeeded == [true; 3] {
            return;
        }
    }
    panic!("heartbeat, claim and pause never all succeed: {has_succeeded:?}");
}

/// Each runtime has its own connections, and a scan uses only those of its runtime.
#[tokio::test]
async fn scan_continues_while_another_runtime_connects() {
    let duly = open(own_prefix(&test_support::servers::redis().url())).await;
    let jobs = duly.push_all((0..1_000).map(|n| Push::new("mail", n.to_string()))).await.expect("pushes").len();
    let (mut cursor, mut scanned) = (None, 0);
    loop {
        let page = duly.store().scan("default", cursor.as_deref()).await.expect("continues");
        scanned += page.jobs.len();
        let other_handle = duly.clone();
        let request = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("starts");
            runtime.block_on(async { other_handle.queues().counts().await.expect("counts") });
        };
        tokio::task::spawn_blocking(request).await.expect("no panic");
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    assert!(scanned >= jobs, "{scanned} of {jobs}");
}
