//! Signing in from a browser: a token creates a session, and the browser keeps only the session id.

use std::net::SocketAddr;

use axum::Form;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Redirect, Response};
use duly::admin::TokenSecret;
use serde::Deserialize;

use super::auth;
use super::pages::local_path_or;
use super::problem::Result;
use super::server::AppState;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LoginForm {
    token: String,
    /// The page to redirect to: a path of this server.
    #[serde(default)]
    next: String,
}

/// `POST /login`: signs in with a token.
pub(super) async fn sign_in(
    State(app): AppState,
    info: Option<axum::Extension<ConnectInfo<SocketAddr>>>,
    Form(form): Form<LoginForm>,
) -> Result<Response> {
    let from = info.map(|info| info.0.0.ip().to_canonical());
    let secret = TokenSecret::new(form.token.trim());
    auth::identify_by_token(&app, &secret, from).await?;
    let cookie = app.sessions.create(secret.hash(), app.options.secure);
    // Only a path of this server: another site must not receive a visitor who has just signed in.
    let home = app.link("/");
    Ok(([(header::SET_COOKIE, cookie)], Redirect::to(local_path_or(&form.next, &home))).into_response())
}

/// `POST /logout`: ends the session.
pub(super) async fn sign_out(State(app): AppState, headers: HeaderMap, _: Request) -> Response {
    let cookie = app.sessions.remove(&headers, app.options.secure);
    ([(header::SET_COOKIE, cookie)], Redirect::to(&app.link("/login"))).into_response()
}
