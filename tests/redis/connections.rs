//! Connections that come and go: what that changes for those who use them, and what it does not.

use std::time::Duration;

use duly::store::Claim;
use duly::{Node, Push};

use crate::helpers::{apart, durable, open};
use test_support::servers::{Binary, Proxy};

/// How often something is tried that goes well once a client has noticed that its connection is gone.
const TRIES: usize = 50;

/// Whoever looks at the server sees what each connection is for, and whose it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_have_names() {
    let server = durable(Binary::Redis).start();
    let duly = open(server.url()).await;
    duly.push(Push::new("mail", "{}")).await.expect("pushes");
    duly.store().heartbeat(&Node::fresh(vec!["default".into()])).await.expect("beats");
    let list = server.ask(&["CLIENT", "LIST"]).text();
    for way in ["door", "beat"] {
        let named = list.split_whitespace().any(|field| {
            field.starts_with(&format!("name=duly-{way}:")) && field.ends_with(&format!(":{}", std::process::id()))
        });
        assert!(named, "{way}: {list}");
    }
}

/// Whoever may not have a name works without one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn user_without_client_setname_can_connect() {
    let users = "user default on nopass ~* &* +@all\nuser app on >secret ~* &* +@all -client";
    let server = durable(Binary::Redis).users(users).start();
    let duly = open(server.url().replacen("redis://", "redis://app:secret@", 1)).await;
    duly.push(Push::new("mail", "{}")).await.expect("pushes");
    assert!(!server.ask(&["CLIENT", "LIST"]).text().contains("name=duly-"));
}

/// Nobody has asked anything meanwhile, so nothing is in doubt: it is sent on a new connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_after_a_closed_connection_uses_another() {
    let server = durable(Binary::Redis).start();
    let proxy = Proxy::start(server.port());
    let duly = open(format!("redis://{}", proxy.address())).await;
    let (store, node) = (duly.store(), Node::fresh(vec!["default".into()]));
    let claim = || Claim { queue: "default".into(), max: 1, resync: false, suspect: None, kinds: None };
    let all = async || {
        let (beaten, claimed) = (store.heartbeat(&node).await.map(drop), store.claim(node.id, claim()).await.map(drop));
        [beaten, claimed, duly.pause_queue("default").await.map(drop)]
    };
    let mut well = [false; 3];
    for _ in 0..TRIES {
        // Once to have a connection each, and a second time if that was one which had ended.
        let _ = all().await;
        all().await.into_iter().for_each(|asked| asked.expect("is connected"));
        proxy.cut();
        // Time to notice; more than one try, should it be too short.
        tokio::time::sleep(Duration::from_millis(20)).await;
        for (well, asked) in well.iter_mut().zip(all().await) {
            *well |= asked.is_ok();
        }
        if well == [true; 3] {
            return;
        }
    }
    panic!("beat, claim and pause never go well: {well:?}");
}

/// Each runtime has connections of its own, and a scan goes by those of its own runtime alone.
#[tokio::test]
async fn scan_continues_while_another_runtime_connects() {
    let duly = open(apart(&test_support::servers::redis().url())).await;
    let jobs = duly.push_all((0..1_000).map(|n| Push::new("mail", n.to_string()))).await.expect("pushes").len();
    let (mut cursor, mut seen) = (None, 0);
    loop {
        let page = duly.store().scan("default", cursor.as_deref()).await.expect("goes on");
        seen += page.jobs.len();
        let elsewhere = duly.clone();
        let asks = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("starts");
            runtime.block_on(async { elsewhere.counts().await.expect("counts") });
        };
        tokio::task::spawn_blocking(asks).await.expect("no panic");
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    assert!(seen >= jobs, "{seen} of {jobs}");
}
