//! Jobs: list, read, change and wait for them.

use std::time::Duration;

use duly::admin::{JobEdit, Why};
use duly::job::Due;
use duly::{Filter, JobId, Priority, State};
use duly_http::views::{CancelResponse, Groups, JobList, JobView, WhyView};
use serde_json::value::RawValue;

use super::{Backend, to_millis};
use crate::api_client::{ApiClient, url_encode};
use crate::exit::{self, CliError};
use crate::{audit, time};

/// The most jobs in one response of a server.
const SERVER_PAGE_MAX: usize = 200;
/// The timeout of one request while waiting for a job.
const WAIT_REQUEST_MAX: Duration = Duration::from_secs(30);

/// How the wait for a job ended.
pub(crate) enum WaitEnd {
    /// It is done, dead or cancelled.
    Final(Box<JobView>),
    /// It is no longer stored. It is done, if it was not to be kept.
    Gone,
    /// The timeout is over, and the job is in this state.
    TimedOut(String),
}

impl Backend {
    /// Returns the jobs of a filter, at most as many as its limit.
    pub(crate) async fn list_jobs(&self, filter: Filter) -> anyhow::Result<JobList> {
        match self {
            Backend::Store(duly) => Ok(duly.jobs().list(filter).await?.into()),
            Backend::Server(server) => list_pages(server, filter).await,
        }
    }

    /// Finds the job with this id, or with this beginning or end of its id.
    pub(crate) async fn find_id(&self, word: &str) -> anyhow::Result<JobId> {
        match self {
            // A job that has moved here from Sidekiq is found by its jid there.
            Backend::Store(duly) => match (duly.jobs().find_id(word).await, duly::compat::id_of_jid(word)) {
                (Err(duly::Error::NotFound { .. }), Some(id)) => Ok(id),
                (found, _) => Ok(found?),
            },
            Backend::Server(server) => match word.parse() {
                Ok(id) => Ok(id),
                Err(_) => {
                    let job: JobView = server.get(&format!("/jobs/{}", url_encode(word))).await?;
                    Ok(job.id.parse()?)
                }
            },
        }
    }

    /// Returns the job with this id.
    pub(crate) async fn get_job(&self, id: JobId) -> anyhow::Result<JobView> {
        self.find_job(id).await?.ok_or_else(|| duly::Error::not_found("job", id).into())
    }

    /// Returns the job with this id, if it is stored.
    pub(crate) async fn find_job(&self, id: JobId) -> anyhow::Result<Option<JobView>> {
        match self {
            Backend::Store(duly) => Ok(duly.jobs().get(id).await?.as_ref().map(JobView::from)),
            Backend::Server(server) => match server.get(&format!("/jobs/{id}")).await {
                Ok(job) => Ok(Some(job)),
                Err(error) if exit::exit_code(&error) == exit::NOT_FOUND => Ok(None),
                Err(error) => Err(error),
            },
        }
    }

    /// Explains why a job is not running: for scripts, and in one sentence for people.
    pub(crate) async fn why(&self, id: JobId) -> anyhow::Result<(WhyView, String)> {
        let duly = match self {
            Backend::Store(duly) => duly,
            Backend::Server(server) => {
                let why: WhyView = server.get(&format!("/jobs/{id}/why")).await?;
                let text = why.text.clone();
                return Ok((why, text));
            }
        };
        match duly.jobs().why(id).await? {
            Why::NotFound => Err(CliError::new(exit::NOT_FOUND, format!("job {id}: {}", Why::NotFound))),
            why => Ok((WhyView::from(&why), why.describe(time::format_date_time))),
        }
    }

    /// Changes args or priority of a job that is not running.
    pub(crate) async fn edit_job(
        &self,
        id: JobId,
        args: Option<String>,
        priority: Option<Priority>,
    ) -> anyhow::Result<()> {
        match self {
            Backend::Store(duly) => {
                let edited = duly.jobs().edit(id, JobEdit::new().args(args).priority(priority)).await;
                Ok(audit::record(duly, "jobs.edit", id, edited).await?)
            }
            Backend::Server(server) => {
                let args = args.as_deref().map(parse_args).transpose()?;
                let body = EditRequest { args, priority };
                let _: JobView =
                    server.request("PATCH", &format!("/jobs/{id}"), Some(serde_json::to_string(&body)?)).await?;
                Ok(())
            }
        }
    }

    /// Makes a job due now; a dead one starts over.
    pub(crate) async fn retry_job(&self, id: JobId) -> anyhow::Result<()> {
        match self {
            Backend::Store(duly) => {
                let retried = duly.jobs().reschedule(id, Due::Now).await;
                Ok(audit::record(duly, "jobs.retry", id, retried).await?)
            }
            Backend::Server(server) => server.send("POST", &format!("/jobs/{id}/retry"), None).await,
        }
    }

    /// Cancels a job.
    pub(crate) async fn cancel_job(&self, id: JobId) -> anyhow::Result<CancelResponse> {
        match self {
            Backend::Store(duly) => {
                let cancelled = duly.jobs().cancel(id).await;
                Ok(CancelResponse::from(&audit::record(duly, "jobs.cancel", id, cancelled).await?))
            }
            Backend::Server(server) => server.post(&format!("/jobs/{id}/cancel")).await,
        }
    }

