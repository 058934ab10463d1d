//! Extractors for bodies and parameters: strict, bounded, and with an error that points at the wrong field.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use duly::JobId;
use duly::admin::JobIdKey;
use duly::bounds::JSON_DEPTH_MAX;
use duly::job::nesting_depth;
use futures_util::StreamExt;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use super::audit::AuditNote;
use super::body_budget::BodyShare;
use super::client_map::ClientMap;
use super::identity::Identity;
use super::json_pointer;
use super::problem::{Problem, Result};
use super::server::App;

use crate::sync::LockExt;

/// The most bytes of a body: the longest args, every byte of them escaped, and the fields around them.
pub(super) const BODY_BYTES_MAX: usize = 2 * duly::bounds::ARGS_BYTES_MAX;
/// The most bytes of a bulk push.
pub(super) const BULK_BYTES_MAX: usize = duly::bounds::PUSH_BYTES_MAX;
/// The timeout for the whole body.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// The most bytes of an idempotency key.
const KEY_BYTES_MAX: usize = 256;
/// The most remembered idempotency keys of all clients.
const KEYS_MAX: usize = 10_000;

/// The JSON body of a request.
pub(super) struct Json<T>(pub(super) T);

/// The JSON body of a request that may have none.
pub(super) struct OptionalJson<T>(pub(super) T);

/// The query parameters of a request.
pub(super) struct QueryParams<T>(pub(super) T);

/// The only parameter in the path.
pub(super) struct PathParam<T>(pub(super) T);

/// The job that the path names: by its id, by a part of it, or by the id that another system has for it.
pub(super) struct JobParam(pub(super) JobId);

/// Reads a whole body of at most `max` bytes.
pub(super) async fn read_body(request: Request, max: usize) -> Result<Bytes> {
    let mut whole = Vec::new();
    read_chunks(request, max, |chunk| {
        whole.extend_from_slice(&chunk);
        Ok(())
    })
    .await?;
    Ok(whole.into())
}

/// Passes the parts of a body of at most `max` bytes on as they arrive. All bytes count as those of the request until it
/// has ended.
pub(super) async fn read_chunks(request: Request, max: usize, mut take: impl FnMut(Bytes) -> Result<()>) -> Result<()> {
    let too_large = || {
        let detail = format!("the body has more than {max} bytes; split it into several requests");
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", detail)
    };
    let length = request.headers().get(header::CONTENT_LENGTH).and_then(|len| len.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > max as u64) {
        return Err(too_large());
    }
    let share = request.extensions().get::<Arc<BodyShare>>().cloned();
    let mut chunks = request.into_body().into_data_stream();
    let reading = async {
        let mut bytes = 0;
        while let Some(chunk) = chunks.next().await {
            // The client has gone away, and reads no response.
            let chunk = chunk.map_err(|_| body_ended())?;
            bytes += chunk.len();
            if bytes > max {
                return Err(too_large());
            }
            share.as_ref().map_or(Ok(()), |share| share.add(chunk.len()))?;
            take(chunk)?;
        }
        Ok(())
    };
    let timed_out =
        |_| Problem::new(StatusCode::REQUEST_TIMEOUT, "timeout", "the body did not arrive in time; send it again");
    tokio::time::timeout(BODY_TIMEOUT, reading).await.map_err(timed_out)?
}

fn body_ended() -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "incomplete", "the body ended early; send it again")
}

/// Reads the body of a request before its handler runs, for extractors without a timeout.
pub(super) async fn buffer_body(request: Request, max: usize) -> Result<Request> {
    let (parts, body) = request.into_parts();
    let mut outer = Request::new(body);
    *outer.headers_mut() = parts.headers.clone();
    if let Some(share) = parts.extensions.get::<Arc<BodyShare>>() {
        outer.extensions_mut().insert(share.clone());
    }
    let whole = read_body(outer, max).await?;
    Ok(Request::from_parts(parts, whole.into()))
}

/// Parses JSON text.
/// Reads a field that may be null, to distinguish it from one that is absent (with `#[serde(default)]`).
pub(super) fn present<'de, D, T>(deserializer: D) -> std::result::Result<Option<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: serde::Deserialize<'de>,
{
    T::deserialize(deserializer).map(Some)
}

pub(super) fn parse<'a, T: serde::Deserialize<'a>>(text: &'a [u8]) -> Result<T> {
    if nesting_depth(text) > JSON_DEPTH_MAX {
        return Err(not_json(format!("nested more than {JSON_DEPTH_MAX} levels deep")));
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
        path_text(parts, state).await?.parse().map(PathParam).map_err(names_nothing)
    }
}

impl FromRequestParts<Arc<App>> for JobParam {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self> {
        let text = path_text(parts, app).await?;
        let found = app.duly.jobs().find_id(&text).await;
        let id = found.map_err(|error| match error {
            duly::Error::Invalid { .. } => names_nothing(error),
            other => other.into(),
        })?;
        if let Some(note) = parts.extensions.get::<AuditNote>() {
            note.set_target(id);
        }
        Ok(JobParam(id))
    }
}

