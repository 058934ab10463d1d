//! Authentication and the checks around every request, for the API and for pages alike.
//!
//! The order is: the `Host` header, the origin (CSRF), the identity of the client, whether it may change anything, its rate.
//! The default is to deny: a path that is not in [`is_public`] requires an identity.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{ConnectInfo, MatchedPath, Request, State};
use axum::http::header::{self, HeaderName};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use duly::CancellationToken;
use duly::admin::{Role, TokenSecret};
use tracing::Instrument;

use super::access_log::{ClientName, RequestId};
use super::audit::AuditedRequest;
use super::audited_action::AuditedAction;
use super::client_network::client_network;
use super::credential::Credential;
use super::identity::Identity;
use super::json::BODY_BYTES_MAX;
use super::local::NotLocal;
use super::problem::{Problem, Result};
use super::server::{App, AppState, WAIT_MAX};
use super::sessions::SessionCredential;
use super::slots::{BusySlot, HeldBody, NoSlot, Slot};
use super::waits::{ClientGone, WaitKind, WaitSlot};
use super::{api, json, local, metrics, pages};

/// The timeout of a request: longer than the longest wait.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(WAIT_MAX.as_secs() + 10);
/// The most bytes of the login form.
const LOGIN_BYTES_MAX: usize = 16 * 1024;

/// The header of requests that a page sends to refresh itself.
pub(super) const LIVE_UPDATE: HeaderName = HeaderName::from_static("x-live");

/// The name of a client that needs no token.
pub(super) const LOCAL: &str = "local";

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
    let id = request.extensions.get::<RequestId>().cloned();
    let uri = request.uri.clone();
    let path = uri.path();
    let wants_html = !path.starts_with("/api/") && wants_html(&request.headers);
    let (identity, response) = match check_request(&app, &request).await {
        Err((identity, problem)) => {
            if let Some(identity) = &identity
                && let Some(audited) = audited_request(&app, &request, Some(identity))
            {
                audited.end(problem.status).await;
            }
            (identity, add_request_id(problem.into_response(), id.as_ref()))
        }
        Ok((client, busy)) => {
            let identity = client.map(|(identity, credential)| {
                request.extensions.insert(credential);
                request.extensions.insert(identity.clone());
                identity
            });
            let busy = busy.map(Arc::new);
            let response = run_request(&app, request, body, identity.as_ref(), busy.clone(), next).await;
            let response = add_request_id(response, id.as_ref());
            (identity, hold_while_sent(response, busy))
        }
    };
    let mut response = match response.extensions().get::<Problem>().filter(|_| wants_html).cloned() {
        Some(problem) => pages::problem_page(&app, identity.as_ref(), &uri, &problem).unwrap_or(response),
        None => response,
    };
    add_headers(&mut response, path);
    if let Some(identity) = identity {
        response.extensions_mut().insert(ClientName(identity.name));
    }
    response
}

/// Adds the id of the request to an error response.
fn add_request_id(response: Response, id: Option<&RequestId>) -> Response {
    match (response.extensions().get::<Problem>().cloned(), id) {
        (Some(problem), Some(id)) => problem.add_request_id(response, id.as_str()),
        _ => response,
    }
}

/// Returns the audit record of a request that changes something; `None` for other requests and for unknown routes.
fn audited_request(app: &Arc<App>, request: &Parts, identity: Option<&Identity>) -> Option<AuditedRequest> {
    let pattern = request.extensions.get::<MatchedPath>().filter(|_| !is_safe(&request.method))?;
    let action = AuditedAction::new(&request.method, pattern.as_str(), request.uri.path());
    let actor = identity.map(|identity| identity.name.clone()).unwrap_or_default();
    Some(AuditedRequest::new(app.clone(), action, actor, client_address(request)))
}

