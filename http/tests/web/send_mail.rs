//! The program of the page "Send mail from a web app", as a process: one sign-up sends one mail.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use test_support::{KillOnDrop, child_test};

/// Set in the child process.
const RUN: &str = "DULY_RUN_SEND_MAIL";

mod program {
    include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/send_mail.rs"));

    #[test]
    fn child_process() {
        if std::env::var_os(super::RUN).is_some() {
            main().expect("runs until it is stopped");
        }
    }
}

#[test]
fn page_shows_the_example() {
    let page = include_str!("../../../docs/how-to/send-mail.md");
    let example = include_str!("../../examples/send_mail.rs");
    let (_, program) = example.split_once("\n\n").expect("a comment above");
    assert!(page.contains(&format!("```rust,no_run\n{program}```")), "copy it from http/examples/send_mail.rs");
}

#[test]
fn sign_up_sends_a_mail() {
    let mut command = child_test("send_mail::program::child_process");
    let mut child = KillOnDrop(command.env(RUN, "1").stdout(Stdio::piped()).spawn().expect("starts"));
    let mut lines = BufReader::new(child.0.stdout.take().expect("piped")).lines().map(|line| line.expect("text"));
    let address = lines.find_map(|line| line.split_once("listening on ").map(|(_, address)| address.to_owned()));

    let body = r#"{"email":"ada@example.com"}"#;
    let head = "POST /sign-up HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json";
    let mut stream = TcpStream::connect(address.expect("it prints its address")).expect("connects");
    write!(stream, "{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).expect("sends");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("a response");
    assert!(response.starts_with("HTTP/1.1 202"), "{response}");

    assert!(lines.any(|line| line.contains("ada@example.com")), "it prints the mail");
    kill_process(Pid::from_child(&child.0), Signal::TERM).expect("it runs");
    assert!(lines.any(|line| line.contains("1 mails sent")));
}
