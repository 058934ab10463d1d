//! Waits for a job to end, as a long poll or a stream of server-sent events, without polling the store.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Problems;
use super::jobs::find_job;
use crate::credential::Credential;
use crate::identity::Identity;
use crate::json::{JobParam, QueryParams};
use crate::problem::Result;
use crate::server::{App, AppState, WAIT_MAX};
use crate::streams::{STREAM_MAX, StreamSlot};
use crate::views::JobView;
use crate::waits::{WaitKind, WaitSlot};
use duly::Error;
use duly::JobId;

/// The default wait of a long poll.
const WAIT: Duration = Duration::from_secs(30);

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(wait))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct WaitParams {
    /// The timeout in milliseconds (30,000, at most 60,000); up to an hour for a stream.
    timeout_ms: Option<u64>,
}

/// Wait until a job is done, dead or cancelled
///
/// Returns the job in its state at that time; 404 for a done job that is not kept. With `Accept: text/event-stream`,
/// returns server-sent events: `job` with the current state, then `job` when it has ended, or `gone` if it is no
/// longer stored. One client may use at most an eighth of the server's connections for streams and waits.
#[utoipa::path(get, path = "/jobs/{id}/wait", tag = "jobs", operation_id = "waitForJob",
    params(("id" = String, Path, description = "the job's id, or 4 or more digits of its beginning or end"), WaitParams),
    responses((status = 200, description = "the job, as it was when it ended or the wait timed out", content((JobView = "application/json"), (String = "text/event-stream"))), Problems))]
async fn wait(
    State(app): AppState,
    identity: Identity,
    credential: Credential,
    headers: HeaderMap,
    JobParam(id): JobParam,
    QueryParams(params): QueryParams<WaitParams>,
) -> Result<Response> {
    let timeout = params.timeout_ms.map(Duration::from_millis);
    let accepts = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    if accepts.contains("text/event-stream") {
        let slot = StreamSlot::acquire(&app, &identity, credential)?;
        return stream_job(app, identity, slot, id, timeout.unwrap_or(STREAM_MAX)).await;
    }
    let _slot = WaitSlot::acquire(&app, &identity, &credential, WaitKind::Watch)?;
    let record = match tokio::time::timeout(timeout.unwrap_or(WAIT).min(WAIT_MAX), app.duly.jobs().wait(id)).await {
        Ok(ended) => ended?.ok_or_else(|| Error::not_found("job", id))?,
        Err(_) => find_job(&app, id).await?,
    };
    Ok(axum::Json(JobView::new(&record, &identity)).into_response())
}

/// The state of a stream.
enum StreamState {
    /// Send the job as it is.
    First(Box<JobView>),
    /// Wait for the job to end.
    Waiting,
    Finished,
}

async fn stream_job(
    app: Arc<App>,
    identity: Identity,
    slot: StreamSlot,
    id: JobId,
    timeout: Duration,
) -> Result<Response> {
    let record = find_job(&app, id).await?;
    let first = StreamState::First(Box::new(JobView::new(&record, &identity)));
    let ended = record.state.is_final();
    let events = stream::unfold((first, app, identity), move |(state, app, identity)| async move {
        let (event, next) = match state {
            StreamState::First(job) if ended => (job_event(&job), StreamState::Finished),
            StreamState::First(job) => (job_event(&job), StreamState::Waiting),
            StreamState::Waiting => match tokio::time::timeout(timeout, app.duly.jobs().wait(id)).await {
                Ok(Ok(Some(record))) => (job_event(&JobView::new(&record, &identity)), StreamState::Finished),
                Ok(Ok(None)) => {
                    (Event::default().event("gone").data(format!("{{\"id\":\"{id}\"}}")), StreamState::Finished)
                }
                // The client reconnects.
                Ok(Err(_)) | Err(_) => return None,
            },
            StreamState::Finished => return None,
        };
        Some((event, (next, app, identity)))
    });
    Ok(slot.respond(events))
}

fn job_event(job: &JobView) -> Event {
    Event::default().event("job").data(serde_json::to_string(job).unwrap_or_default())
}
