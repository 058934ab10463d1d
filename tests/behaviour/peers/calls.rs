//! Calls between nodes: recipients, replies, errors and timeouts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use duly::call::CallContext;
use duly::store::{Notification, PeerInfo, PeerStore, Recipient, Store};
use duly::{Duly, Error, NodeId};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::peers::location::*;

/// A node with the method `who`, which returns its id.
async fn node_with_who(location: &Location) -> (Duly, NodeId) {
    let duly = location.open().await;
    let node = duly.node_id().expect("is one");
    duly.on_call("who", move |_: Value, _| async move { Ok::<_, Error>(node) }).await.expect("registers");
    (duly, node)
}

pub async fn call_reaches_exactly_one_node(location: Location) {
    let (nodes, caller) = ([location.open().await, location.open().await], location.open().await);
    let ids = nodes.each_ref().map(|duly| duly.node_id().expect("is one"));
    let ran = Arc::new(AtomicU32::new(0));
    for (duly, id) in nodes.iter().zip(ids) {
        let ran = ran.clone();
        let who = move |_: Value, _: CallContext| {
            ran.fetch_add(1, Ordering::SeqCst);
            async move { Ok::<_, Error>(id) }
        };
        duly.on_call("who", who).await.expect("registers");
    }
    for _ in 0..20 {
        let who: NodeId = in_time(caller.call("who", &()).reply()).await.expect("one node replies");
        assert!(ids.contains(&who));
    }
    // Messages are ordered, so any other call would have arrived before this reply.
    for id in ids {
        in_time(caller.call("duly.ping", &()).node(id).reply::<Value>()).await.expect("replies");
    }
    assert_eq!(ran.load(Ordering::SeqCst), 20, "one node per call, not all");
}

/// Most nodes with the method have just died.
pub async fn call_finds_the_live_node_among_dead_ones(location: Location) {
    let (duly, node) = node_with_who(&location).await;
    let store = duly.store();
    for _ in 0..40 {
        // It is announced but has no subscription.
        let dead = PeerInfo { methods: vec!["who".into()], ..PeerInfo::new(NodeId::fresh(), TIMEOUT) };
        store.announce(&dead).await.expect("announces");
    }
    for _ in 0..10 {
        let who: NodeId = in_time(duly.call("who", &()).reply()).await.expect("one node is alive");
        assert_eq!(who, node);
    }
}

pub async fn call_without_a_serving_node_fails_at_once(location: Location) {
    let duly = location.open().await;
    let began = Instant::now();
    let refused = duly.call("nothing", &()).timeout(TIMEOUT).reply::<Value>().await.expect_err("no node has it");
    assert_eq!(refused.code(), "not_found");
    let node = duly.call("who", &()).node(NodeId::fresh()).timeout(TIMEOUT).reply::<Value>().await;
    assert_eq!(node.expect_err("no such node").code(), "not_found");
    let connection = duly.call("who", &()).connection("nowhere").timeout(TIMEOUT).reply::<Value>().await;
    assert_eq!(connection.expect_err("no such connection").code(), "not_found");
    assert!(began.elapsed() < 5 * SECOND);
}

pub async fn call_to_all_ends_when_every_node_has_replied(location: Location) {
    let nodes = [node_with_who(&location).await, node_with_who(&location).await, node_with_who(&location).await];
    let began = Instant::now();
    let replies = nodes[0].0.call("who", &()).all().timeout(TIMEOUT).replies::<NodeId>().await.expect("is sent");
    let replies = in_time(replies.collect()).await;
    assert!(began.elapsed() < TIMEOUT, "the call does not wait for its timeout");
    assert_eq!(replies.len(), location.nodes(3));
    for reply in replies {
        assert_eq!(reply.node, Some(reply.result.expect("a value")));
    }
}

pub async fn call_by_id_reaches_that_node(location: Location) {
    let nodes = [node_with_who(&location).await, node_with_who(&location).await];
    for (_, node) in &nodes {
        let who: NodeId = in_time(nodes[0].0.call("who", &()).node(*node).reply()).await.expect("is there");
        assert_eq!(who, *node);
    }
}

