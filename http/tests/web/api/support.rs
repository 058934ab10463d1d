//! A server on a free port, and a client that sends exact bytes.

use std::net::SocketAddr;
use std::time::Duration;

use duly::admin::Role;
use duly::{CancellationToken, Duly};
use duly_http::Server;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Far longer than any test needs.
pub const LONG: Duration = Duration::from_secs(30);

/// Long runs create a queue per request.
const QUEUES: usize = 100_000;

/// A store with a server.
pub struct Site {
    pub duly: Duly,
    pub address: SocketAddr,
    /// The link that signs in once, if the server has one.
    pub sign_in_url: Option<String>,
    stop: CancellationToken,
    served: tokio::task::JoinHandle<duly::Result<()>>,
    token: Option<String>,
    _dir: Option<tempfile::TempDir>,
}

impl Site {
    pub async fn in_memory() -> Self {
        Site::with(|server| server.queues(QUEUES)).await
    }

    pub async fn in_file() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("duly.db").to_str().expect("a plain path").to_owned();
        Site::start(Duly::open(path).await.expect("opens"), |server| server.queues(QUEUES), Some(dir)).await
    }

    pub async fn on(server: String) -> Self {
        Site::on_with(server, |server| server.queues(QUEUES)).await
    }

    /// On a server, with options.
    pub async fn on_with(server: String, options: impl FnOnce(Server) -> Server) -> Self {
        let url = format!("{server}?prefix={}", duly::JobId::fresh());
        Site::start(Duly::open(url).await.expect("opens"), options, None).await
    }

    /// In memory, with options.
    pub async fn with(options: impl FnOnce(Server) -> Server) -> Self {
        Site::start(Duly::open(":memory:").await.expect("opens"), options, None).await
    }

    /// In memory, with a server that accepts `command` jobs, as an admin.
    pub async fn with_commands() -> Self {
        let duly = Duly::open(":memory:").await.expect("opens");
        let secret = duly.tokens().create("commands", Role::Admin, None).await.expect("made");
        let mut site = Site::start(duly, Server::allow_commands, None).await;
        site.token = Some(secret.as_str().to_owned());
        site
    }

    async fn start(duly: Duly, options: impl FnOnce(Server) -> Server, dir: Option<tempfile::TempDir>) -> Self {
        let server = options(Server::new(duly.clone()));
        let listening = server.listen(([127, 0, 0, 1], 0).into()).await.expect("listens");
        let (address, stop) = (listening.address(), CancellationToken::new());
        let sign_in_url = listening.sign_in_url().map(str::to_owned);
        let served = tokio::spawn(listening.serve_until(stop.clone()));
        Site { duly, address, sign_in_url, stop, served, token: None, _dir: dir }
    }

    /// Stops the server, and waits for it.
    pub async fn stop(&mut self) {
        self.stop.cancel();
        let served = tokio::time::timeout(LONG, &mut self.served).await.expect("in time");
        served.expect("no panic").expect("served");
    }

    /// Stops the server and starts another one on the same store and address.
    pub async fn restart(&mut self) {
        self.stop().await;
        let listening = Server::new(self.duly.clone()).listen(self.address).await.expect("listens again");
        self.stop = CancellationToken::new();
        self.served = tokio::spawn(listening.serve_until(self.stop.clone()));
    }

    /// Sends all further requests with a new token of this role.
    pub async fn be(&mut self, role: Role) {
        let name = format!("{role}-{}", duly::JobId::fresh());
        let secret = self.duly.tokens().create(&name, role, None).await.expect("made");
        self.token = Some(secret.as_str().to_owned());
    }

    /// Sends all further requests with an existing token.
    pub fn be_again(&mut self, token: String) {
        self.token = Some(token);
    }

    pub fn be_nobody(&mut self) {
        self.token = None;
    }

    pub fn token(&self) -> &str {
        self.token.as_deref().unwrap_or_default()
    }

    /// Returns the bytes of a request.
    pub fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
        let mut text = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            text.push_str(&format!("Host: {}\r\n", self.address));
        }
        if let Some(token) = &self.token {
            text.push_str(&format!("Authorization: Bearer {token}\r\n"));
        }
        headers.iter().for_each(|(name, value)| text.push_str(&format!("{name}: {value}\r\n")));
        text.push_str(&format!("Content-Length: {}\r\n\r\n", body.len()));
        [text.as_bytes(), body].concat()
    }

    /// Sends these bytes and reads until the end of the connection.
    pub async fn raw(&self, bytes: &[u8]) -> Response {
        let mut stream = TcpStream::connect(self.address).await.expect("connects");
        // A server that refuses early does not read to the end.
        let _ = stream.write_all(bytes).await;
        let mut text = Vec::new();
        let read = tokio::time::timeout(LONG, stream.read_to_end(&mut text)).await.expect("in time");
        let _ = read;
        Response::parse(&text)
    }

    pub async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Response {
        self.raw(&self.request(method, path, headers, body)).await
    }

    pub async fn get(&self, path: &str) -> Response {
        self.send("GET", path, &[], b"").await
    }

    /// Sends JSON.
    pub async fn json(&self, method: &str, path: &str, body: Value) -> Response {
        self.send(method, path, &[("Content-Type", "application/json")], body.to_string().as_bytes()).await
    }

    pub async fn post(&self, path: &str, body: Value) -> Response {
        self.json("POST", path, body).await
    }

    /// Pushes a job of the kind `work` and returns its id.
    pub async fn push(&self, queue: &str) -> String {
        let response = self.post("/api/v1/jobs", json!({"kind": "work", "queue": queue, "args": {"n": 1}})).await;
        assert_eq!(response.status, 201, "{}", response.text());
        response.json()["id"].as_str().expect("an id").to_owned()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// A response of the server.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Response {
    fn parse(bytes: &[u8]) -> Self {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap_or(bytes.len());
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        let rest = bytes.get(end + 4..).unwrap_or_default();
        let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
        let body = if chunked { unchunked(rest) } else { rest.to_vec() };
        Response { status, head, body }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.into_iter().find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    pub fn text(&self) -> String {
        format!("{} {}", self.status, String::from_utf8_lossy(&self.body))
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    /// Returns the code of a problem.
    pub fn code(&self) -> String {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{}", self.text());
        self.json()["code"].as_str().unwrap_or_default().to_owned()
    }

    /// Returns the pointer of a problem's first error.
    pub fn pointer(&self) -> String {
        self.json()["errors"][0]["pointer"].as_str().unwrap_or_default().to_owned()
    }
}

fn unchunked(mut bytes: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    while let Some(end) = bytes.windows(2).position(|two| two == b"\r\n") {
        let len = usize::from_str_radix(String::from_utf8_lossy(&bytes[..end]).trim(), 16).unwrap_or(0);
        if len == 0 || bytes.len() < end + 2 + len {
            break;
        }
        whole.extend_from_slice(&bytes[end + 2..end + 2 + len]);
        bytes = bytes.get(end + 4 + len..).unwrap_or_default();
    }
    whole
}
