//! Extractors for bodies and parameters: strict, bounded, and with an error that points at the wrong field.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::to_bytes;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use super::identity::Identity;
use super::json_pointer;
use super::problem::{Problem, Result};
use super::server::App;

use crate::sync::LockExt;

/// The most bytes of a body: the longest args, every byte of them escaped, and the fields around them.
pub(super) const BODY_BYTES_MAX: usize = 2 * duly::bounds::ARGS_BYTES_MAX;
/// The most bytes of a bulk push.
pub(super) const BULK_BYTES_MAX: usize = duly::bounds::PUSH_BYTES_MAX;
/// The deepest nesting of a body.
const DEPTH_MAX: usize = 64;
/// The timeout for the whole body.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// The most bytes of an idempotency key.
const KEY_BYTES_MAX: usize = 256;
/// The most remembered idempotency keys.
const KEYS_MAX: usize = 10_000;

/// The JSON body of a request.
pub(super) struct Json<T>(pub(super) T);

/// The JSON body of a request that may have none.
pub(super) struct OptionalJson<T>(pub(super) T);

/// The query parameters of a request.
pub(super) struct QueryParams<T>(pub(super) T);

/// The only parameter in the path.
pub(super) struct PathParam<T>(pub(super) T);

/// Reads a whole body of at most `max` bytes.
pub(super) async fn read_body(request: Request, max: usize) -> Result<axum::body::Bytes> {
    let too_large = || {
        let detail = format!("the body has more than {max} bytes; send it in parts");
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", detail)
    };
    let length = request.headers().get(header::CONTENT_LENGTH).and_then(|len| len.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > max as u64) {
        return Err(too_large());
    }
    let reading = tokio::time::timeout(BODY_TIMEOUT, to_bytes(request.into_body(), max)).await;
    let timed_out = || Problem::new(StatusCode::REQUEST_TIMEOUT, "timeout", "the body did not come in time");
    // The body is too long, or the client has gone away and reads no response.
    reading.map_err(|_| timed_out())?.map_err(|_| too_large())
}

/// Parses JSON text.
pub(super) fn parse<'a, T: serde::Deserialize<'a>>(text: &'a [u8]) -> Result<T> {
    if json_pointer::nesting_depth(text) > DEPTH_MAX {
        return Err(not_json(format!("nested more than {DEPTH_MAX} deep")));
    }
    serde_json::from_slice(text).map_err(|error| match error.classify() {
        serde_json::error::Category::Data => {
            let (at, message) = json_pointer::locate_error(text, &error);
            Problem::invalid(at, message)
        }
        _ => not_json(format!("not JSON: {error}")),
    })
}

/// Parses one line of NDJSON. Errors contain its number, from 1.
pub(super) fn parse_line<'a, T: serde::Deserialize<'a>>(line: &'a [u8], number: usize) -> Result<T> {
    parse(line).map_err(|problem| {
        // The parser numbers every line 1.
        let message = problem.detail.replace("at line 1 column", "at column");
        Problem { detail: format!("line {number}: {message}"), ..problem }
    })
}

fn not_json(detail: String) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "not_json", detail)
}

/// Returns the media type of a body in lower case.
pub(super) fn content_type(headers: &HeaderMap) -> String {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

pub(super) fn wrong_type(expected: &str) -> Problem {
    Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "content_type", format!("send it as Content-Type: {expected}"))
}

impl<T: DeserializeOwned> FromRequest<Arc<App>> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self> {
        if content_type(request.headers()) != "application/json" {
            return Err(wrong_type("application/json"));
        }
        let idempotency = IdempotencyCheck::new(&request)?;
        let text = read_body(request, BODY_BYTES_MAX).await?;
        idempotency.check(app, &text)?;
        parse(&text).map(Json)
    }
}

impl<T: DeserializeOwned + Default> FromRequest<Arc<App>> for OptionalJson<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self> {
        let kind = content_type(request.headers());
        let idempotency = IdempotencyCheck::new(&request)?;
        let text = read_body(request, BODY_BYTES_MAX).await?;
        idempotency.check(app, &text)?;
        match text.is_empty() {
            true => Ok(OptionalJson(T::default())),
            false if kind != "application/json" => Err(wrong_type("application/json")),
            false => parse(&text).map(OptionalJson),
        }
    }
}

/// A request without a body; an empty object is accepted too.
pub(super) struct NoBody;

#[derive(Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct EmptyObject {}

