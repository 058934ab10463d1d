//! Workers in any language: join, claim, beat, settle, leave, with leases and fences as for workers in Rust.

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
use crate::identity::Pusher;
use crate::json::{Json, OptionalJson, PathParam};
use crate::problem::Problem;
use crate::server::{App, WAIT_MAX};
use crate::views::{HeldView, millis};
use duly::LOG_LINES_MAX;
use duly::NodeId;
use duly::remote::{LEASE, ReportedOutcome, Settlement};
use duly::{Fence, JobId};

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(join))
        .routes(routes!(leave))
        .routes(routes!(claim))
        .routes(routes!(heartbeat))
        .routes(routes!(settle))
        .routes(routes!(progress))
}

/// A worker that wants to take part.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct JoinBody {
    /// The queues it works.
    queues: Vec<String>,
    /// The kinds it knows; others are put off, for those who know them. Left out or empty: all.
    #[serde(default)]
    kinds: Vec<String>,
    /// How long what it holds stays its own without a beat (30,000; from 1,000 to 3,600,000).
    lease_ms: Option<u64>,
}

/// Its identity.
#[derive(Serialize, ToSchema)]
struct JoinReply {
    /// The node's id: fresh at each start.
    id: String,
    lease_ms: u64,
    /// How often to beat: three times a lease.
    heartbeat_ms: u64,
}

/// Join as a worker
///
/// Only whoever has joined, and operators, can speak for the node: to others it is not there (404), also if they know its id.
#[utoipa::path(post, path = "/nodes", tag = "workers", request_body = JoinBody, responses((status = 201, body = JoinReply), Problems))]
async fn join(
    State(app): State<Arc<App>>,
    Pusher(identity): Pusher,
    Json(body): Json<JoinBody>,
) -> Result<(StatusCode, axum::Json<JoinReply>), Problem> {
    let lease = body.lease_ms.map_or(LEASE, Duration::from_millis);
    let node = app.remote_nodes.join(&identity.name, body.queues, body.kinds, lease).await?;
    let joined = JoinReply { id: node.id().to_string(), lease_ms: millis(lease), heartbeat_ms: millis(lease / 3) };
    Ok((StatusCode::CREATED, axum::Json(joined)))
}

/// Leave: what is still held goes to others at once
#[utoipa::path(delete, path = "/nodes/{id}", tag = "workers", params(("id" = String, Path, description = "the node's id")),
    responses((status = 204, description = "it has left"), Problems))]
async fn leave(
    State(app): State<Arc<App>>,
    Pusher(identity): Pusher,
    PathParam(id): PathParam<NodeId>,
) -> Result<StatusCode, Problem> {
    app.remote_nodes.leave(id, identity.node_scope()).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// What to claim.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ClaimBody {
    /// At most so many (1, at most 1,000).
    max: Option<usize>,
    /// Wait so long for the first (0; at most two thirds of the lease).
    wait_ms: Option<u64>,
}

/// Jobs to run, in the order in which they should start.
#[derive(Serialize, ToSchema)]
struct ClaimReply {
    jobs: Vec<HeldView>,
}

/// Claim jobs
///
/// Waits until there is one, or until the time is over: an empty list. A claim is a sign of life.
#[utoipa::path(post, path = "/nodes/{id}/claim", tag = "workers", request_body = Option<ClaimBody>,
    params(("id" = String, Path, description = "the node's id")), responses((status = 200, body = ClaimReply), Problems))]
async fn claim(
    State(app): State<Arc<App>>,
    Pusher(identity): Pusher,
    PathParam(id): PathParam<NodeId>,
    OptionalJson(body): OptionalJson<ClaimBody>,
) -> Result<axum::Json<ClaimReply>, Problem> {
    let wait = Duration::from_millis(body.wait_ms.unwrap_or(0)).min(WAIT_MAX);
    let held = app.remote_nodes.get(id, identity.node_scope())?.claim(body.max.unwrap_or(1), wait).await?;
    Ok(axum::Json(ClaimReply { jobs: held.iter().map(|held| HeldView::new(held)).collect() }))
}

/// A sign of life.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct HeartbeatBody {
    /// The jobs in hand. What was claimed and is not named in two beats is taken for lost on its way, and given to others.
    #[schema(value_type = Option<Vec<String>>)]
    held: Option<Vec<JobId>>,
}

/// What a beat answers.
#[derive(Serialize, ToSchema)]
struct HeartbeatReply {
    /// Of the jobs named: others have these now. Stop; what you say of them is refused.
    lost: Vec<String>,
    /// Somebody has cancelled these: stop, and settle them.
    cancel: Vec<String>,
    /// Claims give nothing until somebody says otherwise.
    quiet: bool,
    /// Somebody wants this worker to end: finish what runs, and leave.
    stop: bool,
}

/// A sign of life: what the worker holds stays its own for another lease
#[utoipa::path(post, path = "/nodes/{id}/heartbeat", tag = "workers", request_body = Option<HeartbeatBody>,
    params(("id" = String, Path, description = "the node's id")), responses((status = 200, body = HeartbeatReply), Problems))]
