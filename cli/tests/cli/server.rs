//! `duly --server URL`: the verbs that work through a `duly serve`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;

use crate::sandbox::{RunOutput, Sandbox};

/// Far longer than any test needs.
const LONG: Duration = Duration::from_secs(60);

/// A server on a free port; dropping it kills the process.
pub(crate) struct ServerProcess {
    child: std::process::Child,
    pub(crate) url: String,
    /// The token of its client.
    pub(crate) token: Option<String>,
    /// The first line of the output after the URL, if there is one.
    sign_in: String,
}

impl ServerProcess {
    pub(crate) fn start(sandbox: &Sandbox, options: &[&str]) -> ServerProcess {
        ServerProcess::start_after(sandbox, "true", options)
    }

    /// As [`ServerProcess::start`], after this command of a shell.
    fn start_after(sandbox: &Sandbox, shell: &str, options: &[&str]) -> ServerProcess {
        let mut command = sandbox.command_after(shell, &[&["serve", "--listen", "127.0.0.1:0"], options].concat());
        ServerProcess::of(&mut command, options)
    }

    fn of(command: &mut Command, options: &[&str]) -> ServerProcess {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the binary starts");
        let (mut url, mut sign_in) = (String::new(), String::new());
        let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
        out.read_line(&mut url).expect("its URL");
        if options.contains(&"--sign-in-link") {
            out.read_line(&mut sign_in).expect("the link");
        }
        ServerProcess { child, url: url.trim().to_owned(), token: None, sign_in }
    }

    fn host(&self) -> &str {
        self.url.trim_start_matches("http://").trim_end_matches('/')
    }

    fn put(&self, path: &str, body: &str) -> String {
        self.send("PUT", path, body)
    }

    /// Sends a request and returns the whole response.
    fn send(&self, method: &str, path: &str, body: &str) -> String {
        let host = self.host();
        let mut stream = TcpStream::connect(host).expect("it listens");
        stream.set_read_timeout(Some(LONG)).expect("set");
        let json = format!("Content-Type: application/json\r\nContent-Length: {}", body.len());
        write!(stream, "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{json}\r\n\r\n{body}")
            .expect("is read");
        let mut response = String::new();
        stream.read_to_string(&mut response).expect("answers");
        response
    }

    pub(crate) fn run(&self, sandbox: &Sandbox, args: &[&str]) -> RunOutput {
        let mut command = sandbox.command(&[&["--server", &self.url], args].concat());
        command.envs(self.token.as_ref().map(|token| ("DULY_TOKEN", token)));
        command.output().expect("the binary starts").into()
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Another server that sends the same response to every request. Its thread ends with the test.
struct Portal {
    url: String,
    /// The first line of each request.
    request_lines: Arc<Mutex<Vec<String>>>,
}

impl Portal {
    fn start(head: &str, body: &str) -> Portal {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let length = body.len();
        let response = format!("HTTP/1.1 {head}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}");
        let request_lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let thread_lines = request_lines.clone();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                let line = read_request(&mut stream);
                thread_lines.lock().expect("not poisoned").push(line);
                let _ = stream.write_all(response.as_bytes());
            }
        });
        Portal { url, request_lines }
    }

    fn run(&self, sandbox: &Sandbox, args: &[&str]) -> RunOutput {
        sandbox.run(&[&["--server", &self.url], args].concat())
    }
}

/// Reads a whole request and returns its first line.
fn read_request(stream: &mut TcpStream) -> String {
    let (mut reader, mut first, mut length) = (BufReader::new(stream), String::new(), 0);
    reader.read_line(&mut first).expect("a request");
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).expect("a header");
        if line.trim().is_empty() {
            break;
        }
        let value = line.to_lowercase().strip_prefix("content-length:").map(str::to_owned);
        length = value.map_or(length, |value| value.trim().parse().expect("a number"));
    }
    reader.read_exact(&mut vec![0; length]).expect("a body");
    first.trim().to_owned()
}

const SOME_ID: &str = "01890000-0000-7000-8000-000000000000";

