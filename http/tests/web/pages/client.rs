//! A minimal browser: one request, one response.

use std::io::{Read, Write};
use std::net::TcpStream;

/// A response.
pub struct Response {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Response {
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }
}

pub async fn get(url: &str, path: &str) -> Response {
    send(url, &format!("GET {path} HTTP/1.1"), "", "").await
}

pub async fn post(url: &str, path: &str, form: &str) -> Response {
    send(url, &format!("POST {path} HTTP/1.1"), "Content-Type: application/x-www-form-urlencoded\r\n", form).await
}

/// Sends a request with further headers.
pub async fn send(url: &str, line: &str, headers: &str, body: &str) -> Response {
    let host = url.strip_prefix("http://").expect("an address").to_owned();
    let head = format!("{line}\r\nHost: {host}\r\nAccept: text/html\r\nConnection: close\r\n{headers}");
    let request = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
    tokio::task::spawn_blocking(move || {
        let mut stream = TcpStream::connect(host).expect("connects");
        stream.write_all(request.as_bytes()).expect("sent");
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).expect("answered");
        parse(&String::from_utf8(bytes).expect("text"))
    })
    .await
    .expect("no panic")
}

fn parse(text: &str) -> Response {
    let (head, rest) = text.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    let chunked = head.to_lowercase().contains("transfer-encoding: chunked");
    let body = if chunked { unchunked(rest) } else { rest.to_owned() };
    Response { status, head: head.to_owned(), body }
}

fn unchunked(mut rest: &str) -> String {
    let mut body = String::new();
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16).expect("a size");
        if size == 0 {
            break;
        }
        body.push_str(&after[..size]);
        rest = &after[size + 2..];
    }
    body
}
