//! Bodies and parameters of requests: strict, bounded, and refused with the place at which they are wrong.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::to_bytes;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use super::pointer;
use super::problem::Problem;
use super::server::App;
use super::who::Who;

/// Longest body: args of the longest kind, each byte of them escaped, and what is around them.
pub(super) const BODY_BYTES_MAX: usize = 2 * crate::ARGS_BYTES_MAX;
/// Longest body of many jobs.
pub(super) const BULK_BYTES_MAX: usize = crate::PUSH_BYTES_MAX;
/// Deepest nesting of a body.
const DEPTH_MAX: usize = 64;
/// A body that has not come by then does not come.
const BODY_WAIT: Duration = Duration::from_secs(30);
/// Longest idempotency key.
const KEY_BYTES_MAX: usize = 256;
/// How many keys are remembered with what came with them.
const KEYS_MAX: usize = 10_000;

/// The JSON body of a request.
pub(super) struct Json<T>(pub(super) T);

/// The JSON body of a request that may have none.
pub(super) struct MaybeJson<T>(pub(super) T);

/// Parameters behind the `?`.
pub(super) struct Params<T>(pub(super) T);

/// The one parameter in the path.
pub(super) struct Named<T>(pub(super) T);

/// Reads a whole body, of at most so many bytes.
pub(super) async fn read(request: Request, max: usize) -> Result<axum::body::Bytes, Problem> {
    let large = || {
        let detail = format!("the body has more than {max} bytes; send it in parts");
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", detail)
    };
    let told = request.headers().get(header::CONTENT_LENGTH).and_then(|len| len.to_str().ok()?.parse::<u64>().ok());
    if told.is_some_and(|told| told > max as u64) {
        return Err(large());
    }
    let reading = tokio::time::timeout(BODY_WAIT, to_bytes(request.into_body(), max)).await;
    let slow = || Problem::new(StatusCode::REQUEST_TIMEOUT, "timeout", "the body did not come in time");
    // Longer than allowed, or cut off: whoever has cut it off does not read this.
    reading.map_err(|_| slow())?.map_err(|_| large())
}

/// Reads one value out of JSON text.
pub(super) fn parse<'a, T: serde::Deserialize<'a>>(text: &'a [u8]) -> Result<T, Problem> {
    if pointer::depth(text) > DEPTH_MAX {
        return Err(bad(format!("nested more than {DEPTH_MAX} deep")));
    }
    serde_json::from_slice(text).map_err(|error| match error.classify() {
        serde_json::error::Category::Data => {
            let (at, said) = pointer::of(text, &error);
            Problem::invalid(at, said)
        }
        _ => bad(format!("not JSON: {error}")),
    })
}

/// Reads one value out of a line among many; the first has the number 1. What is wrong is said with that number.
pub(super) fn parse_line<'a, T: serde::Deserialize<'a>>(line: &'a [u8], no: usize) -> Result<T, Problem> {
    parse(line).map_err(|problem| {
        // To the parser every line is the first.
        let said = problem.detail.replace("at line 1 column", "at column");
        Problem { detail: format!("line {no}: {said}"), ..problem }
    })
}

fn bad(detail: String) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "not_json", detail)
}

/// What a body says to be, in lower case.
pub(super) fn content_type(headers: &HeaderMap) -> String {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

pub(super) fn wrong_type(wanted: &str) -> Problem {
    Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "content_type", format!("send it as Content-Type: {wanted}"))
}

impl<T: DeserializeOwned> FromRequest<Arc<App>> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Problem> {
        if content_type(request.headers()) != "application/json" {
            return Err(wrong_type("application/json"));
        }
        let claim = Claimed::of(&request)?;
        let text = read(request, BODY_BYTES_MAX).await?;
        claim.check(app, &text)?;
        parse(&text).map(Json)
    }
}

impl<T: DeserializeOwned + Default> FromRequest<Arc<App>> for MaybeJson<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Problem> {
        let kind = content_type(request.headers());
        let claim = Claimed::of(&request)?;
        let text = read(request, BODY_BYTES_MAX).await?;
        claim.check(app, &text)?;
        match text.is_empty() {
            true => Ok(MaybeJson(T::default())),
            false if kind != "application/json" => Err(wrong_type("application/json")),
            false => parse(&text).map(MaybeJson),
        }
    }
}

