//! `duly call`: calls of methods on other nodes, and the key that signs messages.

use std::time::Duration;

use duly::Duly;
use duly::call::CallContext;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::sandbox::{Background, RunOutput, Sandbox, until};

const KEY: &str = "0123456789abcdef0123456789abcdef-one";
const NEW_KEY: &str = "0123456789abcdef0123456789abcdef-two";

/// A node with methods of its own.
struct Service {
    runtime: Runtime,
    duly: Duly,
}

impl Service {
    fn start(sandbox: &Sandbox) -> Service {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads");
        let duly = runtime.block_on(async {
            let duly = Duly::open(sandbox.path("duly.db").to_str().expect("text")).await.expect("opens");
            let echo = |args: Box<serde_json::value::RawValue>, _: CallContext| async move { Ok::<_, String>(args) };
            duly.on_call("echo", echo).await.expect("registered");
            duly.on_call("fail", |(): (), _: CallContext| async { Err::<(), _>("no disk\u{1b}") })
                .await
                .expect("registered");
            let sleep = |(): (), _: CallContext| async {
                tokio::time::sleep(Duration::from_secs(60)).await;
                Ok::<_, String>(())
            };
            duly.on_call("sleep", sleep).await.expect("registered");
            duly
        });
        Service { runtime, duly }
    }

    fn id(&self) -> String {
        self.runtime.block_on(async { self.duly.node_id().expect("a node").to_string() })
    }
}

/// Starts a worker and waits until it replies to calls.
pub(crate) fn worker(sandbox: &Sandbox, key: Option<&str>) -> Background {
    let command = |args: &[&str]| {
        let mut command = sandbox.command(args);
        command.envs(key.map(|key| ("DULY_CLUSTER_KEY", key)));
        command
    };
    let count_replies = || {
        let pinged =
            RunOutput::from(command(&["call", "duly.ping", "--all", "-o", "ndjson"]).output().expect("it runs"));
        pinged.out.lines().count()
    };
    let before = count_replies();
    let worker = Sandbox::start_command(command(&["work"]));
    until("the worker replies", || count_replies() > before);
    worker
}

/// Returns the ids of live nodes.
pub(crate) fn alive(sandbox: &Sandbox) -> Vec<String> {
    let nodes = sandbox.run(&["nodes", "ls", "--json"]);
    let nodes: Value = serde_json::from_str(&nodes.out).unwrap_or_default();
    let alive = nodes["nodes"].as_array().into_iter().flatten().filter(|node| node["alive"] == true);
    alive.map(|node| node["id"].as_str().expect("text").to_owned()).collect()
}

#[test]
fn call_reaches_one_node_or_all() {
    let sandbox = Sandbox::new();
    let _both = [worker(&sandbox, None), worker(&sandbox, None)];
    let nodes = alive(&sandbox);
    let any = sandbox.run(&["call", "duly.ping"]).ok().json();
    assert!(nodes.contains(&any["node"].as_str().expect("text").to_owned()), "{any}");
    for part in [&nodes[1][..], &nodes[1][28..]] {
        let one = sandbox.run(&["call", "duly.ping", "--node", part]).ok().json();
        assert_eq!(one["node"], nodes[1].as_str());
    }
    let table = sandbox.run(&["call", "duly.ping", "--all"]).ok().out;
    assert!(table.starts_with("NODE ") && table.lines().count() == 3, "only those two: {table}");
    let all = sandbox.run(&["call", "duly.ping", "--all", "--json"]).ok().json();
    let mut replied: Vec<&str> =
        all["replies"].as_array().expect("a list").iter().filter_map(|one| one["node"].as_str()).collect();
    replied.sort_unstable();
    let mut nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
    nodes.sort_unstable();
    assert_eq!(replied, nodes);
    assert_eq!(all["replies"][0]["value"]["version"], env!("CARGO_PKG_VERSION"));
    let lines = sandbox.run(&["call", "duly.ping", "--all", "-o", "ndjson"]).ok().out;
    assert!(lines.lines().all(|line| serde_json::from_str::<Value>(line).is_ok_and(|one| one["error"].is_null())));
    let sent = sandbox.run(&["call", "duly.ping", "--no-reply", "--json"]).ok().json();
    assert_eq!(sent, json!({"sent": 1}));
}

