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
use super::jobs::found;
use crate::error::Error;
use crate::http::json::{Named, Params};
use crate::http::problem::Problem;
use crate::http::proof::Proof;
use crate::http::server::{App, WAIT_MAX};
use crate::http::streams::{Place, STREAM_MAX};
use crate::http::view::JobView;
use crate::http::who::Who;
use crate::job::JobId;

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
    who: Who,
    proof: Proof,
    headers: HeaderMap,
    Named(id): Named<JobId>,
    Params(params): Params<WaitParams>,
) -> Result<Response, Problem> {
    let at_most = params.timeout_ms.map(Duration::from_millis);
    let accepts = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    if accepts.contains("text/event-stream") {
        let place = Place::take(&app, &who, proof)?;
        return follow(app, who, place, id, at_most.unwrap_or(STREAM_MAX)).await;
    }
    let record = match tokio::time::timeout(at_most.unwrap_or(WAIT).min(WAIT_MAX), app.duly.wait(id)).await {
        Ok(ended) => ended?.ok_or_else(|| Error::NotFound { what: "job", name: id.to_string() })?,
        Err(_) => found(&app, id).await?,
    };
    Ok(axum::Json(JobView::of(&record, &who)).into_response())
}

/// Where a stream stands.
enum Next {
    Now(Box<JobView>),
    End,
    Over,
}

async fn follow(app: Arc<App>, who: Who, place: Place, id: JobId, at_most: Duration) -> Result<Response, Problem> {
    let record = found(&app, id).await?;
    let first = Next::Now(Box::new(JobView::of(&record, &who)));
    let ended = record.state.is_final();
    let events = stream::unfold((first, app, who), move |(next, app, who)| async move {
        let (event, next) = match next {
            Next::Now(job) if ended => (told(&job), Next::Over),
            Next::Now(job) => (told(&job), Next::End),
            Next::End => match tokio::time::timeout(at_most, app.duly.wait(id)).await {
                Ok(Ok(Some(record))) => (told(&JobView::of(&record, &who)), Next::Over),
                Ok(Ok(None)) => (Event::default().event("gone").data(format!("{{\"id\":\"{id}\"}}")), Next::Over),
                // Whoever listens asks again.
                Ok(Err(_)) | Err(_) => return None,
            },
            Next::Over => return None,
        };
        Some((event, (next, app, who)))
    });
    Ok(place.answer(events))
}

fn told(job: &JobView) -> Event {
    Event::default().event("job").data(serde_json::to_string(job).unwrap_or_default())
}
