//! Authentication and the checks around every request, for the API and for pages alike.
//!
//! The order is: the `Host` header, the origin (CSRF), the identity of the client, whether it may change anything, its rate.
//! The default is to deny: a path that is not in [`is_public`] requires an identity.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use axum::extract::{ConnectInfo, MatchedPath, Request, State};
use axum::http::header::{self, HeaderName};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use duly::JobId;
use duly::admin::{Role, TokenSecret};

use super::credential::Credential;
use super::identity::Identity;
use super::problem::{Problem, Result};
use super::server::{App, AppState, WAIT_MAX};
use super::{audit, pages, sessions};

/// The timeout of a request: longer than the longest wait.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(WAIT_MAX.as_secs() + 10);
/// The longest request id that is accepted from a client.
const REQUEST_ID_BYTES_MAX: usize = 64;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

const CSP: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                   frame-ancestors 'none'; base-uri 'none'; form-action 'self'";

/// The security headers of every response.
const HEADERS: [(HeaderName, &str); 6] = [
    (header::CONTENT_SECURITY_POLICY, CSP),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (header::X_FRAME_OPTIONS, "DENY"),
];

/// The login page.
const LOGIN: &str = "/login";

/// Paths that probes and Prometheus request, by whatever address they have found.
const PROBE_PATHS: [&str; 3] = ["/healthz", "/readyz", "/metrics"];

/// Returns whether a request needs no identity. Such a response reveals nothing about the jobs in the store.
fn is_public(method: &Method, path: &str) -> bool {
    let probe_or_asset = ["/healthz", "/readyz"].contains(&path) || path.starts_with("/assets/");
    (is_safe(method) && probe_or_asset) || path == LOGIN
}

fn is_safe(method: &Method) -> bool {
    [Method::GET, Method::HEAD, Method::OPTIONS].contains(method)
}

/// The middleware around all routes: checks a request, runs it, audits it, and adds headers to the response.
pub(super) async fn handle_request(State(app): AppState, request: Request, next: Next) -> Response {
    let (mut request, body) = request.into_parts();
    let id = request_id(&request.headers);
    let (method, uri) = (request.method.clone(), request.uri.clone());
    let path = uri.path();
    let wants_html = !path.starts_with("/api/") && wants_html(&request.headers);
    let address = client_address(&request);
    let is_route = request.extensions.get::<MatchedPath>().is_some();
    let (identity, response) = match check_request(&app, &request, address).await {
        Err((identity, problem)) => (identity, problem.into_response()),
        Ok(client) => {
            let identity = client.map(|(identity, credential)| {
                request.extensions.insert(credential);
                request.extensions.insert(identity.clone());
                identity
            });
            let run = tokio::time::timeout(REQUEST_TIMEOUT, next.run(Request::from_parts(request, body))).await;
            (identity, run.unwrap_or_else(|_| request_timeout().into_response()))
        }
    };
    if let Some(identity) = identity.as_ref().filter(|_| is_route) {
        audit::record(&app, identity, address, &method, path, response.status()).await;
    }
    let mut response = match response.extensions().get::<Problem>().filter(|_| wants_html).cloned() {
        Some(problem) => pages::problem_page(&app, identity.as_ref(), path, &problem).unwrap_or(response),
        None => response,
    };
    add_headers(&mut response, path, id);
    response
}

fn request_timeout() -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "timeout", "the request took too long; it may have been carried out")
}

/// An identified client, and the credential that it has sent.
type Client = (Identity, Credential);