impl FromRequest<Arc<App>> for NoBody {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self> {
        let OptionalJson(EmptyObject {}) = OptionalJson::from_request(request, app).await?;
        Ok(NoBody)
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for QueryParams<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self> {
        let query = Query::<T>::from_request_parts(parts, state).await;
        query.map(|query| QueryParams(query.0)).map_err(|error| {
            let message = error.body_text();
            let message = message.split_once(": ").map_or(&*message, |(_, message)| message).to_owned();
            Problem::invalid(json_pointer::backquoted(&message).unwrap_or("?").to_owned(), message)
        })
    }
}

impl<T, S> FromRequestParts<S> for PathParam<T>
where
    T: std::str::FromStr<Err = duly::Error>,
    S: Send + Sync,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self> {
        let Path(name) = Path::<String>::from_request_parts(parts, state)
            .await
            .map_err(|_| Problem::invalid("path", "must be UTF-8 text, percent-encoded"))?;
        // A text that cannot be a name or an id names nothing that exists.
        name.parse()
            .map(PathParam)
            .map_err(|error: duly::Error| Problem::new(StatusCode::NOT_FOUND, "not_found", error.to_string()))
    }
}

/// The idempotency key of a request, and its method and path.
pub(super) struct IdempotencyCheck(Option<(String, String)>);

impl IdempotencyCheck {
    pub(super) fn new(request: &Request) -> Result<Self> {
        let key = scoped_key(request.headers(), request.extensions().get::<Identity>())?;
        Ok(IdempotencyCheck(key.map(|key| (key, format!("{} {}", request.method(), request.uri().path())))))
    }

    /// Returns an error if the client has sent the same key with another request.
    pub(super) fn check(&self, app: &App, body: &[u8]) -> Result<()> {
        let Some((key, target)) = &self.0 else {
            return Ok(());
        };
        let digest = Sha256::new().chain_update(target).chain_update([0]).chain_update(body).finalize().into();
        if app.idempotency_keys.matches_previous(key, digest) {
            return Ok(());
        }
        Err(Problem::invalid("Idempotency-Key", "this key came with another request before; use a new one"))
    }
}

/// The idempotency key of a request, if it has one.
pub(super) struct IdempotencyKey(pub(super) Option<String>);

impl<S: Send + Sync> FromRequestParts<S> for IdempotencyKey {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self> {
        scoped_key(&parts.headers, parts.extensions.get::<Identity>()).map(IdempotencyKey)
    }
}

/// Returns the idempotency key of a request, prefixed by its client: clients do not share keys.
fn scoped_key(headers: &HeaderMap, identity: Option<&Identity>) -> Result<Option<String>> {
    let Some(key) = headers.get("idempotency-key") else {
        return Ok(None);
    };
    match key.to_str() {
        Ok(key) if (1..=KEY_BYTES_MAX).contains(&key.len()) => {
            Ok(Some(format!("{}\n{key}", identity.map_or("", |identity| &identity.name))))
        }
        _ => Err(Problem::invalid("Idempotency-Key", format!("must be 1 to {KEY_BYTES_MAX} visible characters"))),
    }
}

/// The most recent idempotency keys, with a digest of the request of each.
#[derive(Default)]
pub(crate) struct IdempotencyKeys(Mutex<KeyDigests>);

#[derive(Default)]
struct KeyDigests {
    by_key: HashMap<String, [u8; 32]>,
    /// Oldest first.
    order: VecDeque<String>,
}

impl IdempotencyKeys {
    /// Returns whether the key is new, or was sent with the same request before. Remembers a new key.
    fn matches_previous(&self, key: &str, digest: [u8; 32]) -> bool {
        let mut keys = self.0.lock_unpoisoned();
        let KeyDigests { by_key, order } = &mut *keys;
        if let Some(previous) = by_key.get(key) {
            return *previous == digest;
        }
        if order.len() >= KEYS_MAX {
            order.pop_front().and_then(|oldest| by_key.remove(&oldest));
        }
        by_key.insert(key.to_owned(), digest);
        order.push_back(key.to_owned());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_remembered_keys_is_bounded() {
        let keys = IdempotencyKeys::default();
        assert!(keys.matches_previous("a", [1; 32]) && keys.matches_previous("a", [1; 32]));
        assert!(!keys.matches_previous("a", [2; 32]));
        (0..KEYS_MAX).for_each(|n| assert!(keys.matches_previous(&n.to_string(), [3; 32])));
        assert!(keys.matches_previous("a", [2; 32]), "forgotten by now");
        assert_eq!(keys.0.lock().expect("no panic").by_key.len(), KEYS_MAX);
    }
}
