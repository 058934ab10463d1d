//! Pushes many jobs in one request: a JSON list, or one JSON object per line.

use std::fmt;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde::de::{IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Problems;
use super::push::{PushBody, PushedView};
use crate::identity::Pusher;
use crate::json::{self, BULK_BYTES_MAX, IdempotencyCheck, IdempotencyKey};
use crate::problem::{Problem, Result};
use crate::server::{App, AppState};
use duly::Push;
use duly::bounds::PUSH_MAX;

const NDJSON: [&str; 2] = ["application/x-ndjson", "application/ndjson"];

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(push_all))
}

/// The result for each job, in the order of the request.
#[derive(Serialize, ToSchema)]
struct BulkPushResponse {
    jobs: Vec<PushedView>,
    /// The number of new jobs.
    new: usize,
}

/// Push many jobs
///
/// A JSON list, or one JSON object per line as `application/x-ndjson`: at most 10,000 jobs and 64 MiB, all or none per
/// queue.
#[utoipa::path(post, path = "/jobs/bulk", tag = "jobs",
    request_body(content((Vec<PushBody> = "application/json"), (String = "application/x-ndjson"))),
    params(("Idempotency-Key" = Option<String>, Header, description = "requests with the same key push the jobs once")),
    responses((status = 200, body = BulkPushResponse), Problems))]
async fn push_all(
    State(app): AppState,
    _: Pusher,
    IdempotencyKey(key): IdempotencyKey,
    request: Request,
) -> Result<Response> {
    let is_ndjson = match json::content_type(request.headers()).as_str() {
        "application/json" => false,
        kind if NDJSON.contains(&kind) => true,
        _ => return Err(json::wrong_type("application/json, or application/x-ndjson")),
    };
    let idempotency = IdempotencyCheck::new(&request)?;
    let text = json::read_body(request, BULK_BYTES_MAX).await?;
    idempotency.check(&app, &text)?;
    let jobs = if is_ndjson { jobs_from_lines(&app, &text, key)? } else { jobs_from_list(&app, &text, key)? };
    let pushed = app.duly.push_all(jobs).await?;
    let new = pushed.iter().filter(|pushed| pushed.is_new()).count();
    let jobs = pushed.into_iter().map(PushedView::new).collect();
    Ok(axum::Json(BulkPushResponse { jobs, new }).into_response())
}

fn jobs_from_list(app: &App, text: &[u8], key: Option<String>) -> Result<Vec<Push>> {
    let PushList(bodies) = json::parse(text)?;
    build_jobs(app, bodies.into_iter().map(Ok), key)
}

/// A list of jobs. After the first job over the limit, the rest is parsed but not kept.
struct PushList(Vec<PushBody>);

impl<'de> Deserialize<'de> for PushList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(PushListVisitor)
    }
}

struct PushListVisitor;

impl<'de> Visitor<'de> for PushListVisitor {
    type Value = PushList;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a sequence")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<PushList, A::Error> {
        let mut bodies = Vec::new();
        while let Some(body) = list.next_element()? {
            bodies.push(body);
            if bodies.len() > PUSH_MAX {
                while list.next_element::<IgnoredAny>()?.is_some() {}
                break;
            }
        }
        Ok(PushList(bodies))
    }
}

fn jobs_from_lines(app: &App, text: &[u8], key: Option<String>) -> Result<Vec<Push>> {
    let lines = (1..).zip(text.split(|byte| *byte == b'\n')).filter(|(_, line)| !line.trim_ascii().is_empty());
    let parse = |(at, (number, line))| {
        json::parse_line(line, number).map_err(|problem| problem.prefix_pointers(&format!("/{at}")))
    };
    build_jobs(app, lines.enumerate().map(parse), key)
}

fn build_jobs(app: &App, bodies: impl Iterator<Item = Result<PushBody>>, key: Option<String>) -> Result<Vec<Push>> {
    let mut jobs = Vec::new();
    for (at, body) in bodies.enumerate() {
        if at == PUSH_MAX {
            return Err(Problem::invalid("", format!("at most {PUSH_MAX} jobs in one push; push them in parts")));
        }
        let key = key.as_ref().map(|key| format!("{key}\n{at}"));
        let with_index = |problem: Problem| problem.prefix_pointers(&format!("/{at}"));
        let job = body?.into_push(app, key).map_err(with_index)?;
        job.check().map_err(|error| with_index(error.into()))?;
        jobs.push(job);
    }
    Ok(jobs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(items: usize, last: &str) -> Result<usize> {
        let text = format!("[{}{last}]", r#"{"kind":"a"},"#.repeat(items));
        json::parse::<PushList>(text.as_bytes()).map(|bodies| bodies.0.len())
    }

    #[test]
    fn a_list_that_is_too_long_is_not_kept_whole() {
        assert_eq!(read(PUSH_MAX - 1, r#"{"kind":"a"}"#).ok(), Some(PUSH_MAX));
        assert_eq!(read(3 * PUSH_MAX, r#"{"kind":"a"}"#).ok(), Some(PUSH_MAX + 1));
        assert_eq!(read(PUSH_MAX + 1, r#"{"knid":7}"#).ok(), Some(PUSH_MAX + 1), "the rest is only skipped");
        assert_eq!(read(PUSH_MAX + 1, "{").err().map(|problem| problem.code), Some("not_json"));
        let wrong = read(2, r#"{"kind":7}"#).err().map(|problem| problem.errors[0].pointer.clone());
        assert_eq!(wrong.as_deref(), Some("/2/kind"));
    }
}
