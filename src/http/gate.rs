//! The gate: every request passes here first, for the API and for pages alike, and every answer on its way out.
//!
//! In this order: is it meant for this server (Host), who is it, is it forged (CSRF), may anything be changed, how often.
//! Deny by default: whatever is not listed in [`is_open`] needs somebody known.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{ConnectInfo, MatchedPath, Request, State};
use axum::http::header::{self, HeaderName};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::problem::Problem;
use super::proof::Proof;
use super::server::{App, WAIT_MAX};
use super::who::Who;
use super::{audit, pages, session};
use crate::admin::token::{Role, hash};

/// A request that has not been answered by then never will be: longer than the longest wait.
const REQUEST_MAX: Duration = Duration::from_secs(WAIT_MAX.as_secs() + 10);
/// Longest id of a request that is taken over from its sender.
const REQUEST_ID_MAX: usize = 64;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

const CSP: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                   frame-ancestors 'none'; base-uri 'none'; form-action 'self'";

/// What goes with every answer.
const HEADERS: [(HeaderName, &str); 6] = [
    (header::CONTENT_SECURITY_POLICY, CSP),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (header::X_FRAME_OPTIONS, "DENY"),
];

/// Where people say who they are.
const LOGIN: &str = "/login";

/// What can be had without being known: it reveals nothing of what is in the store.
fn is_open(method: &Method, path: &str) -> bool {
    let reads = is_safe(method);
    (reads && (["/healthz", "/readyz"].contains(&path) || path.starts_with("/assets/"))) || path == LOGIN
}

fn is_safe(method: &Method) -> bool {
    [Method::GET, Method::HEAD, Method::OPTIONS].contains(method)
}

/// Lets a request in, and its answer out.
pub(super) async fn pass(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let (mut request, body) = request.into_parts();
    let id = request_id(&request.headers);
    let (method, uri) = (request.method.clone(), request.uri.clone());
    let path = uri.path();
    let wants_html = !path.starts_with("/api/") && wants_html(&request.headers);
    let address = address(&request);
    let is_route = request.extensions.get::<MatchedPath>().is_some();
    let (who, answer) = match admit(&app, &request, address).await {
        Err((who, problem)) => (who, problem.into_response()),
        Ok(known) => {
            let who = known.map(|(who, proof)| {
                request.extensions.insert(proof);
                request.extensions.insert(who.clone());
                who
            });
            let answered = tokio::time::timeout(REQUEST_MAX, next.run(Request::from_parts(request, body))).await;
            (who, answered.unwrap_or_else(|_| too_long().into_response()))
        }
    };
    if let Some(who) = who.as_ref().filter(|_| is_route) {
        audit::note(&app, who, address, &method, path, answer.status()).await;
    }
    let mut answer = match answer.extensions().get::<Problem>().filter(|_| wants_html).cloned() {
        Some(problem) => pages::problem(&app, who.as_ref(), path, &problem).unwrap_or(answer),
        None => answer,
    };
    dress(&mut answer, path, id);
    answer
}

fn too_long() -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "timeout", "the request took too long; it may have been carried out")
}

/// Somebody, and by what they are known.
type Known = (Who, Proof);

/// Who it is, if they may come in; `None` where nobody needs to be known.
async fn admit(app: &App, request: &Parts, from: Option<IpAddr>) -> Result<Option<Known>, (Option<Who>, Problem)> {
    let (method, path) = (&request.method, request.uri.path());
    let nobody = |problem| (None, problem);
    host_is_ours(app, request).map_err(nobody)?;
    same_origin(method, &request.headers, &request.uri).map_err(nobody)?;
    if is_open(method, path) && path != LOGIN {
        // Who asks whether the process lives must not wait for a store that does not.
        return Ok(None);
    }
    let known = identify(app, request, from).await;
    if is_open(method, path) {
        return Ok(known.unwrap_or(None));
    }
    let (who, proof) = known.map_err(nobody)?.ok_or_else(|| nobody(unknown(app)))?;
    let refused = |problem| (Some(who.clone()), problem);
    if !is_safe(method) && path != "/logout" {
        if app.options.read_only {
            return Err(refused(Problem::new(
                StatusCode::FORBIDDEN,
                "read_only",
                "this server is read-only; start it without --read-only to change anything",
            )));
        }
        // What exactly they may do is said at each route; those who only look may change nothing anywhere.
        who.may(Role::Pusher).map_err(refused)?;
    }
    if from.is_none_or(|from| !from.is_loopback()) {
        for whose in [Some(format!("as {}", who.name)), from.map(|from| from.to_string())].into_iter().flatten() {
            app.limits.request(&whose).map_err(|seconds| refused(too_often(seconds)))?;
        }
    }
    Ok(Some((who, proof)))
}

fn too_often(seconds: u32) -> Problem {
    Problem::new(StatusCode::TOO_MANY_REQUESTS, "too_many", format!("too many requests; wait {seconds} s"))
        .retry_after(seconds)
}

fn unknown(app: &App) -> Problem {
    Problem::unauthorized(match app.options.token_required {
        true => "send `Authorization: Bearer <token>`; `duly token create` makes one",
        false => {
            "send `Authorization: Bearer <token>`; `duly token create` makes one, and as long as none was made only this machine gets in"
        }
    })
}