/// Runs a request. A request that changes something is recorded, and goes on if its client goes away, until it ends or
/// times out; only waits end with their client.
async fn run_request(
    app: &Arc<App>,
    mut request: Parts,
    body: Body,
    identity: Option<&Identity>,
    busy: Option<Arc<BusySlot>>,
    next: Next,
) -> Response {
    let audited = audited_request(app, &request, identity);
    let network = client_address(&request).map(|address| client_network(address).to_string());
    let client = identity.map(|identity| identity.name.clone()).or(network).unwrap_or_default();
    let share = app.body_budget.share(&client);
    request.extensions.insert(share.clone());
    if let Some(audited) = &audited {
        request.extensions.insert(audited.note.clone());
    }
    let wait = audited.as_ref().filter(|audited| audited.waits).map(|_| take_wait_slot(app, &request));
    let ends_with_client = audited.is_none() || wait.is_some();
    let is_form = !is_safe(&request.method) && !request.uri.path().starts_with(api::PREFIX);
    let form_max = if request.uri.path() == LOGIN { LOGIN_BYTES_MAX } else { BODY_BYTES_MAX };
    let tasks = app.tasks.clone();
    let gone = CancellationToken::new();
    request.extensions.insert(ClientGone(gone.clone()));
    // The connection drops this future when its client goes away, or when the server stops.
    let _gone = gone.drop_guard();
    let run = async move {
        let request = Request::from_parts(request, body);
        let run = async {
            let _wait = wait.transpose()?;
            let request = if is_form { json::buffer_body(request, form_max).await? } else { request };
            Ok::<_, Problem>(next.run(request).await)
        };
        let run = async { run.await.unwrap_or_else(IntoResponse::into_response) };
        let response = tokio::time::timeout(REQUEST_TIMEOUT, run).await;
        let response = response.unwrap_or_else(|_| request_timeout().into_response());
        if let Some(audited) = audited {
            // In a task of its own: a client that hangs up now must not stop the record.
            let _ = tasks.spawn(audited.end(status_for_audit(&response)).in_current_span()).await;
        }
        // Both count as long as the request runs, even if its client has gone away.
        drop((share, busy));
        response
    };
    match ends_with_client {
        true => run.await,
        // A dropped request must not stop between a change and its record.
        false => app.tasks.spawn(run.in_current_span()).await.unwrap_or_else(|_| handler_failed().into_response()),
    }
}

/// Returns the status of a response. That of a busy server is a refusal: other errors of a server leave open whether the
/// request was carried out.
fn status_for_audit(response: &Response) -> StatusCode {
    let problem = response.extensions().get::<Problem>();
    let is_refused = problem.is_some_and(|problem| problem.code == "busy");
    if is_refused { StatusCode::TOO_MANY_REQUESTS } else { response.status() }
}

/// Counts a request that may wait.
fn take_wait_slot(app: &Arc<App>, request: &Parts) -> Result<Option<WaitSlot>> {
    let client = request.extensions.get::<Identity>().zip(request.extensions.get::<Credential>());
    client.map(|(identity, credential)| WaitSlot::acquire(app, identity, credential, WaitKind::Work)).transpose()
}

fn request_timeout() -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "timeout", "the request took too long; it may have been carried out")
}

pub(super) fn handler_failed() -> Problem {
    let detail = "the request failed inside the server; it may have been carried out; see the server's log";
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail)
}

/// Keeps the slot of a request until its response is sent.
fn hold_while_sent(response: Response, busy: Option<Arc<BusySlot>>) -> Response {
    match busy {
        Some(busy) => response.map(|body| Body::new(HeldBody::new(body, busy))),
        None => response,
    }
}

/// An identified client, and the credential that it has sent.
type Client = (Identity, Credential);

/// A refused request, with its client if that is known.
type Refusal = (Option<Identity>, Problem);

