//! Changes to all jobs that a filter means: counted first, then run in the background, watched under a name of their own.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::jobs::parameter_error;
use super::push::due;
use super::queues::Name;
use super::{PREFIX, Problems};
use crate::identity::{Identity, Operator};
use crate::json::{Json, PathParam};
use crate::problem::Problem;
use crate::server::App;
use duly::Duly;
use duly::Error;
use duly::Filter;
use duly::JobId;
use duly::{Bulk, Done};

/// How many changes are remembered: the newest.
const OPERATIONS_MAX: usize = 100;

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(start)).routes(routes!(get))
}

/// What to do with which jobs.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ActionBody {
    /// Which, in the language of the filter box: `state:dead kind:mail since:1h`. Empty only with `all`.
    #[serde(default)]
    filter: String,
    /// Really all jobs.
    #[serde(default)]
    all: bool,
    action: Action,
    /// Only count.
    #[serde(default)]
    dry_run: bool,
    /// For reschedule: in RFC 3339.
    due: Option<String>,
    /// For reschedule: in milliseconds since 1970.
    due_ms: Option<i64>,
    /// For reschedule: so long from now, in milliseconds.
    after_ms: Option<u64>,
}

/// retry: due now. reschedule: due then. remove: those that do not run. cancel: those that run.
#[derive(Clone, Copy, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum Action {
    Retry,
    Reschedule,
    Remove,
    Cancel,
}

/// How many jobs are meant.
#[derive(Serialize, ToSchema)]
struct DryRunReply {
    matching: u64,
    /// How many were looked at.
    looked: u64,
    /// All were looked at that could match.
    whole: bool,
}

/// A change to many jobs.
#[derive(Clone, Serialize, ToSchema)]
pub(crate) struct Operation {
    id: String,
    action: Action,
    filter: String,
    /// running, done or failed.
    state: &'static str,
    matching: u64,
    /// Jobs changed.
    done: u64,
    /// Left alone: they were running, moving, gone, or another job has their unique key.
    left: u64,
    /// There may be more: start it again.
    more: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl Operation {
    fn update(&mut self, done: &Done) {
        self.matching = done.matching;
        self.done = done.done;
        self.left = done.running + done.moving + done.existing + done.changed + done.failed;
        self.more = done.more;
    }
}

/// The newest changes.
#[derive(Default)]
pub(crate) struct Operations {
    all: Mutex<VecDeque<Operation>>,
}

impl Operations {
    fn all(&self) -> MutexGuard<'_, VecDeque<Operation>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, id: &str, change: impl FnOnce(&mut Operation)) {
        if let Some(operation) = self.all().iter_mut().find(|operation| operation.id == id) {
            change(operation);
        }
    }
}

fn new_bulk<'p>(duly: &Duly, action: Action, filter: Filter, due: duly::Due) -> Bulk<'p> {
    match action {
        Action::Retry => duly.reschedule_all(filter, duly::Due::Now),
        Action::Reschedule => duly.reschedule_all(filter, due),
        Action::Remove => duly.remove_all(filter),
        Action::Cancel => duly.cancel_all(filter),
    }
}

/// Change all jobs that a filter means
///
/// With `dry_run`, only counts them. Else starts, and answers where to see how far it has come.
#[utoipa::path(post, path = "/jobs/actions", tag = "jobs", request_body = ActionBody,
    responses((status = 200, body = DryRunReply, description = "counted, nothing was changed"),
              (status = 202, body = Operation, description = "it has begun"), Problems))]
async fn start(State(app): State<Arc<App>>, _: Operator, Json(body): Json<ActionBody>) -> Result<Response, Problem> {
    let filter: Filter = body.filter.parse().map_err(|error| parameter_error("/filter", error))?;
    if filter.is_all() && !body.all {
        return Err(Problem::invalid("/filter", "means every job; say `\"all\": true` if that is what you want"));
    }
    let due = due("", body.due.as_deref(), body.due_ms, body.after_ms)?;
    let bulk = new_bulk(&app.duly, body.action, filter, due);
    if body.dry_run {
        let counted = bulk.dry_run().await?;
        let view = DryRunReply { matching: counted.matching, looked: counted.looked, whole: counted.whole };
        return Ok(axum::Json(view).into_response());
    }
    let id = JobId::fresh().to_string();
    let operation = Operation {
        id: id.clone(),
        action: body.action,
        filter: body.filter,
        state: "running",
        matching: 0,
        done: 0,
        left: 0,
        more: false,
        error: None,
    };
    {
        let mut all = app.operations.all();
        if all.len() == OPERATIONS_MAX {
            all.pop_front();
        }
        all.push_back(operation.clone());
    }
    tokio::spawn(run(app.clone(), id.clone(), bulk));
    let location = app.link(&format!("{PREFIX}/operations/{id}"));
    Ok((StatusCode::ACCEPTED, [(header::LOCATION, location)], axum::Json(operation)).into_response())
}

async fn run(app: Arc<App>, id: String, bulk: Bulk<'static>) {
    let (observer, name) = (app.clone(), id.clone());
    let report = move |done: &Done| observer.operations.change(&name, |operation| operation.update(done));
    let result = bulk.on_progress(report).run().await;
    app.operations.change(&id, |operation| match result {
        Ok(done) => {
            operation.update(&done);
            operation.state = "done";
        }
        Err(error) => {
            operation.state = "failed";
            operation.error = Some(Problem::from(error).detail);
        }
    });
}

/// How far a change to many jobs has come
#[utoipa::path(get, path = "/operations/{id}", tag = "jobs", params(("id" = String, Path, description = "what starting it has told")),
    responses((status = 200, body = Operation), Problems))]
async fn get(
    State(app): State<Arc<App>>,
    _: Identity,
    PathParam(Name(id)): PathParam<Name>,
) -> Result<axum::Json<Operation>, Problem> {
    let found = app.operations.all().iter().find(|operation| operation.id == id).cloned();
    Ok(axum::Json(found.ok_or(Error::NotFound { what: "operation", name: id })?))
}
