//! Pushes one job.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{PREFIX, Problems};
use crate::identity::Pusher;
use crate::json::{IdempotencyKey, Json};
use crate::problem::{Problem, Result};
use crate::server::{App, AppState};
use duly::job::{Due, UniqueConflict};
use duly::{JobId, Priority};
use duly::{Push, PushResult};

/// The kind of jobs that run a program; a server accepts them only if it is configured to.
pub(super) const COMMAND: &str = "command";

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(push))
}

/// A job to push.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Push)]
pub(super) struct PushBody {
    /// Selects the handler.
    kind: String,
    /// The args of the handler: any JSON, stored byte for byte.
    #[serde(default)]
    #[schema(value_type = Option<serde_json::Value>)]
    args: Option<Box<RawValue>>,
    /// The queue; `default` if absent.
    queue: Option<String>,
    /// The due time in RFC 3339; now if absent.
    due: Option<String>,
    /// The due time in milliseconds since 1970.
    due_ms: Option<i64>,
    /// The delay by the store's clock, in milliseconds.
    after_ms: Option<u64>,
    #[schema(value_type = Option<String>)]
    priority: Option<Priority>,
    /// At most one unfinished job of the queue has this key.
    unique: Option<String>,
    /// The policy for an existing job with the same key: `keep` it (the default), or `replace` it if it is waiting.
    on_conflict: Option<OnConflict>,
    /// A UUID chosen by the client: pushing the same id again is a no-op.
    #[schema(value_type = Option<String>, format = "uuid")]
    id: Option<JobId>,
    max_attempts: Option<u32>,
    timeout_ms: Option<u64>,
    /// How long the job is kept after it is done.
    keep_ms: Option<u64>,
    #[serde(default)]
    tags: Vec<String>,
    traceparent: Option<String>,
}

#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum OnConflict {
    Keep,
    Replace,
}

/// The result of a push.
#[derive(Serialize, ToSchema)]
#[schema(as = Pushed)]
pub(super) struct PushedView {
    /// The job in the store.
    id: String,
    /// `new`, `existing` or `replaced`.
    pushed: &'static str,
    /// The replaced job.
    #[serde(skip_serializing_if = "Option::is_none")]
    old: Option<String>,
}

impl PushedView {
    pub(super) fn new(pushed: PushResult) -> Self {
        let (status, old) = match pushed {
            PushResult::Existing(_) => ("existing", None),
            PushResult::Replaced { old, .. } => ("replaced", Some(old.to_string())),
            _ => ("new", None),
        };
        PushedView { id: pushed.id().to_string(), pushed: status, old }
    }
}

impl PushBody {
    /// Builds the push; `key` determines the id if the request has none.
    pub(super) fn into_push(self, app: &App, key: Option<String>) -> Result<Push> {
        if self.kind == COMMAND && !app.options.commands {
            let detail = "jobs that run programs are not pushed over HTTP; start the server with --allow-commands if you want that";
            return Err(Problem { errors: vec![], ..Problem::forbidden(detail) });
        }
        let due = self.due()?;
        let args = self.args.map_or_else(|| "null".to_owned(), |args| Box::<str>::from(args).into_string());
        let mut push = Push::new(self.kind, args).tags(self.tags);
        push = match due {
            Due::At(at) => push.at(at),
            Due::After(delay) => push.after(delay),
            _ => push,
        };
        push = set_if_some(push, self.id.or_else(|| key.map(|key| JobId::from_name(&key))), Push::id);
        push = set_if_some(push, self.queue, |push, queue| push.queue(queue));
        push = set_if_some(push, self.priority, Push::priority);
        push = set_if_some(push, self.unique, |push, unique| push.unique(unique));
        push = match self.on_conflict {
            Some(OnConflict::Replace) => push.on_conflict(UniqueConflict::Replace),
            _ => push,
        };
        push = set_if_some(push, self.max_attempts, Push::max_attempts);
        push = set_if_some(push, self.timeout_ms.map(Duration::from_millis), Push::timeout);
        push = set_if_some(push, self.keep_ms.map(Duration::from_millis), Push::keep);
        Ok(set_if_some(push, self.traceparent, |push, traceparent| push.traceparent(traceparent)))
    }

    fn due(&self) -> Result<Due> {
        due("", self.due.as_deref(), self.due_ms, self.after_ms)
    }
}

/// Applies a builder method if there is a value.
pub(super) fn set_if_some<T>(push: Push, value: Option<T>, set: impl FnOnce(Push, T) -> Push) -> Push {
    match value {
        Some(value) => set(push, value),
        None => push,
    }
}

/// Returns the due time from the three fields that can contain it; now if all are absent.
pub(super) fn due(prefix: &str, at: Option<&str>, at_ms: Option<i64>, after_ms: Option<u64>) -> Result<Due> {
    match (at, at_ms, after_ms) {
        (None, None, None) => Ok(Due::Now),
        (Some(text), None, None) => Ok(Due::At(parse_time(text).map_err(|problem| problem.prefix_pointers(prefix))?)),
        (None, Some(at), None) => Ok(Due::At(from_unix_ms(at))),
        (None, None, Some(after)) => Ok(Due::After(Duration::from_millis(after))),
        _ => Err(Problem::invalid(format!("{prefix}/due"), "say it in one way: due, due_ms or after_ms")),
    }
}

/// Returns the time this many milliseconds after 1970, or before it.
fn from_unix_ms(at: i64) -> SystemTime {
    let distance = Duration::from_millis(at.unsigned_abs());
    let time = if at < 0 { UNIX_EPOCH.checked_sub(distance) } else { UNIX_EPOCH.checked_add(distance) };
    time.unwrap_or(UNIX_EPOCH)
}

fn parse_time(text: &str) -> Result<SystemTime> {
    let parsed: Result<jiff::Timestamp, _> = text.parse();
    parsed
        .map(SystemTime::from)
        .map_err(|_| Problem::invalid("/due", "not a moment in RFC 3339, such as 2030-01-01T00:00:00Z"))
}

/// Push a job
///
/// The response confirms that the job is stored. Safe to repeat with the same `Idempotency-Key` or `id`.
#[utoipa::path(post, path = "/jobs", tag = "jobs", request_body = PushBody,
    params(("Idempotency-Key" = Option<String>, Header, description = "requests with the same key push the job once")),
    responses((status = 201, body = PushedView, description = "the job is stored"),
              (status = 200, body = PushedView, description = "the job existed already; nothing was changed"), Problems))]
async fn push(
    State(app): AppState,
    _: Pusher,
    IdempotencyKey(key): IdempotencyKey,
    Json(body): Json<PushBody>,
) -> Result<Response> {
    let job = body.into_push(&app, key)?;
    let pushed = app.duly.push(job).await?;
    let status = if pushed.is_new() { StatusCode::CREATED } else { StatusCode::OK };
    let location = app.link(&format!("{PREFIX}/jobs/{}", pushed.id()));
    Ok((status, [(header::LOCATION, location)], axum::Json(PushedView::new(pushed))).into_response())
}
