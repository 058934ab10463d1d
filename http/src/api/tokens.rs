//! Tokens: create, list and remove them.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Problems;
use super::queues::Name;
use crate::audit::AuditNote;
use crate::identity::Admin;
use crate::json::{Json, PathParam};
use crate::problem::Result;
use crate::server::{App, AppState};
use crate::views::{CreatedToken, RoleSchema, Tokens};
use duly::admin::Role;

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(list, create)).routes(routes!(remove))
}

/// List tokens that have not expired, without their secrets
#[utoipa::path(get, path = "/tokens", tag = "tokens", operation_id = "listTokens", responses((status = 200, description = "all tokens", body = Tokens), Problems))]
async fn list(State(app): AppState, _: Admin) -> Result<axum::Json<Tokens>> {
    Ok(axum::Json(Tokens::from(&app.duly.tokens().list().await?[..])))
}

/// A token to create.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct CreateTokenBody {
    /// A unique name for people.
    name: String,
    #[schema(value_type = RoleSchema)]
    role: Role,
    /// The lifetime in milliseconds; unlimited if absent.
    lifetime_ms: Option<u64>,
}

/// Create a token
#[utoipa::path(post, path = "/tokens", tag = "tokens", operation_id = "createToken", request_body = CreateTokenBody, responses((status = 201, description = "the token, with its secret", body = CreatedToken), Problems))]
async fn create(
    State(app): AppState,
    _: Admin,
    note: AuditNote,
    Json(body): Json<CreateTokenBody>,
) -> Result<(StatusCode, axum::Json<CreatedToken>)> {
    note.set_target(&body.name);
    let lifetime = body.lifetime_ms.map(Duration::from_millis);
    let secret = app.duly.tokens().create(&body.name, body.role, lifetime).await?;
    app.tokens.clear();
    let created = CreatedToken::new(body.name, body.role, secret.as_str());
    Ok((StatusCode::CREATED, axum::Json(created)))
}

/// Remove a token: it is refused from now on
#[utoipa::path(delete, path = "/tokens/{name}", tag = "tokens", operation_id = "deleteToken", params(("name" = String, Path, description = "the name of the token")),
    responses((status = 204, description = "the token is removed"), Problems))]
async fn remove(State(app): AppState, _: Admin, PathParam(Name(name)): PathParam<Name>) -> Result<StatusCode> {
    app.duly.tokens().remove(&name).await?;
    app.tokens.clear();
    Ok(StatusCode::NO_CONTENT)
}
