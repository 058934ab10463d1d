//! Requests that are almost valid, and bytes that are no requests at all.

use std::sync::LazyLock;

use fastrand::Rng;

/// Paths that are not in the OpenAPI description, with open names; pages have forms of their own.
const PAGES: [&str; 34] = [
    "/",
    "/jobs",
    "/jobs/actions",
    "/jobs/{}",
    "/jobs/{}/edit",
    "/jobs/{}/{}",
    "/push",
    "/queues",
    "/queues/{}",
    "/queues/{}/{}",
    "/kinds",
    "/scheduled",
    "/dead",
    "/cron",
    "/cron/new",
    "/cron/rule/{}",
    "/cron/{}/{}",
    "/nodes",
    "/nodes/{}",
    "/nodes/{}/{}",
    "/locks",
    "/locks/break",
    "/calls",
    "/audit",
    "/settings",
    "/settings/appearance",
    "/login",
    "/logout",
    "/assets/{}/{}",
    "/healthz",
    "/readyz",
    "/metrics",
    "/openapi.json",
    "/{}",
];
/// The stream that does not end.
const EVENTS: &str = "/api/v1/events";
/// The timeout of waits for a job, so that the run does not block.
const WAIT: &str = "timeout_ms=20";

/// All paths of the server: those of the OpenAPI description, and the rest.
static ROUTES: LazyLock<Vec<String>> = LazyLock::new(|| {
    let api: serde_json::Value =
        serde_json::from_str(include_str!("../../../../../docs/reference/openapi.json")).expect("is JSON");
    let paths = api["paths"].as_object().expect("paths").keys().map(|path| {
        let parts = path.split('/').map(|part| if part.starts_with('{') { "{}" } else { part });
        parts.collect::<Vec<_>>().join("/")
    });
    paths.chain(PAGES.map(str::to_owned)).collect()
});

/// Few words, so that the number of created objects is bounded.
const WORDS: [&str; 24] = [
    "a",
    "default",
    "0",
    "-1",
    "%00",
    "%ff%fe",
    "%zz",
    "%",
    "..",
    "../../etc/passwd",
    "%2e%2e%2f",
    "<script>",
    "'--",
    "a%0d%0aX:y",
    "\u{fe}\u{ff}",
    "null",
    "NaN",
    "1e999",
    "99999999999999999999",
    "{}",
    "%F0%9F%92%A9",
    "0192f7a1-0000-7000-8000-000000000000",
    "state:dead",
    "args.a:*",
];

const PARAMS: [&str; 12] =
    ["filter", "cursor", "limit", "state", "queue", "confirm", "pattern", "tz", "minutes", "wait_ms", "theme", "x"];

const METHODS: [&str; 8] = ["GET", "GET", "POST", "POST", "PUT", "PATCH", "DELETE", "HEAD"];

/// Valid bodies before they are changed. None creates a token, which would lock the test out.
const BODIES: [&str; 9] = [
    r#"{"kind":"a","args":{"a":[1,2,{"b":null}]},"queue":"a","priority":"high","tags":["x"]}"#,
    r#"[{"kind":"a"},{"kind":"b","args":"\u0000","due":"2030-01-01T00:00:00Z"}]"#,
    r#"{"queues":["a"],"kinds":["a"],"lease_ms":1000}"#,
    r#"{"outcomes":[{"id":"0192f7a1-0000-7000-8000-000000000000","fence":1,"outcome":"ack"}]}"#,
    r#"{"filter":"state:dead kind:nobody","action":"remove","dry_run":true}"#,
    r#"{"pattern":"0 3 * * *","kind":"a","tz":"Europe/Berlin","overlap":"skip","jitter_ms":5}"#,
    r#"{"ttl_ms":1000,"wait_ms":0}"#,
    r#"{"max":1,"wait_ms":0}"#,
    "token=x&kind=a&args=%7B%7D&queue=%00&confirm=a",
];

const HEADERS: [&str; 18] = [
    "Content-Type: application/json",
    "Content-Type: application/json; charset=utf-8",
    "Content-Type: application/x-ndjson",
    "Content-Type: application/x-www-form-urlencoded",
    "Content-Type: \u{ff}",
    "Accept: text/html",
    "Accept: text/event-stream",
    "Accept-Encoding: gzip",
    "Authorization: Bearer x",
    "Authorization: Bearer",
    "Cookie: duly=x; ;=",
    "Idempotency-Key: a",
    "Idempotency-Key: \u{fe}",
    "Origin: https://evil.example",
    "Sec-Fetch-Site: cross-site",
    "X-Request-Id: <b>",
    "X-Forwarded-For: 127.0.0.1",
    "If-Match: *",
];

/// The bytes of a request, and the expected response.
pub struct Request {
    pub bytes: Vec<u8>,
    /// The request is valid HTTP and gets a response.
    pub sound: bool,
    /// The response may not end.
    pub endless: bool,
}

/// Returns a request. `last` asks the server to close the connection after it.
pub fn any(rng: &mut Rng, last: bool) -> Request {
    match rng.u32(..100) {
        0..4 => garbage(rng),
        4 => oversized(rng),
        _ => almost(rng, last),
    }
}

