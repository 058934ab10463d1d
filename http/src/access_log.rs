//! The access log: one event of the target `duly::access` for each request, when its response is sent. Each request has
//! an id, which the response repeats.
//!
//! The event has the route and not the path: paths and queries contain names, filters and args.

use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, MatchedPath, Request};
use axum::http::header::HeaderName;
use axum::http::{HeaderMap, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::Response;
use duly::{Clock, JobId};
use hyper::body::{Frame, SizeHint};
use tracing::{Instrument, Level};

/// The header with the id of a request.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The longest request id that is accepted from a client.
const REQUEST_ID_BYTES_MAX: usize = 64;
/// The status of a request whose client has gone away before there was a response, as in other servers.
const CLIENT_GONE: u16 = 499;
/// The route of a request that matches none.
const NO_ROUTE: &str = "-";

/// The id of a request.
#[derive(Clone, Debug)]
pub(crate) struct RequestId(HeaderValue);

impl RequestId {
    /// Returns the client's own id if it is short and plain, or a new one.
    fn new(headers: &HeaderMap) -> Self {
        let is_plain = |id: &&HeaderValue| {
            let id = id.as_bytes();
            let length_fits = (1..=REQUEST_ID_BYTES_MAX).contains(&id.len());
            length_fits && id.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
        };
        let generate = || HeaderValue::try_from(JobId::fresh().to_string());
        RequestId(match headers.get(REQUEST_ID).filter(is_plain) {
            Some(sent) => sent.clone(),
            None => generate().unwrap_or(HeaderValue::from_static("-")),
        })
    }

    pub(crate) fn as_str(&self) -> &str {
        self.0.to_str().unwrap_or_default()
    }
}

/// The name of the client that has sent a request, as an extension of its response.
#[derive(Clone)]
pub(crate) struct ClientName(pub(crate) String);

/// The outermost middleware: gives each request an id, and logs it.
pub(super) async fn log_request(mut request: Request, next: Next) -> Response {
    let id = RequestId::new(request.headers());
    request.extensions_mut().insert(id.clone());
    let is_logged = tracing::enabled!(target: "duly::access", Level::INFO);
    let entry = is_logged.then(|| AccessEntry::new(&request, id.clone()));
    let span = tracing::info_span!(target: "duly::access", "request", request_id = id.as_str());
    let mut response = next.run(request).instrument(span).await;
    response.headers_mut().insert(REQUEST_ID, id.0);
    match entry {
        Some(mut entry) => {
            entry.status = response.status().as_u16();
            entry.client = response.extensions_mut().remove::<ClientName>().map(|client| client.0).unwrap_or_default();
            response.map(|body| Body::new(LoggedBody { body, entry }))
        }
        None => response,
    }
}

/// A request in progress; dropping it writes its line.
struct AccessEntry {
    id: RequestId,
    method: Method,
    route: Option<MatchedPath>,
    address: Option<IpAddr>,
    started: Duration,
    status: u16,
    client: String,
    bytes: u64,
}

impl AccessEntry {
    fn new(request: &Request, id: RequestId) -> Self {
        let extensions = request.extensions();
        AccessEntry {
            id,
            method: request.method().clone(),
            route: extensions.get().cloned(),
            address: extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip().to_canonical()),
            started: Clock::system().monotonic(),
            status: CLIENT_GONE,
            client: String::new(),
            bytes: 0,
        }
    }
}

impl Drop for AccessEntry {
    fn drop(&mut self) {
        let duration = Clock::system().monotonic().saturating_sub(self.started);
        tracing::info!(
            target: "duly::access",
            request_id = self.id.as_str(),
            method = self.method.as_str(),
            route = self.route.as_ref().map_or(NO_ROUTE, MatchedPath::as_str),
            status = self.status,
            duration_ms = duration.as_micros() as f64 / 1e3,
            bytes = self.bytes,
            client = self.client,
            address = self.address.map(tracing::field::display),
            "request",
        );
    }
}

/// The body of a response, whose bytes are counted. Its end, or that of its connection, ends the request.
struct LoggedBody {
    body: Body,
    entry: AccessEntry,
}

impl hyper::body::Body for LoggedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            self.entry.bytes += frame.data_ref().map_or(0, Bytes::len) as u64;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
