//! Every role on every route, by token and by session: the routes of the API from its OpenAPI description, those of the
//! pages from their router.
//!
//! A new route that changes something needs an operator, unless this file says otherwise.

use duly::admin::Role;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::api::support::{LONG, Site};

const ID: &str = "01890000-0000-7000-8000-000000000000";
/// The source of the router of the pages.
const PAGES: &str = include_str!("../../../src/pages/mod.rs");
/// The fields that the forms of all pages need.
const FORM: &str = "name=none&kind=a&args=1&queue=a&priority=normal&pattern=x&missed=once&overlap=allow&confirm=&do=retry\
                    &node=01890000-0000-7000-8000-000000000000";

/// The built-in methods of nodes, which control them.
const BUILTIN_METHODS: [&str; 4] = ["duly.ping", "duly.stop", "duly.quiet", "duly.cancel"];

/// Returns all methods and paths.
pub fn routes() -> Vec<(String, String)> {
    let api: Value = serde_json::from_str(&duly_http::openapi()).expect("JSON");
    let paths = api["paths"].as_object().expect("paths").iter();
    let mut routes: Vec<(String, String)> = paths
        .flat_map(|(path, verbs)| {
            verbs.as_object().expect("verbs").keys().map(move |verb| (verb.to_uppercase(), path.clone()))
        })
        .collect();
    for line in PAGES.lines().filter_map(|line| line.trim().strip_prefix(".route(\"")) {
        let (path, handlers) = line.split_once("\", ").expect("a path and handlers");
        for (handler, verb) in [("get(", "GET"), ("post(", "POST")] {
            if handlers.contains(handler) {
                routes.push((verb.to_owned(), path.to_owned()));
            }
        }
    }
    for path in ["/metrics", "/openapi.json"] {
        routes.push(("GET".to_owned(), path.to_owned()));
    }
    for path in ["/login", "/logout"] {
        routes.push(("POST".to_owned(), path.to_owned()));
    }
    routes
}

/// Returns the role that a route requires; `None` for public ones.
fn required_role(method: &str, path: &str) -> Option<Role> {
    let api = path.strip_prefix("/api/v1");
    let segments: Vec<&str> = api.unwrap_or(path).split('/').skip(1).collect();
    Some(match (method, api.is_some(), &segments[..]) {
        (_, false, ["login"] | ["assets", ..]) => return None,
        (_, true, ["tokens", ..]) => Role::Admin,
        ("GET", _, ["audit"]) => Role::Operator,
        ("GET", false, ["cron", "new"] | ["jobs", _, "edit"]) => Role::Operator,
        ("GET", false, ["push"]) => Role::Pusher,
        ("GET", ..) | (_, false, ["logout"]) => Role::Viewer,
        ("POST", true, ["calls", method]) if method.starts_with("duly.") => Role::Operator,
        ("POST", true, ["jobs"] | ["jobs", "bulk"] | ["nodes"] | ["calls", _]) => Role::Pusher,
        ("POST", true, ["nodes", _, "heartbeat" | "claim" | "settle" | "progress"]) => Role::Pusher,
        ("DELETE", true, ["nodes", _]) => Role::Pusher,
        ("PUT" | "PATCH" | "DELETE", true, ["locks", _]) => Role::Pusher,
        ("POST", false, ["push"] | ["calls"]) => Role::Pusher,
        _ => Role::Operator,
    })
}

/// Returns the path of a request, with values for its parameters.
fn path_of(route: &str) -> String {
    let action = match route.split('/').nth(1) {
        Some("jobs") => "retry",
        Some("nodes") => "quiet",
        _ => "pause",
    };
    let path = route.replace("{action}", action).replace("{id}", ID);
    path.split('/').map(|part| if part.starts_with('{') { "none" } else { part }).collect::<Vec<_>>().join("/")
}