/// A request that says everything in its address: a body is an empty object, if there is one.
pub(super) struct NoBody;

#[derive(Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

impl FromRequest<Arc<App>> for NoBody {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Problem> {
        let MaybeJson(Nothing {}) = MaybeJson::from_request(request, app).await?;
        Ok(NoBody)
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let query = Query::<T>::from_request_parts(parts, state).await;
        query.map(|query| Params(query.0)).map_err(|error| {
            let said = error.body_text();
            let said = said.split_once(": ").map_or(&*said, |(_, said)| said).to_owned();
            Problem::invalid(pointer::quoted(&said).unwrap_or("?").to_owned(), said)
        })
    }
}

impl<T, S> FromRequestParts<S> for Named<T>
where
    T: std::str::FromStr<Err = crate::Error>,
    S: Send + Sync,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Path(name) = Path::<String>::from_request_parts(parts, state)
            .await
            .map_err(|_| Problem::invalid("path", "must be UTF-8 text, percent-encoded"))?;
        // What cannot be a name of anything is nothing's.
        name.parse()
            .map(Named)
            .map_err(|error: crate::Error| Problem::new(StatusCode::NOT_FOUND, "not_found", error.to_string()))
    }
}

/// A key by which a repeated request is known, and where it went to.
pub(super) struct Claimed(Option<(String, String)>);

impl Claimed {
    pub(super) fn of(request: &Request) -> Result<Self, Problem> {
        let key = key_of(request.headers(), request.extensions().get::<Who>())?;
        Ok(Claimed(key.map(|key| (key, format!("{} {}", request.method(), request.uri().path())))))
    }

    /// The same key with another request is a mistake of the caller.
    pub(super) fn check(&self, app: &App, body: &[u8]) -> Result<(), Problem> {
        let Some((key, place)) = &self.0 else {
            return Ok(());
        };
        let came = Sha256::new().chain_update(place).chain_update([0]).chain_update(body).finalize().into();
        if app.keys.same(key, came) {
            return Ok(());
        }
        Err(Problem::invalid("Idempotency-Key", "this key came with another request before; use a new one"))
    }
}

/// The idempotency key of a request, if it has one.
pub(super) struct Key(pub(super) Option<String>);

impl<S: Send + Sync> FromRequestParts<S> for Key {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        key_of(&parts.headers, parts.extensions.get::<Who>()).map(Key)
    }
}

/// The idempotency key of a request, with its sender: nobody meets another's.
fn key_of(headers: &HeaderMap, who: Option<&Who>) -> Result<Option<String>, Problem> {
    let Some(key) = headers.get("idempotency-key") else {
        return Ok(None);
    };
    match key.to_str() {
        Ok(key) if (1..=KEY_BYTES_MAX).contains(&key.len()) => {
            Ok(Some(format!("{}\n{key}", who.map_or("", |who| &who.name))))
        }
        _ => Err(Problem::invalid("Idempotency-Key", format!("must be 1 to {KEY_BYTES_MAX} visible characters"))),
    }
}

/// The newest keys, and a digest of what came with each.
#[derive(Default)]
pub(crate) struct IdempotencyKeys(Mutex<Known>);

#[derive(Default)]
struct Known {
    by_key: HashMap<String, [u8; 32]>,
    /// The oldest first.
    order: VecDeque<String>,
}

impl IdempotencyKeys {
    /// Whether this is the first that comes with this key, or the same again.
    fn same(&self, key: &str, came: [u8; 32]) -> bool {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Known { by_key, order } = &mut *known;
        if let Some(before) = by_key.get(key) {
            return *before == came;
        }
        if order.len() >= KEYS_MAX {
            order.pop_front().and_then(|oldest| by_key.remove(&oldest));
        }
        by_key.insert(key.to_owned(), came);
        order.push_back(key.to_owned());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_remembered_boundedly_and_told_apart() {
        let keys = IdempotencyKeys::default();
        assert!(keys.same("a", [1; 32]) && keys.same("a", [1; 32]));
        assert!(!keys.same("a", [2; 32]));
        (0..KEYS_MAX).for_each(|n| assert!(keys.same(&n.to_string(), [3; 32])));
        assert!(keys.same("a", [2; 32]), "forgotten by now");
        assert_eq!(keys.0.lock().expect("no panic").by_key.len(), KEYS_MAX);
    }
}