#[test]
fn calls_that_may_change_something_are_recorded() {
    let sandbox = Sandbox::new();
    let worker = worker(&sandbox, None);
    let service = Service::start(&sandbox);
    sandbox.run(&["call", "duly.jobs", "--all"]).ok();
    let quiet = r#"{"on":true}"#;
    sandbox.run(&["call", "duly.quiet", quiet, "--all"]).ok();
    sandbox.run(&["call", "fail"]).failed(1, "no disk");
    sandbox.run(&["call", "missing"]).failed(3, "no node has the method");
    let service_id = service.id();
    let node = alive(&sandbox).into_iter().find(|id| *id != service_id).expect("the worker");
    sandbox.run(&["call", "duly.stop", "--node", &node]).ok();
    worker.wait().ok();
    let query = "SELECT action, target, outcome FROM duly_audit ORDER BY number";
    let rows = sandbox.run(&["sql", query, "--json"]).ok().json();
    let entry = |target: &str| json!({"action": "calls.run", "target": target, "outcome": "done"});
    let stop = entry(&format!("duly.stop on node {node}"));
    assert_eq!(rows, json!([entry("duly.quiet on all nodes"), entry("fail on any node"), stop]));
}

#[test]
fn call_keeps_args_and_values_unchanged() {
    let sandbox = Sandbox::new();
    let service = Service::start(&sandbox);
    let value = r#"{"big":123456789012345678901234567890,"less":-1,"none":null,"in":[1.0,"ä"]}"#;
    assert_eq!(sandbox.run(&["call", "echo", value]).ok().out.trim(), value);
    assert_eq!(sandbox.run(&["call", "echo"]).ok().out, "null\n");
    sandbox.write("args", "[1,\n2]");
    let mut command = sandbox.command(&["call", "echo", "-", "--node", &service.id()]);
    command.stdin(std::fs::File::open(sandbox.path("args")).expect("a file"));
    assert_eq!(RunOutput::from(command.output().expect("it runs")).ok().json(), json!([1, 2]));
    let listed = sandbox.run(&["nodes", "ls"]).ok().out;
    assert!(listed.lines().next().is_some_and(|head| head.ends_with("METHODS")), "{listed}");
    assert!(listed.contains("echo fail sleep"), "{listed}");
}

#[test]
fn call_errors_have_exit_codes() {
    let sandbox = Sandbox::new();
    sandbox.run(&["call", "duly.ping"]).failed(5, "push a job first");
    sandbox.push(&["mail"]);
    sandbox.run(&["call", "duly.ping"]).failed(3, "no node has the method duly.ping");
    sandbox.run(&["call", "echo", "--all"]).failed(3, "no node has the method echo");
    let service = Service::start(&sandbox);
    let _worker = worker(&sandbox, None);
    sandbox.run(&["call", "fail"]).failed(1, "no disk\\u{1b}");
    sandbox.run(&["call", "missing"]).failed(3, "no node has the method missing");
    sandbox.run(&["call", "missing", "--node", &service.id()]).failed(3, "does not have the method");
    sandbox.run(&["call", "duly.missing"]).failed(3, "does not have the method");
    sandbox.run(&["call", "echo", "--connection", "browser-7"]).failed(3, "no node holds the connection browser-7");
    sandbox
        .run(&["call", "sleep", "--timeout", "100ms"])
        .failed(124, "timed out after 100ms waiting for a reply to sleep; the method may have run");
    // The worker lacks the method, which is not a failure.
    let all = sandbox.run(&["call", "echo", "7", "--all", "--json"]).ok();
    assert_eq!(all.json(), json!({"replies": [{"node": service.id(), "value": 7}]}));
    assert!(all.err.contains("1 more node does not have the method echo"), "{all:?}");
    let failed = sandbox.run(&["call", "fail", "--all", "--json"]).failed(1, "fail has failed on 1 of 1").json();
    assert_eq!(failed["replies"][0]["code"], "remote");
    let timed_out =
        sandbox.run(&["call", "sleep", "--all", "--timeout", "100ms", "-o", "ndjson"]).failed(124, "1 of 1").json();
    assert_eq!(timed_out["code"], "timeout");
    sandbox.run(&["call", "duly.quiet", "{\"x\":1}"]).failed(1, "expected {\"on\"");
}

