//! Pushes one job.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::extract::State;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{PREFIX, Problems};
use crate::credential::Credential;
use crate::identity::Pusher;
use crate::json::{IdempotencyKey, Json, KeyedIds, QueryParams};
use crate::openapi::{PriorityName, UniqueScopeName};
use crate::problem::{Problem, Result};
use crate::server::{App, AppState, WAIT_MAX};
use crate::views::{JobView, PushedView, millis};
use crate::waits::{ClientGone, WaitKind, WaitSlot};
use duly::bounds::DEFAULT_QUEUE;
use duly::job::{Due, UniqueConflict, UniqueScope};
use duly::{Duly, JobId, JobRecord, Priority};
use duly::{Push, PushResult};

/// The kind of jobs that run a program; a server accepts them only if it is configured to.
pub(crate) const COMMAND: &str = "command";

/// How long a job is kept after it is done if a client waits for it, so that the client gets its result.
const WAIT_KEEP: Duration = Duration::from_secs(60);
/// The header by which a client asks for a wait (RFC 7240).
const PREFER: &str = "prefer";

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
    #[schema(value_type = Option<PriorityName>)]
    priority: Option<Priority>,
    /// At most one unfinished job of the same kind and queue has this key.
    unique: Option<String>,
    /// Whether the key is unique among the jobs of the same `kind` (the default) or of the whole `queue`.
    #[schema(value_type = Option<UniqueScopeName>)]
    unique_scope: Option<UniqueScope>,
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

impl PushBody {
    /// Builds the push; `keyed_id` is its id if the request has none.
    pub(super) fn into_push(self, app: &App, keyed_id: Option<JobId>) -> Result<Push> {
        if self.kind == COMMAND && !app.options.commands {
            let detail = "jobs that run commands cannot be pushed over HTTP; start the server with --allow-commands to allow them";
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
        push = set_if_some(push, self.id.or(keyed_id), Push::id);
        push = set_if_some(push, self.queue, |push, queue| push.queue(queue));
        push = set_if_some(push, self.priority, Push::priority);
        push = set_if_some(push, self.unique, |push, unique| push.unique(unique));
        push = set_if_some(push, self.unique_scope, Push::unique_scope);
        push = match self.on_conflict {
            Some(OnConflict::Replace) => push.on_conflict(UniqueConflict::Replace),
            _ => push,
        };
        push = set_if_some(push, self.max_attempts, Push::max_attempts);
        push = set_if_some(push, self.timeout_ms.map(Duration::from_millis), Push::timeout);
        push = set_if_some(push, self.keep_ms.map(Duration::from_millis), Push::keep);
        Ok(set_if_some(push, self.traceparent, |push, traceparent| push.traceparent(traceparent)))
    }

    /// Keeps the job for a while after it is done, so that a client that waits gets its result.
    fn keep_for_wait(&mut self, duly: &Duly) {
        if self.keep_ms.is_none() && duly.default_keep() < WAIT_KEEP {
            self.keep_ms = Some(millis(WAIT_KEEP));
        }
    }

    /// Returns the queue into which the job goes.
    pub(super) fn queue(&self) -> &str {
        self.queue.as_deref().unwrap_or(DEFAULT_QUEUE)
    }

    /// Returns the fingerprint of kind and args.
    pub(super) fn fingerprint(&self) -> [u8; 32] {
        fingerprint(&self.kind, self.args.as_ref().map_or("null", |args| args.get()))
    }

    fn due(&self) -> Result<Due> {
        due("", self.due.as_deref(), self.due_ms, self.after_ms)
    }
}

pub(super) fn fingerprint(kind: &str, args: &str) -> [u8; 32] {
    Sha256::new().chain_update(kind).chain_update([0]).chain_update(args).finalize().into()
}

/// Returns a 409 if the job that a push with a key has found is another one: its client has used the key before, and
/// this server has not seen or has forgotten it.
pub(super) async fn check_existing(
    app: &App,
    key: &str,
    pushed: impl IntoIterator<Item = (JobId, [u8; 32], PushResult)>,
) -> Result<()> {
    // A server that has pushed with the key need not compare: middleware or an edit may have changed the jobs.
    if app.idempotency_keys.is_confirmed(key) {
        return Ok(());
    }
    for (id, expected, pushed) in pushed {
        if !matches!(pushed, PushResult::Existing(existing) if existing == id) {
            continue;
        }
        // A job that is no longer kept cannot be compared.
        let found = app.duly.jobs().get(id).await?;
        if found.is_some_and(|record| fingerprint(&record.job.kind, &record.job.args) != expected) {
            let detail = format!("this key belongs to job {id}, which differs from this one; use a new key");
            return Err(Problem::new(StatusCode::CONFLICT, "key_taken", detail));
        }
    }
    app.idempotency_keys.confirm(key);
    Ok(())
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
        _ => Err(Problem::invalid(format!("{prefix}/due"), "use only one of due, due_ms and after_ms")),
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
        .map_err(|_| Problem::invalid("/due", "not a time in RFC 3339; write it as 2030-01-01T00:00:00Z"))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct PushQuery {
    /// Waits this long for the end of the job, at most a minute: `30s`. The header `Prefer: wait=30` does the same.
    wait: Option<String>,
}

impl PushQuery {
    /// Returns how long to wait: the parameter, or the preference in seconds.
    fn wait(&self, headers: &HeaderMap) -> Result<Option<Duration>> {
        if let Some(text) = &self.wait {
            let wait = duly::admin::parse_duration(text).map_err(|reason| Problem::invalid("wait", reason))?;
            return Ok(Some(wait.min(WAIT_MAX)));
        }
        let preferences = headers.get_all(PREFER).iter().filter_map(|value| value.to_str().ok());
        let mut waits =
            preferences.flat_map(|all| all.split([',', ';'])).filter_map(|one| one.trim().strip_prefix("wait="));
        // Unknown preferences are ignored, as RFC 7240 requires.
        let seconds: Option<u64> = waits.find_map(|seconds| seconds.trim_matches('"').parse().ok());
        Ok(seconds.map(|seconds| Duration::from_secs(seconds).min(WAIT_MAX)))
    }
}

/// Push a job
///
/// The response confirms that the job is stored. Safe to repeat with the same `Idempotency-Key` or `id`.
///
/// With `wait`, the response comes when the job has ended, or after that time. It contains the job with its result. A
/// job pushed this way is kept for at least a minute after it is done, unless `keep_ms` is set. If the job is gone when
/// it has ended, `job` is absent.
#[utoipa::path(post, path = "/jobs", tag = "jobs", operation_id = "pushJob", request_body = PushBody,
    params(("Idempotency-Key" = Option<String>, Header, description = "requests with the same key push the job once"),
        ("Prefer" = Option<String>, Header, description = "`wait=30` waits 30 s for the end of the job"), PushQuery),
    responses((status = 201, body = PushedView, description = "the job is stored"),
              (status = 200, body = PushedView, description = "the job existed already, and nothing was changed; with `wait`, it has ended"),
              (status = 202, body = PushedView, description = "the job is stored, and has not ended in the time of `wait`"), Problems))]