pub async fn call_by_connection_reaches_its_node(location: Location) {
    let (one, two) = (location.open().await, location.open().await);
    let held = two.hold_connection("browser 7").await.expect("is held");
    two.on_call("echo_connection", |text: String, context: CallContext| async move {
        Ok::<_, Error>((text, context.connection))
    })
    .await
    .expect("registers");
    let reply: (String, Option<String>) =
        in_time(one.call("echo_connection", &"hi").connection("browser 7").reply()).await.expect("is found");
    assert_eq!(reply, ("hi".to_owned(), Some("browser 7".to_owned())));
    assert_eq!(two.hold_connection("browser 7").await.expect_err("once is enough").code(), "conflict");
    drop(held);
    until("the connection is gone", async || {
        one.call("echo_connection", &"hi").connection("browser 7").reply::<Value>().await.is_err()
    })
    .await;
}

/// The last change counts, however fast a connection is dropped and held again.
pub async fn connection_held_again_is_found(location: Location) {
    let duly = location.open().await;
    let (store, node) = (duly.store(), duly.node_id().expect("is one"));
    for _ in 0..200 {
        let held = duly.hold_connection("browser 7").await.expect("is free");
        drop(held);
        let again = duly.hold_connection("browser 7").await.expect("is free again");
        // The background work of the drop is done before this reply.
        in_time(duly.call("duly.ping", &()).node(node).reply::<Value>()).await.expect("replies");
        assert_eq!(store.connection_holder("browser 7").await.expect("reads"), Some(node));
        drop(again);
    }
    until("the connection is removed", async || store.connection_holder("browser 7").await.expect("reads").is_none())
        .await;
}

pub async fn args_and_replies_keep_types_and_order(location: Location) {
    let duly = location.open().await;
    duly.on_call("echo", |args: Box<RawValue>, _| async move { Ok::<_, Error>(args) }).await.expect("registers");
    for text in [
        "null",
        "-1",
        "0.1",
        "123456789012345678901234567890",
        "[3,1,2,null,-0,[],{}]",
        r#"{"b":1,"a":[{"x":null}],"constructor":1,"__proto__":2}"#,
        "\"\\u0000 \u{1F600} \u{fffd}\"",
        "[1e400]",
    ] {
        let args = RawValue::from_string(text.to_owned()).expect("JSON");
        let back: Box<RawValue> = in_time(duly.call("echo", &args).reply()).await.expect("comes back");
        assert_eq!(back.get(), text);
    }
}

pub async fn failing_missing_and_panicking_methods_return_errors_at_once(location: Location) {
    let (duly, node) = node_with_who(&location).await;
    duly.on_call("fail", |_: Value, _| async { Err::<(), _>("out of ink") }).await.expect("registers");
    duly.on_call("panic", |_: Value, _| async { if true { panic!("oh no") } else { Ok::<(), Error>(()) } })
        .await
        .expect("registers");
    duly.on_call("number", |n: u8, _| async move { Ok::<_, Error>(n) }).await.expect("registers");
    let caller = location.open().await;
    let began = Instant::now();
    let call = |method: &str| caller.call(method, &json!({})).node(node).timeout(TIMEOUT).reply::<Value>();
    let failed = call("fail").await.expect_err("fails");
    assert!(matches!(&failed, Error::Remote { reason, .. } if reason == "out of ink"), "{failed}");
    let panicked = call("panic").await.expect_err("panics");
    assert!(matches!(&panicked, Error::Remote { reason, .. } if reason.contains("oh no")), "{panicked}");
    assert_eq!(call("missing").await.expect_err("is missing").code(), "not_found");
    assert!(call("number").await.expect_err("not a number").to_string().contains("decode"));
    assert!(began.elapsed() < 5 * SECOND);
    let who: NodeId = in_time(caller.call("who", &()).node(node).reply()).await.expect("lives");
    assert_eq!(who, node);
}

pub async fn slow_method_times_out(location: Location) {
    let duly = location.open().await;
    duly.on_call("slow", |ms: u64, _| async move {
        tokio::time::sleep(Duration::from_millis(ms)).await;
        Ok::<_, Error>(ms)
    })
    .await
    .expect("registers");
    let began = Instant::now();
    let late = duly.call("slow", &60_000).timeout(200 * MS).reply::<u64>().await.expect_err("too slow");
    assert_eq!(late.code(), "timeout");
    assert!(began.elapsed() >= 200 * MS && began.elapsed() < 3 * SECOND);
    let replies = duly.call("slow", &60_000).all().timeout(200 * MS).replies::<u64>().await.expect("is sent");
    let replies = in_time(replies.collect()).await;
    assert!(!replies.is_empty() && replies.iter().all(|r| r.result.as_ref().is_err_and(|e| e.code() == "timeout")));
    assert_eq!(in_time(duly.call("slow", &1).reply::<u64>()).await.expect("goes on"), 1);
}