#[test]
fn call_by_connection_reaches_its_node() {
    let sandbox = Sandbox::new();
    let (service, _other) = (Service::start(&sandbox), Service::start(&sandbox));
    let _held = service.runtime.block_on(service.duly.hold_connection("browser-7")).expect("held");
    let ping = sandbox.run(&["call", "duly.ping", "--connection", "browser-7"]).ok().json();
    assert_eq!(ping["node"], service.id().as_str());
}

#[test]
fn invalid_input_is_rejected() {
    let sandbox = Sandbox::new();
    sandbox.push(&["mail"]);
    sandbox.run(&["call"]).failed(2, "METHOD");
    sandbox.run(&["call", "a b"]).failed(2, "only letters");
    sandbox.run(&["call", "echo", "{\"a\": 1,}"]).failed(2, "line 1 column 9");
    sandbox.run(&["call", "echo", "--any", "--all"]).failed(2, "cannot be used with");
    sandbox.run(&["call", "echo", "--timeout", "0"]).failed(2, "timeout");
    sandbox.run(&["call", "echo", "--node", "abc"]).failed(2, "4 or more characters");
    sandbox.run(&["call", "echo", "--node", "not-hex"]).failed(2, "4 or more characters");
    sandbox.run(&["call", "echo", "--node", "abcd"]).failed(3, "no node that lives");
    sandbox.run(&["call", "echo", "--node", "0192f7a1-0000-7000-8000-000000000000"]).failed(3, "does not exist");
}

fn with_key(sandbox: &Sandbox, key: &str, args: &[&str]) -> RunOutput {
    sandbox.command(args).env("DULY_CLUSTER_KEY", key).output().expect("it runs").into()
}

#[test]
fn call_without_the_cluster_key_is_rejected() {
    let sandbox = Sandbox::new();
    let _worker = worker(&sandbox, Some(KEY));
    let ping = ["call", "duly.ping", "--timeout", "500ms"];
    with_key(&sandbox, KEY, &ping).ok();
    sandbox.run(&ping).failed(124, "DULY_CLUSTER_KEY");
    with_key(&sandbox, NEW_KEY, &ping).failed(124, "DULY_CLUSTER_KEY");
    with_key(&sandbox, &format!("{KEY},{NEW_KEY}"), &ping).ok();
    with_key(&sandbox, &format!("{NEW_KEY},{KEY}"), &ping).failed(124, "DULY_CLUSTER_KEY");
    sandbox.write("duly.toml", &format!("cluster_key = '{KEY}'"));
    sandbox.run(&ping).ok();
    sandbox.write("duly.toml", &format!("cluster_key = ['{KEY}', '{NEW_KEY}']"));
    sandbox.run(&ping).ok();
    with_key(&sandbox, NEW_KEY, &ping).failed(124, "DULY_CLUSTER_KEY");
}

#[test]
fn weak_cluster_key_is_rejected() {
    let sandbox = Sandbox::new();
    for args in [&["push", "mail"][..], &["lock", "a", "--", "true"], &["call", "duly.ping"], &["queues", "pause", "a"]]
    {
        sandbox.push(&["mail"]);
        with_key(&sandbox, "short", args).failed(2, "DULY_CLUSTER_KEY: key 1 has 5 bytes");
    }
    let ran = with_key(&sandbox, &format!("{KEY},secret"), &["push", "mail"]).failed(2, "DULY_CLUSTER_KEY: key 2");
    assert!(!ran.err.contains("secret"), "{ran:?}");
    sandbox.write("duly.toml", "cluster_key = 'short'");
    sandbox.run(&["push", "mail"]).failed(2, "cluster_key in duly.toml");
    with_key(&sandbox, KEY, &["push", "mail"]).ok();
}
