//! Pushing many jobs in one request: a JSON list, or one JSON object per line.

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
use crate::http::json::{self, BULK_BYTES_MAX, Claimed, Key};
use crate::http::problem::Problem;
use crate::http::server::App;
use crate::http::who::Pusher;
use crate::job::push::{PUSH_MAX, Push};

const NDJSON: [&str; 2] = ["application/x-ndjson", "application/ndjson"];

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(push_all))
}

/// What became of each job, in their order.
#[derive(Serialize, ToSchema)]
struct PushedAll {
    jobs: Vec<PushedView>,
    /// How many are new.
    new: usize,
}

/// Push many jobs
///
/// A JSON list, or one JSON object per line as `application/x-ndjson`: at most 10,000 jobs and 64 MiB, all or none per queue.
#[utoipa::path(post, path = "/jobs/bulk", tag = "jobs",
    request_body(content((Vec<PushBody> = "application/json"), (String = "application/x-ndjson"))),
    params(("Idempotency-Key" = Option<String>, Header, description = "the same key pushes the same jobs once")),
    responses((status = 200, body = PushedAll), Problems))]
async fn push_all(
    State(app): State<Arc<App>>,
    _: Pusher,
    Key(key): Key,
    request: Request,
) -> Result<Response, Problem> {
    let lines = match json::content_type(request.headers()).as_str() {
        "application/json" => false,
        kind if NDJSON.contains(&kind) => true,
        _ => return Err(json::wrong_type("application/json, or application/x-ndjson")),
    };
    let claim = Claimed::of(&request)?;
    let text = json::read(request, BULK_BYTES_MAX).await?;
    claim.check(&app, &text)?;
    let jobs = if lines { by_line(&app, &text, key)? } else { by_list(&app, &text, key)? };
    let pushed = app.duly.push_all(jobs).await?;
    let new = pushed.iter().filter(|pushed| pushed.is_new()).count();
    let jobs = pushed.into_iter().map(PushedView::of).collect();
    Ok(axum::Json(PushedAll { jobs, new }).into_response())
}

fn by_list(app: &App, text: &[u8], key: Option<String>) -> Result<Vec<Push>, Problem> {
    let Bodies(bodies) = json::parse(text)?;
    jobs(app, bodies.into_iter().map(Ok), key)
}

/// A list of jobs, of which no more are held than tell that there are too many: what comes then only has to be JSON.
struct Bodies(Vec<PushBody>);

impl<'de> Deserialize<'de> for Bodies {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ReadBodies)
    }
}

struct ReadBodies;

impl<'de> Visitor<'de> for ReadBodies {
    type Value = Bodies;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a sequence")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Bodies, A::Error> {
        let mut bodies = Vec::new();
        while let Some(body) = list.next_element()? {
            bodies.push(body);
            if bodies.len() > PUSH_MAX {
                while list.next_element::<IgnoredAny>()?.is_some() {}
                break;
            }
        }
        Ok(Bodies(bodies))
    }
}

fn by_line(app: &App, text: &[u8], key: Option<String>) -> Result<Vec<Push>, Problem> {
    let lines = (1..).zip(text.split(|byte| *byte == b'\n')).filter(|(_, line)| !line.trim_ascii().is_empty());
    let read = |(at, (no, line))| json::parse_line(line, no).map_err(|problem| problem.below(&format!("/{at}")));
    jobs(app, lines.enumerate().map(read), key)
}

fn jobs(
    app: &App,
    bodies: impl Iterator<Item = Result<PushBody, Problem>>,
    key: Option<String>,
) -> Result<Vec<Push>, Problem> {
    let mut jobs = Vec::new();
    for (at, body) in bodies.enumerate() {
        if at == PUSH_MAX {
            return Err(Problem::invalid("", format!("at most {PUSH_MAX} jobs in one push; push them in parts")));
        }
        let key = key.as_ref().map(|key| format!("{key}\n{at}"));
        let told = |problem: Problem| problem.below(&format!("/{at}"));
        let job = body?.into_push(app, key).map_err(told)?;
        job.check().map_err(|error| told(error.into()))?;
        jobs.push(job);
    }
    Ok(jobs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(items: usize, last: &str) -> Result<usize, Problem> {
        let text = format!("[{}{last}]", r#"{"kind":"a"},"#.repeat(items));
        json::parse::<Bodies>(text.as_bytes()).map(|bodies| bodies.0.len())
    }

    #[test]
    fn of_a_list_that_is_too_long_no_more_is_held_than_says_so() {
        assert_eq!(read(PUSH_MAX - 1, r#"{"kind":"a"}"#).ok(), Some(PUSH_MAX));
        assert_eq!(read(3 * PUSH_MAX, r#"{"kind":"a"}"#).ok(), Some(PUSH_MAX + 1));
        assert_eq!(read(PUSH_MAX + 1, r#"{"knid":7}"#).ok(), Some(PUSH_MAX + 1), "not looked at any more");
        assert_eq!(read(PUSH_MAX + 1, "{").err().map(|problem| problem.code), Some("not_json"));
        let wrong = read(2, r#"{"kind":7}"#).err().map(|problem| problem.errors[0].pointer.clone());
        assert_eq!(wrong.as_deref(), Some("/2/kind"));
    }
}
