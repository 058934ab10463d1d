//! One server: persistence, rejected commands, and how it ends.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::on_both;
use test_support::servers::{Binary, Client, Fsync, Options, Reply, certificates};
use test_support::wait_for;

on_both![
    an_acknowledged_write_survives_a_kill,
    a_kill_without_a_file_loses_all_data,
    a_paused_server_replies_once_resumed,
    a_password_is_required,
    users_are_restricted_to_their_rights,
    a_full_server_rejects_writes,
];

fn an_acknowledged_write_survives_a_kill(binary: Binary) {
    let server = Options::new(binary).aof(Fsync::Always).start();
    server.send_command(&["SET", "kept", "yes"]);
    server.kill();
    assert!(!server.is_running() && server.client().is_err(), "it is gone");

    server.restart();
    assert_eq!(server.send_command(&["GET", "kept"]).text(), "yes");
}

/// Control for the test above: without a file, a kill does lose data.
fn a_kill_without_a_file_loses_all_data(binary: Binary) {
    let server = Options::new(binary).start();
    server.send_command(&["SET", "kept", "yes"]);
    server.restart();
    assert_eq!(server.send_command(&["GET", "kept"]), Reply::Nil);
}

fn a_paused_server_replies_once_resumed(binary: Binary) {
    let server = Options::new(binary).start();
    let mut client = server.client().expect("connects");
    client.set_timeout(Duration::from_millis(100)).expect("a time");
    server.pause();
    client.write_command(&["ECHO", "late"]).expect("the system takes it");
    assert!(client.read_reply().is_err(), "no reply while it is paused");

    server.resume();
    client.set_timeout(Duration::from_secs(10)).expect("a time");
    assert_eq!(client.read_reply().expect("a reply").text(), "late");
}

fn a_password_is_required(binary: Binary) {
    let server = Options::new(binary).password("secret").start();
    assert_eq!(server.url(), format!("redis://:secret@127.0.0.1:{}", server.port()));
    let refused = Client::connect(server.port(), None).expect("connects").send_command(&["GET", "a"]).expect("a reply");
    assert!(refused.text().starts_with("NOAUTH"), "{refused:?}");
    assert!(Client::connect(server.port(), Some("guess")).is_err());
    assert_eq!(server.send_command(&["PING"]).text(), "PONG");
}

fn users_are_restricted_to_their_rights(binary: Binary) {
    let users = "user default on nopass ~* &* +@all\nuser app on >pw ~duly:* &* +@all -@dangerous";
    let server = Options::new(binary).users(users).start();
    let mut app = server.client().expect("connects");
    assert_eq!(app.send_command(&["AUTH", "app", "pw"]).expect("a reply").text(), "OK");
    assert_eq!(app.send_command(&["SET", "duly:a", "1"]).expect("a reply").text(), "OK");
    for refused in [["SET", "other", "1"], ["CONFIG", "GET", "save"]] {
        assert!(app.send_command(&refused).expect("a reply").text().starts_with("NOPERM"), "{refused:?}");
    }
}

fn a_full_server_rejects_writes(binary: Binary) {
    let server = Options::new(binary).maxmemory("8mb").start();
    let large = "x".repeat(1 << 20);
    let set = |n: usize| server.try_send_command(&["SET", &n.to_string(), &large]).expect("a reply").text();
    assert_eq!(set(0), "OK");
    assert!((1..16).any(|n| set(n).starts_with("OOM")), "16 MB fit into 8");
}

#[test]
fn server_speaks_tls_with_a_valid_certificate() {
    let server = Options::new(Binary::Redis).tls(certificates()).start();
    let ca = certificates().file("ca.crt");
    let mut openssl = Command::new("openssl")
        .args(["s_client", "-quiet", "-verify_return_error", "-verify_ip", "127.0.0.1", "-CAfile"])
        .arg(&ca)
        .args(["-connect", &format!("127.0.0.1:{}", server.tls_port())])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("openssl starts");
    openssl.stdin.take().expect("piped").write_all(b"PING\r\nQUIT\r\n").expect("it listens");
    let mut output_text = String::new();
    openssl.stdout.take().expect("piped").read_to_string(&mut output_text).expect("text");
    openssl.wait().expect("it ends");
    assert!(output_text.starts_with("+PONG"), "{output_text:?}");
}

#[test]
#[should_panic(expected = "ports in a row were taken")]
fn taken_port_is_distinguished_from_other_faults() {
    let first = Options::new(Binary::Redis).start();
    Options::new(Binary::Redis).set("port", &first.port().to_string()).start();
}

#[test]
#[should_panic(expected = "no-such-setting")]
fn server_that_does_not_start_reports_why() {
    Options::new(Binary::Redis).set("no-such-setting", "1").start();
}

/// The system watches the spawning thread; a server must not end with the test that started it.
#[test]
fn server_outlives_the_thread_that_started_it() {
    let started = std::thread::spawn(|| Options::new(Binary::Redis).start());
    let server = started.join().expect("it starts");
    assert_eq!(server.send_command(&["PING"]).text(), "PONG");
}

/// Runs one test of this binary in its own process.
fn run_alone(test: &str, variable: &str, value: &str) -> Child {
    let mut command = test_support::child_test(test);
    command.env(variable, value).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("this binary runs")
}

/// Not a test: the process that is killed in the test below.
#[test]
fn child_that_starts_a_server() {
    if std::env::var_os("DULY_TEST_CHILD").is_none() {
        return;
    }
    let server = Options::new(Binary::Redis).start();
    println!("\nport {}", server.port());
    std::thread::park();
}

#[test]
fn server_dies_with_a_killed_parent() {
    let mut child = run_alone("single::child_that_starts_a_server", "DULY_TEST_CHILD", "1");
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines().map_while(Result::ok);
    let port = lines.into_iter().find_map(|line| line.strip_prefix("port ")?.parse().ok()).expect("a port");
    assert!(Client::connect(port, None).is_ok(), "it runs");
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    wait_for("the server to end", || Client::connect(port, None).err().ok_or_else(|| "it runs".into()));
}

#[test]
fn missing_server_fails_the_test_with_the_install_command() {
    let case = "single::on_valkey::a_kill_without_a_file_loses_all_data";
    let output = run_alone(case, "DULY_VALKEY_SERVER", "/nowhere").wait_with_output().expect("it ends");
    let output_text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && output_text.contains("Install it with: ./check stores"), "{output_text}");
}
