//! Workers in any language: join, claim, heartbeat, settle, leave, with the leases and fences of workers in Rust.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Problems;
use super::push::COMMAND;
use crate::audit::AuditNote;
use crate::identity::{Identity, Pusher};
use crate::json::{Json, OptionalJson, PathParam};
use crate::problem::{Problem, Result};
use crate::server::{App, AppState, WAIT_MAX};
use crate::views::{HeldView, millis};
use duly::bounds::LOG_LINES_MAX;
use duly::worker::remote::{DEFAULT_REMOTE_LEASE, RemoteNode, RemoteWorker, ReportedOutcome, Settlement};
use duly::{Error, Fence, JobId, NodeId};

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(join))
        .routes(routes!(leave))
        .routes(routes!(claim))
        .routes(routes!(heartbeat))
        .routes(routes!(settle))
        .routes(routes!(progress))
}

/// A worker that joins.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct JoinBody {
    /// The queues of the worker.
    queues: Vec<String>,
    /// The kinds with a handler; jobs of other kinds are deferred for other workers. All kinds if absent or empty, but
    /// `command` only if the server was started with `--allow-commands`.
    #[serde(default)]
    kinds: Vec<String>,
    /// The time for which the worker keeps its jobs without a heartbeat (30,000; from 1,000 to 3,600,000).
    lease_ms: Option<u64>,
    /// The name of the worker, for people.
    name: Option<String>,
    /// The machine that it runs on. The list of nodes shows that of the server if it is absent.
    host: Option<String>,
    /// Its process id there.
    pid: Option<u32>,
    /// How many jobs it runs at once, for the list of nodes.
    slots: Option<u64>,
}

/// The id of the worker.
#[derive(Serialize, ToSchema)]
struct JoinResponse {
    /// The node id, new for each join.
    id: String,
    lease_ms: u64,
    /// The interval of heartbeats: a third of the lease.
    heartbeat_ms: u64,
}

/// Join as a worker
///
/// Only the client that has joined and operators can use the node; other clients get a 404.
#[utoipa::path(post, path = "/nodes", tag = "workers", operation_id = "joinWorker", request_body = JoinBody, responses((status = 201, description = "the worker has joined", body = JoinResponse), Problems))]
async fn join(
    State(app): AppState,
    Pusher(identity): Pusher,
    Json(body): Json<JoinBody>,
) -> Result<(StatusCode, axum::Json<JoinResponse>)> {
    if !app.options.commands && body.kinds.iter().any(|kind| kind == COMMAND) {
        let detail =
            "jobs that run commands cannot be claimed over HTTP; start the server with --allow-commands to allow it";
        return Err(Problem::forbidden(detail));
    }
    let lease = body.lease_ms.map_or(DEFAULT_REMOTE_LEASE, Duration::from_millis);
    let queues = body.queues.iter().map(String::as_str);
    let queues = app.queue_count_limit.reserve(&app.duly, &identity, queues).await?;
    let mut worker = RemoteWorker::default();
    (worker.name, worker.host, worker.pid, worker.slots) = (body.name, body.host, body.pid, body.slots);
    let joined = app.remote_nodes.join_as(&identity.name, body.queues, body.kinds, lease, worker).await;
    let node = joined.map_err(|error| match error {
        Error::Invalid { field: "lease", reason, .. } => Problem::invalid("/lease_ms", reason),
        error => error.into(),
    })?;
    queues.confirm();
    let joined = JoinResponse { id: node.id().to_string(), lease_ms: millis(lease), heartbeat_ms: millis(lease / 3) };
    Ok((StatusCode::CREATED, axum::Json(joined)))
}

/// Returns the node of a request. Operators may act for the node of another client, which is recorded.
fn find_node(app: &App, id: NodeId, identity: &Identity, note: &AuditNote) -> Result<Arc<RemoteNode>> {
    let node = app.remote_nodes.get(id, identity.node_scope())?;
    if node.joined_by() != identity.name {
        note.record();
    }
    Ok(node)
}

/// Leave: other workers get the held jobs at once
#[utoipa::path(delete, path = "/nodes/{id}", tag = "workers", operation_id = "leaveWorker", params(("id" = String, Path, description = "the node's id")),
    responses((status = 204, description = "the node has left"), Problems))]
