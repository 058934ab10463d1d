//! What went wrong, as `application/problem+json` (RFC 9457): a stable code, words for people, and the field at fault.

use std::sync::atomic::{AtomicU64, Ordering};

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::error::Error;

/// How many requests the store has failed since this process began.
static STORE_ERRORS: AtomicU64 = AtomicU64::new(0);

/// How many requests the store has failed since this process began.
pub(super) fn store_errors() -> u64 {
    STORE_ERRORS.load(Ordering::Relaxed)
}

/// What a code is a name in; docs/reference/errors.md explains them.
const TYPES: &str = "urn:duly:error:";

/// An error as the caller gets it: no internals, but the field at fault and what to do about it.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    pub(crate) status: StatusCode,
    /// One stable word.
    pub(crate) code: &'static str,
    /// What went wrong this time, and what to do.
    pub(crate) detail: String,
    /// Parts of the request that are wrong.
    pub(crate) errors: Vec<Fault>,
    /// Try again after so many seconds.
    pub(crate) retry_after: Option<u32>,
}

/// A part of the request that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub(crate) struct Fault {
    /// Where: a JSON pointer into the body (`/args`), or the name of a parameter.
    pub(crate) pointer: String,
    /// What is wrong with it, and what would be right.
    pub(crate) detail: String,
}

/// The document that is sent.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = Problem)]
pub(crate) struct Document<'a> {
    /// Where the code is explained.
    r#type: String,
    /// The status in words.
    title: &'a str,
    status: u16,
    /// One stable word: what to decide by.
    code: &'a str,
    detail: &'a str,
    #[serde(skip_serializing_if = "<[Fault]>::is_empty")]
    #[schema(required = false)]
    errors: &'a [Fault],
}

impl Problem {
    pub(crate) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Problem { status, code, detail: detail.into(), errors: Vec::new(), retry_after: None }
    }

    /// The request is wrong at this place.
    pub(crate) fn invalid(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        let (pointer, detail) = (pointer.into(), detail.into());
        let mut problem = Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", format!("{pointer}: {detail}"));
        problem.errors.push(Fault { pointer, detail });
        problem
    }

    /// There is nothing at this address.
    pub(crate) fn no_page() -> Self {
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

    /// The fault of one among many stands below `prefix`.
    pub(crate) fn below(mut self, prefix: &str) -> Self {
        for fault in &mut self.errors {
            fault.pointer = format!("{prefix}{}", fault.pointer);
        }
        self
    }

    pub(crate) fn document(&self) -> Document<'_> {
        Document {
            r#type: format!("{TYPES}{}", self.code),
            title: self.status.canonical_reason().unwrap_or("error"),
            status: self.status.as_u16(),
            code: self.code,
            detail: &self.detail,
            errors: &self.errors,
        }
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let status = match &error {
            Error::Invalid { field, reason } => return Problem::invalid(format!("/{field}"), reason.clone()),
            Error::Store { .. } | Error::Unknown { .. } => StatusCode::SERVICE_UNAVAILABLE,
            Error::LeaseLost(_) | Error::Conflict(_) | Error::Full { .. } => StatusCode::CONFLICT,
            Error::NotFound { .. } => StatusCode::NOT_FOUND,
            Error::Remote { .. } => StatusCode::BAD_GATEWAY,
            Error::Timeout { .. } => StatusCode::GATEWAY_TIMEOUT,
            Error::Unsupported { .. } => StatusCode::NOT_IMPLEMENTED,
        };
        if status == StatusCode::SERVICE_UNAVAILABLE {
            // What the store said may name hosts and paths: that is for the log, not for the caller.
            STORE_ERRORS.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(%error, "the store failed a request");
            let detail = match &error {
                Error::Unknown { op, .. } => Error::Unknown { op, source: None }.to_string(),
                Error::Store { op, .. } => format!("{op}: the store did not do it; nothing was changed, try again"),
                _ => String::new(),
            };
            return Problem::new(status, error.code(), detail).retry_after(1);
        }
        Problem::new(status, error.code(), error.to_string())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = serde_json::to_string(&self.document()).unwrap_or_default();
        let mut response = (self.status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"duly\""));
        }
        // So that a page can show the same as HTML.
        response.extensions_mut().insert(self);
        response
    }
}