/// A peer that replies only when the test calls `send`.
struct ManualPeer {
    store: Arc<dyn Store>,
    node: NodeId,
    inbox: tokio::sync::mpsc::Receiver<Notification>,
}

impl ManualPeer {
    async fn announce(store: Arc<dyn Store>) -> Self {
        let node = NodeId::fresh();
        let inbox = store.subscribe_messages(node, true).await.expect("subscribes");
        let info = PeerInfo { methods: vec!["slow".into()], ..PeerInfo::new(node, TIMEOUT) };
        store.announce(&info).await.expect("announces");
        ManualPeer { store, node, inbox }
    }

    /// Receives the next call. Returns the caller and the reply, which is not sent yet.
    async fn reply(&mut self) -> (NodeId, Vec<u8>) {
        const HEADER_BYTES: usize = 1 + 8 + 32;
        let Some(Notification::Message(frame)) = in_time(self.inbox.recv()).await else { panic!("a call") };
        let (head, body) = frame.split_at(HEADER_BYTES);
        let call: Value = serde_json::from_slice(body).expect("JSON");
        let reply = json!({"id": call["id"], "from": self.node, "to": call["from"], "body": {"value": 1}});
        let caller = call["from"].as_str().expect("a node").parse().expect("an id");
        (caller, [head, reply.to_string().as_bytes()].concat())
    }

    async fn send(&self, (to, reply): &(NodeId, Vec<u8>)) {
        assert_eq!(self.store.send(Recipient::Node(*to), reply).await.expect("is sent"), 1);
    }
}

pub async fn late_and_duplicate_replies_are_dropped_and_counted(location: Location) {
    let (duly, mut peer) = (location.open().await, ManualPeer::announce(location.open().await.store()).await);
    let node = duly.node_id().expect("is one");
    let counts = async || {
        let stats: Value = in_time(duly.call("duly.stats", &()).node(node).reply()).await.expect("replies");
        ["late_replies", "duplicate_replies"].map(|name| stats["calls"][name].as_u64().expect("a count"))
    };
    assert_eq!(counts().await, [0, 0]);
    let timed_out = duly.call("slow", &()).node(peer.node).timeout(200 * MS).reply::<u64>().await;
    assert_eq!(timed_out.expect_err("no reply").code(), "timeout");
    let late = peer.reply().await;
    peer.send(&late).await;
    until("the late reply is counted", async || counts().await == [1, 0]).await;

    let mut replies = duly.call("slow", &()).all().timeout(TIMEOUT).replies::<u64>().await.expect("is sent");
    let reply = peer.reply().await;
    for _ in 0..2 {
        peer.send(&reply).await;
    }
    until("the second reply is counted", async || counts().await == [1, 1]).await;
    let mut values = Vec::new();
    while let Some(reply) = in_time(replies.next()).await {
        values.extend(reply.result.ok().map(|value| (reply.node, value)));
    }
    assert_eq!(values, [(Some(peer.node), 1)], "once");
    drop(replies);
    peer.send(&reply).await;
    until("the next late reply is counted", async || counts().await == [2, 1]).await;
}

pub async fn send_does_not_wait_for_replies(location: Location) {
    let (one, two) = (location.open().await, location.open().await);
    let (sender, mut received) = tokio::sync::mpsc::unbounded_channel();
    for duly in [&one, &two] {
        let sender = sender.clone();
        duly.on_call("count", move |n: u32, _| {
            let sent = sender.send(n).is_ok();
            async move { Ok::<_, Error>(sent) }
        })
        .await
        .expect("registers");
    }
    let nodes = location.nodes(2);
    assert_eq!(one.call("count", &7).all().send().await.expect("is sent"), nodes as u64);
    for _ in 0..nodes {
        assert_eq!(in_time(received.recv()).await, Some(7));
    }
}

pub async fn reply_in_the_same_tick_is_not_missed(location: Location) {
    let duly = location.open().await;
    duly.on_call("echo", |n: u32, _| std::future::ready(Ok::<_, Error>(n))).await.expect("registers");
    for n in 0..300 {
        let back: u32 = in_time(duly.call("echo", &n).reply()).await.expect("replies");
        assert_eq!(back, n);
    }
}