/// Returns the client of a request that may proceed, `None` for a public path, and the slot of its connection.
async fn check_request(app: &App, request: &Parts) -> Result<(Option<Client>, Option<BusySlot>), Refusal> {
    let (method, path) = (&request.method, request.uri.path());
    let anonymous = |problem| (None, problem);
    check_host(app, request).map_err(anonymous)?;
    check_origin(method, &request.headers, &request.uri).map_err(anonymous)?;
    check_encoding(&request.headers).map_err(anonymous)?;
    if is_public(method, path) && path != LOGIN {
        // Liveness probes must not block on an unresponsive store.
        return Ok((None, None));
    }
    if is_public(method, path) {
        check_address_rate(app, request).map_err(anonymous)?;
        return Ok((identify(app, request).await.ok(), None));
    }
    let (identity, credential) = identify(app, request).await.map_err(anonymous)?;
    let refused = |problem| (Some(identity.clone()), problem);
    if !is_safe(method) && path != "/logout" {
        if app.options.read_only {
            return Err(refused(Problem::new(
                StatusCode::FORBIDDEN,
                "read_only",
                "this server is read-only; start it without --read-only to allow changes",
            )));
        }
        // Each route requires its own role; a viewer may change nothing anywhere.
        identity.require(Role::Pusher).map_err(refused)?;
    }
    check_rate(app, request, &identity, &credential).await.map_err(refused)?;
    let busy = take_slot(request, &identity, &credential).map_err(refused)?;
    Ok((Some((identity, credential)), busy))
}

/// Returns a 429 if the client or its address has sent too many requests. Local clients have no limit, but a proxy on
/// this machine is none.
async fn check_rate(app: &App, request: &Parts, identity: &Identity, credential: &Credential) -> Result<()> {
    if matches!(credential, Credential::Local) {
        return Ok(());
    }
    let by_name = app.rate_limits.take_request(&format!("as {}", identity.name));
    let limited =
        by_name.and_then(|()| remote_network(request).map_or(Ok(()), |key| app.rate_limits.take_request(&key)));
    match limited {
        // Finding the user of a connection costs more than counting.
        Err(seconds) if local::check_local(app, request).await.is_err() => Err(too_many_requests(seconds)),
        _ => Ok(()),
    }
}

/// As [`check_rate`], for a client that is not identified.
fn check_address_rate(app: &App, request: &Parts) -> Result<()> {
    remote_network(request).map_or(Ok(()), |key| app.rate_limits.take_request(&key)).map_err(too_many_requests)
}

/// Returns the key of a remote client for limits by address. Clients behind a proxy on this machine share its address.
fn remote_network(request: &Parts) -> Option<String> {
    let address = client_address(request).filter(|address| !address.is_loopback())?;
    Some(client_network(address).to_string())
}

/// Makes the connection of a request busy, if this server has accepted it.
fn take_slot(request: &Parts, identity: &Identity, credential: &Credential) -> Result<Option<BusySlot>> {
    let has_share = matches!(credential, Credential::Token(_) | Credential::Session(_));
    let Some(slot) = request.extensions.get::<Arc<Slot>>() else {
        return Ok(None);
    };
    slot.become_busy(has_share.then_some(&*identity.name)).map(Some).map_err(|reason| match reason {
        NoSlot::Full => {
            let detail = "all connections of this server are busy; try again, or start it with more --connections";
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, "busy", detail).retry_after(1)
        }
        NoSlot::ClientShare => {
            let detail = format!(
                "{} uses its share of the server's connections: send fewer requests at a time, or use several tokens",
                identity.name
            );
            Problem::new(StatusCode::TOO_MANY_REQUESTS, "too_many", detail).retry_after(1)
        }
    })
}

/// Returns a 415 for a compressed body: it would be read as it is.
fn check_encoding(headers: &HeaderMap) -> Result<()> {
    let is_plain = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"identity");
    match headers.get_all(header::CONTENT_ENCODING).iter().all(is_plain) {
        true => Ok(()),
        false => {
            let detail = "send the body without Content-Encoding";
            Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "content_encoding", detail))
        }
    }
}

pub(super) fn too_many_requests(seconds: u32) -> Problem {
    Problem::new(StatusCode::TOO_MANY_REQUESTS, "too_many", format!("too many requests; wait {seconds} s"))
        .retry_after(seconds)
}

fn missing_token(reason: NotLocal) -> Problem {
    let reason = reason.explain();
    Problem::unauthorized(format!(
        "{reason}; create a token with `duly token create NAME --role admin` where the store is, and send it as \
         `Authorization: Bearer <token>`"
    ))
}

