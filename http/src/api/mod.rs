//! The API below `/api/v1`, one file per resource.

mod actions;
mod audit;
mod bulk;
mod calls;
mod cron;
mod dead;
mod events;
mod holds;
mod job_events;
mod jobs;
mod kinds;
mod locks;
mod nodes;
mod push;
mod queues;
mod stats;
mod tokens;
mod wait;
mod workers;

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::http::{HeaderMap, HeaderValue, header};
use utoipa::openapi::{Content, Ref, RefOr, Response, ResponseBuilder};
use utoipa_axum::router::OpenApiRouter;

pub(crate) use self::actions::{Operations, without_commands};
pub(crate) use self::cron::check_command_rule;
pub(crate) use self::events::Events;
pub(crate) use self::holds::Holds;
pub(crate) use self::job_events::JobEvents;
pub(crate) use self::jobs::check_command_job;
pub(crate) use self::kinds::totals_by_kind;
pub(crate) use self::locks::break_holds;
pub(crate) use self::push::COMMAND;
use super::problem::{Problem, Result};
use super::server::App;

/// The path of the API.
pub(crate) const PREFIX: &str = "/api/v1";
/// The page size: the default, and the most.
pub(super) const PAGE_SIZE: usize = 50;
pub(super) const PAGE_SIZE_MAX: usize = 200;

/// Returns the router of all resources.
pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .merge(jobs::router())
        .merge(wait::router())
        .merge(push::router())
        .merge(bulk::router())
        .merge(actions::router())
        .merge(dead::router())
        .merge(cron::router())
        .merge(queues::router())
        .merge(nodes::router())
        .merge(workers::router())
        .merge(locks::router())
        .merge(calls::router())
        .merge(stats::router())
        .merge(kinds::router())
        .merge(events::router())
        .merge(job_events::router())
        .merge(audit::router())
        .merge(tokens::router())
}

/// The error responses of every operation: status and description.
const PROBLEMS: [(&str, &str); 15] = [
    ("400", "the body is not JSON"),
    ("401", "missing or invalid token; send `Authorization: Bearer <token>`"),
    ("403", "the token's role does not allow this, or the server is read-only"),
    ("404", "not found"),
    ("408", "timed out waiting for the body"),
    ("409", "the current state does not allow this"),
    ("413", "the body is too large"),
    ("415", "unsupported media type of the body"),
    ("421", "the server does not accept the name in `Host`"),
    ("422", "invalid request; `errors` lists the invalid parts"),
    ("429", "too many requests; try again after the time in `Retry-After`"),
    ("501", "the store does not support this"),
    ("502", "the called method failed on the other node"),
    ("503", "the store did not respond; try again"),
    ("504", "timed out"),
];

/// The error response of operations that support `If-Match`.
const PRECONDITION_FAILED: (&str, &str) = ("412", "the current `ETag` does not match `If-Match`");

/// Adds the common error responses to the description of an operation.
pub(super) struct Problems;

/// Adds the 412 response to the description of an operation that supports `If-Match`.
pub(super) struct PreconditionFailed;

impl utoipa::IntoResponses for Problems {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        PROBLEMS.iter().map(reference).collect()
    }
}

impl utoipa::IntoResponses for PreconditionFailed {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        BTreeMap::from([reference(&PRECONDITION_FAILED)])
    }
}

fn reference((status, _): &(&str, &str)) -> (String, RefOr<Response>) {
    ((*status).to_owned(), RefOr::Ref(Ref::from_response_name(format!("Problem{status}"))))
}

/// Returns the descriptions of all error responses.
pub(super) fn problem_responses() -> BTreeMap<String, RefOr<Response>> {
    let content = || Content::new(Some(Ref::from_schema_name("Problem")));
    let response =
        |text: &str| ResponseBuilder::new().description(text).content("application/problem+json", content()).build();
    let all = PROBLEMS.iter().chain([&PRECONDITION_FAILED]);
    all.map(|(status, text)| (format!("Problem{status}"), RefOr::T(response(text)))).collect()
}

/// Returns the page size, at most the largest one; a 422 for an empty page.
pub(super) fn page_size(requested: Option<usize>) -> Result<usize> {
    positive("limit", requested, PAGE_SIZE, PAGE_SIZE_MAX)
}

/// Returns the number in a parameter, at most `max`; a 422 for 0.
pub(super) fn positive<N: Copy + Ord + Default>(name: &str, requested: Option<N>, default: N, max: N) -> Result<N> {
    match requested {
        Some(number) if number == N::default() => Err(Problem::invalid(name, "must be greater than zero")),
        _ => Ok(requested.unwrap_or(default).min(max)),
    }
}

/// Returns a `Link` header to the next page.
pub(super) fn next_link(app: &App, path: &str, query: &[(&str, Option<String>)], next: Option<&str>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let Some(next) = next else {
        return headers;
    };
    let encode =
        |text: &str| percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string();
    let pairs = query.iter().filter_map(|(name, value)| Some((*name, value.as_deref()?))).chain([("cursor", next)]);
    let pairs: Vec<String> = pairs.map(|(name, value)| format!("{name}={}", encode(value))).collect();
    let link = format!("<{}{PREFIX}{path}?{}>; rel=\"next\"", app.options.prefix, pairs.join("&"));
    if let Ok(link) = HeaderValue::from_str(&link) {
        headers.insert(header::LINK, link);
    }
    headers
}
