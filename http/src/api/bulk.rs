//! Pushes many jobs in one request: a JSON list, or one JSON object per line.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::de::{IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use sha2::Digest;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Problems;
use super::push::{PushBody, check_existing};
use crate::identity::Pusher;
use crate::json::{self, BODY_BYTES_MAX, BULK_BYTES_MAX, IdempotencyCheck, IdempotencyKey, KeyedIds};
use crate::problem::{Problem, Result};
use crate::server::{App, AppState};
use crate::views::PushedView;
use duly::bounds::PUSH_MAX;
use duly::{JobId, Push};

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
#[utoipa::path(post, path = "/jobs/bulk", tag = "jobs", operation_id = "pushJobs",
    request_body(content((Vec<PushBody> = "application/json"), (String = "application/x-ndjson"))),
    params(("Idempotency-Key" = Option<String>, Header, description = "requests with the same key push the jobs once")),
    responses((status = 200, description = "all jobs are stored; some may have existed already", body = BulkPushResponse), Problems))]
async fn push_all(
    State(app): AppState,
    Pusher(identity): Pusher,
    IdempotencyKey(key): IdempotencyKey,
    request: Request,
) -> Result<Response> {
    let is_ndjson = match json::content_type(request.headers()).as_str() {
        "application/json" => false,
        kind if NDJSON.contains(&kind) => true,
        _ => return Err(json::wrong_type("application/json, or application/x-ndjson")),
    };
    let idempotency = IdempotencyCheck::new(&request)?;
    let mut batch = Batch { app: &app, key, queues: BTreeSet::new(), fingerprints: Vec::new(), jobs: Vec::new() };
    if is_ndjson {
        let (mut lines, mut digest) = (Lines::default(), idempotency.digest());
        let read = json::read_chunks(request, BULK_BYTES_MAX, |chunk| {
            digest.update(&chunk);
            lines.add(&chunk, &mut batch)
        });
        read.await?;
        lines.end(&mut batch)?;
        idempotency.check_digest(&app, digest)?;
    } else {
        let text = json::read_body(request, BULK_BYTES_MAX).await?;
        idempotency.check(&app, &text)?;
        let PushList(bodies) = json::parse(&text)?;
        bodies.into_iter().try_for_each(|body| batch.add(body))?;
    }
    let Batch { key, queues, fingerprints, jobs, .. } = batch;
    jobs.iter().try_for_each(Push::check)?;
    let queues = app.queue_count_limit.reserve(&app.duly, &identity, queues.iter().map(String::as_str)).await?;
    let ids: Vec<JobId> = jobs.iter().map(Push::job_id).collect();
    let pushed = app.duly.push_all(jobs).await?;
    queues.confirm();
    if let Some(key) = key {
        let expected = ids.into_iter().zip(fingerprints).zip(pushed.iter().copied());
        let expected: Vec<_> = expected.map(|((id, fingerprint), pushed)| (id, fingerprint, pushed)).collect();
        check_existing(&app, &key.key, expected).await?;
    }
    let new = pushed.iter().filter(|pushed| pushed.is_new()).count();
    let jobs = pushed.into_iter().map(PushedView::from).collect();
    Ok(axum::Json(BulkPushResponse { jobs, new }).into_response())
}

/// The jobs of a request.
struct Batch<'a> {
    app: &'a App,
    key: Option<KeyedIds>,
    queues: BTreeSet<String>,
    fingerprints: Vec<[u8; 32]>,
    jobs: Vec<Push>,
}

impl Batch<'_> {
    fn add(&mut self, body: PushBody) -> Result<()> {
        let at = self.jobs.len();
        if at == PUSH_MAX {
            return Err(Problem::invalid(
                "",
                format!("at most {PUSH_MAX} jobs in one push; split them into several requests"),
            ));
        }
        let id = self.key.as_ref().map(|key| key.id_of(&at.to_string()));
        let with_index = |problem: Problem| problem.prefix_pointers(&format!("/{at}"));
        if !self.queues.contains(body.queue()) {
            self.queues.insert(body.queue().to_owned());
        }
        self.fingerprints.extend(id.is_some().then(|| body.fingerprint()));
        let job = body.into_push(self.app, id).map_err(with_index)?;
        job.check().map_err(|error| with_index(error.into()))?;
        self.jobs.push(job);
        Ok(())
    }
}

/// Lines of NDJSON, parsed as they arrive: only the last, incomplete one is kept.
#[derive(Default)]
struct Lines {
    incomplete: Vec<u8>,
    /// The number of complete lines.
    number: usize,
}

impl Lines {
    fn add(&mut self, mut bytes: &[u8], batch: &mut Batch<'_>) -> Result<()> {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            self.append(&bytes[..end])?;
            self.end(batch)?;
            bytes = &bytes[end + 1..];
        }
        self.append(bytes)
    }

    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        if self.incomplete.len() + bytes.len() > BODY_BYTES_MAX {
            let detail = format!("line {} has more than {BODY_BYTES_MAX} bytes", self.number + 1);
            return Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", detail));
        }
        self.incomplete.extend_from_slice(bytes);
        Ok(())
    }

    /// Ends a line; empty ones are skipped.
    fn end(&mut self, batch: &mut Batch<'_>) -> Result<()> {
        self.number += 1;
        if !self.incomplete.trim_ascii().is_empty() {
            let body = json::parse_line(&self.incomplete, self.number);
            batch.add(body.map_err(|problem| problem.prefix_pointers(&format!("/{}", batch.jobs.len())))?)?;
        }
        self.incomplete.clear();
        Ok(())
    }
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