/// Sends a request and returns the status; a stream is not read to its end.
async fn status(site: &Site, method: &str, route: &str, version: &str, headers: &str) -> u16 {
    let to_none = format!("{{\"node\":\"{ID}\",\"timeout_ms\":1}}");
    let (kind, body) = match route.starts_with("/api/") {
        true if route.contains("/calls/duly.") => ("application/json", &*to_none),
        true => ("application/json", "{}"),
        false => ("application/x-www-form-urlencoded", FORM),
    };
    let body = if method == "GET" { "" } else { body };
    let request = format!(
        "{method} {} {version}\r\nHost: localhost\r\nConnection: close\r\n{headers}Content-Type: {kind}\r\n\
         Content-Length: {}\r\n\r\n{body}",
        path_of(route),
        body.len()
    );
    let mut stream = TcpStream::connect(site.address).await.expect("connects");
    stream.write_all(request.as_bytes()).await.expect("sends");
    let mut text = Vec::new();
    while !text.windows(2).any(|two| two == b"\r\n") {
        let read = tokio::time::timeout(LONG, stream.read_buf(&mut text)).await.expect("in time").expect("reads");
        assert!(read > 0, "{method} {route}: the connection ended");
    }
    let line = String::from_utf8_lossy(&text);
    line.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{method} {route}: {line}"))
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

/// Signs in with a token, and returns the header with the cookie.
async fn sign_in(site: &Site, token: &str) -> String {
    let form = [("Content-Type", "application/x-www-form-urlencoded")];
    let signed_in = site.send("POST", "/login", &form, format!("token={token}").as_bytes()).await;
    let cookie = signed_in.header("set-cookie").unwrap_or_else(|| panic!("{}", signed_in.text()));
    format!("Cookie: {}\r\n", cookie.split(';').next().expect("a pair"))
}

pub async fn every_route_requires_its_role(site: Site) {
    let mut routes = routes();
    routes.extend(BUILTIN_METHODS.map(|method| ("POST".to_owned(), format!("/api/v1/calls/{method}"))));
    assert!(routes.len() > 80 && routes.iter().any(|(_, path)| path == "/cron/{name}/{action}"), "{}", routes.len());
    let (mut cells, mut mismatches) = (0, Vec::new());
    let mut check = |who: &str, route: &(String, String), status: u16, expected: Option<u16>| {
        cells += 1;
        let matches = match expected {
            Some(expected) => status == expected,
            // Allowed: whatever else is wrong with the request.
            None => ![401, 403].contains(&status),
        };
        if !matches {
            mismatches.push(format!("{who} {} {}: {status}, not {expected:?}", route.0, route.1));
        }
    };
    // Nothing may stop the server or change tokens, as `none` exists nowhere.
    for route in &routes {
        let send = async |version: &str, headers: &str| status(&site, &route.0, &route.1, version, headers).await;
        let remote = required_role(&route.0, &route.1).map(|_| 401);
        check("HTTP/1.0 without a token", route, send("HTTP/1.0", "").await, remote);
        check("a proxy without a token", route, send("HTTP/1.1", "X-Forwarded-For: 10.0.0.1\r\n").await, remote);
        check("local", route, send("HTTP/1.1", "").await, None);
    }
    let mut tokens = Vec::new();
    for role in Role::ALL {
        let secret = site.duly.tokens().create(role.as_str(), role, None).await.expect("made");
        tokens.push((role, secret.as_str().to_owned()));
    }
    // The store has tokens now, so no client is local.
    let known = format!("Bearer {}", tokens[0].1);
    assert_eq!(site.send("GET", "/api/v1/stats", &[("Authorization", &known)], b"").await.status, 200);
    for route in &routes {
        let required = required_role(&route.0, &route.1);
        let send = async |headers: &str| status(&site, &route.0, &route.1, "HTTP/1.1", headers).await;
        check("without a token", route, send("").await, required.map(|_| 401));
        for (role, token) in &tokens {
            let expected = required.filter(|required| role < required).map(|_| 403);
            check(role.as_str(), route, send(&bearer(token)).await, expected);
        }
    }
    for (role, token) in &tokens {
        let mut session = sign_in(&site, token).await;
        for route in &routes {
            let expected = required_role(&route.0, &route.1).filter(|required| role < required).map(|_| 403);
            let send = async |headers: &str| status(&site, &route.0, &route.1, "HTTP/1.1", headers).await;
            check(&format!("session of {role}"), route, send(&session).await, expected);
            if route.1 == "/logout" {
                check(&format!("ended session of {role}"), route, send(&session).await, Some(401));
                session = sign_in(&site, token).await;
            } else if route.0 != "GET" {
                let cross_site = format!("{session}Sec-Fetch-Site: cross-site\r\n");
                check(&format!("another site with a session of {role}"), route, send(&cross_site).await, Some(403));
            }
        }
    }
    println!("{cells} cells of {} routes, {} mismatches", routes.len(), mismatches.len());
    assert!(mismatches.is_empty(), "{}", mismatches.join("\n"));
}
