//! Pushing one job: what a job to be looks like over HTTP.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{PREFIX, Problems};
use crate::http::json::{Json, Key};
use crate::http::problem::Problem;
use crate::http::server::App;
use crate::http::who::Pusher;
use crate::job::push::{Conflict, Push, Pushed};
use crate::job::{JobId, Priority};

/// The kind of jobs that run a program: pushed over HTTP only where the server was started for it.
pub(super) const COMMAND: &str = "command";

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(push))
}

/// A job to be.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Push)]
pub(super) struct PushBody {
    /// Names the handler that runs it.
    kind: String,
    /// What the handler gets: any JSON; kept byte for byte.
    #[serde(default)]
    #[schema(value_type = Option<serde_json::Value>)]
    args: Option<Box<RawValue>>,
    /// Its queue; `default` if left out.
    queue: Option<String>,
    /// From when it may run, in RFC 3339; at once if left out.
    due: Option<String>,
    /// The same in milliseconds since 1970.
    due_ms: Option<i64>,
    /// So long from now, by the store's clock, in milliseconds.
    after_ms: Option<u64>,
    #[schema(value_type = Option<String>)]
    priority: Option<Priority>,
    /// Key of which at most one unfinished job exists in its queue.
    unique: Option<String>,
    /// What to do if one exists: `keep` it (the default), or `replace` it if it waits.
    on_conflict: Option<OnConflict>,
    /// A UUID of your own: pushing it again changes nothing.
    #[schema(value_type = Option<String>, format = "uuid")]
    id: Option<JobId>,
    max_attempts: Option<u32>,
    timeout_ms: Option<u64>,
    /// How long it stays once it is done.
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

/// What became of a pushed job.
#[derive(Serialize, ToSchema)]
#[schema(as = Pushed)]
pub(super) struct PushedView {
    /// The job that is in the store now.
    id: String,
    /// new, existing or replaced.
    pushed: &'static str,
    /// The waiting job that made room.
    #[serde(skip_serializing_if = "Option::is_none")]
    old: Option<String>,
}

impl PushedView {
    pub(super) fn of(pushed: Pushed) -> Self {
        let (word, old) = match pushed {
            Pushed::Existing(_) => ("existing", None),
            Pushed::Replaced { old, .. } => ("replaced", Some(old.to_string())),
            Pushed::New(_) => ("new", None),
        };
        PushedView { id: pushed.id().to_string(), pushed: word, old }
    }
}

impl PushBody {
    /// The job that is meant; `key` gives it an id, if it has none of its own.
    pub(super) fn into_push(self, app: &App, key: Option<String>) -> Result<Push, Problem> {
        if self.kind == COMMAND && !app.options.commands {
            let detail = "jobs that run programs are not pushed over HTTP; start the server with --allow-commands if you want that";
            return Err(Problem { errors: vec![], ..Problem::forbidden(detail) });
        }
        let due = self.due()?;
        let mut push = Push::with_args(
            self.kind,
            Ok(self.args.map_or_else(|| "null".to_owned(), |args| Box::<str>::from(args).into_string())),
        );
        if let Some(id) = self.id.or_else(|| key.map(|key| JobId::named(&key))) {
            push = push.id(id);
        }
        push.due = due;
        push.queue = self.queue.unwrap_or(push.queue);
        push.priority = self.priority.unwrap_or(push.priority);
        push.unique = self.unique;
        push.conflict = match self.on_conflict {
            Some(OnConflict::Replace) => Conflict::Replace,
            _ => Conflict::Keep,
        };
        push.max_attempts = self.max_attempts.unwrap_or(push.max_attempts);
        push.timeout = self.timeout_ms.map_or(push.timeout, Duration::from_millis);
        push.keep = self.keep_ms.map(Duration::from_millis);
        push.tags = self.tags;
        push.traceparent = self.traceparent;
        Ok(push)
    }

    fn due(&self) -> Result<crate::Due, Problem> {
        due("", self.due.as_deref(), self.due_ms, self.after_ms)
    }
}

/// From when, said in one of three ways; at once if in none.
pub(super) fn due(
    below: &str,
    at: Option<&str>,
    at_ms: Option<i64>,
    after_ms: Option<u64>,
) -> Result<crate::Due, Problem> {
    match (at, at_ms, after_ms) {
        (None, None, None) => Ok(crate::Due::Now),
        (Some(text), None, None) => Ok(crate::Due::At(moment(text).map_err(|problem| problem.below(below))?)),
        (None, Some(at), None) => Ok(crate::Due::At(crate::clock::from_micros(at.saturating_mul(1_000)))),
        (None, None, Some(after)) => Ok(crate::Due::After(Duration::from_millis(after))),
        _ => Err(Problem::invalid(format!("{below}/due"), "say it in one way: due, due_ms or after_ms")),
    }
}

fn moment(text: &str) -> Result<SystemTime, Problem> {
    let parsed: Result<jiff::Timestamp, _> = text.parse();
    parsed
        .map(|at| crate::clock::from_micros(at.as_microsecond()))
        .map_err(|_| Problem::invalid("/due", "not a moment in RFC 3339, such as 2030-01-01T00:00:00Z"))
}

/// Push a job
///
/// Once this answers, the job is kept. With an `Idempotency-Key`, or an `id` of its own, it may be repeated safely.
#[utoipa::path(post, path = "/jobs", tag = "jobs", request_body = PushBody,
    params(("Idempotency-Key" = Option<String>, Header, description = "the same key pushes the same job once")),
    responses((status = 201, body = PushedView, description = "it is in the store now"),
              (status = 200, body = PushedView, description = "it was there already: nothing was changed"), Problems))]
async fn push(
    State(app): State<Arc<App>>,
    _: Pusher,
    Key(key): Key,
    Json(body): Json<PushBody>,
) -> Result<Response, Problem> {
    let job = body.into_push(&app, key)?;
    let pushed = app.duly.push(job).await?;
    let status = if pushed.is_new() { StatusCode::CREATED } else { StatusCode::OK };
    let place = app.link(&format!("{PREFIX}/jobs/{}", pushed.id()));
    Ok((status, [(header::LOCATION, place)], axum::Json(PushedView::of(pushed))).into_response())
}