async fn push(
    State(app): AppState,
    Pusher(identity): Pusher,
    credential: Credential,
    request: Parts,
    QueryParams(params): QueryParams<PushQuery>,
    IdempotencyKey(key): IdempotencyKey,
    Json(mut body): Json<PushBody>,
) -> Result<Response> {
    let wait = params.wait(&request.headers)?;
    let slot = wait.map(|_| WaitSlot::acquire(&app, &identity, &credential, WaitKind::Watch)).transpose()?;
    if wait.is_some() {
        body.keep_for_wait(&app.duly);
    }
    let fingerprint = body.fingerprint();
    let job = body.into_push(&app, key.as_ref().map(KeyedIds::id))?;
    job.check()?;
    let queues = app.queue_count_limit.reserve(&app.duly, &identity, [job.job_queue()]).await?;
    let id = job.job_id();
    let pushed = app.duly.push(job).await?;
    queues.confirm();
    let mut is_own = pushed.is_new();
    if let Some(key) = key {
        check_existing(&app, &key.key, [(id, fingerprint, pushed)]).await?;
        // The id was derived from the name of the client and its key.
        is_own |= pushed.id() == key.id();
    }
    let mut view = PushedView::from(pushed);
    let status = match wait {
        None if pushed.is_new() => StatusCode::CREATED,
        None => StatusCode::OK,
        Some(wait) => {
            let gone = request.extensions.get::<ClientGone>().cloned().unwrap_or_default();
            let (status, record) = wait_for_end(&app, pushed.id(), wait, &gone).await?;
            let see =
                |record: JobRecord| if is_own { JobView::from(&record) } else { JobView::new(&record, &identity) };
            view.job = record.map(|record| Box::new(see(record)));
            status
        }
    };
    drop(slot);
    let location = app.link(&format!("{PREFIX}/jobs/{}", pushed.id()));
    Ok((status, [(header::LOCATION, location)], axum::Json(view)).into_response())
}

/// Returns the job when it has ended, or as it is after this time; none if it is gone. Stops if the client goes away.
async fn wait_for_end(
    app: &App,
    id: JobId,
    wait: Duration,
    gone: &ClientGone,
) -> Result<(StatusCode, Option<JobRecord>)> {
    let ended = tokio::time::timeout(wait, app.duly.jobs().wait(id));
    match gone.0.run_until_cancelled(ended).await {
        None => Ok((StatusCode::ACCEPTED, None)),
        Some(Ok(ended)) => Ok((StatusCode::OK, ended?)),
        Some(Err(_)) => Ok((StatusCode::ACCEPTED, app.duly.jobs().get(id).await?)),
    }
}