pub async fn busy_method_returns_busy(location: Location) {
    let duly = location.open().await;
    let (sender, mut begun) = tokio::sync::mpsc::unbounded_channel();
    let release = Arc::new(tokio::sync::Notify::new());
    let notify = release.clone();
    let slow = move |_: Value, _: CallContext| {
        let (release, _) = (release.clone(), sender.send(()));
        async move {
            release.notified().await;
            Ok::<_, Error>(())
        }
    };
    duly.on_call("slow", slow).concurrency(1).await.expect("registers");
    let first = tokio::spawn(duly.call("slow", &()).timeout(TIMEOUT).reply::<()>());
    in_time(begun.recv()).await.expect("has begun");
    let refused = in_time(duly.call("slow", &()).timeout(TIMEOUT).reply::<()>()).await.expect_err("is busy");
    assert!(matches!(&refused, Error::Remote { reason, .. } if reason.starts_with("busy")), "{refused}");
    notify.notify_one();
    in_time(first).await.expect("no panic").expect("ends well");
}

pub async fn method_limits_rate_and_size(location: Location) {
    let duly = location.open().await;
    let ok = |_: Value, _: CallContext| async { Ok::<_, Error>(()) };
    duly.on_call("limited", ok).rate(2, Duration::from_secs(3600)).await.expect("registers");
    duly.on_call("small", ok).args_bytes_max(10).await.expect("registers");
    let call = |method: &str, args: &str| duly.call(method, &args).reply::<()>();
    for _ in 0..2 {
        in_time(call("limited", "")).await.expect("is within the rate");
    }
    assert_eq!(in_time(call("limited", "")).await.expect_err("too often").code(), "remote");
    in_time(call("small", "12345678")).await.expect("fits");
    assert_eq!(in_time(call("small", "123456789")).await.expect_err("is too long").code(), "remote");
    assert_eq!(duly.on_call("none", ok).concurrency(0).await.expect_err("is useless").code(), "invalid");
}

pub async fn only_registered_methods_run(location: Location) {
    let (duly, node) = node_with_who(&location).await;
    for method in ["constructor", "__proto__", "toString", "who.who", "duly.", "duly.nothing", "std::process::exit"] {
        let refused = duly.call(method, &()).node(node).reply::<Value>().await.expect_err("is none");
        assert_eq!(refused.code(), "not_found", "{method}");
    }
    assert_eq!(duly.call("a b", &()).reply::<Value>().await.expect_err("no name").code(), "invalid");
    let reserved = duly.on_call("duly.ping", |_: Value, _| async { Ok::<_, Error>(()) }).await;
    assert_eq!(reserved.expect_err("is reserved").code(), "invalid");
    assert!(duly.remove_method("who").await.expect("stops"));
    assert_eq!(duly.call("who", &()).node(node).reply::<Value>().await.expect_err("no more").code(), "not_found");
    assert!(!duly.remove_method("who").await.expect("replies"));
}

pub async fn every_node_replies_to_ping_and_stats(location: Location) {
    let (duly, node) = node_with_who(&location).await;
    let ping: Value = in_time(duly.call("duly.ping", &()).node(node).reply()).await.expect("replies");
    assert_eq!(ping["node"], json!(node));
    let stats: Value = in_time(duly.call("duly.stats", &()).node(node).reply()).await.expect("replies");
    assert_eq!(stats["methods"], json!(["who"]));
    assert_eq!(stats["pid"], json!(std::process::id()));
}

pub async fn message_too_long_is_rejected(location: Location) {
    let duly = location.open().await;
    duly.on_call("long", |n: usize, _| async move { Ok::<_, Error>("x".repeat(n)) }).await.expect("registers");
    let args = "x".repeat(duly::bounds::MESSAGE_BYTES_MAX);
    assert_eq!(duly.call("long", &args).reply::<Value>().await.expect_err("too long").code(), "invalid");
    let reply = in_time(duly.call("long", &duly::bounds::MESSAGE_BYTES_MAX).reply::<String>()).await;
    assert_eq!(reply.expect_err("the reply is too long").code(), "remote");
    let most: String = in_time(duly.call("long", &(200 * 1024)).reply()).await.expect("fits");
    assert_eq!(most.len(), 200 * 1024);
}