/// Who has sent it, by what they have brought.
async fn identify(app: &App, request: &Parts, from: Option<IpAddr>) -> Result<Option<Known>, Problem> {
    if let Some(who) = request.extensions.get::<Who>() {
        return Ok(Some((who.clone(), Proof::Vouched)));
    }
    if app.options.open {
        return Ok(Some((Who::new("local", Role::Admin), Proof::Vouched)));
    }
    if let Some(secret) = bearer(&request.headers) {
        let who = by_token(app, secret, from).await?;
        return Ok(Some((who, Proof::Token(hash(secret)))));
    }
    let known = app.tokens.all(&app.duly).await?;
    let session = session::id_of(&request.headers, app.options.secure);
    if let Some((id, hash)) = session.and_then(|id| Some((id, app.sessions.token(id)?))) {
        let whose = known.with_hash(hash).map(|token| Who::new(&*token.name, token.role));
        return Ok(whose.map(|who| (who, Proof::Session(id.to_owned()))));
    }
    let here = from.is_some_and(|from| from.is_loopback()) && !is_passed_on(&request.headers);
    let local = here && !known.any && !app.options.token_required;
    Ok(local.then(|| (Who::new("local", Role::Admin), Proof::Here)))
}

/// A proxy on this machine has passed it on for somebody who may be anywhere.
fn is_passed_on(headers: &HeaderMap) -> bool {
    ["forwarded", "x-forwarded-for", "x-real-ip", "via"].iter().any(|name| headers.contains_key(*name))
}

/// Whose token this is. An address that has guessed wrong too often is told only of right ones: others may share it.
pub(super) async fn by_token(app: &App, secret: &str, from: Option<IpAddr>) -> Result<Who, Problem> {
    let address = from.map_or("unknown".to_owned(), |from| from.to_string());
    let whose = async || -> Result<Option<Who>, Problem> {
        let all = app.tokens.all(&app.duly).await?;
        Ok(all.sent(secret).map(|token| Who::new(&*token.name, token.role)))
    };
    if let Some(who) = whose().await? {
        return Ok(who);
    }
    app.limits.may_try(&address).map_err(too_often)?;
    // One that is not known may have been made a moment ago: looked for once more, which guessing cannot make often.
    app.tokens.forget();
    if let Some(who) = whose().await? {
        return Ok(who);
    }
    app.limits.failed(&address);
    Err(Problem::unauthorized("this token is not known here, or has ended; `duly token ls` lists them"))
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, secret) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(secret.trim())
}

/// What machines ask, by whatever address they found: probes and Prometheus.
const FOR_MACHINES: [&str; 3] = ["/healthz", "/readyz", "/metrics"];

/// A name that leads here by a trick (DNS rebinding) is not ours. An address is no name, so that trick needs another.
fn host_is_ours(app: &App, request: &Parts) -> Result<(), Problem> {
    let told = || request.headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let host = request.uri.host().or_else(told).unwrap_or_default().to_ascii_lowercase();
    let bare = without_port(&host);
    let local = ["localhost", "127.0.0.1", "[::1]"].contains(&bare);
    let found = FOR_MACHINES.contains(&request.uri.path()) && is_address(bare);
    if local || found || app.options.hosts.iter().any(|ours| *ours == host || ours == bare) {
        return Ok(());
    }
    Err(Problem::new(
        StatusCode::MISDIRECTED_REQUEST,
        "wrong_host",
        "this server does not go by the name in Host; start it with --allow-host NAME",
    ))
}

fn is_address(host: &str) -> bool {
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    bare.map_or_else(|| host.parse::<Ipv4Addr>().is_ok(), |bare| bare.parse::<Ipv6Addr>().is_ok())
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((bare, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !bare.is_empty() => bare,
        _ => host,
    }
}

/// A browser says where a request comes from: only our own pages may change something.
fn same_origin(method: &Method, headers: &HeaderMap, uri: &Uri) -> Result<(), Problem> {
    if is_safe(method) {
        return Ok(());
    }
    let text = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let ours = match (text(HeaderName::from_static("sec-fetch-site")), text(header::ORIGIN)) {
        (Some(site), _) => ["same-origin", "none"].contains(&site),
        // No browser.
        (None, None) => true,
        (None, Some(origin)) => {
            let host = text(header::HOST).or_else(|| uri.authority().map(axum::http::uri::Authority::as_str));
            let origin = origin.split_once("://").map(|(_, host)| host);
            origin.is_some() && origin == host
        }
    };
    match ours {
        true => Ok(()),
        false => Err(Problem::new(StatusCode::FORBIDDEN, "cross_site", "another site has sent this request")),
    }
}

fn address(request: &Parts) -> Option<IpAddr> {
    request.extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip().to_canonical())
}

pub(super) fn wants_html(headers: &HeaderMap) -> bool {
    headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).is_some_and(|all| all.contains("text/html"))
}

/// By what a request is known in logs: what its sender calls it, if that is fit to be repeated, or a fresh id.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    let good = |id: &&HeaderValue| {
        let id = id.as_bytes();
        (1..=REQUEST_ID_MAX).contains(&id.len()) && id.iter().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(b))
    };
    let fresh = || HeaderValue::try_from(crate::job::JobId::fresh().to_string());
    match headers.get(REQUEST_ID).filter(good) {
        Some(sent) => sent.clone(),
        None => fresh().unwrap_or(HeaderValue::from_static("-")),
    }
}

fn dress(answer: &mut Response, path: &str, id: HeaderValue) {
    let headers = answer.headers_mut();
    // At once: growing by and by costs more than all the rest.
    headers.reserve(HEADERS.len() + 2);
    for (name, value) in HEADERS {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    if !path.starts_with("/assets/") {
        headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    }
    headers.insert(REQUEST_ID, id);
}
