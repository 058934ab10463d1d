//! Tokens: create, list and remove them.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
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
use crate::views::{rfc3339, unix_ms};
use duly::admin::{Role, Token};

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(list, create)).routes(routes!(remove))
}

/// The schema of [`Role`].
#[derive(ToSchema)]
#[schema(as = Role, rename_all = "lowercase")]
#[allow(dead_code, reason = "only its schema is used")]
enum RoleSchema {
    /// Reads, without the args of jobs.
    Viewer,
    /// Pushes jobs and works on them, acquires locks, calls methods.
    Pusher,
    /// Manages jobs, queues, cron rules and nodes.
    Operator,
    /// Manages tokens, and reads the audit log.
    Admin,
}

/// A token, without its secret.
#[derive(Serialize, ToSchema)]
#[schema(as = Token)]
struct TokenView {
    name: String,
    #[schema(value_type = RoleSchema)]
    role: Role,
    created: String,
    created_ms: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_ms: Option<i64>,
}

impl TokenView {
    fn new(token: &Token) -> Self {
        TokenView {
            name: token.name.clone(),
            role: token.role,
            created: rfc3339(token.created),
            created_ms: unix_ms(token.created),
            expires: token.expires.map(rfc3339),
            expires_ms: token.expires.map(unix_ms),
        }
    }
}

/// All tokens.
#[derive(Serialize, ToSchema)]
struct Tokens {
    tokens: Vec<TokenView>,
}

/// List tokens that have not expired, without their secrets
#[utoipa::path(get, path = "/tokens", tag = "tokens", responses((status = 200, body = Tokens), Problems))]
async fn list(State(app): AppState, _: Admin) -> Result<axum::Json<Tokens>> {
    Ok(axum::Json(Tokens { tokens: app.duly.tokens().list().await?.iter().map(TokenView::new).collect() }))
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

/// A new token: only this response contains it.
#[derive(Serialize, ToSchema)]
struct CreatedToken {
    name: String,
    #[schema(value_type = RoleSchema)]
    role: Role,
    token: String,
}

/// Create a token
#[utoipa::path(post, path = "/tokens", tag = "tokens", request_body = CreateTokenBody, responses((status = 201, body = CreatedToken), Problems))]
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
    let created = CreatedToken { name: body.name, role: body.role, token: secret.as_str().to_owned() };
    Ok((StatusCode::CREATED, axum::Json(created)))
}

/// Remove a token: it is refused from now on
#[utoipa::path(delete, path = "/tokens/{name}", tag = "tokens", params(("name" = String, Path, description = "the name of the token")),
    responses((status = 204, description = "the token is removed"), Problems))]
async fn remove(State(app): AppState, _: Admin, PathParam(Name(name)): PathParam<Name>) -> Result<StatusCode> {
    app.duly.tokens().remove(&name).await?;
    app.tokens.clear();
    Ok(StatusCode::NO_CONTENT)
}
