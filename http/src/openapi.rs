//! The OpenAPI description, generated from the code that serves the API.

use axum::response::{IntoResponse, Response};
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;

use super::api;
use super::problem::{FieldError, ProblemBody};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "duly",
        description = "Durable jobs that run on time, locks with fences, calls between processes.\n\nTimes are RFC 3339 in UTC, and milliseconds since 1970 in fields that end in `_ms`; durations are milliseconds. Unknown fields are rejected. Errors are `application/problem+json` with a stable `code`.",
        license(name = "MIT OR Apache-2.0"),
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

/// Returns the OpenAPI description of the API as formatted JSON.
#[must_use]
pub fn openapi() -> String {
    let mut api = described_router().into_openapi();
    api.info.version = env!("CARGO_PKG_VERSION").to_owned();
    let mut text = api.to_pretty_json().unwrap_or_default();
    text.push('\n');
    text
}

/// `GET /openapi.json`
pub(super) async fn document() -> Response {
    ([("content-type", "application/json")], openapi()).into_response()
}
