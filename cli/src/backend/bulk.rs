//! Changes of all jobs of a filter or a queue.

use std::time::Duration;

use duly::admin::{AuditOutcome, BulkOperation, BulkReport};
use duly::job::Due;
use duly::{Duly, Filter};
use duly_http::views::{Action, ClearResponse, DryRunResponse, Operation};
use serde_json::json;

use super::Backend;
use crate::api_client::{ApiClient, url_encode};
use crate::audit::BulkAction;
use crate::exit::{self, CliError};

/// How often the progress of an operation of a server is read.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// The jobs of a bulk change, and the change.
pub(crate) enum BulkTarget {
    Filter(Action, Box<Filter>),
    /// Removes the jobs of a queue.
    Queue(String),
}

impl BulkTarget {
    fn operation(&self, duly: &Duly) -> BulkOperation<'static> {
        let jobs = duly.jobs();
        match self {
            BulkTarget::Filter(Action::Cancel, filter) => jobs.cancel_all((**filter).clone()),
            BulkTarget::Filter(Action::Remove, filter) => jobs.remove_all((**filter).clone()),
            BulkTarget::Filter(_, filter) => jobs.reschedule_all((**filter).clone(), Due::Now),
            BulkTarget::Queue(queue) => duly.queues().clear(queue.clone()),
        }
    }

    fn audit<'d>(&self, duly: &'d Duly) -> BulkAction<'d> {
        match self {
            BulkTarget::Filter(action, filter) => BulkAction::on_filter(duly, action.audit_name(), filter),
            BulkTarget::Queue(queue) => {
                BulkAction { duly, name: "queues.clear", filter: None, target: Some(queue.clone()) }
            }
        }
    }

    /// Returns the operation without any changes.
    fn new_operation(&self) -> Operation {
        match self {
            BulkTarget::Filter(action, filter) => Operation::new("", *action, filter.to_string()),
            BulkTarget::Queue(queue) => {
                Operation::new("", Action::Remove, Filter::all().queue(queue.clone()).to_string())
            }
        }
    }
}

/// The result of a bulk change.
pub(crate) struct BulkEnd {
    pub(crate) operation: Operation,
    /// Why jobs were skipped, if it is known.
    pub(crate) report: Option<BulkReport>,
}

impl Backend {
    /// Counts the jobs that would change.
    pub(crate) async fn count_jobs(&self, target: &BulkTarget) -> anyhow::Result<DryRunResponse> {
        let server = match self {
            Backend::Store(duly) => return Ok(DryRunResponse::from(&target.operation(duly).dry_run().await?)),
            Backend::Server(server) => server,
        };
        let operation = target.new_operation();
        let is_all = operation.filter.is_empty();
        let body =
            json!({"filter": operation.filter, "all": is_all, "action": operation.action.as_str(), "dry_run": true});
        server.request("POST", "/jobs/actions", Some(body.to_string())).await
    }

    /// Changes the jobs; `progress` gets the number of changed jobs so far.
    pub(crate) async fn change_jobs(
        &self,
        target: &BulkTarget,
        mut progress: impl FnMut(u64) + Send + Sync,
    ) -> anyhow::Result<BulkEnd> {
        let duly = match (self, target) {
            (Backend::Store(duly), _) => duly,
            (Backend::Server(server), BulkTarget::Queue(queue)) => return clear_on_server(server, target, queue).await,
            (Backend::Server(server), BulkTarget::Filter(..)) => return run_on_server(server, target, progress).await,
        };
        let audited = target.audit(duly);
        // Jobs may change even if this process is killed.
        audited.record(AuditOutcome::Started, None).await;
        let result = target.operation(duly).on_progress(move |so_far| progress(so_far.applied)).run().await;
        match &result {
            Ok(report) => audited.record(AuditOutcome::Done, Some(report.applied)).await,
            Err(_) => audited.record(AuditOutcome::Unknown, None).await,
        }
        let (report, mut operation) = (result?, target.new_operation());
        operation.update(&report);
        operation.end(None);
        Ok(BulkEnd { operation, report: Some(report) })
    }
}

async fn clear_on_server(server: &ApiClient, target: &BulkTarget, queue: &str) -> anyhow::Result<BulkEnd> {
    let name = url_encode(queue);
    let cleared: ClearResponse = server.request("DELETE", &format!("/queues/{name}/jobs?confirm={name}"), None).await?;
    let mut operation = target.new_operation();
    operation.matching = cleared.removed + cleared.skipped;
    (operation.done, operation.skipped, operation.has_more) = (cleared.removed, cleared.skipped, cleared.has_more);
    operation.end(None);
    Ok(BulkEnd { operation, report: None })
}

async fn run_on_server(
    server: &ApiClient,
    target: &BulkTarget,
    mut progress: impl FnMut(u64),
) -> anyhow::Result<BulkEnd> {
    let new = target.new_operation();
    let body = json!({"filter": new.filter, "all": new.filter.is_empty(), "action": new.action.as_str()});
    let mut operation: Operation = server.request("POST", "/jobs/actions", Some(body.to_string())).await?;
    let path = format!("/operations/{}", url_encode(&operation.id));
    while operation.state == "running" {
        tokio::time::sleep(PROGRESS_INTERVAL).await;
        operation = server.get(&path).await?;
        progress(operation.done);
    }
    match &operation.error {
        Some(error) => Err(CliError::new(exit::FAILURE, error.clone())),
        None => Ok(BulkEnd { operation, report: None }),
    }
}
