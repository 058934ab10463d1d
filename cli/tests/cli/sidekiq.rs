//! The binary with the real Sidekiq. `./check interop` installs the prerequisites.

use std::process::{Command, Stdio};

use serde_json::{Value, json};
use test_support::servers::{Binary, Fsync, Options, Server};

use crate::sandbox::{Background, Sandbox, until};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/interop/sidekiq/sidekiq.rb");

fn server() -> Server {
    Options::new(Binary::Redis).aof(Fsync::No).start()
}

/// Runs Ruby code in the real Sidekiq on this server and returns its value.
fn ruby(server: &Server, code: &str) -> Value {
    let mut command = Command::new("ruby");
    command.args([SCRIPT, code]).env("REDIS_URL", server.url());
    let output = command.output().expect("ruby starts; apt-get install ruby-sidekiq");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let value: Option<Value> = out.lines().last().and_then(|line| serde_json::from_str(line).ok());
    value.unwrap_or_else(|| panic!("{code}\n{out}\n{err}"))[0].clone()
}

/// Returns Sidekiq's counts of ready, scheduled, retrying and dead jobs.
fn stats(server: &Server) -> Value {
    ruby(server, "Sidekiq::Stats.new.then { |s| [s.enqueued, s.scheduled_size, s.retry_size, s.dead_size] }")
}

#[test]
#[ignore = "needs Sidekiq: ./check interop"]
fn sidekiq_jobs_move_into_a_file_and_back() {
    let (sandbox, server) = (Sandbox::new(), server());
    let store = server.url().replacen("redis", "sidekiq", 1);
    ruby(&server, "1500.times { |n| Echo.perform_async(n) }; Echo.set(queue: 'post').perform_in(3600, 'later')");
    ruby(&server, "Ask.bury(3)");
    let before = ruby(&server, "Ask.queue.map { |entry| JSON.parse(entry)['jid'] }.sort");
    let moved = sandbox.run(&["move", "--from", &store, "--to", "new.db", "--json"]).ok().json();
    assert_eq!(moved["moved"], 1504, "{moved}");
    assert_eq!(stats(&server), json!([0, 0, 0, 0]), "nothing is left");
    let page = sandbox.run(&["jobs", "ls", "--store", "new.db", "--queue", "post", "--json"]).ok().json();
    let job = &page["jobs"][0];
    assert_eq!((&job["kind"], &job["args"], &job["state"]), (&json!("Echo"), &json!(["later"]), &json!("scheduled")));
    let again = sandbox.run(&["move", "--from", &store, "--to", "new.db"]).ok();
    assert!(again.err.contains("moved 0 jobs"), "{again:?}");

    let back = sandbox.run(&["move", "--from", "new.db", "--to", &store, "--json"]).ok().json();
    assert_eq!(back["moved"], 1504, "{back}");
    assert_eq!(stats(&server), json!([1500, 1, 0, 3]));
    let after = ruby(&server, "Ask.queue.map { |entry| JSON.parse(entry)['jid'] }.sort");
    assert_eq!(after, before, "each under the name that Ruby gave it");
}

#[test]
#[ignore = "needs Sidekiq: ./check interop"]
fn sidekiq_jobs_move_to_another_server() {
    let (sandbox, old, new) = (Sandbox::new(), server(), server());
    ruby(&old, "30.times { |n| Echo.perform_async(n) }");
    let (from, to) = (old.url().replacen("redis", "sidekiq", 1), new.url());
    let ran = sandbox.run(&["move", "--from", &from, "--to", &to]).ok();
    assert!(ran.err.contains("moved 30 jobs"), "{ran:?}");
    let queues = sandbox.run(&["queues", "ls", "--store", &to, "--json"]).ok();
    assert!(queues.out.contains("\"ready\":30") || queues.out.contains("\"ready\": 30"), "{queues:?}");
    assert_eq!(stats(&old), json!([0, 0, 0, 0]));
}

