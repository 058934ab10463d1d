//! `duly --server URL`: the verbs that work through a `duly serve`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;

use serde_json::json;

use crate::bed::{Bed, Ran};

/// A server on a free port, killed with the value, and its URL.
struct Serving {
    child: std::process::Child,
    url: String,
}

impl Serving {
    fn start(bed: &Bed, options: &[&str]) -> Serving {
        let mut command = bed.command(&[&["serve", "--listen", "127.0.0.1:0"], options].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the binary starts");
        let mut url = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut url).expect("its URL");
        Serving { child, url: url.trim().to_owned() }
    }

    /// The whole answer to a request.
    fn put(&self, path: &str, body: &str) -> String {
        let host = self.url.trim_start_matches("http://").trim_end_matches('/');
        let mut stream = TcpStream::connect(host).expect("it listens");
        let json = format!("Content-Type: application/json\r\nContent-Length: {}", body.len());
        write!(stream, "PUT {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{json}\r\n\r\n{body}")
            .expect("is read");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("answers");
        answer
    }

    fn run(&self, bed: &Bed, args: &[&str]) -> Ran {
        bed.run(&[&["--server", &self.url], args].concat())
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_command_is_pushed_as_one_or_refused() {
    let bed = Bed::new();
    let open = Serving::start(&bed, &["--allow-commands"]);
    let id = open.run(&bed, &["push", "--", "echo", r#"{"a":1}"#]).ok().id();
    let job = bed.job(&id);
    assert_eq!((&job["kind"], &job["args"]["argv"]), (&json!("command"), &json!(["echo", r#"{"a":1}"#])));
    let id = open.run(&bed, &["push", "mail", r#"{"a":1}"#]).ok().id();
    assert_eq!((&bed.job(&id)["kind"], &bed.job(&id)["args"]), (&json!("mail"), &json!({"a": 1})));
    let shut = Serving::start(&bed, &[]);
    shut.run(&bed, &["push", "--", "true"]).failed(1, "--allow-commands");
    shut.run(&bed, &["push", "mail", "--", "true"]).failed(2, "cannot be used with");
    shut.run(&bed, &["push"]).failed(2, "KIND");
    assert_eq!(bed.run(&["jobs", "ls", "--json"]).ok().json()["jobs"].as_array().expect("a list").len(), 2);
}

/// Whoever took it lives elsewhere, and was told how long it lasts.
#[test]
fn a_lock_taken_over_http_outlives_a_server_that_is_killed() {
    let bed = Bed::new();
    let server = Serving::start(&bed, &[]);
    let answer = server.put("/api/v1/locks/deploy", r#"{"ttl_ms":60000}"#);
    assert!(answer.starts_with("HTTP/1.1 2"), "{answer}");
    drop(server);
    bed.run(&["lock", "deploy", "--no-wait", "--", "true"]).failed(4, "is held");
}

#[test]
fn a_list_says_where_to_go_on() {
    let bed = Bed::new();
    let server = Serving::start(&bed, &[]);
    for _ in 0..3 {
        server.run(&bed, &["push", "mail", r#"{"to":"ada lovelace"}"#]).ok();
    }
    let ran = server.run(&bed, &["jobs", "ls", "--limit", "2", "args.to:ada lovelace"]).ok();
    assert_eq!(ran.out.lines().count(), 3, "{ran:?}");
    let cursor = ran.err.trim().strip_prefix("there may be more: --cursor ").expect("a cursor").to_owned();
    let ran = server.run(&bed, &["jobs", "ls", "--limit", "2", "--cursor", &cursor, "args.to:ada lovelace"]).ok();
    assert_eq!((ran.out.lines().count(), ran.err.as_str()), (2, ""), "{ran:?}");
}

#[test]
fn what_is_wrong_is_told_as_with_a_store() {
    let bed = Bed::new();
    let server = Serving::start(&bed, &[]);
    for verb in [&["nodes", "ls"][..], &["lock", "ls"], &["doctor"], &["jobs", "watch"], &["queues", "limit", "a"]] {
        server.run(&bed, verb).failed(2, "it needs the store itself: --store");
    }
    server.run(&bed, &["bogus"]).failed(2, "unrecognized subcommand");
    let ran = server.run(&bed, &["jobs", "ls", "kind:a", "stat:dead"]).failed(2, "is nothing to look for");
    assert!(ran.err.contains("\n  kind:a stat:dead\n         ^\n"), "{ran:?}");
    server.run(&bed, &["jobs", "rm"]).failed(2, "<IDS>");
    let there = server.run(&bed, &["push", "mail"]).ok().out.trim().to_owned();
    let none = "01890000-0000-7000-8000-000000000000";
    server.run(&bed, &["jobs", "rm", none, &there]).failed(3, none);
    server.run(&bed, &["jobs", "get", &there]).failed(3, &there);
    let url = server.url.clone();
    drop(server);
    let secret = url.replacen("://", "://ada:secret@", 1);
    let ran = bed.run(&["--server", &secret, "jobs", "ls"]).failed(5, "is `duly serve` running there");
    assert!(!ran.err.contains("secret"), "{ran:?}");
    let ran = bed.run(&["--server", &url, "push", "mail"]).failed(5, "is `duly serve` running there");
    assert!(ran.err.contains("refused") && ran.err.contains("--id ") && !ran.err.contains("io:"), "{ran:?}");
}

#[test]
fn stats_are_a_table() {
    let bed = Bed::new();
    let server = Serving::start(&bed, &[]);
    server.run(&bed, &["push", "mail"]).ok();
    let table = server.run(&bed, &["stats"]).ok().out;
    assert!(
        table.starts_with("QUEUE ") && table.lines().nth(1).is_some_and(|row| row.starts_with("default  1 ")),
        "{table}"
    );
    let told = server.run(&bed, &["stats", "--minutes", "9", "--json"]).ok().json();
    assert_eq!((&told[0]["queue"], &told[0]["pushed"], &told[0]["minutes"]), (&json!("default"), &json!(1), &json!(9)));
    assert_eq!(server.run(&bed, &["stats", "--queue", "none", "--json"]).ok().json(), json!([]));
}
