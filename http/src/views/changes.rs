//! The results of changes.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::JobView;
use crate::openapi::{JobStateName, OperationStateName, PushedName};
use duly::PushResult;
use duly::State;
use duly::admin::{BulkCount, BulkReport, CancelResult};

/// The result of a push.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[non_exhaustive]
#[schema(as = Pushed)]
pub struct PushedView {
    /// The job in the store.
    #[schema(format = "uuid")]
    pub id: String,
    /// `new`, `existing` or `replaced`.
    #[schema(value_type = PushedName)]
    pub pushed: String,
    /// The replaced job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old: Option<String>,
    /// The job at the end of a wait. The client sees args and result if it has pushed the job itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<Box<JobView>>,
}

impl From<PushResult> for PushedView {
    fn from(pushed: PushResult) -> Self {
        let (status, old) = match pushed {
            PushResult::Existing(_) => ("existing", None),
            PushResult::Replaced { old, .. } => ("replaced", Some(old.to_string())),
            _ => ("new", None),
        };
        PushedView { id: pushed.id().to_string(), pushed: status.to_owned(), old, job: None }
    }
}

/// The result of a change.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
#[non_exhaustive]
pub struct ChangeResponse {
    /// Whether the request changed anything.
    pub changed: bool,
}

impl ChangeResponse {
    /// Returns the result of a change.
    #[must_use]
    pub fn new(changed: bool) -> Self {
        ChangeResponse { changed }
    }
}

/// The number of removed jobs.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
#[non_exhaustive]
pub struct ClearResponse {
    /// The number of removed jobs.
    pub removed: u64,
    /// The number of skipped jobs: running, or changed by another request.
    pub skipped: u64,
    /// More jobs may remain: clear the queue again.
    pub has_more: bool,
}

impl From<&BulkReport> for ClearResponse {
    fn from(report: &BulkReport) -> Self {
        let skipped = report.skipped_running + report.skipped_moving + report.skipped_changed;
        ClearResponse { removed: report.applied, skipped, has_more: report.has_more }
    }
}

/// The number of jobs that match.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
#[non_exhaustive]
pub struct DryRunResponse {
    /// The number of jobs that match.
    pub matching: u64,
    /// The number of examined jobs.
    pub scanned: u64,
    /// Every job that could match was examined.
    pub is_complete: bool,
}

impl From<&BulkCount> for DryRunResponse {
    fn from(count: &BulkCount) -> Self {
        DryRunResponse { matching: count.matching, scanned: count.scanned, is_complete: count.is_complete }
    }
}

/// `retry` makes jobs due now, `reschedule` due later; `remove` deletes jobs that are not running; `cancel` ends
/// those that are not done or dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Action {
    /// Makes jobs due now; dead ones start over.
    Retry,
    /// Makes jobs due at another time.
    Reschedule,
    /// Deletes jobs that are not running.
    Remove,
    /// Ends jobs that are not done or dead.
    Cancel,
}

impl Action {
    /// Returns the name in requests.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Action::Retry => "retry",
            Action::Reschedule => "reschedule",
            Action::Remove => "remove",
            Action::Cancel => "cancel",
        }
    }

    /// Returns the name in the audit log.
    #[must_use]
    pub fn audit_name(self) -> &'static str {
        match self {
            Action::Retry => "jobs.retry",
            Action::Reschedule => "jobs.reschedule",
            Action::Remove => "jobs.remove",
            Action::Cancel => "jobs.cancel",
        }
    }
}

/// A bulk action.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[non_exhaustive]
pub struct Operation {
    /// The id of the operation.
    pub id: String,
    /// The action.
    pub action: Action,
    /// The jobs it applies to.
    pub filter: String,
    /// `running`, `done` or `failed`.
    #[schema(value_type = OperationStateName)]
    pub state: String,
    /// The number of jobs that match, so far.
    pub matching: u64,
    /// The number of changed jobs.
    pub done: u64,
    /// The number of skipped jobs: running, moving, gone, or with a unique key that another job has.
    pub skipped: u64,
    /// More jobs may match: start the action again.
    pub has_more: bool,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Operation {
    /// Returns an operation that has just started.
    #[must_use]
    pub fn new(id: impl Into<String>, action: Action, filter: impl Into<String>) -> Self {
        Operation {
            id: id.into(),
            action,
            filter: filter.into(),
            state: "running".to_owned(),
            matching: 0,
            done: 0,
            skipped: 0,
            has_more: false,
            error: None,
        }
    }

    /// Takes the numbers of a report.
    pub fn update(&mut self, report: &BulkReport) {
        self.matching = report.matching;
        self.done = report.applied;
        self.skipped = report.skipped_running
            + report.skipped_moving
            + report.skipped_unique
            + report.skipped_changed
            + report.failed;
        self.has_more = report.has_more;
    }

    /// Ends the operation, with an error if it failed.
    pub fn end(&mut self, error: Option<String>) {
        self.state = if error.is_none() { "done" } else { "failed" }.to_owned();
        self.error = error;
    }
}

/// The state of a job after a cancel.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[non_exhaustive]
pub struct CancelResponse {
    /// `cancelled`, or `running` until its attempt ends. `done` or `dead` if it had ended before.
    #[schema(value_type = JobStateName)]
    pub state: String,
    /// The node that runs it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

impl From<&CancelResult> for CancelResponse {
    fn from(result: &CancelResult) -> Self {
        let (state, node) = match result {
            CancelResult::Cancelling { node } => (State::Running, Some(node.to_string())),
            CancelResult::Ended(state) => (*state, None),
            _ => (State::Cancelled, None),
        };
        CancelResponse { state: state.to_string(), node }
    }
}

/// The number of ended holds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
#[non_exhaustive]
pub struct BreakResponse {
    /// The number of ended holds.
    pub broken: u64,
}

impl BreakResponse {
    /// Returns the result of a break.
    #[must_use]
    pub fn new(broken: u64) -> Self {
        BreakResponse { broken }
    }
}
