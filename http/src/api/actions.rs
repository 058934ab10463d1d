//! Bulk actions on the jobs that match a filter: counted first, then run in the background as an operation with an id.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::jobs::parameter_error;
use super::push::{COMMAND, due};
use super::queues::Name;
use super::{PREFIX, Problems};
use crate::audit::AuditNote;
use crate::bulk_task::BulkTask;
use crate::identity::{Identity, Operator};
use crate::json::{Json, PathParam};
use crate::problem::{Problem, Result};
use crate::server::{App, AppState};
use crate::sync::LockExt;
use crate::views::{Action, DryRunResponse, Operation};
use duly::Duly;
use duly::Error;
use duly::Filter;
use duly::JobId;
use duly::admin::{BulkOperation, BulkReport};
use duly::job::FilterTerm;

/// The most operations that are remembered, newest first.
const OPERATIONS_MAX: usize = 100;

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(start)).routes(routes!(get))
}

/// An action, and the jobs it applies to.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ActionBody {
    /// The jobs, as a filter: `state:dead kind:mail since:1h`. Empty only with `all`.
    #[serde(default)]
    filter: String,
    /// Confirms that the action applies to all jobs.
    #[serde(default)]
    all: bool,
    action: Action,
    /// Only counts the jobs.
    #[serde(default)]
    dry_run: bool,
    /// The due time for `reschedule`, in RFC 3339.
    due: Option<String>,
    /// The due time for `reschedule`, in milliseconds since 1970.
    due_ms: Option<i64>,
    /// The delay for `reschedule`, in milliseconds.
    after_ms: Option<u64>,
}

/// The most recent operations.
#[derive(Default)]
pub(crate) struct Operations {
    all: Mutex<VecDeque<Operation>>,
}

impl Operations {
    fn all(&self) -> MutexGuard<'_, VecDeque<Operation>> {
        self.all.lock_unpoisoned()
    }

    fn change(&self, id: &str, change: impl FnOnce(&mut Operation)) {
        if let Some(operation) = self.all().iter_mut().find(|operation| operation.id == id) {
            change(operation);
        }
    }
}

fn new_bulk<'p>(duly: &Duly, action: Action, filter: Filter, due: duly::job::Due) -> BulkOperation<'p> {
    match action {
        Action::Retry => duly.jobs().reschedule_all(filter, duly::job::Due::Now),
        Action::Reschedule => duly.jobs().reschedule_all(filter, due),
        Action::Remove => duly.jobs().remove_all(filter),
        Action::Cancel => duly.jobs().cancel_all(filter),
    }
}

/// Start a bulk action
///
/// With `dry_run`, only counts the jobs. Otherwise returns the operation, and its URL in `Location`.
#[utoipa::path(post, path = "/jobs/actions", tag = "jobs", operation_id = "startBulkAction", request_body = ActionBody,
    responses((status = 200, body = DryRunResponse, description = "counted, nothing was changed"),
              (status = 202, body = Operation, description = "started"), Problems))]
async fn start(State(app): AppState, _: Operator, note: AuditNote, Json(body): Json<ActionBody>) -> Result<Response> {
    note.set_name(body.action.audit_name().to_owned());
    note.set_filter(&body.filter);
    let mut filter = Filter::parse_for_change(&body.filter).map_err(|error| parameter_error("/filter", error))?;
    if filter.is_all() && !body.all {
        return Err(Problem::invalid("/filter", "matches all jobs; add `\"all\": true` to confirm that"));
    }
    let due = due("", body.due.as_deref(), body.due_ms, body.after_ms)?;
    if matches!(body.action, Action::Retry | Action::Reschedule) {
        filter = without_commands(&app, filter);
    }
    let bulk = new_bulk(&app.duly, body.action, filter, due);
    if body.dry_run {
        note.skip();
        let counted = bulk.dry_run().await?;
        return Ok(axum::Json(DryRunResponse::from(&counted)).into_response());
    }
    let id = JobId::fresh().to_string();
    let operation = Operation::new(&id, body.action, body.filter);
    {
        let mut all = app.operations.all();
        if all.len() == OPERATIONS_MAX {
            all.pop_front();
        }
        all.push_back(operation.clone());
    }
    let (observer, name) = (app.clone(), id.clone());
    let report = move |done: &BulkReport| observer.operations.change(&name, |operation| operation.update(done));
    let task = BulkTask::start(&app, &note, bulk, report).await;
    let (background, name) = (app.clone(), id.clone());
    app.tasks.spawn(async move {
        let result = task.end().await;
        background.operations.change(&name, |operation| match result {
            Ok(report) => {
                operation.update(&report);
                operation.end(None);
            }
            Err(problem) => operation.end(Some(problem.detail)),
        });
    });
    let location = app.link(&format!("{PREFIX}/operations/{id}"));
    Ok((StatusCode::ACCEPTED, [(header::LOCATION, location)], axum::Json(operation)).into_response())
}

/// Leaves `command` jobs out of a filter for jobs that are to run, unless the server accepts them.
pub(crate) fn without_commands(app: &App, mut filter: Filter) -> Filter {
    if !app.options.commands {
        filter.not.push(FilterTerm::Kind(COMMAND.to_owned()));
    }
    filter
}

/// Get the progress of a bulk action
#[utoipa::path(get, path = "/operations/{id}", tag = "jobs", operation_id = "getOperation", params(("id" = String, Path, description = "the id of the operation")),
    responses((status = 200, description = "the operation", body = Operation), Problems))]
async fn get(State(app): AppState, _: Identity, PathParam(Name(id)): PathParam<Name>) -> Result<axum::Json<Operation>> {
    let found = app.operations.all().iter().find(|operation| operation.id == id).cloned();
    Ok(axum::Json(found.ok_or_else(|| Error::not_found("operation", id))?))
}
