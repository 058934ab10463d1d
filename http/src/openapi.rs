//! The OpenAPI description, generated from the code that serves the API.

mod enums;
mod examples;
#[cfg(test)]
mod tests;

use std::sync::LazyLock;

use axum::response::{IntoResponse, Response};
use utoipa::OpenApi;
use utoipa::openapi::path::Operation;
use utoipa::openapi::schema::{KnownFormat, Schema, SchemaFormat, SchemaType, Type};
use utoipa::openapi::{PathItem, RefOr};
use utoipa_axum::router::OpenApiRouter;

use super::api;
use super::problem::{FieldError, ProblemBody};

pub(super) use self::enums::{
    AuditOutcomeName, ConflictName, JobStateName, OperationStateName, OverlapName, PriorityName, PushedName,
    RunOutcomeName, UniqueScopeName, WhyName,
};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "duly",
        description = "Durable jobs that run on time, locks with fences, calls between processes.\n\nTimes are RFC 3339 in UTC, and milliseconds since 1970 in fields that end in `_ms`; durations are milliseconds. Unknown fields are rejected. Errors are `application/problem+json` with a stable `code`. Every response has the id of its request in `X-Request-Id`; a client may choose it.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0"),
    ),
    tags(
        (name = "jobs", description = "Push jobs, list and change them, and wait for them."),
        (name = "queues", description = "Pause queues, limit and clear them."),
        (name = "workers", description = "Run jobs in any language: join, claim, send heartbeats, settle, leave."),
        (name = "nodes", description = "List the nodes that run jobs, and stop them."),
        (name = "cron", description = "Push jobs at the times of a pattern."),
        (name = "locks", description = "Hold locks across processes, with fences."),
        (name = "calls", description = "Run methods on other nodes."),
        (name = "events", description = "Follow changes as server-sent events."),
        (name = "stats", description = "Totals, history and statistics by kind."),
        (name = "audit", description = "Administrative actions."),
        (name = "tokens", description = "Tokens that identify clients."),
    ),
    components(schemas(ProblemBody<'static>, FieldError)),
    modifiers(&CommonResponses),
    security((), ("bearer" = [])),
)]
struct ApiDescription;

/// Adds the error responses and the bearer token to the description.
struct CommonResponses;

impl utoipa::Modify for CommonResponses {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
        if let Some(components) = &mut openapi.components {
            components.responses.extend(api::problem_responses());
            components.add_security_scheme("bearer", SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer)));
        }
    }
}

/// Returns the router of the API with its description.
pub(super) fn described_router() -> OpenApiRouter<std::sync::Arc<super::server::App>> {
    OpenApiRouter::with_openapi(ApiDescription::openapi()).nest(api::PREFIX, api::router())
}

static DOCUMENT: LazyLock<String> = LazyLock::new(|| {
    let mut api = described_router().into_openapi();
    api.info.version = env!("CARGO_PKG_VERSION").to_owned();
    api.paths.paths.values_mut().flat_map(operations).for_each(examples::add);
    api.components.iter_mut().flat_map(|all| all.schemas.values_mut()).for_each(mark_times);
    let mut text = api.to_pretty_json().unwrap_or_default();
    text.push('\n');
    text
});

/// Returns the OpenAPI description of the API as formatted JSON.
#[must_use]
pub fn openapi() -> String {
    DOCUMENT.clone()
}

/// Returns the operations of a path.
fn operations(path: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    let PathItem { get, put, post, delete, patch, .. } = path;
    [get, put, post, delete, patch].into_iter().filter_map(Option::as_mut)
}

/// Gives a field the format of a time if the same time is also in a field with the suffix `_ms`.
fn mark_times(schema: &mut RefOr<Schema>) {
    let RefOr::T(Schema::Object(object)) = schema else {
        return;
    };
    let names: Vec<String> = object.properties.keys().cloned().collect();
    let times = names.iter().filter(|name| object.properties.contains_key(&format!("{name}_ms")));
    for name in times.cloned().collect::<Vec<_>>() {
        if let Some(RefOr::T(Schema::Object(field))) = object.properties.get_mut(&name)
            && is_text(&field.schema_type)
        {
            field.format = Some(SchemaFormat::KnownFormat(KnownFormat::DateTime));
        }
    }
}

/// Returns whether a field is a string, which may be null.
fn is_text(schema_type: &SchemaType) -> bool {
    match schema_type {
        SchemaType::Type(only) => *only == Type::String,
        SchemaType::Array(all) => all.iter().all(|one| matches!(one, Type::String | Type::Null)),
        SchemaType::AnyValue => false,
    }
}

/// `GET /openapi.json`
pub(super) async fn document() -> Response {
    ([("content-type", "application/json")], DOCUMENT.as_str()).into_response()
}