#[test]
#[ignore = "needs Sidekiq: ./check interop"]
fn live_sidekiq_processes_refuse_a_move_without_force() {
    let (sandbox, server) = (Sandbox::new(), server());
    let store = server.url().replacen("redis", "sidekiq", 1);
    ruby(&server, "Echo.set(queue: 'post').perform_async(1)");
    // The record that a process of Sidekiq 6.4 writes.
    server.send_command(&["SADD", "processes", "host:7:abcdef"]);
    server.send_command(&["HSET", "host:7:abcdef", "info", r#"{"hostname":"host","pid":7,"queues":["post"]}"#]);
    sandbox.run(&["move", "--from", &store, "--to", "new.db"]).failed(4, "host:7:abcdef");
    let moved = sandbox.run(&["move", "--from", &store, "--to", "new.db", "--force"]).ok();
    assert!(moved.err.contains("moved 1 jobs"), "{moved:?}");
}

/// Sidekiq's usual server keeps nothing on its disk.
#[test]
#[ignore = "needs servers: ./check interop"]
fn sidekiq_without_append_only_file_is_opened_and_workers_warn() {
    let (sandbox, server) = (Sandbox::new(), Options::new(Binary::Redis).start());
    let store = server.url().replacen("redis", "sidekiq", 1);
    server.send_command(&["SADD", "queues", "default"]);
    server.send_command(&["LPUSH", "queue:default", r#"{"class":"Echo","args":[1],"jid":"0123456789abcdef01234567"}"#]);
    let work = |options: &str| {
        let store = format!("{store}{options}");
        sandbox.run(&["work", "--store", &store, "--exec", "true", "--kind", "Other", "--until-empty"])
    };
    assert!(sandbox.run(&["queues", "ls", "--store", &store]).ok().out.contains("default"));
    let warned = work("").ok();
    assert!(warned.err.contains("JOBS MAY BE LOST"), "{warned:?}");
    assert_eq!(server.send_command(&["LLEN", "queue:default"]).text(), "1", "the class Echo is left to Ruby");
    let accepted = work("?allow_data_loss=true").ok();
    assert!(!accepted.err.contains("JOBS MAY BE LOST"), "{accepted:?}");
    work("?allow_data_loss=false").failed(5, "appendonly");
}

#[test]
#[ignore = "needs servers: ./check interop"]
fn foreign_job_of_class_command_runs_no_program() {
    let (sandbox, server) = (Sandbox::new(), server());
    let store = server.url().replacen("redis", "sidekiq", 1);
    let target = sandbox.path("made").display().to_string();
    let entry = format!(r#"{{"class":"command","args":[["touch","{target}"],null],"jid":"0123456789abcdef01234567"}}"#);
    server.send_command(&["LPUSH", "queue:default", &entry]);
    let work = |options: &[&str]| sandbox.run(&[&["work", "--store", &store, "--until-empty"], options].concat());
    work(&[]).failed(2, "--commands");
    work(&["--exec", "cat"]).ok();
    let waiting = server.send_command(&["ZCARD", "schedule"]).text();
    assert_eq!(waiting, "1", "left to others");
    sandbox.run(&["jobs", "retry", "--store", &store, "--yes", "state:scheduled"]).ok();
    work(&["--commands"]).ok();
    assert_eq!(server.send_command(&["ZCARD", "dead"]).text(), "1", "its args are no command");
    assert!(!sandbox.path("made").exists());
    // A command that duly pushed has an object, and runs.
    sandbox.run(&["push", "--store", &store, "--", "touch", &target]).ok();
    work(&["--commands"]).ok();
    assert!(sandbox.path("made").exists());
}

/// Returns the URL of duly's store on this server, with a short lease.
fn store(server: &Server) -> String {
    format!("{}?lease=600ms", server.url().replacen("redis", "sidekiq", 1))
}

fn queue_len(server: &Server) -> usize {
    server.send_command(&["LLEN", "queue:default"]).text().parse().expect("a number")
}

/// Returns the jids of the queue, the next one to run first.
fn jids(server: &Server) -> Value {
    ruby(server, "Ask.queue.reverse.map { |entry| JSON.parse(entry)['jid'] }")
}

/// Starts a worker whose jobs do not end, and waits until it holds the whole queue.
fn hold_queue(sandbox: &Sandbox, server: &Server, options: &[&str]) -> Background {
    let store = store(server);
    let args = ["work", "--store", &store, "--kind", "Echo", "--exec", "sleep"];
    let worker = sandbox.start(&[&args[..], options, &["--", "60"]].concat());
    until("the worker holds the jobs", || queue_len(server) == 0);
    worker
}

#[test]
#[ignore = "needs Sidekiq: ./check interop"]
fn kind_option_leaves_other_classes_to_ruby() {
    let (sandbox, server) = (Sandbox::new(), server());
    let jid = ruby(&server, "RubyOnly.perform_async(1); Echo.perform_async(2)");
    ruby(&server, "RubyOnly.perform_async(3)");
    let args = ["work", "--store", &store(&server), "--until-empty", "--kind", "Echo", "--exec", "sh"];
    sandbox.run(&[&args[..], &["--", "-c", "echo $DULY_JID >>jids"]].concat()).ok();
    let classes = ruby(&server, "Ask.queue.map { |entry| JSON.parse(entry)['class'] }");
    assert_eq!(classes, json!(["RubyOnly", "RubyOnly"]));
    assert_eq!(json!(sandbox.read("jids").trim()), jid, "the program gets the jid of Ruby");
}

#[test]
#[ignore = "needs Sidekiq: ./check interop"]
fn jobs_of_the_only_worker_return_by_the_shown_command() {
    let (sandbox, server) = (Sandbox::new(), server());
    let jid = ruby(&server, "3.times.map { |n| Echo.perform_async(n) }.last");
    let before = jids(&server);
    drop(hold_queue(&sandbox, &server, &[]));
    let store = store(&server);
    let doctor = || sandbox.run(&["doctor", "--store", &store]).out;
    until("the worker counts as dead", || doctor().contains("held by dead duly workers"));
    let shown = doctor();
    assert!(shown.contains("3 jobs of default are held by dead duly workers, and Ruby does not see them"), "{shown}");
    let command = shown.split("such as: duly ").nth(1).and_then(|rest| rest.lines().next()).expect("a command");
    let why = sandbox.run(&["jobs", "why", "--store", &store, jid.as_str().expect("a jid")]).ok();
    assert!(why.out.contains(&format!("to do so: duly {command}")), "{why:?}");

    let words: Vec<&str> = command.split_whitespace().collect();
    sandbox.run(&[&words[..], &["--store", &store]].concat()).ok();
    assert_eq!(jids(&server), before, "in their order");
    assert!(!doctor().contains("dead duly workers"), "{}", doctor());
    let mut sidekiq = Command::new("ruby");
    // It ends with its standard input.
    sidekiq.args([SCRIPT, "work", "default"]).env("REDIS_URL", server.url()).stdin(Stdio::piped());
    let _sidekiq = test_support::KillOnDrop(sidekiq.spawn().expect("ruby starts"));
    until("Ruby runs them", || server.send_command(&["LLEN", "ran"]).text() == "3");
}

#[test]
#[ignore = "needs Sidekiq: ./check interop"]
fn stopped_worker_gives_every_job_back() {
    let (sandbox, server) = (Sandbox::new(), server());
    ruby(&server, "8.times { |n| Echo.perform_async(n) }");
    let sorted = |server: &Server| {
        let mut jids: Vec<String> = serde_json::from_value(jids(server)).expect("texts");
        jids.sort();
        jids
    };
    let before = sorted(&server);
    let worker = hold_queue(&sandbox, &server, &["--grace", "100ms", "--concurrency", "8"]);
    worker.signal(rustix::process::Signal::TERM);
    let ended = worker.wait();
    assert!(ended.err.contains("8 released") || ended.out.contains("8 released"), "{ended:?}");
    assert_eq!(sorted(&server), before);
}

#[test]
#[ignore = "needs Sidekiq: ./check interop"]
fn every_command_accepts_a_jid() {
    let (sandbox, server) = (Sandbox::new(), server());
    let jid = ruby(&server, "Echo.perform_in(3600, 1)");
    let (store, jid) = (store(&server), jid.as_str().expect("a jid"));
    let jobs = |verb: &[&str]| sandbox.run(&[&["jobs"], verb, &["--store", &store]].concat());
    assert_eq!(jobs(&["get", jid, "--json"]).ok().json()["state"], "scheduled");
    assert!(jobs(&["why", jid]).ok().out.contains("due later"));
    jobs(&["rm", "--yes", jid]).ok();
    jobs(&["watch", jid]).failed(3, "not found");
}

#[test]
#[ignore = "needs servers: ./check interop"]
fn lock_of_actionhero_has_no_known_start() {
    let (sandbox, server) = (Sandbox::new(), server());
    server.send_command(&["SET", "actionhero:lock:deploy", "node-7", "PX", "60000"]);
    let store = server.url().replacen("redis", "actionhero", 1);
    let listed = sandbox.run(&["lock", "ls", "--store", &store, "-o", "json"]).ok();
    assert!(listed.json()["locks"][0]["since"].is_null(), "{listed:?}");
    assert!(sandbox.run(&["lock", "ls", "--store", &store]).ok().out.contains("unknown"));
}
