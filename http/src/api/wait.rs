//! Waiting for a job to end: by long poll, or as server-sent events. Nobody asks the store for it again and again.

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
use crate::json::{PathParam, QueryParams};
use crate::problem::Problem;
use crate::server::{App, WAIT_MAX};
use crate::streams::{STREAM_MAX, StreamSlot};
use crate::views::JobView;
use duly::Error;
use duly::JobId;

/// How long a request waits that does not say.
const WAIT: Duration = Duration::from_secs(30);

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(wait))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct WaitParams {
    /// At most so long, in milliseconds (30,000, at most 60,000); a stream up to an hour.
    timeout_ms: Option<u64>,
}

/// Wait until a job is done or dead
///
/// Answers the job as it is by then: look at its state. A job that is done and not kept is answered with 404.
/// To whom accepts `text/event-stream`, as server-sent events instead: `job` at once as it is now, and `job` once it has
/// ended, or `gone` if it is in the store no more; then the stream is over. One name has at most an eighth of the
/// server's connections for streams.
#[utoipa::path(get, path = "/jobs/{id}/wait", tag = "jobs",
    params(("id" = String, Path, description = "the job's id"), WaitParams),
    responses((status = 200, content((JobView = "application/json"), (String = "text/event-stream"))), Problems))]
async fn wait(
    State(app): State<Arc<App>>,
    identity: Identity,
    credential: Credential,
    headers: HeaderMap,
    PathParam(id): PathParam<JobId>,
    QueryParams(params): QueryParams<WaitParams>,
) -> Result<Response, Problem> {
    let timeout = params.timeout_ms.map(Duration::from_millis);
    let accepts = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    if accepts.contains("text/event-stream") {
        let slot = StreamSlot::acquire(&app, &identity, credential)?;
        return stream_job(app, identity, slot, id, timeout.unwrap_or(STREAM_MAX)).await;
    }
    let record = match tokio::time::timeout(timeout.unwrap_or(WAIT).min(WAIT_MAX), app.duly.wait(id)).await {
        Ok(ended) => ended?.ok_or_else(|| Error::NotFound { what: "job", name: id.to_string() })?,
        Err(_) => find_job(&app, id).await?,
    };
    Ok(axum::Json(JobView::new(&record, &identity)).into_response())
}

/// Where a stream stands.
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
) -> Result<Response, Problem> {
    let record = find_job(&app, id).await?;
    let first = StreamState::First(Box::new(JobView::new(&record, &identity)));
    let ended = record.state.is_final();
    let events = stream::unfold((first, app, identity), move |(state, app, identity)| async move {
        let (event, next) = match state {
            StreamState::First(job) if ended => (job_event(&job), StreamState::Finished),
            StreamState::First(job) => (job_event(&job), StreamState::Waiting),
            StreamState::Waiting => match tokio::time::timeout(timeout, app.duly.wait(id)).await {
                Ok(Ok(Some(record))) => (job_event(&JobView::new(&record, &identity)), StreamState::Finished),
                Ok(Ok(None)) => {
                    (Event::default().event("gone").data(format!("{{\"id\":\"{id}\"}}")), StreamState::Finished)
                }
                // Whoever listens asks again.
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