/// Returns the client of a request that may proceed; `None` for a public path.
async fn check_request(
    app: &App,
    request: &Parts,
    from: Option<IpAddr>,
) -> Result<Option<Client>, (Option<Identity>, Problem)> {
    let (method, path) = (&request.method, request.uri.path());
    let anonymous = |problem| (None, problem);
    check_host(app, request).map_err(anonymous)?;
    check_origin(method, &request.headers, &request.uri).map_err(anonymous)?;
    if is_public(method, path) && path != LOGIN {
        // Liveness probes must not block on an unresponsive store.
        return Ok(None);
    }
    let client = identify(app, request, from).await;
    if is_public(method, path) {
        return Ok(client.unwrap_or(None));
    }
    let (identity, credential) = client.map_err(anonymous)?.ok_or_else(|| anonymous(missing_token(app)))?;
    let refused = |problem| (Some(identity.clone()), problem);
    if !is_safe(method) && path != "/logout" {
        if app.options.read_only {
            return Err(refused(Problem::new(
                StatusCode::FORBIDDEN,
                "read_only",
                "this server is read-only; start it without --read-only to change anything",
            )));
        }
        // Each route requires its own role; a viewer may change nothing anywhere.
        identity.require(Role::Pusher).map_err(refused)?;
    }
    if from.is_none_or(|from| !from.is_loopback()) {
        let keys = [Some(format!("as {}", identity.name)), from.map(|from| from.to_string())];
        for key in keys.into_iter().flatten() {
            app.rate_limits.take_request(&key).map_err(|seconds| refused(too_many_requests(seconds)))?;
        }
    }
    Ok(Some((identity, credential)))
}

fn too_many_requests(seconds: u32) -> Problem {
    Problem::new(StatusCode::TOO_MANY_REQUESTS, "too_many", format!("too many requests; wait {seconds} s"))
        .retry_after(seconds)
}

fn missing_token(app: &App) -> Problem {
    Problem::unauthorized(match app.options.token_required {
        true => "send `Authorization: Bearer <token>`; `duly token create` makes one",
        false => {
            "send `Authorization: Bearer <token>`; `duly token create` makes one, and as long as none was made only this machine gets in"
        }
    })
}

/// Identifies the client by an extension of the request, its token, its session or its address, in this order.
async fn identify(app: &App, request: &Parts, from: Option<IpAddr>) -> Result<Option<Client>> {
    if let Some(identity) = request.extensions.get::<Identity>() {
        return Ok(Some((identity.clone(), Credential::Trusted)));
    }
    if app.options.open {
        return Ok(Some((Identity::new("local", Role::Admin), Credential::Trusted)));
    }
    if let Some(secret) = bearer_token(&request.headers) {
        let identity = identify_by_token(app, &secret, from).await?;
        return Ok(Some((identity, Credential::Token(secret.hash()))));
    }
    let tokens = app.tokens.get(&app.duly).await?;
    let session = sessions::session_id(&request.headers, app.options.secure);
    if let Some((id, hash)) = session.and_then(|id| Some((id, app.sessions.touch(id)?))) {
        let identity = tokens.find_by_hash(hash).map(|token| Identity::new(&*token.name, token.role));
        return Ok(identity.map(|identity| (identity, Credential::Session(id.to_owned()))));
    }
    let is_on_this_machine = from.is_some_and(|from| from.is_loopback()) && !is_proxied(&request.headers);
    let is_local = is_on_this_machine && tokens.is_open && !app.options.token_required;
    Ok(is_local.then(|| (Identity::new("local", Role::Admin), Credential::Local)))
}

/// Returns whether a proxy has forwarded the request: its client may be on another machine.
fn is_proxied(headers: &HeaderMap) -> bool {
    ["forwarded", "x-forwarded-for", "x-real-ip", "via"].iter().any(|name| headers.contains_key(*name))
}

