//! Pushes.

use duly::job::{Due, UniqueConflict};
use duly::{JobId, Push};
use duly_http::views::PushedView;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{Backend, to_millis};
use crate::exit::{self, CliError};
use crate::time;

impl Backend {
    /// Pushes a job.
    pub(crate) async fn push(&self, job: Push) -> anyhow::Result<PushedView> {
        let id = job.job_id();
        match self {
            Backend::Store(duly) => duly.push(job).await.map(PushedView::from).map_err(|error| with_hint(error, id)),
            Backend::Server(server) => {
                job.check()?;
                // The job is written out, so its fixed id makes the push safe to repeat if the response is lost.
                let body = serde_json::to_string(&PushRequest::new(&job)?)?;
                let pushed = server.request::<PushedView>("POST", "/jobs", Some(body)).await;
                pushed.map_err(|error| match exit::exit_code(&error) {
                    exit::STORE_FAILED => {
                        let hint = format!(
                            "the job may have been pushed: repeat the push with --id {id}, which pushes it only once"
                        );
                        CliError::new(exit::STORE_FAILED, format!("{error}; {hint}"))
                    }
                    _ => error,
                })
            }
        }
    }

    /// Pushes jobs, and returns their results in the same order.
    pub(crate) async fn push_all(&self, jobs: Vec<Push>) -> anyhow::Result<Vec<PushedView>> {
        match self {
            Backend::Store(duly) => Ok(duly.push_all(jobs).await?.into_iter().map(PushedView::from).collect()),
            Backend::Server(server) => {
                let requests = jobs.iter().map(PushRequest::new).collect::<anyhow::Result<Vec<_>>>()?;
                let body = serde_json::to_string(&requests)?;
                let response: PushedJobs = server.request("POST", "/jobs/bulk", Some(body)).await?;
                Ok(response.jobs)
            }
        }
    }
}

/// The response to a push of several jobs.
#[derive(Deserialize)]
struct PushedJobs {
    jobs: Vec<PushedView>,
}

/// A job for a server.
#[derive(Serialize)]
struct PushRequest<'p> {
    id: JobId,
    kind: &'p str,
    args: Box<RawValue>,
    queue: &'p str,
    priority: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    due: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    after_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unique: Option<&'p str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unique_scope: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    on_conflict: Option<&'static str>,
    max_attempts: u32,
    timeout_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    keep_ms: Option<u64>,
    tags: &'p [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<&'p str>,
}

impl<'p> PushRequest<'p> {
    fn new(job: &'p Push) -> anyhow::Result<Self> {
        let (due, after_ms) = match job.job_due() {
            Due::At(at) => (Some(time::format_utc(at)), None),
            Due::After(delay) => (None, Some(to_millis(delay))),
            _ => (None, None),
        };
        let unique = job.job_unique();
        Ok(PushRequest {
            id: job.job_id(),
            kind: job.job_kind(),
            args: super::jobs::parse_args(job.job_args().unwrap_or_default())?,
            queue: job.job_queue(),
            priority: job.job_priority().as_str(),
            due,
            after_ms,
            unique,
            unique_scope: unique.map(|_| job.job_unique_scope().as_str()),
            on_conflict: (job.job_conflict() == UniqueConflict::Replace).then_some("replace"),
            max_attempts: job.job_max_attempts(),
            timeout_ms: to_millis(job.job_timeout()),
            keep_ms: job.job_keep().map(to_millis),
            tags: job.job_tags(),
            traceparent: job.job_traceparent(),
        })
    }
}

/// Adds advice to the error of a push: the id for a repetition, or how to write args as JSON.
fn with_hint(error: duly::Error, id: JobId) -> anyhow::Error {
    match &error {
        duly::Error::Unknown { .. } => {
            let message =
                error.to_string().replace("with the same id", &format!("with --id {id}, which pushes it only once"));
            CliError::new(exit::STORE_FAILED, message)
        }
        _ => error.into(),
    }
}