pub async fn message_without_the_cluster_key_is_rejected(location: Location) {
    if location.is_memory() {
        return;
    }
    let key = "a secret that only the nodes share";
    let open = async |keys: &[&str]| {
        let builder = keys.iter().fold(location.builder(), |builder, key| builder.cluster_key(*key));
        builder.open().await.expect("opens")
    };
    let next = "the next secret after a rotation";
    // During a rotation, all nodes accept the next key before any node signs with it.
    let (inside, between, rotated, outsider) =
        (open(&[key]).await, open(&[key, next]).await, open(&[next, key]).await, open(&[]).await);
    let ran = Arc::new(AtomicU32::new(0));
    for duly in [&inside, &between, &rotated] {
        let count = ran.clone();
        let run = move |_: Value, _: CallContext| {
            count.fetch_add(1, Ordering::SeqCst);
            async { Ok::<_, Error>(()) }
        };
        duly.on_call("run", run).await.expect("registers");
    }
    for duly in [&inside, &between, &rotated] {
        let node = duly.node_id().expect("is one");
        let refused = outsider.call("run", &()).node(node).timeout(300 * MS).reply::<()>().await;
        assert_eq!(refused.expect_err("is dropped").code(), "timeout");
    }
    assert_eq!(ran.load(Ordering::SeqCst), 0);
    for (from, to) in
        [(&inside, &inside), (&inside, &between), (&between, &inside), (&between, &rotated), (&rotated, &between)]
    {
        let node = to.node_id().expect("is one");
        in_time(from.call("run", &()).node(node).timeout(TIMEOUT).reply::<()>()).await.expect("has the key");
    }
    assert_eq!(ran.load(Ordering::SeqCst), 5);
    let node = inside.node_id().expect("is one");
    let dropped = rotated.call("run", &()).node(node).timeout(300 * MS).reply::<()>().await;
    assert_eq!(dropped.expect_err("it does not have the next key yet").code(), "timeout");
    assert_eq!(ran.load(Ordering::SeqCst), 5);
    assert_eq!(location.builder().cluster_key("short").open().await.expect_err("too short").code(), "invalid");
}

pub async fn flood_of_malformed_messages_does_no_harm(location: Location) {
    let (duly, node) = node_with_who(&location).await;
    let store = duly.store();
    for n in 0..2_000u32 {
        let frame: Vec<u8> = match n % 4 {
            0 => n.to_le_bytes().repeat(10),
            1 => [b"1".to_vec(), vec![0; 40], b"{\"id\":".to_vec()].concat(),
            2 => Vec::new(),
            _ => [b"1".to_vec(), vec![0; 40], format!("[{n}]").into_bytes()].concat(),
        };
        store.send(Recipient::Node(node), &frame).await.expect("is sent");
    }
    until("the node replies", async || {
        duly.call("who", &()).node(node).timeout(SECOND).reply::<NodeId>().await.is_ok_and(|who| who == node)
    })
    .await;
    let stats: Value = in_time(duly.call("duly.stats", &()).node(node).reply()).await.expect("replies");
    assert!(stats["calls"]["malformed"].as_u64().expect("a count") > 0, "{stats}");
}

/// A method that never yields cannot be aborted: it occupies its slot until it returns.
pub async fn abandoned_call_keeps_its_slot_while_it_runs(location: Location) {
    let (duly, caller) = (location.open().await, location.open().await);
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let wait = Arc::new(std::sync::Mutex::new(wait));
    let started = Arc::new(AtomicBool::new(false));
    let is_started = started.clone();
    let block = move |_: Value, _: CallContext| {
        let wait = wait.clone();
        started.store(true, Ordering::SeqCst);
        async move {
            let _ = tokio::task::block_in_place(|| wait.lock().expect("not poisoned").recv_timeout(TIMEOUT));
            Ok::<_, Error>(())
        }
    };
    duly.on_call("block", block).concurrency(1).await.expect("registers");
    let call = |timeout| caller.call("block", &()).timeout(timeout).reply::<()>();
    // On a busy machine, the first call may expire before the method starts.
    until("the method runs", async || {
        call(100 * MS).await.expect_err("blocks");
        is_started.load(Ordering::SeqCst)
    })
    .await;
    let busy = in_time(call(TIMEOUT)).await.expect_err("the first still runs");
    assert!(matches!(&busy, Error::Remote { reason, .. } if reason.starts_with("busy")), "{busy}");
    drop(go);
    until("the method has a free slot", async || call(TIMEOUT).await.is_ok()).await;
}

/// The store may still list a connection that its node has dropped.
pub async fn dropped_connection_is_not_found(location: Location) {
    let (duly, node) = node_with_who(&location).await;
    duly.store().set_connections(node, &["ghost".to_owned()], &[]).await.expect("reads");
    let error = in_time(duly.call("who", &()).connection("ghost").reply::<Value>()).await.expect_err("is gone");
    assert_eq!(error.code(), "not_found");
    assert!(error.to_string().contains("ghost"), "{error}");
}
