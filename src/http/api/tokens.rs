//! Tokens: make one, list them, take one away.

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
use crate::admin::token::{Role, Token};
use crate::http::json::{Json, Named};
use crate::http::problem::Problem;
use crate::http::server::App;
use crate::http::view::{moment, moment_ms};
use crate::http::who::Admin;

pub(super) fn router() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(list, create)).routes(routes!(remove))
}

/// What is known of a token.
#[derive(Serialize, ToSchema)]
#[schema(as = Token)]
struct TokenView {
    name: String,
    role: Role,
    created: String,
    created_ms: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_ms: Option<i64>,
}

impl TokenView {
    fn of(token: &Token) -> Self {
        TokenView {
            name: token.name.clone(),
            role: token.role,
            created: moment(token.created),
            created_ms: moment_ms(token.created),
            expires: token.expires.map(moment),
            expires_ms: token.expires.map(moment_ms),
        }
    }
}

/// All tokens.
#[derive(Serialize, ToSchema)]
struct Tokens {
    tokens: Vec<TokenView>,
}

/// All tokens that have not ended, without what would let anybody in
#[utoipa::path(get, path = "/tokens", tag = "tokens", responses((status = 200, body = Tokens), Problems))]
async fn list(State(app): State<Arc<App>>, _: Admin) -> Result<axum::Json<Tokens>, Problem> {
    Ok(axum::Json(Tokens { tokens: app.duly.tokens().await?.iter().map(TokenView::of).collect() }))
}

/// A token to be.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Create {
    /// For people: one token has it.
    name: String,
    role: Role,
    /// How long it lasts; for ever if left out.
    lasts_ms: Option<u64>,
}

/// A new token: this is the only time it is shown.
#[derive(Serialize, ToSchema)]
struct Created {
    name: String,
    role: Role,
    token: String,
}

/// Make a token
#[utoipa::path(post, path = "/tokens", tag = "tokens", request_body = Create, responses((status = 201, body = Created), Problems))]
async fn create(
    State(app): State<Arc<App>>,
    _: Admin,
    Json(body): Json<Create>,
) -> Result<(StatusCode, axum::Json<Created>), Problem> {
    let lasts = body.lasts_ms.map(Duration::from_millis);
    let secret = app.duly.create_token(&body.name, body.role, lasts).await?;
    app.tokens.forget();
    let created = Created { name: body.name, role: body.role, token: secret.as_str().to_owned() };
    Ok((StatusCode::CREATED, axum::Json(created)))
}

/// Take a token away: it is refused from now on
#[utoipa::path(delete, path = "/tokens/{name}", tag = "tokens", params(("name" = String, Path, description = "its name")),
    responses((status = 204, description = "it is gone"), Problems))]
async fn remove(State(app): State<Arc<App>>, _: Admin, Named(Name(name)): Named<Name>) -> Result<StatusCode, Problem> {
    app.duly.remove_token(&name).await?;
    app.tokens.forget();
    Ok(StatusCode::NO_CONTENT)
}
