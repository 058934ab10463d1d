//! The binary with the real Sidekiq. `./check interop` installs the prerequisites.

use std::process::Command;

use serde_json::{Value, json};
use test_support::servers::{Binary, Fsync, Options, Server};

use crate::sandbox::Sandbox;

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