async fn leave(
    State(app): AppState,
    Pusher(identity): Pusher,
    note: AuditNote,
    PathParam(id): PathParam<NodeId>,
) -> Result<StatusCode> {
    find_node(&app, id, &identity, &note)?;
    app.remote_nodes.leave(id, identity.node_scope()).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Options for a claim.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ClaimBody {
    /// The most jobs (1, at most 1,000). The response has fewer if their args exceed 4 MiB, and none while the worker
    /// holds 2,000 jobs.
    max: Option<usize>,
    /// The longest wait for the first job (0; at most two thirds of the lease).
    wait_ms: Option<u64>,
}

/// Jobs to run, in the order in which to start them.
#[derive(Serialize, ToSchema)]
struct ClaimResponse {
    jobs: Vec<HeldView>,
}

/// Claim jobs
///
/// Waits for a job, and returns an empty list after the timeout. A claim counts as a heartbeat.
#[utoipa::path(post, path = "/nodes/{id}/claim", tag = "workers", operation_id = "claimJobs", request_body = Option<ClaimBody>,
    params(("id" = String, Path, description = "the node's id")), responses((status = 200, description = "the claimed jobs; none if the wait timed out", body = ClaimResponse), Problems))]
async fn claim(
    State(app): AppState,
    Pusher(identity): Pusher,
    note: AuditNote,
    PathParam(id): PathParam<NodeId>,
    OptionalJson(body): OptionalJson<ClaimBody>,
) -> Result<axum::Json<ClaimResponse>> {
    let wait = Duration::from_millis(body.wait_ms.unwrap_or(0)).min(WAIT_MAX);
    let held = find_node(&app, id, &identity, &note)?.claim(body.max.unwrap_or(1), wait).await?;
    Ok(axum::Json(ClaimResponse { jobs: held.iter().map(|held| HeldView::new(held)).collect() }))
}

/// A heartbeat.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct HeartbeatBody {
    /// The ids of the running jobs. A claimed job missing from two consecutive heartbeats is treated as lost and
    /// released.
    #[schema(value_type = Option<Vec<String>>)]
    held: Option<Vec<JobId>>,
}

/// The reply to a heartbeat.
#[derive(Serialize, ToSchema)]
struct HeartbeatResponse {
    /// The named jobs that other workers have now: stop them; a settle is refused.
    lost: Vec<String>,
    /// The cancelled jobs: stop and settle them.
    cancel: Vec<String>,
    /// Claims return nothing until the node is resumed.
    quiet: bool,
    /// Finish the running jobs, and leave.
    stop: bool,
}

/// Send a heartbeat: the worker keeps its jobs for another lease
#[utoipa::path(post, path = "/nodes/{id}/heartbeat", tag = "workers", operation_id = "sendHeartbeat", request_body = Option<HeartbeatBody>,
    params(("id" = String, Path, description = "the node's id")), responses((status = 200, description = "what the worker must do", body = HeartbeatResponse), Problems))]
async fn heartbeat(
    State(app): AppState,
    Pusher(identity): Pusher,
    note: AuditNote,
    PathParam(id): PathParam<NodeId>,
    OptionalJson(body): OptionalJson<HeartbeatBody>,
) -> Result<axum::Json<HeartbeatResponse>> {
    let reply = find_node(&app, id, &identity, &note)?.heartbeat(body.held.as_deref()).await?;
    let text = |ids: Vec<JobId>| ids.iter().map(JobId::to_string).collect();
    let (lost, cancel) = (text(reply.lost), text(reply.cancel));
    Ok(axum::Json(HeartbeatResponse { lost, cancel, quiet: reply.quiet, stop: reply.stop }))
}

/// The outcomes of attempts.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct SettleBody {
    /// At most 1,000.
    outcomes: Vec<OutcomeBody>,
}

/// The outcome of one attempt.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct OutcomeBody {
    #[schema(value_type = String)]
    id: JobId,
    /// The fence from the claim.
    fence: u64,
    outcome: OutcomeKind,
    /// The error, for `retry` and `bury`.
    error: Option<String>,
    /// The delay before the next attempt, for `retry` (the job's backoff if absent) and `release` (none if absent); at
    /// most 46,296 days.
    after_ms: Option<u64>,
    /// The result of an `ack`, stored with the job: any JSON of at most 64 KiB.
    #[schema(value_type = Option<serde_json::Value>)]
    result: Option<Box<RawValue>>,
}

