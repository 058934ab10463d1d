//! Calls between duly and real ActionHero nodes, in both directions and both message formats. No call may crash a node.

use std::time::{Duration, Instant};

use duly::compat::actionhero::{Bridge, BridgeBuilder};
use serde_json::{Value, json};

use crate::actionhero_node::{ActionHero, Generation, TOKEN};
use test_support::servers::{Binary, Options, Server};

const SECOND: Duration = Duration::from_secs(1);

fn server() -> Server {
    Options::new(Binary::Redis).start()
}

fn bridge(server: &Server) -> BridgeBuilder {
    Bridge::builder(server.url().replace("redis://", "actionhero://")).token(TOKEN)
}

/// Returns a method to which only duly responds, and that is safe to call on an ActionHero node.
///
/// ActionHero 12 crashes if it lacks a called method, even as the caller, so its node has this one, which never
/// responds. The newest ActionHero would respond if it had the method, so its node lacks it.
fn duly_method(generation: Generation) -> &'static str {
    match generation {
        Generation::Twelve => "api.test.silent",
        Generation::Newest => "api.duly.echo",
    }
}

async fn assert_calls_from_actionhero_are_answered(generation: Generation) {
    let server = server();
    let node = ActionHero::start(generation, &server, "node-1").await;
    let method = duly_method(generation);
    let echo = async |args: Vec<Value>, _| Ok::<_, std::io::Error>(args.first().cloned().unwrap_or(Value::Null));
    let bridge = bridge(&server).on_call(method, echo).join().await.expect("joins");
    for value in
        [json!("grüße 😀"), json!(3), json!(-1), json!(null), json!({ "user": [1, { "b": 2.5 }] }), json!([1, 2])]
    {
        let got = node.call(method, json!([value, "more"]), None).await;
        assert_eq!(got, json!([value]), "order and types are kept");
    }
    assert_eq!(node.call(method, json!("not a list"), None).await, json!(["not a list"]));
    // The bridge handles calls for a connection only while it holds the connection.
    bridge.hold_connection("browser-7");
    assert_eq!(node.call(method, json!([7]), Some("browser-7")).await, json!([7]));
    assert!(bridge.drop_connection("browser-7"));
    let got = node.call(method, json!([7]), Some("browser-7")).await;
    assert_eq!(got, json!([{ "error": "RPC Timeout" }]), "no node holds the connection");
    assert!(node.0.is_running());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_from_twelve_are_answered() {
    assert_calls_from_actionhero_are_answered(Generation::Twelve).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_from_newest_are_answered() {
    assert_calls_from_actionhero_are_answered(Generation::Newest).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unregistered_methods_do_not_run_and_failing_ones_do_not_answer() {
    let server = server();
    let node = ActionHero::start(Generation::Newest, &server, "node-1").await;
    let fails = async |_: Vec<Value>, _| Err::<(), _>(std::io::Error::other("no"));
    let panics = async |_: Vec<Value>, _| -> Result<(), std::io::Error> { panic!("an intended panic") };
    let typed = async |(a, b): (u32, u32), _| Ok::<_, std::io::Error>(a + b);
    let builder = bridge(&server).on_call("api.duly.fails", fails).on_call("api.duly.panics", panics);
    let bridge = builder.on_call("api.duly.adds", typed).join().await.expect("joins");
    let timeout = json!([{ "error": "RPC Timeout" }]);
    let calls = ["api.duly.fails", "api.duly.panics", "api.duly.none"].map(|method| node.call(method, json!([]), None));
    assert_eq!(futures_util::future::join_all(calls).await, [timeout.clone(), timeout.clone(), timeout]);
    assert_eq!(node.call("api.duly.adds", json!([40, 2]), None).await, json!([42]), "the bridge still works");
    assert!(node.0.is_running());
    drop(bridge);
}

async fn assert_actionhero_methods_are_callable(generation: Generation) {
    let server = server();
    let node = ActionHero::start(generation, &server, "node-1").await;
    let bridge =
        bridge(&server).callable_method("api.test.echo").callable_method("api.test.ran").join().await.expect("joins");
    for value in [json!("grüße 😀"), json!({ "user": [1, { "b": 2.5 }] }), json!(true)] {
        let got: Value = bridge.call("api.test.echo", &json!([value])).first().await.expect("a reply");
        assert_eq!(got, value);
    }
    // A value that is not a list becomes the only element of one.
    assert_eq!(bridge.call("api.test.echo", &"plain").first::<String>().await.expect("a reply"), "plain");
    let number: Value = bridge.call("api.test.echo", &[3]).first().await.expect("a reply");
    match generation {
        // A bug of ActionHero 12: Array.apply(null, [3]) is an array of three holes.
        Generation::Twelve => assert_eq!(number, json!([null, null, null])),
        Generation::Newest => assert_eq!(number, json!(3)),
    }
    assert!(node.0.is_running());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn methods_of_twelve_are_called() {
    assert_actionhero_methods_are_callable(Generation::Twelve).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn methods_of_the_newest_are_called() {
    assert_actionhero_methods_are_callable(Generation::Newest).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_of_both_dialects_answer_calls_to_all_and_by_connection() {
    let server = server();
    let twelve = ActionHero::start(Generation::Twelve, &server, "node-12").await;
    let newest = ActionHero::start(Generation::Newest, &server, "node-29").await;
    let echo = async |args: Vec<Value>, _| Ok::<_, std::io::Error>(args[0].clone());
    let other = bridge(&server).on_call("api.test.echo", echo).join().await.expect("joins");
    let bridge = bridge(&server).callable_method("api.test.echo").join().await.expect("joins");
    let since = Instant::now();
    let replies = bridge.call("api.test.echo", &["hello"]).all::<String>().await.expect("succeeds");
    assert!(since.elapsed() < 4 * SECOND, "must return when all have responded: {:?}", since.elapsed());
    assert_eq!(replies.len(), 3, "two from ActionHero and one from duly: {replies:?}");
    assert!(replies.iter().all(|reply| reply.value == "hello"));
    assert!(replies.iter().any(|reply| reply.from == other.id()));
    for (node, connection) in [(&twelve, "c-12"), (&newest, "c-29")] {
        node.0.request("connect", json!({ "connection": connection })).await;
        let got = bridge.call("api.test.echo", &[connection]).connection(connection).first::<String>().await;
        assert_eq!(got.expect("a reply"), connection);
        let ran = node.0.request("ran", json!({})).await;
        assert!(ran.as_array().expect("a list").iter().any(|args| args[0] == connection), "must run here: {ran}");
    }
    let ran = twelve.0.request("ran", json!({})).await;
    assert!(!ran.to_string().contains("c-29"), "{ran}");
    let since = Instant::now();
    let unheld = bridge.call("api.test.echo", &["x"]).connection("unheld").timeout(SECOND / 2).first::<String>().await;
    assert_eq!(unheld.expect_err("no node holds it").code(), "timeout");
    assert!(since.elapsed() < 5 * SECOND, "waits no longer than its timeout: {:?}", since.elapsed());
    assert_eq!(bridge.call("api.test.echo", &["y"]).forget().await.expect("sent"), 3);
    assert!(twelve.0.is_running() && newest.0.is_running());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_message_can_crash_a_node() {
    let server = server();
    let node = ActionHero::start(Generation::Twelve, &server, "node-1").await;
    let bridge = bridge(&server).callable_method("api.test.echo").join().await.expect("joins");
    for method in ["api.test.missing", "process.exit", "api.test.echo;process.exit(1)", "duly.ping", ""] {
        let error = bridge.call(method, &[1]).first::<Value>().await.expect_err("rejected");
        assert_eq!(error.code(), "invalid", "{method}: {error}");
        assert!(bridge.call(method, &[1]).connection("x").forget().await.is_err());
    }
    let long = "x".repeat(duly::bounds::MESSAGE_BYTES_MAX);
    assert_eq!(bridge.call("api.test.echo", &[long]).forget().await.expect_err("too long").code(), "invalid");
    assert_eq!(bridge.call("api.test.echo", &["here"]).first::<String>().await.expect("a reply"), "here");
    assert!(node.0.is_running());
    let builder = Bridge::builder(server.url().replace("redis://", "actionhero://"));
    assert!(builder.token("x").callable_method("process.exit").join().await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_and_forged_messages_do_no_harm() {
    let server = server();
    let url = format!("{}?channel=apart", server.url().replace("redis://", "actionhero://"));
    let echo = async |args: Vec<Value>, _| Ok::<_, std::io::Error>(args);
    let bridge = Bridge::builder(&url).token(TOKEN).on_call("api.x.echo", echo).join().await.expect("joins");
    let caller = Bridge::builder(&url).token(TOKEN).callable_method("api.x.echo").join().await.expect("joins");
    let message = |fields: Value| {
        let mut message = json!({ "messageType": "do", "serverId": "x", "serverToken": TOKEN, "requestId": "r", "method": "api.x.echo" });
        fields.as_object().into_iter().flatten().for_each(|(name, value)| message[name] = value.clone());
        message.to_string()
    };
    let mut malformed: Vec<Vec<u8>> = ["", "{", "null", "[]", "7", "\"x\"", "{}", "{\"messageType\":\"do\"}"]
        .iter()
        .map(|text| text.as_bytes().to_vec())
        .collect();
    malformed.push(vec![0xff, 0xfe, 0x00]);
    malformed.push(vec![b'['; 100_000]);
    malformed.push(vec![b'x'; 2 * duly::bounds::MESSAGE_BYTES_MAX]);
    for value in [json!(null), json!(7), json!([]), json!({}), json!("x"), json!(true)] {
        for field in
            ["messageType", "serverId", "serverToken", "requestId", "messageId", "method", "connectionId", "args"]
        {
            malformed.push(message(json!({ field: value })).into_bytes());
        }
        malformed.push(message(json!({ "messageType": "doResponse", "response": value })).into_bytes());
    }
    for bytes in &malformed {
        server.send_command(&[b"PUBLISH".as_slice(), b"apart", bytes]);
    }
    let got = caller.call("api.x.echo", &json!([1, "zwei"])).first::<Value>().await.expect("a reply");
    assert_eq!(got, json!([1, "zwei"]));
    let forger =
        Bridge::builder(&url).token("another token").callable_method("api.x.echo").join().await.expect("joins");
    let error = forger.call("api.x.echo", &[1]).timeout(SECOND / 2).first::<Value>().await;
    assert_eq!(error.expect_err("the token is wrong").code(), "timeout");
    assert!(!format!("{bridge:?}{:?}", Bridge::builder(&url).token(TOKEN)).contains(TOKEN), "the token is never shown");
    assert!(Bridge::builder("redis://127.0.0.1").token(TOKEN).join().await.is_err());
    assert!(Bridge::builder(&url).join().await.expect_err("no token").to_string().contains("DULY_ACTIONHERO_TOKEN"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_reply_is_dropped_and_a_lost_connection_is_replaced() {
    let server = server();
    let slow = async |_: Vec<Value>, _| {
        tokio::time::sleep(Duration::from_millis(900)).await;
        Ok::<_, std::io::Error>(1)
    };
    let quick = async |_: Vec<Value>, _| Ok::<_, std::io::Error>(2);
    let _node = bridge(&server).on_call("api.x.slow", slow).on_call("api.x.quick", quick).join().await.expect("joins");
    let caller =
        bridge(&server).callable_method("api.x.slow").callable_method("api.x.quick").join().await.expect("joins");
    let late = caller.call("api.x.slow", &[0]).timeout(Duration::from_millis(400)).first::<u32>().await;
    assert_eq!(late.expect_err("too slow").code(), "timeout");
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert_eq!(caller.call("api.x.quick", &[0]).first::<u32>().await.expect("a reply"), 2);
    server.send_command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    let since = Instant::now();
    while caller.call("api.x.quick", &[0]).timeout(Duration::from_millis(200)).first::<u32>().await.is_err() {
        assert!(since.elapsed() < 10 * SECOND, "the bridge did not reconnect");
    }
}
