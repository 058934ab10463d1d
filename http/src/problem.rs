//! Error responses as `application/problem+json` (RFC 9457): a stable code, a message, and the wrong fields.

use std::sync::atomic::{AtomicU64, Ordering};

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::openapi::ConflictName;
use duly::{ConflictKind, Error};

/// The number of requests that the store has failed since this process started.
static STORE_ERRORS: AtomicU64 = AtomicU64::new(0);

/// Returns the number of requests that the store has failed since this process started.
pub(super) fn store_errors() -> u64 {
    STORE_ERRORS.load(Ordering::Relaxed)
}

/// The prefix of the `type` field; docs/reference/errors.md explains the codes.
const TYPES: &str = "urn:duly:error:";

/// The result of a request.
pub(crate) type Result<T, E = Problem> = std::result::Result<T, E>;

/// An error response: without internals, with the wrong field and how to correct it.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    pub(crate) status: StatusCode,
    /// A stable code.
    pub(crate) code: &'static str,
    /// The error, and how to correct it.
    pub(crate) detail: String,
    /// The wrong parts of the request.
    pub(crate) errors: Vec<FieldError>,
    /// The seconds after which the client may try again.
    pub(crate) retry_after: Option<u32>,
    /// The case of a conflict.
    pub(crate) conflict: Option<ConflictKind>,
}

/// A wrong part of the request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub(crate) struct FieldError {
    /// A JSON pointer into the body (`/args`), or the name of a parameter.
    pub(crate) pointer: String,
    /// The error, and the accepted values.
    pub(crate) detail: String,
}

/// The body of an error response.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = Problem)]
pub(crate) struct ProblemBody<'a> {
    /// A URN with the code.
    r#type: String,
    /// The reason phrase of the status.
    title: &'a str,
    status: u16,
    /// A stable code to decide by.
    code: &'a str,
    detail: &'a str,
    /// The case of a `conflict`, to decide by.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false, nullable = false, value_type = ConflictName)]
    conflict: Option<&'static str>,
    #[serde(skip_serializing_if = "<[FieldError]>::is_empty")]
    #[schema(required = false)]
    errors: &'a [FieldError],
    /// The id of the request, also in `X-Request-Id` and in the access log of the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false, nullable = false)]
    request_id: Option<&'a str>,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Problem { status, code, detail: detail.into(), errors: Vec::new(), retry_after: None, conflict: None }
    }

    /// Returns a 422 for this part of the request.
    pub(crate) fn invalid(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        let (pointer, detail) = (pointer.into(), detail.into());
        let mut problem = Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", format!("{pointer}: {detail}"));
        problem.errors.push(FieldError { pointer, detail });
        problem
    }

    /// Returns the 404 for a path without a route.
    pub(crate) fn unknown_route() -> Self {
        Problem::new(StatusCode::NOT_FOUND, "not_found", "there is nothing at this address; see /openapi.json")
    }

    pub(crate) fn unauthorized(detail: impl Into<String>) -> Self {
        Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", detail)
    }

    pub(crate) fn forbidden(detail: impl Into<String>) -> Self {
        Problem::new(StatusCode::FORBIDDEN, "forbidden", detail)
    }

    pub(crate) fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after = Some(seconds);
        self
    }

    /// Puts `prefix` in front of the pointers of all errors.
    pub(crate) fn prefix_pointers(mut self, prefix: &str) -> Self {
        for fault in &mut self.errors {
            fault.pointer = format!("{prefix}{}", fault.pointer);
        }
        self
    }

    pub(crate) fn body(&self) -> ProblemBody<'_> {
        ProblemBody {
            r#type: format!("{TYPES}{}", self.code),
            title: self.status.canonical_reason().unwrap_or("error"),
            status: self.status.as_u16(),
            code: self.code,
            detail: &self.detail,
            conflict: self.conflict.map(ConflictKind::as_str),
            errors: &self.errors,
            request_id: None,
        }
    }

    /// Returns the response of this problem with the id of its request.
    pub(crate) fn add_request_id(&self, response: Response, id: &str) -> Response {
        let (mut parts, _) = response.into_parts();
        // It was set for the shorter body.
        parts.headers.remove(header::CONTENT_LENGTH);
        let body = ProblemBody { request_id: Some(id), ..self.body() };
        Response::from_parts(parts, serde_json::to_string(&body).unwrap_or_default().into())
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let status = match &error {
            Error::Invalid { field, reason, .. } => return Problem::invalid(format!("/{field}"), reason.clone()),
            Error::Store { .. } | Error::Unknown { .. } => StatusCode::SERVICE_UNAVAILABLE,
            Error::Conflict { .. } | Error::Full { .. } => StatusCode::CONFLICT,
            Error::NotFound { .. } => StatusCode::NOT_FOUND,
            Error::Remote { .. } => StatusCode::BAD_GATEWAY,
            Error::Timeout { .. } => StatusCode::GATEWAY_TIMEOUT,
            Error::Unsupported { .. } => StatusCode::NOT_IMPLEMENTED,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        if status == StatusCode::SERVICE_UNAVAILABLE {
            // The store's message may contain hosts and paths: it goes to the log, not to the client.
            STORE_ERRORS.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(%error, "the store failed a request");
            let detail = match &error {
                Error::Unknown { op, .. } => Error::unknown(op).to_string(),
                Error::Store { op, .. } => {
                    format!("{op}: the store failed the request; nothing was changed; try again")
                }
                _ => String::new(),
            };
            return Problem::new(status, error.code(), detail).retry_after(1);
        }
        let mut problem = Problem::new(status, error.code(), error.to_string());
        if let Error::Conflict { kind, .. } = error {
            problem.conflict = Some(kind);
        }
        problem
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = serde_json::to_string(&self.body()).unwrap_or_default();
        let mut response = (self.status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"duly\""));
        }
        // A page shows the same problem as HTML.
        response.extensions_mut().insert(self);
        response
    }
}