fn of<'a>(rng: &mut Rng, all: &[&'a str]) -> &'a str {
    all[rng.usize(..all.len())]
}

/// Returns bytes that are no request.
fn garbage(rng: &mut Rng) -> Request {
    let mut bytes: Vec<u8> = (0..rng.usize(1..200)).map(|_| rng.u8(..)).collect();
    if rng.bool() {
        bytes.splice(..0, *b"GET / HTTP/1.1\r\nHost: localhost\r\n");
    }
    bytes.extend(b"\r\n\r\n");
    Request { bytes, sound: false, endless: false }
}

/// Returns a request whose head, field or body is too long.
fn oversized(rng: &mut Rng) -> Request {
    let long = "x".repeat(rng.usize(17_000..40_000));
    let text = match rng.u32(..4) {
        0 => format!("GET /{long} HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        1 => format!("GET / HTTP/1.1\r\nHost: localhost\r\nX-Long: {long}\r\n\r\n"),
        2 => format!("GET / HTTP/1.1\r\nHost: localhost\r\n{}\r\n", "X: y\r\n".repeat(rng.usize(101..400))),
        _ => {
            let head = "POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
            format!("{head}Content-Length: 99999999999\r\n\r\n{{\"args\":\"{long}")
        }
    };
    Request { bytes: text.into_bytes(), sound: false, endless: false }
}

/// Returns a request with one defect.
fn almost(rng: &mut Rng, last: bool) -> Request {
    let method = match rng.u32(..40) {
        0 => "BREW",
        1 => "OPTIONS",
        _ => of(rng, &METHODS),
    };
    let target = target(rng);
    let endless = target.contains(EVENTS);
    let mut text = format!("{method} {target} HTTP/1.1\r\n").into_bytes();
    let host = match rng.u32(..30) {
        0 => "Host: evil.example\r\n",
        1 => "Host: localhost:99999\r\n",
        2 => "",
        _ => "Host: localhost\r\n",
    };
    text.extend(host.bytes());
    for _ in 0..rng.usize(..3) {
        latin(&mut text, of(rng, &HEADERS));
        text.extend(b"\r\n");
    }
    if last {
        text.extend(b"Connection: close\r\n");
    }
    let body = if rng.u32(..3) == 0 { Vec::new() } else { body(rng) };
    if rng.u32(..10) == 0 {
        text.extend(b"Transfer-Encoding: chunked\r\n\r\n");
        text.extend(format!("{:x}\r\n", body.len()).bytes().chain(body.iter().copied()).chain(*b"\r\n"));
        // Sometimes the line ends are wrong.
        let broken = rng.u32(..5) == 0;
        text.extend_from_slice(if broken { b"zz\r\n\r\n" } else { b"0\r\n\r\n" });
        return Request { bytes: text, sound: !broken && !body.is_empty(), endless };
    }
    text.extend(format!("Content-Length: {}\r\n\r\n", body.len()).bytes());
    text.extend(body);
    Request { bytes: text, sound: true, endless }
}

/// Each character as one byte: characters beyond ASCII give invalid UTF-8.
fn latin(text: &mut Vec<u8>, line: &str) {
    text.extend(line.chars().map(|letter| u8::try_from(u32::from(letter)).unwrap_or(b'?')));
}

fn target(rng: &mut Rng) -> String {
    let word = |rng: &mut Rng| of(rng, &WORDS).replace(['\u{fe}', '\u{ff}', '<', '>', '{', '}'], "%c3");
    let mut path = ROUTES[rng.usize(..ROUTES.len())].clone();
    let waits = path.ends_with("/wait");
    while let Some(at) = path.find("{}") {
        path.replace_range(at..at + 2, &word(rng));
    }
    for at in 0..rng.usize(..4) {
        let name = of(rng, &PARAMS);
        path.push_str(&format!("{}{name}={}", if at == 0 { '?' } else { '&' }, word(rng)));
    }
    if waits {
        path.push_str(&format!("{}{WAIT}", if path.contains('?') { '&' } else { '?' }));
    }
    match rng.u32(..50) {
        0 => format!("http://evil.example{path}"),
        1 => path.repeat(rng.usize(1..40)),
        _ => path,
    }
}

fn body(rng: &mut Rng) -> Vec<u8> {
    if rng.u32(..200) == 0 {
        let deep = rng.usize(..4_000);
        return format!(r#"{{"kind":"a","args":{}{}}}"#, "[".repeat(deep), "]".repeat(deep)).into_bytes();
    }
    let mut body = of(rng, &BODIES).as_bytes().to_vec();
    for _ in 0..rng.usize(1..4) {
        let at = rng.usize(..body.len());
        match rng.u32(..4) {
            0 => body[at] = rng.u8(..),
            1 => body.truncate(at.max(1)),
            2 => drop(body.splice(at..at, of(rng, &WORDS).bytes())),
            _ => drop(body.remove(at)),
        }
        if body.is_empty() {
            break;
        }
    }
    body
}