/// `ack`: done. `retry`: again later, and the attempt counts. `bury`: failed for good. `release`: again, and the
/// attempt does not count.
#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum OutcomeKind {
    Ack,
    Retry,
    Bury,
    Release,
}

impl From<OutcomeBody> for Settlement {
    fn from(body: OutcomeBody) -> Self {
        let OutcomeBody { id, fence, outcome, error, after_ms, result } = body;
        let (after, error) =
            (after_ms.map(Duration::from_millis), error.unwrap_or_else(|| "no reason was given".into()));
        let reported = match outcome {
            OutcomeKind::Ack => ReportedOutcome::Ack,
            OutcomeKind::Retry => ReportedOutcome::Retry { after, error },
            OutcomeKind::Bury => ReportedOutcome::Bury { error },
            OutcomeKind::Release => ReportedOutcome::Release { after: after.unwrap_or_default() },
        };
        Settlement::new(id, Fence(fence), reported).result(result.map(|result| result.get().to_owned()))
    }
}

/// The jobs for which nothing was recorded.
#[derive(Serialize, ToSchema)]
struct SettleResponse {
    /// Jobs that the worker no longer held: nothing was recorded for them.
    lost: Vec<String>,
}

/// Record how attempts ended
///
/// Safe to repeat if no response arrived: recorded jobs are not reported as lost.
#[utoipa::path(post, path = "/nodes/{id}/settle", tag = "workers", operation_id = "settleJobs", request_body = SettleBody,
    params(("id" = String, Path, description = "the node's id")), responses((status = 200, description = "the outcomes are recorded, except for lost jobs", body = SettleResponse), Problems))]
async fn settle(
    State(app): AppState,
    Pusher(identity): Pusher,
    note: AuditNote,
    PathParam(id): PathParam<NodeId>,
    Json(body): Json<SettleBody>,
) -> Result<axum::Json<SettleResponse>> {
    let check = |(at, outcome)| {
        let settlement = Settlement::from(outcome);
        settlement.check().map_err(|error| Problem::from(error).prefix_pointers(&format!("/outcomes/{at}")))?;
        Ok(settlement)
    };
    let settlements = body.outcomes.into_iter().enumerate().map(check).collect::<Result<_>>()?;
    let lost = find_node(&app, id, &identity, &note)?.settle(settlements).await?;
    Ok(axum::Json(SettleResponse { lost: lost.iter().map(JobId::to_string).collect() }))
}

/// The progress of a running job.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ProgressBody {
    #[schema(value_type = String)]
    id: JobId,
    /// The fence from the claim.
    fence: u64,
    /// The progress from 0 to 1.
    fraction: Option<f64>,
    /// A description.
    #[serde(default)]
    message: String,
    /// New log lines.
    #[serde(default)]
    lines: Vec<String>,
}

/// Report the progress of a job
#[utoipa::path(post, path = "/nodes/{id}/progress", tag = "workers", operation_id = "reportProgress", request_body = ProgressBody,
    params(("id" = String, Path, description = "the node's id")),
    responses((status = 200, body = SettleResponse, description = "`lost` lists the job if another node has it now"), Problems))]
async fn progress(
    State(app): AppState,
    Pusher(identity): Pusher,
    note: AuditNote,
    PathParam(id): PathParam<NodeId>,
    Json(body): Json<ProgressBody>,
) -> Result<axum::Json<SettleResponse>> {
    if body.lines.len() > LOG_LINES_MAX {
        return Err(Problem::invalid("/lines", format!("at most {LOG_LINES_MAX} in one request")));
    }
    if body.fraction.is_some_and(|fraction| !(0.0..=1.0).contains(&fraction)) {
        return Err(Problem::invalid("/fraction", "must be from 0 to 1"));
    }
    let progress = body.fraction.map(|fraction| (fraction, body.message));
    let is_held = find_node(&app, id, &identity, &note)?
        .record_progress(body.id, Fence(body.fence), progress, body.lines)
        .await?;
    Ok(axum::Json(SettleResponse { lost: if is_held { Vec::new() } else { vec![body.id.to_string()] } }))
}