/// Returns the only parameter in the path.
async fn path_text<S: Send + Sync>(parts: &mut Parts, state: &S) -> Result<String> {
    let path = Path::<String>::from_request_parts(parts, state).await;
    path.map(|Path(text)| text).map_err(|_| Problem::invalid("path", "must be UTF-8 text, percent-encoded"))
}

/// Returns the problem with a text that cannot be a name or an id: it names nothing that exists.
fn names_nothing(error: duly::Error) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "not_found", error.to_string())
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
        let mut digest = self.digest();
        digest.update(body);
        self.check_digest(app, digest)
    }

    /// Returns the digest of the request without its body, to be updated with the parts of the body.
    pub(super) fn digest(&self) -> Sha256 {
        let target = self.0.as_ref().map_or("", |(_, target)| target);
        Sha256::new().chain_update(target).chain_update([0])
    }

    /// As [`IdempotencyCheck::check`], for a body of several parts.
    pub(super) fn check_digest(&self, app: &App, digest: Sha256) -> Result<()> {
        let Some((key, _)) = &self.0 else {
            return Ok(());
        };
        let digest = digest.finalize().into();
        if app.idempotency_keys.matches_previous(key, digest) {
            return Ok(());
        }
        Err(Problem::invalid("Idempotency-Key", "this key was used for a different request; use a new key"))
    }
}

/// The idempotency key of a request, if it has one.
pub(super) struct IdempotencyKey(pub(super) Option<KeyedIds>);

/// The ids of the jobs of an idempotency key. Only servers on the same store can compute them, so no other client can
/// push a job under such an id first.
pub(super) struct KeyedIds {
    /// The client and its key.
    pub(super) key: String,
    id_key: JobIdKey,
}

impl KeyedIds {
    /// Returns the id of the only job of the request.
    pub(super) fn id(&self) -> JobId {
        self.id_key.derive(&self.key)
    }

    /// Returns the id of one of several jobs. Keys contain no line feed after that of the client.
    pub(super) fn id_of(&self, part: &str) -> JobId {
        self.id_key.derive(&format!("{}\n{part}", self.key))
    }
}

impl FromRequestParts<Arc<App>> for IdempotencyKey {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self> {
        let Some(key) = scoped_key(&parts.headers, parts.extensions.get::<Identity>())? else {
            return Ok(IdempotencyKey(None));
        };
        let id_key = app.job_id_key.get_or_try_init(|| app.duly.tokens().job_id_key()).await?.clone();
        Ok(IdempotencyKey(Some(KeyedIds { key, id_key })))
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

/// The most recent idempotency keys of each client, with a digest of the request of each.
pub(crate) struct IdempotencyKeys(Mutex<ClientMap<String, KeyRecord>>);

struct KeyRecord {
    /// The digest of the request.
    digest: [u8; 32],
    /// This server has pushed a job with the key.
    confirmed: bool,
}

impl Default for IdempotencyKeys {
    fn default() -> Self {
        IdempotencyKeys(Mutex::new(ClientMap::new(KEYS_MAX)))
    }
}

/// Returns the client of a key from [`scoped_key`], and its own key.
fn split_key(scoped: &str) -> (&str, String) {
    let (client, key) = scoped.rsplit_once('\n').unwrap_or(("", scoped));
    (client, key.to_owned())
}

impl IdempotencyKeys {
    /// Notes that this server has pushed a job with the key.
    pub(super) fn confirm(&self, key: &str) {
        let (client, key) = split_key(key);
        if let Some(record) = self.0.lock_unpoisoned().get_mut(client, &key) {
            record.confirmed = true;
        }
    }

    /// Returns whether this server has pushed a job with the key, and remembers it.
    pub(super) fn is_confirmed(&self, key: &str) -> bool {
        let (client, key) = split_key(key);
        self.0.lock_unpoisoned().get(client, &key).is_some_and(|record| record.confirmed)
    }

    /// Returns whether the key is new, or was sent with the same request before. Remembers a new key.
    fn matches_previous(&self, key: &str, digest: [u8; 32]) -> bool {
        let (client, key) = split_key(key);
        let mut keys = self.0.lock_unpoisoned();
        if let Some(previous) = keys.get(client, &key) {
            return previous.digest == digest;
        }
        keys.insert(client, key, KeyRecord { digest, confirmed: false });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_one_client_displace_none_of_another() {
        let keys = IdempotencyKeys::default();
        assert!(keys.matches_previous("ada\nx", [1; 32]) && keys.matches_previous("ada\nx", [1; 32]));
        keys.confirm("ada\nx");
        assert!(keys.matches_previous("eve\nx", [3; 32]));
        (0..KEYS_MAX).for_each(|n| assert!(keys.matches_previous(&format!("eve\n{n}"), [3; 32])));
        assert!(!keys.matches_previous("ada\nx", [2; 32]) && keys.is_confirmed("ada\nx"));
        assert!(keys.matches_previous("eve\nx", [4; 32]), "forgotten by now");
    }
}