/// Verbs that must not report false success.
const VERBS: &[&[&str]] = &[
    &["push", "mail"],
    &["jobs", "rm", SOME_ID],
    &["jobs", "wait", SOME_ID],
    &["jobs", "ls"],
    &["queues", "ls"],
    &["queues", "pause", "default"],
    &["stats"],
];

#[test]
fn reply_of_another_server_is_a_failure() {
    let sandbox = Sandbox::new();
    let page = "<html>Please log in</html>";
    for head in
        ["200 OK\r\nContent-Type: text/html; charset=utf-8", "200 OK", "202 Accepted\r\nContent-Type: text/html"]
    {
        let portal = Portal::start(head, page);
        for verb in VERBS {
            let ran = portal.run(&sandbox, verb).failed(5, "is not a duly server");
            assert!(ran.out.is_empty() && ran.err.contains("a proxy with a login page"), "{head} {ran:?}");
        }
    }
    let truncated = Portal::start("200 OK\r\nContent-Type: application/json", "{\"jobs\":[");
    truncated.run(&sandbox, &["jobs", "ls"]).failed(5, "is not JSON");
    let empty = Portal::start("200 OK\r\nContent-Type: application/json", "");
    empty.run(&sandbox, &["jobs", "rm", SOME_ID]).failed(5, "is not a duly server");
}