async fn heartbeat(
    State(app): State<Arc<App>>,
    Pusher(identity): Pusher,
    PathParam(id): PathParam<NodeId>,
    OptionalJson(body): OptionalJson<HeartbeatBody>,
) -> Result<axum::Json<HeartbeatReply>, Problem> {
    let reply = app.remote_nodes.get(id, identity.node_scope())?.heartbeat(body.held.as_deref()).await?;
    let text = |ids: Vec<JobId>| ids.iter().map(JobId::to_string).collect();
    let (lost, cancel) = (text(reply.lost), text(reply.cancel));
    Ok(axum::Json(HeartbeatReply { lost, cancel, quiet: reply.quiet, stop: reply.stop }))
}

/// How attempts ended.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct SettleBody {
    /// At most 1,000.
    ends: Vec<EndBody>,
}

/// How one attempt ended.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct EndBody {
    #[schema(value_type = String)]
    id: JobId,
    /// As the claim message it.
    fence: u64,
    outcome: EndOutcome,
    /// Why, for retry and bury.
    error: Option<String>,
    /// So long until it may run again, for retry (by the number of its attempts if left out) and release (at once);
    /// at most 46,296 days.
    after_ms: Option<u64>,
    /// What an ack gives, kept with the job: any JSON, of at most 64 KiB.
    #[schema(value_type = Option<serde_json::Value>)]
    result: Option<Box<RawValue>>,
}

/// ack: done. retry: again later, counted. bury: given up. release: again, not counted.
#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum EndOutcome {
    Ack,
    Retry,
    Bury,
    Release,
}

impl From<EndBody> for Settlement {
    fn from(body: EndBody) -> Self {
        let EndBody { id, fence, outcome, error, after_ms, result } = body;
        let (after, error) =
            (after_ms.map(Duration::from_millis), error.unwrap_or_else(|| "no reason was given".into()));
        let reported = match outcome {
            EndOutcome::Ack => ReportedOutcome::Ack,
            EndOutcome::Retry => ReportedOutcome::Retry { after, error },
            EndOutcome::Bury => ReportedOutcome::Bury { error },
            EndOutcome::Release => ReportedOutcome::Release { after: after.unwrap_or_default() },
        };
        Settlement { id, fence: Fence(fence), outcome: reported, result: result.map(|result| result.get().to_owned()) }
    }
}

/// What was not recorded.
#[derive(Serialize, ToSchema)]
struct SettleReply {
    /// Jobs that the worker no longer held: nothing of theirs was recorded.
    lost: Vec<String>,
}

/// Record how attempts ended
///
/// May be repeated if the answer has not come: what was recorded is not lost.
#[utoipa::path(post, path = "/nodes/{id}/settle", tag = "workers", request_body = SettleBody,
    params(("id" = String, Path, description = "the node's id")), responses((status = 200, body = SettleReply), Problems))]
async fn settle(
    State(app): State<Arc<App>>,
    Pusher(identity): Pusher,
    PathParam(id): PathParam<NodeId>,
    Json(body): Json<SettleBody>,
) -> Result<axum::Json<SettleReply>, Problem> {
    let check = |(at, end)| {
        let settlement = Settlement::from(end);
        settlement.check().map_err(|error| Problem::from(error).prefix_pointers(&format!("/ends/{at}")))?;
        Ok(settlement)
    };
    let ends = body.ends.into_iter().enumerate().map(check).collect::<Result<_, Problem>>()?;
    let lost = app.remote_nodes.get(id, identity.node_scope())?.settle(ends).await?;
    Ok(axum::Json(SettleReply { lost: lost.iter().map(JobId::to_string).collect() }))
}

/// What an attempt under way says of itself.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ProgressBody {
    #[schema(value_type = String)]
    id: JobId,
    /// As the claim message it.
    fence: u64,
    /// How far it has come, from 0 to 1.
    done: Option<f64>,
    /// The same in words.
    #[serde(default)]
    note: String,
    /// New lines of its log.
    #[serde(default)]
    lines: Vec<String>,
}

/// Say how far a job has come
#[utoipa::path(post, path = "/nodes/{id}/progress", tag = "workers", request_body = ProgressBody,
    params(("id" = String, Path, description = "the node's id")),
    responses((status = 200, body = SettleReply, description = "`lost` names the job if it is another node's by now"), Problems))]
async fn progress(
    State(app): State<Arc<App>>,
    Pusher(identity): Pusher,
    PathParam(id): PathParam<NodeId>,
    Json(body): Json<ProgressBody>,
) -> Result<axum::Json<SettleReply>, Problem> {
    if body.lines.len() > LOG_LINES_MAX {
        return Err(Problem::invalid("/lines", format!("at most {LOG_LINES_MAX} at once")));
    }
    let done = body.done.map(|done| (done, body.note));
    let is_held = app
        .remote_nodes
        .get(id, identity.node_scope())?
        .record_progress(body.id, Fence(body.fence), done, body.lines)
        .await?;
    Ok(axum::Json(SettleReply { lost: if is_held { Vec::new() } else { vec![body.id.to_string()] } }))
}