    /// Deletes a job that is not running.
    pub(crate) async fn remove_job(&self, id: JobId) -> anyhow::Result<()> {
        match self {
            Backend::Store(duly) => {
                let removed = duly.jobs().remove(id).await;
                Ok(audit::record(duly, "jobs.remove", id, removed).await?)
            }
            Backend::Server(server) => server.send("DELETE", &format!("/jobs/{id}"), None).await,
        }
    }

    /// Waits until the job is done, dead or cancelled.
    pub(crate) async fn wait_for_job(&self, id: JobId, timeout: Option<Duration>) -> anyhow::Result<WaitEnd> {
        let duly = match self {
            Backend::Store(duly) => duly,
            Backend::Server(server) => return wait_on_server(server, id, timeout).await,
        };
        let wait = duly.jobs().wait(id);
        let record = match timeout {
            None => wait.await?,
            Some(timeout) => match tokio::time::timeout(timeout, wait).await {
                Ok(ended) => ended?,
                // It may have ended at the last moment, or before the wait began.
                Err(_) => duly.jobs().get(id).await?,
            },
        };
        Ok(match record.as_ref().map(JobView::from) {
            Some(job) if is_final(&job) => WaitEnd::Final(Box::new(job)),
            Some(job) => WaitEnd::TimedOut(job.state),
            None => WaitEnd::Gone,
        })
    }

    /// Returns the groups of dead jobs.
    pub(crate) async fn dead_groups(&self, queue: Option<&str>) -> anyhow::Result<Groups> {
        match self {
            Backend::Store(duly) => Ok(duly.jobs().dead_groups(queue).await?.into()),
            Backend::Server(server) => {
                let query = queue.map(|queue| format!("?queue={}", url_encode(queue))).unwrap_or_default();
                server.get(&format!("/dead{query}")).await
            }
        }
    }
}

/// A change of a job for a server.
#[derive(serde::Serialize)]
struct EditRequest {
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<Priority>,
}

/// Returns args for the body of a request, byte for byte.
pub(super) fn parse_args(args: &str) -> anyhow::Result<Box<RawValue>> {
    serde_json::from_str(args).map_err(|error| {
        let hint = "write a JSON value such as '{\"to\":\"ada\"}' or '\"text\"'";
        CliError::new(exit::USAGE, format!("args: not JSON: {error}; {hint}"))
    })
}

/// Returns whether a job has ended.
pub(crate) fn is_final(job: &JobView) -> bool {
    job.state.parse::<State>().is_ok_and(State::is_final)
}

async fn list_pages(server: &ApiClient, mut filter: Filter) -> anyhow::Result<JobList> {
    let (max, text) = (filter.limit, url_encode(&filter.to_string()));
    let mut cursor = filter.cursor.take();
    let sort = filter.order.map(|order| format!("&sort={order}")).unwrap_or_default();
    let sort = if filter.reverse { format!("{sort}&reverse=true") } else { sort };
    let page_of = async |limit: usize, cursor: Option<&str>| -> anyhow::Result<JobList> {
        let cursor = cursor.map(|cursor| format!("&cursor={}", url_encode(cursor))).unwrap_or_default();
        server.get(&format!("/jobs?filter={text}&limit={limit}{sort}{cursor}")).await
    };
    let mut list = page_of(max.min(SERVER_PAGE_MAX), cursor.as_deref()).await?;
    while list.jobs.len() < max && list.jobs.len() % SERVER_PAGE_MAX == 0 && list.next.is_some() {
        cursor = list.next.take();
        let page = page_of((max - list.jobs.len()).min(SERVER_PAGE_MAX), cursor.as_deref()).await?;
        list.next = page.next;
        if page.jobs.is_empty() {
            break;
        }
        list.jobs.extend(page.jobs);
    }
    Ok(list)
}

/// Waits with as many requests as needed. A request cannot be cancelled, so the server ends the last one at the timeout.
async fn wait_on_server(server: &ApiClient, id: JobId, timeout: Option<Duration>) -> anyhow::Result<WaitEnd> {
    let started = time::monotonic_now();
    loop {
        let rest = timeout.map(|timeout| timeout.saturating_sub(started.elapsed()));
        let wait = rest.map_or(WAIT_REQUEST_MAX, |rest| rest.min(WAIT_REQUEST_MAX));
        let path = format!("/jobs/{id}/wait?timeout_ms={}", to_millis(wait));
        let job: JobView = match server.get(&path).await {
            Err(error) if exit::exit_code(&error) == exit::NOT_FOUND => return Ok(WaitEnd::Gone),
            job => job?,
        };
        match job.state.parse::<State>() {
            Ok(state) if state.is_final() => return Ok(WaitEnd::Final(Box::new(job))),
            Ok(_) if rest == Some(wait) => return Ok(WaitEnd::TimedOut(job.state)),
            Ok(_) => {}
            // The server may not have waited at all: another request could loop without a pause.
            Err(_) => {
                return Err(server.unexpected_response_error(&format!("its response names no state of job {id}")));
            }
        }
    }
}
