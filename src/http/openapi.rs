//! The description of the API, made from the code that serves it.

use axum::response::{IntoResponse, Response};
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;

use super::api;
use super::problem::{Document, Fault};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "duly",
        description = "Durable jobs that run on time, locks with fences, calls between processes.\n\nMoments are RFC 3339 in UTC, and milliseconds since 1970 in fields that end in `_ms`; durations are milliseconds. Unknown fields are refused. Errors are `application/problem+json` with a stable `code`.",
        license(name = "MIT OR Apache-2.0"),
    ),
    components(schemas(Document<'static>, Fault)),
    modifiers(&Bearer),
    security((), ("bearer" = [])),
)]
struct Base;

struct Bearer;

impl utoipa::Modify for Bearer {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
        if let Some(components) = &mut openapi.components {
            components.responses.extend(api::problems());
            components.add_security_scheme("bearer", SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer)));
        }
    }
}

/// The API with its description.
pub(super) fn described() -> OpenApiRouter<std::sync::Arc<super::server::App>> {
    OpenApiRouter::with_openapi(Base::openapi()).nest(api::PREFIX, api::router())
}

/// The description as JSON text, with a line for each field.
#[must_use]
pub fn openapi() -> String {
    let mut api = described().into_openapi();
    api.info.version = env!("CARGO_PKG_VERSION").to_owned();
    let mut text = api.to_pretty_json().unwrap_or_default();
    text.push('\n');
    text
}

/// `GET /openapi.json`
pub(super) async fn document() -> Response {
    ([("content-type", "application/json")], openapi()).into_response()
}