/// Identifies the client by its token. After too many wrong tokens from an address, only a valid token is accepted from it:
/// other clients may share the address.
pub(super) async fn identify_by_token(app: &App, secret: &TokenSecret, from: Option<IpAddr>) -> Result<Identity> {
    let address = from.map_or("unknown".to_owned(), |from| from.to_string());
    let find = async || -> Result<Option<Identity>> {
        let tokens = app.tokens.get(&app.duly).await?;
        Ok(tokens.find_by_secret(secret).map(|token| Identity::new(&*token.name, token.role)))
    };
    if let Some(identity) = find().await? {
        return Ok(identity);
    }
    app.rate_limits.check_failures(&address).map_err(too_many_requests)?;
    // The token may be newer than the cache. The limit on failures bounds these extra reads of the store.
    app.tokens.clear();
    if let Some(identity) = find().await? {
        return Ok(identity);
    }
    app.rate_limits.count_failure(&address);
    Err(Problem::unauthorized("this token is not known here, or has ended; `duly token ls` lists them"))
}

fn bearer_token(headers: &HeaderMap) -> Option<TokenSecret> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, secret) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| TokenSecret::new(secret.trim()))
}

/// Returns a 421 for a `Host` that is not allowed, which stops DNS rebinding. Probes may also use an IP address: rebinding
/// needs a name.
fn check_host(app: &App, request: &Parts) -> Result<()> {
    let header = || request.headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let host = request.uri.host().or_else(header).unwrap_or_default().to_ascii_lowercase();
    let bare = without_port(&host);
    let is_local = ["localhost", "127.0.0.1", "[::1]"].contains(&bare);
    let is_probe = PROBE_PATHS.contains(&request.uri.path()) && is_ip_address(bare);
    if is_local || is_probe || app.options.hosts.iter().any(|allowed| *allowed == host || allowed == bare) {
        return Ok(());
    }
    Err(Problem::new(
        StatusCode::MISDIRECTED_REQUEST,
        "wrong_host",
        "this server does not go by the name in Host; start it with --allow-host NAME",
    ))
}

fn is_ip_address(host: &str) -> bool {
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    bare.map_or_else(|| host.parse::<Ipv4Addr>().is_ok(), |bare| bare.parse::<Ipv6Addr>().is_ok())
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((bare, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !bare.is_empty() => bare,
        _ => host,
    }
}

/// Returns a 403 for a change from another site. Browsers send the origin; other clients send neither header.
fn check_origin(method: &Method, headers: &HeaderMap, uri: &Uri) -> Result<()> {
    if is_safe(method) {
        return Ok(());
    }
    let text = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let is_same_origin = match (text(HeaderName::from_static("sec-fetch-site")), text(header::ORIGIN)) {
        (Some(site), _) => ["same-origin", "none"].contains(&site),
        (None, None) => true,
        (None, Some(origin)) => {
            let host = text(header::HOST).or_else(|| uri.authority().map(axum::http::uri::Authority::as_str));
            let origin = origin.split_once("://").map(|(_, host)| host);
            origin.is_some() && origin == host
        }
    };
    match is_same_origin {
        true => Ok(()),
        false => Err(Problem::new(StatusCode::FORBIDDEN, "cross_site", "another site has sent this request")),
    }
}

fn client_address(request: &Parts) -> Option<IpAddr> {
    request.extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip().to_canonical())
}

pub(super) fn wants_html(headers: &HeaderMap) -> bool {
    headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).is_some_and(|all| all.contains("text/html"))
}

/// Returns the client's own request id if it is short and plain, or a new one.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    let is_plain = |id: &&HeaderValue| {
        let id = id.as_bytes();
        let length_fits = (1..=REQUEST_ID_BYTES_MAX).contains(&id.len());
        length_fits && id.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
    };
    let generate = || HeaderValue::try_from(JobId::fresh().to_string());
    match headers.get(REQUEST_ID).filter(is_plain) {
        Some(sent) => sent.clone(),
        None => generate().unwrap_or(HeaderValue::from_static("-")),
    }
}

fn add_headers(response: &mut Response, path: &str, id: HeaderValue) {
    let headers = response.headers_mut();
    // One allocation: growing the map step by step costs more than all other work here.
    headers.reserve(HEADERS.len() + 2);
    for (name, value) in HEADERS {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    if !path.starts_with("/assets/") {
        headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    }
    headers.insert(REQUEST_ID, id);
}