#[test]
fn unexpected_json_is_a_failure() {
    let sandbox = Sandbox::new();
    let other = Portal::start("200 OK\r\nContent-Type: application/json", r#"{"status":"ok","id":"7","state":"fine"}"#);
    let ran = other.run(&sandbox, &["push", "mail"]).failed(5, "missing field `pushed`");
    assert!(ran.out.is_empty(), "{ran:?}");
    other.run(&sandbox, &["jobs", "wait", SOME_ID]).failed(5, "is not a duly server");
    assert_eq!(other.request_lines.lock().expect("not poisoned").len(), 2, "each asks once");
    other.run(&sandbox, &["jobs", "ls"]).failed(5, "missing field `jobs`");
    other.run(&sandbox, &["queues", "ls"]).failed(5, "missing field `queues`");
    other.run(&sandbox, &["stats"]).failed(5, "missing field `minutes`");
}

#[test]
fn wait_over_http_ends_on_the_server_at_its_timeout() {
    let sandbox = Sandbox::new();
    let id = sandbox.push(&["mail", "--in", "1h"]);
    let server = ServerProcess::start(&sandbox, &[]);
    server.run(&sandbox, &["jobs", "wait", &id, "--timeout", "50ms"]).failed(124, "is still scheduled");
    let job = sandbox.run(&["jobs", "get", &id, "--json"]).ok().out;
    let portal = Portal::start("200 OK\r\nContent-Type: application/json", &job);
    portal.run(&sandbox, &["jobs", "wait", &id, "--timeout", "7s"]).failed(124, "is still scheduled");
    let request_lines = portal.request_lines.lock().expect("not poisoned");
    let [_, wait] = &request_lines[..] else { panic!("one wait: {request_lines:?}") };
    let timeout = wait.split("timeout_ms=").nth(1).and_then(|rest| rest.split(' ').next()).expect("a timeout");
    assert!(timeout.parse::<u64>().is_ok_and(|timeout| timeout <= 7_000), "{wait}");
}

#[test]
fn redirect_is_reported_and_not_followed() {
    let sandbox = Sandbox::new();
    for status in
        ["301 Moved Permanently", "302 Found", "303 See Other", "307 Temporary Redirect", "308 Permanent Redirect"]
    {
        let portal = Portal::start(&format!("{status}\r\nLocation: /login?token=secret"), "");
        for verb in VERBS {
            let ran = portal.run(&sandbox, verb).failed(5, "redirects");
            assert!(ran.out.is_empty() && ran.err.contains("to /login; ") && !ran.err.contains("secret"), "{ran:?}");
        }
        let request_lines = portal.request_lines.lock().expect("not poisoned");
        assert!(
            request_lines.len() == VERBS.len() + 1 && !request_lines.iter().any(|line| line.contains("login")),
            "{request_lines:?}"
        );
    }
}

#[test]
fn command_is_pushed_over_http_or_rejected() {
    let sandbox = Sandbox::new();
    sandbox.run(&["serve", "--listen", "127.0.0.1:0", "--allow-commands"]).failed(2, "duly token create");
    let token = sandbox.run(&["token", "create", "ci", "--role", "pusher"]).ok().id();
    let mut server = ServerProcess::start(&sandbox, &["--allow-commands"]);
    server.run(&sandbox, &["push", "--", "true"]).failed(1, "missing token");
    server.token = Some(token);
    let id = server.run(&sandbox, &["push", "--", "echo", r#"{"a":1}"#]).ok().id();
    let job = sandbox.job(&id);
    assert_eq!((&job["kind"], &job["args"]["argv"]), (&json!("command"), &json!(["echo", r#"{"a":1}"#])));
    let id = server.run(&sandbox, &["push", "mail", r#"{"a":1}"#]).ok().id();
    assert_eq!((&sandbox.job(&id)["kind"], &sandbox.job(&id)["args"]), (&json!("mail"), &json!({"a": 1})));
    let mut strict = ServerProcess::start(&sandbox, &[]);
    strict.token = server.token.clone();
    strict.run(&sandbox, &["push", "--", "true"]).failed(1, "--allow-commands");
    strict.run(&sandbox, &["push", "mail", "--", "true"]).failed(2, "cannot be used with");
    strict.run(&sandbox, &["push"]).failed(2, "KIND");
    assert_eq!(sandbox.run(&["jobs", "ls", "--json"]).ok().json()["jobs"].as_array().expect("a list").len(), 2);
}

#[test]
fn sign_in_link_is_printed_on_request() {
    let sandbox = Sandbox::new();
    let server = ServerProcess::start(&sandbox, &["--sign-in-link"]);
    let link = server.sign_in.trim().strip_prefix("sign in once, in a browser, within 15 minutes: ").expect("the link");
    assert!(link.starts_with(&format!("{}/login?link=duly_", server.url)), "{link}");
    server.run(&sandbox, &["queues", "ls"]).failed(1, "put it into DULY_TOKEN");
}

/// Opens more silent connections than the server may open files. `DULY_SILENT` sets their number.
fn silent_connections_beyond_the_limit_of_files(store: Option<&str>) {
    const FILES: usize = 256;
    let silent = test_support::env_number("DULY_SILENT").map_or(2 * FILES, |number| number as usize);
    let sandbox = Sandbox::new();
    let options = store.map_or(Vec::new(), |store| vec!["--store", store]);
    let server = ServerProcess::start_after(&sandbox, &format!("ulimit -n {FILES}"), &options);
    let mut open = Vec::new();
    for no in 0..silent {
        open.push(TcpStream::connect(server.host()).expect("the kernel accepts"));
        // This process may not open all of them either. The server has ended the oldest ones.
        if open.len() == 2 * FILES {
            drop(open.drain(..FILES / 2));
        }
        if no % FILES == FILES - 1 {
            for path in ["/healthz", "/readyz", "/api/v1/stats"] {
                let response = server.send("GET", path, "");
                assert!(response.starts_with("HTTP/1.1 200"), "{path} beside {no} connections: {response}");
            }
        }
    }
    let counted = std::fs::read_dir(format!("/proc/{}/fd", server.child.id())).map_or(0, Iterator::count);
    assert!(counted < FILES, "{counted} files are open");
}

#[test]
#[cfg(target_os = "linux")]
fn silent_connections_beyond_the_limit_of_open_files_keep_no_client_out() {
    silent_connections_beyond_the_limit_of_files(None);
}

#[test]
#[cfg(target_os = "linux")]
#[ignore = "needs a server: ./check stores, ./torture exhaustion"]
fn silent_connections_beyond_the_limit_of_open_files_keep_no_client_out_on_redis() {
    silent_connections_beyond_the_limit_of_files(Some(&test_support::servers::redis().url()));
}

#[test]
#[cfg(target_os = "linux")]
fn server_raises_its_limit_of_open_files() {
    let sandbox = Sandbox::new();
    let server = ServerProcess::start_after(&sandbox, "ulimit -S -n 200", &[]);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.child.id())).expect("Linux");
    let files = limits.lines().find(|line| line.starts_with("Max open files")).expect("is listed");
    let mut numbers = files.split_whitespace().skip(3);
    let (soft, hard) = (numbers.next().expect("the soft limit"), numbers.next().expect("the hard limit"));
    let enough = soft.parse::<u64>().is_ok_and(|soft| soft >= 65_536);
    assert!(soft == hard || enough, "{files}");
}

#[test]
fn invalid_options_are_refused() {
    let sandbox = Sandbox::new();
    let serve = |options: &[&str]| sandbox.run(&[&["serve", "--listen", "127.0.0.1:0"], options].concat());
    serve(&["--connections", "0"]).failed(2, "--connections");
    for url in ["foo", "ftp://jobs.example.com", "https://", "https://ada:secret@jobs.example.com"] {
        serve(&["--public-url", url]).failed(2, "public_url: must be a URL");
    }
}

#[test]
#[ignore = "needs a server: ./check stores"]
fn store_without_tokens_is_not_served() {
    let redis = test_support::servers::redis().url();
    let host = redis.split_once("://").expect("a URL").1;
    for (scheme, advice) in [("redis-in-action", "use a SQLite file, Redis or Valkey"), ("actionhero", "open redis://")]
    {
        let url = format!("{scheme}://{host}?allow_data_loss=true");
        Sandbox::new().run(&["--store", &url, "serve", "--listen", "127.0.0.1:0"]).failed(2, advice);
    }
}

/// The owner of the lock is an HTTP client, which outlives the server.
#[test]
fn lock_over_http_survives_a_server_kill() {
    let sandbox = Sandbox::new();
    let server = ServerProcess::start(&sandbox, &[]);
    let response = server.put("/api/v1/locks/deploy", r#"{"ttl_ms":60000}"#);
    assert!(response.starts_with("HTTP/1.1 2"), "{response}");
    drop(server);
    sandbox.run(&["lock", "deploy", "--no-wait", "--", "true"]).failed(4, "is held");
}

#[test]
fn list_over_http_returns_a_cursor() {
    let sandbox = Sandbox::new();
    let server = ServerProcess::start(&sandbox, &[]);
    for _ in 0..3 {
        server.run(&sandbox, &["push", "mail", r#"{"to":"ada lovelace"}"#]).ok();
    }
    let ran = server.run(&sandbox, &["jobs", "ls", "--limit", "2", "args.to:ada lovelace"]).ok();
    assert_eq!(ran.out.lines().count(), 3, "{ran:?}");
    let cursor =
        ran.err.trim().strip_prefix("there may be more: --all-pages, or --cursor ").expect("a cursor").to_owned();
    let ran = server.run(&sandbox, &["jobs", "ls", "--limit", "2", "--cursor", &cursor, "args.to:ada lovelace"]).ok();
    assert_eq!((ran.out.lines().count(), ran.err.as_str()), (2, ""), "{ran:?}");
}

#[test]
fn errors_over_http_match_errors_of_a_store() {
    let sandbox = Sandbox::new();
    let server = ServerProcess::start(&sandbox, &[]);
    let resume = ["queues", "resume", "a", "--abandon-move"];
    for verb in [&["doctor"][..], &["work"], &["lock", "a", "--", "true"], &["call", "echo", "--no-reply"], &resume] {
        server.run(&sandbox, verb).failed(2, "with --store URL instead");
    }
    server.run(&sandbox, &["bogus"]).failed(2, "unrecognized subcommand");
    let ran = server.run(&sandbox, &["jobs", "ls", "kind:a", "stat:dead"]).failed(2, "unknown field");
    assert!(ran.err.contains("\n  kind:a stat:dead\n         ^\n"), "{ran:?}");
    server.run(&sandbox, &["jobs", "rm"]).failed(2, "no job is selected");
    let existing = server.run(&sandbox, &["push", "mail"]).ok().out.trim().to_owned();
    let unknown = "01890000-0000-7000-8000-000000000000";
    let end = &existing[28..];
    assert_eq!(server.run(&sandbox, &["jobs", "get", end, "--json"]).ok().json()["id"], existing);
    server.run(&sandbox, &["jobs", "rm", "beef", "-y"]).failed(3, "check the digits");
    server.run(&sandbox, &["jobs", "rm", end]).failed(2, &format!("Remove job mail …{end} in queue default (ready)?"));
    server.run(&sandbox, &["jobs", "cancel", end]).ok();
    server.run(&sandbox, &["jobs", "rm", "--yes", unknown, &existing]).failed(3, unknown);
    server.run(&sandbox, &["jobs", "get", &existing]).failed(3, &existing);
    let url = server.url.clone();
    drop(server);
    let secret = url.replacen("://", "://ada:secret@", 1);
    let ran = sandbox.run(&["--server", &secret, "jobs", "ls"]).failed(5, "check that `duly serve` is running there");
    assert!(!ran.err.contains("secret"), "{ran:?}");
    let ran = sandbox.run(&["--server", &url, "push", "mail"]).failed(5, "check that `duly serve` is running there");
    assert!(ran.err.contains("refused") && ran.err.contains("--id ") && !ran.err.contains("io:"), "{ran:?}");
}

#[test]
fn stats_are_printed_as_a_table() {
    let sandbox = Sandbox::new();
    let server = ServerProcess::start(&sandbox, &[]);
    server.run(&sandbox, &["push", "mail"]).ok();
    let table = server.run(&sandbox, &["stats"]).ok().out;
    assert!(
        table.starts_with("QUEUE ") && table.lines().nth(1).is_some_and(|row| row.starts_with("default  1 ")),
        "{table}"
    );
    let stats = server.run(&sandbox, &["stats", "--minutes", "9", "--json"]).ok().json();
    let queue = &stats["queues"][0];
    assert_eq!((&queue["queue"], &queue["pushed"], &stats["minutes"]), (&json!("default"), &json!(1), &json!(9)));
    let none = server.run(&sandbox, &["stats", "--queue", "none"]).ok();
    assert_eq!((none.out.as_str(), none.err.trim()), ("", "nothing happened in the last 5 minutes"));
}

#[test]
fn admin_token_of_a_file_is_created_once_and_replaced_with_the_file() {
    let sandbox = Sandbox::new();
    let file = sandbox.path("token");
    let path = file.to_str().expect("a plain path");
    let refused = |reason: &str| {
        sandbox.run(&["serve", "--listen", "127.0.0.1:0", "--admin-token-file", path]).failed(2, reason);
    };
    let write = |text: &str, mode: u32| {
        std::fs::write(&file, text).expect("writes");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).expect("its owner");
    };
    let (first, second) = ("0123456789abcdef".repeat(2), "fedcba9876543210".repeat(4));
    refused("cannot be read");
    write(&first, 0o644);
    refused("run chmod 0400");
    write("\n", 0o600);
    refused("is empty");
    write("too-short", 0o600);
    refused("use at least 32");
    write(&format!("{first} {first}"), 0o600);
    refused("without spaces");
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&file, Some(12_345), None).expect("as root");
        refused("belongs to another user");
        std::os::unix::fs::chown(&file, Some(0), None).expect("as root");
    }
    let tokens = || {
        let listed = sandbox.run(&["token", "ls", "-o", "ndjson"]).ok().out;
        listed.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect::<Vec<serde_json::Value>>()
    };
    assert!(tokens().is_empty(), "nothing was created");

    let mut names = Vec::new();
    for secret in [&first, &first, &second] {
        write(&format!("{secret}\n"), 0o600);
        let mut command = sandbox.command(&["serve", "--listen", "127.0.0.1:0"]);
        let mut server = ServerProcess::of(command.env("DULY_ADMIN_TOKEN_FILE", path), &[]);
        server.token = Some(secret.clone());
        server.run(&sandbox, &["queues", "ls"]).ok();
        server.token = Some("f".repeat(64));
        server.run(&sandbox, &["queues", "ls"]).failed(1, "token");
        let tokens = tokens();
        assert_eq!((tokens.len(), &tokens[0]["role"]), (1, &json!("admin")), "{tokens:?}");
        names.push(tokens[0]["name"].clone());
    }
    assert!(names[0] == names[1] && names[1] != names[2], "{names:?}");
}