/// Identifies the client by an extension of the request, its token, its session or its connection, in this order.
async fn identify(app: &App, request: &Parts) -> Result<Client> {
    if let Some(identity) = request.extensions.get::<Identity>() {
        return Ok((identity.clone(), Credential::Trusted));
    }
    if app.options.open {
        return Ok((Identity::new(LOCAL, Role::Admin), Credential::Trusted));
    }
    if let Some(secret) = bearer_token(&request.headers) {
        let identity = identify_by_token(app, &secret, client_address(request)).await?;
        return Ok((identity, Credential::Token(secret.hash())));
    }
    let tokens = app.tokens.get(&app.duly).await?;
    let is_open = tokens.is_open && !app.options.token_required && !app.options.commands;
    if let Some((id, credential)) = find_session(app, request).await {
        let identity = match credential {
            SessionCredential::Token(hash) => {
                tokens.find_by_hash(hash).map(|token| Identity::new(&*token.name, token.role))
            }
            SessionCredential::Link => tokens.accepts_link().then(|| Identity::new(LOCAL, Role::Admin)),
        };
        let identity = identity.ok_or_else(|| missing_token(NotLocal::TokenRequired))?;
        return Ok((identity, Credential::Session(id.to_owned())));
    }
    if !is_open {
        return Err(missing_token(NotLocal::TokenRequired));
    }
    local::check_local(app, request).await.map_err(missing_token)?;
    Ok((Identity::new(LOCAL, Role::Admin), Credential::Local))
}

/// Returns the id of the session of a request, and the credential that created it. Live updates of a page do not keep
/// the session alive.
async fn find_session<'r>(app: &App, request: &'r Parts) -> Option<(&'r str, SessionCredential)> {
    let headers = &request.headers;
    let id = app.sessions.id_in(headers)?;
    // An unknown id must not cost a search for the user.
    app.sessions.peek(id)?;
    if !app.sessions.accepts_user(id, local::loopback_uid(&request.extensions).await) {
        tracing::debug!("refused a session, which another user of this machine has sent");
        return None;
    }
    let accepts = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let credential = match headers.contains_key(LIVE_UPDATE) || accepts.contains("text/event-stream") {
        true => app.sessions.peek(id),
        false => app.sessions.touch(id),
    };
    Some((id, credential?))
}

/// Identifies the client by its token. After too many wrong tokens from an address, only a valid token is accepted from it:
/// other clients may share the address.
pub(super) async fn identify_by_token(app: &App, secret: &TokenSecret, from: Option<IpAddr>) -> Result<Identity> {
    let network = from.map_or("unknown".to_owned(), |from| client_network(from).to_string());
    let find = async || -> Result<Option<Identity>> {
        let tokens = app.tokens.get(&app.duly).await?;
        Ok(tokens.find_by_secret(secret).map(|token| Identity::new(&*token.name, token.role)))
    };
    if let Some(identity) = find().await? {
        return Ok(identity);
    }
    if let Err(seconds) = app.rate_limits.check_failures(&network) {
        metrics::count_refused_token();
        return Err(too_many_requests(seconds));
    }
    // The token may be newer than the cache. The limit on failures bounds these extra reads of the store.
    app.tokens.clear();
    if let Some(identity) = find().await? {
        return Ok(identity);
    }
    app.rate_limits.count_failure(&network);
    metrics::count_refused_token();
    tracing::warn!(address = from.map(tracing::field::display), "a client has sent an unknown or expired token");
    Err(Problem::unauthorized(
        "this token is unknown or has expired; check it, or create a new one with `duly token create NAME`",
    ))
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
        "this server does not accept the name in Host; start it with --allow-host NAME",
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
        false => Err(Problem::new(
            StatusCode::FORBIDDEN,
            "cross_site",
            "this request comes from another site; send it from a page of this server",
        )),
    }
}

fn client_address(request: &Parts) -> Option<IpAddr> {
    request.extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip().to_canonical())
}

pub(super) fn wants_html(headers: &HeaderMap) -> bool {
    headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).is_some_and(|all| all.contains("text/html"))
}

fn add_headers(response: &mut Response, path: &str) {
    let headers = response.headers_mut();
    // One allocation: growing the map step by step costs more than all other work here.
    headers.reserve(HEADERS.len() + 2);
    for (name, value) in HEADERS {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    if !path.starts_with("/assets/") {
        headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    }
}

#[cfg(test)]
mod tests;
